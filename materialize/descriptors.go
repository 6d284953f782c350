package materialize

import (
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/hipo"
)

// ErrChanged is in every error about a source that is no longer what it was
// when the chain was opened, or when its index was made.
var ErrChanged = fmt.Errorf("the file has changed: mount it again (%w)", syscall.ESTALE)

// SourceError says that a file cannot be read, or not as it was when the chain
// was opened.
type SourceError struct {
	File string // as given
	Err  error
}

func (e *SourceError) Error() string { return e.File + ": " + e.Err.Error() }
func (e *SourceError) Unwrap() error { return e.Err }

// identity is what tells a file from one that has taken its place, or from
// itself after a change. Not the number of its device: the hosts of a farm see
// one file system under different ones.
type identity struct {
	size         int64
	mtime, ctime int64 // nanoseconds
	ino          uint64
}

func identityOf(st iofs.FileInfo) identity {
	id := identity{size: st.Size(), mtime: st.ModTime().UnixNano()}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		id.ctime, id.ino = changeTime(sys), sys.Ino
	}
	return id
}

// maxDescriptors is how many sources are open at once, at most.
const maxDescriptors = 256

// descriptors keeps the sources open that were read last. It is safe for
// concurrent use.
type descriptors struct {
	ctx    context.Context // no read is tried again when it has ended
	pauses []time.Duration // before the second try of a read that failed, the third, …
	read   func(f *os.File, p []byte, off int64) (int, error)
	web    *web // what sources that servers have are read by

	mu   sync.Mutex
	open *simplelru.LRU[*handle, *descriptor]
}

// descriptor is an open source; it is closed when it is neither kept nor in use.
type descriptor struct {
	file *os.File
	uses int
	kept bool
}

func newDescriptors(ctx context.Context) *descriptors {
	most := maxDescriptors
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err == nil && lim.Cur < 4*maxDescriptors {
		most = max(4, int(lim.Cur)/4)
	}
	d := &descriptors{
		ctx:    ctx,
		pauses: []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 250 * time.Millisecond},
		read:   (*os.File).ReadAt,
		web:    newWeb(),
	}
	open, err := simplelru.NewLRU(most, func(_ *handle, fd *descriptor) {
		fd.kept = false
		fd.closeUnused()
	})
	if err != nil {
		panic("internal error: " + err.Error())
	}
	d.open = open
	return d
}

func (fd *descriptor) closeUnused() {
	if !fd.kept && fd.uses == 0 {
		fd.file.Close() // it was only read
	}
}

// close closes every source that is not being read.
func (d *descriptors) close() {
	d.web.close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open.Purge()
}

// count is how many sources are kept open.
func (d *descriptors) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open.Len()
}

// pause waits before a read is tried again. It reports false when that is not
// to be.
func (d *descriptors) pause(try int) bool {
	if try >= len(d.pauses) {
		return false
	}
	t := time.NewTimer(d.pauses[try])
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-d.ctx.Done():
		return false
	}
}

// handle reads one source, which it opens when it must. It is an io.ReaderAt.
type handle struct {
	name   string // without secrets
	id     identity
	owner  uint32
	all    *descriptors
	remote *remote // nil: a file of this system

	reading atomic.Int64 // calls of ReadAt under way
	through atomic.Int64 // calls that have returned

	changed  atomic.Bool  // seen to be another than it was, which does not pass
	nameless atomic.Int64 // ctime since its last name has gone; 0: it had one
	looking  sync.Mutex
}

// abreast is how many reads of the source are worth having under way at once.
func (h *handle) abreast() int {
	if h.remote != nil {
		return mostConnections
	}
	return 1
}

// reads are the calls of ReadAt under way, and how many have returned.
func (h *handle) reads() (now, through int64) { return h.reading.Load(), h.through.Load() }

// newHandle looks at the named file, which must be regular, but opens nothing.
// Of a file that a server has it reads the beginning.
func newHandle(name string, all *descriptors) (*handle, iofs.FileInfo, error) {
	if IsRemote(name) {
		return newRemoteHandle(name, all)
	}
	st, err := os.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, st, &hipo.FormatError{File: name, Record: -1, Off: -1, Msg: "is not a regular file"}
	}
	h := &handle{name: name, id: identityOf(st), all: all}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		h.owner = sys.Uid
	}
	return h, st, nil
}

func newRemoteHandle(name string, all *descriptors) (*handle, iofs.FileInfo, error) {
	r, err := all.web.openRemote(all.ctx, name)
	if err != nil {
		return nil, nil, &SourceError{PlainName(name), err}
	}
	st := remoteInfo{r}
	return &handle{name: r.name, id: r.identity(), owner: uint32(os.Geteuid()), all: all, remote: r}, st, nil
}

// acquire gives an open descriptor, to be released.
func (h *handle) acquire() (*descriptor, error) {
	if fd := h.use(nil); fd != nil {
		return fd, nil
	}
	// Without the lock: a file system that hangs must not stop other sources.
	// A FIFO that took the file's place would block; O_NONBLOCK keeps it still.
	file, err := os.OpenFile(h.name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			h.all.close() // what is not being read makes room
		}
		return nil, h.fault(err)
	}
	if err := h.same(file.Stat); err != nil {
		file.Close()
		return nil, err
	}
	return h.use(file), nil
}

