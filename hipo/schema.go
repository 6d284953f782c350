package hipo

import (
	"fmt"
	"strings"
)

// Type is one of the six value types of a column.
type Type struct {
	Letter byte   // as schemas spell it
	Size   int    // bytes a value
	Dtype  string // NumPy's name, little-endian
}

var types = [...]Type{
	{'B', 1, "|i1"},
	{'S', 2, "<i2"},
	{'I', 4, "<i4"},
	{'F', 4, "<f4"},
	{'D', 8, "<f8"},
	{'L', 8, "<i8"},
}

// typeOf finds a type by its letter, in either case.
func typeOf(letter byte) (Type, bool) {
	if 'a' <= letter && letter <= 'z' {
		letter -= 'a' - 'A'
	}
	for _, t := range types {
		if t.Letter == letter {
			return t, true
		}
	}
	return Type{}, false
}

// Column is a column of a bank: Length values of a Type in every row.
type Column struct {
	Name   string
	Type   Type
	Length int // N of T#N, else 1
	start  int // bytes per row of the columns before it
}

// Width is the column's bytes per row.
func (c Column) Width() int { return c.Type.Size * c.Length }

// Span is where the column lies in a bank of that many rows: from off on, n bytes.
func (c Column) Span(rows int) (off, n int) { return rows * c.start, rows * c.Width() }

// Start is the bytes per row of the columns before this one: its place in a
// row of a composite bank.
func (c Column) Start() int { return c.start }

// Schema is a bank's name, ids and columns.
type Schema struct {
	Name    string
	Group   uint16
	Item    uint8
	Columns []Column
	RowSize int // bytes of one row of all columns
}

const (
	maxArrayLength = 1 << 24
	maxRowSize     = 1 << 24 // exclusive: a structure's data is shorter
	maxColumns     = 65535

	// Four bytes of text, less when compressed, make a Column. Real dictionaries
	// have some thousand columns.
	maxDictionaryColumns = 1 << 22
)

// add appends a column and its place in the row.
func (s *Schema) add(name string, t Type, length int) error {
	switch {
	case length < 1 || length > maxArrayLength:
		return fmt.Errorf("column %q has %d values a row", name, length)
	case len(s.Columns) == maxColumns:
		return fmt.Errorf("more than %d columns", maxColumns)
	case s.RowSize+t.Size*length >= maxRowSize:
		return fmt.Errorf("a row of %d bytes or more", s.RowSize+t.Size*length)
	}
	s.Columns = append(s.Columns, Column{Name: name, Type: t, Length: length, start: s.RowSize})
	s.RowSize += t.Size * length
	return nil
}

// SameLayout reports whether the types and lengths of the columns agree.
func (s *Schema) SameLayout(o *Schema) bool {
	if len(s.Columns) != len(o.Columns) {
		return false
	}
	for i, c := range s.Columns {
		if c.Type != o.Columns[i].Type || c.Length != o.Columns[i].Length {
			return false
		}
	}
	return true
}

// Equal reports whether name, ids and columns agree.
func (s *Schema) Equal(o *Schema) bool {
	if s.Name != o.Name || s.Group != o.Group || s.Item != o.Item || !s.SameLayout(o) {
		return false
	}
	for i, c := range s.Columns {
		if c.Name != o.Columns[i].Name {
			return false
		}
	}
	return true
}

// String is the schema's text form.
func (s *Schema) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "{%s/%d/%d}{", s.Name, s.Group, s.Item)
	for i, c := range s.Columns {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s/%c", c.Name, c.Type.Letter)
		if c.Length > 1 {
			fmt.Fprintf(&b, "#%d", c.Length)
		}
	}
	b.WriteByte('}')
	return b.String()
}

// Primitive is the layout of a structure that no schema declares and that is
// not composite: one column "value", opaque bytes for what is no primitive type.
func Primitive(kind uint8) *Schema {
	letter, length := byte('B'), 1
	switch kind {
	case 2:
		letter = 'S'
	case 3:
		letter = 'I'
	case 4:
		letter = 'F'
	case 5:
		letter = 'D'
	case 8:
		letter = 'L'
	case 9: // vectors
		letter, length = 'F', 3
	}
	t, _ := typeOf(letter)
	return &Schema{
		Columns: []Column{{Name: "value", Type: t, Length: length}},
		RowSize: t.Size * length,
	}
}

// Composite is the row layout of a composite bank with that format string:
// columns f0, f1, …, none if the format names none. A digit repeats the letter
// after it, as the Java library reads it; anything else is passed over.
func Composite(format string) *Schema {
	s := &Schema{}
	format, _, _ = strings.Cut(format, "\x00")
	repeat := 1
	for i := range len(format) {
		ch := format[i]
		if '0' <= ch && ch <= '9' {
			repeat = max(1, int(ch-'0'))
			continue
		}
		t, ok := typeOf(ch)
		if !ok {
			continue
		}
		for range repeat {
			// 255 format bytes of 9 values of 8 bytes stay far below every limit.
			_ = s.add(fmt.Sprintf("f%d", len(s.Columns)), t, 1)
		}
		repeat = 1
	}
	return s
}
