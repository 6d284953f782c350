package fs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	iofs "io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hipofs/hipofs/materialize"
)

// tree is what all nodes of one view share: the whole chain at the root, one
// file of it under .files.
type tree struct {
	chain   *materialize.Chain
	view    *materialize.View
	files   []materialize.FileInfo // as files.json lists them: at the root also those left out
	attr    attributes
	private bool // the attributes are this user's own, whatever the files'
	names   naming
	version string
	mounted time.Time
	border  *border
	ahead   *readAhead
	through *passthrough
	tops    *tops
	recent  *recent
	nested  int // views that this one lies in
}

func newRoot(chain *materialize.Chain, o Options, ahead *readAhead) *folder {
	view := chain.View()
	t := &tree{
		chain:   chain,
		view:    view,
		files:   chain.Files(),
		private: o.Private,
		names:   naming{dots: o.DotNames},
		version: o.Version,
		mounted: time.Now(),
		border:  &border{log: o.Log, faults: chain.Errors},
		ahead:   ahead,
		through: new(passthrough),
		tops:    &tops{of: map[*materialize.BankSet]*top{}},
		recent:  new(recent),
	}
	t.attr = t.attributes(view.Files())
	return t.folder(place{t, ""})
}

func (t *tree) attributes(files []materialize.FileInfo) attributes {
	a := attributesOf(files)
	if t.private {
		a.own()
	}
	return a
}

// narrowed is the tree of a view that lies in this one.
func (t *tree) narrowed(view *materialize.View) *tree {
	sub := *t
	sub.view = view
	sub.files = view.Files()
	sub.nested++
	if len(sub.files) > 0 {
		sub.attr = t.attributes(sub.files)
	}
	return &sub
}

// tops are the tops of the trees of one mount. Those with the same banks share
// one, so that a view costs little.
type tops struct {
	mu sync.Mutex
	of map[*materialize.BankSet]*top
}

// top is what lies at the top of a tree.
type top struct {
	banks []string // names of their folders, in the order of the BankSet
	*fixed
}

// top is the top of this tree.
func (t *tree) top() *top {
	set := t.view.BankSet()
	t.tops.mu.Lock()
	defer t.tops.mu.Unlock()
	if top := t.tops.of[set]; top != nil {
		return top
	}
	names := set.Names()
	top := &top{banks: make([]string, len(names))}
	entries := make([]entry, 0, 2*len(names)+11)
	taken := claims{}
	for i, name := range names {
		top.banks[i] = taken.claim(t.names.bank(name), bankMax)
		// Who walks the tree reads a bank as one file first: what that decodes is what
		// its columns need.
		entries = append(entries,
			entry{top.banks[i] + ".arrow", syscall.S_IFREG, func(at place) node { return newArrow(at, at.view.Bank(i)) }},
			entry{top.banks[i], syscall.S_IFDIR, func(at place) node { return bankFolder(at, at.view.Bank(i)) }})
	}
	entries = append(entries,
		entry{".nodes", syscall.S_IFDIR, func(at place) node { return &folder{place: at, in: nodes{at.view}} }},
		entry{".files", syscall.S_IFDIR, func(at place) node { return &folder{place: at, in: newFiles(at.tree)} }},
		entry{".entries", syscall.S_IFDIR, func(at place) node { return &folder{place: at, in: views{sliced}} }},
		entry{".where", syscall.S_IFDIR, func(at place) node { return &folder{place: at, in: views{filtered}} }},
		entry{".event", syscall.S_IFDIR, func(at place) node { return &folder{place: at, in: events{}} }},
		entry{".hipofs", syscall.S_IFDIR, controlFolder},
		// The rest asks backups, search tools and indexers to stay out.
		text(cacheTag, "Signature: 8a477f597d28d172789f06886806bc55\n# Columns of HIPO files, shown by hipofs; see https://bford.info/cachedir/\n"),
		text(".ignore", "*.npy\n*.arrow\n"),
		text(".trackerignore", "There is nothing to index here.\n"),
		text(".metadata_never_index", "There is nothing to index here.\n"),
	)
	top.fixed = newFixed(entries)
	t.tops.of[set] = top
	return top
}

// folder is the top of a tree as a folder.
func (t *tree) folder(at place) *folder { return &folder{place: at, in: t.top().fixed} }

// bankNames are the names of the banks' folders, in the order of view.Banks.
func (t *tree) bankNames() []string { return t.top().banks }

// place is where in the mount a node stands. The inode number follows from it,
// so that it is the same in every mount.
type place struct {
	*tree
	path string // from the mount point; "": the mount point itself
}

func (p place) child(name string) place {
	if p.path == "" {
		return place{p.tree, name}
	}
	return place{p.tree, p.path + "/" + name}
}

