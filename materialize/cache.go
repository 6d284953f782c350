package materialize

import (
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// chunkKey names a chunk: one column of one bank in one run of records.
type chunkKey struct {
	source int32
	run    int32
	bank   bankID
	column int32 // in the schema; or endsColumn
}

const (
	endsColumn = -1         // uint32 an entry: the bank's rows in the run up to and with that entry
	tagsBank   = bankID(-1) // event tags: uint32 an entry, column 0
)

// chunks is the LRU of chunks. Its budget is in bytes; what it hands out stays
// valid after it is evicted, and is never written to.
type chunks struct {
	mu        sync.Mutex
	lru       *simplelru.LRU[chunkKey, []byte]
	bytes     int64
	budget    int64
	evictions int64
}

// chunkOverhead is about what an entry costs beside its bytes.
const chunkOverhead = 200

func newChunks(budget int64) *chunks {
	c := &chunks{budget: budget}
	// The LRU counts entries; bytes are counted here, so that it never evicts by itself.
	lru, err := simplelru.NewLRU(math.MaxInt, func(_ chunkKey, b []byte) { c.bytes -= int64(len(b)) + chunkOverhead })
	if err != nil {
		panic("internal error: " + err.Error())
	}
	c.lru = lru
	return c
}

// get finds a chunk and makes it the most recent.
func (c *chunks) get(k chunkKey) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lru.Get(k)
}

// has reports whether a chunk is there, without touching it.
func (c *chunks) has(k chunkKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lru.Contains(k)
}

// add keeps a chunk, and evicts the least recent ones to stay in the budget.
// One that is larger than the budget is not kept.
func (c *chunks) add(k chunkKey, b []byte) {
	size := int64(len(b)) + chunkOverhead
	c.mu.Lock()
	defer c.mu.Unlock()
	if size > c.budget || c.lru.Contains(k) {
		return
	}
	for c.bytes+size > c.budget {
		c.lru.RemoveOldest()
		c.evictions++
	}
	c.lru.Add(k, b)
	c.bytes += size
}

// addIfRoom keeps a chunk if nothing must be evicted for it beyond share of the
// budget, and reports whether it did.
func (c *chunks) addIfRoom(k chunkKey, b []byte, share float64) bool {
	size := int64(len(b)) + chunkOverhead
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lru.Contains(k) {
		return true
	}
	if float64(c.bytes+size) > share*float64(c.budget) {
		return false
	}
	c.lru.Add(k, b)
	c.bytes += size
	return true
}

// forget drops the chunks whose keys it is told to.
func (c *chunks) forget(those func(chunkKey) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.lru.Keys() {
		if those(k) {
			c.lru.Remove(k)
		}
	}
}

// state is what is held, and how often something had to go.
func (c *chunks) state() (bytes, evictions int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes, c.evictions
}
