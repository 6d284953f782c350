package materialize

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/hipo"
)

// An export writes below DIR/.hipofs.part/files, in the shape that DIR gets when
// all is whole. Beside it is how far it has come. What DIR is an export of is
// said in DIR/.hipofs/export.json.
const (
	exportStage = ".hipofs.part"
	stagedFiles = "files"
	stagedState = "state.json"
	exportAbout = ".hipofs/export.json"
)

// exportFolder is the folder of an export, which it belongs to alone.
type exportFolder struct {
	path  string
	made  bool // by this export
	force bool
	stage *os.File
	about exportedOf
	only  map[string]bool // the files to write: the others are there; nil: all

	resumable bool         // what lies aside is good for the next export
	begun     *exportState // what an interrupted one has left; nil: nothing
	result    *Exported    // nothing is left to do

	mu     sync.Mutex
	noted  int // runs of the last checkpoint
	opened int // files
	most   int // that may be open
	dirs   map[string]bool
}

// exportedOf is what a folder is an export of, as export.json says it.
type exportedOf struct {
	Sources []exportSource `json:"sources"`
	Options []string       `json:"options"`
	Entries int64          `json:"entries"`
	Banks   int            `json:"banks"`
	Files   []string       `json:"files"`
	Faults  []string       `json:"left_out,omitempty"`
}

// exportSource tells a source from another file, and from what it was before.
type exportSource struct {
	Name    string `json:"name"`
	Size    int64  `json:"size"`
	ModTime int64  `json:"mtime_ns"`
}

// exportState is how far an export has come.
type exportState struct {
	Sources []exportSource   `json:"sources"`
	Options []string         `json:"options"`
	Boot    string           `json:"boot"` // what was written before the machine went down may be lost
	Runs    int              `json:"runs"` // that are in the files
	Entries int64            `json:"entries"`
	Rows    map[string]int64 `json:"rows"` // by bank
	Nodes   []exportNode     `json:"nodes,omitempty"`
}

// exportNode is a structure that no dictionary declares.
type exportNode struct {
	Group     uint16 `json:"group"`
	Item      uint8  `json:"item"`
	Primitive uint8  `json:"primitive"`
	Format    string `json:"format"`
	Rows      int64  `json:"rows"`
}

// openExportFolder makes the folder, or looks what it holds.
func openExportFolder(o ExportOptions, infos []FileInfo) (f *exportFolder, err error) {
	f = &exportFolder{path: o.Dir, force: o.Force, dirs: map[string]bool{}}
	f.about.Options = o.Words
	for _, s := range infos {
		name := s.Name
		if !strings.Contains(name, "://") {
			if name, err = filepath.Abs(name); err != nil {
				return nil, err
			}
		}
		f.about.Sources = append(f.about.Sources, exportSource{name, s.Size, s.ModTime.UnixNano()})
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil, err
	}
	f.most = int(min(limit.Cur/2, 1<<16))
	switch err := os.Mkdir(f.path, 0o777); {
	case err == nil:
		f.made = true
	case !errors.Is(err, iofs.ErrExist):
		return nil, err
	}
	if err := f.lock(); err != nil {
		if f.made {
			os.Remove(f.path)
		}
		return nil, err
	}
	if err := f.look(o, infos); err != nil {
		f.leave()
		f.close()
		return nil, err
	}
	return f, nil
}

// lock makes the folder aside this process's own.
func (f *exportFolder) lock() error {
	path := filepath.Join(f.path, exportStage)
	for {
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, iofs.ErrExist) {
			if errors.Is(err, unix.ENOTDIR) {
				return fmt.Errorf("%s: not a folder; choose another name", f.path)
			}
			return err
		}
		dir, err := os.OpenFile(path, syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
		if errors.Is(err, iofs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			dir.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return fmt.Errorf("%s: another hipofs is exporting into it", f.path)
			}
			return fmt.Errorf("%s: %w", path, err)
		}
		// The one before may have ended, and removed it, since it was opened.
		mine, err := dir.Stat()
		there, err2 := os.Lstat(path)
		if err == nil && err2 == nil && os.SameFile(mine, there) {
			f.stage = dir
			return nil
		}
		dir.Close()
	}
}

