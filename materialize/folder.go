package materialize

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	iofs "io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hipofs/hipofs/hipo"
)

// Folder is banks in the shape of a mount: folders of .npy files.
type Folder struct {
	dir        string
	entries    int64
	banks      []*packBank // those with a schema, then the others
	eventTags  *npyFile    // nil: all 0
	recordTags *npyFile    // nil: all 0
	settings   map[string]string
	tagNames   map[string]int
}

// packBank is a bank of a folder, or a structure that no dictionary declares.
type packBank struct {
	name    string
	dir     string
	schema  *hipo.Schema
	node    bool
	kind    uint8  // of structures
	format  string // of a composite bank
	offsets *npyFile
	columns []*npyFile // in the order of the schema
	shared  bool       // an earlier bank has the same id
}

// A bank whose folder has no schema.json gets an id that nobody uses, and that
// every HIPO library can read.
const (
	ownGroup = 31000
	lastItem = 127
)

// OpenFolder looks at a folder in the shape of a mount: a folder for each bank,
// with offsets.npy, its columns and, if there is one, schema.json. Of what else
// a mount has, .nodes is taken in, and of .hipofs the tags and settings.
func OpenFolder(dir string) (*Folder, error) {
	f := &Folder{dir: dir, entries: -1}
	names, err := subfolders(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if strings.HasPrefix(name, ".") {
			continue
		}
		b, err := openPackBank(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		f.banks = append(f.banks, b)
	}
	if err := f.giveIDs(); err != nil {
		return nil, err
	}
	nodes, err := subfolders(filepath.Join(dir, ".nodes"))
	if err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return nil, err
	}
	for _, name := range nodes {
		b, err := openPackNode(filepath.Join(dir, ".nodes", name))
		if err != nil {
			return nil, err
		}
		f.banks = append(f.banks, b)
	}
	if len(f.banks) == 0 {
		return nil, fmt.Errorf("%s: no bank in this folder; want a folder for each, with offsets.npy and columns", dir)
	}
	ids := map[[2]int]bool{}
	for _, b := range f.banks {
		id := [2]int{int(b.schema.Group), int(b.schema.Item)}
		b.shared = ids[id]
		ids[id] = true
		if f.entries >= 0 && f.entries != b.offsets.rows-1 {
			return nil, fmt.Errorf("%s: %d entries, %s has %d: all banks must have the same", b.offsets.path, b.offsets.rows-1, f.banks[0].offsets.path, f.entries)
		}
		f.entries = b.offsets.rows - 1
	}
	return f, f.openAbout(filepath.Join(dir, ".hipofs"))
}

// subfolders are the names of folders in a folder, sorted.
func subfolders(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if st, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && st.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Files are the names of all arrays, for who wants to know how much there is.
func (f *Folder) Files() []string {
	var names []string
	for _, b := range f.banks {
		names = append(names, b.offsets.path)
		for _, c := range b.columns {
			names = append(names, c.path)
		}
	}
	return names
}

// schemaFile is what schema.json says.
type schemaFile struct {
	Name    string `json:"name"`
	Group   int    `json:"group"`
	Item    int    `json:"item"`
	Columns []struct {
		Name   string `json:"name"`
		Type   string `json:"type"`
		Length int    `json:"length"`
		File   string `json:"file"`
	} `json:"columns"`
}

func openOffsets(dir string) (*npyFile, error) {
	path := filepath.Join(dir, "offsets.npy")
	a, err := openNpy(path)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no offsets.npy, which a folder of a bank must have", dir)
	}
	if err == nil && (a.dtype != "<i8" || a.n != 1 || a.rows == 0) {
		err = fmt.Errorf("%s: want int64 of shape (entries + 1,)", path)
	}
	return a, err
}

