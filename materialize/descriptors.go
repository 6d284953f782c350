package materialize

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/hipo"
)

// ErrChanged is in every error about a source that is no longer what it was
// when the chain was opened, or when its index was made.
var ErrChanged = fmt.Errorf("the file has changed: mount it again (%w)", syscall.ESTALE)

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
		id.ctime, id.ino = sys.Ctim.Nano(), sys.Ino
	}
	return id
}

// maxDescriptors is how many sources are open at once, at most.
const maxDescriptors = 256

// descriptors keeps the sources open that were read last. It is safe for
// concurrent use.
type descriptors struct {
	mu   sync.Mutex
	open *simplelru.LRU[*handle, *descriptor]
}

// descriptor is an open source; it is closed when it is neither kept nor in use.
type descriptor struct {
	file *os.File
	uses int
	kept bool
}

func newDescriptors() *descriptors {
	most := maxDescriptors
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err == nil && lim.Cur < 4*maxDescriptors {
		most = max(4, int(lim.Cur)/4)
	}
	d := &descriptors{}
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

// handle reads one source, which it opens when it must. It is an io.ReaderAt.
type handle struct {
	name  string
	id    identity
	owner uint32
	all   *descriptors

	reading atomic.Int64 // calls of ReadAt under way
	through atomic.Int64 // calls that have returned
}

// reads are the calls of ReadAt under way, and how many have returned.
func (h *handle) reads() (now, through int64) { return h.reading.Load(), h.through.Load() }

// newHandle looks at the named file, which must be regular, but opens nothing.
func newHandle(name string, all *descriptors) (*handle, iofs.FileInfo, error) {
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

// acquire gives an open descriptor, to be released.
func (h *handle) acquire() (*descriptor, error) {
	if fd := h.use(nil); fd != nil {
		return fd, nil
	}
	// Without the lock: a file system that hangs must not stop other sources.
	// A FIFO that took the file's place would block; O_NONBLOCK keeps it still.
	file, err := os.OpenFile(h.name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, iofs.ErrNotExist) {
			return nil, fmt.Errorf("%s: it is gone: %w", h.name, ErrChanged)
		}
		return nil, err
	}
	if err := h.same(file); err != nil {
		file.Close()
		return nil, err
	}
	return h.use(file), nil
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

// same compares an open file with what the chain was opened on.
func (h *handle) same(file *os.File) error {
	st, err := file.Stat()
	if err != nil {
		return fmt.Errorf("%s: %w", h.name, err)
	}
	if identityOf(st) != h.id {
		return fmt.Errorf("%s: %w", h.name, ErrChanged)
	}
	return nil
}

// ReadAt reads, and then looks whether the file is still the one: what a change
// could have touched is not handed out.
func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	h.reading.Add(1)
	defer func() {
		h.reading.Add(-1)
		h.through.Add(1)
	}()
	fd, err := h.acquire()
	if err != nil {
		return 0, err
	}
	defer h.release(fd)
	n, err := fd.file.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		return n, err
	}
	if changed := h.same(fd.file); changed != nil {
		return 0, changed
	}
	return n, err
}
