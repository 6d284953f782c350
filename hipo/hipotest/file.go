package hipotest

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Where the fields of the two headers lie, in bytes from the header's start.
const (
	FileNumber     = 4
	FileWords      = 8  // header length, words
	FileBits       = 20 // version in the low byte
	FileUserLength = 24 // length of the dictionary record, bytes
	FileMagic      = 28
	FileTrailer    = 40 // u64

	RecordLength     = 0 // words
	RecordNumber     = 4
	RecordWords      = 8 // header length, words
	RecordEvents     = 12
	RecordIndex      = 16 // index array length, bytes
	RecordBits       = 20 // version in the low byte; pads 1, 2, 3 from bit 20
	RecordUserLength = 24
	RecordMagic      = 28
	RecordData       = 32 // data length, bytes
	RecordComp       = 36 // tag << 28 | words of the body
	RecordWord1      = 40 // u64, the record tag
	RecordWord2      = 48 // u64
)

const (
	headerWords = 14
	magic       = 0xC0DA0100
)

// Trailer says how a file ends.
type Trailer int

const (
	Indexed      Trailer = iota // a trailer that lists the data records, and its position in the header
	NoTrailer                   // neither
	Unreferenced                // the trailer is there, its position is 0
	Misplaced                   // the trailer is there, its position is that of the first data record
	ListsAll                    // the index lists the dictionary record and the trailer, too
	OldJava                     // 56 bytes without an index, whose length counts bytes
)

// File is a HIPO file to be built.
type File struct {
	Ident  string // "": HIPO
	Number uint32 // 0: 1
	Words  int    // length of the file header; 0: 14

	// Big makes the file header, the dictionary and the trailer big-endian;
	// LittleEvents leaves their events little-endian, as one flavour has it.
	Big, LittleEvents bool

	Schemas      []Schema
	Config       []Setting
	TagNames     string  // lines "name=bit"
	Extra        []Event // more events of the dictionary record
	DictTag      int     // compression tag of the dictionary record
	NoDictionary bool    // user header length 0, no dictionary record

	Records []Record

	Trailer    Trailer
	TrailerTag int                      // compression tag of the trailer record
	Index      func([]Entry) []Entry    // changes the rows of the file index
	IndexData  func(rows []byte) []byte // changes the index's bytes
}

// Setting is one pair of the user configuration.
type Setting struct{ Key, Value string }

// Entry is one row of the file index.
type Entry struct {
	Position        int64
	Length, Entries int32
	Word1, Word2    int64
}

// Span is where a record lies in a file: its header, its body, its end.
type Span struct{ Off, Body, End int }

// Built is a file and where its parts are.
type Built struct {
	Bytes      []byte
	Dictionary Span
	Records    []Span
	Trailer    Span
}

// Put32 overwrites 4 bytes of the file, little-endian.
func (b *Built) Put32(off int, v uint32) { binary.LittleEndian.PutUint32(b.Bytes[off:], v) }

// Put64 overwrites 8 bytes of the file, little-endian.
func (b *Built) Put64(off int, v uint64) { binary.LittleEndian.PutUint64(b.Bytes[off:], v) }

// Get32 reads 4 bytes of the file, little-endian.
func (b *Built) Get32(off int) uint32 { return binary.LittleEndian.Uint32(b.Bytes[off:]) }

// Bytes builds the file.
func (f *File) Bytes() []byte { return f.Build().Bytes }

// Build builds the file and says where its parts are.
func (f *File) Build() *Built {
	out := &Built{Bytes: make([]byte, 4*words(f.Words))}

	if !f.NoDictionary {
		dict := Record{Tag: f.DictTag, Number: -1, Events: f.dictionary(), Big: f.Big, LittleEvents: f.LittleEvents}
		out.Dictionary = out.add(dict.bytes(0, nil))
	}
	firstData := len(out.Bytes)

	var index []Entry
	for i, r := range f.Records {
		s := out.add(r.bytes(i+1, f.Schemas))
		out.Records = append(out.Records, s)
		index = append(index, Entry{int64(s.Off), int32(s.End - s.Off), int32(len(r.Events)), int64(r.Word1), int64(r.Word2)})
	}

	position := len(out.Bytes)
	switch f.Trailer {
	case NoTrailer:
		position = 0
	case OldJava:
		out.Trailer = out.add(oldJavaTrailer())
	case ListsAll:
		d := out.Dictionary
		index = append([]Entry{{Position: int64(d.Off), Length: int32(d.End - d.Off), Entries: 1}}, index...)
		index = append(index, Entry{Position: int64(position), Length: headerWords * 4, Entries: 1})
		out.Trailer = out.add(f.trailer(index))
	case Unreferenced:
		position = 0
		out.Trailer = out.add(f.trailer(index))
	case Misplaced:
		position = firstData
		out.Trailer = out.add(f.trailer(index))
	default:
		out.Trailer = out.add(f.trailer(index))
	}

	number := f.Number
	if number == 0 {
		number = 1
	}
	ident := f.Ident
	if ident == "" {
		ident = "HIPO"
	}
	bo := order(f.Big)
	h := append([]byte(ident), make([]byte, 52)...)
	bo.PutUint32(h[FileNumber:], number)
	bo.PutUint32(h[FileWords:], uint32(words(f.Words)))
	bo.PutUint32(h[FileBits:], 0x50000006)
	bo.PutUint32(h[FileUserLength:], uint32(out.Dictionary.End-out.Dictionary.Off))
	bo.PutUint32(h[FileMagic:], magic)
	bo.PutUint64(h[FileTrailer:], uint64(position))
	copy(out.Bytes, h)
	return out
}

