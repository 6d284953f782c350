package materialize

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hipofs/hipofs/hipo/hipotest"
)

// modelEntry is one entry as a test has made it.
type modelEntry struct {
	number    int64 // in the chain
	file      string
	tag       uint32
	recordTag int64
	particles []int32 // pids
	pindex    []int16 // of tracks
	node      []int32
}

// modelChain is a chain of files and what is in it.
type modelChain struct {
	names   []string
	entries []modelEntry
	records int
}

// drawChain makes files in dir. Records are of all codecs and layouts, small, so
// that runs have several, and some larger than a run.
func drawChain(t *rapid.T, dir string) (m modelChain) {
	schemas := []hipotest.Schema{particle, track}
	pid := int32(0)
	for i := range rapid.IntRange(1, 3).Draw(t, "files") {
		f := hipotest.File{Schemas: schemas}
		name := filepath.Join(dir, fmt.Sprintf("run%d.hipo", i))
		codec := rapid.IntRange(0, 14).Draw(t, "codec")
		for range rapid.IntRange(0, 6).Draw(t, "records") {
			r := hipotest.Record{Tag: codec, Word1: uint64(rapid.IntRange(0, 2).Draw(t, "record tag"))}
			if rapid.IntRange(0, 5).Draw(t, "another codec") == 0 {
				r.Tag = rapid.IntRange(0, 14).Draw(t, "codec of the record")
			}
			most := 5
			if rapid.IntRange(0, 20).Draw(t, "large") == 0 {
				most = 200_000
			}
			for range rapid.IntRange(0, 7).Draw(t, "events") {
				e := modelEntry{number: int64(len(m.entries)), file: filepath.Base(name), recordTag: int64(r.Word1), tag: uint32(rapid.IntRange(0, 3).Draw(t, "tag"))}
				n := max(0, rapid.IntRange(-2, 4).Draw(t, "particles"))
				if n == 4 {
					n = most
				}
				for range n {
					e.particles = append(e.particles, pid)
					pid++
				}
				for range max(0, rapid.IntRange(-3, 3).Draw(t, "tracks")) {
					e.pindex = append(e.pindex, int16(rapid.IntRange(-1, 5).Draw(t, "pindex")))
				}
				for i := range max(0, rapid.IntRange(-4, 2).Draw(t, "node")) {
					e.node = append(e.node, pid+int32(i))
				}
				m.entries = append(m.entries, e)
				r.Events = append(r.Events, e.event())
			}
			m.records++
			f.Records = append(f.Records, r)
		}
		if err := os.WriteFile(name, f.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		m.names = append(m.names, name)
	}
	return m
}

func (e modelEntry) event() hipotest.Event {
	out := hipotest.Event{Tag: e.tag}
	if n := len(e.particles); n > 0 {
		out.Structures = append(out.Structures, particles(int(e.particles[0]), n))
	}
	if e.pindex != nil {
		out.Structures = append(out.Structures, tracks(e.pindex...))
	}
	if e.node != nil {
		out.Structures = append(out.Structures, hipotest.Node(7, 3, e.node))
	}
	return out
}

// drawView narrows a view and the list of its entries in the same way, some times.
func drawView(t *rapid.T, v *View, entries []modelEntry) (*View, []modelEntry, string) {
	var path []string
	for range rapid.IntRange(1, 4).Draw(t, "nested") {
		n := int64(len(entries))
		switch rapid.IntRange(0, 6).Draw(t, "step") {
		case 0, 1:
			from := rapid.Int64Range(0, n+2).Draw(t, "from")
			to := rapid.Int64Range(from, n+4).Draw(t, "to")
			v, entries = v.Slice(Slice{from, to}), entries[min(from, n):min(to, n)]
			path = append(path, fmt.Sprintf("%d:%d", from, to))
		case 2:
			at := rapid.Int64Range(0, max(0, n-1)).Draw(t, "event")
			v, entries = v.Slice(Slice{at, at + 1}), entries[min(at, n):min(at+1, n)]
			path = append(path, fmt.Sprint(at))
		default:
			expr := rapid.SampledFrom([]string{
				"require=REC::Particle", "require=REC::Track", "require=REC::Particle+REC::Track", "tag=1+2", "tag=3", "record_tag=1", "record_tag=0+2",
				"file=run0.hipo", "file=run[12]*", "tag=0+1,require=REC::Particle,record_tag=1+2", "tag=1,tag=2", "tag=7", "tag_any=1", "tag_any=4+2,tag=3", "file=none",
			}).Draw(t, "where")
			w, err := ParseWhere(expr)
			if err != nil {
				t.Fatal(err)
			}
			if v, err = v.Where(w); err != nil {
				t.Fatal(err)
			}
			entries = slices.DeleteFunc(slices.Clone(entries), func(e modelEntry) bool { return !e.passes(expr) })
			path = append(path, expr)
		}
	}
	return v, entries, strings.Join(path, "/")
}

// passes says by the letter of an expression whether the entry is kept.
func (e modelEntry) passes(expr string) bool {
	for _, condition := range strings.Split(expr, ",") {
		word, values, _ := strings.Cut(condition, "=")
		any, all := false, true
		for _, value := range strings.Split(values, "+") {
			var holds bool
			switch word {
			case "require":
				holds = value == "REC::Particle" && len(e.particles) > 0 || value == "REC::Track" && len(e.pindex) > 0
			case "tag":
				holds = value == fmt.Sprint(e.tag)
			case "tag_any":
				bits, _ := strconv.ParseUint(value, 10, 32)
				holds = e.tag&uint32(bits) != 0
			case "record_tag":
				holds = value == fmt.Sprint(e.recordTag)
			case "file":
				holds, _ = filepath.Match(value, e.file)
			}
			any, all = any || holds, all && holds
		}
		if word == "require" && !all || word != "require" && !any {
			return false
		}
	}
	return true
}

// arrays are what the view of these entries must show, by path.
func arrays(entries []modelEntry) map[string][]byte {
	var tags []uint32
	var recordTags, numbers, particleEntry, trackEntry, pointer []int64
	particleOffsets, trackOffsets, nodeOffsets := []int64{0}, []int64{0}, []int64{0}
	var pid, node []int32
	var px []float32
	var pindex []int16
	for i, e := range entries {
		tags, recordTags, numbers = append(tags, e.tag), append(recordTags, e.recordTag), append(numbers, e.number)
		for _, p := range e.pindex {
			trackEntry, pindex = append(trackEntry, int64(i)), append(pindex, p)
			if p >= 0 && int(p) < len(e.particles) {
				pointer = append(pointer, int64(len(pid))+int64(p))
			} else {
				pointer = append(pointer, -1)
			}
		}
		for _, p := range e.particles {
			particleEntry, pid, px = append(particleEntry, int64(i)), append(pid, p), append(px, float32(p)/4)
		}
		node = append(node, e.node...)
		particleOffsets = append(particleOffsets, int64(len(pid)))
		trackOffsets = append(trackOffsets, int64(len(pindex)))
		nodeOffsets = append(nodeOffsets, int64(len(node)))
	}
	want := map[string][]byte{
		"event_tags": hipotest.Pack(tags), "record_tags": hipotest.Pack(recordTags), "entries": hipotest.Pack(numbers),
		"REC::Particle/offsets": hipotest.Pack(particleOffsets), "REC::Particle/entry": hipotest.Pack(particleEntry),
		"REC::Particle/pid": hipotest.Pack(pid), "REC::Particle/px": hipotest.Pack(px),
		"REC::Track/offsets": hipotest.Pack(trackOffsets), "REC::Track/entry": hipotest.Pack(trackEntry),
		"REC::Track/pindex": hipotest.Pack(pindex), "REC::Track/REC::Particle": hipotest.Pack(pointer),
	}
	if len(node) > 0 {
		want["7.3/offsets"], want["7.3/value"] = hipotest.Pack(nodeOffsets), hipotest.Pack(node)
	}
	return want
}

// readView reads every column of a view whose bytes a test knows.
func readView(t *rapid.T, v *View) map[string][]byte {
	got := map[string][]byte{}
	add := func(path string, c *Column) {
		b, err := contentOf(c, rapid.IntRange(1, 5000).Draw(t, "piece"))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		got[path] = b
	}
	add("event_tags", v.EventTags())
	add("record_tags", v.RecordTags())
	add("entries", v.EntryNumbers())
	nodes, err := v.Nodes(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range append(v.Banks(), nodes...) {
		for _, c := range append([]*Column{b.Offsets(), b.Entry(), b.Pointer}, b.Columns...) {
			path := ""
			if c != nil {
				path = b.Name + "/" + c.Name
			}
			if path != "" && path != "REC::Track/chi2" && path != "7.3/entry" {
				add(path, c)
			}
		}
	}
	addArrow(t, got, v.Banks())
	return got
}

// contentOf is the content of a column, read in pieces of that size at first.
func contentOf(c *Column, piece int) ([]byte, error) {
	b, err := bytesOf(c, piece)
	if err != nil {
		return nil, err
	}
	return b[10+int(b[8])+int(b[9])<<8:], nil
}

// What a view shows is what masking and slicing the whole arrays gives, whatever
// is nested in what, and whether the files are counted before, after or not.
func TestViewsAreSlicesAndMasksOfTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "views")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		m := drawChain(t, dir)
		o := Options{Index: IndexLazy, Memory: rapid.SampledFrom([]int64{0, 1 << 20, 8 << 20}).Draw(t, "memory")}
		if rapid.Bool().Draw(t, "index") {
			o.IndexDir = filepath.Join(dir, "index")
		}
		if rapid.Bool().Draw(t, "indexed before") {
			before, err := Open(context.Background(), m.names, o)
			if err != nil {
				t.Fatal(err)
			}
			if err := before.View().wait(context.Background(), nil); err != nil {
				t.Fatal(err)
			}
			before.Close()
		}
		c, err := Open(context.Background(), m.names, o)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if rapid.Bool().Draw(t, "counted before") {
			if err := c.View().wait(context.Background(), nil); err != nil {
				t.Fatal(err)
			}
		}
		for range rapid.IntRange(1, 4).Draw(t, "views") {
			v, entries := c.View(), m.entries
			if i := rapid.IntRange(-2, len(m.names)-1).Draw(t, "file"); i >= 0 {
				v = v.File(i)
				entries = slices.DeleteFunc(slices.Clone(entries), func(e modelEntry) bool { return e.file != fmt.Sprintf("run%d.hipo", i) })
			}
			v, entries, path := drawView(t, v, entries)
			got, want := readView(t, v), withArrow(arrays(entries))
			for name, b := range want {
				if string(got[name]) != string(b) {
					t.Fatalf("%s: %s has % x, want % x", path, name, head(got[name]), head(b))
				}
			}
			for name := range got {
				if _, ok := want[name]; !ok {
					t.Fatalf("%s: there is %s", path, name)
				}
			}
			n, err := v.Count(context.Background())
			if err != nil || n != int64(len(entries)) || v.Entries() != n {
				t.Fatalf("%s: %d entries, want %d (%v)", path, n, len(entries), err)
			}
			var inRecords int
			for _, r := range v.Records() {
				if r.FirstEntry != int64(inRecords) {
					t.Fatalf("%s: record %d begins at entry %d, want %d", path, r.Record, r.FirstEntry, inRecords)
				}
				inRecords += r.Events
			}
			if inRecords != len(entries) {
				t.Fatalf("%s: records of %d entries, want %d", path, inRecords, len(entries))
			}
		}
	})
}

