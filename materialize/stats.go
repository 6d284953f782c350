package materialize

import (
	"sync"
	"time"
)

// Stats are counters since the chain was opened, and what is held now.
type Stats struct {
	RecordsDecoded    int64   `json:"records_decoded"` // whole records inflated, or split directories read
	StreamsDecoded    int64   `json:"streams_decoded"` // streams of split records inflated
	BytesRead         int64   `json:"bytes_read"`      // of the sources
	BytesInflated     int64   `json:"bytes_inflated"`
	BytesServed       int64   `json:"bytes_served"`
	CacheHits         int64   `json:"cache_hits"`   // chunks that were there
	CacheMisses       int64   `json:"cache_misses"` // chunks that were waited for
	CacheEvictions    int64   `json:"cache_evictions"`
	CacheBytesEvicted int64   `json:"cache_bytes_evicted"`
	CacheBytes        int64   `json:"cache_bytes"`
	CacheBudget       int64   `json:"cache_budget"`
	DecodesInFlight   int     `json:"decodes_in_flight"`
	DecodesStalled    int64   `json:"decodes_stalled"` // of those in flight: their source hangs
	DecodeSeconds     float64 `json:"decode_seconds"`  // reading and decoding, summed over threads
	WaitSeconds       float64 `json:"wait_seconds"`    // of readers, summed
	OpenSources       int     `json:"open_sources"`    // descriptors
	FilesCounted      int     `json:"files_counted"`
	Files             int     `json:"files"`
	Errors            int     `json:"errors"`
}

// Stats are the counters of this chain so far.
func (c *Chain) Stats() Stats {
	m := c.m
	s := Stats{
		RecordsDecoded: m.recordsDecoded.Load(), StreamsDecoded: m.streamsDecoded.Load(),
		BytesRead: m.bytesRead.Load(), BytesInflated: m.bytesInflated.Load(),
		BytesServed: m.bytesServed.Load(), CacheHits: m.hits.Load(), CacheMisses: m.misses.Load(),
		CacheBudget: m.chunks.budget, Files: len(c.sources), Errors: len(c.faults.all()),
		DecodesInFlight: int(m.inFlight.Load()), DecodesStalled: m.shop.stalled.Load(),
		DecodeSeconds: time.Duration(m.decodeTime.Load()).Seconds(), OpenSources: c.descriptors.count(),
	}
	s.CacheBytes, s.CacheEvictions, s.CacheBytesEvicted = m.chunks.state()
	_, waited := m.waiters.all()
	s.WaitSeconds = waited.Seconds()
	m.mu.Lock()
	s.FilesCounted = m.counted
	m.mu.Unlock()
	return s
}

// Progress is how far the work is that nobody reads the result of, yet.
type Progress struct {
	Counting CountingProgress `json:"counting"`
	Prefetch PrefetchProgress `json:"prefetch"`
}

// CountingProgress is how far the passes that count rows are.
type CountingProgress struct {
	State          string   `json:"state"` // waiting (nobody has asked), counting, done
	Files          int      `json:"files"`
	FilesDone      int      `json:"files_done"` // also by their index
	Bytes          int64    `json:"bytes"`      // of all records, as stored
	BytesDone      int64    `json:"bytes_done"`
	BytesPerSecond float64  `json:"bytes_per_second"` // of passes so far; 0: there was none
	SecondsLeft    *float64 `json:"seconds_left"`     // null: nobody knows
}

// passes is the time in which at least one pass ran.
type passes struct {
	mu    sync.Mutex
	now   int
	since time.Time
	busy  time.Duration
}

func (p *passes) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now++; p.now == 1 {
		p.since = time.Now()
	}
}

func (p *passes) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now--; p.now == 0 {
		p.busy += time.Since(p.since)
	}
}

func (p *passes) time() (busy time.Duration, now int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	busy = p.busy
	if p.now > 0 {
		busy += time.Since(p.since)
	}
	return busy, p.now
}

// Progress is how far the chain's background work is.
func (c *Chain) Progress() Progress {
	p := CountingProgress{State: "waiting", Files: len(c.sources)}
	var passed int64
	for _, s := range c.sources {
		p.Bytes += s.length
		passed += s.passed.Load()
		select {
		case <-s.counted:
			p.FilesDone++
			p.BytesDone += s.length
		default:
			p.BytesDone += s.passed.Load()
		}
	}
	busy, now := c.m.passes.time()
	if busy > 0 {
		p.BytesPerSecond = float64(passed) / busy.Seconds()
	}
	left := 0.0
	switch {
	case p.FilesDone == p.Files:
		p.State = "done"
		p.SecondsLeft = &left
	case now > 0:
		p.State = "counting"
		if p.BytesPerSecond > 0 {
			left = float64(p.Bytes-p.BytesDone) / p.BytesPerSecond
			p.SecondsLeft = &left
		}
	}
	return Progress{Counting: p, Prefetch: c.prefetching.progress()}
}