// add appends a record.
func (b *Built) add(record []byte, body int) Span {
	off := len(b.Bytes)
	b.Bytes = append(b.Bytes, record...)
	return Span{off, off + body, len(b.Bytes)}
}

// dictionary is the events of the dictionary record, one for each schema, then
// one for each setting, then the tag names.
func (f *File) dictionary() []Event {
	var out []Event
	for _, s := range f.Schemas {
		out = append(out, s.event())
	}
	for _, c := range f.Config {
		out = append(out, Event{Structures: []Structure{Text(32555, 1, c.Key), Text(32555, 2, c.Value)}})
	}
	if f.TagNames != "" {
		out = append(out, Event{Structures: []Structure{Text(120, 3, f.TagNames)}})
	}
	return append(out, f.Extra...)
}

// trailer is a record with the file index: 32 bytes a row, column by column.
func (f *File) trailer(index []Entry) (record []byte, body int) {
	if f.Index != nil {
		index = f.Index(index)
	}
	var position, length, entries, word1, word2 []byte
	le := binary.LittleEndian
	for _, e := range index {
		position = le.AppendUint64(position, uint64(e.Position))
		length = le.AppendUint32(length, uint32(e.Length))
		entries = le.AppendUint32(entries, uint32(e.Entries))
		word1 = le.AppendUint64(word1, uint64(e.Word1))
		word2 = le.AppendUint64(word2, uint64(e.Word2))
	}
	data := Columns(position, length, entries, word1, word2)
	if f.IndexData != nil {
		data = f.IndexData(data)
	}
	r := Record{
		Tag: f.TrailerTag, Number: -1, Big: f.Big, LittleEvents: f.LittleEvents,
		Events: []Event{{Structures: []Structure{{Group: 32111, Item: 1, Type: 11, Data: data}}}},
	}
	schema := Schema{Name: "file::index", Group: 32111, Item: 1,
		Columns: "position/L,length/I,entries/I,userWordOne/L,userWordTwo/L"}
	return r.bytes(0, []Schema{schema})
}

// oldJavaTrailer has no event, and a length word of 56 that counts bytes.
func oldJavaTrailer() (record []byte, body int) {
	h := make([]byte, 56)
	le := binary.LittleEndian
	le.PutUint32(h[RecordLength:], 56)
	le.PutUint32(h[RecordWords:], headerWords)
	le.PutUint32(h[RecordBits:], 0x30000006)
	le.PutUint32(h[RecordMagic:], magic)
	return h, len(h)
}

// Form is how the dictionary spells a schema.
type Form int

const (
	Both Form = iota // JSON, then text
	TextOnly
	JSONOnly
)

// Schema is a bank's layout. Columns is spelled as in the text form:
// "pid/I,px/F,cov/F#3".
type Schema struct {
	Name    string
	Group   uint16
	Item    uint8
	Columns string
	Form    Form
}

// event is the schema's event in the dictionary record.
func (s Schema) event() Event {
	text := fmt.Sprintf("{%s/%d/%d}{%s}", s.Name, s.Group, s.Item, s.Columns)
	var entries []string
	for _, c := range strings.Split(s.Columns, ",") {
		name, typ, _ := strings.Cut(c, "/")
		entries = append(entries, fmt.Sprintf(`{"name":%q,"type":%q,"info":""}`, name, typ))
	}
	json := fmt.Sprintf(`{"name":%q,"group":%d,"item":%d,"entries":[%s]}`, s.Name, s.Group, s.Item, strings.Join(entries, ","))

	var e Event
	if s.Form != TextOnly {
		e.Structures = append(e.Structures, Text(120, 1, json))
	}
	if s.Form != JSONOnly {
		e.Structures = append(e.Structures, Text(120, 2, text))
	}
	return e
}

// column is one parsed column: the bytes of one value, and values a row.
type column struct{ item, n int }

func (c column) width() int { return c.item * c.n }

// columns parses Columns.
func (s Schema) columns() []column {
	var out []column
	for _, c := range strings.Split(s.Columns, ",") {
		_, typ, _ := strings.Cut(c, "/")
		letter, count, array := strings.Cut(typ, "#")
		n := 1
		if array {
			if _, err := fmt.Sscan(count, &n); err != nil {
				panic("hipotest: column " + c)
			}
		}
		out = append(out, column{letterSize(letter), n})
	}
	return out
}

// schemaOf is the last schema with that group and item.
func schemaOf(schemas []Schema, group uint16, item uint8) (Schema, bool) {
	for i := len(schemas) - 1; i >= 0; i-- {
		if schemas[i].Group == group && schemas[i].Item == item {
			return schemas[i], true
		}
	}
	return Schema{}, false
}

// letterSize is the bytes of one value of a type letter; 0: no such letter.
func letterSize(letter string) int {
	switch strings.ToUpper(letter) {
	case "B":
		return 1
	case "S":
		return 2
	case "I", "F":
		return 4
	case "D", "L":
		return 8
	}
	panic("hipotest: type letter " + letter)
}

func words(n int) int {
	if n == 0 {
		return headerWords
	}
	return n
}

func order(big bool) binary.ByteOrder {
	if big {
		return binary.BigEndian
	}
	return binary.LittleEndian
}
