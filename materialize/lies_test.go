package materialize

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/hipofs/hipofs/hipo/hipotest"
)

// changedIndex lets change make something else of the index of a file, whose
// checksums are right all the same.
func changedIndex(t *testing.T, dir, name string, change func(*indexHead, *[]byte)) {
	t.Helper()
	all, err := os.ReadFile(IndexPath(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	head, blocks, err := parseIndex(all)
	if err != nil {
		t.Fatal(err)
	}
	change(head, &blocks)
	if err := writeIndex(IndexPath(dir, name), head.encode(), blocks, 0o644, 1<<40); err != nil {
		t.Fatal(err)
	}
}

// setCounts makes tags and counts of the only group and bank of an index.
func setCounts(head *indexHead, blocks *[]byte, counts ...uint32) {
	var k packer
	tags, packed := k.pack(nil, make([]uint32, len(counts))), k.pack(nil, counts)
	head.tags[0] = block{length: uint32(len(tags)), sum: xxh3.Hash(tags)}
	head.counts[0][0] = block{length: uint32(len(packed)), sum: xxh3.Hash(packed)}
	*blocks = append(tags, packed...)
}

// serve gives what a mount serves of a column: an error, or the content.
func serve(c *Column) ([]byte, error) {
	ctx := context.Background()
	if _, err := c.Open(ctx); err != nil {
		return nil, err
	}
	size, err := c.Size(ctx)
	if err != nil {
		return nil, err
	}
	p := make([]byte, size)
	if _, err := c.ReadAt(ctx, p, 0); err != nil {
		return nil, err
	}
	return p[10+int(p[8])+int(p[9])<<8:], nil
}

var (
	twoInts  = hipotest.Schema{Name: "A::B", Group: 1, Item: 1, Columns: "aa/I,bb/I"}
	swapped  = hipotest.Schema{Name: "A::B", Group: 1, Item: 1, Columns: "bb/I,aa/I"}
	intPairs = []hipotest.Record{{Tag: 1, Events: []hipotest.Event{event(hipotest.Bank(1, 1, hipotest.Pack([]int32{1, 2}), hipotest.Pack([]int32{3, 4})))}}}
)

func TestIndexWithAnotherDictionaryIsNotBelieved(t *testing.T) {
	name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{twoInts}, Records: intPairs})
	other := build(t, "b.hipo", hipotest.File{Schemas: []hipotest.Schema{swapped}, Records: intPairs})
	dir := t.TempDir()
	indexed(t, dir, name, other)
	all, err := os.ReadFile(IndexPath(dir, other))
	if err != nil {
		t.Fatal(err)
	}
	theirs, _, err := parseIndex(all)
	if err != nil {
		t.Fatal(err)
	}
	changedIndex(t, dir, name, func(head *indexHead, _ *[]byte) {
		head.header, head.dictionary, head.dictionaryLength = theirs.header, theirs.dictionary, theirs.dictionaryLength
	})
	if first := bank(t, open(t, Options{IndexDir: dir}, name).View(), "A::B").Columns[0].Name; first != "aa" {
		t.Errorf("the first column is called %s, in the file aa", first)
	}
}

// A file of the same size and time, but with another dictionary, is not read by
// the dictionary of the index.
func TestReplacedFileIsReadByItsOwnDictionary(t *testing.T) {
	f := hipotest.File{Schemas: []hipotest.Schema{twoInts}, Records: intPairs}
	name, dir := build(t, "a.hipo", f), t.TempDir()
	indexed(t, dir, name)
	st, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	f.Schemas[0] = swapped
	err = os.WriteFile(name, f.Bytes(), 0o644)
	if err := errors.Join(err, os.Chtimes(name, st.ModTime(), st.ModTime())); err != nil {
		t.Fatal(err)
	}
	if first := bank(t, open(t, Options{IndexDir: dir}, name).View(), "A::B").Columns[0].Name; first != "bb" {
		t.Errorf("the first column is called %s, in the file bb", first)
	}
}

