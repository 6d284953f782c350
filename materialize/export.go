package materialize

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/hipofs/hipofs/hipo"
)

// ExportOptions say what of a chain is written to a folder, and how.
type ExportOptions struct {
	Dir   string
	Force bool // replace files that are there

	Entries Slice // of the chain
	Where   Where
	Banks   []ExportBank
	Node    func(*Bank) (ExportBank, bool) // the files of a structure that no dictionary declares; false: it is left out
	Format  ExportFormat

	Compression string   // of parquet: zstd, snappy or none
	Words       []string // options that decide what the files hold: they tell one export from another

	Threads  int               // runs of records worked on at once; 0: one a processor
	Progress func(bytes int64) // called for what was read of a source, or need not be; nil: nobody asks

	noteEvery int64 // inflated bytes that an interrupted export may have to do again; 0: checkpointBytes
}

// ExportFormat is what files are written.
type ExportFormat string

const (
	ExportNpy     ExportFormat = "npy"   // a file for each column
	ExportArrow   ExportFormat = "arrow" // a file for each bank, as the others
	ExportParquet ExportFormat = "parquet"
	ExportCSV     ExportFormat = "csv"
)

// ExportFormats are all there are.
var ExportFormats = []ExportFormat{ExportNpy, ExportArrow, ExportParquet, ExportCSV}

// ExportBank is a bank, and the files that it becomes. One without a Bank has
// columns of the view, one value an entry.
type ExportBank struct {
	Bank    *Bank
	File    string // where in the folder the bank is, if it becomes one file
	Columns []ExportColumn
	Texts   []ExportText
}

// ExportColumn is a column, and where in the folder its file is, if it has one of
// its own.
type ExportColumn struct {
	Column *Column
	Name   string // in the file of the bank; no two columns have the same
	File   string
}

// ExportText is a small file about a bank.
type ExportText struct {
	File   string
	Render func(entries, rows int64) ([]byte, error)
}

// Exported is what a folder has after an export.
type Exported struct {
	Entries int64
	Banks   int
	Files   int
	Bytes   int64
	Written int     // of the files; the others were there
	Faults  []error // why banks are left out
}

// Export writes banks of the chain as files into a folder: the columns that
// a mount shows, made in one pass in which every record is decoded once.
//
//	runs of records → decoded beside each other → in order, rows counted → each bank's files, beside each other
//
// A file gets its name when all are whole. What an export that is interrupted has
// written lies aside, and the next one of the same goes on with it.
func (c *Chain) Export(ctx context.Context, o ExportOptions) (*Exported, error) {
	if o.Progress == nil {
		o.Progress = func(int64) {}
	}
	e := &exporting{
		ExportOptions: o, chain: c, declared: make([]*exportedBank, len(c.banks.schemas)), nodes: map[bankID]*exportedBank{},
		targets: map[bankID]bool{}, rows: map[bankID]int64{},
	}
	var err error
	if e.filter, err = c.exportFilter(o); err != nil {
		return nil, err
	}
	e.candidates = e.filter.candidatesOf(nil)
	if e.dir, err = openExportFolder(o, c.infos); err != nil {
		return nil, err
	}
	defer e.dir.close()
	if e.dir.complete() {
		return e.dir.result, nil
	}
	for i := range o.Banks {
		e.add(o.Banks[i])
	}
	e.checkNames()
	e.checkConflicts()
	if err := e.checkSpace(); err != nil {
		e.dir.drop()
		return nil, err
	}
	if err := e.run(ctx); err != nil {
		if ctx.Err() == nil || !e.dir.resumable {
			e.dir.drop()
		}
		return nil, err
	}
	return e.finish()
}

// exportFilter is the entries that are exported.
func (c *Chain) exportFilter(o ExportOptions) (*narrowing, error) {
	v, err := c.view.Where(o.Where)
	if err != nil {
		return nil, err
	}
	v.narrow.slice = o.Entries
	return v.narrow, nil
}

// exporting is one run of Export.
type exporting struct {
	ExportOptions
	chain      *Chain
	dir        *exportFolder
	filter     *narrowing
	candidates []keptRun
	declared   []*exportedBank // by bankID; nil: not exported
	targets    map[bankID]bool // banks that others point to

	// What belongs to collect while runs are decoded.
	banks   []*exportedBank
	nodes   map[bankID]*exportedBank
	entries int64
	passed  []int64 // entries of each run
	rows    map[bankID]int64
	bytes   int64 // inflated, since the last checkpoint
	faulty  bool  // something has been left out

	room   *semaphore.Weighted // of inflated bytes that are being worked on
	writes *errgroup.Group
}

