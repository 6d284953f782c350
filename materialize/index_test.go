package materialize

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/hipofs/hipofs/hipo/hipotest"
)

// indexed opens a chain whose index is then there, and closes it.
func indexed(t *testing.T, dir string, names ...string) {
	t.Helper()
	err := Index(context.Background(), names, IndexOptions{Dir: dir}, func(r Indexed) {
		if r.Err != nil || r.Path != IndexPath(dir, r.File) {
			t.Errorf("index of %s: %+v", r.File, r)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEveryColumnHasTheGoldenChecksumsWithAnIndex(t *testing.T) {
	for file, want := range golden(t) {
		if strings.Contains(file, "?") {
			continue
		}
		t.Run(file, func(t *testing.T) {
			name, dir := dataFiles(t, file)[0], t.TempDir()
			for _, step := range []string{"the pass makes the index", "the index is there", "and has been updated"} {
				c := open(t, Options{IndexDir: dir, Index: IndexLazy}, name)
				made := c.sources[0].index.Load() != nil
				if made != (step != "the pass makes the index") {
					t.Errorf("%s: opened by an index = %v", step, made)
				}
				if n := c.Stats().BytesRead; made && n != 0 {
					t.Errorf("%s: opening read %d bytes of records", step, n)
				}
				got := describe(t, c.View())
				for _, row := range want {
					if !strings.HasPrefix(row, "@event") && !got[row] {
						t.Errorf("%s: not served: %s", step, row)
					}
				}
				if len(got) != len(want) {
					t.Errorf("%s: %d columns, want %d", step, len(got), len(want))
				}
				if e := c.Errors(); len(e) > 0 {
					t.Errorf("%s: %v", step, e)
				}
				c.Close()
			}
		})
	}
}

func TestMountWithIndexDecodesNothingForSizesAndOffsets(t *testing.T) {
	for _, tag := range []int{1, 9, 10} {
		name, _ := large(t, tag)
		dir := t.TempDir()
		indexed(t, dir, name)
		c := open(t, Options{IndexDir: dir}, name)
		for _, b := range c.View().Banks() {
			ints(t, b.Offsets())
			ints(t, b.Entry())
			if _, err := b.Columns[0].Size(context.Background()); err != nil {
				t.Error(err)
			}
		}
		readAll(t, c.View().EventTags())
		if s := c.Stats(); s.RecordsDecoded != 0 || s.BytesRead != 0 {
			t.Errorf("tag %d: %d records decoded, %d bytes read", tag, s.RecordsDecoded, s.BytesRead)
		}
	}
}

func TestSecondIndexingDoesOnlyWhatIsMissing(t *testing.T) {
	a, _ := large(t, 1)
	b, _ := large(t, 10)
	dir := t.TempDir()
	fresh := func() map[string]bool {
		got := map[string]bool{}
		err := Index(context.Background(), []string{a, b}, IndexOptions{Dir: dir}, func(r Indexed) {
			if r.Err != nil {
				t.Error(r.Err)
			}
			got[r.File] = r.Fresh
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	equal(t, "first time", fresh(), map[string]bool{a: false, b: false})
	equal(t, "second time", fresh(), map[string]bool{a: true, b: true})
	waitForTick(t, a)
	if err := os.Chmod(a, 0o600); err != nil {
		t.Fatal(err)
	}
	equal(t, "after a change of one", fresh(), map[string]bool{a: false, b: true})
}

// content is everything a chain serves, by bank and column.
func content(t *testing.T, c *Chain) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, b := range c.View().Banks() {
		for _, col := range append([]*Column{b.Offsets()}, b.Columns...) {
			bytes, _ := readAll(t, col)
			all[b.Name+"/"+col.Name] = string(bytes)
		}
	}
	return all
}

// refused opens the file by what lies in the index folder, and reads everything:
// each byte must be right, or an error.
func refused(t *testing.T, what, dir, name string, want map[string]string) (usedIndex bool) {
	t.Helper()
	c, err := Open(context.Background(), []string{name}, Options{IndexDir: dir})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer c.Close()
	usedIndex = c.sources[0].index.Load() != nil
	ctx := context.Background()
	for _, b := range c.View().Banks() {
		for _, col := range append([]*Column{b.Offsets()}, b.Columns...) {
			size, err := col.Size(ctx)
			if err == nil {
				_, err = col.Open(ctx)
			}
			if err != nil {
				continue
			}
			p := make([]byte, size)
			n, err := col.ReadAt(ctx, p, 0)
			if err != nil {
				continue
			}
			w := want[b.Name+"/"+col.Name]
			if n < len(w) || string(p[n-len(w):n]) != w {
				t.Errorf("%s: %s/%s: other bytes than the file has", what, b.Name, col.Name)
			}
		}
	}
	return usedIndex
}

func TestDamagedIndexIsMadeAgain(t *testing.T) {
	name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{particle, track}, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 3)), event(), event(particles(3, 1), tracks(0))}},
		{Tag: 10, Events: []hipotest.Event{event(particles(9, 2), tracks(1, 0))}},
	}})
	dir := t.TempDir()
	indexed(t, dir, name)
	want := content(t, open(t, Options{}, name))
	path := IndexPath(dir, name)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, b []byte) {
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		refused(t, what, dir, name, want)
	}
	for n := range good {
		try(fmt.Sprintf("cut to %d bytes", n), good[:n])
	}
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 1 << (i % 8)
		try(fmt.Sprintf("bit %d of byte %d flipped", i%8, i), b)
	}
	try("longer", append(bytes.Clone(good), 0))
	if _, err := os.Stat(path); err != nil {
		t.Error("it is not made again:", err)
	}
	if !refused(t, "made again", dir, name, want) {
		t.Error("the index that was made again is not used")
	}
}

