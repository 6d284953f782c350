package materialize

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// readAll is the content of a column, read in pieces of an odd size.
func readAll(t *testing.T, c *Column) (content []byte, header string) {
	t.Helper()
	ctx := context.Background()
	if _, err := c.Open(ctx); err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	size, err := c.Size(ctx)
	if err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	b := make([]byte, 0, size)
	for {
		p := make([]byte, 4099)
		n, err := c.ReadAt(ctx, p, int64(len(b)))
		if err != nil {
			t.Fatalf("%s: at %d: %v", c.Name, len(b), err)
		}
		if n == 0 {
			break
		}
		b = append(b, p[:n]...)
	}
	if int64(len(b)) != size {
		t.Fatalf("%s: %d bytes, Size says %d", c.Name, len(b), size)
	}
	n := 10 + int(b[8]) + int(b[9])<<8
	return b[n:], string(b[10:n])
}

func hash(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// dataFolders are where real files are; those of the repository come last.
var dataFolders = []string{"../../shared/data", "../hipo/testdata", "../integration/testdata"}

// dataFiles are the real files whose names match, below a folder of data.
func dataFiles(t *testing.T, pattern string) (names []string) {
	t.Helper()
	for _, folder := range dataFolders {
		found, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range found {
			if !slices.ContainsFunc(names, func(n string) bool { return filepath.Base(n) == filepath.Base(name) }) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		t.Fatalf("there is no %s", pattern)
	}
	return names
}

// golden is the rows of golden.tsv by file.
func golden(t *testing.T) map[string][]string {
	t.Helper()
	f, err := os.Open("../../shared/check/golden.tsv")
	if err != nil {
		f, err = os.Open("../integration/testdata/golden.tsv")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows := map[string][]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		file, rest, _ := strings.Cut(s.Text(), "\t")
		if file != "file" {
			rows[file] = append(rows[file], rest)
		}
	}
	return rows
}

// describe gives a view the shape of golden.tsv's rows.
func describe(t *testing.T, v *View) map[string]bool {
	t.Helper()
	got := map[string]bool{}
	tags, _ := readAll(t, v.EventTags())
	got[fmt.Sprintf("@event\ttag\tU\t1\t%d\t%s", v.Entries(), hash(tags))] = true
	nodes, err := v.Nodes(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range append(append([]*Bank{}, v.Banks()...), nodes...) {
		name := b.Name
		if i >= len(v.Banks()) {
			name = fmt.Sprintf("@%d/%d", b.Group, b.Item)
		}
		if _, err := b.Rows(context.Background()); err != nil {
			t.Logf("%s: %v", name, err)
			continue
		}
		offsets, _ := readAll(t, b.Offsets())
		rows, err := b.Rows(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range b.Columns {
			content, _ := readAll(t, c)
			got[fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%s\t%s", name, c.Name, c.Type, c.Length, rows, hash(content), hash(offsets))] = true
		}
	}
	return got
}

func TestEveryColumnHasTheGoldenChecksums(t *testing.T) {
	for file, want := range golden(t) {
		t.Run(file, func(t *testing.T) {
			name, skip := strings.CutSuffix(file, "?salvage")
			c, err := Open(context.Background(), dataFiles(t, name), Options{Skip: skip})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			got := describe(t, c.View())
			for _, row := range want {
				if strings.HasPrefix(row, "@event") {
					row = row[:strings.LastIndexByte(row, '\t')]
				}
				if !got[row] {
					t.Errorf("not served: %s", row)
				}
				delete(got, row)
			}
			for row := range got {
				t.Errorf("not in golden.tsv: %s", row)
			}
		})
	}
}

func TestRecordsOfAllLayoutsInOneChain(t *testing.T) {
	rows := golden(t)
	names := dataFiles(t, "codecs/tag*.hipo")
	// One decoder meets every layout in turn.
	c := open(t, Options{Threads: 1, Memory: 64 << 10}, names...)
	for i := range names {
		got := describe(t, c.View().File(i))
		for _, row := range rows["codecs/"+filepath.Base(names[i])] {
			if !strings.HasPrefix(row, "@event") && !got[row] {
				t.Errorf("%s: not served: %s", names[i], row)
			}
		}
	}
}
