package materialize

import (
	"context"
	"iter"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/hipofs/hipofs/hipo"
)

// A new record has at most this many bytes of events, unless told otherwise, and
// this many events: what all writers keep to.
const (
	recordBytes  = 8 << 20
	recordEvents = 100_000
)

// piece is what one step contributes to a file: events, or a record as it is.
type piece struct {
	batch hipo.Batch
	codec hipo.Codec
	words hipo.Words
	copy  *copied // nil: there are events
}

// step makes a piece. Steps run beside each other, and their pieces are written
// in the order of the steps.
type step func(w *assembler, p *piece) error

// InputError is about what is read, where others are about what is written.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }

// Unwrap gives what is wrong.
func (e *InputError) Unwrap() error { return e.Err }

// assembler is what one step at a time works with.
type assembler struct {
	rec     hipo.Record
	encoder *hipo.Encoder
}

// assembly makes files out of pieces:
//
//	steps → pieces → records of a good size → compressed → written
//
// Every arrow keeps the order, so that the same steps give the same bytes,
// however many run at once.
type assembly struct {
	out     *outSet
	schemas []*hipo.Schema
	limit   int // bytes of events in a record
	threads int

	entries int64
	records int64
	copied  int64

	pieces sync.Pool // of *piece
	stored sync.Pool // of *[]byte
}

// encoded are the records that were made of a piece.
type encoded struct {
	bytes   *[]byte
	ends    []int // of each record
	entries int64
	copy    *copied // instead
}

// run takes the steps. Whatever fails ends it.
func (a *assembly) run(ctx context.Context, steps iter.Seq[step]) error {
	g, ctx := errgroup.WithContext(ctx)
	workers := make(chan *assembler, a.threads)
	for range a.threads {
		workers <- &assembler{encoder: hipo.NewEncoder(a.schemas)}
	}
	// with runs f as soon as somebody is free for it.
	with := func(f func(*assembler) error) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case w := <-workers:
			g.Go(func() error {
				defer func() { workers <- w }()
				return f(w)
			})
			return nil
		}
	}
	pieces := make(chan chan *piece, a.threads)
	records := make(chan chan encoded, a.threads)
	g.Go(func() error {
		defer close(pieces)
		for s := range steps {
			p := make(chan *piece, 1)
			if err := send(ctx, pieces, p); err != nil {
				return err
			}
			err := with(func(w *assembler) error {
				made := a.newPiece()
				if err := s(w, made); err != nil {
					return &InputError{err}
				}
				p <- made
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	g.Go(func() error {
		defer close(records)
		return a.collect(ctx, pieces, func(p *piece) error {
			r := make(chan encoded, 1)
			if err := send(ctx, records, r); err != nil {
				return err
			}
			if p.copy != nil {
				r <- encoded{copy: p.copy}
				a.pieces.Put(p)
				return nil
			}
			return with(func(w *assembler) error {
				made, err := a.encode(w, p)
				if err == nil {
					r <- made
				}
				return err
			})
		})
	})
	g.Go(func() error {
		for {
			r, ok, err := receive(ctx, records)
			if !ok {
				return err
			}
			if err := a.write(r); err != nil {
				return err
			}
		}
	})
	return g.Wait()
}

func send[T any](ctx context.Context, to chan<- T, v T) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case to <- v:
		return nil
	}
}

// receive takes the next of the things that come in order. It reports false at
// their end.
func receive[T any](ctx context.Context, from <-chan chan T) (v T, ok bool, err error) {
	select {
	case <-ctx.Done():
		return v, false, ctx.Err()
	case c, more := <-from:
		if !more {
			return v, false, ctx.Err()
		}
		select {
		case <-ctx.Done():
			return v, false, ctx.Err()
		case v = <-c:
			return v, true, nil
		}
	}
}

func (a *assembly) newPiece() *piece {
	p, ok := a.pieces.Get().(*piece)
	if !ok {
		return &piece{}
	}
	p.batch.Reset()
	p.copy = nil
	return p
}

// collect joins pieces that go into one record, and cuts up those that are too
// large for one.
func (a *assembly) collect(ctx context.Context, pieces <-chan chan *piece, emit func(*piece) error) error {
	var at *piece // what is being filled
	flush := func() error {
		p := at
		at = nil
		if p == nil {
			return nil
		}
		return emit(p)
	}
	for {
		p, ok, err := receive(ctx, pieces)
		if err != nil {
			return err
		}
		if !ok {
			return flush()
		}
		if at != nil && (p.copy != nil || p.batch.Events() > 0 && (at.codec != p.codec || at.words != p.words)) {
			if err := flush(); err != nil {
				return err
			}
		}
		switch n := p.batch.Events(); {
		case p.copy != nil:
			if err := emit(p); err != nil {
				return err
			}
			continue
		case n == 0:
			a.pieces.Put(p)
			continue
		case at == nil && p.batch.Size() <= a.limit && n <= recordEvents:
			at = p
		default:
			if err := a.distribute(p, &at, flush); err != nil {
				return err
			}
			a.pieces.Put(p)
		}
		// What is nearly a record is one: most records of a source stay as they are.
		if at != nil && at.batch.Size() > a.limit/2 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
}

// distribute copies the events of p to what is being filled.
func (a *assembly) distribute(p *piece, at **piece, flush func() error) error {
	off := 0
	for from := 0; from < p.batch.Events(); {
		if *at == nil {
			*at = a.newPiece()
			(*at).codec, (*at).words = p.codec, p.words
		}
		b := &(*at).batch
		n := p.batch.Fit(from, a.limit-b.Size(), recordEvents-b.Events())
		if n == 0 && b.Events() > 0 {
			if err := flush(); err != nil {
				return err
			}
			continue
		}
		n = max(n, 1) // an event may be larger than a record should be
		off = b.Join(&p.batch, off, from, from+n)
		from += n
	}
	return nil
}

func (a *assembly) newStored() *[]byte {
	if b, ok := a.stored.Get().(*[]byte); ok {
		*b = (*b)[:0]
		return b
	}
	return new([]byte)
}

// encode makes records of the events of a piece: one, if it can hold them.
func (a *assembly) encode(w *assembler, p *piece) (encoded, error) {
	r := encoded{bytes: a.newStored(), entries: int64(p.batch.Events())}
	for from := 0; from < p.batch.Events(); {
		records, n, err := w.encoder.Record(*r.bytes, &p.batch, from, p.codec, p.words)
		if err != nil {
			return encoded{}, err
		}
		*r.bytes = records
		r.ends = append(r.ends, len(*r.bytes))
		from += n
	}
	a.pieces.Put(p)
	return r, nil
}

func (a *assembly) write(r encoded) error {
	if c := r.copy; c != nil {
		a.entries += int64(c.events)
		a.records++
		a.copied++
		return a.out.copy(c)
	}
	begin := 0
	for _, end := range r.ends {
		if err := a.out.add((*r.bytes)[begin:end]); err != nil {
			return err
		}
		begin = end
	}
	a.entries += r.entries
	a.records += int64(len(r.ends))
	a.stored.Put(r.bytes)
	return nil
}
