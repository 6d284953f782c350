package materialize

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hipofs/hipofs/hipo"
	"github.com/hipofs/hipofs/hipo/hipotest"
)

// resident is what the kernel says of this process's memory, in bytes: VmRSS now,
// VmHWM at its highest.
func resident(t *testing.T, what string) int64 {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); f[0] == what+":" {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("no " + what)
	return 0
}

// growth is by how much the process's memory grows at most while do runs.
func growth(t *testing.T, do func()) int64 {
	t.Helper()
	debug.FreeOSMemory()
	before := resident(t, "VmRSS")
	// As the command does: the pages of the program itself are not the collector's.
	defer debug.SetGCPercent(debug.SetGCPercent(30))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(before + 48<<20))
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // forget the highest
		t.Fatal(err)
	}
	do()
	return resident(t, "VmHWM") - before
}

// Every file here is small, and would be large, or claims to be. Records may have
// 24 MiB.
func TestBombsTakeLittleMemory(t *testing.T) {
	const limit, n = 24 << 20, 900 << 20
	one := []hipotest.Event{event(particles(0, 3))}
	file := func(r hipotest.Record) *hipotest.Built {
		f := hipotest.File{Schemas: []hipotest.Schema{particle}, Records: []hipotest.Record{r}}
		return f.Build()
	}
	// body is a record of that many inflated bytes, as its header says, with that body.
	body := func(tag, declared int, body []byte) []byte {
		b := file(hipotest.Record{Tag: tag, Events: one, Body: func([]byte) []byte { return body }})
		b.Put32(b.Records[0].Off+hipotest.RecordData, uint32(declared-4))
		return b.Bytes
	}
	header := func(tag int, pairs ...uint32) []byte {
		b := file(hipotest.Record{Tag: tag, Events: one})
		for i := 0; i < len(pairs); i += 2 {
			b.Put32(b.Records[0].Off+int(pairs[i]), pairs[i+1])
		}
		return b.Bytes
	}
	words := func(pairs ...uint32) func([]byte) []byte {
		return func(b []byte) []byte {
			for i := 0; i < len(pairs); i += 2 {
				binary.LittleEndian.PutUint32(b[pairs[i]:], pairs[i+1])
			}
			return b
		}
	}
	// stream is a record by bank, whose one bank has that many bytes.
	stream := func(tag, inflated int, zeros []byte) []byte {
		b := file(hipotest.Record{Tag: tag, Events: one,
			Directory: words(4, uint32(len(zeros)), 8, uint32(inflated), 17, uint32(inflated)),
			Section: func(s []byte) []byte {
				return append(s[:20+binary.LittleEndian.Uint32(s[12:])], zeros...)
			}})
		b.Put32(b.Records[0].Off+hipotest.RecordData, uint32(inflated))
		return b.Bytes
	}
	dictionary := func(tag int, text ...string) []byte {
		f := hipotest.File{DictTag: tag, Records: []hipotest.Record{{Events: one}}}
		for _, s := range text {
			f.Extra = append(f.Extra, event(hipotest.Text(120, 2, s)))
		}
		return f.Bytes()
	}
	many := func(n int) (events []hipotest.Event) {
		for i := range n {
			if i%1000 == 0 {
				events = append(events, hipotest.Event{})
			}
			e := &events[len(events)-1]
			e.Structures = append(e.Structures, hipotest.Structure{Group: uint16(1 + i/200), Item: uint8(1 + i%200), Type: 1, Data: []byte("x")})
		}
		return events
	}
	var banks []string
	for i := range 65_537 {
		banks = append(banks, fmt.Sprintf("{B%d/%d/%d}{x/B}", i, 1+i/200, 1+i%200))
	}
	trailer := func() []byte {
		f := hipotest.File{Schemas: []hipotest.Schema{particle}, Records: []hipotest.Record{{Events: one}}, TrailerTag: 3,
			IndexData: func([]byte) []byte { return make([]byte, 32*600_000) }}
		return f.Bytes()
	}

	for _, tt := range []struct {
		name  string
		bytes []byte
		fine  bool // what is asked for is there, and small enough
		errno error
	}{
		{"gzip: 64 MB where 80 bytes are declared", body(3, 80, hipotest.GzipZeros(64<<20)), false, nil},
		{"gzip: 900 MB, as declared", body(3, n, hipotest.GzipZeros(n)), false, syscall.EFBIG},
		{"gzip: as much as is allowed", body(3, limit, hipotest.GzipZeros(limit)), false, nil},
		{"gzip in gzip", body(3, 80, hipotest.GzipZeros(64 << 20)[:80]), false, nil},
		{"zstd: 900 MB where 80 bytes are declared", body(4, 80, hipotest.ZstdZeros(n)), false, nil},
		{"zstd: 900 MB, as declared", body(4, n, hipotest.ZstdZeros(n)), false, syscall.EFBIG},
		{"zstd: as much as is allowed", body(4, limit, hipotest.ZstdZeros(limit)), false, nil},
		{"lz4: 900 MB, as declared", body(1, n, hipotest.LZ4Zeros(n)), false, syscall.EFBIG},
		{"lz4: as much as is allowed", body(1, limit, hipotest.LZ4Zeros(limit)), false, nil},
		{"lz4: more than it can hold", header(1, hipotest.RecordData, 20<<20), false, nil},
		{"a bank of 900 MB by zstd", stream(5, n, hipotest.ZstdZeros(n)), false, syscall.EFBIG},
		{"a bank of 15 MB by gzip", stream(11, 15<<20, hipotest.GzipZeros(15<<20)), true, nil},
		{"a bank of 15 MB by lz4", stream(9, 15<<20, hipotest.LZ4Zeros(15<<20)), true, nil},
		{"4e9 events", header(1, hipotest.RecordEvents, 4_000_000_000, hipotest.RecordIndex, 16_000_000_000&0xFFFFFFFF), false, nil},
		{"2^30 events, whose index has no length", header(0, hipotest.RecordEvents, 1<<30, hipotest.RecordIndex, 0), false, nil},
		{"6 million events of 16 bytes", body(4, 6_000_000*4, hipotest.ZstdZeros(24_000_000)), false, nil},
		{"a directory of 2^32-1 banks", file(hipotest.Record{Tag: 9, Events: one, Section: words(4, 0xFFFFFFFF)}).Bytes, false, nil},
		{"a directory of 900 MB", file(hipotest.Record{Tag: 10, Events: one, Section: words(16, n)}).Bytes, false, nil},
		{"a row of 8 GB", dictionary(0, "{A/9/9}{x/F#2147483647}"), true, nil},
		{"65,537 schemas", dictionary(1, banks...), true, nil}, // an entry of the root for each
		{"65,537 columns", dictionary(1, "{A/9/9}{"+strings.Repeat("x/B,", 65537)+"}"), true, nil},
		{"a dictionary of 20 million columns", dictionary(1, slices.Repeat([]string{"{A/9/9}{" + strings.Repeat("x/B,", 65000) + "}"}, 300)...), false, nil},
		{"a bank of 2^24-1 bytes", file(hipotest.Record{Tag: 1, Events: []hipotest.Event{event(hipotest.Bank(300, 31, make([]byte, 1<<24-8)))}}).Bytes, true, nil},
		{"a bank that says it has 2^24-1 bytes", file(hipotest.Record{Events: []hipotest.Event{event(hipotest.Structure{Group: 300, Item: 31, Length: 1<<24 - 1})}}).Bytes, false, nil},
		{"70,000 kinds of structures", file(hipotest.Record{Tag: 1, Events: many(70_000)}).Bytes, false, nil},
		{"a trailer of 600,000 records", trailer(), true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "bomb.hipo")
			if err := os.WriteFile(name, tt.bytes, 0o644); err != nil {
				t.Fatal(err)
			}
			var errs []error
			grown := int64(math.MaxInt64)
			for range 3 { // the least of them: garbage that was not collected yet is not what the file takes
				grown = min(grown, growth(t, func() {
					errs = readMuch(name, Options{MaxRecord: limit, Memory: 8 << 20, Threads: 2, Index: IndexLazy})
				}))
				if grown <= 64<<20 || raceDetector {
					break
				}
			}
			if grown > 64<<20 && !raceDetector {
				t.Errorf("%d MiB of memory for a file of %d bytes", grown>>20, len(tt.bytes))
			}
			if tt.fine != (len(errs) == 0) {
				t.Errorf("errors: %v", errs)
			}
			for _, err := range errs {
				var fe *hipo.FormatError
				if !errors.As(err, &fe) || tt.errno != nil && !errors.Is(err, tt.errno) {
					t.Errorf("%T: %v", err, err)
				}
			}
		})
	}
}