// TestIndexThatLiesIsNotBelieved changes an index and makes its checksum right.
func TestIndexThatLiesIsNotBelieved(t *testing.T) {
	name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{particle, track}, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 3)), event(), event(particles(3, 1), tracks(0))}},
		{Tag: 10, Events: []hipotest.Event{event(particles(9, 2), tracks(1, 0))}},
	}})
	dir := t.TempDir()
	indexed(t, dir, name)
	path := IndexPath(dir, name)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	headLen := int(binary.LittleEndian.Uint32(good[12:]))
	dirs := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		b := bytes.Clone(good)
		for range rapid.IntRange(1, 4).Draw(rt, "changes") {
			i := rapid.IntRange(indexHeader, indexHeader+headLen-1).Draw(rt, "at")
			b[i] = rapid.Byte().Draw(rt, "byte")
		}
		binary.LittleEndian.PutUint64(b[24:], xxh3.Hash(b[indexHeader:indexHeader+headLen]))
		d := filepath.Join(dirs, fmt.Sprint(rand.Uint64()))
		if err := os.MkdirAll(d, 0o700); err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(d)
		if err := os.WriteFile(IndexPath(d, name), b, 0o644); err != nil {
			rt.Fatal(err)
		}
		c, err := Open(context.Background(), []string{name}, Options{IndexDir: d})
		if err != nil {
			rt.Fatal(err)
		}
		defer c.Close()
		for _, bank := range c.View().Banks() {
			for _, col := range bank.Columns {
				if size, err := col.Size(context.Background()); err == nil && size < 1<<20 {
					if _, err := col.Open(context.Background()); err == nil {
						_, _ = col.ReadAt(context.Background(), make([]byte, size), 0)
					}
				}
			}
		}
	})
}

