package hipo_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hipofs/hipofs/hipo"
	. "github.com/hipofs/hipofs/hipo/hipotest"
)

// smallSchema is the only bank of small, 8 bytes a row.
var smallSchema = Schema{Name: "S", Group: 1, Item: 1, Columns: "x/I,y/F"}

// small is a file of three records of two events each, stored as tag says.
func small(tag int) File {
	f := File{Schemas: []Schema{smallSchema}}
	for r := range 3 {
		e := func(k int) Event {
			n := int32(2*r + k)
			return Event{Tag: uint32(n), Structures: []Structure{Bank(1, 1, Pack(n, -n), Pack(float32(n), float32(-n)))}}
		}
		f.Records = append(f.Records, Record{Tag: tag, Events: []Event{e(0), e(1)}})
	}
	return f
}

// middle is small with a change to its record 1.
func middle(tag int, change func(*Record)) *Built {
	f := small(tag)
	change(&f.Records[1])
	return f.Build()
}

// payload is small with 4 bytes of record 1's payload, before it is stored, overwritten.
func payload(off int, v uint32) *Built {
	return middle(1, func(r *Record) {
		r.Payload = func(b []byte) []byte { binary.LittleEndian.PutUint32(b[off:], v); return b }
	})
}

// directory is small with some bytes of record 1's directory overwritten.
func directory(tag, off int, v ...byte) *Built {
	return middle(tag, func(r *Record) {
		r.Directory = func(b []byte) []byte { copy(b[off:], v); return b }
	})
}

// section is small with 4 bytes of record 1's section header overwritten.
func section(tag, off int, v uint32) *Built {
	return middle(tag, func(r *Record) {
		r.Section = func(b []byte) []byte { binary.LittleEndian.PutUint32(b[off:], v); return b }
	})
}

// patched is small with 4 bytes of record 1's header overwritten.
func patched(tag, field int, v uint32) *Built {
	f := small(tag)
	b := f.Build()
	b.Put32(b.Records[1].Off+field, v)
	return b
}

