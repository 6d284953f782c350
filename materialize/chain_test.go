package materialize

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hipofs/hipofs/hipo"
	"github.com/hipofs/hipofs/hipo/hipotest"
)

// build writes a file into a temporary folder and gives its name.
func build(t *testing.T, name string, f hipotest.File) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, f.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, o Options, names ...string) *Chain {
	t.Helper()
	c, err := Open(context.Background(), names, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func bank(t *testing.T, v *View, name string) *Bank {
	t.Helper()
	for _, b := range v.Banks() {
		if b.Name == name {
			return b
		}
	}
	t.Fatalf("no bank %s", name)
	return nil
}

// bytesOf is a column's file, or a bank's Arrow file, read in pieces of that size
// at first. Its length must be what Size says.
func bytesOf(f interface {
	Size(context.Context) (int64, error)
	Open(context.Context) (int64, error)
	ReadAt(context.Context, []byte, int64) (int, error)
}, piece int) ([]byte, error) {
	ctx := context.Background()
	size, err := f.Size(ctx)
	if err == nil {
		_, err = f.Open(ctx)
	}
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	for off := 0; off < len(b); piece *= 2 {
		n, err := f.ReadAt(ctx, b[off:min(off+piece, len(b))], int64(off))
		if err != nil {
			return nil, err
		}
		if n != min(piece, len(b)-off) {
			return nil, fmt.Errorf("%d bytes at %d of %d", n, off, len(b))
		}
		off += n
	}
	if n, err := f.ReadAt(ctx, make([]byte, 10), size); n != 0 || err != nil {
		return nil, fmt.Errorf("past the end: %d bytes, %w", n, err)
	}
	return b, nil
}

// ints reads an int64 column.
func ints(t *testing.T, c *Column) []int64 {
	t.Helper()
	b, _ := readAll(t, c)
	out := make([]int64, len(b)/8)
	for i := range out {
		out[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return out
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

var (
	particle = hipotest.Schema{Name: "REC::Particle", Group: 300, Item: 31, Columns: "pid/I,px/F"}
	track    = hipotest.Schema{Name: "REC::Track", Group: 300, Item: 32, Columns: "pindex/S,chi2/F"}
)

// particles is a bank of n rows whose pids count up from first.
func particles(first, n int) hipotest.Structure {
	pid, px := make([]int32, n), make([]float32, n)
	for i := range n {
		pid[i], px[i] = int32(first+i), float32(first+i)/4
	}
	return hipotest.Bank(300, 31, hipotest.Pack(pid), hipotest.Pack(px))
}

func tracks(pindex ...int16) hipotest.Structure {
	return hipotest.Bank(300, 32, hipotest.Pack(pindex), hipotest.Pack(make([]float32, len(pindex))))
}

func event(s ...hipotest.Structure) hipotest.Event { return hipotest.Event{Structures: s} }

func TestChainCountsRowsOverFilesAndRecords(t *testing.T) {
	schemas := []hipotest.Schema{particle, track}
	a := build(t, "a.hipo", hipotest.File{Schemas: schemas, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 2), tracks(1, -1, 2)), event()}, Word1: 7},
		{Tag: 10, Events: []hipotest.Event{event(tracks(0)), event(particles(2, 1))}},
	}})
	b := build(t, "b.hipo", hipotest.File{Schemas: schemas, Records: []hipotest.Record{
		{Tag: 5, Events: []hipotest.Event{event(particles(3, 3), tracks(2, 0)), event(tracks())}},
	}})
	c := open(t, Options{}, a, b)
	v := c.View()
	p, tr := bank(t, v, "REC::Particle"), bank(t, v, "REC::Track")
	equal(t, "entries", v.Entries(), 6)
	equal(t, "offsets", ints(t, p.Offsets()), []int64{0, 2, 2, 2, 3, 6, 6})
	equal(t, "track offsets", ints(t, tr.Offsets()), []int64{0, 3, 3, 4, 4, 6, 6})
	equal(t, "entry", ints(t, tr.Entry()), []int64{0, 0, 0, 2, 4, 4})
	equal(t, "pointer", ints(t, tr.Pointer), []int64{1, -1, -1, -1, 5, 3})
	equal(t, "record tags", ints(t, v.RecordTags()), []int64{7, 7, 0, 0, 0, 0})
	pid, _ := readAll(t, p.Columns[0])
	equal(t, "pid", pid, hipotest.Pack([]int32{0, 1, 2, 3, 4, 5}))
	filled, err := tr.Filled(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "entries with tracks", filled, 3)

	second := v.File(1)
	equal(t, "entries of the second file", second.Entries(), 2)
	equal(t, "its offsets", ints(t, bank(t, second, "REC::Particle").Offsets()), []int64{0, 3, 3})
	equal(t, "its pointer", ints(t, bank(t, second, "REC::Track").Pointer), []int64{2, 0})
	equal(t, "its entries in the chain", ints(t, second.EntryNumbers()), []int64{4, 5})
}

