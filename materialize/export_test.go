package materialize

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/parquet/file"
	"pgregory.net/rapid"

	"github.com/hipofs/hipofs/hipo"
	"github.com/hipofs/hipofs/hipo/hipotest"
)

// exportOptions export all of a chain, by plain names.
func exportOptions(c *Chain, dir string) ExportOptions {
	of := func(b *Bank) (ExportBank, bool) {
		to := ExportBank{Bank: b, Texts: []ExportText{{File: b.Name + "/rows", Render: func(entries, rows int64) ([]byte, error) {
			return fmt.Appendf(nil, "%d %d", entries, rows), nil
		}}}}
		for _, c := range append([]*Column{b.Offsets(), b.Entry(), b.Pointer}, b.Columns...) {
			if c != nil {
				to.Columns = append(to.Columns, ExportColumn{c, c.Name, b.Name + "/" + c.Name + ".npy"})
			}
		}
		return to, true
	}
	v := c.View()
	o := ExportOptions{Dir: dir, Entries: Slice{To: math.MaxInt64}, Node: of, Format: ExportNpy, Threads: 3}
	for _, b := range v.Banks() {
		to, _ := of(b)
		o.Banks = append(o.Banks, to)
	}
	o.Banks = append(o.Banks, ExportBank{Columns: []ExportColumn{
		{v.EventTags(), "", "event_tags.npy"}, {v.RecordTags(), "", "record_tags.npy"}, {v.EntryNumbers(), "", "entries.npy"},
	}})
	return o
}

// exported is the content of every .npy file of a folder, by path without that.
func exported(t interface{ Fatal(...any) }, dir string) map[string][]byte {
	got := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		name, npy := strings.CutSuffix(path, ".npy")
		if err != nil || !npy {
			return err
		}
		a, err := openNpy(path)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, _ = filepath.Rel(dir, name)
		got[name] = b[npyHeaderSize:]
		if want := a.rows * int64(a.n) * int64(len(got[name])); a.rows > 0 && want == 0 {
			return fmt.Errorf("%s: nothing after the header of %d rows", path, a.rows)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestExportIsWhatViewsShow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "export")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		m := drawChain(t, dir)
		c, err := Open(context.Background(), m.names, Options{Index: IndexLazy, IndexDir: filepath.Join(dir, "index")})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if rapid.Bool().Draw(t, "counted before") {
			if err := c.View().wait(context.Background(), nil); err != nil {
				t.Fatal(err)
			}
		}
		o := exportOptions(c, filepath.Join(dir, "out"))
		entries := m.entries
		if rapid.Bool().Draw(t, "range") {
			n := int64(len(entries))
			o.Entries.From = rapid.Int64Range(0, n+2).Draw(t, "from")
			o.Entries.To = rapid.Int64Range(o.Entries.From, n+4).Draw(t, "to")
			entries = entries[min(o.Entries.From, n):min(o.Entries.To, n)]
		}
		if expr := rapid.SampledFrom([]string{"", "require=REC::Track", "tag=1+2", "record_tag=1", "tag=0+1,require=REC::Particle"}).Draw(t, "where"); expr != "" {
			if o.Where, err = ParseWhere(expr); err != nil {
				t.Fatal(err)
			}
			entries = slices.DeleteFunc(slices.Clone(entries), func(e modelEntry) bool { return !e.passes(expr) })
		}
		before := c.m.recordsDecoded.Load()
		made, err := c.Export(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if n := c.m.recordsDecoded.Load() - before; n > int64(m.records) {
			t.Fatalf("%d records decoded of %d", n, m.records)
		}
		want := arrays(entries)
		got := exported(t, o.Dir)
		for name, b := range want {
			if string(got[name]) != string(b) {
				t.Fatalf("%s has % x, want % x", name, head(got[name]), head(b))
			}
		}
		for name := range got {
			if _, ok := want[name]; !ok && name != "REC::Track/chi2" && name != "7.3/entry" {
				t.Fatalf("there is %s", name)
			}
		}
		if made.Entries != int64(len(entries)) || made.Written != made.Files {
			t.Fatalf("%+v; want %d entries", made, len(entries))
		}
	})
}

