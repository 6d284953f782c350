package materialize

import (
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/hipo"
)

// partSuffix ends the name of a file that is being written. A folder that is
// mounted passes over names that end in .part, and says so.
const partSuffix = ".hipofs.part"

// outFile is a file that gets its name when it is whole. What a writer leaves
// that is killed lies aside, and the next writer of the same file takes it over.
type outFile struct {
	*os.File
	name  string // the final one
	force bool   // replace what has it
}

// createOut begins a file. Another one of that name is replaced only by force,
// and never if it is one of the sources.
func createOut(name string, force bool, sources []FileInfo) (*outFile, error) {
	if err := mayReplace(name, force, sources); err != nil {
		return nil, err
	}
	for {
		f, err := os.OpenFile(name+partSuffix, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o666)
		if err != nil {
			return nil, err
		}
		ours, err := takeOver(f)
		if err == nil && ours {
			return &outFile{f, name, force}, nil
		}
		f.Close()
		if err != nil {
			return nil, err
		}
	}
}

// mayReplace says why there may not be a new file of that name.
func mayReplace(name string, force bool, sources []FileInfo) error {
	st, err := os.Stat(name)
	if errors.Is(err, iofs.ErrNotExist) {
		_, err = os.Lstat(name) // a link that leads nowhere is something, too
		if errors.Is(err, iofs.ErrNotExist) {
			return nil
		}
	}
	if err != nil {
		return err
	}
	for _, s := range sources {
		if other, err := os.Stat(s.Name); err == nil && st != nil && os.SameFile(st, other) {
			return fmt.Errorf("%s: it is one of the sources; choose another name", name)
		}
	}
	switch {
	case st != nil && !st.Mode().IsRegular():
		return fmt.Errorf("%s: not a regular file; choose another name", name)
	case !force:
		return fmt.Errorf("%s: it exists already; --force replaces it", name)
	}
	return nil
}

// takeOver makes an open file aside this process's own, and empty. It reports
// false if it has got another name meanwhile.
func takeOver(f *os.File) (bool, error) {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, fmt.Errorf("%s: another hipofs is writing it", f.Name())
		}
		return false, fmt.Errorf("%s: %w", f.Name(), err)
	}
	st, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Lstat(f.Name())
	if err != nil || !os.SameFile(st, there) {
		return false, nil
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !st.Mode().IsRegular() || ok && sys.Nlink != 1 {
		return false, fmt.Errorf("%s: not a file of hipofs; remove it, or choose another name", f.Name())
	}
	if st.Size() == 0 { // ext4 writes what was cut to nothing out to the disk when it is closed, and its closer waits
		return true, nil
	}
	return true, f.Truncate(0)
}

// seal gives the file its name.
func (o *outFile) seal() error {
	if err := rename(o.File.Name(), o.name, o.force); err != nil {
		return err
	}
	return o.Close()
}

// rename gives a file its name; another one of that name is replaced only by force.
func rename(from, to string, force bool) error {
	var err error
	if force {
		err = os.Rename(from, to)
	} else {
		err = renameToNew(from, to)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // the file system cannot
			if err = os.Link(from, to); err == nil {
				err = os.Remove(from)
			}
		}
	}
	if errors.Is(err, iofs.ErrExist) {
		return fmt.Errorf("%s: it exists by now; --force replaces it", to)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	return nil
}

// drop removes the file, if it has not got its name.
func (o *outFile) drop() {
	os.Remove(o.File.Name())
	o.Close()
}

// outSet is the file, or the files, that records are written to.
type outSet struct {
	name       string
	force      bool
	split      int64 // bytes of a file at most; 0: one file
	sources    []FileInfo
	dictionary []hipo.Declaration

	files   []*outFile // written, and not sealed yet
	w       *hipo.Writer
	records int // in the file at hand
	bytes   int64
}

// nameOf is the name of the i-th file: OUT.0000.hipo, where there may be several.
func (o *outSet) nameOf(i int) string {
	if o.split == 0 {
		return o.name
	}
	ext := filepath.Ext(o.name)
	return fmt.Sprintf("%s.%04d%s", o.name[:len(o.name)-len(ext)], i, ext)
}

// begin begins the next file.
func (o *outSet) begin() error {
	f, err := createOut(o.nameOf(len(o.files)), o.force, o.sources)
	if err != nil {
		return err
	}
	o.files = append(o.files, f)
	o.records = 0
	o.w, err = hipo.NewWriter(f, o.dictionary)
	return err
}

// end writes the trailer of the file at hand.
func (o *outSet) end() error {
	o.bytes += o.w.Size()
	return o.w.Close()
}

// room begins the next file, if a record of that length does not fit into the
// one at hand.
func (o *outSet) room(length int64) error {
	o.records++
	if o.split == 0 || o.records == 1 || o.w.SizeWith(length) <= o.split {
		return nil
	}
	if err := o.end(); err != nil {
		return err
	}
	err := o.begin()
	o.records++
	return err
}

// add writes a new record.
func (o *outSet) add(record []byte) error {
	if err := o.room(int64(len(record))); err != nil {
		return err
	}
	return o.w.Append(record)
}

// copy writes a record of a source as it is.
func (o *outSet) copy(c *copied) error {
	if err := o.room(c.length); err != nil {
		return err
	}
	file := o.files[len(o.files)-1]
	return o.w.Place(c.header, c.length, func(at int64) error { return c.from.copyTo(file.File, at, c.off, c.length) })
}

// copied is a record that is copied as it is.
type copied struct {
	from        *handle
	off, length int64
	header      []byte
	events      uint32
}

// copyTo copies n bytes of a source from off on, in the kernel where it can.
func (h *handle) copyTo(to *os.File, at, off, n int64) error {
	fd, err := h.acquire()
	if err != nil {
		return &InputError{err}
	}
	defer h.release(fd)
	for n > 0 {
		m, err := copyRange(int(fd.file.Fd()), &off, int(to.Fd()), &at, n)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || m == 0 { // from another file system, perhaps
			_, err = io.CopyN(io.NewOffsetWriter(to, at), io.NewSectionReader(h, off, n), n)
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%s: %w", h.name, ErrChanged)
			}
			return err
		}
		n -= int64(m)
	}
	return h.same(fd.file.Stat)
}

// seal ends the last file and gives all of them their names.
func (o *outSet) seal() ([]string, error) {
	if err := o.end(); err != nil {
		return nil, err
	}
	var names []string
	for len(o.files) > 0 {
		if err := o.files[0].seal(); err != nil {
			return names, err
		}
		names = append(names, o.files[0].name)
		o.files = o.files[1:]
	}
	return names, nil
}

// drop removes what has no name yet.
func (o *outSet) drop() {
	for _, f := range o.files {
		f.drop()
	}
}

// checkSpace makes sure that a folder has room for what will be written at least.
func checkSpace(dir string, bytes int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil // it may still have; writing will tell
	}
	if free := int64(st.Bavail) * int64(st.Bsize); free < bytes {
		return fmt.Errorf("%s: %.0f MB are needed, and %.0f MB are free; choose another folder", dir, float64(bytes)/1e6, float64(free)/1e6)
	}
	return nil
}
