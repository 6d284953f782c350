package hipo_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hipofs/hipofs/hipo"
	. "github.com/hipofs/hipofs/hipo/hipotest"
)

// allocated is how many bytes do allocates, in sum.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A declared number allocates nothing before it has been compared with the
// bytes at hand. Every file here is small and claims something enormous.
func TestHostileNumbersDoNotAllocate(t *testing.T) {
	const most = 8 << 20
	one := func(tag int, change func(*Record)) *Built {
		f := small(tag)
		f.Trailer = NoTrailer
		f.Records = f.Records[:1]
		change(&f.Records[0])
		return f.Build()
	}
	header := func(tag int, words ...uint32) *Built { // pairs of field and value
		b := one(tag, func(*Record) {})
		for i := 0; i < len(words); i += 2 {
			b.Put32(b.Records[0].Off+int(words[i]), words[i+1])
		}
		return b
	}
	body := func(tag int, declared uint32, body []byte) *Built {
		b := one(tag, func(r *Record) { r.Body = func([]byte) []byte { return body } })
		b.Put32(b.Records[0].Off+RecordData, declared)
		return b
	}
	extra := func(s ...Structure) *Built {
		f := small(1)
		f.Extra = []Event{{Structures: s}}
		return f.Build()
	}
	text := func(format string, args ...any) *Built { return extra(Text(120, 2, fmt.Sprintf(format, args...))) }

	const count, n = 0x0FFFFFFF, 900 << 20
	for _, tt := range []struct {
		name string
		b    *Built
		ok   bool // the file reads, without what is hostile in it
	}{
		{"2^28 events, none", header(0, RecordEvents, count, RecordIndex, 4*count&0xFFFFFFFF), false},
		{"2^28 events, lz4", header(1, RecordEvents, count, RecordIndex, 4*count&0xFFFFFFFF), false},
		{"2^27 events, zstd", header(4, RecordEvents, count/2, RecordIndex, 4*(count/2)), false},
		{"2^28 events, by bank", header(9, RecordEvents, count/2, RecordIndex, 4*(count/2)), false},
		{"900 MB, none", header(0, RecordData, n), false},
		{"900 MB, lz4", header(1, RecordData, n), false},
		{"900 MB, gzip", header(3, RecordData, n), false},
		{"900 MB, zstd", header(4, RecordData, n), false},
		{"900 MB of user header", header(1, RecordUserLength, n), false},
		{"gzip gives 64 MB, 80 declared", body(3, 80, GzipZeros(64<<20)), false},
		{"zstd gives 64 MB, 80 declared", body(4, 80, ZstdZeros(64<<20)), false},
		{"zstd wants a window of 2 GB", body(4, 80, zstdWindow(21<<3)), false},
		{"zstd wants a window of 512 MB", body(4, 80, zstdWindow(19<<3)), false},
		{"by bank: 2^32-1 banks", one(9, func(r *Record) { r.Section = put(4, 0xFFFFFFFF) }), false},
		{"by bank: 2^31 banks", one(9, func(r *Record) { r.Section = put(4, 1<<31) }), false},
		{"by column: 2^32-1 banks", one(10, func(r *Record) { r.Section = put(4, 0xFFFFFFFF) }), false},
		{"directory of 4 GB", one(10, func(r *Record) { r.Section = put(16, 0xFFFFFFFF) }), false},
		{"directory of 900 MB", one(10, func(r *Record) { r.Section = put(16, n) }), false},
		{"65535 columns", one(10, func(r *Record) { r.Directory = put(4, 0xFFFF) }), false},
		{"bank of 900 MB by lz4", one(9, func(r *Record) { r.Directory = puts(8, n, 22, n/2, 26, n/2) }), false},
		{"bank of 30 MB by zstd", one(5, func(r *Record) { r.Directory = puts(8, 30<<20, 22, 15<<20, 26, 15<<20) }), false},
		{"bank of 30 MB by gzip", one(11, func(r *Record) { r.Directory = puts(8, 30<<20, 22, 15<<20, 26, 15<<20) }), false},
		{"bank of 30 MB uncompressed", one(13, func(r *Record) { r.Directory = puts(8, 30<<20, 22, 15<<20, 26, 15<<20) }), false},
		{"schema with an array of 2^31-1", text("{A/9/9}{x/F#2147483647}"), true},
		{"schema with an array of 10^300", text("{A/9/9}{x/F#1%s}", strings.Repeat("0", 300)), true},
		{"schema with a row of 16 MB", text("{A/9/9}{x/D#2097152}"), true},
		{"schema with 65,537 columns", text("{A/9/9}{%s}", strings.Repeat("x/B,", 65537)), true},
		{"JSON nested 100,000 deep", extra(Text(120, 1, strings.Repeat("[", 100000))), true},
		{"JSON objects nested 100,000 deep", extra(Text(120, 1, strings.Repeat(`{"a":`, 100000))), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var err error
			got := allocated(func() { _, err = decode(tt.b.Bytes, hipo.Options{}) })
			if tt.ok != (err == nil) {
				t.Errorf("error %v", err)
			}
			var fe *hipo.FormatError
			if err != nil && !errors.As(err, &fe) {
				t.Errorf("%T %v is not a *hipo.FormatError", err, err)
			}
			if limit := uint64(most + 128*len(tt.b.Bytes)); got > limit {
				t.Errorf("%d bytes allocated for a file of %d, want at most %d (%v)", got, len(tt.b.Bytes), limit, err)
			}
		})
	}
}

