package materialize

import (
	"context"
	"encoding/binary"
	"errors"
	"iter"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hipofs/hipofs/hipo"
)

// Column is one .npy file: a header and the content. Only its exported fields
// are fixed from the start; its size waits for the counting pass.
type Column struct {
	Name   string // as the dictionary has it; "offsets", "entry", … for computed ones
	Type   string // HIPO letter B S I F D L; "" for computed ones
	Length int    // values a row: N of T#N, else 1
	Dtype  string // "<f4", "|i1", …

	kind  columnKind
	view  *View
	bank  *Bank // nil for the columns that have one value an entry
	index int   // in the schema, of a content column
	width int64 // bytes a row

	frame    atomic.Pointer[frame] // nil until rows are counted
	verified atomic.Bool           // in a view of some entries: its streams have all been tried, and are good

	reads sequence // of rows
	disk  *onDisk  // nil where there is no tier
}

// columnKind is what a column's content comes from.
type columnKind uint8

const (
	contentColumn columnKind = iota // a column of the schema
	offsetsColumn
	entryColumn
	pointerColumn
	eventTagsColumn
	recordTagsColumn
	entryNumbersColumn
)

// fill makes the content of p, whose length is a whole number of rows, from that
// row on.
func (c *Column) fill(ctx context.Context, p []byte, row int64) error {
	switch c.kind {
	case offsetsColumn:
		return c.fillOffsets(ctx, p, row)
	case entryColumn:
		return c.fillEntry(ctx, p, row)
	case pointerColumn:
		return c.fillPointer(ctx, p, row)
	case eventTagsColumn:
		return c.fillEventTags(ctx, p, row)
	case recordTagsColumn:
		return c.fillRecordTags(ctx, p, row)
	case entryNumbersColumn:
		return c.fillEntryNumbers(ctx, p, row)
	}
	return c.eachPiece(ctx, row*c.width, int64(len(p)), func(b []byte) { p = p[copy(p, b):] })
}

// frame is what the row count decides about a file.
type frame struct {
	header []byte
	rows   int64
	size   int64
}

// measure waits for the counting pass and makes the frame.
func (c *Column) measure(ctx context.Context) (*frame, error) {
	if f := c.frame.Load(); f != nil {
		return f, nil
	}
	rows, err := c.view.Count(ctx)
	if err != nil {
		return nil, err
	}
	if c.bank != nil {
		if c.Type != "" {
			c.view.chain.m.askWhileCounting(c.key())
		}
		who := &Waiting{Reader: ctx, Bank: c.bank.Name, Column: c.Name, For: forCounting}
		if err := c.bank.count(ctx, who); err != nil {
			return nil, err
		}
		n := c.bank.rows[len(c.bank.rows)-1]
		if c.kind == pointerColumn {
			if err := c.bank.target.count(ctx, who); err != nil {
				return nil, err
			}
		}
		if c.kind != offsetsColumn {
			rows = n
		} else {
			rows++
		}
	} else if c.kind == eventTagsColumn {
		if err := c.view.wait(ctx, &Waiting{Reader: ctx, Column: c.Name, For: forCounting}); err != nil {
			return nil, err
		}
	}
	shape := []int64{rows}
	if c.Length > 1 {
		shape = append(shape, int64(c.Length))
	}
	f := &frame{header: npyHeader(c.Dtype, shape...), rows: rows}
	f.size = int64(len(f.header)) + rows*c.width
	c.frame.Store(f)
	return f, nil
}

func (c *Column) key() columnKey { return columnKey{c.bank.id, int32(c.index)} }

// Size is the length of the .npy file in bytes, header included, exact. It
// waits for the counting pass, and fails where a record it needs is damaged.
func (c *Column) Size(ctx context.Context) (int64, error) {
	f, err := c.measure(ctx)
	if err != nil {
		return 0, err
	}
	if err := c.knownFault(); err != nil {
		return 0, err
	}
	return f.size, nil
}