// openPackBank looks at the folder of a bank. Without a schema.json its schema
// has no ids yet.
func openPackBank(dir string) (*packBank, error) {
	b := &packBank{dir: dir, kind: 11}
	var err error
	if b.offsets, err = openOffsets(dir); err != nil {
		return nil, err
	}
	own := plainName(filepath.Base(dir))
	about := schemaFile{Name: own, Group: -1, Item: -1}
	path := filepath.Join(dir, "schema.json")
	if err := readJSON(path, &about); err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return nil, err
	}
	if !utf8.ValidString(own) { // JSON cannot carry it
		about.Name = own
	}
	var columns [][2]string
	listed := map[string]bool{"offsets.npy": true}
	for _, c := range about.Columns {
		if c.File != filepath.Base(c.File) || !strings.HasSuffix(c.File, ".npy") {
			return nil, fmt.Errorf("%s: column %q has the file %q; want a name ending in .npy", path, c.Name, c.File)
		}
		name := c.Name
		if plain := plainName(strings.TrimSuffix(c.File, ".npy")); !utf8.ValidString(plain) {
			name = plain
		}
		a, err := openNpy(filepath.Join(dir, c.File))
		if errors.Is(err, iofs.ErrNotExist) {
			return nil, fmt.Errorf("%s: %s is listed, and not there; take it off the list, or bring it back", path, c.File)
		}
		if err != nil {
			return nil, err
		}
		if letter := letters[a.dtype]; letter != c.Type || a.n != max(1, c.Length) {
			return nil, fmt.Errorf("%s: %s with %d values a row, schema.json says %s#%d; convert the array, or remove schema.json", a.path, a.dtype, a.n, c.Type, max(1, c.Length))
		}
		listed[c.File] = true
		columns = append(columns, [2]string{name, columnSpelled(a)})
		b.columns = append(b.columns, a)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range files {
		name, ok := strings.CutSuffix(e.Name(), ".npy")
		if !ok || listed[e.Name()] || strings.HasPrefix(name, "@") || strings.HasPrefix(name, ".") {
			continue
		}
		a, err := openNpy(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if letters[a.dtype] == "" {
			return nil, fmt.Errorf("%s: %w", a.path, errType(a.dtype))
		}
		columns = append(columns, [2]string{plainName(name), columnSpelled(a)})
		b.columns = append(b.columns, a)
	}
	if len(columns) == 0 {
		return nil, fmt.Errorf("%s: no column; want at least one .npy file beside offsets.npy", dir)
	}
	for _, a := range b.columns {
		if a.rows != b.columns[0].rows {
			return nil, fmt.Errorf("%s: %d rows, %s has %d: all columns of a bank must have the same", a.path, a.rows, b.columns[0].path, b.columns[0].rows)
		}
	}
	b.name = about.Name
	b.schema, err = hipo.NewSchema(about.Name, max(0, about.Group), max(0, about.Item), columns)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if about.Group < 0 {
		b.schema.Group, b.schema.Item = ownGroup, 0 // for giveIDs
	}
	return b, nil
}

// columnSpelled is the type of a column as dictionaries spell it.
func columnSpelled(a *npyFile) string {
	if a.n > 1 {
		return fmt.Sprintf("%s#%d", letters[a.dtype], a.n)
	}
	return letters[a.dtype]
}

// giveIDs gives ids to banks that have none, and looks whether the others have
// one to themselves.
func (f *Folder) giveIDs() error {
	names := map[string]string{}
	taken := map[uint8]bool{0: true}
	for _, b := range f.banks {
		if other, ok := names[b.name]; ok {
			return fmt.Errorf("%s and %s: both are bank %s", other, b.dir, b.name)
		}
		names[b.name] = b.dir
		if b.schema.Group == ownGroup {
			taken[b.schema.Item] = true
		}
	}
	next := uint8(1)
	for _, b := range f.banks {
		if b.schema.Group != ownGroup || b.schema.Item != 0 {
			continue
		}
		for taken[next] {
			next++
		}
		if next > lastItem {
			return fmt.Errorf("%s: over %d banks without a schema.json, which gives their ids", b.dir, lastItem)
		}
		b.schema.Item = next
		taken[next] = true
	}
	return nil
}

// openPackNode looks at the folder of a structure that no dictionary declares:
// value.npy, or f0.npy, f1.npy, … of a composite bank.
func openPackNode(dir string) (*packBank, error) {
	b := &packBank{dir: dir, node: true, name: ".nodes/" + filepath.Base(dir)}
	group, item, ok := strings.Cut(filepath.Base(dir), ".")
	g, err1 := strconv.ParseUint(group, 10, 16)
	i, err2 := strconv.ParseUint(item, 10, 8)
	if !ok || err1 != nil || err2 != nil {
		return nil, fmt.Errorf("%s: want a folder called GROUP.ITEM", dir)
	}
	var err error
	if b.offsets, err = openOffsets(dir); err != nil {
		return nil, err
	}
	value, err := openNpy(filepath.Join(dir, "value.npy"))
	switch {
	case err == nil:
		kinds := map[string]uint8{"|i1": 1, "<i2": 2, "<i4": 3, "<f4": 4, "<f8": 5, "<i8": 8}
		b.columns, b.kind = []*npyFile{value}, kinds[value.dtype]
		if value.n == 3 && b.kind == 4 {
			b.kind = 9
		} else if value.n != 1 || b.kind == 0 {
			return nil, fmt.Errorf("%s: dtype %s with %d values a row is none of HIPO's types", value.path, value.dtype, value.n)
		}
		b.schema = hipo.Primitive(b.kind)
	case !errors.Is(err, iofs.ErrNotExist):
		return nil, err
	default:
		for k := 0; ; k++ {
			a, err := openNpy(filepath.Join(dir, fmt.Sprintf("f%d.npy", k)))
			if errors.Is(err, iofs.ErrNotExist) {
				break
			}
			if err == nil && (a.n != 1 || letters[a.dtype] == "") {
				err = fmt.Errorf("%s: %w", a.path, errType(a.dtype))
			}
			if err != nil {
				return nil, err
			}
			b.columns = append(b.columns, a)
			b.format += strings.ToLower(letters[a.dtype])
		}
		if len(b.columns) == 0 {
			return nil, fmt.Errorf("%s: neither value.npy nor f0.npy", dir)
		}
		b.kind, b.schema = 10, hipo.Composite(b.format)
	}
	for _, a := range b.columns {
		if a.rows != b.columns[0].rows {
			return nil, fmt.Errorf("%s: %d rows, %s has %d: all columns of a bank must have the same", a.path, a.rows, b.columns[0].path, b.columns[0].rows)
		}
	}
	b.schema.Group, b.schema.Item = uint16(g), uint8(i)
	return b, nil
}

// openAbout takes in what .hipofs says of entries and settings, as far as it is
// there.
func (f *Folder) openAbout(dir string) error {
	for _, about := range []struct {
		name, dtype string
		at          **npyFile
	}{
		{"event_tags.npy", "<u4", &f.eventTags},
		{"record_tags.npy", "<i8", &f.recordTags},
	} {
		a, err := openNpy(filepath.Join(dir, about.name))
		if errors.Is(err, iofs.ErrNotExist) {
			continue
		}
		if err == nil && (a.dtype != about.dtype || a.n != 1 || a.rows != f.entries) {
			err = fmt.Errorf("%s: want %s of shape (%d,), one value an entry", a.path, about.dtype, f.entries)
		}
		if err != nil {
			return err
		}
		*about.at = a
	}
	for name, at := range map[string]any{"config.json": &f.settings, "tags.json": &f.tagNames} {
		if err := readJSON(filepath.Join(dir, name), at); err != nil && !errors.Is(err, iofs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// maxJSON is more than any of the small files takes.
const maxJSON = 64 << 20

func readJSON(path string, at any) error {
	f, size, err := openRegular(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if size > maxJSON {
		return fmt.Errorf("%s: a file of %d bytes is no schema or settings", path, size)
	}
	b := make([]byte, size)
	if n, err := f.ReadAt(b, 0); n < len(b) {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := json.Unmarshal(b, at); err != nil {
		return fmt.Errorf("%s: not what a mount has there: %w", path, err)
	}
	return nil
}

// plainName is the name that a file name of a mount stands for.
func plainName(file string) string {
	if name, err := url.PathUnescape(file); err == nil {
		return name
	}
	return file
}

// declarations is the dictionary of the folder.
func (f *Folder) declarations() []hipo.Declaration {
	var all []hipo.Declaration
	for _, b := range f.banks {
		if !b.node {
			all = append(all, hipo.Declare(b.schema))
		}
	}
	keys := make([]string, 0, len(f.settings))
	for k := range f.settings {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, cmp.Compare[string])
	for _, k := range keys {
		all = append(all, hipo.Declaration{Setting: k, Value: f.settings[k]})
	}
	if len(f.tagNames) > 0 {
		all = append(all, hipo.Declaration{TagNames: f.tagNames})
	}
	return all
}
