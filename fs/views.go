package fs

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"

	"github.com/hipofs/hipofs/materialize"
)

// files are the contents of .files: each file of the chain as a tree of its
// own. They answer look-ups and list nothing, so that a walker does not walk
// everything many times.
type files struct {
	numbers map[string]int // of files in the view
}

func newFiles(t *tree) *files {
	f := &files{numbers: map[string]int{}}
	for i, name := range folderNames(t.view.Files()) {
		f.numbers[name] = i
	}
	return f
}

// folderNames are the names under .files.
func folderNames(files []materialize.FileInfo) []string {
	names := make([]string, len(files))
	taken := claims{}
	for i, f := range files {
		names[i] = taken.claim(source(f.Name), nameMax)
	}
	return names
}

func (f *files) find(_ context.Context, name string, at place) (node, error) {
	i, ok := f.numbers[name]
	if !ok {
		return nil, nil
	}
	t := at.viewTree(func() (*materialize.View, error) { return at.view.File(i), nil })
	return t.folder(place{t, at.path}), nil
}

func (f *files) list(context.Context) ([]entry, error) { return nil, nil }
func (f *files) subfolders() uint32                    { return uint32(len(f.numbers)) }

// mostNested is how deep views may lie in each other: each is made of the one
// that it lies in.
const mostNested = 16

// viewTree is the tree of the view at a place: of a recent one, or made now. nil
// if there is none, of which the log says why.
func (at place) viewTree(make func() (*materialize.View, error)) *tree {
	if t := at.recent.find(at.path); t != nil {
		return t
	}
	if at.nested == mostNested {
		at.border.wrong(at.path, fmt.Errorf("views lie at most %d deep in each other", mostNested))
		return nil
	}
	view, err := make()
	if err != nil {
		at.border.wrong(at.path, err)
		return nil
	}
	return at.narrowed(view)
}

// views are the contents of .entries and .where: a name says which entries the
// tree below it has. They answer look-ups and list nothing.
type views struct {
	named func(v *materialize.View, name string) (*materialize.View, error)
}

func sliced(v *materialize.View, name string) (*materialize.View, error) {
	r, err := materialize.ParseSlice(name)
	if err != nil {
		return nil, err
	}
	return v.Slice(r), nil
}

func filtered(v *materialize.View, name string) (*materialize.View, error) {
	w, err := materialize.ParseWhere(name)
	if err != nil {
		return nil, err
	}
	return v.Where(w)
}

func (s views) find(_ context.Context, name string, at place) (node, error) {
	t := at.viewTree(func() (*materialize.View, error) { return s.named(at.view, name) })
	if t == nil {
		return nil, nil
	}
	return t.folder(place{t, at.path}), nil
}

func (views) list(context.Context) ([]entry, error) { return nil, nil }
func (views) subfolders() uint32                    { return 0 }

// events are the contents of .event: each entry by its number in the view.
type events struct{}

func (events) find(ctx context.Context, name string, at place) (node, error) {
	r, err := materialize.ParseSlice(name + ":" + name)
	if err != nil {
		return nil, nil
	}
	n, err := at.view.Count(ctx)
	if err != nil || r.From >= n {
		return nil, err
	}
	r.To++
	t := at.viewTree(func() (*materialize.View, error) { return at.view.Slice(r), nil })
	if t == nil {
		return nil, nil
	}
	return &folder{place: place{t, at.path}, in: eventTop{t.top()}}, nil
}

func (events) list(context.Context) ([]entry, error) { return nil, nil }
func (events) subfolders() uint32                    { return 0 }

// eventTop is the top of the tree of one entry: it also has event.json.
type eventTop struct{ *top }

const eventFile = "event.json"

var eventEntry = entry{eventFile, syscall.S_IFREG, func(at place) node {
	return newDocument(at, func(ctx context.Context) ([]byte, error) { return eventJSON(ctx, at.tree) })
}}

func (e eventTop) find(ctx context.Context, name string, at place) (node, error) {
	if name == eventFile {
		return eventEntry.make(at), nil
	}
	return e.top.find(ctx, name, at)
}

func (e eventTop) list(context.Context) ([]entry, error) {
	return append(slices.Clone(e.entries), eventEntry), nil
}

// recent are the views that were looked up last, so that another look-up does
// not make them again. Each holds some memory: when they are too many, the kernel
// is asked to forget the oldest, and does when nobody uses them.
type recent struct {
	mu    sync.Mutex
	views []recentView // the last used at the end
}

type recentView struct {
	place
	parent *fusefs.Inode
	name   string
}

// recentBytes is what recent views may take, and is kept of them in any case.
const recentBytes = 16 << 20

// find is the tree of the view at path, if it is a recent one.
func (r *recent) find(path string) *tree {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.views) - 1; i >= 0; i-- {
		if r.views[i].path == path {
			return r.views[i].tree
		}
	}
	return nil
}

// used notes that the view at a place was looked up in a folder, by that name.
func (r *recent) used(at place, parent *fusefs.Inode, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.views = slices.DeleteFunc(r.views, func(v recentView) bool { return v.path == at.path })
	r.views = append(r.views, recentView{at, parent, name})
	var bytes int64
	for i := len(r.views) - 1; i >= 0; i-- {
		if bytes += r.views[i].view.Bytes(); bytes <= recentBytes || i == len(r.views)-1 {
			continue
		}
		old := slices.Clone(r.views[:i+1])
		r.views = slices.Delete(r.views, 0, i+1)
		// Not here: the kernel waits until the folder's look-ups are answered.
		go func() {
			for _, v := range old {
				_ = v.parent.NotifyEntry(v.name)
			}
		}()
		return
	}
}

// nodes are the contents of .nodes: structures that no dictionary declares,
// which only the counting pass finds.
type nodes struct{ view *materialize.View }

var groupItem = regexp.MustCompile(`^(0|[1-9][0-9]{0,4})\.(0|[1-9][0-9]{0,2})$`)

func (n nodes) find(ctx context.Context, name string, at place) (node, error) {
	if !groupItem.MatchString(name) {
		return nil, nil
	}
	banks, err := n.view.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, b := range banks {
		if b.Name == name {
			return bankFolder(at, b), nil
		}
	}
	return nil, nil
}

func (n nodes) list(ctx context.Context) ([]entry, error) {
	banks, err := n.view.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]entry, len(banks))
	for i, b := range banks {
		list[i] = entry{b.Name, syscall.S_IFDIR, func(at place) node { return bankFolder(at, b) }}
	}
	return list, nil
}

// subfolders is more than any file is known to have: their number is not known
// before all is counted.
func (nodes) subfolders() uint32 { return 1000 }
