package materialize

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
)

// CheckPrefetch says what is wrong with a pattern of columns.
func CheckPrefetch(pattern string) error {
	bank, column, _ := strings.Cut(pattern, "/")
	for _, part := range []string{bank, column} {
		if _, err := path.Match(part, ""); err != nil || bank == "" {
			return fmt.Errorf("prefetch pattern %q: want BANK or BANK/COLUMN, such as REC::Particle/p*", pattern)
		}
	}
	return nil
}

// prefetching is what a chain makes without being asked by a reader.
type prefetching struct {
	mu  sync.Mutex
	now PrefetchProgress
}

// PrefetchProgress is how far prefetching is.
type PrefetchProgress struct {
	State     string `json:"state"` // none (was asked for), counting, giving way, decoding, done, full (the budget), failed
	Columns   int    `json:"columns"`
	LeftOut   int    `json:"columns_left_out"` // they do not fit into the budget
	Bytes     int64  `json:"bytes"`            // of the columns, without those left out
	BytesDone int64  `json:"bytes_done"`
}

func (p *prefetching) progress() PrefetchProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

func (p *prefetching) update(f func(now *PrefetchProgress)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.now)
}

func (p *prefetching) state(s string) { p.update(func(now *PrefetchProgress) { now.State = s }) }

// NoColumns are those of the patterns that name no column.
func (v *View) NoColumns(patterns []string) []string {
	_, none := v.matching(patterns)
	return none
}

// matching are the columns that patterns name, in their order, each once, and
// the patterns that name none.
func (v *View) matching(patterns []string) (columns []*Column, none []string) {
	seen := map[*Column]bool{}
	for _, pattern := range patterns {
		bankPattern, columnPattern, whole := strings.Cut(pattern, "/")
		if !whole {
			columnPattern = "*"
		}
		found := false
		for _, b := range v.Banks() {
			if ok, _ := path.Match(bankPattern, b.Name); !ok {
				continue
			}
			for _, c := range append([]*Column{b.Offsets()}, b.Columns...) {
				if ok, _ := path.Match(columnPattern, c.Name); !ok {
					continue
				}
				found = true
				if !seen[c] {
					seen[c] = true
					columns = append(columns, c)
				}
			}
		}
		if !found {
			none = append(none, pattern)
		}
	}
	return columns, none
}

// chunkColumn is the column of the chunks that it is made of.
func (c *Column) chunkColumn() int32 {
	if c.kind == offsetsColumn {
		return endsColumn
	}
	return int32(c.index)
}

// chunkBytes is how long the column's chunks are, all together.
func (c *Column) chunkBytes() (total int64) {
	for x := range c.view.stretches() {
		total += c.chunkSize(x)
	}
	return total
}

// chunkSize is how long the column's chunk of a run is, 0 where there is none.
func (c *Column) chunkSize(x stretch) int64 {
	rows := c.bank.in(x)
	if c.kind == offsetsColumn && rows > 0 {
		return 4 * c.view.entriesIn(x)
	}
	return rows * c.width
}

// prefetchAll does what prefetch says, and tells how that ended.
func (c *Chain) prefetchAll(patterns []string) {
	p := &c.prefetching
	err := c.guard(func() error { return c.prefetch(patterns) })
	if err != nil {
		p.state("failed")
	}
	switch {
	case c.unasked.Err() != nil, errors.Is(err, errPanic): // nobody to tell; told
	case err != nil:
		c.log.Warn(fmt.Sprintf("prefetch: %v", err))
	default:
		now := p.progress()
		c.log.Info("prefetched", "state", now.State, "columns", now.Columns, "left_out", now.LeftOut, "bytes", now.BytesDone)
	}
}

// prefetch makes the columns that patterns name, in the order of the file, until
// all are there or the budget is full. It gives way to readers who wait.
func (c *Chain) prefetch(patterns []string) error {
	ctx, p := c.unasked, &c.prefetching
	columns, none := c.view.matching(patterns)
	for _, pattern := range none {
		c.log.Warn(fmt.Sprintf("prefetch: no column is called %s; \"hipofs ls\" lists their names", pattern))
	}
	p.update(func(now *PrefetchProgress) { now.State, now.Columns = "counting", len(columns) })
	// The pass keeps what is asked for, what was asked for last first.
	for _, col := range slices.Backward(columns) {
		if col.kind != offsetsColumn {
			c.m.ask(col.key())
		}
	}
	if err := c.view.wait(ctx, nil); err != nil {
		return err
	}
	return c.decodeAhead(ctx, c.fitting(columns))
}

// fitting are the columns, of those that are whole, which the budget has space
// for.
func (c *Chain) fitting(columns []*Column) []*Column {
	left := int64(keepShare * float64(c.m.chunks.budget))
	var fit []*Column
	var bytes int64
	out := 0
	for _, col := range columns {
		if col.bank.count(c.unasked, nil) != nil {
			continue // whoever opens it is told why
		}
		size := col.chunkBytes()
		if size > left {
			if out == 0 {
				c.log.Warn(fmt.Sprintf("prefetch: %s/%s does not fit into --memory beside what comes before it, nor may others", col.bank.Name, col.Name))
			}
			out++
			continue
		}
		left -= size
		bytes += size
		fit = append(fit, col)
	}
	c.prefetching.update(func(now *PrefetchProgress) { now.LeftOut, now.Bytes = out, bytes })
	return fit
}

// decodeAhead decodes what is not there of the columns.
func (c *Chain) decodeAhead(ctx context.Context, columns []*Column) error {
	p := &c.prefetching
	for x := range c.view.stretches() {
		for _, col := range columns {
			size := col.chunkSize(x)
			if size == 0 {
				continue
			}
			k := chunkKey{x.source.number, c.view.runOf(x), col.bank.id, col.chunkColumn()}
			if there, err := c.m.background(ctx, x.source, k); err != nil {
				return err
			} else if !there {
				p.state("full")
				return nil
			}
			p.update(func(now *PrefetchProgress) { now.BytesDone += size })
		}
	}
	p.state("done")
	return nil
}

// background makes a chunk when no reader waits for a decode. It reports false
// if there is no room for it but what readers use.
func (m *materializer) background(ctx context.Context, s *source, k chunkKey) (there bool, err error) {
	// Damage has been told, and will be to who opens the column.
	if s.contrary.Load() != nil || m.has(s, k) {
		return true, nil
	}
	m.chain.prefetching.state("giving way")
	for quiet := false; !quiet; {
		select {
		case <-m.waiters.untilQuiet():
			quiet = true
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	m.chain.prefetching.state("decoding")
	m.mu.Lock()
	f := m.flying(k)
	if f == nil {
		// It is decoding by the time a reader can join it.
		f = m.launch(s, k, m.chain.view.wants(), m.flyAside)
	}
	f.waiters++
	m.mu.Unlock()
	select {
	case <-f.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	m.leave(k, f)
	if err != nil {
		return false, err
	}
	if f.err != nil || f.faults[k.bank] != nil {
		return true, nil
	}
	return m.has(s, k), nil
}

// has reports whether a reader of a chunk need not wait: it is in memory, in the
// index, or in the kernel's page cache.
func (m *materializer) has(s *source, k chunkKey) bool {
	if m.chunks.has(k) || k.column == endsColumn && s.index.Load() != nil {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.finished[columnKey{k.bank, k.column}]
}
