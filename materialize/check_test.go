package materialize

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
)

// checkOne gives what Check says of a file.
func checkOne(t *testing.T, name string, o CheckOptions) (c Checked) {
	t.Helper()
	if err := Check(context.Background(), []string{name}, o, func(r Checked) { c = r }); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCheckFindsEachChangedByteOfAnIndexedFile(t *testing.T) {
	for _, name := range []string{"tiny.hipo", "composite_lz4hc_perbank.hipo", "empty_record.hipo", "old_java.hipo"} {
		t.Run(name, func(t *testing.T) {
			content, err := os.ReadFile(filepath.Join("../hipo/testdata/codecs", name))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), name)
			write := func(b []byte) {
				if err := os.WriteFile(path, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(content)
			dir := t.TempDir()
			if err := Index(context.Background(), []string{path}, IndexOptions{Dir: dir}, func(r Indexed) {
				if r.Err != nil {
					t.Fatal(r.Err)
				}
			}); err != nil {
				t.Fatal(err)
			}
			if c := checkOne(t, path, CheckOptions{IndexDir: dir}); !c.Good || c.Index == "" {
				t.Fatalf("the file itself: %+v", c)
			}
			step := max(1, len(content)/700)
			for at := 0; at < len(content); at += step {
				changed := bytes.Clone(content)
				changed[at] ^= 1
				write(changed)
				if checkOne(t, path, CheckOptions{IndexDir: dir}).Good {
					t.Errorf("byte %d: not found", at)
				}
			}
		})
	}
}

func TestCheckEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	names := []string{"../hipo/testdata/codecs/tiny.hipo", "../hipo/testdata/codecs/small.hipo"}
	told := 0
	err := Check(ctx, names, CheckOptions{Threads: 1}, func(Checked) { told++; cancel() })
	if err != context.Canceled || told != 1 {
		t.Errorf("%v after %d of 2 files", err, told)
	}
}