// fault is a *SourceError about the file. Its name is in there once.
func (h *handle) fault(err error) error {
	var pe *iofs.PathError
	if errors.As(err, &pe) {
		err = fmt.Errorf("%s: %w", pe.Op, pe.Err)
	}
	if errors.Is(err, iofs.ErrNotExist) && h.remote == nil {
		err = fmt.Errorf("it is gone; if it was staged out of /cache, bring it back with jcache get: %w", ErrChanged)
	}
	return &SourceError{h.name, err}
}

// use gives the descriptor that is open already, and closes file, or makes one
// of file if that is not nil.
func (h *handle) use(file *os.File) *descriptor {
	h.all.mu.Lock()
	defer h.all.mu.Unlock()
	fd, ok := h.all.open.Get(h)
	switch {
	case ok && file != nil:
		file.Close() // somebody else was faster
	case !ok && file == nil:
		return nil
	case !ok:
		fd = &descriptor{file: file, kept: true}
		h.all.open.Add(h, fd)
	}
	fd.uses++
	return fd
}

func (h *handle) release(fd *descriptor) {
	h.all.mu.Lock()
	defer h.all.mu.Unlock()
	fd.uses--
	fd.closeUnused()
}

// drop makes the next read open the file anew.
func (h *handle) drop(fd *descriptor) {
	h.all.mu.Lock()
	defer h.all.mu.Unlock()
	if now, ok := h.all.open.Peek(h); ok && now == fd {
		h.all.open.Remove(h)
	}
}

// same compares what stat gives of a file with what the chain was opened on.
func (h *handle) same(stat func() (iofs.FileInfo, error)) error {
	for try := 0; ; try++ {
		st, err := stat()
		if err != nil {
			return h.fault(err)
		}
		id := identityOf(st)
		if id == h.id {
			return nil
		}
		// That the last name of an open file goes changes ctime, once.
		ctime := id.ctime
		id.ctime = h.id.ctime
		unnamed := id == h.id && links(st) == 0
		if unnamed && (h.nameless.CompareAndSwap(0, ctime) || h.nameless.Load() == ctime) {
			return nil
		}
		// The kernel may be about to take the name away, and have set ctime first.
		if id != h.id || unnamed || !h.all.pause(try) {
			h.changed.Store(true)
			return h.fault(ErrChanged)
		}
	}
}

func links(st iofs.FileInfo) uint64 {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return uint64(sys.Nlink)
	}
	return 1
}

// look says whether the file can still be read as it was, as far as that shows
// without reading it.
func (h *handle) look() error {
	if h.changed.Load() {
		return h.fault(ErrChanged)
	}
	// One look at a time: where the file system hangs, the others need not, too.
	if !h.looking.TryLock() {
		return nil
	}
	defer h.looking.Unlock()
	if h.remote != nil {
		if err := h.remote.look(h.all.ctx); err != nil {
			return h.fault(err)
		}
		return nil
	}
	if fd := h.use(nil); fd != nil {
		defer h.release(fd)
		return h.same(fd.file.Stat)
	}
	return h.same(func() (iofs.FileInfo, error) { return os.Stat(h.name) })
}

// ReadAt reads, and then looks whether the file is still the one: what a change
// could have touched is not handed out. File servers fail for a moment, and a
// read changes nothing: one that fails is tried again.
func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	h.reading.Add(1)
	defer func() {
		h.reading.Add(-1)
		h.through.Add(1)
	}()
	if h.remote != nil {
		n, err := h.remote.readAt(h.all.ctx, p, off)
		if err != nil && err != io.EOF {
			err = h.fault(err)
		}
		return n, err
	}
	for try := 0; ; try++ {
		n, err := h.readOnce(p, off)
		if err == nil || err == io.EOF || lasting(err) || !h.all.pause(try) {
			return n, err
		}
	}
}

// lasting reports whether trying again cannot help.
func lasting(err error) bool {
	return slices.ContainsFunc([]error{
		ErrChanged, syscall.EACCES, syscall.EPERM, syscall.ENOTDIR, syscall.ELOOP, syscall.EISDIR, syscall.ENXIO, syscall.EINVAL,
	}, func(e error) bool { return errors.Is(err, e) })
}

func (h *handle) readOnce(p []byte, off int64) (int, error) {
	if h.changed.Load() {
		return 0, h.fault(ErrChanged)
	}
	fd, err := h.acquire()
	if err != nil {
		return 0, err
	}
	defer h.release(fd)
	n, err := h.all.read(fd.file, p, off)
	if err != nil && err != io.EOF {
		// Of a file system that was unmounted, or a file that its server has lost,
		// the descriptor stays dead; the name may lead to it again.
		if errors.Is(err, syscall.ESTALE) || errors.Is(err, syscall.ENOTCONN) {
			h.drop(fd)
		}
		return 0, h.fault(err)
	}
	if changed := h.same(fd.file.Stat); changed != nil {
		return 0, changed
	}
	if n < len(p) && off+int64(len(p)) <= h.id.size {
		return 0, h.fault(fmt.Errorf("reading gives %d of %d bytes, though the file is as long as it was: %w", n, len(p), syscall.EIO))
	}
	return n, err
}
