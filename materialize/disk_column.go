package materialize

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
)

// ErrNoCache says that the chain was opened without a cache folder.
var ErrNoCache = errors.New("there is no cache folder: mount with --cache-dir")

// onDisk is a column's part in the tier.
type onDisk struct {
	mu      sync.Mutex
	read    int64         // bytes that readers have got since nobody had it open
	reached int64         // where a reader who came in order is
	making  *making       // its file is being made
	settled bool          // it is there, or cannot be: readers are not followed
	looking chan struct{} // one opener at a time compares checksums
}

// newOnDisk is for a column of the chain; nil where there is no tier.
func (c *Chain) newOnDisk() *onDisk {
	if c.tier == nil {
		return nil
	}
	return &onDisk{}
}

// making is a file that is being made, for those who wait for it or behind a
// reader.
type making struct {
	cancel   context.CancelFunc
	done     chan struct{}
	err      error         // once done
	more     chan struct{} // it may go on
	size     int64
	upTo     atomic.Int64 // how far it may go
	followed bool         // a reader, not only at the request of who waits
	waiters  int          // under onDisk.mu
}

const (
	// followFrom is how far a reader must have come in order to be followed: a look
	// at the beginning of a column is no wish to have all of it. What has been read is
	// in memory for longer than that (servedMost).
	followFrom = 8 << 20

	// outOfOrder is how far the kernel's reads of one reader may be apart.
	outOfOrder = 4 << 20
)

// source of a set, as the file "about" names it.
type cachedSource struct {
	Path  string `json:"path"`
	Size  int64  `json:"size"`
	MTime int64  `json:"mtime_ns"`
	CTime int64  `json:"ctime_ns"`
	Inode uint64 `json:"inode"`
}

// about is what the file of that name says of a set.
type about struct {
	View    string         `json:"view"`
	Sources []cachedSource `json:"sources"`
}