// bankWriter writes what a bank becomes, share by share in order.
type bankWriter interface {
	write(*share) error
	end(entries, rows int64) error // when all is written
	drop()                         // closes what is open
}

// newWriter begins the files of a bank.
func (e *exporting) newWriter(b *exportedBank) (bankWriter, error) {
	if b.File == "" {
		return newNpyWriter(e.dir, b.Columns), nil
	}
	f, err := e.dir.create(b.File)
	if err != nil {
		return nil, err
	}
	switch e.Format {
	case ExportArrow:
		return newArrowWriter(f, b, e.passed)
	case ExportParquet:
		return newParquetWriter(f, b.Columns, e.Compression)
	}
	return newCSVWriter(f, b.Columns)
}

// exportedBank is a bank on its way into files.
type exportedBank struct {
	ExportBank
	keep    []bool      // columns that a decode gathers; nil: none
	node    *part       // what a structure without a schema is
	err     error       // why it is left out
	pointer error       // why the column that points is
	shares  chan *share // nil: nothing has been written of it
}

// exportRun is a run of records, decoded.
type exportRun struct {
	kept    *keptRun
	run     *run
	of      picked
	first   int64 // entry
	entries int64
	tags    []byte
	shares  map[bankID]*share
	faults  map[bankID]error
	nodes   map[bankID]*part // what structures without a schema are
	weight  int64
	left    atomic.Int32 // banks that have not written it yet
	after   *exportState // what is there when it is written; nil: nobody asks
}

// share is what a run has of a bank.
type share struct {
	run         *exportRun
	first       int64 // row
	rows        int64
	ends        []byte // rows up to and with each entry; nil: none
	columns     [][]byte
	target      []byte // ends of the bank that is pointed to
	targetFirst int64
}

// add takes in a bank, as far as its files are not there.
func (e *exporting) add(b ExportBank) *exportedBank {
	b.Columns = slices.DeleteFunc(slices.Clone(b.Columns), func(c ExportColumn) bool { return !e.dir.wants(cmp.Or(b.File, c.File)) })
	b.Texts = slices.DeleteFunc(slices.Clone(b.Texts), func(t ExportText) bool { return !e.dir.wants(t.File) })
	x := &exportedBank{ExportBank: b}
	e.banks = append(e.banks, x)
	if b.Bank == nil {
		return x
	}
	if int(b.Bank.id) < len(e.declared) {
		e.declared[b.Bank.id] = x
	} else {
		e.nodes[b.Bank.id] = x
	}
	x.keep = make([]bool, len(b.Bank.Columns))
	for _, c := range b.Columns {
		if k, ok := c.Column.needs(); ok {
			x.keep[k.column] = true
		}
		if c.Column.kind == pointerColumn {
			e.targets[b.Bank.target.id] = true
		}
	}
	return x
}

// bank is the bank with that id; nil if it is not exported, or not met.
func (e *exporting) bank(id bankID) *exportedBank {
	if int(id) < len(e.declared) {
		return e.declared[id]
	}
	return e.nodes[id]
}

// checkNames leaves out banks that are many names for the same bytes: each would
// be gathered, and a file can name them a thousand times.
func (e *exporting) checkNames() {
	names := map[[2]int][]*exportedBank{}
	for _, b := range e.banks {
		if b.Bank != nil {
			id := [2]int{int(b.Bank.Group), int(b.Bank.Item)}
			names[id] = append(names[id], b)
		}
	}
	for id, same := range names {
		if len(same) <= maxNamesKept {
			continue
		}
		for _, b := range same {
			e.leaveOut(b.Bank.id, fmt.Errorf("%s is one of %d names for the structures %d/%d; export a few of them at a time, with --banks", b.Bank.Name, len(same), id[0], id[1]))
		}
	}
}

// checkConflicts leaves out banks that a dictionary contradicts itself about.
func (e *exporting) checkConflicts() {
	for _, s := range e.chain.sources {
		for id, why := range s.plan.conflicts {
			e.leaveOut(id, errors.New(why))
		}
	}
}

