package materialize

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// A decode needs a place: one of its file's, room for its records in memory, and
// one of the threads. Those of prefetching have a place of their own, so that no
// reader ever queues behind one.

// maxStalled is how many decodes whose source hangs do not count: each holds the
// memory of a record.
const maxStalled = 16

// stallAfter is how long a source may take for one read before decodes of other
// files go on in its decode's place.
const stallAfter = time.Second

// workshop is what decodes work in: how many may be under way, how much memory
// they may take, and the decoders that are at rest. Chains that work side by side
// may share one. It is safe for concurrent use.
type workshop struct {
	workers  chan struct{}       // a place for each decode under way
	room     *semaphore.Weighted // bytes of records being decoded
	roomAll  int64
	fetching *semaphore.Weighted // bytes that were fetched for decodes to come
	fetchAll int64
	stalled  atomic.Int64 // decodes under way that hang

	mu       sync.Mutex
	decoders []*decoder // at rest, the last used on top
}

func newWorkshop(threads int, room, fetch int64) *workshop {
	room, fetch = max(room, 1), max(fetch, 1)
	return &workshop{
		workers: make(chan struct{}, threads),
		room:    semaphore.NewWeighted(room), roomAll: room,
		fetching: semaphore.NewWeighted(fetch), fetchAll: fetch,
	}
}

// newSharedWorkshop is for files that are gone through side by side, in as much
// memory as one chain may take.
func newSharedWorkshop(threads int, memory int64) *workshop {
	return newWorkshop(threads, memory/2, min(memory/4, mostFetched))
}

// decoder gives a decoder, which rest takes back.
func (w *workshop) decoder() *decoder {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.decoders) - 1
	if last < 0 {
		return new(decoder)
	}
	d := w.decoders[last]
	w.decoders = w.decoders[:last]
	return d
}

func (w *workshop) rest(d *decoder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.decoders = append(w.decoders, d)
}

// forget lets go of the decoders that are at rest, and of their memory.
func (w *workshop) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.decoders = nil
}

// place is what a decode holds.
type place struct {
	m      *materializer
	source *source
	need   int64 // of the workshop's room

	mu      sync.Mutex
	left    bool
	stalled bool // another decode has its room and thread
	reads   int64
	timer   *time.Timer
}

// enter waits for a place to decode a run.
func (m *materializer) enter(ctx context.Context, s *source, r *run) (*place, error) {
	p := &place{m: m, source: s, need: min(r.need(), m.shop.roomAll)}
	select {
	case s.places <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := m.shop.room.Acquire(ctx, p.need); err != nil {
		<-s.places
		return nil, err
	}
	select {
	case m.shop.workers <- struct{}{}:
	case <-ctx.Done():
		m.shop.room.Release(p.need)
		<-s.places
		return nil, ctx.Err()
	}
	_, p.reads = s.handle.reads()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(stallAfter, p.look)
	return p, nil
}

// look hands the place on if the source has hung since the last look.
func (p *place) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left {
		return
	}
	now, reads := p.source.handle.reads()
	if now > 0 && reads == p.reads {
		if p.m.shop.stalled.Add(1) <= maxStalled {
			p.stalled = true
			p.m.shop.room.Release(p.need)
			<-p.m.shop.workers
			return
		}
		p.m.shop.stalled.Add(-1)
	}
	p.reads = reads
	p.timer.Reset(stallAfter)
}

func (p *place) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = true
	p.timer.Stop()
	<-p.source.places
	if p.stalled {
		p.m.shop.stalled.Add(-1)
		return
	}
	p.m.shop.room.Release(p.need)
	<-p.m.shop.workers
}
