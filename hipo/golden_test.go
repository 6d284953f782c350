package hipo_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hipofs/hipofs/hipo"
)

// golden gives the lines of testdata/golden.tsv by file: what hipo_ref.py finds.
func golden(t *testing.T) map[string][]string {
	t.Helper()
	b, err := os.ReadFile("testdata/golden.tsv")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		file, row, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		out[file] = append(out[file], row)
	}
	delete(out, "file") // the heading
	return out
}

func TestEveryReadableFileReadsAsTheReferenceDecoderDoes(t *testing.T) {
	for file, want := range golden(t) {
		t.Run(file, func(t *testing.T) {
			name, salvage := strings.CutSuffix(file, "?salvage")
			data, err := os.ReadFile(filepath.Join("testdata", name))
			if err != nil {
				t.Fatal(err)
			}
			d, err := decode(data, hipo.Options{Salvage: salvage})
			if err != nil {
				t.Fatal(err)
			}
			got, err := d.shaRows(!salvage)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}