// Damage in one record is an error with that record's number and place; the
// records beside it stay readable.
func TestDamageInARecordNamesItAndSparesTheOthers(t *testing.T) {
	const index0, index1, event0, event1 = 0, 4, 8, 8 + 40 // of small's payload: two events of 40 bytes
	text := []byte("this is neither LZ4, nor gzip, nor zstd")
	for _, tt := range []struct {
		name string
		b    *Built
		says string // a part of the message
	}{
		{"lz4 bytes", middle(1, func(r *Record) { r.Body = func(b []byte) []byte { return bytes.Repeat([]byte{0xFF}, len(b)) } }), ""},
		{"gzip bytes", middle(3, func(r *Record) { r.Body = func([]byte) []byte { return text } }), ""},
		{"zstd bytes", middle(4, func(r *Record) { r.Body = func([]byte) []byte { return text } }), ""},
		{"gzip checksum", middle(3, func(r *Record) { r.Body = func(b []byte) []byte { b[len(b)-8] ^= 1; return b } }), ""},
		{"gzip checksum of a payload with 3 bytes behind it", middle(3, func(r *Record) {
			r.Payload = func(b []byte) []byte { return append(b, 0, 0, 0) }
			r.Body = func(b []byte) []byte { b[len(b)-8] ^= 1; return b }
		}), ""},
		{"gzip of a payload that goes on", middle(3, func(r *Record) { r.Payload = func(b []byte) []byte { return append(b, 0, 0, 0, 0) } }), ""},
		{"gzip cut", middle(3, func(r *Record) { r.Body = func(b []byte) []byte { return b[:len(b)-9] } }), ""},
		{"zstd cut", middle(4, func(r *Record) { r.Body = func(b []byte) []byte { return b[:len(b)-4] } }), ""},
		{"lz4 cut", middle(1, func(r *Record) { r.Body = func(b []byte) []byte { return b[:len(b)-4] } }), ""},
		{"none cut", middle(0, func(r *Record) { r.Body = func(b []byte) []byte { return b[:len(b)-4] } }), ""},
		{"payload too short", middle(1, func(r *Record) { r.Payload = func(b []byte) []byte { return b[:len(b)-1] } }), ""},
		{"data length over the payload", patched(1, RecordData, 81), ""},
		{"data length below the events", patched(1, RecordData, 79), ""},
		{"event count over the payload", middle(1, func(r *Record) { r.Payload = func(b []byte) []byte { return b[:8] } }), ""},
		{"event of 15 bytes", payload(index1, 15), "event 1"},
		{"event of 0 bytes", payload(index0, 0), "event 0"},
		{"event past the data", payload(index1, 41), "event 1"},
		{"event of 4 GiB", payload(index1, 0xFFFFFFFF), "event 1"},
		{"events longer than the data in sum", payload(index0, 41), "event"},
		{"event's own length 15", payload(event0+4, 15), "event 0"},
		{"event's own length over the index", payload(event0+4, 41), "event 0"},
		{"event's own length 4 GiB", payload(event1+4, 0xFFFFFFFF), "event 1"},
		{"structure past its event", payload(event1+16+4, 17), "1/1"},
		{"structure of 16 MiB", payload(event1+16+4, 0xFFFFFF), "1/1"},
		{"format longer than its data", payload(event1+16+4, 17<<24|16), "1/1"},

		{"split version 0", section(10, 0, 0), "version 0"},
		{"split version 4", section(10, 0, 4), "version 4"},
		{"bank layout of version 1", section(9, 0, 1), "version 1"},
		{"split bank count 0", section(10, 4, 0), ""},
		{"split bank count 2^32-1", section(10, 4, 0xFFFFFFFF), ""},
		{"split event count", section(10, 8, 3), "event"},
		{"split event count 2^32-1", section(10, 8, 0xFFFFFFFF), "event"},
		{"directory stored past the section", section(10, 12, 4096), ""},
		{"directory stored 2^32-1", section(10, 12, 0xFFFFFFFF), ""},
		{"directory inflated to 2^32-1", section(10, 16, 0xFFFFFFFF), ""},
		{"directory shorter than its tables", section(10, 16, 8), ""},
		{"section too short", middle(10, func(r *Record) { r.Section = func(b []byte) []byte { return b[:16] } }), ""},
		{"streams cut", middle(10, func(r *Record) { r.Section = func(b []byte) []byte { return b[:len(b)-4] } }), ""},
		// By column: 4 descriptor, 2 count, 8 tags, 2 presence, 8 sizes, 16 stream sizes, 1 format.
		{"column count 0", directory(10, 4, 0, 0), ""},
		{"column count 3", directory(10, 4, 3, 0), ""},
		{"column count 65535", directory(10, 4, 0xFF, 0xFF), ""},
		{"absent bank with bytes", directory(10, 14, 0), "event 0"},
		{"part rows", directory(10, 16, 15, 0, 0, 0, 17), ""},
		{"bank of 2^32-1 bytes", directory(10, 16, 0xFF, 0xFF, 0xFF, 0xFF), ""},
		{"stored size 0: the streams behind it shift", directory(12, 24, 0), ""},
		{"stored size 2^32-1", directory(10, 24, 0xFF, 0xFF, 0xFF, 0xFF), ""},
		{"stream of another column's size", directory(10, 28, 8, 0, 0, 0, byte(18), 0, 0, 0, 24), ""},
		{"stream inflated to 2^32-1", directory(10, 28, 0xFF, 0xFF, 0xFF, 0xFF), ""},
		{"unknown id stored by column", directory(10, 0, 9, 9), ""},
		{"stream bytes", middle(10, func(r *Record) {
			r.Section = func(b []byte) []byte { b[len(b)-18] = 0xFF; return b } // a stream's first token
		}), ""},
		// By bank: 4 descriptor, 4 stored, 4 raw, 8 tags, 2 presence, 8 sizes, 1 format.
		{"bank: raw size", directory(9, 8, 31), ""},
		{"bank: stored size", directory(9, 4, 0xFF, 0xFF, 0xFF), ""},
		{"bank: format longer than its data", directory(9, 30, 17), ""},
		{"stream checksum", middle(14, func(r *Record) {
			r.Version = 3
			r.Section = func(b []byte) []byte { b[len(b)-1] ^= 1; return b }
		}), "checksum"},
		{"unknown encoding", middle(14, func(r *Record) {
			r.Version = 3
			r.Directory = func(b []byte) []byte { b[41] |= 2; return b }
		}), "encoding"},
		{"version 3 without its tail", middle(14, func(r *Record) {
			r.Version = 3
			r.Directory = func(b []byte) []byte { return b[:len(b)-1] }
		}), ""},
		{"split record that is big-endian", middle(13, func(r *Record) { r.Big = true }), "big-endian"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, err := hipo.NewFile("some.hipo", bytes.NewReader(tt.b.Bytes), int64(len(tt.b.Bytes)), hipo.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var rec hipo.Record // shared: what is left of one record must not show in the next
			for i, want := range []bool{true, false, true} {
				err := f.ReadRecord(i, &rec)
				if err == nil {
					err = readStreams(&rec)
				}
				if (err == nil) != want {
					t.Errorf("record %d: %v", i, err)
				}
				if err == nil && (len(rec.Tags) != 2 || rec.Tags[1] != uint32(2*i+1)) {
					t.Errorf("record %d: event tags %v", i, rec.Tags)
				}
				if err != nil {
					checkPlace(t, err, 1, tt.b.Records[1])
					if !strings.Contains(err.Error(), tt.says) {
						t.Errorf("%v does not say %q", err, tt.says)
					}
				}
			}
		})
	}
}