func head(b []byte) []byte { return b[:min(len(b), 64)] }

// many is a chain of one file of n records of five events each: each with three
// particles, every second with a track, tagged by its place in the record.
func many(t *testing.T, n, codec int) *Chain {
	t.Helper()
	f := hipotest.File{Schemas: []hipotest.Schema{particle, track}}
	pid := 0
	for i := range n {
		r := hipotest.Record{Tag: codec, Word1: uint64(i % 10)}
		for j := range 5 {
			e := hipotest.Event{Tag: uint32(j), Structures: []hipotest.Structure{particles(pid, 3)}}
			if i%50 == 0 {
				e.Structures = append(e.Structures, tracks(0))
			}
			r.Events = append(r.Events, e)
			pid += 3
		}
		f.Records = append(f.Records, r)
	}
	return open(t, Options{Index: IndexLazy}, build(t, "many.hipo", f))
}

func TestViewsDecodeOnlyRecordsWithTheirEntries(t *testing.T) {
	for _, codec := range []int{1, 7, 10} {
		for _, tt := range []struct {
			view    func(v *View) *View
			records int64 // that hold its entries
		}{
			{func(v *View) *View { return v.Slice(Slice{1003, 1050}) }, 10},
			{func(v *View) *View { return v.Slice(Slice{17, 18}) }, 1},
			{func(v *View) *View { return where(t, v, "record_tag=3") }, 100},
			{func(v *View) *View { return where(t, v, "record_tag=3").Slice(Slice{10, 15}) }, 1},
			{func(v *View) *View { return where(t, v.Slice(Slice{0, 100}), "tag=1") }, 20},
			{func(v *View) *View { return where(t, v.Slice(Slice{0, 100}), "record_tag=0,tag=1") }, 2},
			{func(v *View) *View { return v.Slice(Slice{5000, 6000}) }, 0},
		} {
			c := many(t, 1000, codec)
			v := tt.view(c.View())
			readAll(t, v.EventTags())
			for _, b := range v.Banks() {
				readAll(t, b.Offsets())
				readAll(t, b.Columns[0])
			}
			stats := c.Stats()
			if codec == 1 && stats.RecordsDecoded != tt.records {
				t.Errorf("%d records decoded, its entries are in %d", stats.RecordsDecoded, tt.records)
			}
			// Of split records, the directory is read for rows and again for each column.
			if codec != 1 && stats.RecordsDecoded > 3*tt.records {
				t.Errorf("codec %d: %d directories read, its entries are in %d records", codec, stats.RecordsDecoded, tt.records)
			}
		}
	}
}