// leaveOut leaves out a bank, and what points to it.
func (e *exporting) leaveOut(id bankID, why error) {
	if b := e.bank(id); b != nil && b.err == nil {
		e.faulty = true
		b.err = why
		if b.shares != nil {
			close(b.shares)
			b.shares = nil
		}
	}
	if !e.targets[id] {
		return
	}
	e.faulty = true
	for _, b := range e.banks {
		if b.Bank != nil && b.Bank.target != nil && b.Bank.target.id == id && b.pointer == nil {
			b.pointer = why
		}
	}
}

// checkSpace looks whether the disk can hold the files, as far as that is known.
func (e *exporting) checkSpace() error {
	if !e.filter.whole() || e.Format != ExportNpy {
		return nil
	}
	var need int64
	for _, s := range e.chain.sources {
		if s.tablesSoFar() == nil {
			return e.checkLeast()
		}
	}
	for _, b := range e.banks {
		if b.Bank == nil || b.err != nil {
			continue
		}
		var rows int64
		for _, s := range e.chain.sources {
			if t := s.tables[b.Bank.id]; t != nil {
				rows += t.total()
			}
		}
		for _, c := range b.Columns {
			if need += npyHeaderSize + rows*c.Column.width; c.Column.kind == offsetsColumn && rows > 0 {
				need += 8 * (e.chain.view.Entries() - rows)
			}
		}
	}
	return checkSpace(e.Dir, need-e.dir.staged())
}

// checkLeast does the same where nothing is counted yet, if all is exported: the
// columns take most of the inflated bytes.
func (e *exporting) checkLeast() error {
	for _, id := range e.chain.banks.visible {
		b := e.declared[id]
		if e.chain.banks.patterns != nil || b == nil || b.err != nil || slices.Contains(b.keep, false) {
			return nil
		}
	}
	var least int64
	for _, s := range e.chain.sources {
		for i := range s.runs {
			least += s.runs[i].data / 2
		}
	}
	return checkSpace(e.Dir, least-e.dir.staged())
}

// whole reports whether all entries pass.
func (n *narrowing) whole() bool { return n.slice == everything && n.where.all() }

// exportBytes is how many inflated bytes each thread may have under way: a few
// records of a usual size.
const exportBytes = 24 << 20

// leastRun is what the smallest run counts for.
const leastRun = 1 << 20

// run takes the runs through.
func (e *exporting) run(ctx context.Context) error {
	threads := cmp.Or(e.Threads, runtime.GOMAXPROCS(0))
	room := int64(threads) * exportBytes
	e.room = semaphore.NewWeighted(room)
	g, ctx := errgroup.WithContext(ctx)
	e.writes = g
	begin := e.resume()
	passed := e.chain.view.length()
	for i := range e.candidates {
		passed -= e.candidates[i].length()
	}
	for i := range begin {
		passed += e.candidates[i].length()
	}
	e.Progress(passed)

	decoded := make(chan chan *exportRun, room/leastRun)
	g.Go(func() error {
		defer close(decoded)
		for i := begin; i < len(e.candidates); i++ {
			k := &e.candidates[i]
			weight := min(max(k.source.runAt(k.run).data, leastRun), room)
			if err := e.room.Acquire(ctx, weight); err != nil {
				return err
			}
			at := make(chan *exportRun, 1)
			decoded <- at
			g.Go(func() error {
				x, err := e.decode(ctx, k)
				if err != nil {
					return err
				}
				x.weight = weight
				at <- x
				return nil
			})
		}
		return nil
	})
	g.Go(func() error { return e.collect(ctx, begin, decoded) })
	return g.Wait()
}

// length is how many bytes of the files the view's records take.
func (v *View) length() (length int64) {
	for _, s := range v.sources {
		length += s.length
	}
	return length
}

// length is how many bytes of the file the run's records take.
func (k *keptRun) length() int64 { return k.source.lengthOf(k.source.runAt(k.run)) }

