package materialize

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hipofs/hipofs/hipo/hipotest"
)

func TestChangedSourceIsStaleAndNothingElse(t *testing.T) {
	schemas := []hipotest.Schema{particle}
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, path string)
	}{
		{"overwritten in place, times put back", func(t *testing.T, path string) {
			st, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte{1, 2, 3}, st.Size()-200); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, st.ModTime(), st.ModTime()); err != nil {
				t.Fatal(err)
			}
		}},
		{"appended", func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteString("more"); err != nil {
				t.Fatal(err)
			}
		}},
		{"truncated", func(t *testing.T, path string) {
			if err := os.Truncate(path, 100); err != nil {
				t.Fatal(err)
			}
		}},
		{"replaced", func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path+".new", b, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}},
		{"deleted", func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var records []hipotest.Record
			for range 20 {
				records = append(records, hipotest.Record{Tag: 1, Events: []hipotest.Event{event(particles(0, 50000))}})
			}
			path := build(t, "a.hipo", hipotest.File{Schemas: schemas, Records: records})
			c := open(t, Options{Index: IndexLazy, Memory: 4 << 20}, path)
			px := bank(t, c.View(), "REC::Particle").Columns[1]
			if err := px.Open(context.Background()); err != nil {
				t.Fatal(err)
			}
			waitForTick(t, path)
			tt.change(t, path)
			p := make([]byte, 1<<16)
			stale := 0
			for off := int64(128); ; {
				n, err := px.ReadAt(context.Background(), p, off)
				if err != nil {
					if !errors.Is(err, ErrChanged) || !errors.Is(err, syscall.ESTALE) {
						t.Fatalf("at %d: %v", off, err)
					}
					stale++
					n = len(p)
				}
				if off += int64(n); n == 0 || off > 20*50000*4 {
					break
				}
			}
			if stale == 0 {
				t.Error("every read succeeded")
			}
		})
	}
}

// waitForTick waits until the clock that stamps files has moved on from the last
// change of path: a second change within one tick does not show.
func waitForTick(t *testing.T, path string) {
	t.Helper()
	ctime := func(name string) int64 {
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return identityOf(st).ctime
	}
	probe := filepath.Join(t.TempDir(), "probe")
	for before := ctime(path); ; {
		if err := os.WriteFile(probe, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(probe, 0o600); err != nil {
			t.Fatal(err)
		}
		if ctime(probe) > before {
			return
		}
		os.Remove(probe)
	}
}

func TestManyFilesNeedFewDescriptors(t *testing.T) {
	one := (&hipotest.File{Schemas: []hipotest.Schema{particle}, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 3))}},
	}}).Bytes()
	dir := t.TempDir()
	var names []string
	for i := range 3 * maxDescriptors {
		name := filepath.Join(dir, fmt.Sprintf("%d.hipo", i))
		if err := os.WriteFile(name, one, 0o644); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	c := open(t, Options{Memory: 1 << 10}, names...)
	equal(t, "rows", len(ints(t, bank(t, c.View(), "REC::Particle").Entry)), 3*len(names))
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(fds); n > maxDescriptors+50 {
		t.Errorf("%d descriptors are open", n)
	}
}