func where(t *testing.T, v *View, expr string) *View {
	t.Helper()
	w, err := ParseWhere(expr)
	if err == nil {
		v, err = v.Where(w)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestOneEventAfterTheOtherDecodesEachRecordOnce(t *testing.T) {
	c := many(t, 100, 1)
	for e := range int64(100) {
		v := c.View().Slice(Slice{e, e + 1})
		b := bank(t, v, "REC::Particle")
		pid, _ := readAll(t, b.Columns[0])
		if want := uint32(3 * e); binary.LittleEndian.Uint32(pid) != want {
			t.Fatalf("entry %d begins with %d, want %d", e, binary.LittleEndian.Uint32(pid), want)
		}
	}
	if n := c.Stats().RecordsDecoded; n != 20 {
		t.Errorf("%d records decoded for entries of 20", n)
	}
}

func TestIndexDecidesWithoutADecode(t *testing.T) {
	f := hipotest.File{Schemas: []hipotest.Schema{particle, track}, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 2)), event(), event(particles(2, 1), tracks(0))}},
		{Tag: 1, Events: []hipotest.Event{event(), {Tag: 9}}},
	}}
	name := build(t, "a.hipo", f)
	o := Options{Index: IndexLazy, IndexDir: t.TempDir()}
	first := open(t, o, name)
	readAll(t, bank(t, first.View(), "REC::Particle").Offsets())
	c := open(t, o, name)
	for expr, want := range map[string]string{"require=REC::Particle": "[0 2]", "tag=9": "[4]", "require=REC::Track,tag=0": "[2]"} {
		v := where(t, c.View(), expr)
		equal(t, expr, ints(t, v.EntryNumbers()), want)
		readAll(t, bank(t, v, "REC::Track").Offsets())
	}
	if n := c.Stats().RecordsDecoded; n != 0 {
		t.Errorf("%d records decoded", n)
	}
}