// put is a hook that overwrites 4 bytes.
func put(off int, v uint32) func([]byte) []byte { return puts(uint32(off), v) }

// puts is a hook that overwrites 4 bytes in several places: pairs of offset and value.
func puts(pairs ...uint32) func([]byte) []byte {
	return func(b []byte) []byte {
		for i := 0; i < len(pairs); i += 2 {
			binary.LittleEndian.PutUint32(b[pairs[i]:], pairs[i+1])
		}
		return b
	}
}

// zstdWindow is one raw block of 4 bytes in a frame with that window descriptor.
func zstdWindow(descriptor byte) []byte {
	return []byte{0x28, 0xB5, 0x2F, 0xFD, 0x00, descriptor, 4<<3 | 1, 0, 0, 1, 2, 3, 4}
}

// A trailer is a hint: whatever it says, the records are those that are there.
func TestLyingTrailerDoesNotChangeTheRecords(t *testing.T) {
	rows := func(change func([]Entry) []Entry) *Built {
		f := small(1)
		f.Index = change
		return f.Build()
	}
	at := func(change func(e *Entry)) *Built {
		return rows(func(e []Entry) []Entry { change(&e[1]); return e })
	}
	position := func(v uint64) *Built {
		f := small(1)
		b := f.Build()
		b.Put64(FileTrailer, v)
		return b
	}
	whole := func() *Built { f := small(1); return f.Build() }()
	for _, tt := range []struct {
		name string
		b    *Built
	}{
		{"position of the first record", position(uint64(whole.Records[0].Off))},
		{"position of the last record", position(uint64(whole.Records[2].Off))},
		{"position in the header", position(8)},
		{"position of the dictionary", position(56)},
		{"position between records", position(uint64(whole.Records[1].Off + 4))},
		{"position negative", position(1 << 63)},
		{"no rows", rows(func([]Entry) []Entry { return nil })},
		{"the first row missing", rows(func(e []Entry) []Entry { return e[1:] })},
		{"a row missing", rows(func(e []Entry) []Entry { return append(e[:1:1], e[2]) })},
		{"the last row missing", rows(func(e []Entry) []Entry { return e[:2] })},
		{"a row twice", rows(func(e []Entry) []Entry { return append(e[:2:2], e[1:]...) })},
		{"rows out of order", rows(func(e []Entry) []Entry { e[0], e[1] = e[1], e[0]; return e })},
		{"position negative in a row", at(func(e *Entry) { e.Position = -1 })},
		{"position past the end in a row", at(func(e *Entry) { e.Position = 1 << 40 })},
		{"position largest in a row", at(func(e *Entry) { e.Position = 1<<63 - 1 })},
		{"position off by 4 in a row", at(func(e *Entry) { e.Position += 4 })},
		{"length 0 in a row", at(func(e *Entry) { e.Length = 0 })},
		{"length negative in a row", at(func(e *Entry) { e.Length = -1 })},
		{"entries of another record", at(func(e *Entry) { e.Entries = 3 })},
		{"entries negative", at(func(e *Entry) { e.Entries = -1 })},
		{"not a whole number of rows", func() *Built {
			f := small(1)
			f.IndexData = func(b []byte) []byte { return b[:len(b)-1] }
			return f.Build()
		}()},
		{"compressed", func() *Built { f := small(1); f.TrailerTag = 4; return f.Build() }()},
		{"lists dictionary and trailer", func() *Built { f := small(1); f.Trailer = ListsAll; return f.Build() }()},
		{"none", func() *Built { f := small(1); f.Trailer = NoTrailer; return f.Build() }()},
		{"unreferenced", func() *Built { f := small(1); f.Trailer = Unreferenced; return f.Build() }()},
		{"old java", func() *Built { f := small(1); f.Trailer = OldJava; return f.Build() }()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, err := hipo.NewFile("some.hipo", bytes.NewReader(tt.b.Bytes), int64(len(tt.b.Bytes)), hipo.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(f.Records) != 3 {
				t.Fatalf("%d records, want 3", len(f.Records))
			}
			for i, r := range f.Records {
				if r.Off != int64(tt.b.Records[i].Off) || r.Length != int64(tt.b.Records[i].End-tt.b.Records[i].Off) || r.Events != 2 {
					t.Errorf("record %d: %+v, want %v", i, r, tt.b.Records[i])
				}
			}
		})
	}
}

