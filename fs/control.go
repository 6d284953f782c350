package fs

import (
	"context"
	"syscall"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hipofs/hipofs/materialize"
)

// controlFolder is .hipofs: what a mount knows about itself.
func controlFolder(at place) node {
	t := at.tree
	entries := []entry{
		text("version", t.version+"\n"),
		jsonText("files.json", func() any { return t.fileList() }),
		{"records.json", syscall.S_IFREG, func(at place) node { return newDocument(at, t.recordList) }},
		jsonText("dictionary.json", func() any { return t.dictionary() }),
		jsonText("config.json", func() any { return notNil(t.view.Config()) }),
		jsonText("tags.json", func() any { return notNil(t.view.TagNames()) }),
		columnEntry("event_tags.npy", t.view.EventTags(), "event_tags"),
		columnEntry("record_tags.npy", t.view.RecordTags(), "record_tags"),
		columnEntry("entries.npy", t.view.EntryNumbers(), "entries"),
		liveJSON("stats.json", func() any { return t.stats() }),
		liveJSON("progress.json", func() any { return t.chain.Progress() }),
		liveJSON("errors.json", func() any { return notNull(t.border.all()) }),
		liveText("metrics", func() ([]byte, error) { return metricsText(t.stats()) }),
		{"populated", syscall.S_IFDIR, func(at place) node { return &folder{place: at, in: newPopulated(at.tree)} }},
	}
	if t.chain.TierStats() != nil {
		entries = append(entries, entry{"links", syscall.S_IFDIR, func(at place) node { return &folder{place: at, in: newLinks(at.tree)} }})
	}
	return &folder{place: at, in: newFixed(entries)}
}

// notNull and notNil keep empty lists and maps from being null in JSON.
func notNull[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func notNil[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}

// recordList is records.json. Which records a view has entries of may take a look
// inside.
func (t *tree) recordList(ctx context.Context) ([]byte, error) {
	if _, err := t.view.Count(ctx); err != nil {
		return nil, err
	}
	return toJSON(notNull(t.view.Records()))
}

// listedFile is a source in files.json.
type listedFile struct {
	materialize.FileInfo
	Folder string `json:"folder,omitempty"` // under .files; none for a file that is left out
}

func (t *tree) fileList() []listedFile {
	shown := t.view.Files()
	folders := folderNames(shown)
	list := make([]listedFile, len(t.files))
	for i, f := range t.files {
		list[i].FileInfo = f
		// What the view shows are the same files in the same order, but for those
		// that are left out.
		if len(shown) > 0 && shown[0].Name == f.Name {
			list[i].Folder = folders[0]
			shown, folders = shown[1:], folders[1:]
		}
	}
	return list
}

func (t *tree) dictionary() []schema {
	list := []schema{}
	for i, name := range t.bankNames() {
		b := t.view.Bank(i)
		s := schemaOf(b, columnFiles(t.names, b))
		s.Folder = name
		list = append(list, s)
	}
	return list
}

// populated are links to the banks that have rows.
type populated struct {
	banks   []*materialize.Bank
	names   []string
	numbers map[string]int
}

func newPopulated(t *tree) *populated {
	p := &populated{banks: t.view.Banks(), names: t.bankNames(), numbers: map[string]int{}}
	for i, name := range p.names {
		p.numbers[name] = i
	}
	return p
}

func (p *populated) entry(i int) entry {
	target := "../../" + p.names[i]
	return entry{p.names[i], syscall.S_IFLNK, func(at place) node { return &link{place: at, target: target} }}
}

// has says whether a bank has rows. A bank whose rows cannot be counted has
// some, and says itself what is wrong with it.
func (p *populated) has(ctx context.Context, i int) (bool, error) {
	rows, err := p.banks[i].Rows(ctx)
	if err != nil && isContextError(err) {
		return false, err
	}
	return err != nil || rows > 0, nil
}

func (p *populated) find(ctx context.Context, name string, at place) (node, error) {
	i, ok := p.numbers[name]
	if !ok {
		return nil, nil
	}
	has, err := p.has(ctx, i)
	if err != nil || !has {
		return nil, err
	}
	return p.entry(i).make(at), nil
}

func (p *populated) list(ctx context.Context) ([]entry, error) {
	var list []entry
	for i := range p.banks {
		has, err := p.has(ctx, i)
		if err != nil {
			return nil, err
		}
		if has {
			list = append(list, p.entry(i))
		}
	}
	return list, nil
}

func (*populated) subfolders() uint32 { return 0 }

// link is a symbolic link.
type link struct {
	fusefs.Inode
	place
	target string
}

func (l *link) kind() uint32 { return syscall.S_IFLNK }

func (l *link) look(_ context.Context, out *fuse.EntryOut) syscall.Errno {
	l.fill(&out.Attr, syscall.S_IFLNK, int64(len(l.target)))
	out.SetAttrTimeout(forever)
	return 0
}

var _ = (fusefs.NodeGetattrer)((*link)(nil))

func (l *link) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	l.fill(&out.Attr, syscall.S_IFLNK, int64(len(l.target)))
	out.SetTimeout(forever)
	return 0
}

var _ = (fusefs.NodeReadlinker)((*link)(nil))

func (l *link) Readlink(context.Context) ([]byte, syscall.Errno) { return []byte(l.target), 0 }