// checkPlace checks that an error is a *FormatError about that record.
func checkPlace(t *testing.T, err error, record int, s Span) {
	t.Helper()
	var fe *hipo.FormatError
	if !errors.As(err, &fe) {
		t.Errorf("%T %v is not a *hipo.FormatError", err, err)
		return
	}
	if fe.File != "some.hipo" || fe.Record != record || fe.Off < int64(s.Off) || fe.Off >= int64(s.End) {
		t.Errorf("%v: file %q, record %d, byte %d; want record %d, from byte %d to %d", err, fe.File, fe.Record, fe.Off, record, s.Off, s.End)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q is more than one line", err)
	}
}

// A record header that cannot be right leaves no way to the records behind it,
// but for salvage.
func TestDamagedRecordHeaderRefusesTheFile(t *testing.T) {
	for _, tt := range []struct {
		name string
		b    *Built
		kept int // records that salvage reads
	}{
		{"magic", patched(1, RecordMagic, 0xC0DA0101), 2},
		{"length 0", patched(1, RecordLength, 0), 2},
		{"length below the header", patched(1, RecordLength, 13), 2},
		{"length past the end", patched(1, RecordLength, 1<<20), 2},
		{"length 2^32-1", patched(1, RecordLength, 0xFFFFFFFF), 2},
		{"header of 13 words", patched(1, RecordWords, 13), 2},
		{"header of 2^32-1 words", patched(1, RecordWords, 0xFFFFFFFF), 2},
		{"version 5", patched(1, RecordBits, 0x40000005), 2},
		{"version 262", patched(1, RecordBits, 0x40000107), 2},
		{"index of 0 bytes", patched(1, RecordIndex, 0), 2},
		{"index of 2^32-1 bytes", patched(1, RecordIndex, 0xFFFFFFFF), 2},
		{"tag 15", patched(1, RecordComp, 0xF0000009), 2},
		{"compressed length", patched(1, RecordComp, 0x10000001), 2},
		{"compressed length 0", patched(1, RecordComp, 0x10000000), 2},
		{"data length 2^32-1", patched(1, RecordData, 0xFFFFFFFF), 2},
		{"user header of 2^32-1 bytes", patched(1, RecordUserLength, 0xFFFFFFFF), 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			size := int64(len(tt.b.Bytes))
			_, err := hipo.NewFile("some.hipo", bytes.NewReader(tt.b.Bytes), size, hipo.Options{})
			if err == nil {
				t.Fatal("no error")
			}
			checkPlace(t, err, 1, tt.b.Records[1])

			f, err := hipo.NewFile("some.hipo", bytes.NewReader(tt.b.Bytes), size, hipo.Options{Salvage: true})
			if err != nil {
				t.Fatal(err)
			}
			d, err := decodeFile(f, true)
			if err != nil {
				t.Fatal(err)
			}
			if len(d.tags) != 2*tt.kept || len(f.Damage) == 0 {
				t.Errorf("salvage: event tags %v, damage %v", d.tags, f.Damage)
			}
		})
	}
}