func TestDictionariesUniteOrAreRefused(t *testing.T) {
	one := func(s ...hipotest.Schema) string {
		return build(t, fmt.Sprintf("%d.hipo", rand.Int()), hipotest.File{Schemas: s, Records: []hipotest.Record{
			{Tag: 1, Events: []hipotest.Event{event(particles(0, 1))}},
		}})
	}
	changed := func(f func(*hipotest.Schema)) hipotest.Schema {
		s := particle
		f(&s)
		return s
	}
	first := one(particle)
	for _, tt := range []struct {
		name    string
		second  string
		banks   []string
		refused bool
	}{
		{name: "one bank more", second: one(track, particle)},
		{name: "no bank", second: one()},
		{name: "another name for the id, same layout", second: one(changed(func(s *hipotest.Schema) { s.Name = "X"; s.Columns = "a/I,b/F" }))},
		{name: "another type", second: one(changed(func(s *hipotest.Schema) { s.Columns = "pid/I,px/D" })), refused: true},
		{name: "another column name", second: one(changed(func(s *hipotest.Schema) { s.Columns = "pid/I,py/F" })), refused: true},
		{name: "another order", second: one(changed(func(s *hipotest.Schema) { s.Columns = "px/F,pid/I" })), refused: true},
		{name: "another length", second: one(changed(func(s *hipotest.Schema) { s.Columns = "pid/I,px/F#2" })), refused: true},
		{name: "another id", second: one(changed(func(s *hipotest.Schema) { s.Item = 99 })), refused: true},
		{name: "another name for the id, other layout", second: one(changed(func(s *hipotest.Schema) { s.Name = "X"; s.Columns = "a/D,b/D" })), refused: true},
		{name: "left out", second: one(track, changed(func(s *hipotest.Schema) { s.Columns = "pid/L" })), banks: []string{"REC::T*"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Open(context.Background(), []string{first, tt.second}, Options{Banks: tt.banks})
			var de *DictionaryError
			if errors.As(err, &de) != tt.refused || err != nil && !tt.refused {
				t.Fatalf("Open: %v, want refused = %v", err, tt.refused)
			}
			if err != nil {
				for _, name := range []string{first, tt.second} {
					if !strings.Contains(err.Error(), name) {
						t.Errorf("%v: does not name %s", err, name)
					}
				}
				return
			}
			c.Close()
		})
	}
}

func TestBankLeftOutIsNoNode(t *testing.T) {
	name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{particle, track}, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 2), tracks(1))}},
	}})
	v := open(t, Options{Banks: []string{"*Track"}}, name).View()
	equal(t, "banks", len(v.Banks()), 1)
	nodes, err := v.Nodes(context.Background())
	if err != nil || len(nodes) != 0 {
		t.Errorf("nodes %v, error %v", nodes, err)
	}
}

