package materialize

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/hipo/hipotest"
)

// everyColumn is every column of a view that may be kept, by bank and name.
func everyColumn(t *testing.T, v *View) map[string]*Column {
	t.Helper()
	nodes, err := v.Nodes(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*Column{"event_tags": v.EventTags()}
	for _, b := range slices.Concat(v.Banks(), nodes) {
		for _, c := range append([]*Column{b.Offsets(), b.Entry()}, b.Columns...) {
			all[c.diskLabel()] = c
		}
		if b.Pointer != nil {
			all[b.Name+"/@"+b.PointsTo] = b.Pointer
		}
	}
	return all
}

// servedFile is the whole file of a column as readers get it from memory.
func servedFile(t *testing.T, c *Column) []byte {
	t.Helper()
	content, header := readAll(t, c)
	var b bytes.Buffer
	fmt.Fprintf(&b, "\x93NUMPY\x01\x00%c%c%s", len(header), len(header)>>8, header)
	b.Write(content)
	return b.Bytes()
}

// finishedFile is the whole file of a column in the tier; nil if there is none.
func finishedFile(t *testing.T, c *Column) []byte {
	t.Helper()
	f, err := c.Finished(context.Background())
	if err != nil {
		t.Fatalf("%s: %v", c.diskLabel(), err)
	}
	if f == nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// made waits until nothing is being made.
func made(c *Chain) {
	for {
		c.tier.mu.Lock()
		var m *making
		for m = range c.tier.makings {
			break
		}
		c.tier.mu.Unlock()
		if m == nil {
			return
		}
		<-m.done
	}
}

func realPathOf(t *testing.T, c *Column) string {
	t.Helper()
	path, err := c.RealPath(context.Background())
	if err != nil {
		t.Fatalf("%s: %v", c.diskLabel(), err)
	}
	return path
}

// onDiskNow is what a cache folder takes, and its files.
func onDiskNow(t *testing.T, dir string) (bytes int64, files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		bytes += st.Blocks * 512
		files = append(files, path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes, files
}

// matching are the files of a cache folder whose names match.
func matching(t *testing.T, dir, pattern string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*", pattern))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// wide is a file with a column of n values that all differ, in eight records.
func wide(t *testing.T, n int) string {
	t.Helper()
	f := hipotest.File{Schemas: []hipotest.Schema{{Name: "T::wide", Group: 1, Item: 1, Columns: "v/L,w/L"}, {Name: "T::none", Group: 1, Item: 2, Columns: "v/L"}}}
	next := int64(1)
	for range 8 {
		v := make([]int64, n/8)
		for i := range v {
			v[i] = next
			next++
		}
		f.Records = append(f.Records, hipotest.Record{Tag: 1, Events: []hipotest.Event{event(hipotest.Bank(1, 1, hipotest.Pack(v), hipotest.Pack(v)))}})
	}
	return build(t, "wide.hipo", f)
}

func TestColumnThatWasReadIsAFileInTheNextMount(t *testing.T) {
	for _, name := range []string{"tag01_lz4_perchunk", "tag08_zstd_percolumn", "composite", "empty_dictionary", "record_tags", "zero_events", "duplicate_banks"} {
		t.Run(name, func(t *testing.T) {
			o := Options{CacheDir: filepath.Join(t.TempDir(), "a", "b"), IndexDir: t.TempDir()}
			source := "../hipo/testdata/codecs/" + name + ".hipo"
			first := open(t, o, source, "../hipo/testdata/codecs/tiny.hipo")
			want := map[string][]byte{}
			for label, c := range everyColumn(t, first.View()) {
				if b := servedFile(t, c); !c.empty() { // where there is nothing to keep
					want[label] = b
				}
			}
			made(first)
			for label, c := range everyColumn(t, first.View()) {
				if want[label] == nil {
					if finishedFile(t, c) != nil {
						t.Errorf("%s: an empty column is kept unasked", label)
					}
				} else if !bytes.Equal(finishedFile(t, c), want[label]) {
					t.Errorf("%s: the file is not what was read", label)
				}
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			second := open(t, o, source, "../hipo/testdata/codecs/tiny.hipo")
			columns := everyColumn(t, second.View())
			for label := range want {
				if !bytes.Equal(finishedFile(t, columns[label]), want[label]) {
					t.Errorf("%s: the second mount has no such file, or another", label)
				}
			}
			equal(t, "records decoded", second.Stats().RecordsDecoded, 0)
			equal(t, "opens", second.TierStats().Opens, len(want))
		})
	}
}

func TestRealPathMakesTheColumnOfEachView(t *testing.T) {
	files := []string{"../hipo/testdata/codecs/tiny.hipo", "../hipo/testdata/codecs/small.hipo", "../hipo/testdata/codecs/tiny.hipo"}
	c := open(t, Options{CacheDir: t.TempDir()}, files...)
	paths := map[string]string{}
	for i, v := range []*View{c.View(), c.View().File(0), c.View().File(1), c.View().File(2)} {
		columns := everyColumn(t, v)
		columns["entries"], columns["record_tags"] = v.EntryNumbers(), v.RecordTags()
		for label, col := range columns {
			path := realPathOf(t, col)
			b, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(b, servedFile(t, col)) {
				t.Errorf("%s of view %d: %v, or other bytes", label, i, err)
			}
			if n, ok := col.PathLength(); !ok || n != len(path) {
				t.Errorf("%s: the path has %d bytes, %d were told", label, len(path), n)
			}
			if other := paths[path]; other != "" {
				t.Errorf("%s of view %d is the file of %s", label, i, other)
			}
			paths[path] = fmt.Sprintf("%s of view %d", label, i)
		}
	}
}

func TestNoCacheFolderNoRealPath(t *testing.T) {
	c := open(t, Options{}, "../hipo/testdata/codecs/tiny.hipo")
	if _, err := c.View().EventTags().RealPath(context.Background()); !errors.Is(err, ErrNoCache) {
		t.Error(err)
	}
	if f, err := c.View().EventTags().Finished(context.Background()); f != nil || err != nil {
		t.Error(f, err)
	}
}

func TestChangedSourceHasNoFiles(t *testing.T) {
	o := Options{CacheDir: t.TempDir()}
	name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{particle}, Records: []hipotest.Record{{Events: []hipotest.Event{event(particles(0, 4))}}}})
	changed := hipotest.File{Schemas: []hipotest.Schema{particle}, Records: []hipotest.Record{{Events: []hipotest.Event{event(particles(7, 4))}}}}
	other := changed.Bytes()
	st, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	c := open(t, o, name)
	old := realPathOf(t, bank(t, c.View(), "REC::Particle").Columns[0])
	// The same name, length and time.
	if err := errors.Join(os.Remove(name), os.WriteFile(name, other, 0o644), os.Chtimes(name, st.ModTime(), st.ModTime())); err != nil {
		t.Fatal(err)
	}
	if st2, err := os.Stat(name); err != nil || st2.Size() != st.Size() || !st2.ModTime().Equal(st.ModTime()) {
		t.Fatal("the test does not do what it says", err)
	}
	second := bank(t, open(t, o, name).View(), "REC::Particle").Columns[0]
	if b := finishedFile(t, second); b != nil {
		t.Errorf("served from the old file's column: % x", b[len(b)-16:])
	}
	if realPathOf(t, second) == old {
		t.Error("both files have one path")
	}
	content, _ := readAll(t, second)
	equal(t, "pid", content, hipotest.Pack([]int32{7, 8, 9, 10}))
}

// An index that lies may give other offsets for as long as nothing is decoded;
// what was made by it must not outlive it.
func TestWhatALyingIndexMadeGoesWithIt(t *testing.T) {
	o := Options{CacheDir: t.TempDir(), IndexDir: t.TempDir()}
	name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{particle}, Records: []hipotest.Record{{Events: []hipotest.Event{event(particles(0, 3)), event(particles(3, 1))}}}})
	indexed(t, o.IndexDir, name)
	good, err := os.ReadFile(IndexPath(o.IndexDir, name))
	if err != nil {
		t.Fatal(err)
	}
	changedIndex(t, o.IndexDir, name, func(head *indexHead, blocks *[]byte) { setCounts(head, blocks, 1, 3) })
	liar := open(t, o, name)
	realPathOf(t, bank(t, liar.View(), "REC::Particle").Offsets())
	if err := os.WriteFile(IndexPath(o.IndexDir, name), good, 0o644); err != nil {
		t.Fatal(err)
	}
	c := open(t, o, name)
	offsets := bank(t, c.View(), "REC::Particle").Offsets()
	if finishedFile(t, offsets) != nil {
		t.Error("offsets of a lying index are served beside a good one")
	}
	equal(t, "offsets", ints(t, offsets), []int64{0, 3, 4})
}

func TestReaderIsFollowedAndAPeekIsNot(t *testing.T) {
	name := wide(t, 3<<20) // 24 MiB a column
	o := Options{CacheDir: t.TempDir()}
	c := open(t, o, name)
	v := bank(t, c.View(), "T::wide").Columns[0]
	ctx := context.Background()
	size, err := v.Size(ctx)
	if err != nil {
		t.Fatal(err)
	}
	read := func(from, to int64) {
		t.Helper()
		p := make([]byte, 1<<20)
		for off := from; off < to; off += int64(len(p)) {
			if _, err := v.ReadAt(ctx, p[:min(int64(len(p)), to-off)], off); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A look at the beginning, at the end and in between starts nothing.
	read(0, 4<<20)
	read(size-4<<20, size)
	read(12<<20, 16<<20)
	if v.disk.making != nil || len(matching(t, o.CacheDir, "*")) > 0 {
		t.Fatal("a file is made of a column that was looked at")
	}
	// Half of it: a file is begun, and given up when the reader leaves.
	read(0, 10<<20)
	v.disk.mu.Lock()
	m := v.disk.making
	v.disk.mu.Unlock()
	if m == nil {
		t.Fatal("nothing is written behind a reader of 10 MiB")
	}
	v.Left()
	<-m.done
	if !errors.Is(m.err, context.Canceled) || len(matching(t, o.CacheDir, "*.npy"))+len(matching(t, o.CacheDir, draftName+"*")) > 0 {
		t.Errorf("%v; left: %v", m.err, matching(t, o.CacheDir, "*"))
	}
	// All of it, from the end to the beginning.
	for off := size - 1<<20; off > -1<<20; off -= 1 << 20 {
		read(max(off, 0), off+1<<20)
	}
	v.Left() // at the end, nobody needs to wait for it
	made(c)
	if got := finishedFile(t, v); !bytes.Equal(got, servedFile(t, v)) {
		t.Errorf("%d bytes of %d, or others", len(got), size)
	}
}

func TestReaderWhoIsFollowedDecodesOnce(t *testing.T) {
	name := wide(t, 3<<20)
	c := open(t, Options{CacheDir: t.TempDir(), IndexDir: t.TempDir()}, name)
	readAll(t, bank(t, c.View(), "T::wide").Columns[0])
	made(c)
	equal(t, "made", c.TierStats().Made, 1)
	equal(t, "records decoded", c.Stats().RecordsDecoded, 8)
}

func TestChainsThatAreAskedAtOnceMakeAColumnOnce(t *testing.T) {
	name := wide(t, 1<<20)
	o := Options{CacheDir: t.TempDir(), IndexDir: t.TempDir(), Threads: 2}
	indexed(t, o.IndexDir, name)
	var chains []*Chain
	for range 8 {
		chains = append(chains, open(t, o, name))
	}
	var wg sync.WaitGroup
	paths := make([]string, 4*len(chains))
	for i := range paths {
		wg.Go(func() {
			path, err := bank(t, chains[i/4].View(), "T::wide").Columns[0].RealPath(context.Background())
			if err != nil {
				t.Error(err)
			}
			paths[i] = path
		})
	}
	wg.Wait()
	var records, files int64
	for _, c := range chains {
		records += c.Stats().RecordsDecoded
		files += c.TierStats().Made
	}
	equal(t, "files made", files, 1)
	equal(t, "records decoded", records, 8)
	equal(t, "paths", len(slices.Compact(paths)), 1)
}

func TestWaiterForARealPathLeavesWithItsContext(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	name := wide(t, 1<<20)
	dir := t.TempDir()
	c, err := Open(context.Background(), []string{name}, Options{CacheDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	v := bank(t, c.View(), "T::wide").Columns[0]
	k, _, err := v.inTier(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	other, err := openTier(dir, 0, 1, c.log) // another process, that is making it and hangs
	if err != nil {
		t.Fatal(err)
	}
	l, err := other.lockColumn(context.Background(), k)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, err := v.RealPath(ctx)
		done <- err
	}()
	for v.disk.waiting() == 0 {
		runtime.Gosched() // until it waits
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	made(c)
	l.Close()
	other.close()
	if path := realPathOf(t, v); path == "" {
		t.Error("no path once the other has gone")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func (d *onDisk) waiting() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.making == nil {
		return 0
	}
	return d.making.waiters
}

func TestEveryFlippedBlockIsNoticedAndMadeAgain(t *testing.T) {
	name := wide(t, 512<<10) // 4 MiB and a header: five blocks
	o := Options{CacheDir: t.TempDir(), IndexDir: t.TempDir()}
	c := open(t, o, name)
	path := realPathOf(t, bank(t, c.View(), "T::wide").Columns[0])
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := os.ReadFile(strings.TrimSuffix(path, npySuffix) + sealSuffix)
	if err != nil {
		t.Fatal(err)
	}
	flip := func(file string, at int64) func() error {
		return func() error {
			f, err := os.OpenFile(file, os.O_RDWR, 0) // root, or after chmod
			if err != nil {
				return err
			}
			defer f.Close()
			var b [1]byte
			if _, err := f.ReadAt(b[:], at); err != nil {
				return err
			}
			b[0] ^= 1 << (at % 8)
			_, err = f.WriteAt(b[:], at)
			return err
		}
	}
	seal := strings.TrimSuffix(path, npySuffix) + sealSuffix
	damage := map[string]func() error{
		"cut short":   func() error { return os.Truncate(path, int64(len(want)-1)) },
		"longer":      func() error { return os.Truncate(path, int64(len(want)+1)) },
		"empty":       func() error { return os.Truncate(path, 0) },
		"no seal":     func() error { return os.Remove(seal) },
		"no file":     func() error { return os.Remove(path) },
		"seal empty":  func() error { return os.Truncate(seal, 0) },
		"seal longer": func() error { return os.Truncate(seal, int64(len(sealed)+1)) },
	}
	for at := int64(0); at < int64(len(want)); at += 256 << 10 {
		damage[fmt.Sprintf("byte %d", at)] = flip(path, at)
	}
	damage["last byte"] = flip(path, int64(len(want)-1))
	for at := 0; at < len(sealed); at += 16 { // TestSealsOfAnyBytesAreRefused has them all
		damage[fmt.Sprintf("byte %d of the seal", at)] = flip(seal, int64(at))
	}
	for what, do := range damage {
		if err := errors.Join(os.Chmod(path, 0o600), do(), chmodIfThere(path, 0o400)); err != nil {
			t.Fatal(err)
		}
		next := open(t, o, name)
		v := bank(t, next.View(), "T::wide").Columns[0]
		if got := finishedFile(t, v); got != nil {
			t.Errorf("%s: the file is served", what)
		}
		if _, err := os.Lstat(path); err == nil && what != "no seal" {
			t.Errorf("%s: the file is still there", what)
		}
		realPathOf(t, v)
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s: made again: %d bytes, %v", what, len(got), err)
		}
		next.Close()
	}
	// A file that this process has found whole, and that was changed since.
	if err := errors.Join(os.Chmod(path, 0o600), flip(path, 3<<20)()); err != nil {
		t.Fatal(err)
	}
	if finishedFile(t, bank(t, c.View(), "T::wide").Columns[0]) != nil {
		t.Error("a file that was changed under the mount is served")
	}
}

func chmodIfThere(path string, mode os.FileMode) error {
	err := os.Chmod(path, mode)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// TestWhateverAKilledProcessLeavesIsSweptAndNeverServed leaves what there is after
// each step of making a column.
func TestWhateverAKilledProcessLeavesIsSweptAndNeverServed(t *testing.T) {
	name := wide(t, 256<<10)
	for _, tt := range []struct {
		after string
		leave func(dir *os.File, column string, whole, sealed []byte) error
	}{
		{"mkdir", func(dir *os.File, _ string, _, _ []byte) error {
			return os.Remove(filepath.Join(dir.Name(), aboutName))
		}},
		{"about", func(*os.File, string, []byte, []byte) error { return nil }},
		{"reserving", func(dir *os.File, _ string, whole, _ []byte) error {
			return os.WriteFile(filepath.Join(dir.Name(), draftName+"A"), make([]byte, len(whole)), 0o600)
		}},
		{"filling half", func(dir *os.File, _ string, whole, _ []byte) error {
			return os.WriteFile(filepath.Join(dir.Name(), draftName+"A"), whole[:len(whole)/2], 0o600)
		}},
		{"filling", func(dir *os.File, _ string, whole, _ []byte) error {
			return os.WriteFile(filepath.Join(dir.Name(), draftName+"A"), whole, 0o400)
		}},
		{"naming", func(dir *os.File, column string, whole, _ []byte) error {
			return os.WriteFile(filepath.Join(dir.Name(), column+npySuffix), whole, 0o400)
		}},
		{"half a seal", func(dir *os.File, column string, whole, sealed []byte) error {
			return errors.Join(os.WriteFile(filepath.Join(dir.Name(), column+npySuffix), whole, 0o400),
				os.WriteFile(filepath.Join(dir.Name(), draftName+"B"), sealed[:10], 0o600))
		}},
		{"removing a seal", func(dir *os.File, column string, whole, _ []byte) error {
			return os.WriteFile(filepath.Join(dir.Name(), column+npySuffix), whole, 0o400)
		}},
		{"removing a file without a seal", func(dir *os.File, column string, _, sealed []byte) error {
			return os.WriteFile(filepath.Join(dir.Name(), column+sealSuffix), sealed, 0o600)
		}},
	} {
		t.Run(tt.after, func(t *testing.T) {
			o := Options{CacheDir: t.TempDir()}
			c := open(t, o, name)
			path := realPathOf(t, bank(t, c.View(), "T::wide").Columns[0])
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			column := strings.TrimSuffix(filepath.Base(path), npySuffix)
			seal := filepath.Join(filepath.Dir(path), column+sealSuffix)
			sealed, err := os.ReadFile(seal)
			if err != nil {
				t.Fatal(err)
			}
			dir, err := os.Open(filepath.Dir(path))
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			if err := errors.Join(os.Remove(path), os.Remove(seal), tt.leave(dir, column, whole, sealed)); err != nil {
				t.Fatal(err)
			}
			next := open(t, o, name)
			if left := matching(t, o.CacheDir, "*"); len(left) > 0 {
				t.Errorf("not swept: %v", left)
			}
			v := bank(t, next.View(), "T::wide").Columns[0]
			if finishedFile(t, v) != nil {
				t.Error("it is served")
			}
			if again := realPathOf(t, v); again != path {
				t.Errorf("%s, was %s", again, path)
			}
			if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, whole) {
				t.Error("made again, it is another file")
			}
		})
	}
}

func TestDraftOfALiveProcessIsNotSwept(t *testing.T) {
	o := Options{CacheDir: t.TempDir()}
	c := open(t, o, wide(t, 3<<20))
	v := bank(t, c.View(), "T::wide").Columns[0]
	if _, err := v.ReadAt(context.Background(), make([]byte, 10<<20), 0); err != nil {
		t.Fatal(err)
	}
	// It waits for its reader; meanwhile others come.
	for len(matching(t, o.CacheDir, draftName+"*")) == 0 {
		runtime.Gosched()
	}
	open(t, o, wide(t, 8))
	readAll(t, v)
	made(c)
	if finishedFile(t, v) == nil {
		t.Error("the draft has gone")
	}
}

func TestPlantedFilesAreNeitherServedNorFollowed(t *testing.T) {
	name := wide(t, 128<<10)
	for _, tt := range []struct {
		what  string
		plant func(victim, path string) error
	}{
		{"link", os.Symlink},
		{"hard link", os.Link},
		{"FIFO", func(_, path string) error { return unix.Mkfifo(path, 0o600) }},
		{"folder", func(_, path string) error { return os.Mkdir(path, 0o700) }},
		{"socket", func(_, path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) }},
		{"link to nothing", func(victim, path string) error { return os.Symlink(victim+"-not", path) }},
		{"file that others can write", func(victim, path string) error {
			b, err := os.ReadFile(victim)
			return errors.Join(err, os.WriteFile(path, b, 0o600), os.Chmod(path, 0o666))
		}},
	} {
		for _, at := range []string{".npy", ".seal", "draft-X", "about", "set", "lock"} {
			t.Run(tt.what+" "+at, func(t *testing.T) {
				o := Options{CacheDir: t.TempDir()}
				c := open(t, o, name)
				v := bank(t, c.View(), "T::wide").Columns[0]
				path := realPathOf(t, v)
				set, column := filepath.Dir(path), strings.TrimSuffix(path, npySuffix)
				target := map[string]string{".npy": path, ".seal": column + sealSuffix, "draft-X": filepath.Join(set, "draft-X"),
					"about": filepath.Join(set, aboutName), "set": set, "lock": filepath.Join(o.CacheDir, "lock")}[at]
				// The victim is as the real one would be, so that only its kind tells.
				outside := t.TempDir()
				victim := filepath.Join(outside, "victim")
				b, err := os.ReadFile(target)
				if err == nil {
					err = os.WriteFile(victim, b, 0o600)
				} else if at == "set" {
					err = os.Mkdir(victim, 0o700)
				} else {
					err = os.WriteFile(victim, []byte("mine"), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.RemoveAll(target); err != nil {
					t.Fatal(err)
				}
				if err := tt.plant(victim, target); err != nil {
					t.Skip(err) // no hard link to a folder
				}
				before, err := os.Lstat(victim)
				if err != nil {
					t.Fatal(err)
				}
				next, err := Open(context.Background(), []string{name}, o)
				if err != nil {
					var ce *CacheError
					if !errors.As(err, &ce) {
						t.Error(err)
					}
				} else {
					v := bank(t, next.View(), "T::wide").Columns[0]
					f, err := v.Finished(context.Background())
					if err != nil {
						t.Error(err)
					}
					if f != nil {
						if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, want) || at == ".npy" || at == ".seal" || at == "set" {
							t.Errorf("what was planted is served: %d bytes, %v", len(got), err)
						}
						f.Close()
					}
					if again, err := v.RealPath(context.Background()); err == nil {
						if got, err := os.ReadFile(again); err != nil || !bytes.Equal(got, want) {
							t.Errorf("a wrong file has the path: %v", err)
						}
					}
					if got := servedFile(t, v); !bytes.Equal(got, want) {
						t.Error("from memory, it is another column")
					}
					made(next)
					next.Close()
				}
				after, err := os.Lstat(victim)
				if err != nil || after.Mode() != before.Mode() || after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
					t.Errorf("the victim was touched: %v, %v", after, err)
				}
				if list, err := os.ReadDir(outside); err != nil || len(list) != 1 {
					t.Errorf("something was written beside the victim: %v, %v", list, err)
				}
			})
		}
	}
}

func TestFolderThatIsNotOursIsRefused(t *testing.T) {
	parent := t.TempDir()
	in := func(name string) string { return filepath.Join(parent, name) }
	for _, tt := range []struct {
		name string
		make func(path string) error
		want string
	}{
		{"link", func(p string) error { return errors.Join(os.Mkdir(in("real"), 0o700), os.Symlink(in("real"), p)) }, "link"},
		{"file", func(p string) error { return os.WriteFile(p, nil, 0o600) }, "not a folder"},
		{"open to a group", func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o770)) }, "others can write"},
		{"open to all", func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o1777)) }, "others can write"},
		{"below a file", func(p string) error { return os.WriteFile(filepath.Dir(p), nil, 0o600) }, "not a directory"},
		{"somebody else's", func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chown(p, 12345, 12345)) }, "belongs to somebody else"},
	} {
		path := in(tt.name)
		if tt.name == "below a file" {
			path = in("plain") + "/x"
		}
		if err := tt.make(path); err != nil {
			t.Skip(err) // only root gives folders away
		}
		_, err := Open(context.Background(), []string{"../hipo/testdata/codecs/tiny.hipo"}, Options{CacheDir: path})
		var ce *CacheError
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", tt.name, err)
		}
		if list, _ := os.ReadDir(path); len(list) > 1 {
			t.Errorf("%s: something was written: %v", tt.name, list)
		}
	}
	private := in("new")
	open(t, Options{CacheDir: private}, "../hipo/testdata/codecs/tiny.hipo")
	if st, err := os.Stat(private); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("a new folder has mode %v, %v", st.Mode(), err)
	}
}

