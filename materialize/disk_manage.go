package materialize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cache is a cache folder, for whoever looks after it. Mounts may use the folder
// meanwhile.
type Cache struct {
	tier *tier // nil: nothing is there
}

// CachedColumn is a column in a cache folder.
type CachedColumn struct {
	Column  string    `json:"column"` // BANK/COLUMN, as the dictionary has it
	Sources []string  `json:"sources"`
	View    string    `json:"view"` // "whole", or which of the sources' entries
	File    string    `json:"file"`
	Size    int64     `json:"size"`
	Bytes   int64     `json:"bytes_on_disk"`
	Used    time.Time `json:"used"`
	Leased  bool      `json:"leased"`         // its path was handed out a moment ago
	Gone    string    `json:"gone,omitempty"` // why no mount will look for it again

	key columnFile
}

// OpenCache opens a cache folder. One that is empty or not there holds no columns,
// and stays as it is. The error is a *CacheError.
func OpenCache(dir string) (*Cache, error) {
	list, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, os.ErrNotExist), err == nil && len(list) == 0:
		return &Cache{}, nil
	case err != nil && !errors.Is(err, unix.ENOTDIR):
		return nil, &CacheError{dir, reason(err).Error()}
	case err == nil && !slices.ContainsFunc(list, func(e os.DirEntry) bool { return e.Name() == lockName }):
		if text, err := os.ReadFile(filepath.Join(dir, tagName)); err != nil || string(text) != tagText {
			return nil, &CacheError{dir, "it is not a cache folder of hipofs"}
		}
	}
	t, err := openTier(dir, 0, runtime.GOMAXPROCS(0), slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return &Cache{t}, nil
}

func (c *Cache) Close() {
	if c.tier != nil {
		c.tier.close()
	}
}

// Columns are the columns in the folder, the one that was used last first.
func (c *Cache) Columns() ([]CachedColumn, error) {
	if c.tier == nil {
		return nil, nil
	}
	l, err := c.tier.lock(0)
	if err != nil {
		return nil, err
	}
	all, err := c.tier.count()
	l.Close()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b kept) int { return b.used.Compare(a.used) })
	sets := map[string]cachedSet{}
	now := time.Now()
	columns := make([]CachedColumn, len(all))
	for i, k := range all {
		set, ok := sets[k.set]
		if !ok {
			set = c.set(k.set)
			sets[k.set] = set
		}
		columns[i] = CachedColumn{
			Sources: set.sources, View: set.view, Gone: set.gone, File: c.tier.file(k.columnFile, npySuffix),
			Bytes: k.bytes, Used: k.used, Leased: k.leased(now), key: k.columnFile,
		}
		if s, err := c.seal(k.columnFile); err == nil {
			columns[i].Column, columns[i].Size = s.label, s.size
		}
	}
	return columns, nil
}

// cachedSet is what is known of a set.
type cachedSet struct {
	sources    []string
	view, gone string
}

// maxAbout is longer than the names of a chain's sources are.
const maxAbout = 64 << 20

// set reads what a set is about, and looks whether its sources are still there.
func (c *Cache) set(name string) cachedSet {
	unknown := cachedSet{gone: "it is not known of which files it is"}
	dir, err := c.tier.openSet(name)
	if err != nil {
		return unknown
	}
	defer dir.Close()
	f, err := at(dir, aboutName, unix.O_RDONLY)
	if err != nil {
		return unknown
	}
	defer f.Close()
	if _, err := ours(f, unix.S_IFREG); err != nil {
		return unknown
	}
	var a about
	b, err := io.ReadAll(io.LimitReader(f, maxAbout))
	if err != nil || json.Unmarshal(b, &a) != nil {
		return unknown
	}
	s := cachedSet{view: a.View}
	for _, src := range a.Sources {
		s.sources = append(s.sources, src.Path)
		if IsRemote(src.Path) {
			continue // whether a server still has it is not asked
		}
		st, err := os.Stat(src.Path)
		switch {
		case s.gone != "":
		case errors.Is(err, os.ErrNotExist):
			s.gone = src.Path + " is gone"
		case err == nil && identityOf(st) != identity{src.Size, src.MTime, src.CTime, src.Inode}:
			s.gone = src.Path + " has changed"
		}
	}
	return s
}

func (c *Cache) seal(k columnFile) (*seal, error) {
	dir, err := c.tier.openSet(k.set)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return readSeal(dir, k.name+sealSuffix)
}

// Remove removes a column, unless its path was handed out a moment ago. Who has
// it open reads on.
func (c *Cache) Remove(col CachedColumn) (removed bool, err error) {
	l, err := c.tier.lock(0)
	if err != nil {
		return false, err
	}
	defer l.Close()
	columns, _, err := c.tier.countSet(col.key.set)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	for _, k := range columns {
		if k.columnFile == col.key && k.leased(time.Now()) {
			return false, nil
		}
	}
	if err := c.tier.drop(col.key); err != nil {
		return false, err
	}
	_, _, err = c.tier.countSet(col.key.set) // which removes a set without columns
	return true, err
}

// Verify compares a column with its checksums, and removes it if it is bad: wrong
// says what is wrong with it.
func (c *Cache) Verify(ctx context.Context, col CachedColumn) (wrong, err error) {
	dir, err := c.tier.openSet(col.key.set)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // it was evicted meanwhile
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, st, err := c.tier.examine(ctx, dir, col.key, -1)
	switch {
	case err == nil:
		f.Close()
		return nil, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	}
	c.tier.discard(col.key, st)
	return err, nil
}

// CachedIndex is an index in a folder of indexes. It does not say of which file.
type CachedIndex struct {
	File    string    `json:"index"`
	Size    int64     `json:"size"`
	Changed time.Time `json:"changed"`
}

// CachedIndexes are the indexes in a folder; none if there is no such folder.
func CachedIndexes(dir string) ([]CachedIndex, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var indexes []CachedIndex
	for _, d := range list {
		name, ok := strings.CutSuffix(d.Name(), IndexSuffix)
		if !ok || !hashed(name) {
			continue
		}
		if st, err := d.Info(); err == nil && st.Mode().IsRegular() {
			indexes = append(indexes, CachedIndex{filepath.Join(dir, d.Name()), st.Size(), st.ModTime()})
		}
	}
	return indexes, nil
}

// Verify compares an index with its checksums.
func (x CachedIndex) Verify() error {
	b, err := os.ReadFile(x.File)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(b) == 0 {
		return nil // it stands for one that is to be made
	}
	head, _, err := parseIndex(b)
	if err != nil {
		return err
	}
	return head.checkBlocks(bytes.NewReader(b))
}
