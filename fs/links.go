package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hipofs/hipofs/materialize"
)

// links are the contents of .hipofs/links: for each column a link to its plain
// file in the cache folder, which is made when the link is read. Nothing is
// listed, here and in the folders: a coloured ls would have every column made.
type links struct {
	banks map[string]*materialize.Bank // by the name of their folder
}

func newLinks(t *tree) links {
	l := links{map[string]*materialize.Bank{}}
	for i, name := range t.bankNames() {
		l.banks[name] = t.view.Bank(i)
	}
	return l
}

func (l links) find(_ context.Context, name string, at place) (node, error) {
	b := l.banks[name]
	if b == nil {
		return nil, nil
	}
	in := bankLinks{}
	for _, c := range allColumnFiles(at.names, b) {
		in[c.file] = c.Column
	}
	return &folder{place: at, in: in, name: b.Name}, nil
}

func (l links) list(context.Context) ([]entry, error) { return nil, nil }
func (l links) subfolders() uint32                    { return uint32(len(l.banks)) }

// bankLinks are the columns of a bank by the name of their file.
type bankLinks map[string]*materialize.Column

func (l bankLinks) find(_ context.Context, name string, at place) (node, error) {
	col := l[name]
	if col == nil {
		return nil, nil
	}
	return &pathLink{place: at, col: col}, nil
}

func (bankLinks) list(context.Context) ([]entry, error) { return nil, nil }
func (bankLinks) subfolders() uint32                    { return 0 }

// pathLink is the link to a column's plain file.
type pathLink struct {
	fusefs.Inode
	place
	col *materialize.Column
}

func (l *pathLink) kind() uint32 { return syscall.S_IFLNK }

func (l *pathLink) fillLink(out *fuse.Attr) {
	n, _ := l.col.PathLength()
	l.fill(out, syscall.S_IFLNK, int64(n))
}

func (l *pathLink) look(_ context.Context, out *fuse.EntryOut) syscall.Errno {
	l.fillLink(&out.Attr)
	out.SetAttrTimeout(forever)
	return 0
}

var _ = (fusefs.NodeGetattrer)((*pathLink)(nil))

func (l *pathLink) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	l.fillLink(&out.Attr)
	out.SetTimeout(forever)
	return 0
}

var _ = (fusefs.NodeReadlinker)((*pathLink)(nil))

func (l *pathLink) Readlink(ctx context.Context) ([]byte, syscall.Errno) {
	path, err := l.col.RealPath(ctx)
	if err != nil {
		return nil, l.errno(ctx, err)
	}
	return []byte(path), 0
}