func TestFolderWithFilesOfOthersGetsNoTag(t *testing.T) {
	for what, put := range map[string]func(dir string) error{
		"files": func(dir string) error { return os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o600) },
		"another program's tag": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, tagName), []byte(tagText[:44]+"# by cargo\n"), 0o600)
		},
		"a link that is the tag": func(dir string) error { return os.Symlink("nowhere", filepath.Join(dir, tagName)) },
	} {
		dir := t.TempDir()
		if err := put(dir); err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var ce *CacheError
		if _, err := OpenCache(dir); !errors.As(err, &ce) || !strings.Contains(err.Error(), "not a cache folder of hipofs") {
			t.Errorf("%s: looked at: %v", what, err)
		}
		if after, _ := os.ReadDir(dir); len(after) != len(before) {
			t.Errorf("%s: looking wrote something: %v", what, after)
		}
		c := open(t, Options{CacheDir: dir}, wide(t, 1<<10))
		realPathOf(t, bank(t, c.View(), "T::wide").Columns[0])
		if b, err := os.ReadFile(filepath.Join(dir, tagName)); err == nil && string(b) == tagText {
			t.Errorf("%s: backups leave the folder out now", what)
		}
		cache, err := OpenCache(dir)
		if err != nil {
			t.Fatal(err)
		}
		if columns, err := cache.Columns(); err != nil || len(columns) != 1 {
			t.Errorf("%s: %d columns, %v", what, len(columns), err)
		}
		cache.Close()
	}
}