// Once a column has shown that the counts of the index are wrong, it is not
// served beside the offsets that they made.
func TestColumnIsNeverServedBesideOffsetsThatLie(t *testing.T) {
	name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{particle}, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 3)), event(particles(3, 1))}},
	}})
	dir := t.TempDir()
	indexed(t, dir, name)
	changedIndex(t, dir, name, func(head *indexHead, blocks *[]byte) { setCounts(head, blocks, 1, 3) })
	c := open(t, Options{IndexDir: dir}, name)
	b := bank(t, c.View(), particle.Name)
	equal(t, "offsets by the index", ints(t, b.Offsets()), []int64{0, 1, 4})
	for range 3 {
		for _, col := range []*Column{b.Columns[0], b.Columns[1], b.Offsets(), b.Entry()} {
			if col == b.Offsets() && c.sources[0].index.Load() != nil {
				continue // nobody can know yet
			}
			if _, err := serve(col); !errors.Is(err, ErrChanged) {
				t.Errorf("%s: %v, want ErrChanged", col.Name, err)
			}
		}
	}
	again := bank(t, open(t, Options{IndexDir: dir}, name).View(), particle.Name)
	equal(t, "offsets in the next mount", ints(t, again.Offsets()), []int64{0, 3, 4})
}

// An index that says of one record that a bank has no rows in it, and counts them
// in its entries all the same, makes nobody read on past the gap.
func TestIndexThatContradictsItselfServesNothing(t *testing.T) {
	f := hipotest.File{Schemas: []hipotest.Schema{particle}}
	for i, tag := range []int{1, 10} { // of different layouts, so of two runs
		f.Records = append(f.Records, hipotest.Record{Tag: tag, Events: []hipotest.Event{event(particles(10*i, 3)), event(particles(10*i+3, 1))}})
	}
	name, dir := build(t, "a.hipo", f), t.TempDir()
	for run := range 2 {
		indexed(t, dir, name)
		changedIndex(t, dir, name, func(head *indexHead, _ *[]byte) { head.tables[0].rows[run] = 0 })
		c := open(t, Options{IndexDir: dir}, name)
		if c.sources[0].index.Load() == nil {
			t.Fatal("the index is not used")
		}
		b := bank(t, c.View(), particle.Name)
		for range 2 {
			for _, col := range append([]*Column{b.Offsets(), b.Entry()}, b.Columns...) {
				if got, err := serve(col); !errors.Is(err, ErrChanged) {
					t.Errorf("without run %d: %s is %x, %v, want ErrChanged", run, col.Name, got, err)
				}
			}
		}
		c.Close()
	}
}

func TestIndexThatLeavesOutARecordIsNotBelieved(t *testing.T) {
	f := hipotest.File{Schemas: []hipotest.Schema{particle}}
	for i := range 3 {
		f.Records = append(f.Records, hipotest.Record{Tag: 1, Events: []hipotest.Event{event(particles(10*i, 3)), event(particles(10*i+3, 1))}})
	}
	for _, trailer := range []hipotest.Trailer{hipotest.Indexed, hipotest.NoTrailer, hipotest.Unreferenced} {
		f.Trailer = trailer
		data := f.Bytes()
		for drop := range 3 {
			name, dir := build(t, "a.hipo", f), t.TempDir()
			records := open(t, Options{}, name).View().Records()
			indexed(t, dir, name)
			changedIndex(t, dir, name, func(head *indexHead, blocks *[]byte) {
				rows, err := decompress(head.records, head.recordsLength)
				if err != nil {
					t.Fatal(err)
				}
				rows = slices.Delete(rows, len(rows)/3*drop, len(rows)/3*(drop+1))
				head.records, head.recordsLength = compress(rows), int64(len(rows))
				head.sums = slices.Delete(head.sums, drop, drop+1)
				head.tables[0].rows, head.tables[0].filled = []int64{8}, 4
				setCounts(head, blocks, 3, 1, 3, 1)
				if drop == 2 {
					head.tailSum = xxh3.Hash(data[records[1].Byte+records[1].Length:])
				}
			})
			c := open(t, Options{IndexDir: dir}, name)
			if n := c.View().Entries(); n != 6 {
				t.Errorf("trailer %d, without record %d: %d entries, want 6", trailer, drop, n)
			}
		}
	}
}

