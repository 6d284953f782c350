package materialize

import (
	"context"
	"sync"
	"time"
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

// place is what a decode holds.
type place struct {
	m      *materializer
	source *source
	need   int64 // of m.room

	mu      sync.Mutex
	left    bool
	stalled bool // another decode has its room and thread
	reads   int64
	timer   *time.Timer
}

// enter waits for a place to decode a run.
func (m *materializer) enter(ctx context.Context, s *source, r *run) (*place, error) {
	p := &place{m: m, source: s, need: min(r.need(), m.roomAll)}
	select {
	case s.places <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := m.room.Acquire(ctx, p.need); err != nil {
		<-s.places
		return nil, err
	}
	select {
	case m.workers <- struct{}{}:
	case <-ctx.Done():
		m.room.Release(p.need)
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
		if p.m.stalled.Add(1) <= maxStalled {
			p.stalled = true
			p.m.room.Release(p.need)
			<-p.m.workers
			return
		}
		p.m.stalled.Add(-1)
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
		p.m.stalled.Add(-1)
		return
	}
	p.m.room.Release(p.need)
	<-p.m.workers
}