func TestDamageElsewhereIsNoneOfAView(t *testing.T) {
	f := hipotest.File{Schemas: []hipotest.Schema{particle}, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 2)), event()}},
		{Tag: 1, Events: []hipotest.Event{event(particles(2, 1))}, Body: func(b []byte) []byte { clear(b); return b }},
		{Tag: 1, Events: []hipotest.Event{event(particles(3, 1))}},
	}}
	c := open(t, Options{Index: IndexLazy}, build(t, "a.hipo", f))
	for _, r := range []Slice{{0, 2}, {3, 4}} {
		readAll(t, bank(t, c.View().Slice(r), "REC::Particle").Columns[0])
	}
	ctx := context.Background()
	for _, r := range []Slice{{0, 3}, {2, 3}} {
		if _, err := bank(t, c.View().Slice(r), "REC::Particle").Columns[0].Size(ctx); err == nil || !strings.Contains(err.Error(), "record 1 ") {
			t.Errorf("entries %d to %d: %v, want an error about record 1", r.From, r.To, err)
		}
	}
	if _, err := bank(t, c.View(), "REC::Particle").Columns[0].Open(ctx); err == nil {
		t.Error("the whole opens, though a record is damaged")
	}
	readAll(t, bank(t, c.View().Slice(Slice{0, 2}), "REC::Particle").Columns[0])
}

func TestUnknownBankIsAWrongCondition(t *testing.T) {
	c := many(t, 1, 1)
	w, err := ParseWhere("require=REC::Nothing")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.View().Where(w); err == nil || !strings.Contains(err.Error(), "no bank is called REC::Nothing") {
		t.Errorf("%v, want an error that names the bank", err)
	}
}
