package materialize

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/hipofs/hipofs/hipo"
)

// pickedBank is the key of the list of which entries of a run a view keeps, where
// it is no range: uint32 each, ascending.
const pickedBank = bankID(-2)

// key names what the view keeps of a chunk of its run r.
func (n *narrowing) key(r int, bank bankID, column int32) chunkKey {
	return chunkKey{n.number, int32(r), bank, column}
}

// remember keeps a chunk of the view in memory.
func (n *narrowing) remember(r int, bank bankID, column int32, b []byte) {
	if n.number != noNumber {
		n.of.chain.m.chunks.add(n.key(r, bank, column), b)
	}
}

func (n *narrowing) remembered(r int, bank bankID, column int32) ([]byte, bool) {
	return n.of.chain.m.chunks.get(n.key(r, bank, column))
}

// picked is which entries of its run r the view keeps. Lists are not for ever in
// memory: they follow from counts and tags.
func (n *narrowing) picked(ctx context.Context, c *choice, r int) (picked, error) {
	k := &c.runs[r]
	if !k.some {
		return picked{from: k.from, to: k.to}, nil
	}
	if b, ok := n.remembered(r, pickedBank, 0); ok {
		list := make([]uint32, len(b)/4)
		for i := range list {
			list[i] = binary.LittleEndian.Uint32(b[4*i:])
		}
		return picked{list: list}, nil
	}
	var outer *choice
	if p := n.of.narrow; p != nil {
		var err error
		if outer, err = p.choose(ctx); err != nil {
			return picked{}, err
		}
	}
	of, err := n.base(ctx, outer, k)
	if err == nil {
		of, err = n.inside(ctx, k.source, k.run, of)
	}
	if err != nil {
		return picked{}, err
	}
	if int64(of.count()) != k.entries || of.list == nil {
		return picked{}, k.source.otherwise()
	}
	b := make([]byte, 0, 4*len(of.list))
	for _, e := range of.list {
		b = binary.LittleEndian.AppendUint32(b, e)
	}
	n.remember(r, pickedBank, 0, b)
	return of, nil
}

// otherwise is the error about a file that no longer gives what a view was made of.
func (s *source) otherwise() error {
	return s.otherThanCounted("it counts other rows", fmt.Errorf("%s: its records have other rows than were counted: %w", s.info.Name, ErrChanged))
}

// whole reports whether all of the run is kept.
func (k *keptRun) whole() bool {
	return !k.some && k.from == 0 && k.to == k.source.runAt(k.run).entries
}

// chunk gives what the view keeps of a chunk of its run r, which has that many
// rows: of ends, those of its own entries.
func (n *narrowing) chunk(ctx context.Context, r int, bank bankID, column int32, rows int64) ([]byte, error) {
	c, err := n.choose(ctx)
	if err != nil {
		return nil, err
	}
	k := &c.runs[r]
	s, m := k.source, n.of.chain.m
	if err := s.contrary.Load(); err != nil {
		return nil, *err
	}
	if b, ok := n.remembered(r, bank, column); ok {
		m.hits.Add(1)
		return b, nil
	}
	all, err := m.chunkBy(ctx, s, chunkKey{s.number, k.run, bank, column}, n.wants)
	if err != nil {
		return nil, err
	}
	if k.whole() {
		return all, nil
	}
	of, err := n.picked(ctx, c, r)
	if err != nil {
		return nil, err
	}
	if bank == tagsBank {
		return n.gathered(r, bank, column, of, of.tags(all)), nil
	}
	ends := all
	if column != endsColumn {
		if ends, err = m.chunkBy(ctx, s, chunkKey{s.number, k.run, bank, endsColumn}, n.wants); err != nil {
			return nil, err
		}
	}
	if of.rows(ends) != rows {
		return nil, s.otherwise()
	}
	if column == endsColumn {
		b := of.ends(ends)
		n.remember(r, bank, column, b)
		return b, nil
	}
	return n.gathered(r, bank, column, of, of.content(ends, all)), nil
}

// gathered keeps what had to be gathered for the view, because it is not one
// piece of a chunk.
func (n *narrowing) gathered(r int, bank bankID, column int32, of picked, b []byte) []byte {
	if of.list != nil {
		n.remember(r, bank, column, b)
	}
	return b
}

// tags is what a chunk of event tags has of these entries.
func (p picked) tags(all []byte) []byte {
	return p.spans(all, func(e int64) (from, to int64) { return 4 * e, 4*e + 4 })
}

