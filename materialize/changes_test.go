package materialize

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hipofs/hipofs/hipo/hipotest"
)

// generation is a file of several runs of records whose values tell which
// generation it is; all generations are equally long. It gives the content of
// every column, too.
func generation(n byte) (file []byte, want map[string][]byte) {
	f := hipotest.File{Schemas: []hipotest.Schema{{Name: "A::a", Group: 1, Item: 1, Columns: "x/I,y/D"}, {Name: "B::b", Group: 2, Item: 1, Columns: "z/S"}}}
	want = map[string][]byte{}
	for r := range 4 {
		record := hipotest.Record{}
		for e := range 20 {
			column := func(name string, length int) []byte {
				b := make([]byte, length)
				for i := range b {
					b[i] = byte(r+e+i)&0x7F | n<<7
				}
				want[name] = append(want[name], b...)
				return b
			}
			rows := 2000 + 10*e
			record.Events = append(record.Events, event(
				hipotest.Bank(1, 1, column("A::a/x", 4*rows), column("A::a/y", 8*rows)),
				hipotest.Bank(2, 1, column("B::b/z", 2*rows))))
		}
		f.Records = append(f.Records, record)
	}
	return f.Bytes(), want
}

// overwrite writes the file's bytes piece by piece where they lie.
func overwrite(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for at := 0; at < len(b); at += 64 << 10 {
		if _, err := f.WriteAt(b[at:min(at+64<<10, len(b))], int64(at)); err != nil {
			return err
		}
	}
	return nil
}

// replace puts another file in the place of one, with its times.
func replace(path string, b []byte) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", b, 0o644); err != nil {
		return err
	}
	if err := os.Chtimes(path+".new", st.ModTime(), st.ModTime()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Readers race with every way to change a source; HIPOFS_CHANGES is how often
// each is tried. A read gives the old bytes, all of them, or an error that says
// that the source has changed.
func TestReadersNeverGetBytesOfTwoGenerations(t *testing.T) {
	old, want := generation(0)
	fresh, wantFresh := generation(1)
	if len(old) != len(fresh) {
		t.Fatal("the generations are not equally long")
	}
	for _, tt := range []struct {
		name   string
		change func(path string) error
		whole  bool // what is open is still whole
		next   bool // another mount finds the new generation
	}{
		{"replaced by rename", func(path string) error { return replace(path, fresh) }, true, true},
		{"overwritten in place", func(path string) error { return overwrite(path, fresh) }, false, true},
		{"overwritten in place, times put back", func(path string) error {
			st, err := os.Stat(path)
			if err != nil {
				return err
			}
			return errors.Join(overwrite(path, fresh), os.Chtimes(path, st.ModTime(), st.ModTime()))
		}, false, true},
		{"truncated", func(path string) error { return os.Truncate(path, int64(len(old)/3)) }, false, false},
		{"appended", func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.Write(fresh[56:1000])
			return err
		}, false, false},
		{"deleted", os.Remove, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stale := 0
			for i := range countOf(t, "HIPOFS_CHANGES", 20) {
				path := filepath.Join(t.TempDir(), "run.hipo")
				if err := os.WriteFile(path, old, 0o644); err != nil {
					t.Fatal(err)
				}
				o := Options{Index: IndexLazy, Memory: 256 << 10, Threads: 2}
				if i%2 == 1 {
					o.IndexDir = t.TempDir()
					indexed(t, o.IndexDir, path)
				}
				stale += race(t, path, o, want, int64(i), tt.change, tt.whole)
				if !tt.next {
					continue
				}
				next := open(t, o, path)
				for name, content := range wantFresh {
					bankName, column, _ := strings.Cut(name, "/")
					for _, c := range bank(t, next.View(), bankName).Columns {
						if c.Name != column {
							continue
						}
						got, err := serve(c)
						// With its old time, the file seems to be the one that was indexed; its bytes are not.
						if o.IndexDir != "" && errors.Is(err, ErrChanged) {
							continue
						}
						if err != nil || string(got) != string(content) {
							t.Fatalf("%d: a new mount serves %s with %v, or other bytes", i, name, err)
						}
					}
				}
			}
			if (stale == 0) != tt.whole {
				t.Errorf("%d reads failed", stale)
			}
		})
	}
}

// race lets four readers read slices of all columns while the source changes,
// after some reads, and gives how many reads failed because of it.
func race(t *testing.T, path string, o Options, want map[string][]byte, seed int64, change func(string) error, whole bool) int {
	t.Helper()
	c := open(t, o, path)
	first := &sampler{c, want, rand.New(rand.NewPCG(uint64(seed), 9))}
	if right, err := first.read(context.Background()); err != nil || !right { // so that the file is open
		t.Fatalf("bytes right: %v, error %v", right, err)
	}
	waitForTick(t, path)
	var reads, stale atomic.Int64
	when := make(chan struct{})
	after := 1 + seed%37
	var wg sync.WaitGroup
	for reader := range 4 {
		wg.Go(func() {
			s := &sampler{c, want, rand.New(rand.NewPCG(uint64(seed), uint64(reader)))}
			for range 60 {
				if reads.Add(1) == after {
					close(when)
				}
				right, err := s.read(context.Background())
				switch {
				case err == nil && right:
				case errors.Is(err, ErrChanged) && errors.Is(err, syscall.ESTALE):
					stale.Add(1)
				default:
					t.Errorf("bytes right: %v, error %v", right, err)
					return
				}
			}
		})
	}
	<-when
	if err := change(path); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if whole {
		return int(stale.Load())
	}
	// From now on whatever is not in memory fails at open.
	for _, b := range c.View().Banks() {
		for _, col := range b.Columns {
			if _, err := col.Open(context.Background()); err == nil {
				if got, err := serve(col); err != nil || string(got) != string(want[b.Name+"/"+col.Name]) {
					t.Errorf("%s/%s opens, and gives %v or other bytes", b.Name, col.Name, err)
				}
			} else if !errors.Is(err, ErrChanged) {
				t.Errorf("open: %v", err)
			} else {
				stale.Add(1)
			}
		}
	}
	return int(stale.Load())
}