// look finds out what is there already, and whether it may go.
func (f *exportFolder) look(o ExportOptions, infos []FileInfo) error {
	old, err := f.holds()
	if err != nil {
		return err
	}
	if old != nil && !f.force {
		if !f.about.same(old.Sources, old.Options) {
			return fmt.Errorf("%s: it holds an export of %s; choose another folder, or replace that with --force", f.path, f.about.difference(old))
		}
		missing := map[string]bool{}
		for _, name := range old.Files {
			if _, err := os.Lstat(f.final(name)); err != nil {
				missing[name] = true
			}
		}
		f.about = *old
		if len(missing) > 0 {
			f.only = missing
			return f.clean()
		}
		f.result = &Exported{Entries: old.Entries, Banks: old.Banks, Files: len(old.Files)}
		for _, fault := range old.Faults {
			f.result.Faults = append(f.result.Faults, errors.New(fault))
		}
		return nil
	}
	if !f.made {
		if err := f.mayReplace(o.Banks, infos); err != nil {
			return err
		}
	}
	if o.Format != ExportNpy { // the others can only be written from their beginning on
		return f.clean()
	}
	f.resumable = true
	var s exportState
	b, err := os.ReadFile(f.aside(stagedState))
	if err == nil && json.Unmarshal(b, &s) == nil && f.about.same(s.Sources, s.Options) && s.Boot != "" && s.Boot == bootID() {
		f.begun = &s
		return nil
	}
	return f.clean()
}

// holds is what the folder is an export of; nil, if it is none.
func (f *exportFolder) holds() (*exportedOf, error) {
	if f.made {
		return nil, nil
	}
	old := new(exportedOf)
	err := readJSON(filepath.Join(f.path, exportAbout), old)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil, nil
	}
	for _, name := range old.Files {
		if !filepath.IsLocal(name) {
			return nil, fmt.Errorf("%s: it names %q, which no export makes; choose another folder", filepath.Join(f.path, exportAbout), name)
		}
	}
	return old, err
}

func (a *exportedOf) same(sources []exportSource, options []string) bool {
	return slices.Equal(a.Sources, sources) && slices.Equal(a.Options, options)
}

// difference names what another export is of.
func (a *exportedOf) difference(old *exportedOf) string {
	if slices.Equal(a.Sources, old.Sources) {
		return "the same files with other options (" + strings.Join(old.Options, " ") + ")"
	}
	for i, s := range old.Sources {
		if i == len(a.Sources) || a.Sources[i].Name != s.Name {
			return "other files, such as " + s.Name
		}
		if a.Sources[i] != s {
			return s.Name + " as it was before it changed"
		}
	}
	return fmt.Sprintf("%d of these files", len(old.Sources))
}

// mayReplace makes sure that what has the name of a file to write may go.
func (f *exportFolder) mayReplace(banks []ExportBank, infos []FileInfo) error {
	check := func(name string) error {
		dir := filepath.Dir(f.final(name))
		if _, err := os.Lstat(dir); err == nil && !isFolder(dir) {
			return fmt.Errorf("%s: not a folder; choose another one to export to", dir)
		}
		if _, err := os.Lstat(f.final(name)); errors.Is(err, iofs.ErrNotExist) || errors.Is(err, unix.ENAMETOOLONG) {
			return nil
		}
		return mayReplace(f.final(name), f.force, infos)
	}
	for _, b := range banks {
		for _, c := range b.Columns {
			if err := check(cmp.Or(b.File, c.File)); err != nil {
				return err
			}
		}
		for _, t := range b.Texts {
			if err := check(t.File); err != nil {
				return err
			}
		}
	}
	return nil
}

