package materialize

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hipofs/hipofs/hipo/hipotest"
)

// mostAtOnce indexes copies of a file, and gives how many records were being
// decoded at once, over all files. The first decodes wait until there are as many
// as fit, and all then wait a little for one that is too many.
func mostAtOnce(t *testing.T, name string, copies, fit int, o IndexOptions) int {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var names []string
	for i := range copies {
		names = append(names, filepath.Join(dir, strconv.Itoa(i)+".hipo"))
		if err := os.WriteFile(names[i], b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	now, most := 0, 0
	full, tooMany := make(chan struct{}), make(chan struct{})
	wait := func(event chan struct{}, longest time.Duration) {
		select {
		case <-event:
		case <-time.After(longest):
		}
	}
	o.Dir = t.TempDir()
	o.Progress = func(int64) { // in the middle of a decode
		mu.Lock()
		now++
		if now > most {
			most = now
			switch most {
			case fit:
				close(full)
			case fit + 1:
				close(tooMany)
			}
		}
		mu.Unlock()
		wait(full, 10*time.Second)
		wait(tooMany, 5*time.Millisecond)
		mu.Lock()
		now--
		mu.Unlock()
	}
	made := 0
	if err := Index(context.Background(), names, o, func(r Indexed) {
		if r.Err != nil || r.Fresh {
			t.Errorf("index of %s: %+v", r.File, r)
		}
		made++
	}); err != nil {
		t.Fatal(err)
	}
	equal(t, "indexes", made, copies)
	return most
}

func TestFilesAreIndexedInTheMemoryOfOne(t *testing.T) {
	name, _ := large(t, 1)
	for _, tt := range []struct {
		threads int
		memory  int64
		want    int
	}{
		{8, 1 << 30, 8},
		{3, 1 << 30, 3},
		{8, 1 << 10, 1}, // no room for a second record
	} {
		if got := mostAtOnce(t, name, 8, tt.want, IndexOptions{Threads: tt.threads, Memory: tt.memory}); got != tt.want {
			t.Errorf("%d threads and %d bytes of memory: %d decodes of 8 files at once, want %d", tt.threads, tt.memory, got, tt.want)
		}
	}
}

// A folder of data may have many thousands of files.
func TestIndexLooksOnceForWhatWasLeft(t *testing.T) {
	for _, beside := range []bool{false, true} {
		a := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{twoInts}, Records: intPairs})
		o := IndexOptions{Dir: t.TempDir(), Beside: beside}
		dir := o.Dir
		if beside {
			dir = filepath.Dir(a)
		}
		before, since := filepath.Join(dir, temporary+"1"), filepath.Join(dir, temporary+"2")
		if err := os.WriteFile(before, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		o.Progress = func(int64) { // the index is not written yet
			if err := os.WriteFile(since, nil, 0o600); err != nil {
				t.Error(err)
			}
		}
		if err := Index(context.Background(), []string{a}, o, func(r Indexed) {
			if r.Err != nil || r.Fresh {
				t.Errorf("%+v", r)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(before); !errors.Is(err, iofs.ErrNotExist) {
			t.Errorf("beside the file = %v: what was left is still there: %v", beside, err)
		}
		if _, err := os.Stat(since); err != nil {
			t.Errorf("beside the file = %v: it has looked again: %v", beside, err)
		}
	}
}

// A mount takes the head alone, and finds out later that the rest is damaged.
func TestIndexMakesAgainWhatIsDamagedAnywhere(t *testing.T) {
	name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{particle, track}, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 3)), event(), event(particles(3, 1), tracks(0))}},
		{Tag: 10, Events: []hipotest.Event{event(particles(9, 2), tracks(1, 0))}},
	}})
	path := name + IndexSuffix
	fresh := func(what string) (fresh bool) {
		t.Helper()
		if err := Index(context.Background(), []string{name}, IndexOptions{Beside: true}, func(r Indexed) {
			if r.Err != nil {
				t.Errorf("%s: %v", what, r.Err)
			}
			fresh = r.Fresh
		}); err != nil {
			t.Fatal(err)
		}
		return fresh
	}
	fresh("the first")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !fresh("the good one") {
		t.Error("a good index is made again")
	}
	again := func(what string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if fresh(what) {
			t.Errorf("%s: it is called complete", what)
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, good) {
			t.Errorf("%s: what is there is not the index of the file: %v", what, err)
		}
	}
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 1 << (i % 8)
		again(fmt.Sprintf("bit %d of byte %d flipped", i%8, i), b)
	}
	again("cut short", good[:len(good)-1])
	again("longer", append(bytes.Clone(good), 0))

	// One whose checksums are right, and whose tables no mount takes.
	head, blocks, err := parseIndex(good)
	if err != nil {
		t.Fatal(err)
	}
	head.tables[0].rows[0] = 1 << 40
	if err := writeIndex(path, head.encode(), blocks, 0o600, 1<<40); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again("more rows than the records have bytes", b)
}