func TestExportOfEveryFileHasTheBytesOfTheMount(t *testing.T) {
	names := append(dataFiles(t, "codecs/*.hipo"), dataFiles(t, "*.hipo")...)
	names = append(names, "../cmd/hipofs/testdata/small.hipo")
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			c, err := Open(context.Background(), []string{name}, Options{Index: IndexLazy})
			if err != nil {
				t.Skip(err) // the damaged ones
			}
			defer c.Close()
			o := exportOptions(c, filepath.Join(t.TempDir(), "out"))
			made, err := c.Export(context.Background(), o)
			damaged := 0 // columns that do not open
			for _, b := range o.Banks {
				for _, col := range b.Columns {
					want, served := contentOf(col.Column, 1<<16)
					got, there := os.ReadFile(filepath.Join(o.Dir, col.File))
					switch {
					case served != nil:
						damaged++
						if there == nil {
							t.Errorf("%s is there; a mount says %v", col.File, served)
						}
					case err == nil && there != nil && len(made.Faults) == 0:
						t.Errorf("%s: %v", col.File, there)
					case there == nil && string(got[npyHeaderSize:]) != string(want):
						t.Errorf("%s differs", col.File)
					}
				}
			}
			if filepath.Base(name) == "corrupt_checksum.hipo" && (err != nil || len(made.Faults) != 1 || !strings.HasPrefix(made.Faults[0].Error(), "bank CODEC::cov: ")) {
				t.Errorf("%+v, %v: want all but one bank", made, err)
			}
			if err != nil && damaged == 0 {
				t.Errorf("%v, and a mount serves everything", err)
			}
		})
	}
}

// stopped is an export that was interrupted when so many bytes had been read, and
// what is in its folder.
func stopped(t *testing.T, c *Chain, o ExportOptions, after int64) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var read int64
	o.Threads = 1
	o.Progress = func(n int64) {
		if read += n; read > after {
			stop()
		}
	}
	if _, err := c.Export(ctx, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, want an interruption", err)
	}
	if names := listed(t, o.Dir); !slices.Equal(names, []string{exportStage}) {
		t.Fatalf("an interrupted export leaves %v", names)
	}
}

