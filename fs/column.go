package fs

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/materialize"
)

// file is a regular file whose size is exact, once it is known.
type file struct {
	fusefs.Inode
	place
	measure func(context.Context) (int64, error) // may wait
	known   atomic.Int64                         // size+1; 0 until it is known
}

// The kernel lets one process look up a name, and others that want it wait
// where no signal reaches them. So a look-up does not wait long: it leaves the
// size to getattr, in which each caller waits, and can be interrupted, alone.
const patience = 20 * time.Millisecond

func (f *file) kind() uint32 { return syscall.S_IFREG }

func (f *file) size(ctx context.Context) (int64, error) {
	if n := f.known.Load(); n > 0 {
		return n - 1, nil
	}
	n, err := f.measure(ctx)
	if err == nil {
		f.known.Store(n + 1)
	}
	return n, err
}

func (f *file) look(ctx context.Context, out *fuse.EntryOut) syscall.Errno {
	brief, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n, err := f.size(brief)
	if err != nil && isContextError(err) && brief.Err() != nil && ctx.Err() == nil {
		// With a timeout of 0, nobody is told this size.
		f.fill(&out.Attr, syscall.S_IFREG, 0)
		return 0
	}
	if err != nil {
		return f.errno(ctx, err)
	}
	f.fill(&out.Attr, syscall.S_IFREG, n)
	out.SetAttrTimeout(forever)
	return 0
}

var _ = (fusefs.NodeGetattrer)((*file)(nil))

func (f *file) Getattr(ctx context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n, err := f.size(ctx)
	if err != nil {
		return f.errno(ctx, err)
	}
	f.fill(&out.Attr, syscall.S_IFREG, n)
	out.SetTimeout(forever)
	return 0
}

var _ = (fusefs.NodeLseeker)((*file)(nil))

// Lseek is asked for SEEK_DATA and SEEK_HOLE only: all is data.
func (f *file) Lseek(ctx context.Context, _ fusefs.FileHandle, off uint64, whence uint32) (uint64, syscall.Errno) {
	n, err := f.size(ctx)
	if err != nil {
		return 0, f.errno(ctx, err)
	}
	return seek(off, whence, n)
}

func seek(off uint64, whence uint32, size int64) (uint64, syscall.Errno) {
	switch {
	case off >= uint64(size):
		return 0, syscall.ENXIO
	case whence == unix.SEEK_DATA:
		return off, 0
	case whence == unix.SEEK_HOLE:
		return uint64(size), 0
	}
	return 0, syscall.EINVAL
}

// column is a column's .npy file.
type column struct {
	file
	col   *materialize.Column
	name  string // user.hipofs.name
	opens opens
}

func newColumn(at place, col *materialize.Column, name string) *column {
	return &column{file: file{place: at, measure: col.Size}, col: col, name: name}
}

var _ = (fusefs.NodeGetxattrer)((*column)(nil))

// Getxattr of user.hipofs.realpath waits, as open does, until the column is a
// plain file in the cache folder.
func (c *column) Getxattr(ctx context.Context, attr string, dest []byte) (uint32, syscall.Errno) {
	if attr != "user.hipofs.realpath" {
		return trueName(c.name, attr, dest)
	}
	n, ok := c.col.PathLength()
	switch {
	case !ok:
		return 0, syscall.ENODATA
	case len(dest) < n: // who asks for the length gets it at once
		return uint32(n), syscall.ERANGE
	}
	path, err := c.col.RealPath(ctx)
	if err != nil {
		return 0, c.errno(ctx, err)
	}
	return uint32(copy(dest, path)), 0
}

var _ = (fusefs.NodeOpener)((*column)(nil))

// Open finds out about damage: after it, reads fail only for new reasons.
func (c *column) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	if errno := c.opening(flags); errno != 0 {
		return nil, 0, errno
	}
	finished, err := c.col.Finished(ctx)
	if err != nil {
		return nil, 0, c.errno(ctx, err)
	}
	var stride int64
	if finished == nil {
		if stride, err = c.col.Open(ctx); err != nil {
			return nil, 0, c.errno(ctx, err)
		}
	}
	c.ahead.set(readAheadFor(stride))
	return opened{}, c.opens.add(finished, c.through), 0
}

var _ = (fusefs.NodeReleaser)((*column)(nil))

func (c *column) Release(context.Context, fusefs.FileHandle) syscall.Errno {
	if c.opens.remove(c.through) {
		c.col.Left()
	}
	return 0
}

var _ = (fusefs.NodeReader)((*column)(nil))

// Read runs to its end, whoever is interrupted: the kernel makes an error of
// the page cache from a read that gives up, for everyone who maps the file.
func (c *column) Read(ctx context.Context, _ fusefs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	ctx = context.WithoutCancel(ctx)
	if f := c.opens.finished(c.through); f != nil {
		// Not ReadResultFd: splicing is no faster, and would not notice an end that
		// comes too soon. What the file does not give, its sources may.
		n, err := f.ReadAt(dest, off)
		if err == nil || err == io.EOF && c.short(ctx, off, n) == nil {
			return fuse.ReadResultData(dest[:n]), 0
		}
	}
	pieces, err := c.col.Read(ctx, dest, off)
	n := 0
	for _, b := range pieces {
		n += len(b)
	}
	if err == nil && n < len(dest) {
		err = c.short(ctx, off, n)
	}
	if err != nil {
		return nil, c.errno(ctx, err)
	}
	return fuse.ReadResultVector(pieces), 0
}

// short says what is wrong with only n bytes at off; the kernel would fill the
// rest with zeros.
func (f *file) short(ctx context.Context, off int64, n int) error {
	size, err := f.size(ctx)
	if err == nil && off+int64(n) < size {
		err = fmt.Errorf("%s: internal error: %d bytes at %d of %d", f.path, n, off, size)
	}
	return err
}
