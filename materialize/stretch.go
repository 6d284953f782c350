package materialize

import (
	"context"
	"encoding/binary"
	"iter"
	"sort"
)

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

// entriesBefore is the entries of the view before a run.
func (v *View) entriesBefore(x stretch) int64 {
	if v.narrow != nil {
		return v.narrow.chosen.Load().starts[x.r]
	}
	return v.starts[x.i] + x.source.runs[x.r].entry
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

// runs is how many runs the view has; at least 1.
func (v *View) runs() (n int64) {
	if v.narrow != nil {
		return int64(max(1, len(v.narrow.chosen.Load().runs)))
	}
	for _, s := range v.sources {
		n += int64(len(s.runs))
	}
	return max(1, n)
}

// wants is what decodes for the view gather.
func (v *View) wants() wants {
	if v.narrow != nil {
		return v.narrow.wants
	}
	return v.chain.m.chainWants
}

func (v *View) tags(ctx context.Context, x stretch) ([]byte, error) {
	if v.narrow != nil {
		return v.narrow.chunk(ctx, x.r, tagsBank, 0, 0)
	}
	return v.chain.m.chunk(ctx, x.source, chunkKey{x.source.number, int32(x.r), tagsBank, 0})
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

// key names a column's chunk of a run, or of what a view keeps of it.
func (b *Bank) key(x stretch, column int32) chunkKey {
	if n := b.view.narrow; n != nil {
		return n.key(x.r, b.id, column)
	}
	return chunkKey{x.source.number, int32(x.r), b.id, column}
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
	return b.view.chain.m.chunkBy(ctx, x.source, b.key(x, column), w)
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