// content is what a chunk, of a bank that has rows in the run, has of these entries.
func (p picked) content(ends, all []byte) []byte {
	count, _ := end(ends, int64(len(ends)/4-1))
	width := int64(len(all)) / count
	return p.spans(all, func(e int64) (from, to int64) {
		through, upTo := end(ends, e)
		return upTo * width, through * width
	})
}

// ends are the rows up to and with each of these entries, of those alone.
func (p picked) ends(ends []byte) []byte {
	b := make([]byte, 0, 4*p.count())
	var sum uint32
	for i := range int64(p.count()) {
		through, upTo := end(ends, p.at(i))
		sum += uint32(through - upTo)
		b = binary.LittleEndian.AppendUint32(b, sum)
	}
	return b
}

// spans joins what all has of each entry: of a range, that is one piece of it.
func (p picked) spans(all []byte, span func(e int64) (from, to int64)) []byte {
	if p.count() == 0 {
		return nil
	}
	if p.list == nil {
		from, _ := span(p.from)
		_, to := span(p.to - 1)
		return all[from:to]
	}
	var size int64
	for _, e := range p.list {
		from, to := span(int64(e))
		size += to - from
	}
	b := make([]byte, 0, size)
	for _, e := range p.list {
		from, to := span(int64(e))
		b = append(b, all[from:to]...)
	}
	return b
}

