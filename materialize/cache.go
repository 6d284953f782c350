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

// chunks keeps chunks, within a budget of bytes. What it hands out stays valid
// after it is evicted, and is never written to.
//
// A chunk all of which has been read is in the kernel's page cache as well, and
// likely to be read from there: such go first, and no more of them are kept than
// servedShare, or servedMost. That its end was read says little: of several who
// read at once, the slowest may still want a page that the others passed over.
type chunks struct {
	mu        sync.Mutex
	fresh     lru
	served    lru
	budget    int64
	evictions int64
	evicted   int64 // bytes

	dropped int64         // bytes that were let go of after they were read, since loose was told
	loose   chan struct{} // told when they are looseBytes
}

const (
	servedShare = 4 // of the budget, one in so many bytes
	servedMost  = 64 << 20
)

// lru is the order in which chunks were used, and their bytes. The list counts
// entries; the bytes are counted here, so that it never evicts by itself.
type lru struct {
	list  *simplelru.LRU[chunkKey, *held]
	bytes int64
}

// held is a chunk, and how much of it is still to be read.
type held struct {
	b      []byte
	unread int64
}

// chunkOverhead is about what an entry costs beside its bytes.
const chunkOverhead = 200

func cost(b []byte) int64 { return int64(len(b)) + chunkOverhead }

func (l *lru) init() {
	list, err := simplelru.NewLRU(math.MaxInt, func(_ chunkKey, h *held) { l.bytes -= cost(h.b) })
	if err != nil {
		panic("internal error: " + err.Error())
	}
	l.list = list
}

func (l *lru) add(k chunkKey, b []byte) {
	l.list.Add(k, &held{b, int64(len(b))})
	l.bytes += cost(b)
}

func newChunks(budget int64) *chunks {
	c := &chunks{budget: budget, loose: make(chan struct{}, 1)}
	c.fresh.init()
	c.served.init()
	return c
}

// get finds a chunk and makes it the most recent.
func (c *chunks) get(k chunkKey) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, ok := c.fresh.list.Get(k)
	if !ok {
		h, ok = c.served.list.Get(k)
	}
	if !ok {
		return nil, false
	}
	return h.b, true
}

// has reports whether a chunk is there, without touching it.
func (c *chunks) has(k chunkKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.contains(k)
}

func (c *chunks) contains(k chunkKey) bool {
	return c.fresh.list.Contains(k) || c.served.list.Contains(k)
}

// makeRoom evicts until size bytes fit into limit, or nothing that may go is
// left: served chunks first, others only if all may go.
func (c *chunks) makeRoom(size, limit int64, all bool) bool {
	for c.fresh.bytes+c.served.bytes+size > limit {
		switch {
		case c.served.list.Len() > 0:
			c.evict(&c.served)
		case all && c.fresh.list.Len() > 0:
			c.evict(&c.fresh)
		default:
			return false
		}
	}
	return true
}

func (c *chunks) evict(l *lru) {
	before := l.bytes
	l.list.RemoveOldest()
	c.evictions++
	c.evicted += before - l.bytes
}

// add keeps a chunk, and evicts the least recent ones to stay in the budget.
// One that is larger than the budget is not kept.
func (c *chunks) add(k chunkKey, b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cost(b) <= c.budget && !c.contains(k) && c.makeRoom(cost(b), c.budget, true) {
		c.fresh.add(k, b)
	}
}

// addIfRoom keeps a chunk if nothing must be evicted for it beyond share of the
// budget but what has been served, and reports whether it did.
func (c *chunks) addIfRoom(k chunkKey, b []byte, share float64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.contains(k) {
		return true
	}
	if !c.makeRoom(cost(b), int64(share*float64(c.budget)), false) {
		return false
	}
	c.fresh.add(k, b)
	return true
}

// serve notes that n bytes of a chunk have been read, which were not before.
func (c *chunks) serve(k chunkKey, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, ok := c.fresh.list.Peek(k)
	if !ok {
		return
	}
	if h.unread -= n; h.unread > 0 {
		return
	}
	b := h.b
	c.fresh.list.Remove(k)
	most := min(c.budget/servedShare, servedMost)
	before := c.served.bytes
	if cost(b) <= most {
		c.served.add(k, b)
	}
	for c.served.bytes > most {
		c.served.list.RemoveOldest()
		c.evictions++
	}
	if cost(b) > most {
		c.evictions++
	}
	gone := before + cost(b) - c.served.bytes
	c.evicted += gone
	if c.dropped += gone; c.dropped >= looseBytes {
		c.dropped = 0
		select {
		case c.loose <- struct{}{}:
		default: // told already
		}
	}
}

// forget drops the chunks whose keys it is told to.
func (c *chunks) forget(those func(chunkKey) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range []*lru{&c.fresh, &c.served} {
		for _, k := range l.list.Keys() {
			if those(k) {
				l.list.Remove(k)
			}
		}
	}
}

// state is what is held, how often something had to go, and how much that was.
func (c *chunks) state() (bytes, evictions, evicted int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fresh.bytes + c.served.bytes, c.evictions, c.evicted
}