func TestTwoLayoutsForOneIDInAFileAreAnErrorOfBothBanks(t *testing.T) {
	other := hipotest.Schema{Name: "REC::Other", Group: 300, Item: 31, Columns: "a/D"}
	name := build(t, "a.hipo", hipotest.File{Schemas: []hipotest.Schema{particle, other, track}, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 2), tracks(1))}},
	}})
	v := open(t, Options{}, name).View()
	for _, b := range v.Banks() {
		_, err := b.Columns[0].Open(context.Background())
		if (err != nil) != (b.Group == 300 && b.Item == 31) {
			t.Errorf("%s: %v", b.Name, err)
		}
		if _, serr := b.Columns[0].Size(context.Background()); (serr != nil) != (err != nil) {
			t.Errorf("%s: Open says %v, Size %v", b.Name, err, serr)
		}
	}
}

func TestNodeWhoseFormatVariesIsAnErrorThatNamesBoth(t *testing.T) {
	composite := func(format string, row ...any) hipotest.Event {
		return event(hipotest.Composite(700, 5, format, hipotest.Pack(row...)))
	}
	file := func(name string, records ...hipotest.Record) string {
		return build(t, name, hipotest.File{Records: records})
	}
	i := hipotest.Record{Tag: 1, Events: []hipotest.Event{composite("i", int32(1))}}
	f := hipotest.Record{Tag: 1, Events: []hipotest.Event{composite("f", float32(1))}}
	both := hipotest.Record{Tag: 1, Events: append(append([]hipotest.Event{}, i.Events...), f.Events...)}
	for _, tt := range []struct {
		name  string
		files []string
	}{
		{"in a record", []string{file("a.hipo", both)}},
		{"between records", []string{file("a.hipo", i, f)}},
		{"between files", []string{file("a.hipo", i), file("b.hipo", f)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nodes, err := open(t, Options{}, tt.files...).View().Nodes(context.Background())
			if err != nil || len(nodes) != 1 {
				t.Fatalf("%d nodes, error %v", len(nodes), err)
			}
			_, err = nodes[0].Columns[0].Open(context.Background())
			if err == nil || !strings.Contains(err.Error(), `"i"`) || !strings.Contains(err.Error(), `"f"`) {
				t.Errorf("Open: %v, want an error that names both formats", err)
			}
		})
	}
}

func TestDamagedRecordIsToldOnceAndLeavesOtherFilesAlone(t *testing.T) {
	schemas := []hipotest.Schema{particle}
	events := make([]hipotest.Event, 50)
	for i := range events {
		events[i] = event(particles(0, 5))
	}
	bad := hipotest.File{Schemas: schemas, Records: []hipotest.Record{{Tag: 1, Events: events}, {Tag: 1, Events: events}}}
	built := bad.Build()
	for i := built.Records[1].Body; i < built.Records[1].Body+40; i++ {
		built.Bytes[i] = 0xFF
	}
	badName := filepath.Join(t.TempDir(), "bad.hipo")
	if err := os.WriteFile(badName, built.Bytes, 0o644); err != nil {
		t.Fatal(err)
	}
	good := build(t, "good.hipo", hipotest.File{Schemas: schemas, Records: bad.Records[:1]})

	c := open(t, Options{}, badName, good)
	p := bank(t, c.View(), "REC::Particle")
	for range 3 {
		_, err := p.Columns[0].Size(context.Background())
		var fe *hipo.FormatError
		if !errors.As(err, &fe) || fe.File != badName || fe.Record != 1 || fe.Off != int64(built.Records[1].Off) {
			t.Fatalf("Size: %v, want an error in record 1 of %s at %d", err, badName, built.Records[1].Off)
		}
	}
	if n := len(c.Errors()); n != 1 {
		t.Errorf("%d faults told, want 1: %v", n, c.Errors())
	}
	equal(t, "rows of the good file", len(ints(t, bank(t, c.View().File(1), "REC::Particle").Entry())), 250)

	s := open(t, Options{Skip: true}, badName, good)
	equal(t, "entries without the damaged record", s.View().Entries(), 100)
	info := s.Files()[0]
	if info.Lost != 50 || !strings.Contains(info.LeftOut, "record 1") {
		t.Errorf("left out %q, lost %d events", info.LeftOut, info.Lost)
	}
}

