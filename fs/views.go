package fs

import (
	"context"
	"regexp"
	"syscall"

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
	t := at.one(i)
	return t.folder(place{t, at.path}), nil
}

func (f *files) list(context.Context) ([]entry, error) { return nil, nil }
func (f *files) subfolders() uint32                    { return uint32(len(f.numbers)) }

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