func isFolder(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

func (f *exportFolder) complete() bool { return f.result != nil }

// wants reports whether a file is to be written.
func (f *exportFolder) wants(name string) bool { return f.only == nil || f.only[name] }

func (f *exportFolder) final(name string) string { return filepath.Join(f.path, name) }

func (f *exportFolder) aside(name string) string { return filepath.Join(f.path, exportStage, name) }

func (f *exportFolder) staging(name string) string { return f.aside(filepath.Join(stagedFiles, name)) }

// clean removes what lies aside.
func (f *exportFolder) clean() error {
	f.begun = nil
	return errors.Join(os.RemoveAll(f.aside(stagedFiles)), os.RemoveAll(f.aside(stagedState)))
}

// staged is how many bytes lie aside.
func (f *exportFolder) staged() (bytes int64) {
	if f.begun == nil {
		return 0
	}
	_ = filepath.WalkDir(f.aside(stagedFiles), func(_ string, d iofs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if st, err := d.Info(); err == nil {
				bytes += st.Size()
			}
		}
		return nil
	})
	return bytes
}

// open opens a file aside. kept is whether it may stay open.
func (f *exportFolder) open(name string) (file *os.File, kept bool, err error) {
	path := f.staging(name)
	dir := filepath.Dir(path)
	f.mu.Lock()
	if !f.dirs[dir] {
		err = os.MkdirAll(dir, 0o777)
		f.dirs[dir] = err == nil
	}
	if kept = f.opened < f.most; kept {
		f.opened++
	}
	f.mu.Unlock()
	if err == nil {
		file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o666)
	}
	if err != nil && kept {
		f.released()
	}
	return file, kept, err
}

// create begins a file aside that stays open until it is whole.
func (f *exportFolder) create(name string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(f.staging(name)), 0o777); err != nil {
		return nil, err
	}
	return os.OpenFile(f.staging(name), os.O_RDWR|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o666)
}

// released says that a file which stayed open is closed.
func (f *exportFolder) released() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened--
}

// text writes a small file.
func (f *exportFolder) text(t ExportText, entries, rows int64) error {
	b, err := t.Render(entries, rows)
	if err != nil {
		return err
	}
	file, kept, err := f.open(t.File)
	if err != nil {
		return err
	}
	if kept {
		defer f.released()
	}
	_, err = file.Write(b)
	if err == nil {
		err = file.Truncate(int64(len(b)))
	}
	return errors.Join(err, file.Close())
}

// checkpoint notes how far the files are.
func (f *exportFolder) checkpoint(s *exportState) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.Runs < f.noted {
		return nil
	}
	f.noted = s.Runs
	s.Sources, s.Options, s.Boot = f.about.Sources, f.about.Options, bootID()
	return f.put(f.aside(stagedState), s)
}