func TestSkipServesWhatIsReadable(t *testing.T) {
	good := build(t, "good.hipo", hipotest.File{Schemas: []hipotest.Schema{particle}, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 2))}},
	}})
	empty := filepath.Join(t.TempDir(), "empty.hipo")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), []string{empty, good}, Options{}); err == nil {
		t.Error("a chain with an empty file opens")
	}
	if _, err := Open(context.Background(), []string{empty}, Options{Skip: true}); err == nil {
		t.Error("a chain of nothing but an empty file opens")
	}
	c := open(t, Options{Skip: true}, empty, good)
	equal(t, "entries", c.View().Entries(), 1)
	if c.Files()[0].LeftOut == "" || c.Files()[1].LeftOut != "" {
		t.Errorf("left out: %+v", c.Files())
	}
}

// large is a file of many records with several banks, and the values that its
// columns must have.
func large(t *testing.T, tag int) (name string, want map[string][]byte) {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(tag), 1))
	f := hipotest.File{}
	const banks, records, events = 5, 12, 40
	cols := make([][][]byte, banks)
	for b := range banks {
		f.Schemas = append(f.Schemas, hipotest.Schema{
			Name: fmt.Sprintf("T::b%d", b), Group: 100, Item: uint8(b), Columns: "i/I,d/D#3,b/B,s/S",
		})
		cols[b] = make([][]byte, 4)
	}
	widths := []int{4, 24, 1, 2}
	for range records {
		r := hipotest.Record{Tag: tag}
		for range events {
			var e hipotest.Event
			for b := range banks {
				n := rng.IntN(60)
				data := make([][]byte, 4)
				for k, w := range widths {
					data[k] = make([]byte, n*w)
					for i := range data[k] {
						data[k][i] = byte(rng.Uint32())
					}
					cols[b][k] = append(cols[b][k], data[k]...)
				}
				e.Structures = append(e.Structures, hipotest.Bank(100, uint8(b), data...))
			}
			r.Events = append(r.Events, e)
		}
		f.Records = append(f.Records, r)
	}
	want = map[string][]byte{}
	for b := range banks {
		for k, c := range []string{"i", "d", "b", "s"} {
			want[fmt.Sprintf("T::b%d/%s", b, c)] = cols[b][k]
		}
	}
	return build(t, "large.hipo", f), want
}

func TestReadersAtOnceGetEveryByteRightOnATinyBudget(t *testing.T) {
	for _, tag := range []int{1, 9, 10} {
		t.Run(fmt.Sprintf("tag %d", tag), func(t *testing.T) {
			name, want := large(t, tag)
			c := open(t, Options{Memory: 256 << 10, Threads: 4}, name)
			var wg sync.WaitGroup
			for reader := range 16 {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(reader), 2))
					for range 60 {
						b := c.View().Banks()[rng.IntN(len(c.View().Banks()))]
						col := b.Columns[rng.IntN(len(b.Columns))]
						content := want[b.Name+"/"+col.Name]
						header := int64(len(npyHeader(col.Dtype, 1)))
						if _, err := col.Open(context.Background()); err != nil {
							t.Error(err)
							return
						}
						if col.Length > 1 {
							header = int64(len(npyHeader(col.Dtype, int64(len(content)/24), 3)))
						}
						off := rng.IntN(len(content))
						p := make([]byte, min(rng.IntN(20000), len(content)-off))
						n, err := col.ReadAt(context.Background(), p, header+int64(off))
						if err != nil || n != len(p) || string(p) != string(content[off:off+n]) {
							t.Errorf("%s/%s: %d of %d bytes at %d, error %v, or other bytes", b.Name, col.Name, n, len(p), off, err)
							return
						}
					}
				})
			}
			wg.Wait()
			if held, budget := c.Stats().CacheBytes, c.Stats().CacheBudget; held > budget {
				t.Errorf("%d bytes held, the budget is %d", held, budget)
			}
			if c.Stats().CacheEvictions == 0 {
				t.Error("nothing was evicted: the budget was not tiny")
			}
		})
	}
}