// A mount that ends writes what it has learned to the index, whose blocks then
// lie elsewhere. Others that have the index go on with it.
func TestMountsShareAnIndexThatOneOfThemUpdates(t *testing.T) {
	f := hipotest.File{Schemas: []hipotest.Schema{particle, track}}
	for i := range 3 {
		f.Records = append(f.Records, hipotest.Record{Tag: 10, Events: []hipotest.Event{event(particles(10*i, 3)), event(particles(10*i+3, 1), tracks(0))}})
	}
	name, dir := build(t, "a.hipo", f), t.TempDir()
	first := open(t, Options{IndexDir: dir}, name)
	if _, err := bank(t, first.View(), particle.Name).Rows(context.Background()); err != nil {
		t.Fatal(err)
	}
	first.Close()
	stays := open(t, Options{IndexDir: dir}, name)
	for _, bankName := range []string{particle.Name, track.Name} { // each learns what the other does not
		leaves := open(t, Options{IndexDir: dir}, name)
		for _, col := range bank(t, leaves.View(), bankName).Columns {
			readAll(t, col)
		}
		leaves.Close()
	}
	equal(t, "offsets", ints(t, bank(t, stays.View(), particle.Name).Offsets()), []int64{0, 3, 4, 7, 8, 11, 12})
	if stays.sources[0].index.Load() == nil {
		t.Error("the index was dropped")
	}
	all, err := os.ReadFile(IndexPath(dir, name))
	if err != nil {
		t.Fatal("the index was removed:", err)
	}
	head, _, err := parseIndex(all)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range head.tables {
		equal(t, "decoded columns of "+x.name, x.decoded, []int64{0, 1})
	}
}

// What an index says of a structure that no dictionary declares is what the
// records say, or none of it is served: neither under another type of the same
// size nor with other columns.
func TestNodeIsNotReadByTheFormatOfAnIndexThatLies(t *testing.T) {
	name := build(t, "a.hipo", hipotest.File{Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(hipotest.Composite(7, 5, "bi", hipotest.Pack(int8(1), int32(2))), hipotest.Node(8, 3, []int32{1, -1}))}},
	}})
	dir := t.TempDir()
	for _, tt := range []struct {
		format string
		prim   uint8
	}{{"bf", 3}, {"b4b", 3}, {"5b", 3}, {"bi", 4}} {
		indexed(t, dir, name)
		changedIndex(t, dir, name, func(head *indexHead, _ *[]byte) {
			for i := range head.tables {
				if x := &head.tables[i]; x.format != "" {
					x.format = tt.format
				} else {
					x.prim = tt.prim
				}
			}
		})
		c := open(t, Options{IndexDir: dir}, name)
		nodes, err := c.View().Nodes(context.Background())
		if err != nil || c.sources[0].index.Load() == nil {
			t.Fatalf("%+v: the index is not used: %v", tt, err)
		}
		right := map[string]string{"f0B": "\x01", "f1I": "\x02\x00\x00\x00", "valueI": "\x01\x00\x00\x00\xff\xff\xff\xff"}
		refused := 0
		for _, b := range nodes {
			for _, col := range b.Columns {
				got, err := serve(col)
				if errors.Is(err, ErrChanged) {
					refused++
				} else if err != nil || string(got) != right[col.Name+col.Type] {
					t.Errorf("%+v: %s of type %s is %q, %v", tt, col.Name, col.Type, got, err)
				}
			}
		}
		if refused == 0 {
			t.Errorf("%+v: nobody noticed", tt)
		}
		c.Close()
	}
}