// A file whose header is not right is refused, in a line that says what it is.
func TestDamagedFileHeaderRefusesTheFile(t *testing.T) {
	f := small(1)
	whole := f.Bytes()
	patch := func(off int, v uint32) []byte {
		b := bytes.Clone(whole)
		binary.LittleEndian.PutUint32(b[off:], v)
		return b
	}
	for _, tt := range []struct {
		name string
		b    []byte
	}{
		{"empty", nil},
		{"one byte", whole[:1]},
		{"55 bytes", whole[:55]},
		{"56 bytes", whole[:56]},
		{"ends in the dictionary", whole[:200]},
		{"identifier", patch(0, 0)},
		{"magic", patch(FileMagic, 0)},
		{"version 5", patch(FileBits, 0x50000005)},
		{"version 7", patch(FileBits, 0x50000007)},
		{"header of 13 words", patch(FileWords, 13)},
		{"header of 0 words", patch(FileWords, 0)},
		{"header of 2^32-1 words", patch(FileWords, 0xFFFFFFFF)},
		{"header of 15 words", patch(FileWords, 15)}, // the dictionary record is not there
		{"dictionary of 2^32-1 bytes", patch(FileUserLength, 0xFFFFFFFF)},
		{"dictionary past the end", patch(FileUserLength, uint32(len(whole)))},
		{"dictionary of 0 bytes", patch(FileUserLength, 0)}, // it is there, and is no data
		{"dictionary magic", patch(56+RecordMagic, 1)},
		{"dictionary of 2^30 events", patch(56+RecordEvents, 1<<30)},
		{"tape stub", []byte("bitfileIndex=1234\nvolser=ABC\n")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := hipo.NewFile("some.hipo", bytes.NewReader(tt.b), int64(len(tt.b)), hipo.Options{})
			if err == nil {
				t.Fatal("no error")
			}
			checkPlace(t, err, -1, Span{Off: -1, End: len(whole)})
		})
	}
}

// Every truncation of a file with a trailer is refused, and salvage gives the
// whole records before the cut.
func TestTruncatedFileIsRefusedAndSalvaged(t *testing.T) {
	for _, trailer := range []Trailer{Indexed, OldJava} {
		f := small(10)
		f.Trailer = trailer
		b := f.Build()
		for n := b.Dictionary.End; n < len(b.Bytes); n++ {
			data := b.Bytes[:n]
			if d, err := decode(data, hipo.Options{}); err == nil {
				t.Errorf("trailer %d: %d of %d bytes are read, as %d events", trailer, n, len(b.Bytes), len(d.tags))
			}
			want := 0
			for _, r := range b.Records {
				if r.End <= n {
					want += 2
				}
			}
			d, err := decode(data, hipo.Options{Salvage: true})
			if err != nil || len(d.tags) != want {
				t.Errorf("trailer %d: salvage of %d of %d bytes: %v, %v; want %d events", trailer, n, len(b.Bytes), d, err, want)
			}
		}
	}
}

