package materialize

import (
	"context"
	"errors"
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
// fails only if a source has changed or cannot be read any more. The stride is
// about how many bytes of the file one decode makes; 0 if all is in memory.
func (c *Column) Open(ctx context.Context) (stride int64, err error) {
	f, err := c.measure(ctx)
	if err != nil {
		return 0, err
	}
	if err := c.knownFault(); err != nil {
		return 0, err
	}
	if f.rows == 0 { // as in most banks of most dictionaries: nothing is read, or worth planning for
		return 0, nil
	}
	inMemory := c.inMemory()
	if c.bank != nil && !inMemory {
		if err := c.bank.look(ctx); err != nil {
			return 0, err
		}
	}
	if err := c.verify(ctx); err != nil {
		return 0, err
	}
	if inMemory || c.inMemory() {
		return 0, nil
	}
	return max(1, f.size/c.view.runs()), nil
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

// mostRuns is of how many runs it is looked up whether they are in memory.
const mostRuns = 4096

// inMemory reports whether all that the column is made of is in memory. Of a
// column that is spread over very many records it says no without looking.
func (c *Column) inMemory() bool {
	k, ok := c.needs()
	switch {
	case ok:
	case c.bank != nil: // offsets and entries are made of counts
		k = columnKey{c.bank.id, endsColumn}
	case c.view.narrow != nil:
		return false
	case c.kind == eventTagsColumn:
		k = columnKey{tagsBank, 0}
	default: // what the headers of records say
		return true
	}
	left := mostRuns
	if n := c.view.narrow; n != nil {
		return n.inMemory(c.bank, k.column, left)
	}
	for _, s := range c.view.sources {
		t := s.tablesSoFar()[k.bank]
		for r := range s.runs {
			if k.bank != tagsBank && (t == nil || t.in(r) == 0) {
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
	if _, err := c.Open(ctx); err != nil {
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
		c.view.chain.m.chunks.serve(c.bank.key(x, int32(c.index)), int64(len(b)))
		if len(b) == len(rest) {
			c.passed(pos / c.width)
		}
	}
	return nil
}

// passed notes that a reader has come to the end of a chunk, which is that row of
// the bank.
func (c *Column) passed(row int64) {
	if c.view.narrow == nil && row == c.bank.rows[len(c.bank.rows)-1] {
		c.view.chain.m.finish(c.key())
	}
}