func listed(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// longChain is a chain whose export notes on its way how far it is.
func longChain(t *testing.T) *Chain {
	t.Helper()
	r := hipotest.Record{Tag: 1}
	for i := range 4 {
		r.Events = append(r.Events, hipotest.Event{Tag: uint32(i), Structures: []hipotest.Structure{particles(i, 40_000)}})
	}
	f := hipotest.File{Schemas: []hipotest.Schema{particle, track}, Records: slices.Repeat([]hipotest.Record{r}, 16)}
	r.Events = []hipotest.Event{{Structures: []hipotest.Structure{particles(0, 2), tracks(1, 0), hipotest.Node(7, 3, []int32{1})}}}
	f.Records = append([]hipotest.Record{r}, f.Records...)
	f.Records = append(f.Records, r)
	return open(t, Options{Index: IndexLazy}, build(t, "large.hipo", f))
}

func TestInterruptedExportGoesOnWhereItWas(t *testing.T) {
	c := longChain(t)
	whole := exportOptions(c, filepath.Join(t.TempDir(), "whole"))
	if _, err := c.Export(context.Background(), whole); err != nil {
		t.Fatal(err)
	}
	o := exportOptions(c, filepath.Join(t.TempDir(), "out"))
	o.noteEvery = 1
	stopped(t, c, o, c.view.length()*3/4)
	before := c.m.recordsDecoded.Load()
	if _, err := c.Export(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if n := c.m.recordsDecoded.Load() - before; n == 0 || n > 10 {
		t.Errorf("%d records decoded of 18, after three quarters had been", n)
	}
	same(t, whole.Dir, o.Dir)
}

// same compares all files of two folders.
func same(t *testing.T, a, b string) {
	t.Helper()
	x, y := exported(t, a), exported(t, b)
	for name := range x {
		if string(x[name]) != string(y[name]) {
			t.Errorf("%s differs", name)
		}
	}
	if len(x) != len(y) {
		t.Errorf("%d and %d files", len(x), len(y))
	}
}

func TestExportDoesOnlyWhatIsMissing(t *testing.T) {
	c := many(t, 100, 1)
	o := exportOptions(c, filepath.Join(t.TempDir(), "out"))
	if _, err := c.Export(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	before := exported(t, o.Dir)
	decoded := c.m.recordsDecoded.Load()
	made, err := c.Export(context.Background(), o)
	if err != nil || made.Written != 0 || c.m.recordsDecoded.Load() != decoded {
		t.Fatalf("%+v, %v: want nothing to do", made, err)
	}
	gone := "REC::Track/REC::Particle.npy"
	if err := os.Remove(filepath.Join(o.Dir, gone)); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(o.Dir, "REC::Track/pindex.npy")
	kept, err := os.Stat(other)
	if err != nil {
		t.Fatal(err)
	}
	if made, err = c.Export(context.Background(), o); err != nil || made.Written != 1 {
		t.Fatalf("%+v, %v: want one file", made, err)
	}
	if now, err := os.Stat(other); err != nil || !os.SameFile(now, kept) {
		t.Errorf("%s has been made anew (%v)", other, err)
	}
	after := exported(t, o.Dir)
	if string(after[gone[:len(gone)-4]]) != string(before[gone[:len(gone)-4]]) {
		t.Errorf("%s differs", gone)
	}
}

func TestExportReplacesNothingUnasked(t *testing.T) {
	c := many(t, 20, 1)
	dir := filepath.Join(t.TempDir(), "out")
	mine := filepath.Join(dir, "REC::Particle/px.npy")
	if err := os.MkdirAll(filepath.Dir(mine), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{mine, filepath.Join(dir, "notes")} {
		if err := os.WriteFile(name, []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	o := exportOptions(c, dir)
	refused := func(o ExportOptions, want string) {
		t.Helper()
		if _, err := c.Export(context.Background(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("%v, want %q", err, want)
		}
	}
	refused(o, "px.npy: it exists already; --force replaces it")
	if b, _ := os.ReadFile(mine); string(b) != "mine" {
		t.Fatal("replaced without --force")
	}
	o.Force = true
	if _, err := c.Export(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(mine); string(b) == "mine" {
		t.Fatal("not replaced by --force")
	}
	o.Force = false
	o.Words = []string{"--columns=pid"}
	o.Banks = o.Banks[:1]
	o.Banks[0].Columns = o.Banks[0].Columns[:1]
	refused(o, "it holds an export of the same files with other options")
	o.Force = true
	if _, err := c.Export(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if names := listed(t, dir); !slices.Equal(names, []string{".hipofs", "REC::Particle", "notes"}) {
		t.Errorf("after another export over it there are %v", names)
	}
}

func TestBankThatIsDamagedAloneIsLeftOut(t *testing.T) {
	f := hipotest.File{Schemas: []hipotest.Schema{particle, track}}
	odd := hipotest.Structure{Group: uint16(particle.Group), Item: uint8(particle.Item), Type: 11, Data: make([]byte, 7)}
	f.Records = []hipotest.Record{
		{Events: []hipotest.Event{{Structures: []hipotest.Structure{particles(0, 2), tracks(1)}}}},
		{Events: []hipotest.Event{{Structures: []hipotest.Structure{odd, tracks(0, 1)}}}},
	}
	c := open(t, Options{Index: IndexLazy}, build(t, "odd.hipo", f))
	o := exportOptions(c, filepath.Join(t.TempDir(), "out"))
	made, err := c.Export(context.Background(), o)
	if err != nil || len(made.Faults) != 2 || !strings.Contains(made.Faults[0].Error(), "not a whole number of") {
		t.Fatalf("%+v, %v", made, err)
	}
	got := exported(t, o.Dir)
	if string(got["REC::Track/pindex"]) != string(hipotest.Pack([]int16{1, 0, 1})) {
		t.Errorf("pindex is % x", got["REC::Track/pindex"])
	}
	for _, name := range []string{"REC::Particle/px", "REC::Track/REC::Particle"} {
		if _, ok := got[name]; ok {
			t.Errorf("there is %s", name)
		}
	}
	if names := listed(t, o.Dir); slices.Contains(names, exportStage) {
		t.Errorf("%v is left", names)
	}
	if again, err := c.Export(context.Background(), o); err != nil || again.Written != 0 || len(again.Faults) != 2 {
		t.Errorf("again: %+v, %v", again, err)
	}
}

func TestDamagedRecordLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	c := open(t, Options{Index: IndexLazy}, "../cmd/hipofs/testdata/corrupt_record.hipo")
	_, err := c.Export(context.Background(), exportOptions(c, dir))
	var input *InputError
	var format *hipo.FormatError
	if !errors.As(err, &input) || !errors.As(err, &format) {
		t.Fatalf("%v, want damage of a record", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is there (%v)", err)
	}
}

// tables makes each bank one file.
func tables(c *Chain, o *ExportOptions, format ExportFormat) {
	o.Format, o.Compression, o.Banks, o.Node = format, "zstd", nil, nil
	for _, b := range c.View().Banks() {
		to := ExportBank{Bank: b, File: b.Name + "." + string(format)}
		for _, col := range b.Columns {
			to.Columns = append(to.Columns, ExportColumn{Column: col, Name: col.Name})
		}
		o.Banks = append(o.Banks, to)
	}
}

func TestArrowFilesAreThoseOfAMount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "arrow")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		ctx := context.Background()
		c, err := Open(ctx, drawChain(t, dir).names, Options{Index: IndexLazy})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		o := exportOptions(c, filepath.Join(dir, "out"))
		tables(c, &o, ExportArrow)
		if _, err := c.Export(ctx, o); err != nil {
			t.Fatal(err)
		}
		for _, b := range o.Banks {
			size, err := b.Bank.Arrow.Size(ctx)
			if err != nil {
				t.Fatal(err)
			}
			want := make([]byte, size)
			if _, err := b.Bank.Arrow.ReadAt(ctx, want, 0); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join(o.Dir, b.File)); err != nil || string(got) != string(want) {
				t.Fatalf("%s differs (%v)", b.File, err)
			}
		}
	})
}

func TestParquetHasTheListsOfEveryEntry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "parquet")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		m := drawChain(t, dir)
		c, err := Open(context.Background(), m.names, Options{Index: IndexLazy})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		o := exportOptions(c, filepath.Join(dir, "out"))
		tables(c, &o, ExportParquet)
		o.Compression = rapid.SampledFrom([]string{"zstd", "snappy", "none"}).Draw(t, "compression")
		if _, err := c.Export(context.Background(), o); err != nil {
			t.Fatal(err)
		}
		var pid, pindex [][]int32
		for _, e := range m.entries {
			pid = append(pid, e.particles)
			var wide []int32
			for _, p := range e.pindex {
				wide = append(wide, int32(p))
			}
			pindex = append(pindex, wide)
		}
		for path, want := range map[string][][]int32{"REC::Particle.parquet": pid, "REC::Track.parquet": pindex} {
			got := firstColumn(t, filepath.Join(o.Dir, path))
			if !slices.EqualFunc(got, want, slices.Equal[[]int32]) {
				t.Fatalf("%s has %d other lists than %d", path, len(got), len(want))
			}
		}
	})
}

// firstColumn is the lists of the first column of a Parquet file.
func firstColumn(t interface{ Fatal(...any) }, path string) (lists [][]int32) {
	r, err := file.OpenParquetFile(path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for g := range r.NumRowGroups() {
		column, err := r.RowGroup(g).Column(0)
		if err != nil {
			t.Fatal(err)
		}
		n := int64(1 << 12)
		values, definition, repetition := make([]int32, n), make([]int16, n), make([]int16, n)
		for column.HasNext() {
			total, _, err := column.(*file.Int32ColumnChunkReader).ReadBatch(n, values, definition, repetition)
			if err != nil {
				t.Fatal(err)
			}
			rest := values
			for i := range total {
				if repetition[i] == 0 {
					lists = append(lists, nil)
				}
				if definition[i] == 1 {
					last := len(lists) - 1
					lists[last] = append(lists[last], rest[0])
					rest = rest[1:]
				}
			}
		}
	}
	return lists
}
