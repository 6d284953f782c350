package hipo

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Encoder makes records. It keeps its memory, and is not safe for concurrent
// use. The same events give the same bytes.
type Encoder struct {
	schemas map[key]*Schema // what tells columns apart
	z       compressor

	payload []byte // or the streams of a split record
	gather  gathering
}

// NewEncoder makes an encoder for a file with those schemas.
func NewEncoder(schemas []*Schema) *Encoder {
	e := &Encoder{schemas: make(map[key]*Schema, len(schemas))}
	for _, s := range schemas {
		e.schemas[makeKey(s.Group, s.Item)] = s
	}
	return e
}

// recordKind is in the bit info of every record header, beside pads.
const recordKind = 4<<28 | version

// Record appends a record of the batch's events from the given one on to dst, and
// tells how many it took: all, unless structures of one id have different types or
// formats, which a split record cannot hold. It is an error if such a record
// should hold an id twice in an event.
func (e *Encoder) Record(dst []byte, b *Batch, from int, c Codec, w Words) (_ []byte, events int, err error) {
	off := 0
	for _, n := range b.lengths[:from] {
		off += int(n)
	}
	events = len(b.lengths) - from
	h := newRecord{tag: c.Tag, words: w}
	begin := len(dst)
	dst = append(dst, make([]byte, headerLength)...)
	if by := tags[c.Tag].layout; by == layoutWhole {
		h.user, h.pad1 = len(w.User), -len(w.User)&3
		h.data = int64(len(b.events) - off)
		e.payload = e.payload[:0]
		for _, n := range b.lengths[from:] {
			e.payload = binary.LittleEndian.AppendUint32(e.payload, n)
		}
		e.payload = append(e.payload, w.User...)
		e.payload = append(e.payload, make([]byte, h.pad1)...)
		e.payload = append(e.payload, b.events[off:]...)
		if int64(len(e.payload)) > math.MaxInt32 {
			return nil, 0, fmt.Errorf("%d events of %d bytes are too much for a record; make records smaller", events, h.data)
		}
		dst, err = e.z.compress(dst, e.payload, c)
	} else {
		if events, err = e.gather.events(b, from, off); err != nil {
			return nil, 0, err
		}
		dst, h.data, err = e.section(dst, b, events, by, c)
	}
	if err != nil {
		return nil, 0, err
	}
	h.events = events
	h.pad3 = -(len(dst) - begin) & 3
	dst = append(dst, make([]byte, h.pad3)...)
	if n := len(dst) - begin; int64(n) > math.MaxInt32 || h.data > math.MaxInt32 {
		return nil, 0, fmt.Errorf("a record of %d bytes is too long; make records smaller", n)
	}
	h.put(dst[begin:])
	return dst, events, nil
}

// newRecord is what the header of a new record says.
type newRecord struct {
	tag        uint8
	events     int
	user       int
	pad1, pad3 int
	data       int64
	words      Words
}

// put writes the header into the first bytes of the record. The record's number
// is for the Writer to fill in.
func (h *newRecord) put(record []byte) {
	le := binary.LittleEndian
	put := func(word int, v uint32) { le.PutUint32(record[4*word:], v) }
	put(0, uint32(len(record)/4))
	put(2, headerWords)
	put(3, uint32(h.events))
	put(4, 4*uint32(h.events))
	put(5, recordKind|uint32(h.pad1)<<pad1Shift|uint32(h.pad3)<<pad3Shift)
	put(6, uint32(h.user))
	put(7, magic)
	put(8, uint32(h.data))
	put(9, uint32(h.tag)<<tagShift|uint32((len(record)-headerLength)/4))
	le.PutUint64(record[40:], uint64(h.words.Tag))
	le.PutUint64(record[48:], h.words.Word)
}

// gathering finds what a split record stores together.
type gathering struct {
	banks []gathered
	byKey map[key]int
	last  []int // by place in an event: the bank that another event had there

	tags []uint32

	directory, stream []byte // memory
}

// gathered is one (group, item) in all events of a record.
type gathered struct {
	key    key
	kind   uint8
	format uint8
	spans  []placed
	schema *Schema // columns are stored apart; nil: the bank lies in one piece
}

// placed is where a structure's data lies in the batch.
type placed struct{ event, off, length int }

// events gathers the structures of events from the given one on, which begins
// at off, and gives how many events it took.
func (g *gathering) events(b *Batch, from, off int) (int, error) {
	g.banks, g.tags = g.banks[:0], g.tags[:0]
	g.byKey = map[key]int{}
	for e, length := range b.lengths[from:] {
		end := off + int(length)
		g.tags = append(g.tags, binary.LittleEndian.Uint32(b.events[off+8:]))
		for at, place := off+eventHeader, 0; at+structureHeader <= end; place++ {
			w := binary.LittleEndian.Uint64(b.events[at:])
			k, kind, format, n := key(w&keyMask), uint8(w>>24), uint8(w>>32>>formatShift), int(w>>32&dataLengthMask)
			at += structureHeader
			if at+n > end || int(format) > n {
				return 0, fmt.Errorf("internal error: event %d of a batch has structures beyond its end", from+e)
			}
			bank := &g.banks[g.find(k, place)]
			if len(bank.spans) == 0 {
				bank.kind, bank.format = kind, format
			} else if bank.spans[len(bank.spans)-1].event == e {
				return 0, fmt.Errorf("an event has structure %d/%d twice, which a record stored by bank or column cannot hold", k.group(), k.item())
			}
			if bank.kind != kind || bank.format != format {
				g.forget(e)
				return e, nil
			}
			bank.spans = append(bank.spans, placed{e, at, n})
			at += n
		}
		off = end
	}
	return len(b.lengths) - from, nil
}

