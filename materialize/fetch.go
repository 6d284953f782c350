package materialize

import (
	"cmp"
	"context"
	"io"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/hipofs/hipofs/hipo"
)

const (
	// mostGap is how many bytes that nobody needs are fetched to save a request.
	mostGap = 64 << 10
	// mostJoined bounds what one request asks for, if several pieces make it up.
	mostJoined = 16 << 20
	// mostFetched bounds what is fetched and not decoded yet, where the budget is large.
	mostFetched = 64 << 20
	// headGuess is how much is fetched of a split record whose directory's length
	// is not known: most are shorter.
	headGuess = 64 << 10
)

// extent is a range of a file, and what is in it.
type extent struct {
	off, length int64
	data        []byte
}

// fetched is what a decode will read of a file that a server has. It is an
// io.ReaderAt: what is not in it is read from the file.
type fetched struct {
	handle      *handle
	pieces      []extent         // by their places
	directories []hipo.Directory // of the records of the run, if the index knows enough of them; else nil
	size        int64            // that the fetched pieces count for
}

// restored reports whether records are taken up without reading their directories.
func (f *fetched) restored() bool { return f != nil && f.directories != nil }

func (f *fetched) ReadAt(p []byte, off int64) (int, error) {
	i, _ := slices.BinarySearchFunc(f.pieces, off, func(x extent, off int64) int {
		if x.off+x.length <= off {
			return -1
		}
		return 1
	})
	if i < len(f.pieces) {
		if x := &f.pieces[i]; x.off <= off && off+int64(len(p)) <= x.off+x.length {
			return copy(p, x.data[off-x.off:]), nil
		}
	}
	return f.handle.ReadAt(p, off)
}

// join makes pieces that lie near each other one, in the order of the file.
func join(pieces []extent) []extent {
	slices.SortFunc(pieces, func(a, b extent) int { return cmp.Compare(a.off, b.off) })
	var joined []extent
	for _, x := range pieces {
		if x.length == 0 {
			continue
		}
		if n := len(joined); n > 0 {
			last := &joined[n-1]
			end := max(last.off+last.length, x.off+x.length)
			if x.off <= last.off+last.length+mostGap && (end-last.off <= mostJoined || end == last.off+last.length) {
				last.length = end - last.off
				continue
			}
		}
		joined = append(joined, x)
	}
	return joined
}

// fetchPieces reads pieces, several at once.
func (h *handle) fetchPieces(ctx context.Context, pieces []extent) (*fetched, error) {
	f := &fetched{handle: h, pieces: join(pieces)}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(h.abreast())
	for i := range f.pieces {
		x := &f.pieces[i]
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			x.data = make([]byte, x.length)
			_, err := h.ReadAt(x.data, x.off)
			if err == io.EOF {
				err = nil
			}
			return err
		})
	}
	return f, g.Wait()
}

// reading is what a decode will read of a run: the beginnings of its records and
// what is wanted, or that alone.
type reading struct {
	want    wanted // nil: what is read will show
	partial bool
}

// fetch reads ahead what a decode will read. It gives nil for a file of this
// system.
func (m *materializer) fetch(ctx context.Context, s *source, r int32, what reading) (*fetched, error) {
	if s.handle.remote == nil {
		return nil, nil
	}
	if err := s.contrary.Load(); err != nil {
		return nil, *err
	}
	run := s.runAt(r)
	var pieces []extent
	var directories []hipo.Directory
	if what.want != nil && run.split && s.index.Load() != nil {
		pieces, directories = m.streams(s, r, run, what.want)
	}
	if !what.partial || directories == nil {
		directories = nil
		pieces = append(pieces, s.beginnings(run)...)
	}
	var size int64
	for _, x := range join(slices.Clone(pieces)) {
		size += x.length
	}
	size = min(size, m.shop.fetchAll)
	if err := m.shop.fetching.Acquire(ctx, size); err != nil {
		return nil, err
	}
	got, err := s.handle.fetchPieces(ctx, pieces)
	got.directories, got.size = directories, size
	if err != nil {
		m.release(got)
		return nil, err
	}
	return got, nil
}

// release gives back the room that fetched pieces have had.
func (m *materializer) release(f *fetched) {
	if f != nil {
		f.pieces = nil
		m.shop.fetching.Release(f.size)
	}
}

// beginnings are the records of a run or, of split ones, what is read of each
// before its streams.
func (s *source) beginnings(r *run) []extent {
	pieces := make([]extent, r.records)
	for i := range pieces {
		h := &s.file.Records[r.first+i]
		pieces[i] = extent{off: h.Off, length: h.Length}
		if r.split && !s.chain.allSums && !s.chain.checks {
			pieces[i].length = min(h.Length, s.headLength(r.first+i))
		}
	}
	return pieces
}

// headLength is how long a split record's head is, as far as that is known.
func (s *source) headLength(number int) int64 {
	s.sumMu.Lock()
	defer s.sumMu.Unlock()
	if s.sums == nil || s.sums[number].streams == nil {
		return headGuess
	}
	return int64(s.sums[number].head)
}

