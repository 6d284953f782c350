package hipo_test

import (
	"encoding/binary"
	"fmt"
	"strings"

	"pgregory.net/rapid"

	. "github.com/hipofs/hipofs/hipo/hipotest"
)

// want is what a random file was filled with: the bytes of every column, end
// to end, and the rows of every event.
type want struct {
	tags    []uint32
	content map[string][]byte  // "BANK/COLUMN"
	rows    map[string][]int64 // "BANK": one number an event
}

// bankSpec is one (group, item) of a random file: a bank with a schema, a
// composite bank or a primitive node.
type bankSpec struct {
	name        string
	group       uint16
	item        uint8
	kind        uint8
	format      string
	columns     []string
	widths      []int // bytes a row
	hasSchema   bool
	spelledType []string
}

var letters = map[string]int{"B": 1, "S": 2, "I": 4, "F": 4, "D": 8, "L": 8}

// primitives are the types of a node and their bytes a row.
var primitives = map[uint8]int{1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 6: 1, 8: 8, 9: 12, 11: 1, 13: 1}

func drawSpecs(t *rapid.T) []bankSpec {
	ids := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) [2]int {
		return [2]int{rapid.SampledFrom([]int{0, 1, 2, 300, 32768, 65535}).Draw(t, "group"), rapid.SampledFrom([]int{0, 1, 2, 127, 128, 255}).Draw(t, "item")}
	}), 1, 11, rapid.ID).Draw(t, "ids") // more than 8: a second byte of presence bits
	var specs []bankSpec
	for i, id := range ids {
		s := bankSpec{group: uint16(id[0]), item: uint8(id[1]), name: fmt.Sprintf("@%d/%d", id[0], id[1])}
		switch rapid.SampledFrom([]string{"bank", "bank", "bank", "composite", "node"}).Draw(t, "kind") {
		case "bank":
			s.hasSchema, s.kind = true, rapid.SampledFrom([]uint8{11, 11, 3, 77}).Draw(t, "type") // whatever the type says
			s.name = fmt.Sprintf("B::%d", i)
			for k := range rapid.IntRange(1, 5).Draw(t, "columns") {
				letter := rapid.SampledFrom([]string{"B", "S", "I", "F", "D", "L"}).Draw(t, "letter")
				n := rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "N")
				s.columns = append(s.columns, fmt.Sprintf("c%d", k))
				s.widths = append(s.widths, letters[letter]*n)
				if n > 1 {
					letter = fmt.Sprintf("%s#%d", letter, n)
				}
				s.spelledType = append(s.spelledType, letter)
			}
		case "composite":
			s.kind = 10
			s.format = rapid.StringOfN(rapid.RuneFrom([]rune("bsifdl")), 1, 8, -1).Draw(t, "format")
			for k, c := range s.format {
				s.columns = append(s.columns, fmt.Sprintf("f%d", k))
				s.widths = append(s.widths, letters[strings.ToUpper(string(c))])
			}
		default:
			s.kind = rapid.SampledFrom([]uint8{1, 2, 3, 4, 5, 6, 8, 9, 11, 13}).Draw(t, "node")
			s.columns, s.widths = []string{"value"}, []int{primitives[s.kind]}
		}
		specs = append(specs, s)
	}
	return specs
}