// put writes a file of JSON, whole or not at all.
func (f *exportFolder) put(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	next := f.aside("next.json")
	if err := os.WriteFile(next, append(b, '\n'), 0o666); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// bootID changes when the machine starts anew; "" where there is none.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// seal gives the files their names.
func (f *exportFolder) seal(files []string, r *Exported) (err error) {
	var named []string
	defer func() {
		if err != nil {
			for _, name := range append(named, exportAbout) {
				os.Remove(f.final(name))
				os.Remove(filepath.Dir(f.final(name))) // if nothing else is in it
			}
			f.drop()
		}
	}()
	if f.only == nil {
		f.about.Entries, f.about.Banks, f.about.Files = r.Entries, r.Banks, files
		for _, fault := range r.Faults {
			f.about.Faults = append(f.about.Faults, fault.Error())
		}
	}
	if err := os.MkdirAll(filepath.Dir(f.final(exportAbout)), 0o777); err != nil {
		return err
	}
	if f.force {
		err = f.removeOld()
	} else {
		// Whatever ends this process now: the next export knows these files for its own.
		err = f.put(f.final(exportAbout), &f.about)
	}
	if err != nil {
		return err
	}
	made := map[string]bool{}
	for _, name := range files {
		to := f.final(name)
		if dir := filepath.Dir(to); !made[dir] {
			if err := os.MkdirAll(dir, 0o777); err != nil {
				return err
			}
			made[dir] = true
		}
		st, err := os.Lstat(f.staging(name))
		if err != nil {
			return err
		}
		r.Bytes += st.Size()
		r.Written++
		if err := rename(f.staging(name), to, f.force); err != nil {
			return err
		}
		named = append(named, name)
	}
	r.Files = len(f.about.Files)
	if f.force {
		err = f.put(f.final(exportAbout), &f.about)
	}
	if err == nil {
		err = os.RemoveAll(f.aside(""))
	}
	return err
}

// removeOld removes the files of the export that was there, which hipofs has made.
func (f *exportFolder) removeOld() error {
	old, err := f.holds()
	if err != nil || old == nil {
		return err
	}
	dirs := map[string]bool{}
	for _, name := range append(old.Files, exportAbout) {
		path := f.final(name)
		if st, err := os.Lstat(path); err != nil || !st.Mode().IsRegular() {
			continue
		}
		if err := os.Remove(path); err != nil {
			return err
		}
		dirs[filepath.Dir(path)] = true
	}
	for dir := range dirs {
		if dir != f.path {
			os.Remove(dir) // if nothing else is in it
		}
	}
	return os.MkdirAll(filepath.Dir(f.final(exportAbout)), 0o777)
}

// drop removes what this export has made, but for files that have their names.
func (f *exportFolder) drop() {
	os.RemoveAll(f.aside(""))
	if f.made {
		os.Remove(f.path)
	}
}

// leave removes what it made to look, if there is nothing else in it.
func (f *exportFolder) leave() {
	os.Remove(f.aside(""))
	if f.made {
		os.Remove(f.path)
	}
}

func (f *exportFolder) close() {
	if f.complete() {
		os.RemoveAll(f.aside(""))
	}
	f.stage.Close()
}

// resume takes over what an interrupted export has written, and gives the run to
// go on with.
func (e *exporting) resume() int {
	s := e.dir.begun
	if s == nil {
		return 0
	}
	for name, rows := range s.Rows {
		id, ok := e.chain.banks.byName[name]
		if !ok {
			return e.anew()
		}
		e.rows[id] = rows
	}
	for _, n := range s.Nodes {
		id, err := e.chain.node(n.Group, n.Item)
		if err != nil || e.Node == nil {
			return e.anew()
		}
		layout := hipo.Composite(n.Format)
		if n.Format == "" {
			layout = hipo.Primitive(n.Primitive)
		}
		e.meet(&part{bank: id, layout: layout, primitive: n.Primitive, format: n.Format})
		e.rows[id] = n.Rows
	}
	e.entries = s.Entries
	for _, b := range e.banks {
		if b.err != nil || b.Bank != nil && e.rows[b.Bank.id] == 0 {
			continue
		}
		for _, c := range b.Columns {
			st, err := os.Lstat(e.dir.staging(c.File))
			if err != nil || st.Size() < npyHeaderSize+c.Column.width*c.Column.exportedRows(s.Entries, e.rowsOf(b)) {
				return e.anew()
			}
		}
	}
	if s.Runs > len(e.candidates) {
		return e.anew()
	}
	return s.Runs
}

// anew forgets what an interrupted export has written.
func (e *exporting) anew() int {
	clear(e.rows)
	clear(e.nodes)
	e.banks = slices.DeleteFunc(e.banks, func(b *exportedBank) bool { return b.node != nil })
	e.entries = 0
	_ = e.dir.clean() // files are cut to their length in any case
	return 0
}

// state is what is there when the runs before run are written; nil, if banks
// have been left out meanwhile, of which it does not tell.
func (e *exporting) state(run int) *exportState {
	if !e.dir.resumable || e.faulty {
		return nil
	}
	s := &exportState{Runs: run, Entries: e.entries, Rows: map[string]int64{}}
	declared := len(e.chain.banks.schemas)
	for id, rows := range e.rows {
		if int(id) < declared {
			s.Rows[e.chain.banks.schemas[id].Name] = rows
		} else if b := e.nodes[id]; b.err == nil {
			s.Nodes = append(s.Nodes, exportNode{b.Bank.Group, b.Bank.Item, b.node.primitive, b.node.format, rows})
		}
	}
	return s
}
