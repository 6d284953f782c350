package materialize

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hipofs/hipofs/hipo/hipotest"
)

// What is open when its name goes is still whole; whatever else happens to a
// source, what is read of it then is an error.
func TestChangedSourceIsStaleAndNothingElse(t *testing.T) {
	schemas := []hipotest.Schema{particle}
	for _, tt := range []struct {
		name   string
		whole  bool // every read still gives the old bytes
		change func(t *testing.T, path string)
	}{
		{"overwritten in place, times put back", false, func(t *testing.T, path string) {
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
		{"appended", false, func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteString("more"); err != nil {
				t.Fatal(err)
			}
		}},
		{"truncated", false, func(t *testing.T, path string) {
			if err := os.Truncate(path, 100); err != nil {
				t.Fatal(err)
			}
		}},
		{"replaced", true, func(t *testing.T, path string) {
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
		{"deleted", true, func(t *testing.T, path string) {
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
			if _, err := px.Open(context.Background()); err != nil {
				t.Fatal(err)
			}
			waitForTick(t, path)
			tt.change(t, path)
			all := bytes.Repeat(particles(0, 50000).Data[4*50000:], 20)
			stale := 0
			for at := 0; at < len(all); at += 1 << 16 {
				p := make([]byte, min(1<<16, len(all)-at))
				n, err := px.ReadAt(context.Background(), p, int64(128+at))
				switch {
				case err == nil && n == len(p) && string(p) == string(all[at:at+n]):
				case errors.Is(err, ErrChanged) && errors.Is(err, syscall.ESTALE):
					stale++
				default:
					t.Fatalf("at %d: %d bytes, error %v, or other bytes", at, n, err)
				}
			}
			if (stale == 0) != tt.whole {
				t.Errorf("%d reads failed", stale)
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
	equal(t, "rows", len(ints(t, bank(t, c.View(), "REC::Particle").Entry())), 3*len(names))
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(fds); n > maxDescriptors+50 {
		t.Errorf("%d descriptors are open", n)
	}
}