// drawFile makes a file whose records have the given compression tags, and
// says what a reader must find in it.
func drawFile(t *rapid.T, tags []int) (File, *want) {
	specs := drawSpecs(t)
	w := &want{content: map[string][]byte{}, rows: map[string][]int64{}}
	f := File{
		TrailerTag: rapid.IntRange(0, 4).Draw(t, "trailer tag"),
		DictTag:    rapid.IntRange(0, 14).Draw(t, "dictionary tag"),
		Trailer:    rapid.SampledFrom([]Trailer{Indexed, Indexed, NoTrailer, Unreferenced, Misplaced, ListsAll, OldJava}).Draw(t, "trailer"),
		Words:      rapid.SampledFrom([]int{0, 0, 15, 20}).Draw(t, "file header words"),
	}
	if Split(f.DictTag) {
		// JSON and text, or the two strings of a setting, are told apart in a split record, too.
		f.Config = []Setting{{Key: "key", Value: "value"}}
	}
	for _, s := range specs {
		for _, c := range s.columns {
			w.content[s.name+"/"+c] = nil
		}
		w.rows[s.name] = nil
		if !s.hasSchema {
			continue
		}
		var columns []string
		for k, c := range s.columns {
			columns = append(columns, c+"/"+s.spelledType[k])
		}
		f.Schemas = append(f.Schemas, Schema{Name: s.name, Group: s.group, Item: s.item, Columns: strings.Join(columns, ","),
			Form: rapid.SampledFrom([]Form{Both, TextOnly, JSONOnly}).Draw(t, "form")})
	}
	for i, tag := range tags {
		r := Record{
			Tag: tag, Word1: rapid.Uint64().Draw(t, "word 1"), Words: rapid.SampledFrom([]int{0, 0, 14, 16}).Draw(t, "words"),
			User: rapid.SliceOfN(rapid.Byte(), 0, 6).Draw(t, "user header"),
			Pad2: rapid.Bool().Draw(t, "pad 2"),
			Big:  !Split(tag) && rapid.IntRange(0, 3).Draw(t, "big") == 0,
		}
		r.LittleEvents = r.Big && rapid.Bool().Draw(t, "little events")
		if Split(tag) {
			r.User, r.Pad2 = nil, false
			r.Opaque = rapid.IntRange(0, 4).Draw(t, "opaque") == 0
			if ByColumn(tag) {
				r.Version = rapid.ByteRange(1, 3).Draw(t, "version")
				r.ByteSplit = rapid.Bool().Draw(t, "byte split")
				r.NoSums = rapid.Bool().Draw(t, "no checksums")
			}
		}
		for range rapid.IntRange(min(i, 1), 10).Draw(t, "events") {
			r.Events = append(r.Events, drawEvent(t, specs, w, r))
		}
		f.Records = append(f.Records, r)
	}
	return f, w
}

// drawEvent fills one event, in the order of specs or against it.
func drawEvent(t *rapid.T, specs []bankSpec, w *want, r Record) Event {
	e := Event{Tag: rapid.Uint32().Draw(t, "event tag")}
	w.tags = append(w.tags, e.Tag)
	backwards := rapid.Bool().Draw(t, "backwards")
	for i := range specs {
		s := specs[i]
		if backwards {
			s = specs[len(specs)-1-i]
		}
		if rapid.IntRange(0, 2).Draw(t, "present") == 0 {
			w.rows[s.name] = append(w.rows[s.name], 0)
			continue
		}
		rows := rapid.SampledFrom([]int{0, 1, 1, 2, 3, 17}).Draw(t, "rows")
		w.rows[s.name] = append(w.rows[s.name], int64(rows))
		columns := make([][]byte, len(s.columns))
		for k := range columns {
			columns[k] = drawBytes(t, rows*s.widths[k])
			name := s.name + "/" + s.columns[k]
			w.content[name] = append(w.content[name], columns[k]...)
		}
		st := Structure{Group: s.group, Item: s.item, Type: s.kind, Format: s.format, Data: Columns(columns...)}
		if s.format != "" { // row by row
			st.Data = nil
			for row := range rows {
				for k, c := range columns {
					st.Data = append(st.Data, c[row*s.widths[k]:(row+1)*s.widths[k]]...)
				}
			}
		}
		e.Structures = append(e.Structures, st)
		if !Split(r.Tag) && rapid.IntRange(0, 9).Draw(t, "again") == 0 {
			again := st // a second copy of an id does not count
			again.Data = Columns(st.Data, st.Data)
			e.Structures = append(e.Structures, again)
		}
	}
	return e
}

// drawBytes are n bytes that compress or do not. One draw makes them all:
// a draw for every byte would take most of the test's time.
func drawBytes(t *rapid.T, n int) []byte {
	seed := rapid.Uint64().Draw(t, "bytes")
	b := make([]byte, n)
	for i := range b {
		switch seed % 3 {
		case 0:
			b[i] = byte(i)
		default:
			seed = seed*6364136223846793005 + 1442695040888963407
			b[i] = byte(seed >> 33)
		}
	}
	return b
}

// offsets are the running sums of rows.
func (w *want) offsets(bank string) []byte {
	var at int64
	out := binary.LittleEndian.AppendUint64(nil, 0)
	for _, n := range w.rows[bank] {
		at += n
		out = binary.LittleEndian.AppendUint64(out, uint64(at))
	}
	return out
}
