package materialize

// Stats are counters since the chain was opened, and what is held now.
type Stats struct {
	RecordsDecoded int64 `json:"records_decoded"` // whole records inflated, or split directories read
	StreamsDecoded int64 `json:"streams_decoded"` // streams of split records inflated
	BytesRead      int64 `json:"bytes_read"`      // of the sources
	BytesInflated  int64 `json:"bytes_inflated"`
	BytesServed    int64 `json:"bytes_served"`
	CacheHits      int64 `json:"cache_hits"`
	CacheMisses    int64 `json:"cache_misses"`
	CacheEvictions int64 `json:"cache_evictions"`
	CacheBytes     int64 `json:"cache_bytes"`
	CacheBudget    int64 `json:"cache_budget"`
	FilesCounted   int   `json:"files_counted"`
	Files          int   `json:"files"`
	Errors         int   `json:"errors"`
}

// Stats are the counters of this chain so far.
func (c *Chain) Stats() Stats {
	m := c.m
	s := Stats{
		RecordsDecoded: m.recordsDecoded.Load(), StreamsDecoded: m.streamsDecoded.Load(),
		BytesRead: m.bytesRead.Load(), BytesInflated: m.bytesInflated.Load(),
		BytesServed: m.bytesServed.Load(), CacheHits: m.hits.Load(), CacheMisses: m.misses.Load(),
		CacheBudget: m.chunks.budget, Files: len(c.sources), Errors: len(c.faults.all()),
	}
	s.CacheBytes, s.CacheEvictions = m.chunks.state()
	m.mu.Lock()
	s.FilesCounted = m.counted
	m.mu.Unlock()
	return s
}