// set is the name of the view's folder in the tier, and what it is about. It
// waits for the counting pass.
func (v *View) set(ctx context.Context) (name string, _ []byte, err error) {
	if err := v.wait(ctx, &Waiting{Reader: ctx, For: forCounting}); err != nil {
		return "", nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.setName == "" {
		a := about{View: v.part}
		key := sha256.New()
		fmt.Fprintf(key, "hipofs columns 1\x00%s\x00", v.part)
		for _, s := range v.sources {
			id := s.handle.id
			c := cachedSource{realPath(s.info.Name), id.size, id.mtime, id.ctime, id.ino}
			a.Sources = append(a.Sources, c)
			fmt.Fprintf(key, "%d %s\x00%d %d %d %d %016x\x00", len(c.Path), c.Path, c.Size, c.MTime, c.CTime, c.Inode, s.counting())
		}
		v.setName = hex.EncodeToString(key.Sum(nil)[:16])
		if v.about, err = json.Marshal(a); err != nil {
			return "", nil, err
		}
	}
	return v.setName, v.about, nil
}

// counting is a checksum of what the source's records and rows are taken to be.
// Columns that were made by an index which lies, and was found out later, are
// never served beside those that were made by a good one; nor are those without
// damaged records beside those of the file once it is repaired.
func (s *source) counting() uint64 {
	if s.chain.indexDir == "" {
		var b []byte
		for _, h := range s.file.Records {
			b = binary.LittleEndian.AppendUint64(b, uint64(h.Off))
			b = binary.LittleEndian.AppendUint32(b, uint32(h.Events))
		}
		return xxh3.Hash(b)
	}
	idx := s.index.Load()
	if idx == nil {
		return 0
	}
	blocks := func(b []byte, list []block) []byte {
		for _, x := range list {
			b = binary.LittleEndian.AppendUint32(b, x.length)
			b = binary.LittleEndian.AppendUint64(b, x.sum)
		}
		return b
	}
	sum := xxh3.Hash(blocks(nil, idx.tags))
	for id, t := range s.tables { // in any order, as numbers of nodes differ
		b := []byte(s.chain.bankName(id) + "\x00")
		for _, n := range t.rows {
			b = binary.LittleEndian.AppendUint64(b, uint64(n))
		}
		sum += xxh3.Hash(blocks(b, idx.counts[id]))
	}
	return sum
}

// diskLabel is the column as people know it, and different for each of a view.
func (c *Column) diskLabel() string {
	if c.bank == nil {
		return c.Name
	}
	return c.bank.Name + "/" + c.Name
}

// inTier is where the column is kept.
func (c *Column) inTier(ctx context.Context) (k columnFile, about []byte, err error) {
	set, about, err := c.view.set(ctx)
	if err != nil {
		return columnFile{}, nil, err
	}
	kind, group, item := "view", uint16(0), uint8(0)
	switch c.kind {
	case offsetsColumn:
		kind = "offsets"
	case entryColumn:
		kind = "entry"
	case pointerColumn:
		kind = "pointer"
	case contentColumn:
		kind = "content"
	}
	if c.bank != nil {
		group, item = c.bank.Group, c.bank.Item
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d.%d\x00%q\x00%d %s %d", kind, group, item, c.diskLabel(), c.index, c.Dtype, c.Length))
	return columnFile{set, hex.EncodeToString(key[:16])}, about, nil
}

// mayBeKept reports whether the tier is looked at for the column. Columns that
// follow from the records' headers do not wait for the pass, and cost nothing to
// make.
func (c *Column) mayBeKept() bool {
	return c.view.chain.tier != nil && c.view.part != "" && (c.bank != nil || c == c.view.eventTags)
}

// empty reports whether the column is of a bank without rows, for which nothing
// has to be decoded. Rows are counted.
func (c *Column) empty() bool {
	return c.bank != nil && c.bank.rows[len(c.bank.rows)-1] == 0
}

// Finished opens the column's file in the cache folder, a plain file that is whole
// and was compared with its checksums; nil if there is none. It waits for the
// counting pass, and decodes nothing else.
func (c *Column) Finished(ctx context.Context) (*os.File, error) {
	if !c.mayBeKept() {
		return nil, nil
	}
	f, err := c.measure(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.knownFault(); err != nil {
		return nil, err
	}
	k, _, err := c.inTier(ctx)
	if err != nil {
		return nil, err
	}
	return c.openFinished(ctx, k, f.size)
}

// openFinished opens the column in the tier, one caller at a time.
func (c *Column) openFinished(ctx context.Context, k columnFile, size int64) (*os.File, error) {
	d := c.disk
	d.mu.Lock()
	if d.looking == nil {
		d.looking = make(chan struct{}, 1)
	}
	d.mu.Unlock()
	select {
	case d.looking <- struct{}{}:
		defer func() { <-d.looking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	file, err := c.view.chain.tier.open(ctx, k, size)
	d.mu.Lock()
	d.settled = file != nil
	d.mu.Unlock()
	return file, err
}

// RealPath makes the column's file in the cache folder, if it is not there, and
// gives its path, which stays for two minutes at least.
func (c *Column) RealPath(ctx context.Context) (string, error) {
	t := c.view.chain.tier
	if t == nil || c.view.part == "" {
		return "", ErrNoCache
	}
	f, err := c.measure(ctx)
	if err != nil {
		return "", err
	}
	k, about, err := c.inTier(ctx)
	if err != nil {
		return "", err
	}
	for {
		if err := c.knownFault(); err != nil {
			return "", err
		}
		file, err := c.openFinished(ctx, k, f.size)
		if err != nil {
			return "", err
		}
		if file != nil {
			file.Close()
			there, err := t.lease(k)
			if err != nil {
				return "", err
			}
			if there {
				return t.file(k, npySuffix), nil
			}
			continue // evicted meanwhile
		}
		if _, err := c.Open(ctx); err != nil {
			return "", err
		}
		if err := c.make(ctx, f, k, about); err != nil {
			return "", err
		}
	}
}

// PathLength is how long the path is that RealPath gives.
func (c *Column) PathLength() (int, bool) {
	t := c.view.chain.tier
	if t == nil || c.view.part == "" {
		return 0, false
	}
	hash := hex.EncodeToString(make([]byte, 16))
	return len(t.file(columnFile{hash, hash}, npySuffix)), true
}

// make waits until the column's file is made. Who waits last and leaves ends it.
func (c *Column) make(ctx context.Context, f *frame, k columnFile, about []byte) error {
	d := c.disk
	d.mu.Lock()
	m := d.making
	if m == nil {
		m = c.start(ctx, f, k, about, f.size, false)
	}
	m.waiters++
	m.mayGo(f.size)
	d.mu.Unlock()
	var err error
	select {
	case <-m.done:
		err = m.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.waiters--; m.waiters == 0 && !m.followed {
		m.cancel()
	}
	return err
}

// mayGo lets the file grow up to a byte. onDisk.mu is held.
func (m *making) mayGo(upTo int64) {
	if upTo <= m.upTo.Load() {
		return
	}
	m.upTo.Store(upTo)
	select {
	case m.more <- struct{}{}:
	default:
	}
}

// wait waits until the file may go up to a byte.
func (m *making) wait(ctx context.Context, upTo int64) error {
	for m.upTo.Load() < upTo {
		select {
		case <-m.more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// start starts to make the file for who came with the context of asker, however
// long he stays. onDisk.mu is held.
func (c *Column) start(asker context.Context, f *frame, k columnFile, about []byte, upTo int64, followed bool) *making {
	chain := c.view.chain
	ctx, cancel := context.WithCancel(context.WithoutCancel(asker))
	stop := context.AfterFunc(chain.ctx, cancel)
	m := &making{cancel: cancel, done: make(chan struct{}), more: make(chan struct{}, 1), size: f.size, followed: followed}
	m.upTo.Store(upTo)
	c.disk.making = m
	chain.tier.starts(m)
	chain.work.Go(func() {
		defer stop()
		err := chain.guard(func() error { return c.makeFile(ctx, m, f, k, about) })
		c.disk.mu.Lock()
		c.disk.making = nil
		c.disk.settled = ctx.Err() == nil // not to be tried again with every read
		m.err = err
		c.disk.mu.Unlock()
		cancel()
		chain.tier.ends(m)
		close(m.done)
	})
	return m
}

// makeFile makes the column's file.
func (c *Column) makeFile(ctx context.Context, m *making, f *frame, k columnFile, about []byte) error {
	t := c.view.chain.tier
	whole := m.upTo.Load() == f.size
	if whole {
		// Of several processes, one makes it. Who follows a reader lets nobody wait.
		l, err := t.lockColumn(ctx, k)
		if err != nil {
			return t.failed(err)
		}
		defer l.Close()
		if file, err := t.open(ctx, k, f.size); err != nil || file != nil {
			file.Close()
			return err
		}
	}
	need := f.size
	if c.empty() {
		need = int64(len(f.header)) // zeros follow
	}
	d, err := t.begin(k, seal{size: f.size, label: c.diskLabel()}, need, about)
	if err != nil {
		return t.failed(err)
	}
	for off := int64(0); off < f.size; off += sealBlock {
		if err := c.makeBlock(ctx, m, f, d, off, whole); err != nil {
			d.discard()
			return err
		}
	}
	return t.failed(d.finish())
}

// makeBlock makes one block, when there is leave and memory for it.
func (c *Column) makeBlock(ctx context.Context, m *making, f *frame, d *draft, off int64, whole bool) error {
	n := int(min(sealBlock, f.size-off))
	if err := m.wait(ctx, off+int64(n)); err != nil {
		return err
	}
	t := c.view.chain.tier
	select {
	case t.blocks <- struct{}{}:
		defer func() { <-t.blocks }()
	case <-ctx.Done():
		return ctx.Err()
	}
	buf := sealBuffers.Get().(*[sealBlock]byte)
	defer sealBuffers.Put(buf)
	if whole {
		c.lookAhead(c.rowsAt(f, off, n))
	}
	if err := c.copyOut(ctx, f, buf[:n], off); err != nil {
		return err
	}
	return t.failed(d.write(buf[:n]))
}

// follow notes what a reader got. One that reads the column in order, or has read
// as much as there is, has it written behind him, from what is in memory then.
func (c *Column) follow(f *frame, off int64, n int) {
	if !c.mayBeKept() || c.empty() {
		return
	}
	d := c.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	d.read += int64(n)
	if end := off + int64(n); off <= d.reached+outOfOrder && end > d.reached {
		d.reached = end
	}
	if d.read >= f.size {
		d.reached = f.size
	}
	if d.making != nil {
		d.making.mayGo(d.reached)
		return
	}
	if d.settled || d.reached < min(followFrom, (f.size+1)/2) {
		return
	}
	ctx := c.view.chain.ctx
	k, about, err := c.inTier(ctx) // all is counted: it does not wait
	if err == nil {
		c.start(ctx, f, k, about, d.reached, true)
	}
}

// Left notes that nobody has the column open any more. What was written behind a
// reader who has left half-way is given up.
func (c *Column) Left() {
	d := c.disk
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.read, d.reached = 0, 0
	if m := d.making; m != nil && m.followed && m.waiters == 0 && m.upTo.Load() < m.size {
		m.cancel()
	}
}

// settleTime is how long a chain that is closed waits for files that have only to
// be written.
const settleTime = 5 * time.Second

func (t *tier) starts(m *making) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.makings[m] = true
}

func (t *tier) ends(m *making) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.makings, m)
}

// settle waits for the files that nothing but writing holds up.
func (t *tier) settle() {
	t.mu.Lock()
	var list []*making
	for m := range t.makings {
		if m.upTo.Load() == m.size {
			list = append(list, m)
		}
	}
	t.mu.Unlock()
	over := time.After(settleTime)
	for _, m := range list {
		select {
		case <-m.done:
		case <-over:
			return
		}
	}
}

// TierStats is what the chain's cache folder has and did; nil without one.
func (c *Chain) TierStats() *TierStats {
	if c.tier == nil {
		return nil
	}
	s := c.tier.stats()
	return &s
}

// CacheProbe opens a file of the chain's cache folder, to find out what the kernel
// does with such; nil without one.
func (c *Chain) CacheProbe() *os.File {
	if c.tier == nil {
		return nil
	}
	f, err := at(c.tier.dir, tagName, os.O_RDONLY)
	if err != nil {
		c.tier.trouble(err)
		return nil
	}
	return f
}