// Options.MaxRecord is the most that is inflated at once.
func TestMaxRecordBoundsWhatIsInflated(t *testing.T) {
	for _, tag := range []int{0, 1, 3, 4, 5, 7, 8, 9, 12, 13, 14} {
		f := small(tag)
		f.Records[1].Events[0].Structures[0] = Bank(1, 1, make([]byte, 4<<20), make([]byte, 4<<20))
		b := f.Bytes()
		if _, err := decode(b, hipo.Options{}); err != nil {
			t.Errorf("tag %d: %v", tag, err)
		}
		var err error
		got := allocated(func() { _, err = decode(b, hipo.Options{MaxRecord: 1 << 20}) })
		var fe *hipo.FormatError
		if !errors.As(err, &fe) {
			t.Errorf("tag %d: 8 MB with a limit of 1 MiB: %v", tag, err)
		}
		if most := uint64(8 << 20); got > most && tag != 0 {
			t.Errorf("tag %d: %d bytes allocated, want at most %d", tag, got, most)
		}
	}
}

// What compresses 255-fold must not become many times larger again in memory.
func TestTablesOfARecordCountAgainstMaxRecord(t *testing.T) {
	const limit, events = 16 << 20, 1 << 20 // 9 MB of directory, 16 MiB and more of spans
	for _, n := range []int{events - 1, events + 1} {
		b := middle(9, func(r *Record) {
			r.Directory = func([]byte) []byte { // one bank, in every event, without a byte
				d := make([]byte, 12+4*n+n+4*n)
				copy(d, []byte{1, 0, 1, 11})
				copy(d[12+4*n:12+5*n], bytes.Repeat([]byte{1}, n))
				return d
			}
			r.Section = func(s []byte) []byte {
				binary.LittleEndian.PutUint32(s[8:], uint32(n))
				return s[:20+binary.LittleEndian.Uint32(s[12:])]
			}
		})
		b.Put32(b.Records[1].Off+RecordEvents, uint32(n))
		b.Put32(b.Records[1].Off+RecordIndex, uint32(4*n))
		b.Put32(b.Records[1].Off+RecordData, 0)
		f, err := hipo.NewFile("some.hipo", bytes.NewReader(b.Bytes), int64(len(b.Bytes)), hipo.Options{MaxRecord: limit})
		if err != nil {
			t.Fatal(err)
		}
		var rec hipo.Record
		if err := f.ReadRecord(1, &rec); (err == nil) != (n < events) {
			t.Errorf("%d structures with a limit of %d bytes: %v", n, limit, err)
		}
	}
}

// 21 kB of LZ4 can spell a million columns.
func TestDictionaryOfTooManyColumnsIsRefused(t *testing.T) {
	skipUnderRaceDetector(t)
	for _, s := range []string{"{A/9/9}{" + strings.Repeat("x/B,", 65000) + "}", "{A/9/9}{" + strings.Repeat("x/?,", 65000) + "}"} {
		f := File{DictTag: 1, Extra: []Event{{Structures: []Structure{Text(120, 2, s)}}}}
		if _, err := decode(f.Bytes(), hipo.Options{}); err != nil {
			t.Error(err)
		}
		f.Extra = slices.Repeat(f.Extra, 300)
		var fe *hipo.FormatError
		if _, err := decode(f.Bytes(), hipo.Options{}); !errors.As(err, &fe) || fe.Record != -1 {
			t.Errorf("300 schemas of 65,000 columns: %v", err)
		}
	}
}
