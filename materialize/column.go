package materialize

import (
	"context"
	"encoding/binary"
	"errors"
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

	view  *View
	bank  *Bank // nil for the columns that have one value an entry
	index int   // in the schema, of a content column
	width int64 // bytes a row

	// fill makes the content of p, whose length is a whole number of rows, from
	// that row on.
	fill func(ctx context.Context, p []byte, row int64) error

	frame atomic.Pointer[frame] // nil until rows are counted

	mu    sync.Mutex
	next  int64 // row behind the last read, to tell a sequential reader
	steps int   // reads that began where the one before had ended

	disk onDisk
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
	rows := c.view.Entries()
	if c.bank != nil {
		if c.Type != "" {
			c.view.chain.m.askWhileCounting(c.key())
		}
		who := &Waiting{Reader: ctx, Bank: c.bank.Name, Column: c.Name, For: forCounting}
		if err := c.bank.count(ctx, who); err != nil {
			return nil, err
		}
		n := c.bank.rows[len(c.bank.rows)-1]
		if c == c.bank.Pointer {
			if err := c.bank.target.count(ctx, who); err != nil {
				return nil, err
			}
		}
		if c != c.bank.Offsets {
			rows = n
		} else {
			rows++
		}
	} else if c == c.view.eventTags {
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
		if !ok {
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
	case c.bank != nil && c == c.bank.Pointer:
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
	if err := c.look(ctx); err != nil {
		return err
	}
	k, ok := c.needs()
	if !ok {
		return nil
	}
	c.view.chain.m.ask(k)
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

// look finds out whether what the column will be read from has changed: a read
// that fails under a memory mapping would end the reader's program.
func (c *Column) look(ctx context.Context) error {
	if c.bank == nil || c.InMemory() {
		return nil
	}
	looked := make(chan error, 1)
	go func() {
		left := mostLooks
		for _, s := range c.view.sources {
			t := s.tables[c.bank.id]
			if t == nil || t.total() == 0 {
				continue
			}
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

// mostRuns is how many runs InMemory looks at.
const mostRuns = 4096

// Stride is about how many bytes of the file one run of records makes.
func (c *Column) Stride() int64 {
	f := c.frame.Load()
	if f == nil {
		return 0
	}
	runs := 0
	for _, s := range c.view.sources {
		runs += len(s.runs)
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
	g.SetLimit(m.threads)
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
	f, err := c.measure(ctx)
	if err != nil {
		return 0, err
	}
	if off < 0 || off >= f.size {
		return 0, nil
	}
	p = p[:min(int64(len(p)), f.size-off)]
	c.lookAhead(c.rowsAt(f, off, len(p)))
	if err := c.copyOut(ctx, f, p, off); err != nil {
		return 0, err
	}
	c.view.chain.m.bytesServed.Add(int64(len(p)))
	c.follow(f, off, len(p))
	return len(p), nil
}

// rowsAt are the rows in n bytes of the file from off on: the first, and how many.
func (c *Column) rowsAt(f *frame, off int64, n int) (row, rows int64) {
	from, to := max(0, off-int64(len(f.header))), max(0, off+int64(n)-int64(len(f.header)))
	row = from / c.width
	return row, (to+c.width-1)/c.width - row
}

// copyOut fills p with the file's bytes from off on, all of which exist.
func (c *Column) copyOut(ctx context.Context, f *frame, p []byte, off int64) error {
	n := 0
	if off < int64(len(f.header)) {
		n = copy(p, f.header[off:])
	}
	if n == len(p) {
		return nil
	}
	return c.readRows(ctx, p[n:], off+int64(n)-int64(len(f.header)))
}

// readRows fills p, which is not empty, from byte pos of the content on.
func (c *Column) readRows(ctx context.Context, p []byte, pos int64) error {
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

// place finds where a row of the bank lies: in which source of the view, which
// run of it, and how many rows of the run come before.
func (b *Bank) place(row int64) (s *source, i, r int, in int64) {
	i = before(b.rows, row)
	s = b.view.sources[i]
	in = row - b.rows[i]
	t := s.tables[b.id]
	r = before(t.rows, in)
	return s, i, r, in - t.rows[r]
}

// fillContent copies content out of chunks.
func (c *Column) fillContent(ctx context.Context, p []byte, row int64) error {
	for len(p) > 0 {
		s, _, r, in := c.bank.place(row)
		k := chunkKey{s.number, int32(r), c.bank.id, int32(c.index)}
		chunk, err := c.view.chain.m.chunk(ctx, s, k)
		if err != nil {
			return err
		}
		n := copy(p, chunk[in*c.width:])
		p = p[n:]
		if in*c.width+int64(n) == int64(len(chunk)) {
			c.view.chain.m.chunks.done(k)
			if row+int64(n)/c.width == c.bank.rows[len(c.bank.rows)-1] {
				c.view.chain.m.finish(c.key())
			}
		}
		row += int64(n) / c.width
	}
	return nil
}

// ends is the rows of the bank in run r up to and with each of its entries; nil
// if there are none.
func (b *Bank) ends(ctx context.Context, s *source, r int) ([]byte, error) {
	t := s.tables[b.id]
	if t == nil || t.in(r) == 0 {
		return nil, nil
	}
	return b.view.chain.m.chunk(ctx, s, chunkKey{s.number, int32(r), b.id, endsColumn})
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
// on: with the source and its place in the view, the run, its first entry that is
// asked for, and how many are.
func (v *View) eachRun(first, n int64, f func(s *source, i, r int, from, n int64) error) error {
	for n > 0 {
		i := before(v.starts, first)
		s := v.sources[i]
		in := first - v.starts[i]
		r := s.runOf(in)
		from := in - s.runs[r].entry
		take := min(n, s.runs[r].entries-from)
		if err := f(s, i, r, from, take); err != nil {
			return err
		}
		first += take
		n -= take
	}
	return nil
}

// rowsBefore is the rows of the bank before run r of source i of the view.
func (b *Bank) rowsBefore(i, r int) int64 {
	if t := b.view.sources[i].tables[b.id]; t != nil {
		return b.rows[i] + t.rows[r]
	}
	return b.rows[i]
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
	err := c.view.eachRun(row, n, func(s *source, i, r int, from, n int64) error {
		ends, err := c.bank.ends(ctx, s, r)
		if err != nil {
			return err
		}
		base := c.bank.rowsBefore(i, r)
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
func (b *Bank) eachRowRun(ctx context.Context, first, n int64, f func(s *source, i, r int, ends []byte, from, n int64) error) error {
	for n > 0 {
		s, i, r, in := b.place(first)
		ends, err := b.ends(ctx, s, r)
		if err != nil {
			return err
		}
		take := min(n, s.tables[b.id].in(r)-in)
		if err := f(s, i, r, ends, in, take); err != nil {
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
	return c.bank.eachRowRun(ctx, row, int64(len(p))/8, func(s *source, i, r int, ends []byte, from, n int64) error {
		base := c.view.starts[i] + s.runs[r].entry
		eachRow(ends, from, n, func(_, e int64) { p = put(p, base+e) })
		return nil
	})
}

// fillPointer gives the row of the target that each row's pindex points to, -1
// where the entry has no such row.
func (c *Column) fillPointer(ctx context.Context, p []byte, row int64) error {
	b := c.bank
	size := b.schema.Columns[b.pindex].Type.Size
	return b.eachRowRun(ctx, row, int64(len(p))/8, func(s *source, i, r int, ends []byte, from, n int64) error {
		pindex, err := c.view.chain.m.chunk(ctx, s, chunkKey{s.number, int32(r), b.id, int32(b.pindex)})
		if err != nil {
			return err
		}
		targets, err := b.target.ends(ctx, s, r)
		if err != nil {
			return err
		}
		base := b.target.rowsBefore(i, r)
		eachRow(ends, from, n, func(row, e int64) {
			through, upTo := end(targets, e)
			at := integer(pindex[row*int64(size):], size)
			if at < 0 || at >= through-upTo {
				p = put(p, -1)
			} else {
				p = put(p, base+upTo+at)
			}
		})
		return nil
	})
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
	return c.view.eachRun(row, int64(len(p))/4, func(s *source, _, r int, from, n int64) error {
		tags, err := c.view.chain.m.chunk(ctx, s, chunkKey{s.number, int32(r), tagsBank, 0})
		if err != nil {
			return err
		}
		p = p[copy(p, tags[4*from:4*(from+n)]):]
		return nil
	})
}

// fillRecordTags gives each entry its record's user word 1.
func (c *Column) fillRecordTags(_ context.Context, p []byte, row int64) error {
	return c.view.eachRun(row, int64(len(p))/8, func(s *source, _, r int, from, n int64) error {
		for _, h := range s.file.Records[s.runs[r].first : s.runs[r].first+s.runs[r].records] {
			events := int64(h.Events)
			for ; from < events && n > 0; from, n = from+1, n-1 {
				p = put(p, h.UserTag)
			}
			from -= events
			if n == 0 {
				break
			}
		}
		return nil
	})
}

// fillEntryNumbers gives each entry its number in the whole chain.
func (c *Column) fillEntryNumbers(_ context.Context, p []byte, row int64) error {
	return c.view.eachRun(row, int64(len(p))/8, func(s *source, _, r int, from, n int64) error {
		first := s.first + s.runs[r].entry + from
		for e := range n {
			p = put(p, first+e)
		}
		return nil
	})
}

// A reader counts as sequential after this many reads, each of which began
// where the one before had ended.
const sequentialSteps = 4

// lookAhead notes a read of n rows and, for a sequential reader, starts to
// decode what comes next.
func (c *Column) lookAhead(row, n int64) {
	k, ok := c.needs()
	if !ok || n == 0 {
		return
	}
	c.mu.Lock()
	if row == c.next {
		c.steps++
	} else {
		c.steps = 0
	}
	c.next = row + n
	sequential := c.steps >= sequentialSteps
	c.mu.Unlock()
	if !sequential {
		return
	}
	m := c.view.chain.m
	// Twice the decodes that can run at once keeps them busy; what is decoded
	// ahead must not push out what is being read.
	ahead := int64(2 * m.threads)
	s, _, r, _ := c.bank.place(row)
	t := s.tables[c.bank.id]
	for ; ahead > 0 && r < len(s.runs); r++ {
		if t.in(r) == 0 {
			continue
		}
		ahead--
		if s.runs[r].inflated*int64(2*m.threads) > m.chunks.budget/2 {
			return
		}
		m.ahead(s, chunkKey{s.number, int32(r), k.bank, k.column})
	}
}
