package hipotest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sort"

	"github.com/zeebo/xxh3"
)

// stream is one stream of a split section.
type stream struct {
	raw   []byte
	width int // of one value; 1: an opaque or array column
}

// splitBank is what one (group, item) has in a record: its data in every event.
type splitBank struct {
	first   Structure // gives group, item, type and format length
	data    [][]byte  // by event; nil: absent
	columns int       // 0: opaque
	streams []stream
}

// split is the section of tags 5 to 14:
//
//	version, 0, 0, 0 | B | E | Dc | Dd | directory, LZ4 | streams
func (r Record) split(codec codec, layout layout, schemas []Schema) (section []byte, dataLength int) {
	banks := r.banks(layout, schemas)
	version := r.Version
	if version == 0 {
		version = 1
		if layout == byBank {
			version = 2
		}
	}
	checked := layout == byColumn && version == 3

	var pairs [][2]uint32 // stored and raw size of each stream
	var stored, encodings, sums []byte
	for _, b := range banks {
		for _, s := range b.streams {
			raw, encoding := s.raw, byte(s.width<<4)
			if checked && r.ByteSplit && s.width > 1 {
				raw, encoding = byteSplit(raw, s.width), encoding|1
			}
			if r.Stream != nil {
				raw = r.Stream(len(pairs), raw)
			}
			var z []byte
			if len(raw) > 0 { // an empty stream is stored as nothing
				z = codec.compress(raw)
			}
			var sum uint32
			if len(raw) > 0 && !r.NoSums {
				sum = uint32(xxh3.Hash(z))
			}
			pairs = append(pairs, [2]uint32{uint32(len(z)), uint32(len(s.raw))})
			stored = append(stored, z...)
			encodings = append(encodings, encoding)
			sums = binary.LittleEndian.AppendUint32(sums, sum)
			dataLength += len(s.raw)
		}
	}

	dir := r.directory(layout, banks, pairs)
	if checked {
		dir = append(append(dir, encodings...), sums...)
	}
	if r.Directory != nil {
		dir = r.Directory(dir)
	}
	storedDir := compressLZ4(dir)

	le := binary.LittleEndian
	section = []byte{version, 0, 0, 0}
	section = le.AppendUint32(section, uint32(len(banks)))
	section = le.AppendUint32(section, uint32(len(r.Events)))
	section = le.AppendUint32(section, uint32(len(storedDir)))
	section = le.AppendUint32(section, uint32(len(dir)))
	section = append(append(section, storedDir...), stored...)
	if r.Section != nil {
		section = r.Section(section)
	}
	return section, dataLength
}

// directory is the tables up to and with the optional tail of format lengths.
//
//	by bank:   descriptors | stored sizes | raw sizes | event tags | presence | data sizes
//	by column: descriptors | column counts | event tags | presence | data sizes | pairs of sizes
func (r Record) directory(layout layout, banks []splitBank, pairs [][2]uint32) []byte {
	le := binary.LittleEndian
	var dir []byte
	for _, b := range banks {
		dir = le.AppendUint16(dir, b.first.Group)
		dir = append(dir, b.first.Item, b.first.kind())
	}
	if layout == byBank {
		for i := range 2 {
			for _, p := range pairs {
				dir = le.AppendUint32(dir, p[i])
			}
		}
	} else {
		for _, b := range banks {
			dir = le.AppendUint16(dir, uint16(b.columns))
		}
	}
	for _, e := range r.Events {
		dir = le.AppendUint32(dir, e.Tag)
	}
	for e := range r.Events {
		bits := make([]byte, (len(banks)+7)/8)
		for i, b := range banks {
			if b.data[e] != nil {
				bits[i/8] |= 1 << (i % 8)
			}
		}
		dir = append(dir, bits...)
	}
	for _, b := range banks {
		for _, d := range b.data {
			dir = le.AppendUint32(dir, uint32(len(d)))
		}
	}
	if layout == byColumn {
		for _, p := range pairs {
			dir = le.AppendUint32(le.AppendUint32(dir, p[0]), p[1])
		}
	}
	if !r.NoTail {
		for _, b := range banks {
			dir = append(dir, byte(len(b.first.Format)))
		}
	}
	return dir
}

// banks are the record's banks by group and item, with their streams.
func (r Record) banks(layout layout, schemas []Schema) []splitBank {
	at := map[[2]int]int{}
	var banks []splitBank
	for e, ev := range r.Events {
		for _, s := range ev.Structures {
			key := [2]int{int(s.Group), int(s.Item)}
			i, ok := at[key]
			if !ok {
				i = len(banks)
				at[key] = i
				banks = append(banks, splitBank{first: s, data: make([][]byte, len(r.Events))})
			}
			if banks[i].data[e] != nil {
				panic(fmt.Sprintf("hipotest: split layout with %d/%d twice in event %d", s.Group, s.Item, e))
			}
			banks[i].data[e] = append([]byte{}, s.content()...) // present even when empty
		}
	}
	sort.Slice(banks, func(i, j int) bool {
		a, b := banks[i].first, banks[j].first
		return a.Group < b.Group || a.Group == b.Group && a.Item < b.Item
	})
	for i := range banks {
		b := &banks[i]
		schema, ok := schemaOf(schemas, b.first.Group, b.first.Item)
		if layout == byColumn && ok && !r.Opaque && b.first.Format == "" {
			b.byColumn(schema.columns())
		}
		if b.columns == 0 {
			b.streams = []stream{{bytes.Join(b.data, nil), 1}}
		}
	}
	return banks
}

// byColumn cuts the bank's data into one stream per column, unless some
// event's data is not a whole number of rows.
func (b *splitBank) byColumn(columns []column) {
	row := 0
	for _, c := range columns {
		row += c.width()
	}
	for _, d := range b.data {
		if len(d)%row != 0 {
			return
		}
	}
	b.columns = len(columns)
	b.streams = make([]stream, len(columns))
	for _, d := range b.data {
		rows, at := len(d)/row, 0
		for k, c := range columns {
			s := &b.streams[k]
			s.width = c.item
			if c.n > 1 {
				s.width = 1
			}
			s.raw = append(s.raw, d[at:at+rows*c.width()]...)
			at += rows * c.width()
		}
	}
}

// byteSplit puts byte k of value i at k*m + i, for m whole values.
func byteSplit(b []byte, width int) []byte {
	m := len(b) / width
	out := bytes.Clone(b)
	for i := range m {
		for k := range width {
			out[k*m+i] = b[i*width+k]
		}
	}
	return out
}
