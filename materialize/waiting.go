package materialize

import (
	"context"
	"sync"
	"time"
)

// Waiting is a reader who waits, and what for.
type Waiting struct {
	Reader context.Context // the one that the reader came with
	Bank   string
	Column string // "": the bank's rows
	For    string // "counting", or "decoding"
	File   string // whose record is being decoded; "" while counting
	Since  time.Time
}

// waiters are the readers who wait. Those who find what they want do not come
// here.
type waiters struct {
	mu    sync.Mutex
	now   map[*Waiting]bool
	total time.Duration // of those who have left
	// decoding is how many wait for a decode; quiet is closed when nobody does.
	decoding int
	quiet    chan struct{}
}

const (
	forCounting = "counting"
	forDecoding = "decoding"
)

func newWaiters() *waiters {
	w := &waiters{now: map[*Waiting]bool{}, quiet: make(chan struct{})}
	close(w.quiet)
	return w
}

// enter notes a reader, who leaves with leave.
func (w *waiters) enter(r *Waiting) {
	r.Since = time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now[r] = true
	if r.For == forDecoding {
		if w.decoding++; w.decoding == 1 {
			w.quiet = make(chan struct{})
		}
	}
}

func (w *waiters) leave(r *Waiting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.now, r)
	w.total += time.Since(r.Since)
	if r.For == forDecoding {
		if w.decoding--; w.decoding == 0 {
			close(w.quiet)
		}
	}
}

// untilQuiet is closed when no reader waits for a decode.
func (w *waiters) untilQuiet() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.quiet
}

// all are the readers who wait now, in no order, and how long readers have
// waited in all.
func (w *waiters) all() (now []Waiting, total time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	total = w.total
	for r := range w.now {
		now = append(now, *r)
		total += time.Since(r.Since)
	}
	return now, total
}

// Waiting are the readers who wait now, in no order.
func (c *Chain) Waiting() []Waiting {
	now, _ := c.m.waiters.all()
	return now
}