const rootIno = fuse.FUSE_ROOT_ID

// ino is a number for the path. A collision would show one file as another:
// the hash must be one for which nobody can make up two names.
func (p place) ino() uint64 {
	if p.path == "" {
		return rootIno
	}
	sum := sha256.Sum256([]byte(p.path))
	n := binary.LittleEndian.Uint64(sum[:]) >> 1 // some programs keep it signed
	return max(n, rootIno+1)
}

// opening says whether a file may be opened with these flags.
func (p place) opening(flags uint32) syscall.Errno {
	switch {
	case flags&syscall.O_ACCMODE != syscall.O_RDONLY:
		return syscall.EROFS
	case p.border.retired.Load():
		return syscall.ENOTCONN // as at a mount that is gone
	}
	return 0
}

func (p place) errno(ctx context.Context, err error) syscall.Errno {
	return p.border.errno(ctx, err, p.path)
}

// fill gives the attributes that all nodes have; nlink and size are the node's own.
func (p place) fill(out *fuse.Attr, kind uint32, size int64) {
	a := &p.attr
	out.Ino = p.ino()
	out.Size = uint64(size)
	out.Blocks = uint64(size+511) / 512
	out.Blksize = 4096
	out.SetTimes(&a.mtime, &a.mtime, &a.mtime)
	out.Nlink = 1
	out.Owner = fuse.Owner{Uid: a.uid, Gid: a.gid}
	out.Mode = kind | a.mode
	switch kind {
	case syscall.S_IFDIR:
		out.Mode |= a.mode >> 2 // x where there is r
	case syscall.S_IFLNK:
		out.Mode = kind | 0o777
	}
}

var _ = (fusefs.NodeStatfser)((*folder)(nil))
var _ = (fusefs.NodeStatfser)((*file)(nil))

// Statfs is the same for the whole mount: as large as its sources, and full.
func (p place) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	const block = 4096
	out.Bsize, out.Frsize, out.NameLen = block, block, nameMax
	out.Blocks = max(1, uint64(p.attr.bytes+block-1)/block)
	out.Files = uint64(len(p.bankNames()) + 1)
	return 0
}

// attributes are what files and folders have from their sources.
type attributes struct {
	mtime    time.Time // the newest
	mode     uint32    // r bits that all have
	uid, gid uint32
	bytes    int64
}

// attributesOf makes columns as private as their sources.
func attributesOf(files []materialize.FileInfo) attributes {
	a := attributes{mode: 0o444}
	agree := true
	for i, f := range files {
		if f.ModTime.After(a.mtime) || i == 0 {
			a.mtime = f.ModTime
		}
		if i == 0 {
			a.uid, a.gid = f.UID, f.GID
		}
		agree = agree && a.uid == f.UID && a.gid == f.GID
		a.mode &= uint32(f.Mode & iofs.ModePerm)
		a.bytes += f.Size
	}
	// Who was let in by other means, such as an ACL, must not be locked out of
	// the mount.
	if !agree || len(files) == 0 || !a.admit() {
		a.own()
	}
	return a
}

// own makes it this user's alone.
func (a *attributes) own() {
	a.uid, a.gid, a.mode = uint32(os.Geteuid()), uint32(os.Getegid()), 0o400
}

// admit says whether this process may read what has these attributes.
func (a *attributes) admit() bool {
	euid := os.Geteuid()
	groups, _ := os.Getgroups()
	switch {
	case euid == 0:
		return true
	case uint32(euid) == a.uid:
		return a.mode&0o400 != 0
	case uint32(os.Getegid()) == a.gid, slices.Contains(groups, int(a.gid)):
		return a.mode&0o040 != 0
	}
	return a.mode&0o004 != 0
}

// node is what stands at a place.
type node interface {
	fusefs.InodeEmbedder
	ino() uint64
	kind() uint32 // syscall.S_IFDIR, S_IFREG or S_IFLNK
	// look answers a look-up. It may leave a size out, with a timeout of 0.
	look(ctx context.Context, out *fuse.EntryOut) syscall.Errno
}

// entry is a name in a folder, and what it stands for.
type entry struct {
	name string
	kind uint32
	make func(at place) node
}

// contents are what a folder holds.
type contents interface {
	// find is the child of that name, at the place that it will have; nil where
	// there is none.
	find(ctx context.Context, name string, at place) (node, error)
	// list are the children in their order, the same each time.
	list(ctx context.Context) ([]entry, error)
	// subfolders is how many folders there may be: find(1) and Perl's File::Find
	// look for no more than the link count promises.
	subfolders() uint32
}

