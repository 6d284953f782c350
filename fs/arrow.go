package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hipofs/hipofs/materialize"
)

// arrow is a bank as one Arrow file.
type arrow struct {
	file
	bank  *materialize.Bank
	opens opens
}

func newArrow(at place, b *materialize.Bank) node {
	return &arrow{file: file{place: at, measure: b.Arrow.Size}, bank: b}
}

var _ = (fusefs.NodeGetxattrer)((*arrow)(nil))

func (a *arrow) Getxattr(_ context.Context, attr string, dest []byte) (uint32, syscall.Errno) {
	return trueName(a.bank.Name, attr, dest)
}

var _ = (fusefs.NodeOpener)((*arrow)(nil))

// Open finds out about damage: after it, reads fail only for new reasons.
func (a *arrow) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	if errno := a.opening(flags); errno != 0 {
		return nil, 0, errno
	}
	stride, err := a.bank.Arrow.Open(ctx)
	if err != nil {
		return nil, 0, a.errno(ctx, err)
	}
	a.ahead.set(readAheadFor(stride))
	return opened{}, a.opens.add(nil, a.through), 0
}

var _ = (fusefs.NodeReleaser)((*arrow)(nil))

func (a *arrow) Release(context.Context, fusefs.FileHandle) syscall.Errno {
	if a.opens.remove(a.through) {
		a.bank.Arrow.Left()
	}
	return 0
}

var _ = (fusefs.NodeReader)((*arrow)(nil))

// Read runs to its end, as a column's does.
func (a *arrow) Read(ctx context.Context, _ fusefs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	ctx = context.WithoutCancel(ctx)
	n, err := a.bank.Arrow.ReadAt(ctx, dest, off)
	if err == nil && n < len(dest) {
		err = a.short(ctx, off, n)
	}
	if err != nil {
		return nil, a.errno(ctx, err)
	}
	return fuse.ReadResultData(dest[:n]), 0
}
