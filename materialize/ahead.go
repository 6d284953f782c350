package materialize

import "sync"

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