func TestTenReadersDecodeOnce(t *testing.T) {
	for _, tag := range []int{1, 9, 10} {
		t.Run(fmt.Sprintf("tag %d", tag), func(t *testing.T) {
			name, _ := large(t, tag)
			c := open(t, Options{Index: IndexLazy}, name)
			col := c.View().Banks()[2].Columns[1]
			if _, err := c.View().Banks()[0].Rows(context.Background()); err != nil {
				t.Fatal(err)
			}
			before := c.Stats()
			start := make(chan struct{})
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					<-start
					if _, err := col.Open(context.Background()); err != nil {
						t.Error(err)
					}
					p := make([]byte, 1<<20)
					for off := int64(0); ; {
						n, err := col.ReadAt(context.Background(), p, off)
						if err != nil || n == 0 {
							return
						}
						off += int64(n)
					}
				})
			}
			close(start)
			wg.Wait()
			after := c.Stats()
			// Before anything was asked for, the pass has kept what there was room for.
			if got := after.RecordsDecoded - before.RecordsDecoded; got > 12 {
				t.Errorf("%d records decoded, there are 12", got)
			}
			if got := after.StreamsDecoded - before.StreamsDecoded; tag != 1 && got != 12 {
				t.Errorf("%d streams decoded, want 12", got)
			}
		})
	}
}

func TestWaiterLeavesWithItsContext(t *testing.T) {
	name, want := large(t, 1)
	c := open(t, Options{Index: IndexLazy, Memory: 64 << 10, Threads: 1}, name)
	b := c.View().Banks()[0]
	if _, err := b.Rows(context.Background()); err != nil {
		t.Fatal(err)
	}
	// With its only worker taken, no decode can end.
	c.m.shop.workers <- struct{}{}
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan error)
	go func() {
		_, err := b.Columns[0].ReadAt(ctx, make([]byte, 4096), 128)
		left <- err
	}()
	stays := make(chan []byte)
	go func() {
		p := make([]byte, 4096)
		if _, err := b.Columns[0].ReadAt(context.Background(), p, 128); err != nil {
			t.Error(err)
		}
		stays <- p
	}()
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the reader that was told to leave got %v", err)
	}
	<-c.m.shop.workers
	if p := <-stays; string(p) != string(want["T::b0/i"][:4096]) {
		t.Error("the reader that stayed got other bytes")
	}
}

