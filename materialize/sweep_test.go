package materialize

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hipofs/hipofs/hipo"
)

// served is what a mount of one file would serve of it: a line for each column
// that can be opened, as the reference decoder prints them; whole says whether
// that is all of the file. An error is one of a refused mount.
func served(t *testing.T, name string) (rows []string, whole bool, err error) {
	t.Helper()
	ctx := context.Background()
	c, err := Open(ctx, []string{name}, Options{MaxRecord: 1 << 24, Memory: 1 << 24, Threads: 1})
	if err != nil {
		return nil, false, err
	}
	defer c.Close()
	whole = true
	read := func(col *Column) ([]byte, bool) {
		err := col.Open(ctx)
		if err != nil {
			whole = false
			var fe *hipo.FormatError
			if !errors.As(err, &fe) && !strings.Contains(err.Error(), "has two layouts") {
				t.Errorf("%s: %T %v is not a *hipo.FormatError", col.Name, err, err)
			}
			return nil, false
		}
		size, err := col.Size(ctx)
		if err != nil {
			t.Fatalf("%s opens but has no size: %v", col.Name, err)
		}
		b := make([]byte, size+1)
		n, err := col.ReadAt(ctx, b, 0)
		if err != nil || int64(n) != size {
			t.Fatalf("%s opens but gives %d of %d bytes, %v", col.Name, n, size, err)
		}
		return b[10+int(b[8])+int(b[9])<<8 : n], true
	}
	v := c.View()
	if tags, ok := read(v.EventTags()); ok {
		var numbers []byte
		for i := range v.Entries() + 1 {
			numbers = append(numbers, byte(i), byte(i>>8), 0, 0, 0, 0, 0, 0)
		}
		rows = append(rows, fmt.Sprintf("@event\ttag\tU\t1\t%d\t%x\t%x", v.Entries(), sha256.Sum256(tags), sha256.Sum256(numbers)))
	}
	nodes, err := v.Nodes(ctx)
	if err != nil {
		whole = false
	}
	var names []string // of nodes, in the order of the reference decoder
	byName := map[string]*Bank{}
	for _, b := range nodes {
		name := fmt.Sprintf("@%d/%d", b.Group, b.Item)
		names = append(names, name)
		byName[name] = b
	}
	slices.Sort(names)
	add := func(name string, b *Bank) {
		offsets, ok := read(b.Offsets)
		for _, col := range b.Columns {
			content, ok2 := read(col)
			if ok && ok2 {
				n := len(content) / max(1, col.Length*itemSize[col.Type])
				rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%x\t%x",
					bytes.ToValidUTF8([]byte(name), []byte("\uFFFD")), bytes.ToValidUTF8([]byte(col.Name), []byte("\uFFFD")), col.Type, col.Length, n, sha256.Sum256(content), sha256.Sum256(offsets)))
			}
		}
	}
	for _, b := range v.Banks() {
		add(b.Name, b)
	}
	for _, name := range names {
		add(name, byName[name])
	}
	return rows, whole, nil
}

var itemSize = map[string]int{"B": 1, "S": 2, "I": 4, "F": 4, "D": 8, "L": 8}

// The sweep of package hipo, seen from where columns are served: what a strict
// decode refuses is refused, or served as far as the damage does not reach.
// hipo/testdata/README.md tells where the verdicts come from.
func TestNoMutantServesWrongColumns(t *testing.T) {
	text, err := os.ReadFile("../hipo/testdata/sweep/verdicts.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(text), "file\t")[1:] {
		lines := strings.Split(strings.TrimSpace(part), "\n")
		name, _, _ := strings.Cut(lines[0], "\t")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(filepath.Join("../hipo/testdata/sweep", name))
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, line := range lines[1:] {
				count, verdict, _ := strings.Cut(line, "\t")
				n, err := strconv.Atoi(count)
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, slices.Repeat([]string{verdict}, n)...)
			}
			sweep(t, name, data, want)
		})
	}
}

// sweep compares mutants with their verdicts: one of seven, in an order that
// comes to every value of a byte, or all of them if HIPOFS_SWEEP is set.
func sweep(t *testing.T, name string, data []byte, want []string) {
	stride := 7
	if os.Getenv("HIPOFS_SWEEP") != "" {
		stride = 1
	}
	file := filepath.Join(t.TempDir(), "mutant.hipo")
	write := func(b []byte) {
		if err := os.WriteFile(file, b, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write(data)
	original, whole, err := served(t, file)
	if err != nil || !whole {
		t.Fatal(err)
	}
	i := 0
	compare := func(mutant []byte) {
		defer func() { i++ }()
		if i%stride != 0 || name == "oxihipo_percolumn.hipo" && i == 5311 { // hipo's sweep says why
			return
		}
		write(mutant)
		rows, whole, err := served(t, file)
		if err != nil {
			return
		}
		sum := sha256.Sum256([]byte(strings.Join(rows, "\n") + "\n"))
		if whole && fmt.Sprintf("%x", sum[:4]) == want[i] {
			return
		}
		for _, row := range rows {
			sum := sha256.Sum256([]byte(row))
			if !slices.Contains(original, row) && !strings.Contains(want[i], fmt.Sprintf("%x", sum[:4])) {
				t.Errorf("mutant %d (byte %d), %s: whole %v, serves %s", i, i/8, want[i], whole, row)
			}
		}
	}
	b := bytes.Clone(data)
	for at, old := range data {
		for _, v := range []byte{0x00, 0xFF, old ^ 0x01, old ^ 0x80, old + 1, old - 1, 0x7F, old ^ 0x10} {
			b[at] = v
			compare(b)
		}
		b[at] = old
	}
	for n := range data {
		compare(data[:n])
	}
}
