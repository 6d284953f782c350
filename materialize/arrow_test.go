package materialize

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"pgregory.net/rapid"

	"github.com/hipofs/hipofs/hipo/hipotest"
)

// readArrow gives the offsets and the columns in an Arrow file of a bank, by name,
// as another program reads them.
func readArrow(file []byte) (map[string][]byte, error) {
	r, err := ipc.NewFileReader(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	got := map[string][]byte{}
	offsets := []int64{0}
	for i := range r.NumRecords() {
		batch, err := r.RecordBatchAt(i)
		if err != nil {
			return nil, err
		}
		list := batch.Column(0).(*array.LargeList)
		first := offsets[len(offsets)-1]
		for _, o := range list.Offsets()[1:] {
			offsets = append(offsets, first+o)
		}
		rows := list.ListValues().(*array.Struct)
		for k, field := range rows.DataType().(*arrow.StructType).Fields() {
			values := rows.Field(k)
			if l, ok := values.(*array.FixedSizeList); ok {
				values = l.ListValues()
			}
			if b := values.Data().Buffers()[1]; b != nil {
				got[field.Name] = append(got[field.Name], b.Bytes()...)
			}
		}
		batch.Release()
	}
	got["offsets"] = hipotest.Pack(offsets)
	return got, nil
}

// addArrow adds what the Arrow files of the banks have, for readView.
func addArrow(t *rapid.T, got map[string][]byte, banks []*Bank) {
	for _, b := range banks {
		file, err := bytesOf(b.Arrow, rapid.IntRange(1, 3000).Draw(t, "piece"))
		if err != nil {
			t.Fatalf("%s.arrow: %v", b.Name, err)
		}
		for range 3 {
			from := rapid.IntRange(0, len(file)-1).Draw(t, "from")
			p := make([]byte, min(rapid.IntRange(1, 5000).Draw(t, "bytes"), len(file)-from))
			if n, err := b.Arrow.ReadAt(context.Background(), p, int64(from)); err != nil || n != len(p) || !bytes.Equal(p, file[from:from+n]) {
				t.Fatalf("%s.arrow: %d of %d bytes at %d (%v), or other ones than before", b.Name, n, len(p), from, err)
			}
		}
		columns, err := readArrow(file)
		if err != nil {
			t.Fatalf("%s.arrow: %v", b.Name, err)
		}
		for name, content := range columns {
			if name != "chi2" {
				got[b.Name+".arrow/"+name] = content
			}
		}
		b.Arrow.Left()
	}
}

// withArrow adds what Arrow files must have to what columns must.
func withArrow(want map[string][]byte) map[string][]byte {
	for _, path := range []string{"REC::Particle/offsets", "REC::Particle/pid", "REC::Particle/px", "REC::Track/offsets", "REC::Track/pindex"} {
		if bank, name, _ := strings.Cut(path, "/"); name == "offsets" || len(want[path]) > 0 {
			want[bank+".arrow/"+name] = want[path]
		}
	}
	return want
}

func TestArrowFileIsEveryColumnOfEachCodec(t *testing.T) {
	for _, tag := range []int{0, 1, 9, 10} {
		t.Run(fmt.Sprintf("tag %d", tag), func(t *testing.T) {
			name, want := large(t, tag)
			c := open(t, Options{}, name)
			for _, b := range c.View().Banks() {
				file, err := bytesOf(b.Arrow, 1<<10)
				if err != nil {
					t.Fatal(err)
				}
				got, err := readArrow(file)
				if err != nil {
					t.Fatal(err)
				}
				equal(t, b.Name, len(got), 1+len(b.Columns))
				for _, c := range b.Columns {
					if !bytes.Equal(got[c.Name], want[b.Name+"/"+c.Name]) {
						t.Errorf("%s/%s differs", b.Name, c.Name)
					}
				}
				equal(t, b.Name, got["offsets"], hipotest.Pack(ints(t, b.Offsets())))
			}
		})
	}
}

// Every buffer must lie at a multiple of 64, in the file and so in a mapping of it.
func TestArrowBuffersAreAligned(t *testing.T) {
	name, _ := large(t, 1)
	c := open(t, Options{}, name)
	ctx := context.Background()
	a := c.View().Bank(0).Arrow
	l, err := a.lay(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range l.batches {
		x := l.stretch(i)
		entries, rows := c.View().entriesIn(x), a.bank.in(x)
		m := l.batchMessage(entries, rows)
		if b.off%64 != 0 || len(m)%64 != 0 || l.bodyLength(entries, rows)%64 != 0 {
			t.Errorf("batch %d at %d, %d bytes and %d", i, b.off, len(m), l.bodyLength(entries, rows))
		}
		for k := range 3 + 2*4 + 1 {
			at := m[l.buffers+16*k:]
			if off, n := binary.LittleEndian.Uint64(at), binary.LittleEndian.Uint64(at[8:]); off%64 != 0 || off+n > uint64(l.bodyLength(entries, rows)) {
				t.Errorf("buffer %d of batch %d: %d bytes at %d", k, i, n, off)
			}
		}
	}
}

// Looking at a bank as one file decodes what is looked at, and each record once
// for all columns.
func TestArrowFileDecodesWhatIsRead(t *testing.T) {
	name, _ := large(t, 1)
	dir := t.TempDir()
	indexed(t, dir, name)
	c := open(t, Options{IndexDir: dir, Memory: 512 << 10, Threads: 1}, name)
	ctx := context.Background()
	a := c.View().Bank(2).Arrow
	if _, err := a.Size(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Open(ctx); err != nil {
		t.Fatal(err)
	}
	equal(t, "records decoded to open it", c.Stats().RecordsDecoded, 0)
	l, err := a.lay(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// Its beginning, its end, and all of the last batch.
	last := l.batches[len(l.batches)-1]
	for _, r := range [][2]int64{{0, int64(len(l.head))}, {l.tail, l.size}, {last.off, l.tail}} {
		if _, err := a.ReadAt(ctx, make([]byte, r[1]-r[0]), r[0]); err != nil {
			t.Fatal(err)
		}
	}
	if run := &a.bank.view.sources[0].runs[last.r]; c.Stats().RecordsDecoded > int64(run.records) {
		t.Errorf("%d records decoded for a batch of %d", c.Stats().RecordsDecoded, run.records)
	}
	before := c.Stats().RecordsDecoded
	if _, err := bytesOf(a, 1000); err != nil {
		t.Fatal(err)
	}
	if n := c.Stats().RecordsDecoded - before; n > 12 {
		t.Errorf("%d records decoded to read a file made of 12", n)
	}
}

func TestArrowNamesAreTextAndEachOnce(t *testing.T) {
	schema := hipotest.Schema{Name: "A::\xff", Group: 1, Item: 1, Columns: "x/I,x/F,x~2/B,\xfe/S,/L"}
	c := open(t, Options{}, build(t, "names.hipo", hipotest.File{Schemas: []hipotest.Schema{schema}}))
	file, err := bytesOf(c.View().Bank(0).Arrow, 100)
	if err != nil {
		t.Fatal(err)
	}
	r, err := ipc.NewFileReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	equal(t, "batches", r.NumRecords(), 0)
	equal(t, "schema", r.Schema().Field(0), "A::\uFFFD: type=large_list<item: struct<x: int32, x~2: float32, x~2~2: int8, \uFFFD: int16, : int64>>")
}

func TestDamageIsNoArrowFile(t *testing.T) {
	f := hipotest.File{Schemas: []hipotest.Schema{particle, track}, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 2), tracks(0))}},
		{Tag: 1, Events: []hipotest.Event{event(particles(2, 1))}, Body: func(b []byte) []byte { clear(b); return b }},
	}}
	c := open(t, Options{}, build(t, "a.hipo", f))
	ctx := context.Background()
	for _, b := range c.View().Banks() {
		if _, err := b.Arrow.Size(ctx); err == nil {
			t.Errorf("%s has a size, though a record is damaged", b.Name)
		}
		if _, err := b.Arrow.Open(ctx); err == nil {
			t.Errorf("%s opens, though a record is damaged", b.Name)
		}
	}
	if _, err := bytesOf(c.View().Slice(Slice{0, 1}).Bank(0).Arrow, 100); err != nil {
		t.Errorf("a view of what is good: %v", err)
	}
}
