package materialize

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sync/errgroup"
)

// TestMakeChain makes a chain too large to exist, for integration: in the folder
// HIPOFS_CHAIN, data/ with HIPOFS_FILES files that are as long as the real ones
// named by HIPOFS_TEMPLATES and hold nothing, and index/ with the indexes they
// would have. Files take their turns with the templates.
func TestMakeChain(t *testing.T) {
	folder := os.Getenv("HIPOFS_CHAIN")
	if folder == "" {
		t.Skip("HIPOFS_CHAIN names no folder")
	}
	files, err := strconv.Atoi(os.Getenv("HIPOFS_FILES"))
	if err != nil {
		t.Fatal(err)
	}
	templates := filepath.SplitList(os.Getenv("HIPOFS_TEMPLATES"))
	made := t.TempDir()
	indexed(t, made, templates...)
	indexes := make([][]byte, len(templates))
	for i, name := range templates {
		if indexes[i], err = os.ReadFile(IndexPath(made, name)); err != nil {
			t.Fatal(err)
		}
	}
	data, index := filepath.Join(folder, "data"), filepath.Join(folder, "index")
	for _, dir := range []string{data, index} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	g, _ := errgroup.WithContext(context.Background())
	g.SetLimit(8)
	for i := range files {
		g.Go(func() error {
			head, blocks, err := parseIndex(indexes[i%len(indexes)])
			if err != nil {
				return err
			}
			name := filepath.Join(data, fmt.Sprintf("run.%05d.hipo", i))
			f, err := os.Create(name)
			if err != nil {
				return err
			}
			defer f.Close()
			if err := f.Truncate(head.id.size); err != nil {
				return err
			}
			st, err := f.Stat()
			if err != nil {
				return err
			}
			head.id = identityOf(st)
			return writeIndex(IndexPath(index, name), head.encode(), blocks, 0o644, head.id.size)
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}