// readMuch asks for every column of a file, but those of very many banks, and
// gives the distinct errors.
func readMuch(name string, o Options) (errs []error) {
	ctx := context.Background()
	c, err := Open(ctx, []string{name}, o)
	if err != nil {
		return []error{err}
	}
	defer c.Close()
	note := func(err error) {
		if err != nil && !slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }) {
			errs = append(errs, err)
		}
	}
	banks := c.View().Banks()
	nodes, err := c.View().Nodes(ctx)
	note(err)
	p := make([]byte, 1<<20)
	banks = append(slices.Clip(banks), nodes...)
	for _, b := range banks[:min(len(banks), 1000)] {
		for _, col := range append([]*Column{b.Offsets(), b.Entry()}, b.Columns...) {
			if _, err := col.Open(ctx); err != nil {
				note(err)
				continue
			}
			for off := int64(0); ; {
				n, err := col.ReadAt(ctx, p, off)
				note(err)
				if n == 0 {
					break
				}
				off += int64(n)
			}
		}
	}
	return errs
}

// An index is input, too: what it claims is compared with what it has.
func TestIndexBombsAreRefused(t *testing.T) {
	name, want := large(t, 1)
	for _, tt := range []struct {
		what   string
		change func(*indexHead, *[]byte)
	}{
		{"a dictionary of 2^40 bytes", func(h *indexHead, _ *[]byte) { h.dictionaryLength = 1 << 40 }},
		{"records of 2^40 bytes", func(h *indexHead, _ *[]byte) { h.recordsLength = 1 << 40 }},
		{"a dictionary of zeros", func(h *indexHead, _ *[]byte) {
			h.dictionary, h.dictionaryLength = hipotest.ZstdZeros(900<<20), 900<<20
		}},
		{"records of zeros", func(h *indexHead, _ *[]byte) {
			h.records, h.recordsLength = hipotest.ZstdZeros(900<<20), 900<<20
		}},
		{"2^40 groups", func(h *indexHead, _ *[]byte) { h.groups = 1 << 40 }},
		{"2^60 rows in a run", func(h *indexHead, _ *[]byte) { h.tables[0].rows[0] = 1 << 60 }},
		{"blocks of 4 GB", func(h *indexHead, _ *[]byte) { h.tags[0].length, h.counts[0][0].length = 1<<32-1, 1<<32-1 }},
		{"blocks of nothing but zeros", func(_ *indexHead, b *[]byte) { *b = bytes.Repeat([]byte{0}, len(*b)) }},
	} {
		t.Run(tt.what, func(t *testing.T) {
			dir := t.TempDir()
			indexed(t, dir, name)
			changedIndex(t, dir, name, tt.change)
			grown := growth(t, func() {
				c := open(t, Options{IndexDir: dir, Memory: 16 << 20, Threads: 2}, name)
				for _, b := range c.View().Banks() {
					for _, col := range b.Columns {
						if got, err := serve(col); err != nil || string(got) != string(want[b.Name+"/"+col.Name]) {
							t.Errorf("%s/%s: %v, or other bytes", b.Name, col.Name, err)
						}
					}
				}
			})
			if grown > 64<<20 && !raceDetector {
				t.Errorf("%d MiB of memory", grown>>20)
			}
		})
	}
}