// decode decodes a run, and takes what is exported of it.
func (e *exporting) decode(ctx context.Context, k *keptRun) (*exportRun, error) {
	s, m := k.source, e.chain.m
	x := &exportRun{kept: k, run: s.runAt(k.run), shares: map[bankID]*share{}, faults: map[bankID]error{}, nodes: map[bankID]*part{}}
	declared := len(e.declared)
	want := func(id bankID, layout *hipo.Schema) []bool {
		switch {
		case int(id) >= declared && e.Node != nil:
			return slices.Repeat([]bool{true}, len(layout.Columns))
		case int(id) < declared && e.declared[id] != nil:
			return e.declared[id].keep
		}
		return nil
	}
	err := m.withRun(ctx, s, k.run, reading{want: want}, func(d *decoder, got *fetched) error {
		d.apart = true
		out, err := d.decode(s, k.run, want, got, m.note)
		d.apart = false
		if err != nil {
			return err
		}
		if x.of, err = e.filter.kept(k, out); err != nil {
			return err
		}
		x.entries = int64(x.of.count())
		x.tags = x.of.tags(out.tags)
		for i := range out.parts {
			p := &out.parts[i]
			if p.keep == nil && !e.targets[p.bank] {
				continue
			}
			if int(p.bank) >= declared {
				x.nodes[p.bank] = &part{bank: p.bank, layout: p.layout, kind: p.kind, primitive: p.primitive, format: p.format}
			}
			if err := s.checkPart(k.run, p); err != nil {
				x.faults[p.bank] = err
				continue
			}
			x.take(p)
		}
		return nil
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &InputError{err}
	}
	return x, nil
}

// take takes what is kept of a bank.
func (x *exportRun) take(p *part) {
	all := ends(p.counts)
	rows := x.of.rows(all)
	if rows == 0 {
		return
	}
	s := &share{run: x, rows: rows, ends: all, columns: slices.Clone(p.columns)}
	if rows < p.rows || x.of.list != nil {
		for k, b := range s.columns {
			if len(b) > 0 {
				s.columns[k] = x.of.content(all, b)
			}
		}
	}
	if x.entries < x.run.entries {
		s.ends = x.of.ends(all)
	}
	x.shares[p.bank] = s
}

// kept is which entries of a run, as it was decoded, pass.
func (n *narrowing) kept(k *keptRun, out *decoded) (picked, error) {
	of := picked{from: k.from, to: k.to}
	for _, id := range n.banks {
		i := slices.IndexFunc(out.parts, func(p part) bool { return p.bank == id })
		if i < 0 {
			return picked{}, nil
		}
		p := &out.parts[i]
		if p.err != nil {
			return picked{}, p.err
		}
		of = of.filter(func(e uint32) bool { return p.counts[e] > 0 })
	}
	if len(n.where.EventTags) > 0 {
		of = of.filter(func(e uint32) bool { return n.where.event(uint32(integer(out.tags[4*e:], 4))) })
	}
	return of, nil
}

// checkpointBytes is how much an interrupted export may have to do again, unless
// told otherwise.
const checkpointBytes = 256 << 20

// collect numbers what the runs have, in order, and hands it to the banks.
func (e *exporting) collect(ctx context.Context, index int, decoded <-chan chan *exportRun) error {
	for _, b := range e.banks {
		if b.err == nil && (b.Bank == nil || e.rows[b.Bank.id] > 0) {
			if err := e.begin(ctx, b); err != nil {
				return err
			}
		}
	}
	for ; ; index++ {
		x, ok, err := receive(ctx, decoded)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		x.first = e.entries
		e.entries += x.entries
		e.number(x)
		var to []*exportedBank
		for _, b := range e.banks {
			if b.err != nil {
				continue
			}
			if b.shares == nil && b.Bank != nil && x.shares[b.Bank.id] != nil {
				if err := e.begin(ctx, b); err != nil {
					return err
				}
			}
			if b.shares != nil {
				to = append(to, b)
			}
		}
		e.passed = append(e.passed, x.entries)
		if e.bytes += x.run.data; e.bytes > cmp.Or(e.noteEvery, checkpointBytes) {
			e.bytes = 0
			x.after = e.state(index + 1)
		}
		x.left.Store(int32(len(to)))
		if len(to) == 0 {
			if err := e.written(x); err != nil {
				return err
			}
		}
		for _, b := range to {
			s := &share{run: x}
			if b.Bank != nil {
				if mine := x.shares[b.Bank.id]; mine != nil {
					s = mine
				}
				s.first = e.rows[b.Bank.id] - s.rows
				if t := b.Bank.target; t != nil {
					s.targetFirst = e.rows[t.id]
					if other := x.shares[t.id]; other != nil {
						s.target = other.ends
						s.targetFirst -= other.rows
					}
				}
			}
			if err := send(ctx, b.shares, s); err != nil {
				return err
			}
		}
	}
	for _, b := range e.banks {
		if b.shares != nil {
			close(b.shares)
		}
	}
	return nil
}

// number counts the rows of a run, and takes in structures that are met in it.
func (e *exporting) number(x *exportRun) {
	for id, p := range x.nodes {
		b := e.nodes[id]
		if b == nil && x.shares[id] == nil && x.faults[id] == nil && !e.filter.whole() {
			continue // a view has those that its entries have rows of
		}
		if b == nil {
			b = e.meet(p)
		}
		if !b.node.layout.SameLayout(p.layout) {
			e.leaveOut(id, fmt.Errorf("%s is of several kinds: also %s in %s", e.chain.bankName(id), p.kind, x.kept.source.file.Name))
		}
	}
	for id, err := range x.faults {
		if name := e.chain.bankName(id); !strings.Contains(err.Error(), name) {
			err = fmt.Errorf("%s: %w", name, err)
		}
		e.leaveOut(id, err)
	}
	for id, s := range x.shares {
		e.rows[id] += s.rows
	}
}

// meet takes in a structure that no dictionary declares.
func (e *exporting) meet(p *part) *exportedBank {
	bank, ok := e.Node(newNode(e.chain.view, p.bank, p.layout))
	b := e.add(bank)
	b.node = p
	if !ok {
		b.err = errLeftOut
	}
	return b
}

// errLeftOut is of a structure that nobody asked for.
var errLeftOut = errors.New("left out")

// begin begins to write a bank.
func (e *exporting) begin(ctx context.Context, b *exportedBank) error {
	w, err := e.newWriter(b)
	if err != nil {
		return err
	}
	shares := make(chan *share, 4)
	b.shares = shares
	e.writes.Go(func() error {
		return e.chain.guard(func() error { return e.writeBank(ctx, b, w, shares) })
	})
	return nil
}

// writeBank writes what comes of a bank.
func (e *exporting) writeBank(ctx context.Context, b *exportedBank, w bankWriter, shares <-chan *share) error {
	defer w.drop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case s, ok := <-shares:
			if !ok && b.err != nil {
				return nil
			}
			if !ok {
				return w.end(e.entries, e.rowsOf(b))
			}
			if err := w.write(s); err != nil {
				return err
			}
			if s.run.left.Add(-1) == 0 {
				if err := e.written(s.run); err != nil {
					return err
				}
			}
		}
	}
	return ctx.Err()
}