// fixed are contents that follow from the dictionary.
type fixed struct {
	entries []entry
	numbers map[string]int // in entries
	folders uint32
}

func newFixed(entries []entry) *fixed {
	f := &fixed{entries: entries, numbers: make(map[string]int, len(entries))}
	for i, e := range entries {
		f.numbers[e.name] = i
		if e.kind == syscall.S_IFDIR {
			f.folders++
		}
	}
	return f
}

func (f *fixed) find(_ context.Context, name string, at place) (node, error) {
	if i, ok := f.numbers[name]; ok {
		return f.entries[i].make(at), nil
	}
	return nil, nil
}

func (f *fixed) list(context.Context) ([]entry, error) { return f.entries, nil }
func (f *fixed) subfolders() uint32                    { return f.folders }

// folder is a directory. Its children become inodes when they are looked up.
type folder struct {
	fusefs.Inode
	place
	in   contents
	name string // user.hipofs.name; "": none
}

func (f *folder) kind() uint32 { return syscall.S_IFDIR }

func (f *folder) look(_ context.Context, out *fuse.EntryOut) syscall.Errno {
	f.fillFolder(&out.Attr)
	out.SetAttrTimeout(forever)
	return 0
}

func (f *folder) fillFolder(out *fuse.Attr) {
	f.fill(out, syscall.S_IFDIR, 0)
	out.Nlink = 2 + f.in.subfolders()
}

var _ = (fusefs.NodeGetattrer)((*folder)(nil))

func (f *folder) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.fillFolder(&out.Attr)
	out.SetTimeout(forever)
	return 0
}

var _ = (fusefs.NodeLookuper)((*folder)(nil))

func (f *folder) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	if len(name) > nameMax {
		return nil, syscall.ENAMETOOLONG
	}
	// A node that the kernel knows keeps what it has found out.
	if known := f.GetChild(name); known != nil {
		n := known.Operations().(node)
		f.noteView(n, name)
		return known, n.look(ctx, out)
	}
	n, err := f.in.find(ctx, name, f.child(name))
	switch {
	case err != nil:
		return nil, f.errno(ctx, err)
	case n == nil:
		return nil, syscall.ENOENT
	}
	if errno := n.look(ctx, out); errno != 0 {
		return nil, errno
	}
	f.noteView(n, name)
	return f.NewInode(ctx, n, fusefs.StableAttr{Mode: n.kind(), Ino: n.ino()}), 0
}

// noteView notes that a view was looked up here, if a child is the top of one.
func (f *folder) noteView(n node, name string) {
	if sub, ok := n.(*folder); ok && sub.tree != f.tree {
		f.recent.used(sub.place, &f.Inode, name)
	}
}

var _ = (fusefs.NodeReaddirer)((*folder)(nil))

func (f *folder) Readdir(ctx context.Context) (fusefs.DirStream, syscall.Errno) {
	entries, err := f.in.list(ctx)
	if err != nil {
		return nil, f.errno(ctx, err)
	}
	parent := uint64(rootIno)
	if _, p := f.Parent(); p != nil {
		parent = p.StableAttr().Ino
	}
	out := make([]fuse.DirEntry, 0, len(entries)+2)
	out = append(out,
		fuse.DirEntry{Name: ".", Mode: syscall.S_IFDIR, Ino: f.ino()},
		fuse.DirEntry{Name: "..", Mode: syscall.S_IFDIR, Ino: parent})
	for _, e := range entries {
		out = append(out, fuse.DirEntry{Name: e.name, Mode: e.kind, Ino: f.child(e.name).ino()})
	}
	return fusefs.NewListDirStream(out), 0
}

var _ = (fusefs.NodeGetxattrer)((*folder)(nil))

func (f *folder) Getxattr(_ context.Context, attr string, dest []byte) (uint32, syscall.Errno) {
	return trueName(f.name, attr, dest)
}

// trueName answers a getxattr: user.hipofs.name is the name as the dictionary
// has it, and there is no other. ENOSYS would switch them off everywhere.
func trueName(name, attr string, dest []byte) (uint32, syscall.Errno) {
	if attr != "user.hipofs.name" || name == "" {
		return 0, syscall.ENODATA
	}
	if len(dest) < len(name) {
		return uint32(len(name)), syscall.ERANGE
	}
	return uint32(copy(dest, name)), 0
}

// root may remount with rw, and go-fuse lets a folder without these succeed.
var _ = (fusefs.NodeUnlinker)((*folder)(nil))
var _ = (fusefs.NodeRmdirer)((*folder)(nil))

func (f *folder) Unlink(context.Context, string) syscall.Errno { return syscall.EROFS }
func (f *folder) Rmdir(context.Context, string) syscall.Errno  { return syscall.EROFS }
