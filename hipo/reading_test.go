package hipo_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hipofs/hipofs/hipo"
	. "github.com/hipofs/hipofs/hipo/hipotest"
)

// countingReader counts what is read from a file.
type countingReader struct {
	io.ReaderAt
	calls int
	bytes int64
}

func (r *countingReader) ReadAt(p []byte, off int64) (int, error) {
	r.calls++
	r.bytes += int64(len(p))
	return r.ReaderAt.ReadAt(p, off)
}

// wide is a file of one record of one event: a bank of two columns of 1 MiB
// each, that do not compress, and a small bank.
func wide(tag int) *Built {
	noise := func(seed uint64) []byte {
		b := make([]byte, 1<<20)
		for i := range b {
			seed = seed*6364136223846793005 + 1442695040888963407
			b[i] = byte(seed >> 56)
		}
		return b
	}
	f := File{
		Schemas: []Schema{smallSchema, {Name: "T", Group: 1, Item: 2, Columns: "t/B"}},
		Records: []Record{{Tag: tag, Events: []Event{{Structures: []Structure{Bank(1, 1, noise(1), noise(2)), Bank(1, 2, []byte("t"))}}}}},
	}
	return f.Build()
}

// A record stored whole is read with one ReadAt; of a split one, the directory
// and no more of the streams than are asked for.
func TestReadRecordReadsNoMoreThanIsAskedFor(t *testing.T) {
	for tag := range 15 {
		b := wide(tag)
		r := &countingReader{ReaderAt: bytes.NewReader(b.Bytes)}
		f, err := hipo.NewFile("test.hipo", r, int64(len(b.Bytes)), hipo.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r.bytes > 1<<16 {
			t.Errorf("tag %d: opening reads %d bytes", tag, r.bytes)
		}
		var rec hipo.Record
		r.calls, r.bytes = 0, 0
		if err := f.ReadRecord(0, &rec); err != nil {
			t.Fatal(err)
		}
		if length := int64(b.Records[0].End - b.Records[0].Off); !Split(tag) {
			if r.calls != 1 || r.bytes != length {
				t.Errorf("tag %d: %d calls read %d bytes of a record of %d", tag, r.calls, r.bytes, length)
			}
			continue
		}
		if r.calls > 2 || r.bytes > 1<<16 {
			t.Errorf("tag %d: the directory takes %d calls, %d bytes", tag, r.calls, r.bytes)
		}
		for i, bank := range rec.Banks { // the small bank, at the record's end
			if bank.Item == 2 {
				if _, err := rec.Data(i); err != nil {
					t.Fatal(err)
				}
			}
		}
		if r.bytes > 1<<16 || rec.BytesInflated > 1<<16 || rec.Streams != 1 {
			t.Errorf("tag %d: a bank of 1 byte takes %d bytes read, %d inflated, %d streams", tag, r.bytes, rec.BytesInflated, rec.Streams)
		}
		if ByColumn(tag) {
			if _, err := rec.Column(0, 1); err != nil {
				t.Fatal(err)
			}
			if r.bytes > 1<<20+1<<17 {
				t.Errorf("tag %d: a column of 1 MiB takes %d bytes read", tag, r.bytes)
			}
		}
	}
}

// A Record that is used again costs no new memory.
func TestReadRecordUsesItsMemoryAgain(t *testing.T) {
	for tag := range 15 {
		b := wide(tag)
		f := openBytes(t, b.Bytes)
		var rec hipo.Record
		read := func() {
			if err := f.ReadRecord(0, &rec); err != nil {
				t.Fatal(err)
			}
			if err := readStreams(&rec); err != nil {
				t.Fatal(err)
			}
		}
		read()
		const times = 4
		got := allocated(func() {
			for range times {
				read()
			}
		})
		if got > times<<17 { // of 2 MiB that are inflated each time
			t.Errorf("tag %d: reading a record again allocates %d bytes", tag, got/times)
		}
	}
}

// A File is shared by goroutines, each with its own Record.
func TestFileIsSharedByGoroutines(t *testing.T) {
	var file File
	for i := range 30 {
		part := small(i % 15)
		file.Schemas = part.Schemas
		file.Records = append(file.Records, part.Records[i%3])
	}
	f := openBytes(t, file.Bytes())
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			var rec hipo.Record
			for i := range f.Records {
				i = (i + 7*g) % len(f.Records)
				err := f.ReadRecord(i, &rec)
				if err == nil {
					err = readStreams(&rec)
				}
				if want := uint32(2*(i%3) + 1); err != nil || len(rec.Tags) != 2 || rec.Tags[1] != want {
					t.Errorf("record %d: tags %v, %v; want %d second", i, rec.Tags, err, want)
				}
			}
		})
	}
	wg.Wait()
}

