package materialize

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// tier is a folder of finished columns, real .npy files that later mounts of the
// same sources go by, and several processes at once:
//
//	CACHEDIR.TAG        tells backups to stay out, and hipofs that the folder is its own; not where others have files, too
//	lock                byte 0: what is in the folder changes; others: a column is being made
//	SET/                one view of certain sources; the name is a hash of both
//	    about           which they are
//	    COLUMN.npy      the name is a hash: nothing that a source contains is part of a path
//	    COLUMN.seal     says that it is whole, with checksums; its time is that of the last use
//	    draft-…         being filled, and locked by whoever fills it
//
// Everything is reached from the open folder by one name after the other, and no
// link is followed. It is safe for concurrent use.
type tier struct {
	path    string
	dir     *os.File
	size    int64 // bytes on disk, at most, beside what is being filled
	threads int
	log     *slog.Logger
	shared  bool // there are files of others in the folder

	mu      sync.Mutex
	known   map[columnFile]stamp // files whose checksums this process has made, or compared
	used    int64                // as last counted, and what was begun since
	counted time.Time            // zero: never
	failure string               // what was said last about a folder that does not do
	makings map[*making]bool     // under way

	blocks chan struct{} // a place for each block that is being filled

	opens, made, bad, evicted atomic.Int64
}

// TierStats is what a chain's tier has and did, as stats.json shows it.
type TierStats struct {
	Dir     string `json:"dir"`
	Size    int64  `json:"size"`
	Used    int64  `json:"used"`
	Opens   int64  `json:"opens"`   // of columns that were there
	Made    int64  `json:"made"`    // columns
	Bad     int64  `json:"bad"`     // columns with a wrong checksum, removed
	Evicted int64  `json:"evicted"` // columns
	Failure string `json:"failure,omitempty"`
}

// CacheError says what is wrong with a cache folder that was asked for.
type CacheError struct {
	Dir string
	Msg string
}

func (e *CacheError) Error() string { return e.Dir + ": " + e.Msg }

// DefaultCacheSize is how much a tier holds where nothing else is said.
const DefaultCacheSize = 20 << 30

// leaseTime is how long a path that was handed out stays, at least.
const leaseTime = 2 * time.Minute

// columnFile names a column in the tier.
type columnFile struct{ set, name string }

// stamp tells a file from another of its name, and from itself after a change.
type stamp struct {
	ino          uint64
	size         int64
	mtime, ctime unix.Timespec
}

func stampOf(st *unix.Stat_t) stamp { return stamp{st.Ino, st.Size, st.Mtim, st.Ctim} }