// find is the place of a key's bank, which is made if it is new.
func (g *gathering) find(k key, place int) int {
	if place < len(g.last) && g.last[place] < len(g.banks) && g.banks[g.last[place]].key == k {
		return g.last[place]
	}
	i, ok := g.byKey[k]
	if !ok {
		i = len(g.banks)
		g.byKey[k] = i
		g.banks = append(g.banks, gathered{key: k})
	}
	if place == len(g.last) {
		g.last = append(g.last, i)
	}
	g.last[place] = i
	return i
}

// forget takes back what event e has given.
func (g *gathering) forget(e int) {
	for i := range g.banks {
		bank := &g.banks[i]
		if n := len(bank.spans); n > 0 && bank.spans[n-1].event == e {
			bank.spans = bank.spans[:n-1]
		}
	}
	g.banks = slices.DeleteFunc(g.banks, func(b gathered) bool { return len(b.spans) == 0 })
}

// section appends the section of a split record of the events that have been
// gathered, and gives the bytes of its streams. The picture is in split.go.
func (e *Encoder) section(dst []byte, b *Batch, events int, by layout, c Codec) (_ []byte, data int64, err error) {
	g, le := &e.gather, binary.LittleEndian
	slices.SortFunc(g.banks, func(a, b gathered) int {
		if a.key.less(b.key) {
			return -1
		}
		return 1
	})
	if 4*int64(len(g.banks))*int64(events) > maxDirectory {
		return nil, 0, fmt.Errorf("%d banks in %d events are too much for a record stored by bank; make records smaller", len(g.banks), events)
	}
	// The streams come behind the directory, which has their sizes.
	streams := e.payload[:0]
	var sizes [][2]int // stored, inflated
	compress := func(stream []byte) error {
		before := len(streams)
		streams, err = e.z.compress(streams, stream, c)
		sizes = append(sizes, [2]int{len(streams) - before, len(stream)})
		data += int64(len(stream))
		g.stream = stream[:0]
		return err
	}
	for i := range g.banks {
		bank := &g.banks[i]
		if by == layoutColumn {
			bank.schema = e.apart(bank)
		}
		if bank.schema == nil {
			stream := g.stream[:0]
			for _, s := range bank.spans {
				stream = append(stream, b.events[s.off:s.off+s.length]...)
			}
			if err := compress(stream); err != nil {
				return nil, 0, err
			}
			continue
		}
		for _, column := range bank.schema.Columns {
			stream := g.stream[:0]
			for _, s := range bank.spans {
				off, n := column.Span(s.length / bank.schema.RowSize)
				stream = append(stream, b.events[s.off+off:s.off+off+n]...)
			}
			if err := compress(stream); err != nil {
				return nil, 0, err
			}
		}
	}
	e.payload = streams

	g.describe(events, by, sizes)
	at := len(dst)
	sectionVersion := byte(2)
	if by == layoutColumn {
		sectionVersion = 1
	}
	dst = append(dst, sectionVersion, 0, 0, 0)
	dst = le.AppendUint32(dst, uint32(len(g.banks)))
	dst = le.AppendUint32(dst, uint32(events))
	dst = le.AppendUint32(dst, 0)
	dst = le.AppendUint32(dst, uint32(len(g.directory)))
	if dst, err = e.z.block(dst, g.directory, false); err != nil {
		return nil, 0, err
	}
	le.PutUint32(dst[at+12:], uint32(len(dst)-at-sectionHeader))
	dst = append(dst, streams...)
	return dst, data, nil
}

// maxDirectory bounds the table of sizes, one an event and bank.
const maxDirectory = 1 << 29

// apart is the schema by which a bank's columns are stored apart, or nil.
func (e *Encoder) apart(bank *gathered) *Schema {
	schema := e.schemas[bank.key]
	if schema == nil || bank.format != 0 {
		return nil
	}
	for _, s := range bank.spans {
		if s.length%schema.RowSize != 0 {
			return nil
		}
	}
	return schema
}

// describe makes the directory.
func (g *gathering) describe(events int, by layout, sizes [][2]int) {
	le := binary.LittleEndian
	dir := g.directory[:0]
	for i := range g.banks {
		k := g.banks[i].key
		dir = le.AppendUint16(dir, k.group())
		dir = append(dir, k.item(), g.banks[i].kind)
	}
	if by == layoutBank {
		for which := range 2 {
			for _, s := range sizes {
				dir = le.AppendUint32(dir, uint32(s[which]))
			}
		}
	} else {
		for i := range g.banks {
			columns := 0
			if s := g.banks[i].schema; s != nil {
				columns = len(s.Columns)
			}
			dir = le.AppendUint16(dir, uint16(columns))
		}
	}
	for _, t := range g.tags[:events] {
		dir = le.AppendUint32(dir, t)
	}
	width := (len(g.banks) + 7) / 8
	presence := len(dir)
	dir = append(dir, make([]byte, events*width)...)
	table := len(dir)
	dir = append(dir, make([]byte, 4*len(g.banks)*events)...)
	for i := range g.banks {
		for _, s := range g.banks[i].spans {
			dir[presence+s.event*width+i/8] |= 1 << (i % 8)
			le.PutUint32(dir[table+4*(i*events+s.event):], uint32(s.length))
		}
	}
	if by == layoutColumn {
		for _, s := range sizes {
			dir = le.AppendUint32(dir, uint32(s[0]))
			dir = le.AppendUint32(dir, uint32(s[1]))
		}
	}
	for i := range g.banks {
		dir = append(dir, g.banks[i].format)
	}
	g.directory = dir
}