// knownFault is what verifying the column's streams has found so far, or that a
// file and its index contradict each other.
func (c *Column) knownFault() error {
	k, ok := c.needs()
	for _, s := range c.view.sources {
		if err := s.contrary.Load(); err != nil {
			return *err
		}
		if !ok || c.view.narrow != nil { // what is damaged may be no part of the view
			continue
		}
		s.mu.Lock()
		err := s.verified[k]
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// needs is the column whose content this one is made of, if any.
func (c *Column) needs() (columnKey, bool) {
	switch {
	case c.Type != "":
		return c.key(), true
	case c.kind == pointerColumn:
		return columnKey{c.bank.id, int32(c.bank.pindex)}, true
	}
	return columnKey{}, false
}

// Open makes sure that every record the column needs decodes. After it, ReadAt
// fails only if a source has changed or cannot be read any more.
func (c *Column) Open(ctx context.Context) error {
	f, err := c.measure(ctx)
	if err != nil {
		return err
	}
	if err := c.knownFault(); err != nil {
		return err
	}
	if f.rows == 0 { // as in most banks of most dictionaries: nothing is read, or worth planning for
		return nil
	}
	if c.bank != nil && !c.InMemory() {
		if err := c.bank.look(ctx); err != nil {
			return err
		}
	}
	return c.verify(ctx)
}

// verify says that the column is wanted, and makes sure that what the counting
// pass has left alone of it decodes.
func (c *Column) verify(ctx context.Context) error {
	k, ok := c.needs()
	if !ok {
		return nil
	}
	c.view.chain.m.ask(k)
	if n := c.view.narrow; n != nil {
		return n.verify(ctx, c, k)
	}
	for _, s := range c.view.sources {
		if err := s.verifyColumn(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

// A look at a source costs a system call, on a farm a question to a server. It
// asks for the first mostLooks files of a column, and not longer than
// lookPatience: a server that hangs is for the reads that need it.
const (
	mostLooks    = 64
	lookPatience = time.Second
)

// look finds out whether what the bank will be read from has changed: a read
// that fails under a memory mapping would end the reader's program.
func (b *Bank) look(ctx context.Context) error {
	looked := make(chan error, 1)
	go func() {
		left := mostLooks
		for _, s := range b.filledSources() {
			if err := s.handle.look(); err != nil {
				looked <- err
				return
			}
			if left--; left == 0 {
				break
			}
		}
		looked <- nil
	}()
	timer := time.NewTimer(lookPatience)
	defer timer.Stop()
	select {
	case err := <-looked:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// filledSources are the sources that the bank's rows are in.
func (b *Bank) filledSources() (sources []*source) {
	if n := b.view.narrow; n != nil {
		for r, k := range n.chosen.Load().runs {
			if b.rows[r+1] > b.rows[r] && (len(sources) == 0 || sources[len(sources)-1] != k.source) {
				sources = append(sources, k.source)
			}
		}
		return sources
	}
	for _, s := range b.view.sources {
		if t := s.tables[b.id]; t != nil && t.total() > 0 {
			sources = append(sources, s)
		}
	}
	return sources
}

// mostRuns is how many runs InMemory looks at.
const mostRuns = 4096

// Stride is about how many bytes of the file one run of records makes.
func (c *Column) Stride() int64 {
	f := c.frame.Load()
	if f == nil {
		return 0
	}
	runs := 0
	if n := c.view.narrow; n != nil {
		runs = len(n.chosen.Load().runs)
	} else {
		for _, s := range c.view.sources {
			runs += len(s.runs)
		}
	}
	return f.size / int64(max(1, runs))
}

// InMemory reports whether reading the column decodes nothing. Of a column that
// is spread over very many records it says no without looking.
func (c *Column) InMemory() bool {
	k, ok := c.needs()
	switch {
	case ok:
	case c.bank != nil: // offsets and entries are made of counts
		k = columnKey{c.bank.id, endsColumn}
	default:
		return false
	}
	left := mostRuns
	if n := c.view.narrow; n != nil {
		return n.inMemory(c.bank, k.column, left)
	}
	for _, s := range c.view.sources {
		t := s.tablesSoFar()[k.bank]
		if t == nil {
			continue
		}
		for r := range s.runs {
			if t.in(r) == 0 {
				continue
			}
			if left--; left < 0 || !c.view.chain.m.chunks.has(chunkKey{s.number, int32(r), k.bank, k.column}) {
				return false
			}
		}
	}
	return true
}

// verifyColumn inflates whatever the counting pass has left alone of a column:
// its streams in split records.
func (s *source) verifyColumn(ctx context.Context, k columnKey) error {
	t := s.tables[k.bank]
	if t == nil {
		return nil
	}
	s.mu.Lock()
	err, tried := s.verified[k]
	s.mu.Unlock()
	if tried {
		return err
	}
	m := s.chain.m
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(m.threads, s.handle.abreast()))
	for r := range s.runs {
		if !s.runs[r].split || t.in(r) == 0 {
			continue
		}
		g.Go(func() error {
			return s.chain.guard(func() error {
				_, err := m.chunk(gctx, s, chunkKey{s.number, int32(r), k.bank, k.column})
				return err
			})
		})
	}
	err = g.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var fe *hipo.FormatError
	if err != nil && !errors.As(err, &fe) {
		return err // of the disk, say: the next one may have more luck
	}
	s.mu.Lock()
	s.verified[k] = err
	s.mu.Unlock()
	s.news.Store(true)
	return err
}

// ReadAt fills p with the file's bytes from off on, and returns how many there
// were; fewer than len(p) only at the end, 0 past it, both without error.
func (c *Column) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	pieces, err := c.Read(ctx, p, off)
	return putTogether(p, pieces), err
}

// putTogether puts pieces one behind the other, and gives their length.
func putTogether(p []byte, pieces [][]byte) (n int) {
	for _, b := range pieces {
		n += copy(p[n:], b)
	}
	return n
}

// mostPieces is in how many pieces a read is answered. What there is more of is
// copied: a piece is to be some pages at least.
const mostPieces = 64

// Read gives what ReadAt does as it lies in memory, in pieces that are not to be
// written to. What must be made, or is in too many pieces, is put where ReadAt
// would put it in p.
func (c *Column) Read(ctx context.Context, p []byte, off int64) ([][]byte, error) {
	f, err := c.measure(ctx)
	if err != nil {
		return nil, err
	}
	if off < 0 || off >= f.size {
		return nil, nil
	}
	p = p[:min(int64(len(p)), f.size-off)]
	c.lookAhead(c.rowsAt(f, off, len(p)))
	pieces, err := c.pieces(ctx, f, p, off)
	if err != nil {
		return nil, err
	}
	c.view.chain.m.bytesServed.Add(int64(len(p)))
	c.follow(f, off, len(p))
	return pieces, nil
}

// rowsAt are the rows in n bytes of the file from off on: the first, and how many.
func (c *Column) rowsAt(f *frame, off int64, n int) (row, rows int64) {
	from, to := max(0, off-int64(len(f.header))), max(0, off+int64(n)-int64(len(f.header)))
	row = from / c.width
	return row, (to+c.width-1)/c.width - row
}

// pieces is Read of bytes all of which exist.
func (c *Column) pieces(ctx context.Context, f *frame, p []byte, off int64) (pieces [][]byte, err error) {
	head := f.header[min(off, int64(len(f.header))):]
	if len(head) >= len(p) {
		return append(pieces, head[:len(p)]), nil
	}
	if len(head) > 0 {
		pieces = append(pieces, head)
	}
	n := len(head) // of p that is in pieces
	pos := off + int64(n) - int64(len(f.header))
	if c.kind != contentColumn {
		return append(pieces, p[n:]), c.makeRows(ctx, p[n:], pos)
	}
	joined := 0 // of p from n on
	err = c.eachPiece(ctx, pos, int64(len(p)-n), func(b []byte) {
		if len(pieces) < mostPieces {
			pieces = append(pieces, b)
			n += len(b)
		} else {
			joined += copy(p[n+joined:], b)
		}
	})
	if joined > 0 {
		pieces = append(pieces, p[n:n+joined])
	}
	return pieces, err
}

// copyOut fills p with the file's bytes from off on, all of which exist.
func (c *Column) copyOut(ctx context.Context, f *frame, p []byte, off int64) error {
	pieces, err := c.pieces(ctx, f, p, off)
	putTogether(p, pieces)
	return err
}

// Content is the whole content of a small column: the values, without a header.
func (c *Column) Content(ctx context.Context) ([]byte, error) {
	if err := c.Open(ctx); err != nil {
		return nil, err
	}
	f, err := c.measure(ctx)
	if err != nil {
		return nil, err
	}
	p := make([]byte, f.rows*c.width)
	if len(p) == 0 {
		return p, nil
	}
	return p, c.fill(ctx, p, 0)
}

// makeRows fills p, which is not empty, from byte pos of the content on.
func (c *Column) makeRows(ctx context.Context, p []byte, pos int64) error {
	row, skip := pos/c.width, pos%c.width
	rows := (skip + int64(len(p)) + c.width - 1) / c.width
	if skip == 0 && rows*c.width == int64(len(p)) {
		return c.fill(ctx, p, row)
	}
	// A read that begins or ends inside a row is cut out of whole ones.
	b := make([]byte, rows*c.width)
	if err := c.fill(ctx, b, row); err != nil {
		return err
	}
	copy(p, b[skip:])
	return nil
}

// stretch is a run, or what a view keeps of it.
type stretch struct {
	source *source
	i      int // of the view's sources; not of a view of some entries
	r      int // run of the source; or of what the view keeps
}

// stretches are the runs of the view, in order, once it is counted.
func (v *View) stretches() iter.Seq[stretch] {
	return func(yield func(stretch) bool) {
		if n := v.narrow; n != nil {
			for r, k := range n.chosen.Load().runs {
				if !yield(stretch{k.source, 0, r}) {
					return
				}
			}
			return
		}
		for i, s := range v.sources {
			for r := range s.runs {
				if !yield(stretch{s, i, r}) {
					return
				}
			}
		}
	}
}

// runOf is the number of a run, as source.runAt has it.
func (v *View) runOf(x stretch) int32 {
	if v.narrow != nil {
		return v.narrow.chosen.Load().runs[x.r].run
	}
	return int32(x.r)
}

// entriesIn is how many entries the view has in a run.
func (v *View) entriesIn(x stretch) int64 {
	if v.narrow != nil {
		return v.narrow.chosen.Load().runs[x.r].entries
	}
	return x.source.runs[x.r].entries
}

// wants is what decodes for the view gather.
func (v *View) wants() wants {
	if v.narrow != nil {
		return v.narrow.wants
	}
	return v.chain.m.chainWants
}

// place finds where a row of the bank lies: in which run, and how many rows of
// that come before.
func (b *Bank) place(row int64) (x stretch, in int64) {
	i := before(b.rows, row)
	if n := b.view.narrow; n != nil {
		return stretch{n.chosen.Load().runs[i].source, 0, i}, row - b.rows[i]
	}
	s := b.view.sources[i]
	in = row - b.rows[i]
	t := s.tables[b.id]
	r := before(t.rows, in)
	return stretch{s, i, r}, in - t.rows[r]
}

// in is the bank's rows in a run.
func (b *Bank) in(x stretch) int64 {
	if b.view.narrow != nil {
		return b.rows[x.r+1] - b.rows[x.r]
	}
	if t := x.source.tables[b.id]; t != nil {
		return t.in(x.r)
	}
	return 0
}

// chunk is a column's chunk of a run that the bank has rows in.
func (b *Bank) chunk(ctx context.Context, x stretch, column int32) ([]byte, error) {
	return b.chunkBy(ctx, x, column, b.view.chain.m.chainWants)
}

// chunkBy is the same for a reader whose decodes gather what w wants. What those
// of a view of some entries gather is the view's own.
func (b *Bank) chunkBy(ctx context.Context, x stretch, column int32, w wants) ([]byte, error) {
	if n := b.view.narrow; n != nil {
		return n.chunk(ctx, x.r, b.id, column, b.in(x))
	}
	return b.view.chain.m.chunkBy(ctx, x.source, chunkKey{x.source.number, int32(x.r), b.id, column}, w)
}

// eachPiece gives n bytes from byte pos of the content on, chunk by chunk.
func (c *Column) eachPiece(ctx context.Context, pos, n int64, f func([]byte)) error {
	for n > 0 {
		x, in := c.bank.place(pos / c.width)
		chunk, err := c.bank.chunk(ctx, x, int32(c.index))
		if err != nil {
			return err
		}
		rest := chunk[in*c.width+pos%c.width:]
		b := rest[:min(n, int64(len(rest)))]
		f(b)
		pos += int64(len(b))
		n -= int64(len(b))
		c.serve(x, int64(len(b)))
		if len(b) == len(rest) {
			c.passed(pos / c.width)
		}
	}
	return nil
}

// serve notes that n bytes of a chunk have been read.
func (c *Column) serve(x stretch, n int64) {
	m := c.view.chain.m
	if narrow := c.view.narrow; narrow != nil {
		m.chunks.serve(narrow.key(x.r, c.bank.id, int32(c.index)), n)
		return
	}
	m.chunks.serve(chunkKey{x.source.number, int32(x.r), c.bank.id, int32(c.index)}, n)
}

// passed notes that a reader has come to the end of a chunk, which is that row of
// the bank.
func (c *Column) passed(row int64) {
	if c.view.narrow == nil && row == c.bank.rows[len(c.bank.rows)-1] {
		c.view.chain.m.finish(c.key())
	}
}

// ends is the rows of the bank in a run up to and with each of its entries; nil
// if there are none.
func (b *Bank) ends(ctx context.Context, x stretch) ([]byte, error) {
	if b.in(x) == 0 {
		return nil, nil
	}
	return b.chunk(ctx, x, endsColumn)
}

// end is the rows up to and with entry e of a run, and up to it without.
func end(ends []byte, e int64) (through, upTo int64) {
	if ends == nil {
		return 0, 0
	}
	if e > 0 {
		upTo = int64(binary.LittleEndian.Uint32(ends[4*(e-1):]))
	}
	return int64(binary.LittleEndian.Uint32(ends[4*e:])), upTo
}

// runOf finds the run of a source that holds an entry.
func (s *source) runOf(entry int64) int {
	return sort.Search(len(s.runs)-1, func(r int) bool { return s.runs[r+1].entry > entry })
}

// eachRun calls f for the runs that hold the n entries of the view from first
// on: with the first entry that is asked for, and how many are.
func (v *View) eachRun(first, n int64, f func(x stretch, from, n int64) error) error {
	if v.narrow != nil {
		return v.narrow.eachRun(first, n, f)
	}
	for n > 0 {
		i := before(v.starts, first)
		s := v.sources[i]
		in := first - v.starts[i]
		r := s.runOf(in)
		from := in - s.runs[r].entry
		take := min(n, s.runs[r].entries-from)
		if err := f(stretch{s, i, r}, from, take); err != nil {
			return err
		}
		first += take
		n -= take
	}
	return nil
}

// entriesBefore is the entries of the view before a run.
func (v *View) entriesBefore(x stretch) int64 {
	if v.narrow != nil {
		return v.narrow.chosen.Load().starts[x.r]
	}
	return v.starts[x.i] + x.source.runs[x.r].entry
}

// rowsBefore is the rows of the bank before a run.
func (b *Bank) rowsBefore(x stretch) int64 {
	if b.view.narrow != nil {
		return b.rows[x.r]
	}
	if t := x.source.tables[b.id]; t != nil {
		return b.rows[x.i] + t.rows[x.r]
	}
	return b.rows[x.i]
}

func put(p []byte, v int64) []byte {
	binary.LittleEndian.PutUint64(p, uint64(v))
	return p[8:]
}

// fillOffsets gives offsets[e] = rows before entry e; the last is all rows.
func (c *Column) fillOffsets(ctx context.Context, p []byte, row int64) error {
	n := int64(len(p)) / 8
	last := row+n == c.frame.Load().rows
	if last {
		n--
	}
	err := c.view.eachRun(row, n, func(x stretch, from, n int64) error {
		ends, err := c.bank.ends(ctx, x)
		if err != nil {
			return err
		}
		base := c.bank.rowsBefore(x)
		for e := from; e < from+n; e++ {
			_, upTo := end(ends, e)
			p = put(p, base+upTo)
		}
		return nil
	})
	if err == nil && last {
		put(p, c.bank.rows[len(c.bank.rows)-1])
	}
	return err
}

// eachRowRun calls f for the runs that hold the n rows of the bank from first
// on: with the run's ends, its first row that is asked for, and how many are.
func (b *Bank) eachRowRun(ctx context.Context, first, n int64, f func(x stretch, ends []byte, from, n int64) error) error {
	for n > 0 {
		x, in := b.place(first)
		ends, err := b.ends(ctx, x)
		if err != nil {
			return err
		}
		take := min(n, b.in(x)-in)
		if err := f(x, ends, in, take); err != nil {
			return err
		}
		first += take
		n -= take
	}
	return nil
}

// eachRow calls f for n rows of a run from first on, each with its entry.
func eachRow(ends []byte, first, n int64, f func(row, entry int64)) {
	through := func(e int) int64 { return int64(binary.LittleEndian.Uint32(ends[4*e:])) }
	e := sort.Search(len(ends)/4, func(e int) bool { return through(e) > first })
	for row := first; row < first+n; row++ {
		for through(e) <= row {
			e++
		}
		f(row, int64(e))
	}
}

// fillEntry gives the entry that each row belongs to.
func (c *Column) fillEntry(ctx context.Context, p []byte, row int64) error {
	return c.bank.eachRowRun(ctx, row, int64(len(p))/8, func(x stretch, ends []byte, from, n int64) error {
		base := c.view.entriesBefore(x)
		eachRow(ends, from, n, func(_, e int64) { p = put(p, base+e) })
		return nil
	})
}

// fillPointer gives the row of the target that each row's pindex points to, -1
// where the entry has no such row.
func (c *Column) fillPointer(ctx context.Context, p []byte, row int64) error {
	b := c.bank
	size := b.schema.Columns[b.pindex].Type.Size
	return b.eachRowRun(ctx, row, int64(len(p))/8, func(x stretch, ends []byte, from, n int64) error {
		pindex, err := b.chunk(ctx, x, int32(b.pindex))
		if err != nil {
			return err
		}
		targets, err := b.target.ends(ctx, x)
		if err != nil {
			return err
		}
		base := b.target.rowsBefore(x)
		eachRow(ends, from, n, func(row, e int64) {
			p = put(p, pointed(targets, e, base, integer(pindex[row*int64(size):], size)))
		})
		return nil
	})
}

// pointed is the row that number at of the rows of entry e is, where base rows come
// before the run with these ends; -1, if there is none.
func pointed(ends []byte, e, base, at int64) int64 {
	through, upTo := end(ends, e)
	if at < 0 || at >= through-upTo {
		return -1
	}
	return base + upTo + at
}

// integer is the signed little-endian integer of that size that begins b.
func integer(b []byte, size int) int64 {
	switch size {
	case 1:
		return int64(int8(b[0]))
	case 2:
		return int64(int16(binary.LittleEndian.Uint16(b)))
	case 4:
		return int64(int32(binary.LittleEndian.Uint32(b)))
	default:
		return int64(binary.LittleEndian.Uint64(b))
	}
}

// fillEventTags copies event tags out of chunks.
func (c *Column) fillEventTags(ctx context.Context, p []byte, row int64) error {
	return c.view.eachRun(row, int64(len(p))/4, func(x stretch, from, n int64) error {
		tags, err := c.view.tags(ctx, x)
		if err != nil {
			return err
		}
		p = p[copy(p, tags[4*from:4*(from+n)]):]
		return nil
	})
}

func (v *View) tags(ctx context.Context, x stretch) ([]byte, error) {
	if v.narrow != nil {
		return v.narrow.chunk(ctx, x.r, tagsBank, 0, 0)
	}
	return v.chain.m.chunk(ctx, x.source, chunkKey{x.source.number, int32(x.r), tagsBank, 0})
}

// fillRecordTags gives each entry its record's user word 1.
func (c *Column) fillRecordTags(ctx context.Context, p []byte, row int64) error {
	return c.view.eachRun(row, int64(len(p))/8, func(x stretch, from, n int64) error {
		run, of, err := c.view.entriesOf(ctx, x)
		if err != nil {
			return err
		}
		p = putRecordTags(p, x.source.file.Records[run.first:run.first+run.records], of, from, n)
		return nil
	})
}

// putRecordTags puts the record tags of n picked entries of a run, from the one
// numbered from on.
func putRecordTags(p []byte, headers []hipo.RecordHeader, of picked, from, n int64) []byte {
	next := int64(headers[0].Events)
	for i := from; i < from+n; i++ {
		for e := of.at(i); e >= next; {
			headers = headers[1:]
			next += int64(headers[0].Events)
		}
		p = put(p, headers[0].UserTag)
	}
	return p
}

// fillEntryNumbers gives each entry its number in the whole chain.
func (c *Column) fillEntryNumbers(ctx context.Context, p []byte, row int64) error {
	return c.view.eachRun(row, int64(len(p))/8, func(x stretch, from, n int64) error {
		run, of, err := c.view.entriesOf(ctx, x)
		if err != nil {
			return err
		}
		first := x.source.first + run.entry
		for i := from; i < from+n; i++ {
			p = put(p, first+of.at(i))
		}
		return nil
	})
}

// entriesOf is a run, and which of its entries the view has.
func (v *View) entriesOf(ctx context.Context, x stretch) (*run, picked, error) {
	if n := v.narrow; n != nil {
		c := n.chosen.Load()
		of, err := n.picked(ctx, c, x.r)
		return x.source.runAt(c.runs[x.r].run), of, err
	}
	run := &x.source.runs[x.r]
	return run, picked{to: run.entries}, nil
}

// sequence tells a reader who reads a file in order.
type sequence struct {
	mu    sync.Mutex
	next  int64 // where the last read ended
	steps int   // reads that began where the one before had ended
}

// A reader counts as sequential after this many reads, each of which began
// where the one before had ended.
const sequentialSteps = 4

// follows notes a read, and reports whether it is that of a sequential reader.
func (s *sequence) follows(from, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if from == s.next {
		s.steps++
	} else {
		s.steps = 0
	}
	s.next = from + n
	return s.steps >= sequentialSteps
}

// lookAhead notes a read of n rows and, for a sequential reader, starts to
// decode what comes next.
func (c *Column) lookAhead(row, n int64) {
	k, ok := c.needs()
	if !ok || n == 0 || !c.reads.follows(row, n) {
		return
	}
	x, _ := c.bank.place(row)
	c.bank.lookAhead(x, k.column, c.view.chain.m.chainWants)
}

// lookAhead starts to decode the chunks of a column from a run on.
func (b *Bank) lookAhead(x stretch, column int32, w wants) {
	m := b.view.chain.m
	// Twice the decodes that can run at once keeps them busy; what is decoded
	// ahead must not push out what is being read.
	ahead := int64(max(2*m.threads, x.source.handle.abreast()))
	if n := b.view.narrow; n != nil {
		n.lookAhead(b, x.r, column, ahead)
		return
	}
	s, t := x.source, x.source.tables[b.id]
	if t == nil {
		return
	}
	for r := x.r; ahead > 0 && r < len(s.runs); r++ {
		if t.in(r) == 0 {
			continue
		}
		ahead--
		if s.runs[r].inflated*int64(2*m.threads) > m.chunks.budget/2 {
			return
		}
		m.ahead(s, chunkKey{s.number, int32(r), b.id, column}, w)
	}
}