// uninterrupted repeats a system call that a signal has cut short.
func uninterrupted(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// at opens a name in a folder, which is no link, without waiting for a FIFO.
func at(dir *os.File, name string, flags int) (*os.File, error) {
	var fd int
	err := uninterrupted(func() (err error) {
		fd, err = unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Join(dir.Name(), name), Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(dir.Name(), name)), nil
}

// ours looks at an open file or folder, in which nobody else may have a hand.
func ours(f *os.File, kind uint32) (*unix.Stat_t, error) {
	var st unix.Stat_t
	if err := uninterrupted(func() error { return unix.Fstat(int(f.Fd()), &st) }); err != nil {
		return nil, err
	}
	switch {
	case uint32(st.Mode)&unix.S_IFMT != kind:
		return nil, errForeign
	case int(st.Uid) != os.Geteuid():
		return nil, errForeign
	case st.Mode&0o022 != 0:
		return nil, errForeign
	case kind == unix.S_IFREG && st.Nlink != 1: // somebody planted it, or holds on to it
		return nil, errForeign
	}
	return &st, nil
}

var errForeign = errors.New("it is not a file of this cache")

// openTier opens the folder, and makes it where there is none.
func openTier(dir string, size int64, threads int, log *slog.Logger) (*tier, error) {
	fail := func(format string, args ...any) (*tier, error) {
		return nil, &CacheError{dir, fmt.Sprintf(format, args...)}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fail("%v", err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fail("%v", reason(err))
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fail("%v", reason(err))
	}
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return fail("it is a link, or not a folder; name a folder of your own")
	case err != nil:
		return fail("%v", reason(err))
	}
	t := &tier{path: dir, dir: f, size: cmp.Or(size, DefaultCacheSize), threads: threads, log: log,
		known: map[columnFile]stamp{}, makings: map[*making]bool{}, blocks: make(chan struct{}, threads)}
	if _, err := ours(f, unix.S_IFDIR); err != nil {
		f.Close()
		return fail("it belongs to somebody else, or others can write it; name a folder of your own, or: chmod go-w %s", dir)
	}
	mine, err := t.mine()
	if err != nil {
		f.Close()
		return fail("%v", reason(err))
	}
	t.shared = !mine
	if err := t.tag(); err != nil {
		f.Close()
		return fail("it cannot be written: %v; name another folder", reason(err))
	}
	l, err := t.lock(0)
	if err != nil {
		f.Close()
		return fail("%v", reason(err))
	}
	defer l.Close()
	if _, err := t.count(); err != nil { // which sweeps
		f.Close()
		return fail("%v", reason(err))
	}
	return t, nil
}

func (t *tier) close() { t.dir.Close() }

// CheckCacheDir makes the folder of finished columns, and tells whether it does. The
// error is a *CacheError.
func CheckCacheDir(dir string) error {
	t, err := openTier(dir, 0, 1, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	t.close()
	return nil
}

// mine reports whether the folder is a cache folder of hipofs, or empty. It writes
// nothing.
func (t *tier) mine() (bool, error) {
	// In this order: who makes the folder meanwhile writes the tag before all else.
	list, err := names(t.dir)
	if err != nil {
		return false, err
	}
	text, err := t.tagged()
	switch {
	case errors.Is(err, os.ErrNotExist):
		return len(list) == 0, nil
	case errors.Is(err, errForeign), errors.Is(err, unix.ELOOP):
		return false, nil
	case err != nil:
		return false, err
	}
	begun := text == "" && !slices.ContainsFunc(list, func(name string) bool { return name != tagName })
	return text == tagText || begun, nil
}

// tagged is the text of the folder's tag.
func (t *tier) tagged() (string, error) {
	f, err := at(t.dir, tagName, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", errors.Join(err, errForeign)
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(len(tagText))+1))
	return string(b), err
}

// tag writes what tells backups to stay out, and hipofs that the folder is its own;
// not where there are files of others, which backups are to take.
func (t *tier) tag() error {
	if text, err := t.tagged(); t.shared || err == nil && text == tagText {
		return unix.Faccessat(int(t.dir.Fd()), ".", unix.W_OK, 0)
	}
	f, err := at(t.dir, tagName, unix.O_WRONLY|unix.O_CREAT)
	if err != nil {
		return err
	}
	_, err = f.WriteString(tagText)
	return errors.Join(err, f.Close())
}

// reason is an error without the name of its file.
func reason(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// trouble says, once, that the folder does not do; columns are served from memory
// all the same.
func (t *tier) trouble(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := reason(err).Error()
	if t.failure == line {
		return
	}
	t.failure = line
	t.log.Warn(fmt.Sprintf("%s: columns are not kept there: %s", t.path, line))
}

// failed is an error of the folder on its way to who waits for a column. What the
// user is to do about one that is too large, he hears from there.
func (t *tier) failed(err error) error {
	if err != nil && !errors.Is(err, unix.EFBIG) && !errors.Is(err, context.Canceled) {
		t.trouble(err)
	}
	return err
}

// lock waits for the numbered lock, which closing the file gives back, as does
// the end of this process.
func (t *tier) lock(n int64) (*os.File, error) {
	f, err := at(t.dir, lockName, unix.O_RDWR)
	if errors.Is(err, os.ErrNotExist) { // the first, or somebody has emptied the folder
		if err := t.tag(); err != nil {
			return nil, err
		}
		f, err = at(t.dir, lockName, unix.O_RDWR|unix.O_CREAT)
	}
	if err != nil {
		return nil, err
	}
	if _, err := ours(f, unix.S_IFREG); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w; remove it", f.Name(), err)
	}
	// Not flock: one file has room for a lock of each column, none of which has to
	// be removed.
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: n, Len: 1}
	err = uninterrupted(func() error { return lockRange(f.Fd(), &l) })
	if err != nil && !errors.Is(err, unix.ENOLCK) && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) {
		f.Close()
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	// A file system without locks costs work that is done twice, and a folder that
	// may grow over its size for a while; every file is still whole.
	return f, nil
}

// lockColumn waits for the lock of a column, as long as ctx lasts.
func (t *tier) lockColumn(ctx context.Context, k columnFile) (*os.File, error) {
	b, err := hex.DecodeString(k.name)
	if err != nil {
		return nil, err
	}
	n := int64(1)
	for i, x := range b[:8] {
		n += int64(x&0x7f) << (7 * i)
	}
	type result struct {
		f   *os.File
		err error
	}
	got := make(chan result, 1)
	go func() {
		f, err := t.lock(n)
		got <- result{f, err}
	}()
	select {
	case r := <-got:
		return r.f, r.err
	case <-ctx.Done():
		go func() {
			if r := <-got; r.f != nil {
				r.f.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

const (
	npySuffix  = ".npy"
	sealSuffix = ".seal"
	draftName  = "draft-"
	aboutName  = "about"
	tagName    = "CACHEDIR.TAG"
	lockName   = "lock"
)

const tagText = "Signature: 8a477f597d28d172789f06886806bc55\n# Columns of HIPO files, kept by hipofs; it makes again what is removed.\n"

// hashed reports whether a name is one that this program gives.
func hashed(name string) bool {
	_, err := hex.DecodeString(name)
	return err == nil && len(name) == 32
}

// kept is a column as counting finds it.
type kept struct {
	columnFile
	bytes int64     // on disk
	used  time.Time // last; in the future: leased until then
}

// leased reports whether the column's path may be in somebody's hands. A clock
// that was put back does not make it so forever.
func (k *kept) leased(now time.Time) bool {
	return k.used.After(now) && k.used.Before(now.Add(2*leaseTime))
}

// count adds up what is on disk, and removes what dead processes have left. The
// tier's lock is held.
func (t *tier) count() ([]kept, error) {
	sets, err := names(t.dir)
	if err != nil {
		return nil, err
	}
	var all []kept
	var total int64
	for _, set := range sets {
		if !hashed(set) {
			continue
		}
		columns, bytes, err := t.countSet(set)
		if err != nil {
			continue // a planted link, say; it is left alone
		}
		all = append(all, columns...)
		total += bytes
	}
	t.mu.Lock()
	t.used, t.counted = total, time.Now()
	t.mu.Unlock()
	return all, nil
}

// names lists a folder, from its beginning.
func names(dir *os.File) ([]string, error) {
	d, err := at(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

func (t *tier) openSet(set string) (*os.File, error) {
	dir, err := at(t.dir, set, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	if _, err := ours(dir, unix.S_IFDIR); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// countSet is the part of count that is about one set. A set without columns is
// removed.
func (t *tier) countSet(set string) (columns []kept, total int64, err error) {
	dir, err := t.openSet(set)
	if err != nil {
		return nil, 0, err
	}
	defer dir.Close()
	list, err := names(dir)
	if err != nil {
		return nil, 0, err
	}
	there := make(map[string]bool, len(list))
	for _, name := range list {
		there[name] = true
	}
	byName := map[string]kept{}
	empty := true
	for _, name := range list {
		var st unix.Stat_t
		if unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		ext := filepath.Ext(name)
		column := strings.TrimSuffix(name, ext)
		switch {
		case strings.HasPrefix(name, draftName) && abandoned(dir, name),
			hashed(column) && ext == npySuffix && !there[column+sealSuffix],
			hashed(column) && ext == sealSuffix && !there[column+npySuffix]:
			remove(dir, name)
			continue
		case hashed(column) && (ext == npySuffix || ext == sealSuffix):
			k := byName[column]
			k.columnFile, k.bytes = columnFile{set, column}, k.bytes+st.Blocks*512
			if ext == sealSuffix {
				k.used = time.Unix(st.Mtim.Unix())
			}
			byName[column] = k
		}
		total += st.Blocks * 512
		empty = empty && name == aboutName
	}
	for _, k := range byName {
		columns = append(columns, k)
	}
	if empty {
		remove(dir, aboutName)
		_ = unix.Unlinkat(int(t.dir.Fd()), set, unix.AT_REMOVEDIR)
	}
	return columns, total, nil
}

// abandoned reports whether nobody fills a draft any more.
func abandoned(dir *os.File, name string) bool {
	f, err := at(dir, name, unix.O_RDONLY)
	if err != nil {
		return errors.Is(err, unix.ELOOP) // a planted link
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

func remove(dir *os.File, name string) { _ = unix.Unlinkat(int(dir.Fd()), name, 0) }

// makeRoom evicts the columns that were used least recently until need bytes more
// fit into the size; with full, the disk has no room for them, so that as many
// must go in any case. The tier's lock is held.
func (t *tier) makeRoom(need int64, full bool) error {
	var gone int64 // yet to go
	if full {
		gone = need
	}
	const fresh = time.Second // other processes fill the folder as well
	t.mu.Lock()
	used, counted := t.used, t.counted
	t.mu.Unlock()
	if gone == 0 && used+need <= t.size && !counted.IsZero() && time.Since(counted) < fresh {
		return nil
	}
	columns, err := t.count()
	if err != nil {
		return err
	}
	slices.SortFunc(columns, func(a, b kept) int { return a.used.Compare(b.used) })
	t.mu.Lock()
	used = t.used
	t.mu.Unlock()
	now := time.Now()
	for i := range columns {
		if gone <= 0 && used+need <= t.size {
			break
		}
		k := &columns[i]
		if k.leased(now) {
			continue
		}
		if err := t.drop(k.columnFile); err != nil {
			return err
		}
		t.evicted.Add(1)
		used -= k.bytes
		gone -= k.bytes
	}
	t.mu.Lock()
	t.used = used
	t.mu.Unlock()
	if used+need > t.size {
		return fmt.Errorf("%s: what fills it is in use: %w", t.path, unix.ENOSPC)
	}
	return nil
}

// drop removes a column. Whoever has it open reads on. The tier's lock is held.
func (t *tier) drop(k columnFile) error {
	dir, err := t.openSet(k.set)
	if err != nil {
		return err
	}
	defer dir.Close()
	t.mu.Lock()
	delete(t.known, k)
	t.mu.Unlock()
	// Without a seal, nobody opens it any more.
	for _, ext := range []string{sealSuffix, npySuffix} {
		err := unix.Unlinkat(int(dir.Fd()), k.name+ext, 0)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%s: %w", t.file(k, ext), err)
		}
	}
	return nil
}

// file is the path of a column.
func (t *tier) file(k columnFile, ext string) string { return filepath.Join(t.path, k.set, k.name+ext) }

// open gives a column of size bytes that is there and whole; nil if there is none.
// A file that another process has made is compared with its checksums first, and
// removed if it is bad. The error is the context's.
func (t *tier) open(ctx context.Context, k columnFile, size int64) (*os.File, error) {
	dir, err := t.openSet(k.set)
	if err != nil {
		t.unusable(err)
		return nil, nil
	}
	defer dir.Close()
	f, st, err := t.examine(ctx, dir, k, size)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if errors.Is(err, unix.ENOENT) {
			t.unusable(err)
			return nil, nil
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			return nil, nil
		}
		t.bad.Add(1)
		t.log.Warn(fmt.Sprintf("%s: it is removed, and made again: %v", t.file(k, npySuffix), err))
		t.discard(k, st)
		return nil, nil
	}
	t.opens.Add(1)
	t.touch(dir, k, time.Now())
	return f, nil
}

// unusable says so of a folder that has gone or cannot be read; that a column is
// not there is no trouble.
func (t *tier) unusable(err error) {
	if !errors.Is(err, unix.ENOENT) {
		t.trouble(err)
	}
}

// examine opens a column and finds out whether it is whole; st is of the file that
// it has looked at.
func (t *tier) examine(ctx context.Context, dir *os.File, k columnFile, size int64) (f *os.File, st *unix.Stat_t, err error) {
	s, err := readSeal(dir, k.name+sealSuffix)
	if err != nil {
		return nil, nil, err
	}
	f, err = at(dir, k.name+npySuffix, unix.O_RDONLY)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if st, err = ours(f, unix.S_IFREG); err != nil {
		return nil, nil, err
	}
	if st.Size != s.size || size >= 0 && s.size != size {
		return nil, st, fmt.Errorf("it has %d bytes, %d are expected", st.Size, max(size, s.size))
	}
	t.mu.Lock()
	known := t.known[k] == stampOf(st)
	t.mu.Unlock()
	if known {
		return f, st, nil
	}
	if err := s.compare(ctx, f, t.threads); err != nil {
		return nil, st, err
	}
	t.mu.Lock()
	t.known[k] = stampOf(st)
	t.mu.Unlock()
	return f, st, nil
}

// discard removes a bad column, unless another process has put a new one there.
func (t *tier) discard(k columnFile, bad *unix.Stat_t) {
	l, err := t.lock(0)
	if err != nil {
		t.trouble(err)
		return
	}
	defer l.Close()
	dir, err := t.openSet(k.set)
	if err != nil {
		return
	}
	var st unix.Stat_t
	err = unix.Fstatat(int(dir.Fd()), k.name+npySuffix, &st, unix.AT_SYMLINK_NOFOLLOW)
	dir.Close()
	if bad != nil && err == nil && stampOf(&st) != stampOf(bad) {
		return
	}
	if err := t.drop(k); err != nil {
		t.trouble(err)
	}
}

// touch notes the use of a column, which may be one until a time to come.
func (t *tier) touch(dir *os.File, k columnFile, until time.Time) {
	var st unix.Stat_t
	if unix.Fstatat(int(dir.Fd()), k.name+sealSuffix, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || time.Unix(st.Mtim.Unix()).After(until) {
		return
	}
	ts, err := unix.TimeToTimespec(until)
	if err != nil {
		return
	}
	_ = setModified(int(dir.Fd()), k.name+sealSuffix, ts) // a read-only folder evicts nothing, either
}

// lease makes sure that the path of a column that is there stays for a while. It
// reports false if the column has gone meanwhile.
func (t *tier) lease(k columnFile) (bool, error) {
	l, err := t.lock(0)
	if err != nil {
		return false, err
	}
	defer l.Close()
	dir, err := t.openSet(k.set)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	t.touch(dir, k, time.Now().Add(leaseTime))
	for _, ext := range []string{sealSuffix, npySuffix} {
		if unix.Faccessat(int(dir.Fd()), k.name+ext, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return false, nil
		}
	}
	return true, nil
}

// stats are the counters so far.
func (t *tier) stats() TierStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return TierStats{
		Dir: t.path, Size: t.size, Used: t.used, Opens: t.opens.Load(), Made: t.made.Load(), Bad: t.bad.Load(),
		Evicted: t.evicted.Load(), Failure: t.failure,
	}
}