func TestTagThatWasBegunIsWrittenAnew(t *testing.T) {
	dir := t.TempDir() // whoever made it was killed, or makes it now
	if err := os.WriteFile(filepath.Join(dir, tagName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CheckCacheDir(dir); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, tagName)); err != nil || string(b) != tagText {
		t.Errorf("the tag is %q, %v", b, err)
	}
}

func TestFolderThatIsEmptiedStaysACacheFolder(t *testing.T) {
	dir := t.TempDir()
	c := open(t, Options{CacheDir: dir}, wide(t, 1<<10))
	for _, name := range []string{tagName, "lock"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	realPathOf(t, bank(t, c.View(), "T::wide").Columns[0])
	if err := CheckCacheDir(dir); err != nil {
		t.Error(err)
	}
}

func TestManyMakeOneFolder(t *testing.T) {
	for range 50 {
		dir := filepath.Join(t.TempDir(), "c")
		errs := make(chan error)
		for range 8 {
			go func() { errs <- CheckCacheDir(dir) }()
		}
		for range 8 {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestFilesInTheFolderAreTheirOwnersAlone(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	dir := t.TempDir()
	c := open(t, Options{CacheDir: filepath.Join(dir, "c")}, wide(t, 1<<10))
	realPathOf(t, bank(t, c.View(), "T::wide").Columns[0])
	_, files := onDiskNow(t, filepath.Join(dir, "c"))
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v %v", f, st.Mode(), err)
		}
	}
}

func TestLeastRecentlyUsedGoesAndOpenOrLeasedStays(t *testing.T) {
	name, want := large(t, 1)
	o := Options{CacheDir: t.TempDir(), CacheSize: 480 << 10}
	c := open(t, o, name)
	var columns []*Column
	for i := range 5 {
		columns = append(columns, bank(t, c.View(), fmt.Sprintf("T::b%d", i)).Columns...)
	}
	// By name, whatever was made is not leased: the tests' clock goes on.
	expire := func() {
		for _, seal := range matching(t, o.CacheDir, "*"+sealSuffix) {
			if st, err := os.Stat(seal); err == nil && st.ModTime().After(time.Now()) {
				past := st.ModTime().Add(-2 * leaseTime)
				if err := os.Chtimes(seal, past, past); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	first := realPathOf(t, columns[1]) // D#3: the largest
	held, err := columns[1].Finished(context.Background())
	if err != nil || held == nil {
		t.Fatal(held, err)
	}
	defer held.Close()
	expire()
	leased := realPathOf(t, columns[0])
	for _, col := range columns[2:] {
		path := realPathOf(t, col)
		if path != leased {
			past := time.Now().Add(-time.Hour)
			if err := os.Chtimes(strings.TrimSuffix(path, npySuffix)+sealSuffix, past, past); err != nil {
				t.Fatal(err)
			}
		}
		c.tier.mu.Lock()
		c.tier.counted = time.Time{} // as if others had filled it
		c.tier.mu.Unlock()
		if bytes, _ := onDiskNow(t, o.CacheDir); bytes > o.CacheSize+16<<10 {
			t.Errorf("%d bytes in a folder of %d", bytes, o.CacheSize)
		}
	}
	if _, err := os.Stat(first); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the least used is still there: %v", err)
	}
	if _, err := os.Stat(leased); err != nil {
		t.Errorf("a leased path has gone: %v", err)
	}
	b, err := io.ReadAll(held)
	if err != nil || !bytes.HasSuffix(b, want["T::b0/d"]) {
		t.Errorf("the open file has other bytes: %d, %v", len(b), err)
	}
	if again := realPathOf(t, columns[1]); again != first {
		t.Errorf("asked again: %s", again)
	}
	if c.TierStats().Evicted == 0 {
		t.Error("nothing was evicted")
	}
}

func TestColumnLargerThanTheFolderIsServedFromMemory(t *testing.T) {
	name := wide(t, 256<<10) // 2 MiB
	o := Options{CacheDir: t.TempDir(), CacheSize: 1 << 20}
	c := open(t, o, name)
	v := bank(t, c.View(), "T::wide").Columns[0]
	_, err := v.RealPath(context.Background())
	if !errors.Is(err, syscall.EFBIG) || !strings.Contains(err.Error(), "--cache-size") || !strings.Contains(err.Error(), "T::wide/v") {
		t.Error(err)
	}
	content, _ := readAll(t, v)
	made(c)
	equal(t, "bytes", len(content), 2<<20)
	equal(t, "failure", c.TierStats().Failure, "")
	if list := matching(t, o.CacheDir, "*"); len(list) > 0 {
		t.Errorf("left: %v", list)
	}
}

func TestFolderFullOfLeasedColumnsIsNoSpace(t *testing.T) {
	name := wide(t, 256<<10)
	c := open(t, Options{CacheDir: t.TempDir(), CacheSize: 3 << 20}, name)
	b := bank(t, c.View(), "T::wide")
	realPathOf(t, b.Columns[0])
	if _, err := b.Columns[1].RealPath(context.Background()); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	realPathOf(t, b.Columns[0])
	content, _ := readAll(t, b.Columns[1])
	equal(t, "bytes", len(content), 2<<20)
}

func TestFolderThatVanishesCostsNothingButItself(t *testing.T) {
	var said strings.Builder
	o := Options{CacheDir: filepath.Join(t.TempDir(), "c"), Log: slog.New(slog.NewTextHandler(&said, nil))}
	c := open(t, o, wide(t, 256<<10))
	b := bank(t, c.View(), "T::wide")
	realPathOf(t, b.Columns[0])
	if err := os.RemoveAll(o.CacheDir); err != nil {
		t.Fatal(err)
	}
	for _, col := range []*Column{b.Columns[0], b.Columns[1], b.Entry(), b.Offsets()} {
		if f := finishedFile(t, col); f != nil {
			t.Errorf("%s is served from nowhere", col.Name)
		}
		readAll(t, col)
		made(c)
	}
	if _, err := b.Columns[0].RealPath(context.Background()); err == nil {
		t.Error("a path into nowhere")
	}
	if _, err := os.Stat(o.CacheDir); err == nil {
		t.Error("the folder has been made again")
	}
	equal(t, "lines", strings.Count(said.String(), "columns are not kept there"), 1)
}

func TestColumnsOfZerosTakeNoSpace(t *testing.T) {
	var events []hipotest.Event
	for range 1 << 18 { // 2 MiB of offsets
		events = append(events, hipotest.Event{})
	}
	f := hipotest.File{Records: []hipotest.Record{{Tag: 1, Events: events}}}
	for i := range 20 {
		f.Schemas = append(f.Schemas, hipotest.Schema{Name: fmt.Sprintf("T::b%d", i), Group: 5, Item: uint8(i), Columns: "v/L"})
	}
	f.Schemas = append(f.Schemas, hipotest.Schema{Name: "T::zeros", Group: 6, Item: 1, Columns: "v/L"})
	f.Records = append(f.Records, hipotest.Record{Tag: 1, Events: []hipotest.Event{event(hipotest.Bank(6, 1, hipotest.Pack(make([]int64, 512<<10))))}})
	o := Options{CacheDir: t.TempDir(), CacheSize: 8 << 20}
	c := open(t, o, build(t, "empty.hipo", f))
	for _, b := range c.View().Banks() {
		for _, col := range []*Column{b.Offsets(), b.Columns[0]} {
			path := realPathOf(t, col)
			got, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(got, servedFile(t, col)) {
				t.Fatalf("%s: %d bytes, %v", path, len(got), err)
			}
		}
	}
	bytes, _ := onDiskNow(t, o.CacheDir)
	if bytes > 4<<20 { // 80 MiB would they be
		t.Errorf("%d bytes on disk", bytes)
	}
}

func TestSealsOfAnyBytesAreRefused(t *testing.T) {
	good := (&seal{size: 3 << 20, sums: []uint64{1, 2, 3}, label: "REC::Particle/px"}).encode()
	if s, err := parseSeal(good); err != nil || s.size != 3<<20 || len(s.sums) != 3 || s.label != "REC::Particle/px" {
		t.Fatal(s, err)
	}
	for at := range good {
		for bit := range 8 {
			b := bytes.Clone(good)
			b[at] ^= 1 << bit
			if _, err := parseSeal(b); err == nil {
				t.Errorf("bit %d of byte %d", bit, at)
			}
		}
		if _, err := parseSeal(good[:at]); err == nil {
			t.Errorf("cut at %d", at)
		}
	}
}

func FuzzSeal(f *testing.F) {
	f.Add((&seal{size: 1 << 20, sums: []uint64{1}, label: "a/b"}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checksum keeps a fuzzer out; past it the numbers must be safe, too.
		if len(b) >= sealHeader {
			copy(b, sealMagic)
			binary.LittleEndian.PutUint32(b[8:], sealVersion)
			binary.LittleEndian.PutUint32(b[12:], uint32(len(b)-sealHeader))
			binary.LittleEndian.PutUint64(b[16:], xxh3.Hash(b[sealHeader:]))
		}
		s, err := parseSeal(b)
		if err == nil && (s.size < 0 || len(s.sums) != blocksOf(s.size)) {
			t.Errorf("%d bytes with %d sums", s.size, len(s.sums))
		}
	})
}
