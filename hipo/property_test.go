package hipo_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hipofs/hipofs/hipo"
)

// What was put into a file comes out of it, whatever the compression tag and
// the rest of the file's shape.
func TestRandomFilesGiveBackWhatWasPutIn(t *testing.T) {
	skipUnderRaceDetector(t)
	for tag := range 15 {
		t.Run(fmt.Sprintf("tag%02d", tag), rapid.MakeCheck(func(t *rapid.T) {
			tags := []int{tag}
			for range rapid.IntRange(0, 2).Draw(t, "more records") {
				tags = append(tags, rapid.SampledFrom([]int{tag, 0, 1, 7}).Draw(t, "tag"))
			}
			f, want := drawFile(t, tags)
			b := f.Build()
			got, err := decode(b.Bytes, hipo.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.tags, want.tags) {
				t.Fatalf("event tags %v, want %v", got.tags, want.tags)
			}
			for _, s := range f.Schemas {
				if got.tables[s.Name] == nil {
					t.Fatalf("no bank %s", s.Name)
				}
			}
			for name, table := range got.tables {
				if table.err != nil {
					t.Fatalf("%s: %v", name, table.err)
				}
				if !bytes.Equal(table.offsets(), want.offsets(name)) {
					t.Fatalf("%s: rows %v, want %v", name, table.rows, want.rows[name])
				}
				for k, c := range table.columns {
					if w, ok := want.content[name+"/"+c.Name]; !ok || !bytes.Equal(table.content[k], w) {
						t.Fatalf("%s/%s: got % x, want % x (put in: %v)", name, c.Name, table.content[k], w, ok)
					}
				}
			}
			for name, rows := range want.rows { // what did not come out must have been empty
				if got.tables[name] == nil && slices.Max(append(rows, 0)) > 0 {
					t.Fatalf("%s is missing", name)
				}
			}
		}))
	}
}
