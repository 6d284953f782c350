package hipo_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	. "github.com/hipofs/hipofs/hipo/hipotest"
)

var update = flag.Bool("update", false, "write the built files of testdata/sweep anew")

// sweepSchemas are short, so that few bytes of a file are text.
var sweepSchemas = []Schema{
	{Name: "E", Group: 1, Item: 1, Columns: "n/L,c/F#2", Form: TextOnly},
	{Name: "P", Group: 1, Item: 2, Columns: "b/B,s/S,f/F", Form: TextOnly},
}

// sweepEvents are four events; composites, which not every layout can hold,
// are added on request.
func sweepEvents(composite bool) []Event {
	e := func(n int64) Structure { return Bank(1, 1, Pack(n), Pack(float32(n), float32(-n))) }
	p := func(b []int8, s []int16, f []float32) Structure { return Bank(1, 2, Pack(b), Pack(s), Pack(f)) }
	events := []Event{
		{Tag: 1, Structures: []Structure{e(7), p([]int8{1, 2, -3}, []int16{4, 5, -6}, []float32{7, 8, -9})}},
		{},
		{Tag: 2, Structures: []Structure{e(-8), p(nil, nil, nil), Node(8, 3, []int32{1, -1})}},
		{Tag: 4, Structures: []Structure{p([]int8{0}, []int16{-1}, []float32{0.5})}},
	}
	if composite {
		events[1].Structures = []Structure{Composite(7, 5, "bi", Pack(int8(1), int32(2)), Pack(int8(3), int32(-4)))}
	}
	return events
}

// sweepFiles are the files of testdata/sweep that the builder made. The others
// there are by other writers.
var sweepFiles = map[string]File{
	"perbank_zstd.hipo": {
		Schemas: sweepSchemas, DictTag: 1,
		Records: []Record{{Tag: 5, Events: sweepEvents(true)}},
	},
	"percolumn_v3.hipo": {
		Schemas: sweepSchemas, DictTag: 1,
		Records: []Record{{Tag: 14, Version: 3, ByteSplit: true, Events: sweepEvents(false)}, {Tag: 14, Version: 3, Events: sweepEvents(true)[:2]}},
	},
	"big_endian_composite.hipo": {
		Big: true, Schemas: sweepSchemas, Trailer: NoTrailer,
		Records: []Record{{Big: true, Events: sweepEvents(true)}},
	},
	"json_gzip.hipo": {
		Schemas: []Schema{{Name: "J", Group: 1, Item: 2, Columns: "b/B,s/S,f/F", Form: JSONOnly}}, Config: []Setting{{Key: "k", Value: "v"}}, TagNames: "a=1",
		Records: []Record{{Tag: 3, User: []byte("user!"), Events: sweepEvents(false)}, {Tag: 12, Events: sweepEvents(false)[:1]}},
	},
}

// The table of verdicts is about the committed bytes, so the committed files
// count and not what today's compressors make of them.
func TestSweepFilesAreWrittenOnRequest(t *testing.T) {
	for name, f := range sweepFiles {
		path := filepath.Join("testdata", "sweep", name)
		if *update {
			if err := os.WriteFile(path, f.Bytes(), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		b, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(b, []byte(f.Bytes()[:4])) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
