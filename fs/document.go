package fs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"syscall"
	"unicode/utf8"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// document is a small file that is rendered when it is read, the same each time:
// once for an open, and not at all where the kernel still has its pages. Between
// opens only its size is kept.
type document struct {
	file
	render func(context.Context) ([]byte, error) // may wait
}

func newDocument(at place, render func(context.Context) ([]byte, error)) *document {
	return &document{render: render, file: file{place: at, measure: func(ctx context.Context) (int64, error) {
		b, err := render(ctx)
		return int64(len(b)), err
	}}}
}

// text is a document that is known beforehand.
func text(name, content string) entry {
	return entry{name, syscall.S_IFREG, func(at place) node {
		return newDocument(at, func(context.Context) ([]byte, error) { return []byte(content), nil })
	}}
}

// jsonText is a document that needs no waiting.
func jsonText(name string, value func() any) entry {
	return entry{name, syscall.S_IFREG, func(at place) node {
		return newDocument(at, func(context.Context) ([]byte, error) { return toJSON(value()) })
	}}
}

var _ = (fusefs.NodeOpener)((*document)(nil))

func (d *document) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	if errno := d.opening(flags); errno != 0 {
		return nil, 0, errno
	}
	if _, err := d.size(ctx); err != nil {
		return nil, 0, d.errno(ctx, err)
	}
	return &reading{of: d}, fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH, 0
}

// reading is an open document. The kernel asks for parts of it at the same time.
type reading struct {
	of *document
	mu sync.Mutex
	b  rendered // nil: nobody has read yet
}

var _ = (fusefs.FileReader)((*reading)(nil))
var _ = (fusefs.FileLseeker)((*reading)(nil))

// Read runs to its end, whoever is interrupted, as a column's does.
func (r *reading) Read(ctx context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.b == nil {
		ctx = context.WithoutCancel(ctx)
		b, err := r.of.render(ctx)
		if err != nil {
			return nil, r.of.errno(ctx, err)
		}
		r.b = b
	}
	return r.b.Read(ctx, dest, off)
}

func (r *reading) Lseek(ctx context.Context, off uint64, whence uint32) (uint64, syscall.Errno) {
	return r.of.Lseek(ctx, nil, off, whence)
}

// live is a file like those of /proc: its size is 0, and what it says is what
// was true when it was opened.
type live struct {
	fusefs.Inode
	place
	render func() ([]byte, error)
}

func liveText(name string, render func() ([]byte, error)) entry {
	return entry{name, syscall.S_IFREG, func(at place) node { return &live{place: at, render: render} }}
}

func liveJSON(name string, value func() any) entry {
	return liveText(name, func() ([]byte, error) { return toJSON(value()) })
}

func (l *live) kind() uint32 { return syscall.S_IFREG }

func (l *live) look(_ context.Context, out *fuse.EntryOut) syscall.Errno {
	l.fill(&out.Attr, syscall.S_IFREG, 0)
	out.SetAttrTimeout(forever)
	return 0
}

var _ = (fusefs.NodeGetattrer)((*live)(nil))
var _ = (fusefs.NodeStatfser)((*live)(nil))

func (l *live) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	l.fill(&out.Attr, syscall.S_IFREG, 0)
	out.SetTimeout(forever)
	return 0
}

var _ = (fusefs.NodeOpener)((*live)(nil))

func (l *live) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	if errno := l.opening(flags); errno != 0 {
		return nil, 0, errno
	}
	b, err := l.render()
	if err != nil {
		return nil, 0, l.errno(ctx, err)
	}
	return rendered(b), fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH, 0
}

// rendered is an open document.
type rendered []byte

var _ = (fusefs.FileReader)(rendered(nil))
var _ = (fusefs.FileLseeker)(rendered(nil))

func (r rendered) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if off >= int64(len(r)) {
		return fuse.ReadResultData(nil), 0
	}
	return fuse.ReadResultData(dest[:copy(dest, r[off:])]), 0
}

func (r rendered) Lseek(_ context.Context, off uint64, whence uint32) (uint64, syscall.Errno) {
	return seek(off, whence, int64(len(r)))
}

// toJSON renders as people read: indented, and names as they are.
func toJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}

// trueText is a name in JSON. A byte that is not UTF-8 becomes \udc80 to
// \udcff, which Python's os.fsencode turns back into the byte; encoding/json
// would lose it.
type trueText string

func (s trueText) MarshalJSON() ([]byte, error) {
	out := []byte{'"'}
	for rest := string(s); rest != ""; {
		n := validPrefix(rest)
		quoted, err := toJSON(rest[:n])
		if err != nil {
			return nil, err
		}
		out = append(out, quoted[1:len(quoted)-len("\"\n")]...)
		if n < len(rest) {
			out = fmt.Appendf(out, `\udc%02x`, rest[n])
			n++
		}
		rest = rest[n:]
	}
	return append(out, '"'), nil
}

// validPrefix is how many bytes come before the first that is not UTF-8.
func validPrefix(s string) int {
	for i, r := range s {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return i
			}
		}
	}
	return len(s)
}
