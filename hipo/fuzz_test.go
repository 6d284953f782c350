package hipo_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hipofs/hipofs/hipo"
	. "github.com/hipofs/hipofs/hipo/hipotest"
)

// fuzzOptions keep a fuzzed file from being large.
var fuzzOptions = hipo.Options{MaxRecord: 1 << 22}

// addTestdata seeds a target with the small files of testdata.
func addTestdata(f *testing.F, add func([]byte)) {
	for _, pattern := range []string{"testdata/*.hipo", "testdata/*/*.hipo"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			if len(data) <= 4096 {
				add(data)
			}
		}
	}
}

// decodeAny decodes in both ways and checks what holds for any bytes: an error
// of a strict decode is a *FormatError, salvage gives no more than its reader
// can trust, and columns agree with their offsets.
func decodeAny(t *testing.T, data []byte) *decoded {
	o := fuzzOptions
	strict, err := decode(data, o)
	var fe *hipo.FormatError
	if err != nil && !errors.As(err, &fe) {
		t.Fatalf("%T %v is not a *hipo.FormatError", err, err)
	}
	if err == nil {
		for name, table := range strict.tables {
			var rows int64
			for _, n := range table.rows {
				rows += n
			}
			for k, c := range table.columns {
				if table.err == nil && int64(len(table.content[k])) != rows*int64(c.Width()) && name[0] != '@' {
					t.Fatalf("%s/%s: %d bytes for %d rows of %d", name, c.Name, len(table.content[k]), rows, c.Width())
				}
			}
		}
	}
	o.Salvage = true
	salvaged, serr := decode(data, o)
	if serr != nil && !errors.As(serr, &fe) {
		t.Fatalf("salvage: %T %v is not a *hipo.FormatError", serr, serr)
	}
	if err == nil && (serr != nil || len(salvaged.tags) != len(strict.tags)) {
		t.Fatalf("salvage finds %v, %v in a whole file of %d events", salvaged, serr, len(strict.tags))
	}
	return strict
}

func FuzzOpen(f *testing.F) {
	addTestdata(f, func(data []byte) { f.Add(data) })
	f.Fuzz(func(t *testing.T, data []byte) { decodeAny(t, data) })
}

// FuzzRecord fuzzes one record's body, whose header is right.
func FuzzRecord(f *testing.F) {
	for tag := range 15 {
		file := small(tag)
		b := file.Build()
		r := b.Records[0]
		f.Add(uint8(tag), uint16(2), b.Get32(r.Off+RecordData), b.Get32(r.Off+RecordBits), b.Bytes[r.Body:r.End])
	}
	f.Fuzz(func(t *testing.T, tag uint8, events uint16, dataLength, bits uint32, body []byte) {
		file := small(int(tag % 15))
		file.Trailer, file.Records = NoTrailer, file.Records[:2]
		file.Records[0].Body = func([]byte) []byte { return body }
		b := file.Build()
		at := b.Records[0].Off
		b.Put32(at+RecordEvents, uint32(events))
		b.Put32(at+RecordIndex, 4*uint32(events))
		b.Put32(at+RecordData, dataLength)
		b.Put32(at+RecordBits, bits&0x03F00000|0x40000006)
		decodeAny(t, b.Bytes)
	})
}

// FuzzSplitDirectory fuzzes a split record's directory, before it is compressed.
func FuzzSplitDirectory(f *testing.F) {
	for _, tag := range []int{9, 13, 10, 14} {
		file := small(tag)
		file.Records[0].Directory = func(b []byte) []byte { f.Add(uint8(tag), uint8(0), uint32(1), uint32(2), b); return b }
		file.Bytes()
	}
	file := small(14)
	file.Records[0].Version = 3
	file.Records[0].Directory = func(b []byte) []byte { f.Add(uint8(14), uint8(3), uint32(1), uint32(2), b); return b }
	file.Bytes()
	f.Fuzz(func(t *testing.T, tag, version uint8, banks, events uint32, dir []byte) {
		file := small([]int{9, 13, 10, 14}[tag%4])
		file.Trailer, file.Records = NoTrailer, file.Records[:2]
		r := &file.Records[0]
		r.Version = version
		r.Directory = func([]byte) []byte { return dir }
		r.Section = puts(4, banks, 8, events)
		b := file.Build()
		events &= 0xFFFF
		b.Put32(b.Records[0].Off+RecordEvents, events)
		b.Put32(b.Records[0].Off+RecordIndex, 4*events)
		decodeAny(t, b.Bytes)
	})
}