// A ragged bank spoils that bank alone; what a whole-record layout says of it
// is for the reader of the bank to see.
func TestRaggedBankIsAnErrorOfThatBank(t *testing.T) {
	f := small(1)
	f.Schemas = append(f.Schemas, Schema{Name: "R", Group: 1, Item: 2, Columns: "x/I"})
	e := &f.Records[2].Events[1]
	e.Structures = append(e.Structures, Structure{Group: 1, Item: 2, Data: make([]byte, 7)})
	d, err := decode(f.Bytes(), hipo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d.tables["R"].err == nil || d.tables["S"].err != nil {
		t.Errorf("R: %v, S: %v", d.tables["R"].err, d.tables["S"].err)
	}
}

// The files that are damaged by design are errors.
func TestDamagedFilesAreErrors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		record int
	}{
		{"truncated", 2},
		{"corrupt_record", 1},
		{"corrupt_magic", 1},
		{"corrupt_checksum", 1},
		{"bomb_lz4", 0},
		{"overrun_bank", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("testdata/codecs", tt.name+".hipo"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = decode(data, hipo.Options{})
			var fe *hipo.FormatError
			if !errors.As(err, &fe) || fe.Record != tt.record || fe.Off < 56 || fe.Off >= int64(len(data)) {
				t.Errorf("got %v, want a *hipo.FormatError about record %d", err, tt.record)
			}
		})
	}
}

// A Record is used again and again; what an earlier record left in it does not
// show, whatever the two layouts are.
func TestRecordForgetsTheOneBefore(t *testing.T) {
	for _, tags := range [][2]int{{10, 0}, {10, 9}, {9, 10}, {0, 10}, {1, 3}, {4, 14}} {
		f := small(tags[0])
		f.Records[1].Tag = tags[1]
		f.Records[1].Events = []Event{{Structures: []Structure{Bank(1, 2, []byte("other"))}}}
		f.Records[2] = Record{Tag: tags[1], Events: f.Records[2].Events[:1]}
		file := openBytes(t, f.Bytes())
		var used hipo.Record
		for i := range file.Records {
			var fresh hipo.Record
			if err := file.ReadRecord(i, &fresh); err != nil {
				t.Fatal(err)
			}
			if err := file.ReadRecord(i, &used); err != nil {
				t.Fatal(err)
			}
			if got, want := outline(&used), outline(&fresh); !slices.Equal(got, want) {
				t.Errorf("tags %v, record %d: read again %q, read first %q", tags, i, got, want)
			}
		}
	}
}

// outline is what a record has, as lines in the order of ids.
func outline(rec *hipo.Record) []string {
	out := []string{fmt.Sprint(rec.Tags)}
	for i, b := range rec.Banks {
		if len(b.Spans) > 0 {
			out = append(out, fmt.Sprintf("%5d/%3d %d columns %v", b.Group, b.Item, rec.Columns(i), b.Spans))
		}
	}
	slices.Sort(out)
	return out
}

// The size of the tables of 2^32 banks in 2^30 events is more than 64 bits
// hold. Only a MaxRecord above 2 GiB lets so many events pass.
func TestDirectorySizeDoesNotOverflow(t *testing.T) {
	for _, tag := range []int{9, 10} {
		for _, n := range []uint32{1 << 29, 1<<29 + 1<<28, 1<<30 - 1} {
			for _, banks := range []uint32{1 << 31, 0xC0000000, 0xFFFFFFFF} {
				b := middle(tag, func(r *Record) { r.Section = puts(4, banks, 8, n) })
				b.Put32(b.Records[1].Off+RecordEvents, n)
				b.Put32(b.Records[1].Off+RecordIndex, 4*n)
				if d, err := decode(b.Bytes, hipo.Options{MaxRecord: 1 << 40}); err == nil {
					t.Errorf("tag %d, %d banks in %d events: read as %d events", tag, banks, n, len(d.tags))
				}
			}
		}
	}
}

// Findings of a sweep over a larger file: the length of a match near the end of
// a gzip member changed, so that its output grew by 3 bytes.
func TestGzipThatGrewIsRefused(t *testing.T) {
	data, err := os.ReadFile("testdata/codecs/java_gzip.hipo")
	if err != nil {
		t.Fatal(err)
	}
	for at, values := range map[int][]byte{1896: {data[1896] ^ 1, data[1896] + 1, data[1896] - 1}, 2731: {0, data[2731] ^ 0x80}} {
		for _, v := range values {
			b := bytes.Clone(data)
			b[at] = v
			if _, err := decode(b, hipo.Options{}); err == nil {
				t.Errorf("byte %d set to %#x is read", at, v)
			}
		}
	}
}