// Whether two names of an id are in conflict depends on the banks that are shown.
func TestConflictIsOfAMountAndNotOfTheFile(t *testing.T) {
	name := build(t, "a.hipo", hipotest.File{
		Schemas: []hipotest.Schema{{Name: "A", Group: 1, Item: 1, Columns: "a/I"}, {Name: "B", Group: 1, Item: 1, Columns: "a/S,b/S,c/S,d/S"}},
		Records: []hipotest.Record{{Tag: 1, Events: []hipotest.Event{event(hipotest.Bank(1, 1, hipotest.Pack([]int32{1, 2})))}}},
	})
	dir := t.TempDir()
	indexed(t, dir, name)
	if _, err := serve(bank(t, open(t, Options{IndexDir: dir}, name).View(), "A").Columns[0]); err == nil {
		t.Error("A is served beside B")
	}
	got, err := serve(bank(t, open(t, Options{IndexDir: dir, Banks: []string{"A"}}, name).View(), "A").Columns[0])
	if err != nil || !bytes.Equal(got, hipotest.Pack([]int32{1, 2})) {
		t.Errorf("A alone: %v, %v", got, err)
	}
}

// The streams of a record stored by column are those of the id's last schema. A
// bank that another schema makes of them is an error, or right.
func TestNameOfAnIDWithOtherColumnsIsNotCutFromItsStreams(t *testing.T) {
	shorts := hipotest.Schema{Name: "A", Group: 1, Item: 1, Columns: "a/S,b/S,c/S,d/S,e/S,f/S"}
	words := hipotest.Schema{Name: "B", Group: 1, Item: 1, Columns: "a/I,b/I,c/I"}
	events := []hipotest.Event{event(hipotest.Bank(1, 1, hipotest.Pack([]int32{1, 2}), hipotest.Pack([]int32{3, 4}), hipotest.Pack([]int32{5, 6})))}
	for _, tag := range []int{1, 9, 10} {
		name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{shorts, words}, Records: []hipotest.Record{{Tag: tag, Events: events}}})
		for _, o := range []Options{{Banks: []string{"A"}}, {Banks: []string{"A"}, IndexDir: t.TempDir()}} {
			for k, col := range bank(t, open(t, o, name).View(), "A").Columns {
				got, err := serve(col)
				if (err != nil) != (tag == 10) || err == nil && !bytes.Equal(got, hipotest.Pack([]int16{int16(k + 1), 0})) {
					t.Errorf("tag %d: %s is %v, %v", tag, col.Name, got, err)
				}
			}
		}
	}
}

