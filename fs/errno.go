package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hipofs/hipofs/hipo"
	"github.com/hipofs/hipofs/materialize"
)

// border is where an error becomes a number for the kernel, and a line in the
// log, once. Safe for concurrent use.
type border struct {
	log    *slog.Logger
	faults func() []materialize.ErrorInfo // what the chain has logged itself

	retired atomic.Bool // the mount ends: nothing more is opened

	said once
	mu   sync.Mutex
	own  []materialize.ErrorInfo // what only the border has met
}

// once is what has been said. Its zero value is ready; safe for concurrent use.
type once struct {
	mu    sync.Mutex
	lines map[string]bool
}

// Programs that walk everything meet a damaged record once a column; a hostile
// file may have any number of faults, each with its own text.
const saidMax = 10000

// first reports whether a line is to be said: not again, nor beside too many.
func (o *once) first(line string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lines[line] || len(o.lines) >= saidMax {
		return false
	}
	if o.lines == nil {
		o.lines = map[string]bool{}
	}
	o.lines[line] = true
	return true
}

// panics makes an error of a bug that one request has brought out: the mount
// goes on. Each is logged once.
type panics struct {
	log  *slog.Logger
	said once
}

func (ps *panics) handle(p any) fuse.Status {
	if what := fmt.Sprint(p); ps.said.first(what) {
		ps.log.Error("internal error: panic: "+what, "stack", string(debug.Stack()))
	}
	return fuse.EIO
}

// passed on as they are: what the user can do about them differs
var ownErrnos = []syscall.Errno{
	syscall.ESTALE, // the source has changed
	syscall.EFBIG,  // over a limit
	syscall.ENOMEM,
	syscall.ENOSPC, // with the next two: of the cache folder
	syscall.EDQUOT,
	syscall.EROFS,
	syscall.EACCES, // from here on: of a source's file system
	syscall.EPERM,
	syscall.ETIMEDOUT,
	remoteIO,
	syscall.EHOSTDOWN,
	syscall.EHOSTUNREACH,
}

// errno is what the kernel is told about err, which was met at path on behalf
// of a caller who waits as long as ctx lasts.
func (b *border) errno(ctx context.Context, err error, path string) syscall.Errno {
	if err == nil {
		return 0
	}
	// Only who was interrupted may hear of it: programs try again after EINTR.
	if isContextError(err) && ctx.Err() != nil {
		return syscall.EINTR
	}
	if isContextError(err) && b.retired.Load() {
		return syscall.ENOTCONN
	}
	if errors.Is(err, materialize.ErrNoCache) {
		return syscall.ENODATA
	}
	b.report(err, path)
	for _, e := range ownErrnos {
		if errors.Is(err, e) {
			return e
		}
	}
	return syscall.EIO
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// wrong logs, once, what is wrong with the name of a view.
func (b *border) wrong(path string, err error) {
	if line := path + ": " + err.Error(); b.said.first(line) {
		b.log.Warn(line)
	}
}

// all are the distinct errors so far, those of the chain first.
func (b *border) all() []materialize.ErrorInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append(b.faults(), b.own...)
}

func (b *border) report(err error, path string) {
	// Every column that needs a damaged record meets the same fault.
	line := err.Error()
	if fault, ok := errors.AsType[*hipo.FormatError](err); ok {
		line = fault.Error()
	} else if fault, ok := errors.AsType[*materialize.SourceError](err); ok {
		line = fault.Error()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.said.first(line) {
		return
	}
	for _, f := range b.faults() {
		if f.Message == line || f.Message == err.Error() {
			return
		}
	}
	b.own = append(b.own, materialize.Explain(err))
	b.log.Error(line, "path", path)
}
