package hipo_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
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

// FuzzFileHeader fuzzes the first bytes of a file whose rest is right.
func FuzzFileHeader(f *testing.F) {
	for _, tag := range []int{1, 10} {
		file := small(tag)
		f.Add(uint8(tag), file.Bytes()[:56])
	}
	file := File{Big: true, Schemas: []Schema{smallSchema}, Records: small(1).Records}
	f.Add(uint8(1), file.Bytes()[:56])
	f.Fuzz(func(t *testing.T, tag uint8, header []byte) {
		file := small(int(tag % 15))
		b := file.Bytes()
		copy(b[:56], header)
		decodeAny(t, b)
	})
}

// FuzzRecordHeader fuzzes the header of a record, with and without a trailer
// that tells another story.
func FuzzRecordHeader(f *testing.F) {
	for tag := range 15 {
		file := small(tag)
		b := file.Build()
		f.Add(uint8(tag), tag%2 == 0, b.Bytes[b.Records[1].Off:b.Records[1].Body])
	}
	f.Fuzz(func(t *testing.T, tag uint8, trailer bool, header []byte) {
		file := small(int(tag % 15))
		if !trailer {
			file.Trailer = NoTrailer
		}
		b := file.Build()
		copy(b.Bytes[b.Records[1].Off:b.Records[1].Body], header)
		decodeAny(t, b.Bytes)
	})
}

// FuzzTrailer fuzzes the file's own index of its records. Whatever it says, a
// strict decode gives all events or none.
func FuzzTrailer(f *testing.F) {
	file := small(1)
	file.IndexData = func(rows []byte) []byte { f.Add(uint8(1), rows); f.Add(uint8(3), rows[:len(rows)-1]); return rows }
	file.Bytes()
	f.Fuzz(func(t *testing.T, tag uint8, rows []byte) {
		file := small(1)
		file.TrailerTag = int(tag % 5) // a trailer is never split
		file.IndexData = func([]byte) []byte { return rows }
		if d := decodeAny(t, file.Bytes()); d != nil && len(d.tags) != 6 {
			t.Fatalf("%d events, the file has 6", len(d.tags))
		}
	})
}

// FuzzOutline fuzzes what an index says of a file's headers, dictionary and
// records. A file that is made of it can be read, to its end or to an error.
func FuzzOutline(f *testing.F) {
	for _, tag := range []int{1, 10} {
		file := small(tag)
		o, err := openBytes(f, file.Bytes()).Outline()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(tag), o.Header, o.Dictionary, o.Records)
	}
	f.Fuzz(func(t *testing.T, tag uint8, header, dictionary, records []byte) {
		file := small(int(tag % 15))
		b := file.Bytes()
		o := hipo.Outline{Header: header, Dictionary: dictionary, Records: records}
		restored, err := hipo.Restore("test.hipo", bytes.NewReader(b), int64(len(b)), o, nil, fuzzOptions)
		if err != nil {
			return
		}
		if len(restored.Records) != len(records)/64 {
			t.Fatalf("%d records of %d bytes", len(restored.Records), len(records))
		}
		var fe *hipo.FormatError
		if _, err := decodeFile(restored, false); err != nil && !errors.As(err, &fe) {
			t.Fatalf("%T %v is not a *hipo.FormatError", err, err)
		}
	})
}

// FuzzEventIndex fuzzes the lengths of a record's events.
func FuzzEventIndex(f *testing.F) {
	file := small(0)
	for tag := range 5 {
		file.Records[0].Payload = func(b []byte) []byte { f.Add(uint8(tag), b[:8]); return b }
		file.Bytes()
	}
	f.Fuzz(func(t *testing.T, tag uint8, lengths []byte) {
		file := small(int(tag % 5))
		file.Records[0].Payload = func(b []byte) []byte { copy(b[:8], lengths); return b }
		decodeAny(t, file.Bytes())
	})
}

// FuzzEvents fuzzes what is in events. Which structures they have is found here
// one by one; hipo walks several events abreast and must find the same.
func FuzzEvents(f *testing.F) {
	structure := func(group uint16, item, kind uint8, word uint32, data string) []byte {
		return append(Pack(group, item, kind, word), data...)
	}
	a, b := structure(1, 1, 11, 4, "abcd"), structure(1, 2, 10, 2<<24|6, "bi1234")
	f.Add(Columns(a, b), Columns(b, a), Columns(a, a, b), uint64(0b100110010010000000000000000000))
	f.Add(Columns(a, b), Columns(a, structure(9, 9, 3, 0, "")), []byte{}, uint64(1<<20))
	f.Add(a, append(a, 1, 2, 3), structure(1, 1, 11, 5, "abcd"), uint64(2))
	f.Fuzz(func(t *testing.T, a, b, c []byte, which uint64) {
		var events []Event
		for range 32 { // two bits an event
			body := [...][]byte{a, b, c, a}[which&3]
			head := make([]byte, 16)
			copy(head, "EVNT")
			binary.LittleEndian.PutUint32(head[4:], uint32(16+len(body)))
			events = append(events, Event{Raw: append(head, body...)})
			which >>= 2
		}
		want, whole := map[string]string{}, true
		for e, event := range events {
			at := event.Raw[16:]
			for len(at) >= 8 && whole {
				word := binary.LittleEndian.Uint32(at[4:])
				length, format := int(word&0xFFFFFF), int(word>>24)
				if whole = length <= len(at)-8 && format <= length; !whole {
					break
				}
				key := fmt.Sprintf("event %d, %d/%d", e, binary.LittleEndian.Uint16(at), at[2])
				if _, again := want[key]; !again {
					want[key] = fmt.Sprintf("type %d, format %d: %x", at[3], format, at[8:8+length])
				}
				at = at[8+length:]
			}
		}
		file := File{Schemas: []Schema{smallSchema}, Records: []Record{{Events: events}}}
		data := file.Bytes()
		var rec hipo.Record
		err := openBytes(t, data).ReadRecord(0, &rec)
		if (err == nil) != whole {
			t.Fatalf("whole %v, but: %v", whole, err)
		}
		if !whole {
			return
		}
		got := map[string]string{}
		for i := range rec.Banks {
			bank := &rec.Banks[i]
			payload, err := rec.Data(i)
			if err != nil && len(bank.Spans) > 0 {
				t.Fatal(err)
			}
			last := -1
			for _, s := range bank.Spans {
				if int(s.Event) <= last {
					t.Fatalf("%d/%d: event %d comes behind event %d", bank.Group, bank.Item, s.Event, last)
				}
				last = int(s.Event)
				got[fmt.Sprintf("event %d, %d/%d", s.Event, bank.Group, bank.Item)] =
					fmt.Sprintf("type %d, format %d: %x", s.Type, s.Format, payload[s.Off:s.Off+s.Len])
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
	})
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