func TestIndexOfAnotherFileIsNotUsed(t *testing.T) {
	one := func(first int) string {
		return build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{particle}, Records: []hipotest.Record{
			{Tag: 0, Events: []hipotest.Event{event(particles(first, 3)), event()}},
		}})
	}
	a, b := one(0), one(100)
	stamp, err := os.Stat(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(b, stamp.ModTime(), stamp.ModTime()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	indexed(t, dir, a)
	index, err := os.ReadFile(IndexPath(dir, a))
	if err != nil {
		t.Fatal(err)
	}
	// The same size, time, header, dictionary and end: only the record tells.
	if err := os.WriteFile(IndexPath(dir, b), index, 0o644); err != nil {
		t.Fatal(err)
	}
	c := open(t, Options{IndexDir: dir}, b)
	px := bank(t, c.View(), "REC::Particle").Columns[1]
	_, err = px.Open(context.Background())
	if err == nil {
		_, err = px.ReadAt(context.Background(), make([]byte, 1000), 0)
	}
	if !errors.Is(err, ErrChanged) {
		t.Errorf("reading by another file's index: %v", err)
	}
}

func TestEveryFlippedBitIsNoticedWhenItIsRead(t *testing.T) {
	for _, tag := range []int{1, 2, 9, 14} {
		name, _ := large(t, tag)
		dir := t.TempDir()
		indexed(t, dir, name)
		good, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		stamp, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		first := open(t, Options{IndexDir: dir}, name)
		records := first.View().Records()
		clean := content(t, first)
		from, to := records[0].Byte, records[len(records)-1].Byte+records[len(records)-1].Length
		rng := rand.New(rand.NewPCG(1, uint64(tag)))
		const flips = 50
		for range flips {
			b := bytes.Clone(good)
			at := from + rng.Int64N(to-from)
			b[at] ^= 1 << rng.IntN(8)
			if err := os.WriteFile(name, b, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(name, stamp.ModTime(), stamp.ModTime()); err != nil {
				t.Fatal(err)
			}
			c := open(t, Options{IndexDir: dir}, name)
			noticed := 0
			for _, bk := range c.View().Banks() {
				for _, col := range bk.Columns {
					size, err := col.Size(context.Background())
					if err == nil {
						_, err = col.Open(context.Background())
					}
					p := make([]byte, size)
					if err == nil {
						_, err = col.ReadAt(context.Background(), p, 0)
					}
					if err != nil {
						if !errors.Is(err, ErrChanged) {
							t.Errorf("tag %d, byte %d: %v", tag, at, err)
						}
						noticed++
					} else if w := clean[bk.Name+"/"+col.Name]; string(p[len(p)-len(w):]) != w {
						t.Errorf("tag %d, byte %d: other numbers in %s/%s", tag, at, bk.Name, col.Name)
					}
				}
			}
			pad := tag > 4 && isPad(records, at)
			if noticed == 0 && !pad {
				t.Errorf("tag %d: nobody noticed a flipped bit in byte %d", tag, at)
			}
			c.Close()
		}
		if err := os.WriteFile(name, good, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// isPad reports whether a byte is among the last three of a record, which may
// be padding that no stream covers.
func isPad(records []RecordInfo, at int64) bool {
	for _, r := range records {
		if at < r.Byte+r.Length && at >= r.Byte+r.Length-3 {
			return true
		}
	}
	return false
}

// What a killed process has left is removed by the next one, at once; what
// another is writing is not, nor what only looks like it.
func TestOnlyWhatNobodyWritesIsRemoved(t *testing.T) {
	name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{twoInts}, Records: intPairs})
	parent := t.TempDir()
	dir, other := filepath.Join(parent, "run[12]"), filepath.Join(parent, "run1") // no pattern, which the other matches
	for _, d := range []string{dir, other} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := filepath.Join(other, ".hipofs-12345")
	if err := os.WriteFile(elsewhere, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	written, lock, err := newTemporary(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer written.Close()
	for _, left := range []string{".hipofs-12345", ".hipofs-notes", ".hipofs-1a", "12345"} {
		if err := os.WriteFile(filepath.Join(dir, left), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	there := func() []string {
		var names []string
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		slices.Sort(names)
		return names
	}
	want := []string{filepath.Base(written.Name()), ".hipofs-1a", ".hipofs-notes", "12345"}
	slices.Sort(want)
	open(t, Options{IndexDir: dir, Index: IndexLazy}, name).Close()
	equal(t, "while one is written", there(), want)
	lock.Close()
	open(t, Options{IndexDir: dir, Index: IndexLazy}, name).Close()
	equal(t, "when its process is gone", there(), []string{".hipofs-1a", ".hipofs-notes", "12345"})
	if _, err := os.Stat(elsewhere); err != nil {
		t.Errorf("in a folder that is not the one of indexes: %v", err)
	}
}

func TestCountsPackToTheirEntropy(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 3000).Draw(rt, "entries")
		most := rapid.SampledFrom([]uint32{0, 1, 9, 255, 256, 70000, 1<<32 - 1}).Draw(rt, "largest")
		counts := rapid.SliceOfN(rapid.Uint32Range(0, most), n, n).Draw(rt, "counts")
		var k packer
		got := make([]uint32, n)
		if err := k.unpack(got, k.pack(nil, counts)); err != nil || fmt.Sprint(got) != fmt.Sprint(counts) {
			rt.Fatalf("%v, error %v", got, err)
		}
	})
	// About 9 rows an entry, 3.6 bits.
	rng := rand.New(rand.NewPCG(9, 9))
	counts := make([]uint32, groupEntries)
	for i := range counts {
		for range 18 {
			counts[i] += uint32(rng.IntN(2))
		}
	}
	var k packer
	if n := len(k.pack(nil, counts)); n > groupEntries*35/80 {
		t.Errorf("%d bytes for %d counts of 3.1 bits", n, len(counts))
	}
}

func FuzzCounts(f *testing.F) {
	var k packer
	f.Add(k.pack(nil, []uint32{1, 2, 3, 4, 1000, 5}), uint16(6))
	f.Add(k.pack(nil, make([]uint32, 500)), uint16(500))
	f.Fuzz(func(_ *testing.T, b []byte, n uint16) {
		var k packer
		_ = k.unpack(make([]uint32, n), b)
	})
}

func FuzzIndexHead(f *testing.F) {
	h := &indexHead{
		header: []byte("HIPO"), groups: 1, tags: []block{{length: 3}}, counts: [][]block{{{length: 2}}},
		sums:    []recordSums{{whole: sum{1, true}, streams: []storedStream{{2, 7, 0x41, true}, {}}, head: 90}},
		layouts: []splitLayout{"\x2c\x01\x1f\x00\x02\x00"},
		tables:  []indexTable{{name: "REC::Particle", filled: 2, rows: []int64{5}, decoded: []int64{0}}},
		asked:   [][2]string{{"REC::Particle", "px"}},
	}
	f.Add(h.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		const end = 5
		h, err := parseHead(b, 0, end)
		if err != nil {
			return
		}
		again, err := parseHead(h.encode(), 0, end)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(h) {
			t.Errorf("a head does not survive being written: %v", err)
		}
	})
}

func TestIndexEnumeratesRecordsAndPlansReads(t *testing.T) {
	name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{particle, track}, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 3)), event()}, Word1: 5},
		{Tag: 1, Events: []hipotest.Event{event(tracks(0))}},
		{Tag: 10, Events: []hipotest.Event{event(particles(9, 2), tracks(1, 0))}},
	}})
	dir := t.TempDir()
	indexed(t, dir, name)
	c := open(t, Options{IndexDir: dir}, name)
	var rows []map[string]int64
	err := c.RecordIndexes(context.Background(), func(r RecordIndex) error {
		rows = append(rows, maps.Clone(r.Rows))
		if r.XXH3 == "" || r.Events == 0 || r.Length == 0 {
			t.Errorf("%+v", r)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "rows", rows, []map[string]int64{{"REC::Particle": 3}, {"REC::Track": 1}, {"REC::Particle": 2, "REC::Track": 2}})

	plan := func(bank, column string, from, to int64) []string {
		var what []string
		err := c.Plan(context.Background(), bank, column, from, to, func(r Range) error {
			what = append(what, fmt.Sprintf("%d %s", r.Record, r.What))
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return what
	}
	equal(t, "all of px", plan("REC::Particle", "px", 0, 99), "[0 record 2 directory 2 stream]")
	equal(t, "an entry without the bank", plan("REC::Particle", "px", 1, 2), "[]")
	equal(t, "one entry", plan("REC::Track", "chi2", 2, 3), "[1 record]")
}
