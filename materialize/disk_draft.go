package materialize

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// draft is a column that is being filled, block by block in order, aside. Nobody
// opens it before it is sealed. It belongs to one goroutine.
type draft struct {
	tier     *tier
	column   columnFile
	dir      *os.File // of the set
	file     *os.File
	name     string
	seal     seal
	reserved bool // its blocks are there to be written
	sync     bool // the file system could not reserve them
}

// begin begins the file of a column: the space for need of its bytes is reserved,
// so that filling it does not fail half-way; the rest are zeros and take none.
// about says what the set is.
func (t *tier) begin(k columnFile, s seal, need int64, about []byte) (*draft, error) {
	if need > t.size {
		return nil, fmt.Errorf("%s: its %d bytes are more than the cache folder holds; raise --cache-size, which is %d: %w", s.label, need, t.size, unix.EFBIG)
	}
	onDisk := (need+4095)/4096*4096 + 4096 // with the seal
	l, err := t.lock(0)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if err := t.makeRoom(onDisk, false); err != nil {
		return nil, err
	}
	dir, err := t.makeSet(k.set, about)
	if err != nil {
		return nil, err
	}
	d := &draft{tier: t, column: k, dir: dir, seal: s, name: draftName + rand.Text()}
	if d.file, err = at(dir, d.name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL); err != nil {
		dir.Close()
		return nil, err
	}
	err = unix.Flock(int(d.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOLCK) {
		err = d.reserve(need)
	}
	if isFull(err) {
		if err = t.makeRoom(onDisk, true); err == nil {
			err = d.reserve(need)
		}
	}
	if err != nil {
		d.discard()
		return nil, fmt.Errorf("%s: %w", t.path, err)
	}
	t.mu.Lock()
	t.used += onDisk
	t.mu.Unlock()
	return d, nil
}

func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// reserve gives the file its length, and the space for its first bytes.
func (d *draft) reserve(need int64) error {
	fd := int(d.file.Fd())
	err := uninterrupted(func() error { return unix.Ftruncate(fd, d.seal.size) })
	if err != nil || need == 0 {
		return err
	}
	err = uninterrupted(func() error { return reserveSpace(fd, need) })
	d.reserved = err == nil
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		d.sync = true // what cannot be reserved must have reached the disk before it counts
		return nil
	}
	return err
}

// makeSet opens the folder of a set, and makes it where there is none.
func (t *tier) makeSet(set string, about []byte) (*os.File, error) {
	err := unix.Mkdirat(int(t.dir.Fd()), set, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("%s: %w", t.path, err)
	}
	dir, err := t.openSet(set)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.path, err)
	}
	if unix.Faccessat(int(dir.Fd()), aboutName, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return dir, nil
	}
	if err := putFile(dir, aboutName, about); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// putFile puts a small file into a folder of the tier, whole or not at all.
func putFile(dir *os.File, name string, b []byte) error {
	temp := draftName + rand.Text()
	f, err := at(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = unix.Renameat(int(dir.Fd()), temp, int(dir.Fd()), name)
	}
	if err != nil {
		remove(dir, temp)
	}
	return err
}

// write appends a block. Zeros at its end become a hole.
func (d *draft) write(p []byte) error {
	off := int64(len(d.seal.sums)) * sealBlock
	d.seal.sums = append(d.seal.sums, xxh3.Hash(p))
	n := withoutZeros(p)
	if n > 0 {
		if _, err := d.file.WriteAt(p[:n], off); err != nil {
			return err
		}
	}
	if n == len(p) || !d.reserved { // what was not reserved is a hole
		return nil
	}
	_ = uninterrupted(func() error { // what was reserved reads as zeros in any case
		return punchHole(int(d.file.Fd()), off+int64(n), int64(len(p)-n))
	})
	return nil
}

// withoutZeros is how long p is without the pages of zeros at its end.
func withoutZeros(p []byte) int {
	for len(p) > 0 {
		page := (len(p) - 1) / len(zeros) * len(zeros)
		if !bytes.Equal(p[page:], zeros[:len(p)-page]) {
			break
		}
		p = p[:page]
	}
	return len(p)
}

var zeros [4096]byte

// finish seals the file and gives it its name, beside that of another process if
// that was faster.
func (d *draft) finish() error {
	defer d.discard()
	if d.sync {
		if err := d.file.Sync(); err != nil {
			return err
		}
	}
	// Not even its owner's programs are to write to it.
	if err := d.file.Chmod(0o400); err != nil {
		return err
	}
	t := d.tier
	l, err := t.lock(0)
	if err != nil {
		return err
	}
	defer l.Close()
	// The seal comes last: whatever ends this process before leaves nothing that
	// anybody would open.
	fd := int(d.dir.Fd())
	if err := unix.Renameat(fd, d.name, fd, d.column.name+npySuffix); err != nil {
		return err
	}
	if err := putFile(d.dir, d.column.name+sealSuffix, d.seal.encode()); err != nil {
		return err
	}
	st, err := ours(d.file, unix.S_IFREG)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.known[d.column] = stampOf(st)
	t.failure = ""
	t.mu.Unlock()
	t.made.Add(1)
	return nil
}

// discard lets go of the draft, and removes it unless it has been sealed.
func (d *draft) discard() {
	remove(d.dir, d.name)
	d.file.Close()
	d.dir.Close()
}