// count is the rows of a bank before each run of the view; one more. Where a
// file is not counted, they are those that were found.
func (n *narrowing) count(ctx context.Context, b *Bank) ([]int64, error) {
	c, err := n.settle(ctx)
	if err != nil {
		return nil, err
	}
	rows := make([]int64, len(c.runs)+1)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(n.of.chain.m.threads)
	for r := range c.runs {
		g.Go(func() error {
			return n.of.chain.guard(func() (err error) {
				rows[r+1], err = n.rows(gctx, c, r, b)
				return err
			})
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for r := range c.runs {
		rows[r+1] += rows[r]
	}
	return rows, nil
}

// rows is the rows that a bank has in what the view keeps of run r.
func (n *narrowing) rows(ctx context.Context, c *choice, r int, b *Bank) (int64, error) {
	k := &c.runs[r]
	s := k.source
	if why := s.plan.conflicts[b.id]; why != "" {
		return 0, errors.New(why)
	}
	if k.found != nil {
		for i := range k.found {
			f := &k.found[i]
			if f.bank != b.id {
				continue
			}
			if f.err != nil {
				return 0, f.err
			}
			if !b.schema.SameLayout(f.layout) {
				return 0, fmt.Errorf("%s is of several kinds: also %s in %s", s.chain.bankName(b.id), f.kind, s.file.Name)
			}
			return f.rows, nil
		}
		return 0, nil
	}
	t := s.tables[b.id]
	switch {
	case t == nil:
		return 0, nil
	case t.err != nil:
		return 0, t.err
	case !b.schema.SameLayout(t.layout):
		return 0, fmt.Errorf("%s is of several kinds: also %s in %s", s.chain.bankName(b.id), t.kind, s.file.Name)
	}
	if k.whole() && int(k.run) < len(s.runs) {
		return t.in(int(k.run)), nil
	}
	ends, err := s.endsOf(ctx, k.run, b.id, n.wants)
	if err != nil || ends == nil {
		return 0, err
	}
	of, err := n.picked(ctx, c, r)
	if err != nil {
		return 0, err
	}
	return of.rows(ends), nil
}

// filled is how many entries have rows of a bank.
func (n *narrowing) filled(ctx context.Context, b *Bank) (filled int64, err error) {
	c, err := n.choose(ctx)
	if err != nil {
		return 0, err
	}
	for r := range c.runs {
		rows := b.rows[r+1] - b.rows[r]
		if rows == 0 {
			continue
		}
		ends, err := n.chunk(ctx, r, b.id, endsColumn, rows)
		if err != nil {
			return 0, err
		}
		for e := range int64(len(ends) / 4) {
			if through, upTo := end(ends, e); through > upTo {
				filled++
			}
		}
	}
	return filled, nil
}

// nodes are the structures without a schema that the view has rows of.
func (n *narrowing) nodes(ctx context.Context, v *View) ([]*Bank, error) {
	v.mu.Lock()
	known := v.nodes
	v.mu.Unlock()
	if known != nil {
		return known, nil
	}
	c, err := n.settle(ctx)
	if err != nil {
		return nil, err
	}
	declared := len(v.chain.banks.schemas)
	layouts := map[bankID]*hipo.Schema{}
	note := func(id bankID, layout *hipo.Schema) {
		if int(id) >= declared && layouts[id] == nil {
			layouts[id] = layout
		}
	}
	counted := map[*source]bool{}
	for r := range c.runs {
		k := &c.runs[r]
		for i := range k.found {
			note(k.found[i].bank, k.found[i].layout)
		}
		if k.found == nil && !counted[k.source] {
			counted[k.source] = true
			for id, t := range k.source.tables {
				note(id, t.layout)
			}
		}
	}
	nodes := []*Bank{}
	for id, layout := range layouts {
		b := newNode(v, id, layout)
		// One that cannot be served is there, and says why when it is opened.
		switch rows, err := b.Rows(ctx); {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil || rows > 0:
			nodes = append(nodes, b)
		}
	}
	sortNodes(nodes)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.nodes == nil {
		v.nodes = nodes
	}
	return v.nodes, nil
}

// records appends the records that the view has entries of.
func (c *choice) records(all []RecordInfo) []RecordInfo {
	for r := range c.runs {
		k := &c.runs[r]
		s := k.source
		run := s.runAt(k.run)
		entry, at := c.starts[r], int64(0)
		for j := range run.records {
			h := &s.file.Records[run.first+j]
			events := k.entries // of a run of several, all of a range are kept
			if run.records > 1 {
				events = min(int64(h.Events), k.to-at) - max(0, k.from-at)
			}
			at += int64(h.Events)
			all = append(all, s.recordInfo(run.first+j, entry, int(events)))
			entry += events
		}
	}
	return all
}

// eachRun does what View.eachRun says.
func (n *narrowing) eachRun(first, count int64, f func(x stretch, from, n int64) error) error {
	c := n.chosen.Load()
	for count > 0 {
		r := before(c.starts, first)
		from := first - c.starts[r]
		take := min(count, c.runs[r].entries-from)
		if err := f(stretch{c.runs[r].source, 0, r}, from, take); err != nil {
			return err
		}
		first += take
		count -= take
	}
	return nil
}

// verify inflates the streams that a column needs of split records.
func (n *narrowing) verify(ctx context.Context, col *Column, key columnKey) error {
	if col.verified.Load() {
		return nil
	}
	c := n.chosen.Load()
	b, m := col.bank, n.of.chain.m
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(m.threads, n.of.chain.abreast()))
	for r := range c.runs {
		k := &c.runs[r]
		if b.rows[r+1] == b.rows[r] || !k.source.runAt(k.run).split {
			continue
		}
		g.Go(func() error {
			return n.of.chain.guard(func() error {
				_, err := n.chunk(gctx, r, key.bank, key.column, b.rows[r+1]-b.rows[r])
				return err
			})
		})
	}
	err := g.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	col.verified.Store(err == nil)
	return err
}

// inMemory reports whether a column can be read without a decode, as far as that
// can be seen by looking at so many runs.
func (n *narrowing) inMemory(b *Bank, column int32, most int) bool {
	c, chunks := n.chosen.Load(), n.of.chain.m.chunks
	b.mu.Lock()
	rows := b.rows
	b.mu.Unlock()
	if c == nil || len(c.runs) > most || rows == nil {
		return false
	}
	for r := range c.runs {
		if rows[r+1] == rows[r] {
			continue
		}
		k := &c.runs[r]
		whole, _ := k.source.wholeRun(k.run)
		mine := n.key(r, b.id, column)
		if !chunks.has(mine) && !chunks.has(chunkKey{k.source.number, k.run, b.id, column}) &&
			!chunks.has(chunkKey{k.source.number, int32(whole), b.id, column}) {
			return false
		}
	}
	return true
}

// lookAhead starts to decode what comes from run r on.
func (n *narrowing) lookAhead(b *Bank, r int, column int32, ahead int64) {
	c, m := n.chosen.Load(), n.of.chain.m
	for ; ahead > 0 && r < len(c.runs); r++ {
		if b.rows[r+1] == b.rows[r] {
			continue
		}
		ahead--
		k := &c.runs[r]
		if k.source.runAt(k.run).inflated*int64(2*m.threads) > m.chunks.budget/2 {
			return
		}
		key := chunkKey{k.source.number, k.run, b.id, column}
		if m.chunks.has(n.key(r, b.id, column)) {
			continue
		}
		if _, ok := m.known(k.source, key); !ok {
			m.ahead(k.source, key, n.wants)
		}
	}
}
