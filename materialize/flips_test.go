package materialize

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// TestNoFlippedBitOfARealFileGoesUnnoticed flips single bits anywhere in files of
// real experiments after they were indexed, and puts the times back. HIPOFS_FLIPS
// is how many; 200 otherwise.
func TestNoFlippedBitOfARealFileGoesUnnoticed(t *testing.T) {
	flips := 200
	if s := os.Getenv("HIPOFS_FLIPS"); s != "" {
		var err error
		if flips, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	files := []string{"clas12_recon_proton_80MeV.hipo", "java_ntuple.hipo"}
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			good, err := os.ReadFile(filepath.Join("../integration/testdata", file))
			if err != nil {
				t.Fatal(err)
			}
			name, dir := filepath.Join(t.TempDir(), file), t.TempDir()
			if err := os.WriteFile(name, good, 0o644); err != nil {
				t.Fatal(err)
			}
			indexed(t, dir, name)
			index, err := os.ReadFile(IndexPath(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			clean := filled(t, open(t, Options{}, name))
			rng := rand.New(rand.NewPCG(4, 400))
			where := map[string]int{}
			for range flips / len(files) {
				at, bit := rng.IntN(len(good)), byte(1)<<rng.IntN(8)
				what := fmt.Sprintf("byte %d ^ %d", at, bit)
				poke(t, name, at, good[at]^bit)
				where[noticed(t, what, dir, name, clean)]++
				poke(t, name, at, good[at])
				if err := os.WriteFile(IndexPath(dir, name), index, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			t.Log(where)
		})
	}
}

// poke changes a byte of a file and none of its times but that of the change.
func poke(t *testing.T, name string, at int, b byte) {
	t.Helper()
	st, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte{b}, int64(at))
	if err := errors.Join(err, f.Close(), os.Chtimes(name, st.ModTime(), st.ModTime())); err != nil {
		t.Fatal(err)
	}
}

// filled is the content of every column with rows, and the offsets of its bank.
func filled(t *testing.T, c *Chain) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, b := range c.View().Banks() {
		if n, err := b.Rows(context.Background()); err != nil || n == 0 {
			continue
		}
		for _, col := range append([]*Column{b.Offsets()}, b.Columns...) {
			bytes, _ := readAll(t, col)
			all[b.Name+"/"+col.Name] = string(bytes)
		}
	}
	return all
}

// noticed reads what had rows, which must be right or an error, and says who
// noticed that the file is not what was indexed.
func noticed(t *testing.T, what, dir, name string, clean map[string]string) string {
	t.Helper()
	ctx := context.Background()
	c, err := Open(ctx, []string{name}, Options{IndexDir: dir, Index: IndexLazy})
	if err != nil {
		return "refused"
	}
	defer c.Close()
	believed := c.sources[0].index.Load() != nil
	stale, seen := 0, 0
	for _, b := range c.View().Banks() {
		for _, col := range append([]*Column{b.Offsets()}, b.Columns...) {
			want, ok := clean[b.Name+"/"+col.Name]
			if !ok {
				continue
			}
			seen++
			size, err := col.Size(ctx)
			if err == nil {
				_, err = col.Open(ctx)
			}
			p := make([]byte, size)
			n := 0
			if err == nil {
				n, err = col.ReadAt(ctx, p, 0)
			}
			switch {
			case errors.Is(err, ErrChanged):
				stale++
			case err != nil && believed:
				t.Errorf("%s: %s/%s: %v", what, b.Name, col.Name, err)
			case err == nil && (n < len(want) || string(p[n-len(want):n]) != want):
				t.Errorf("%s: %s/%s: other numbers", what, b.Name, col.Name)
			}
		}
	}
	switch {
	case seen != len(clean):
		return "other banks" // of a dictionary that was read anew
	case !believed:
		return "index not believed"
	case stale > 0:
		return "stale"
	}
	t.Errorf("%s: nobody noticed", what)
	return "nobody"
}