// dictionaryOf is the dictionary of a file with one structure in an event of
// its dictionary record.
func dictionaryOf(t *testing.T, s Structure) *hipo.Dictionary {
	file := File{Extra: []Event{{Structures: []Structure{s}}}}
	d := openBytes(t, file.Bytes()).Dictionary
	if len(d.Schemas)+len(d.Dropped) != 1 {
		t.Fatalf("schemas %v, dropped %q", d.Schemas, d.Dropped)
	}
	for _, s := range d.Schemas {
		checkSchema(t, s)
	}
	return d
}

// checkSchema checks what holds for every schema.
func checkSchema(t *testing.T, s *hipo.Schema) {
	at := 0
	for _, c := range s.Columns {
		if c.Length < 1 || c.Start() != at || c.Width() != c.Length*c.Type.Size {
			t.Fatalf("%v: column %+v starts at %d, want %d", s, c, c.Start(), at)
		}
		at += c.Width()
	}
	if at != s.RowSize || at == 0 || at >= 1<<24 || len(s.Columns) > 65535 || s.Name == "" {
		t.Fatalf("%v: rows of %d bytes, columns of %d", s, s.RowSize, at)
	}
}

func FuzzDictionaryText(f *testing.F) {
	for _, s := range []string{
		"{T/1/1}{x/I,y/F}", "{R::cov/400/2}{pindex/S,cov/F#16}", " { a / 65535 / 255 } \n { b / d # 3 , } ", "{a/1/1}{}",
		"{a/1}{x/I}", "x{a/1/1}y{b/B}z{c/C}", "{a/1/1}{x/I#0}", "{a/1/1}{x/I#16777216}", "{a/99999999999/1}{x/I}", "{a/-1/1}{x/I}", "{}{}", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<20 {
			return
		}
		d := dictionaryOf(t, Text(120, 2, text))
		for _, s := range d.Schemas { // the text form of what was read reads as the same
			if again := dictionaryOf(t, Text(120, 2, s.String())).Schemas; len(again) != 1 || !again[0].Equal(s) {
				t.Fatalf("%q gives %v, whose text gives %v", text, s, again)
			}
		}
	})
}

func FuzzDictionaryJSON(f *testing.F) {
	for _, s := range []string{
		`{"name":"T","group":1,"item":1,"entries":[{"name":"x","type":"I","info":""}]}`,
		`{"entries":[{"type":"F#3","name":"x"},{"name":"y","type":"b"}],"item":255,"group":65535,"name":"a b","other":[{}]}`,
		`{"name":"T","group":"1","item":1.0,"entries":[]}`, `{"name":1}`, `[]`, `null`, `{`, "{\"name\":\"a\nb\",\"group\":1,\"item\":1,\"entries\":[{\"name\":\"\\u0000\",\"type\":\"I\"}]}",
		`{"name":"T","group":1e2,"item":1,"entries":[{"name":"x","type":"I"}]}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<20 {
			return
		}
		dictionaryOf(t, Text(120, 1, text))
	})
}

func FuzzComposite(f *testing.F) {
	f.Add("bsifdl", []byte("012345678901234567890123456"), uint8(0))
	f.Add("i", []byte("0123"), uint8(1))
	f.Add("3f2Db\x00\x00", []byte{}, uint8(6))
	f.Add("9d9d9d9d", []byte("x"), uint8(9))
	f.Fuzz(func(t *testing.T, format string, rows []byte, tag uint8) {
		if len(format) > 255 || len(format)+len(rows) >= 1<<20 {
			return
		}
		if s := hipo.Composite(format); len(s.Columns) > 0 {
			s.Name = format
			if s.Name == "" {
				t.Fatal("columns from an empty format")
			}
			checkSchema(t, s)
		}
		file := small(int(tag % 15))
		e := &file.Records[0].Events[1]
		e.Structures = append(e.Structures, Structure{Group: 7, Item: 5, Type: 10, Format: format, Data: rows})
		if d := decodeAny(t, file.Bytes()); d == nil || len(d.tags) != 6 {
			t.Fatalf("format %q: %v", format, d)
		}
	})
}