// Each form of schema reads as the text beside it; "" means that it is dropped
// and that the rest of the dictionary stays.
func TestSchemasReadAsFormatSays(t *testing.T) {
	text := func(s string) Structure { return Text(120, 2, s) }
	json := func(s string) Structure { return Text(120, 1, s) }
	const entry = `"entries":[{"name":"x","type":"I"}]}`
	for _, tt := range []struct {
		in   Structure
		want string
	}{
		{text("{T/1/2}{x/I}"), "{T/1/2}{x/I}"},
		{text("{T/65535/255}{x/B,y/S,z/I,f/F,d/D,l/L}"), "{T/65535/255}{x/B,y/S,z/I,f/F,d/D,l/L}"},
		{text(" \n{ T / 1 /\t2 }\n{ x / I , y /\nF # 3 ,}"), "{T/1/2}{x/I,y/F#3}"},
		{text("{T/1/2}{x/i,y/f#2}"), "{T/1/2}{x/I,y/F#2}"},
		{text("before{T/1/2}between{x/I}{y/F} after"), "{T/1/2}{x/I}"},
		{text("{T/1/2}{x/I}\x00{U/1/2}{y/F}"), "{T/1/2}{x/I}"},
		{text("{A name: with.spaces/1/2}{a b/I}"), "{A name: with.spaces/1/2}{a b/I}"},
		{text("{T/1/2}{x/I#1}"), "{T/1/2}{x/I}"},
		{text("{T/1/2}{x/B#16777215}"), "{T/1/2}{x/B#16777215}"},
		{text("{T/1/2}{x/B#16777216}"), ""},
		{text("{T/1/2}{x/D#2097152}"), ""},
		{text("{T/1/2}{x/I#0}"), ""},
		{text("{T/1/2}{x/I#-1}"), ""},
		{text("{T/1/2}{x/Q}"), ""},
		{text("{T/1/2}{x/}"), ""},
		{text("{T/1/2}{x/II}"), ""},
		{text("{T/1/2}{x}"), ""},
		{text("{T/1/2}{}"), ""},
		{text("{T/1/2}"), ""},
		{text("{T/1/2}{x/I"), ""},
		{text("{T/1}{x/I}"), ""},
		{text("{T/1/2/3}{x/I}"), ""},
		{text("{T/65536/2}{x/I}"), ""},
		{text("{T/1/256}{x/I}"), ""},
		{text("{T/-1/2}{x/I}"), ""},
		{text("{T/0x1/2}{x/I}"), ""},
		{text("{/1/2}{x/I}"), ""},
		{text(""), ""},
		{json(`{"name":"T","group":1,"item":2,` + entry), "{T/1/2}{x/I}"},
		{json(`{"other":{"a":[1,{}]},"item":2,"group":1,"name":"T","info":"",` + entry), "{T/1/2}{x/I}"},
		{json("{\"name\":\"T\",\"group\":1,\"item\":2,\"info\":\"two\nlines\tand \x01\"," + entry), "{T/1/2}{x/I}"},
		{json(`{"name":"T","group":1,"item":2,"entries":[{"name":"x","type":"F#16","info":"a \"b\" \\"}]}`), "{T/1/2}{x/F#16}"},
		{json(`{"name":"T","group":1,"item":2,"entries":[]}`), ""},
		{json(`{"name":"T","group":1,"item":2}`), ""},
		{json(`{"name":"T","group":-1,"item":2,` + entry), ""},
		{json(`{"name":"T","group":1,"item":256,` + entry), ""},
		{json(`{"group":1,"item":2,` + entry), ""},
		{json(`{"name":"T","group":1,"item":2,"entries":[{"name":"x"}]}`), ""},
		{json(`{"name":"T","group":1,"item":2,` + entry[:20]), ""},
		{json("not JSON"), ""},
	} {
		f := File{
			Schemas: []Schema{{Name: "before", Group: 9, Item: 8, Columns: "x/I"}},
			Extra:   []Event{{Structures: []Structure{tt.in}}, {Structures: []Structure{text("{after/9/9}{x/I}")}}},
		}
		d := openBytes(t, f.Bytes()).Dictionary
		want := []string{"{before/9/8}{x/I}", "{after/9/9}{x/I}"}
		if tt.want != "" {
			want = slices.Insert(want, 1, tt.want)
		}
		var got []string
		for _, s := range d.Schemas {
			got = append(got, s.String())
		}
		if !slices.Equal(got, want) || (len(d.Dropped) == 1) != (tt.want == "") {
			t.Errorf("%s: got %q, dropped %q; want %q", tt.in.Data, got, d.Dropped, tt.want)
		}
		for _, why := range d.Dropped {
			if strings.ContainsAny(why, "\n\x00") || len(why) > 300 {
				t.Errorf("%s: dropped with %q", tt.in.Data, why)
			}
		}
	}
}