// rowsOf is how many rows a bank has, once all are counted.
func (e *exporting) rowsOf(b *exportedBank) int64 {
	if b.Bank == nil {
		return 0
	}
	return e.rows[b.Bank.id]
}

// written is called when a run is in all files, and so are those before it.
func (e *exporting) written(x *exportRun) error {
	e.room.Release(x.weight)
	e.Progress(x.kept.length())
	if x.after == nil {
		return nil
	}
	return e.dir.checkpoint(x.after)
}

// finish writes what is left, and gives the files their names.
func (e *exporting) finish() (*Exported, error) {
	r := &Exported{Entries: e.entries}
	var files []string
	for _, b := range e.banks {
		if b.err != nil {
			if b.err != errLeftOut {
				r.Faults = append(r.Faults, b.err)
			}
			continue
		}
		if err := e.finishBank(b); err != nil {
			e.dir.drop()
			return nil, err
		}
		if b.Bank != nil {
			r.Banks++
		}
		if b.File != "" && len(b.Columns) > 0 {
			files = append(files, b.File)
		}
		for _, c := range b.Columns {
			switch {
			case b.pointer != nil && c.Column.kind == pointerColumn:
				r.Faults = append(r.Faults, fmt.Errorf("%s: %w", c.File, b.pointer))
			case b.File == "":
				files = append(files, c.File)
			}
		}
		for _, t := range b.Texts {
			files = append(files, t.File)
		}
	}
	return r, e.dir.seal(files, r)
}

// finishBank writes what a bank has without rows, and the texts about it.
func (e *exporting) finishBank(b *exportedBank) error {
	if b.shares == nil && len(b.Columns) > 0 {
		w, err := e.newWriter(b)
		if err != nil {
			return err
		}
		if err := w.end(e.entries, 0); err != nil {
			return err
		}
	}
	for _, t := range b.Texts {
		if err := e.dir.text(t, e.entries, e.rowsOf(b)); err != nil {
			return err
		}
	}
	return nil
}

// CheckExportColumns says what is wrong with a pattern of columns.
func CheckExportColumns(pattern string) error {
	bank, column, both := strings.Cut(pattern, "/")
	for _, part := range []string{bank, column} {
		if _, err := path.Match(part, ""); err != nil || bank == "" || both && column == "" {
			return fmt.Errorf("want COLUMN or BANK/COLUMN, such as p*,REC::Calorimeter/energy")
		}
	}
	return nil
}
