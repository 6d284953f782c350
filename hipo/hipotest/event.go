package hipotest

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Event is one event. With Raw it is those bytes and nothing else counts.
type Event struct {
	Ident      string // "": EVNT
	Tag, Mask  uint32
	Structures []Structure
	NoLength   bool // length word 0, as old Java writers left it
	Raw        []byte
}

// Structure is a bank, a composite bank or a primitive node. Data is
// little-endian and does not include the format.
type Structure struct {
	Group  uint16
	Item   uint8
	Type   uint8  // 0: 11, or 10 where there is a format
	Format string // of a composite bank
	Data   []byte
	Length uint32 // the length word, when it shall not be the true one
}

// Bank is a structure of type 11 from the bytes of its columns.
func Bank(group uint16, item uint8, columns ...[]byte) Structure {
	return Structure{Group: group, Item: item, Data: Columns(columns...)}
}

// Node is a primitive node, its type taken from the values: int8, int16,
// int32, float32, float64, int64 or a slice of them.
func Node(group uint16, item uint8, values any) Structure {
	s := Structure{Group: group, Item: item, Data: Pack(values)}
	switch values.(type) {
	case int8, []int8, []byte:
		s.Type = 1
	case int16, []int16:
		s.Type = 2
	case int32, []int32:
		s.Type = 3
	case float32, []float32:
		s.Type = 4
	case float64, []float64:
		s.Type = 5
	case int64, []int64:
		s.Type = 8
	default:
		panic(fmt.Sprintf("hipotest: node of %T", values))
	}
	return s
}

// Text is a string node.
func Text(group uint16, item uint8, text string) Structure {
	return Structure{Group: group, Item: item, Type: 6, Data: []byte(text)}
}

// Composite is a composite bank; data is its rows, each packed.
func Composite(group uint16, item uint8, format string, rows ...[]byte) Structure {
	return Structure{Group: group, Item: item, Format: format, Data: Columns(rows...)}
}

// Columns joins the bytes of columns, or of anything.
func Columns(columns ...[]byte) []byte { return bytes.Join(columns, nil) }

// Pack is the little-endian bytes of numbers and slices of numbers.
func Pack(values ...any) []byte {
	var b bytes.Buffer
	for _, v := range values {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic("hipotest: " + err.Error())
		}
	}
	return b.Bytes()
}

// bytes is the event as a whole-record payload holds it.
func (e Event) bytes(big bool, schemas []Schema) []byte {
	if e.Raw != nil {
		return e.Raw
	}
	ident := e.Ident
	if ident == "" {
		ident = "EVNT"
	}
	bo := order(big)
	out := append([]byte(ident), make([]byte, 12)...)
	bo.PutUint32(out[8:], e.Tag)
	bo.PutUint32(out[12:], e.Mask)
	for _, s := range e.Structures {
		out = append(out, s.bytes(big, schemas)...)
	}
	if !e.NoLength {
		bo.PutUint32(out[4:], uint32(len(out)))
	}
	return out
}

// kind is the type byte.
func (s Structure) kind() uint8 {
	switch {
	case s.Type != 0:
		return s.Type
	case s.Format != "":
		return 10
	}
	return 11
}

// content is what follows the structure's header: format and data.
func (s Structure) content() []byte { return append([]byte(s.Format), s.Data...) }

func (s Structure) bytes(big bool, schemas []Schema) []byte {
	bo := order(big)
	data := s.Data
	if big {
		data = s.swapped(schemas)
	}
	length := s.Length
	if length == 0 {
		length = uint32(len(s.Format)+len(data)) | uint32(len(s.Format))<<24
	}
	out := []byte{0, 0, s.Item, s.kind(), 0, 0, 0, 0}
	bo.PutUint16(out, s.Group)
	bo.PutUint32(out[4:], length)
	return append(append(out, s.Format...), data...)
}

// swapped is the data with every value's bytes reversed. Which bytes make a
// value follows the reader's order: format, schema, type.
func (s Structure) swapped(schemas []Schema) []byte {
	out := bytes.Clone(s.Data)
	schema, known := schemaOf(schemas, s.Group, s.Item)
	switch {
	case s.Format != "":
		for at := 0; at < len(out); {
			for _, n := range formatSizes(s.Format) {
				at += reverse(out[at:], n, 1)
			}
		}
	case known:
		row, at := 0, 0
		for _, c := range schema.columns() {
			row += c.width()
		}
		rows := len(out) / row
		for _, c := range schema.columns() {
			at += reverse(out[at:], c.item, rows*c.n)
		}
	default:
		if size := primitiveSize(s.kind()); size > 1 {
			reverse(out, size, len(out)/size)
		}
	}
	return out
}

// reverse swaps n values of the given size and returns their length.
func reverse(b []byte, size, n int) int {
	for i := range n {
		v := b[i*size : (i+1)*size]
		for a, z := 0, size-1; a < z; a, z = a+1, z-1 {
			v[a], v[z] = v[z], v[a]
		}
	}
	return n * size
}

// formatSizes are the sizes of a composite row's fields.
func formatSizes(format string) []int {
	var out []int
	repeat := 1
	for _, c := range format {
		switch {
		case c >= '0' && c <= '9':
			repeat = max(1, int(c-'0'))
		case bytes.ContainsRune([]byte("bsifdlBSIFDL"), c):
			for range repeat {
				out = append(out, letterSize(string(c)))
			}
			repeat = 1
		}
	}
	return out
}

// primitiveSize is the size of one value of a primitive node; 0: not one.
func primitiveSize(kind uint8) int {
	switch kind {
	case 1, 6:
		return 1
	case 2:
		return 2
	case 3, 4, 9:
		return 4
	case 5, 8:
		return 8
	}
	return 0
}