// Settings, names of tags and record tags, and schemas of one event or name.
func TestDictionaryRecordHoldsMoreThanSchemas(t *testing.T) {
	text := func(item uint8, s string) Structure { return Text(120, item, s) }
	f := File{
		Config:   []Setting{{Key: "k", Value: "1"}, {Key: "run=5", Value: "a=b\nc"}, {Key: "k", Value: "2"}},
		TagNames: "dvcs=3\n sidis = 31 \nno number=x\n=32\nlarge=32\nwithout\nelastic=0",
		Extra: []Event{
			{Structures: []Structure{text(2, "{A/1/1}{x/I}"), text(1, `{"name":"B","group":1,"item":1,"entries":[{"name":"x","type":"I"}]}`)}},
			{Structures: []Structure{text(2, "{C/1/2}{x/I}"), Text(32555, 2, "value first"), Text(32555, 1, "beside a schema")}},
			{Structures: []Structure{Text(32555, 2, "no key")}},
			{Structures: []Structure{Text(32555, 1, "no value")}},
			{Structures: []Structure{text(2, "{A/1/3}{y/F}")}},                          // the last of a name counts
			{Structures: []Structure{text(2, "{D/1/4}{x/I}"), text(2, "{E/1/5}{x/I}")}}, // the first copy counts
			{},
			{Structures: []Structure{Bank(5, 5, []byte("none of our business"))}},
		},
		Records: []Record{{Word1: 7}, {Word1: 1<<64 - 1, Events: []Event{{}}}, {Word1: 3, Events: []Event{{}}}},
	}
	for _, tag := range []int{0, 1, 3, 4} {
		f.DictTag = tag
		file := openBytes(t, f.Bytes())
		d := file.Dictionary
		if want := "[{A/1/3}{y/F} {C/1/2}{x/I} {D/1/4}{x/I}]"; fmt.Sprint(d.Schemas) != want {
			t.Errorf("schemas %v, want %v", d.Schemas, want)
		}
		if want := map[string]string{"k": "2", "run=5": "a=b\nc", "beside a schema": "value first"}; !maps.Equal(d.Config, want) {
			t.Errorf("settings %q, want %q", d.Config, want)
		}
		if want := map[string]int{"dvcs": 3, "sidis": 31, "elastic": 0}; !maps.Equal(d.TagNames, want) {
			t.Errorf("tag names %v, want %v", d.TagNames, want)
		}
		// A record without events is no record of the table.
		if len(file.Records) != 2 || file.Records[0].UserTag != -1 || file.Records[1].UserTag != 3 {
			t.Errorf("records %+v", file.Records)
		}
		if s := d.Lookup("A"); s == nil || s.Item != 3 || d.ByID(1, 3) != s || d.Lookup("B") != nil || d.ByID(1, 1) != nil {
			t.Errorf("A is %v, 1/1 is %v", s, d.ByID(1, 1))
		}
	}
}

// The events of a record are walked together, some structures at a time. That
// must not show where one event has many more of them than its neighbours.
func TestSpansAscendHoweverManyStructuresAnEventHas(t *testing.T) {
	for _, many := range []int{63, 64, 65, 127, 128, 129, 300} {
		for _, big := range []bool{false, true} {
			var long Event
			for i := range many {
				long.Structures = append(long.Structures, Node(uint16(100+i), 1, []int32{int32(i)}))
			}
			short := Event{Structures: []Structure{Node(7, 7, []int32{2})}}
			last, again := long, long
			last.Structures = append(slices.Clone(long.Structures), Node(7, 7, []int32{1}))
			again.Structures = append(append([]Structure{Node(7, 7, []int32{3})}, long.Structures...), Node(7, 7, []int32{-1}))
			built := (&File{Records: []Record{{Tag: 1, Big: big, Events: []Event{last, short, again, short}}}}).Bytes()
			f, err := hipo.NewFile("f", bytes.NewReader(built), int64(len(built)), hipo.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var rec hipo.Record
			if err := f.ReadRecord(0, &rec); err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, b := range rec.Banks {
				if b.Group != 7 {
					continue
				}
				data, err := rec.Data(i)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range b.Spans {
					value := data[s.Off]
					if s.Big {
						value = data[s.Off+3]
					}
					got = append(got, fmt.Sprintf("%d:%d", s.Event, value))
				}
			}
			if want := []string{"0:1", "1:2", "2:3", "3:2"}; !slices.Equal(got, want) {
				t.Errorf("%d structures, big-endian %v: event:value %v, want %v", many, big, got, want)
			}
		}
	}
}