func TestWaitingForThePassEndsWithTheContext(t *testing.T) {
	name, _ := large(t, 1)
	c := open(t, Options{Index: IndexLazy, Threads: 1}, name)
	c.m.shop.workers <- struct{}{}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := c.View().Banks()[0].Columns[0].Size(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Size: %v", err)
	}
	<-c.m.shop.workers
	if _, err := c.View().Banks()[0].Columns[0].Size(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestBankOpenedLaterCostsOneMoreDecode(t *testing.T) {
	name, _ := large(t, 1)
	c := open(t, Options{Index: IndexLazy}, name)
	for _, b := range c.View().Banks() {
		for _, col := range b.Columns {
			readAll(t, col)
		}
		readAll(t, b.Offsets())
		readAll(t, b.Entry())
	}
	if n := c.Stats().RecordsDecoded; n > 24 {
		t.Errorf("%d records decoded to read everything, there are 12", n)
	}
}

func TestOffsetsOfBanksWithoutRowsCostNoMemory(t *testing.T) {
	events := make([]hipotest.Event, 2000)
	f := hipotest.File{Schemas: []hipotest.Schema{particle, track}}
	for range 20 {
		f.Records = append(f.Records, hipotest.Record{Tag: 1, Events: events})
	}
	c := open(t, Options{}, build(t, "empty.hipo", f))
	b := bank(t, c.View(), "REC::Track")
	if _, err := b.Rows(context.Background()); err != nil {
		t.Fatal(err)
	}
	held := c.Stats()
	equal(t, "offsets", len(ints(t, b.Offsets())), 40001)
	if now := c.Stats(); now.CacheBytes > held.CacheBytes || now.RecordsDecoded > held.RecordsDecoded {
		t.Errorf("reading them held %d bytes more and decoded %d records", now.CacheBytes-held.CacheBytes, now.RecordsDecoded-held.RecordsDecoded)
	}
}

func TestReadAtClampsAtBothEnds(t *testing.T) {
	name, _ := large(t, 1)
	c := open(t, Options{}, name)
	b := c.View().Banks()[0]
	for _, col := range append([]*Column{b.Offsets(), b.Entry(), c.View().EventTags(), c.View().RecordTags()}, b.Columns...) {
		size, err := col.Size(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct{ off, n, want int64 }{
			{-1, 10, 0}, {size, 10, 0}, {size + 1, 10, 0}, {1 << 62, 10, 0},
			{size - 1, 10, 1}, {size - 10, 10, 10}, {size - 11, 10, 10}, {0, size + 5, size}, {0, 0, 0}, {5, 0, 0},
		} {
			n, err := col.ReadAt(context.Background(), make([]byte, tt.n), tt.off)
			if err != nil || int64(n) != tt.want {
				t.Errorf("%s: ReadAt(%d bytes, %d) = %d, %v; want %d", col.Name, tt.n, tt.off, n, err, tt.want)
			}
		}
	}
}

func TestNpyHeaderEndsOn64(t *testing.T) {
	for _, tt := range []struct {
		dtype string
		shape []int64
		text  string
	}{
		{"<f4", []int64{0}, "{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }"},
		{"<i8", []int64{1 << 40}, "{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776,), }"},
		{"|i1", []int64{7, 16}, "{'descr': '|i1', 'fortran_order': False, 'shape': (7, 16), }"},
	} {
		h := npyHeader(tt.dtype, tt.shape...)
		if len(h)%64 != 0 || h[len(h)-1] != '\n' || strings.TrimSpace(string(h[10:])) != tt.text {
			t.Errorf("npyHeader(%s, %v): %d bytes, %q", tt.dtype, tt.shape, len(h), h)
		}
		if n := int(h[8]) | int(h[9])<<8; n != len(h)-10 || string(h[:8]) != "\x93NUMPY\x01\x00" {
			t.Errorf("npyHeader(%s, %v) begins %q", tt.dtype, tt.shape, h[:10])
		}
	}
}

func TestCloseLeavesNoGoroutines(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	name, _ := large(t, 1)
	for range 5 {
		c, err := Open(context.Background(), []string{name}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestPanicOfAWorkerIsAnErrorOfItsReader(t *testing.T) {
	name, want := large(t, 1)
	c := open(t, Options{Threads: 1}, name)
	err := c.m.withDecoder(context.Background(), c.sources[0], &c.sources[0].runs[0], func(*decoder) error { panic("as told") })
	if !errors.Is(err, errPanic) || !strings.Contains(err.Error(), "as told") {
		t.Errorf("error %v", err)
	}
	if got, _ := readAll(t, c.View().Banks()[0].Columns[0]); string(got) != string(want["T::b0/i"]) {
		t.Error("other bytes afterwards")
	}
}