func TestIndexBesideNeedsNoFolder(t *testing.T) {
	name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{twoInts}, Records: intPairs})
	if err := os.Chmod(name, 0o640); err != nil {
		t.Fatal(err)
	}
	err := Index(context.Background(), []string{name}, IndexOptions{Beside: true}, func(r Indexed) {
		if r.Err != nil {
			t.Error(r.Err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(name + IndexSuffix)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o640 {
		t.Errorf("the index of a file of mode 0640 has %v", st.Mode())
	}
}

// A head claims many banks and many groups, and has the bytes of few.
func TestHeadOfManyBlocksIsRefusedBeforeItTakesMemory(t *testing.T) {
	const tables, groups = 3000, 100_000
	var w headWriter
	w.num(5)
	for range 6 {
		w.fixed(0)
	}
	for range 7 {
		w.num(0) // header, dictionary, records, their lengths, sums, layouts
	}
	w.num(groups)
	w.num(tables)
	w.b = append(w.b, make([]byte, 9*tables+groups)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := parseHead(w.b, 0, 0); err == nil {
		t.Error("it is accepted")
	}
	runtime.ReadMemStats(&after)
	if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 8 {
		t.Errorf("it takes %d MiB", mib)
	}
}

// Nothing is written beside the data unasked, also where this user may.
func TestIndexBesideIsNeitherUpdatedNorRemoved(t *testing.T) {
	name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{particle}, Records: []hipotest.Record{
		{Tag: 10, Events: []hipotest.Event{event(particles(0, 3)), event(particles(3, 1))}},
	}})
	if err := Index(context.Background(), []string{name}, IndexOptions{Beside: true}, func(Indexed) {}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+IndexSuffix, IndexPath(filepath.Dir(name), name)); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"right", "wrong"} {
		changedIndex(t, filepath.Dir(name), name, func(head *indexHead, blocks *[]byte) {
			if what == "wrong" {
				setCounts(head, blocks, 1, 3)
			}
		})
		before, err := os.ReadFile(IndexPath(filepath.Dir(name), name))
		if err := errors.Join(err, os.WriteFile(name+IndexSuffix, before, 0o644)); err != nil {
			t.Fatal(err)
		}
		c := open(t, Options{IndexDir: t.TempDir()}, name)
		if c.sources[0].index.Load() == nil {
			t.Fatalf("the %s index is not used", what)
		}
		if _, err := serve(bank(t, c.View(), particle.Name).Columns[0]); (err != nil) != (what == "wrong") {
			t.Errorf("by the %s index: %v", what, err)
		}
		c.Close()
		if after, err := os.ReadFile(name + IndexSuffix); err != nil || !bytes.Equal(before, after) {
			t.Errorf("the %s index is not what it was: %v", what, err)
		}
	}
}

// One that is damaged beside the data is met once: whoever has met it has one of
// his own from then on.
func TestMountMakesItsOwnIndexWhereTheOneBesideIsDamaged(t *testing.T) {
	name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{particle, track}, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 3)), event(), event(particles(3, 1), tracks(0))}},
	}})
	want := content(t, open(t, Options{}, name))
	if err := Index(context.Background(), []string{name}, IndexOptions{Beside: true}, func(Indexed) {}); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(name + IndexSuffix)
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(good)
	bad[len(bad)-3] ^= 1
	if err := os.WriteFile(name+IndexSuffix, bad, 0o644); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "made when it is needed")
	var log bytes.Buffer
	mount := func(what, by string, warnings int) {
		t.Helper()
		log.Reset()
		c := open(t, Options{IndexDir: dir, Index: IndexLazy, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))}, name)
		path := ""
		if idx := c.sources[0].index.Load(); idx != nil {
			path = idx.path
		}
		equal(t, what+": opened by", path, by)
		equal(t, what+": content", content(t, c), want)
		c.Close()
		if n := strings.Count(log.String(), "\n"); n != warnings {
			t.Errorf("%s: %d warnings, want %d: %s", what, n, warnings, &log)
		}
	}
	own := IndexPath(dir, name)
	mount("the first", name+IndexSuffix, 1)
	mount("the second", "", 0)
	mount("the third", own, 0)
	if now, err := os.ReadFile(name + IndexSuffix); err != nil || !bytes.Equal(now, bad) {
		t.Errorf("the index beside the data is not what it was: %v", err)
	}

	// Nobody is told each time of one that he does not need.
	if err := errors.Join(os.WriteFile(own, good[:50], 0o600), os.WriteFile(name+IndexSuffix, good, 0o644)); err != nil {
		t.Fatal(err)
	}
	mount("the one beside is good, the own one is not", name+IndexSuffix, 0)
}

// A record of a few kilobytes must not make the pass take gigabytes.
func TestRecordOfManyKindsAndEventsIsBounded(t *testing.T) {
	var many hipotest.Event
	for i := range 4000 {
		many.Structures = append(many.Structures, hipotest.Structure{Group: uint16(1 + i), Item: 1, Type: 1, Data: []byte("x")})
	}
	name := build(t, "a.hipo", hipotest.File{Records: []hipotest.Record{
		{Tag: 1, Events: append([]hipotest.Event{many}, make([]hipotest.Event, 30_000)...)},
	}})
	c := open(t, Options{}, name)
	nodes, err := c.View().Nodes(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	served := 0
	for _, b := range nodes {
		got, err := serve(b.Columns[0])
		if err == nil && string(got) == "x" {
			served++
		} else if err == nil {
			t.Fatalf("%s: %q", b.Name, got)
		}
	}
	if served == 0 || served > 1000 {
		t.Errorf("%d kinds are counted in 30,001 events of 600 kB", served)
	}
}
