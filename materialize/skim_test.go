package materialize

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hipofs/hipofs/hipo/hipotest"
)

// Of a file with an index, a skim reads the records alone of which it takes some
// entries and leaves others; what it writes is the same.
func TestIndexTellsASkimWhichRecordsItNeeds(t *testing.T) {
	const records = 40
	f := hipotest.File{Schemas: []hipotest.Schema{particle, track}}
	for i := range records {
		var r hipotest.Record
		r.Tag = 1
		for j := range 5 {
			e := hipotest.Event{Tag: uint32(i % 4), Structures: []hipotest.Structure{particles(5*i+j, 1)}}
			if i%10 == 0 || i%10 == 1 && j == 3 { // of all entries of some records, of one entry of others
				e.Structures = append(e.Structures, tracks(0))
			}
			r.Events = append(r.Events, e)
		}
		f.Records = append(f.Records, r)
	}
	name := build(t, "a.hipo", f)
	dir := t.TempDir()
	indexed(t, dir, name)
	for _, tt := range []struct {
		where   string
		entries Slice
		read    int64 // records of which some entries pass
		written int64 // entries
	}{
		{"require=REC::Track", everything, 4, 24},
		{"require=REC::Track", Slice{0, 53}, 2, 9}, // the last record is not wanted whole
		{"tag=1", everything, 0, 50},
		{"tag=1,require=REC::Track", everything, 2, 2},
		{"tag=7", everything, 0, 0},
	} {
		w, err := ParseWhere(tt.where)
		if err != nil {
			t.Fatal(err)
		}
		var files [2][]byte
		for i, o := range []Options{{}, {IndexDir: dir}} {
			o.Index = IndexLazy
			c := open(t, o, name)
			out := filepath.Join(t.TempDir(), fmt.Sprintf("out%d.hipo", i))
			made, err := c.Skim(context.Background(), SkimOptions{Out: out, Where: w, Entries: tt.entries})
			if err != nil {
				t.Fatalf("%s: %v", tt.where, err)
			}
			equal(t, tt.where+": entries", made.Entries, tt.written)
			if o.IndexDir != "" {
				equal(t, tt.where+": records read", c.Stats().RecordsDecoded, tt.read)
			}
			if files[i], err = os.ReadFile(out); err != nil {
				t.Fatal(err)
			}
		}
		if string(files[0]) != string(files[1]) {
			t.Errorf("%s: other bytes than without an index", tt.where)
		}
	}
}