// restores reports whether a decode for a chunk may do without directories.
func (s *source) restores(k chunkKey) bool {
	return s.handle.remote != nil && k.bank != tagsBank && k.column != endsColumn && int(k.bank) < len(s.chain.banks.schemas) &&
		s.runAt(k.run).split && s.index.Load() != nil
}

// streams are where the streams that are wanted of a run lie, and what its
// directories say of them. These are nil if the index does not know it all, or
// has no checksum of a stream.
func (m *materializer) streams(s *source, r int32, run *run, want wanted) ([]extent, []hipo.Directory) {
	type wish struct {
		bank    *hipo.Schema
		columns []bool
		ends    []byte
	}
	var wishes []wish
	for id, t := range s.tables {
		if t.err != nil || int(r) < len(s.runs) && t.in(int(r)) == 0 {
			continue
		}
		columns := want(id, t.layout)
		if columns == nil {
			continue
		}
		if int(id) >= len(s.chain.banks.schemas) || len(s.plan.declared(t.layout.Group, t.layout.Item)) != 1 {
			return nil, nil
		}
		k := chunkKey{s.number, r, id, endsColumn}
		ends, ok := m.chunks.get(k)
		if !ok {
			if ends, ok = m.known(s, k); !ok {
				return nil, nil
			}
		}
		wishes = append(wishes, wish{t.layout, columns, ends})
	}
	if len(wishes) == 0 {
		return nil, nil
	}
	s.sumMu.Lock()
	defer s.sumMu.Unlock()
	var pieces []extent
	vouched := true
	directories := make([]hipo.Directory, run.records)
	var base int64 // entries of the run before the record
	for i := range directories {
		h, x := &s.file.Records[run.first+i], &s.sums[run.first+i]
		if x.streams == nil || int64(x.layout) >= int64(len(s.layouts)) {
			return nil, nil
		}
		d := &directories[i]
		d.Streams = x.places(h)
		for _, w := range wishes {
			b, ok := s.layouts[x.layout].find(w.bank.Group, w.bank.Item)
			rows := rowsBetween(w.ends, base, base+int64(h.Events))
			if !ok && rows == 0 {
				continue
			}
			if !ok || b.Format || b.Columns > 0 && b.Columns != len(w.columns) {
				return nil, nil
			}
			b.Spans = spans(w.ends, base, int64(h.Events), w.bank.RowSize)
			for c := range max(1, b.Columns) {
				width := int64(w.bank.RowSize)
				if b.Columns > 0 {
					width = int64(w.bank.Columns[c].Width())
				}
				t := &d.Streams[b.Stream+c]
				if rows*width > int64(^uint32(0)) {
					return nil, nil
				}
				t.Inflated = uint32(rows * width)
				if rows == 0 || b.Columns > 0 && !w.columns[c] {
					continue
				}
				vouched = vouched && x.streams[b.Stream+c].known
				pieces = append(pieces, extent{off: t.Off, length: int64(t.Stored)})
			}
			d.Banks = append(d.Banks, b)
		}
		base += int64(h.Events)
	}
	if !vouched {
		return pieces, nil
	}
	return pieces, directories
}

// places are where a record's streams lie.
func (r *recordSums) places(h *hipo.RecordHeader) []hipo.Stream {
	out := make([]hipo.Stream, len(r.streams))
	off := h.Off + int64(r.head)
	for i, t := range r.streams {
		out[i] = hipo.Stream{Off: off, Stored: t.length, Encoding: t.encoding}
		off += int64(t.length)
	}
	return out
}

// rowsBetween is the rows of entries from to to, to excluded, by the ends of a run.
func rowsBetween(ends []byte, from, to int64) int64 {
	if ends == nil || from == to {
		return 0
	}
	_, before := end(ends, from)
	through, _ := end(ends, to-1)
	return through - before
}

// spans are where the structures of n entries from base on lie in the bytes of
// a bank, one behind the other.
func spans(ends []byte, base, n int64, rowSize int) []hipo.Span {
	var out []hipo.Span
	off := uint32(0)
	for e := range n {
		through, before := end(ends, base+e)
		if through == before {
			continue
		}
		length := uint32(through-before) * uint32(rowSize)
		out = append(out, hipo.Span{Event: uint32(e), Off: off, Len: length})
		off += length
	}
	return out
}

// abreast is how many reads of the chain's files are worth having under way at
// once.
func (c *Chain) abreast() int {
	n := 1
	for _, s := range c.sources {
		n = max(n, s.handle.abreast())
	}
	return n
}

// ToFetch is how many files of the chain that servers have are not counted, and
// about how many bytes the passes over them will read.
func (c *Chain) ToFetch() (files, bytes int64) {
	for _, s := range c.sources {
		if s.handle.remote == nil || s.index.Load() != nil || s.isCounted() {
			continue
		}
		files++
		for i := range s.runs {
			for _, x := range s.beginnings(&s.runs[i]) {
				bytes += x.length
			}
		}
	}
	return files, bytes
}
