package fs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/hipo/hipotest"
	"github.com/hipofs/hipofs/materialize"
)

// three is a tree of three: a folder, a file in it, and a link.
type three struct{ folder, file, link string }

// mutations are system calls that would change a file system, each with what a
// read-only ext4 says to it: the same to root and to a user who owns nothing.
var mutations = []struct {
	name, want string
	do         func(t three) error
}{
	{"open O_WRONLY", "EROFS", func(t three) error { return opening(t.file, unix.O_WRONLY) }},
	{"open O_RDWR", "EROFS", func(t three) error { return opening(t.file, unix.O_RDWR) }},
	{"open O_WRONLY|O_APPEND", "EROFS", func(t three) error { return opening(t.file, unix.O_WRONLY|unix.O_APPEND) }},
	{"open O_WRONLY|O_TRUNC", "EROFS", func(t three) error { return opening(t.file, unix.O_WRONLY|unix.O_TRUNC) }},
	{"open O_WRONLY|O_DIRECT", "EROFS", func(t three) error { return opening(t.file, unix.O_WRONLY|unix.O_DIRECT) }},
	{"open O_RDONLY|O_TRUNC", "EROFS", func(t three) error { return opening(t.file, unix.O_RDONLY|unix.O_TRUNC) }},
	{"open O_CREAT", "EROFS", func(t three) error { return opening(t.folder+"/new", unix.O_CREAT|unix.O_RDONLY) }},
	{"open O_CREAT|O_WRONLY", "EROFS", func(t three) error { return opening(t.folder+"/new", unix.O_CREAT|unix.O_WRONLY) }},
	{"open O_CREAT of what is there", "ok", func(t three) error { return opening(t.file, unix.O_CREAT|unix.O_RDONLY) }},
	{"open O_CREAT|O_EXCL of what is there", "EEXIST", func(t three) error { return opening(t.file, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY) }},
	{"open O_TMPFILE", "EROFS", func(t three) error { return opening(t.folder, unix.O_TMPFILE|unix.O_RDWR) }},
	{"open folder O_WRONLY", "EISDIR", func(t three) error { return opening(t.folder, unix.O_WRONLY) }},
	{"creat", "EROFS", func(t three) error { _, err := unix.Creat(t.folder+"/new", 0o644); return err }},
	{"mkdir", "EROFS", func(t three) error { return unix.Mkdir(t.folder+"/new", 0o755) }},
	{"mkdir of what is there", "EEXIST", func(t three) error { return unix.Mkdir(t.folder, 0o755) }},
	{"mknod fifo", "EROFS", func(t three) error { return unix.Mknod(t.folder+"/new", unix.S_IFIFO|0o644, 0) }},
	{"mknod device", "EROFS", func(t three) error { return unix.Mknod(t.folder+"/new", unix.S_IFCHR|0o644, 1<<8|3) }},
	{"bind socket", "EROFS", func(t three) error {
		fd := must(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))
		check(os.Chdir(t.folder)) // its path may be longer than an address
		return unix.Bind(fd, &unix.SockaddrUnix{Name: "new"})
	}},
	{"link", "EROFS", func(t three) error { return unix.Link(t.file, t.folder+"/new") }},
	{"link to what is there", "EEXIST", func(t three) error { return unix.Link(t.file, t.file) }},
	{"linkat AT_SYMLINK_FOLLOW", "EROFS", func(t three) error {
		return unix.Linkat(unix.AT_FDCWD, t.file, unix.AT_FDCWD, t.folder+"/new", unix.AT_SYMLINK_FOLLOW)
	}},
	{"symlink", "EROFS", func(t three) error { return unix.Symlink("x", t.folder+"/new") }},
	{"rename", "EROFS", func(t three) error { return unix.Rename(t.file, t.folder+"/new") }},
	{"rename over", "EROFS", func(t three) error { return unix.Rename(t.link, t.file) }},
	{"rename folder", "EROFS", func(t three) error { return unix.Rename(t.folder, t.folder+"2") }},
	{"renameat2 RENAME_NOREPLACE", "EROFS", renameat2(unix.RENAME_NOREPLACE)},
	{"renameat2 RENAME_EXCHANGE", "EROFS", renameat2(unix.RENAME_EXCHANGE)},
	{"renameat2 RENAME_WHITEOUT", "EROFS", renameat2(unix.RENAME_WHITEOUT)},
	{"unlink", "EROFS", func(t three) error { return unix.Unlink(t.file) }},
	{"unlink link", "EROFS", func(t three) error { return unix.Unlink(t.link) }},
	{"unlink folder", "EROFS", func(t three) error { return unix.Unlink(t.folder) }},
	{"unlink of what is not there", "EROFS", func(t three) error { return unix.Unlink(t.folder + "/new") }},
	{"rmdir", "EROFS", func(t three) error { return unix.Rmdir(t.folder) }},
	{"rmdir file", "EROFS", func(t three) error { return unix.Rmdir(t.file) }},
	{"truncate", "EROFS", func(t three) error { return unix.Truncate(t.file, 0) }},
	{"truncate longer", "EROFS", func(t three) error { return unix.Truncate(t.file, 1<<20) }},
	{"truncate folder", "EISDIR", func(t three) error { return unix.Truncate(t.folder, 0) }},
	{"ftruncate", "EINVAL", onFile(func(fd int) error { return unix.Ftruncate(fd, 0) })},
	{"fallocate", "EBADF", fallocate(0)},
	{"fallocate FALLOC_FL_KEEP_SIZE", "EBADF", fallocate(unix.FALLOC_FL_KEEP_SIZE)},
	{"fallocate FALLOC_FL_PUNCH_HOLE", "EBADF", fallocate(unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE)},
	{"fallocate FALLOC_FL_ZERO_RANGE", "EBADF", fallocate(unix.FALLOC_FL_ZERO_RANGE)},
	{"fallocate FALLOC_FL_COLLAPSE_RANGE", "EBADF", fallocate(unix.FALLOC_FL_COLLAPSE_RANGE)},
	{"chmod", "EROFS", func(t three) error { return unix.Chmod(t.file, 0o777) }},
	{"chmod folder", "EROFS", func(t three) error { return unix.Chmod(t.folder, 0o777) }},
	{"fchmod", "EROFS", onFile(func(fd int) error { return unix.Fchmod(fd, 0o777) })},
	{"fchmodat2 AT_SYMLINK_NOFOLLOW", "EROFS", func(t three) error {
		return unix.Fchmodat(unix.AT_FDCWD, t.link, 0o777, unix.AT_SYMLINK_NOFOLLOW)
	}},
	{"chown", "EROFS", func(t three) error { return unix.Chown(t.file, 1, 1) }},
	{"chown to whose it is", "EROFS", func(t three) error { return unix.Chown(t.file, -1, -1) }},
	{"fchown", "EROFS", onFile(func(fd int) error { return unix.Fchown(fd, 1, 1) })},
	{"lchown", "EROFS", func(t three) error { return unix.Lchown(t.link, 1, 1) }},
	{"utimensat", "EROFS", func(t three) error { return unix.UtimesNanoAt(unix.AT_FDCWD, t.file, longAgo, 0) }},
	{"utimensat AT_SYMLINK_NOFOLLOW", "EROFS", func(t three) error {
		return unix.UtimesNanoAt(unix.AT_FDCWD, t.link, longAgo, unix.AT_SYMLINK_NOFOLLOW)
	}},
	{"utimes now", "EROFS", func(t three) error { return unix.Utimes(t.file, nil) }},
	{"futimes", "EROFS", onFile(func(fd int) error { return unix.Futimes(fd, []unix.Timeval{{Sec: 1}, {Sec: 1}}) })},
	{"setxattr", "EROFS", func(t three) error { return unix.Setxattr(t.file, "user.x", []byte("x"), 0) }},
	{"setxattr XATTR_REPLACE", "EROFS", func(t three) error {
		return unix.Setxattr(t.file, "user.x", []byte("x"), unix.XATTR_REPLACE)
	}},
	{"setxattr security.capability", "EROFS", func(t three) error {
		return unix.Setxattr(t.file, "security.capability", make([]byte, 20), 0)
	}},
	{"setxattr trusted", "EROFS", func(t three) error { return unix.Setxattr(t.file, "trusted.x", []byte("x"), 0) }},
	{"setxattr system.posix_acl_access", "EROFS", func(t three) error {
		return unix.Setxattr(t.file, "system.posix_acl_access", []byte("\x02\x00\x00\x00"+
			"\x01\x00\x06\x00\xff\xff\xff\xff"+"\x04\x00\x04\x00\xff\xff\xff\xff"+"\x20\x00\x04\x00\xff\xff\xff\xff"), 0)
	}},
	{"lsetxattr", "EROFS", func(t three) error { return unix.Lsetxattr(t.link, "trusted.x", []byte("x"), 0) }},
	{"fsetxattr", "EROFS", onFile(func(fd int) error { return unix.Fsetxattr(fd, "user.x", []byte("x"), 0) })},
	{"removexattr", "EROFS", func(t three) error { return unix.Removexattr(t.file, "user.x") }},
	{"lremovexattr", "EROFS", func(t three) error { return unix.Lremovexattr(t.link, "trusted.x") }},
	{"fremovexattr", "EROFS", onFile(func(fd int) error { return unix.Fremovexattr(fd, "user.x") })},
	{"write", "EBADF", onFile(func(fd int) error { _, err := unix.Write(fd, []byte("x")); return err })},
	{"pwrite", "EBADF", onFile(func(fd int) error { _, err := unix.Pwrite(fd, []byte("x"), 0); return err })},
	{"pwritev", "EBADF", onFile(func(fd int) error { _, err := unix.Pwritev(fd, [][]byte{[]byte("x")}, 0); return err })},
	{"copy_file_range", "EBADF", onFile(func(fd int) error {
		from := must(unix.Open("/proc/self/exe", unix.O_RDONLY, 0))
		_, err := unix.CopyFileRange(from, nil, fd, nil, 100, 0)
		return err
	})},
	{"sendfile", "EBADF", onFile(func(fd int) error {
		_, err := unix.Sendfile(fd, must(unix.Open("/proc/self/exe", unix.O_RDONLY, 0)), nil, 100)
		return err
	})},
	{"splice", "EBADF", onFile(func(fd int) error {
		var p [2]int
		check(unix.Pipe(p[:]))
		must(unix.Write(p[1], []byte("x")))
		_, err := unix.Splice(p[0], nil, fd, nil, 1, 0)
		return err
	})},
	{"mmap PROT_WRITE MAP_SHARED", "EACCES", onFile(func(fd int) error {
		_, err := unix.Mmap(fd, 0, 4096, unix.PROT_WRITE, unix.MAP_SHARED)
		return err
	})},
	{"mprotect PROT_WRITE", "EACCES", onFile(func(fd int) error {
		return unix.Mprotect(must(unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)), unix.PROT_READ|unix.PROT_WRITE)
	})},
	{"ioctl FICLONE", "EBADF", onFile(func(fd int) error { return unix.IoctlFileClone(fd, fd) })},
	{"ioctl FS_IOC_SETFLAGS", "EROFS", onFile(func(fd int) error {
		flags := int32(0x10) // FS_IMMUTABLE_FL
		return ioctl(fd, unix.FS_IOC_SETFLAGS, unsafe.Pointer(&flags))
	})},
	{"ioctl FS_IOC_FSSETXATTR", "EROFS", onFile(func(fd int) error {
		var fsx [28]byte // struct fsxattr
		const fsSetXattr = 0x401c5820
		return ioctl(fd, fsSetXattr, unsafe.Pointer(&fsx))
	})},
	{"access W_OK", "EROFS", func(t three) error { return unix.Access(t.file, unix.W_OK) }},
	{"access folder W_OK", "EROFS", func(t three) error { return unix.Access(t.folder, unix.W_OK) }},
	{"chmod of what is not there", "ENOENT", func(t three) error { return unix.Chmod(t.folder+"/new", 0o777) }},
}

// opening tries to open, with flags.
func opening(path string, flags int) error {
	fd, err := unix.Open(path, flags, 0o644)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// onFile is a call on a descriptor of the file, open for reading.
func onFile(do func(fd int) error) func(t three) error {
	return func(t three) error { return do(must(unix.Open(t.file, unix.O_RDONLY, 0))) }
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

var longAgo = []unix.Timespec{{Sec: 1}, {Sec: 1}}

func renameat2(flags uint) func(t three) error {
	return func(t three) error {
		to := t.folder + "/new"
		if flags == unix.RENAME_EXCHANGE {
			to = t.link
		}
		return unix.Renameat2(unix.AT_FDCWD, t.file, unix.AT_FDCWD, to, flags)
	}
}

func fallocate(mode uint32) func(t three) error {
	return onFile(func(fd int) error { return unix.Fallocate(fd, mode, 0, 4096) })
}

// mutate is the child that tries them all, as root or as an ordinary user.
func mutate(as string, t three) {
	if as == "user" {
		check(syscall.Setgroups(nil))
		check(syscall.Setgid(65534))
		check(syscall.Setuid(65534))
	}
	for _, m := range mutations {
		fmt.Printf("%s: %s\n", m.name, result("ok", m.do(t)))
	}
}

func TestChangesFailAsOnReadOnlyExt4(t *testing.T) {
	if len(mutations) < 40 {
		t.Fatalf("%d calls", len(mutations))
	}
	chain := open(t, materialize.Options{}, codecs+"tag01_lz4_perchunk.hipo")
	dir := mount(t, Options{AllowOther: true}, chain)
	check(os.Chmod(filepath.Dir(dir), 0o755)) // the test's own folder, which the user must pass
	trees := map[string]three{"hipofs": {dir + "/CODEC::hits", dir + "/CODEC::hits/x.npy", dir + "/.hipofs/populated/CODEC::hits"}}
	if tree, ok := readOnlyExt4(t); ok {
		trees["ext4"] = tree
	}
	for what, tree := range trees {
		for _, as := range []string{"root", "user"} {
			got := results(t, in(t, "mutate", as, tree.folder, tree.file, tree.link))
			if len(got) != len(mutations) {
				t.Errorf("%d answers to %d calls", len(got), len(mutations))
			}
			for _, m := range mutations {
				if got[m.name] != m.want {
					t.Errorf("%s, %s: %s gives %s, not %s", what, as, m.name, got[m.name], m.want)
				}
			}
		}
	}
}

// As root can, with mount -o remount,rw.
func TestNothingCanBeChangedWhereItIsRemounted(t *testing.T) {
	dir := mount(t, Options{}, open(t, materialize.Options{}, codecs+"tag01_lz4_perchunk.hipo"))
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		t.Fatal(err)
	}
	before := run(t, "ls", "-lR", dir)
	got := results(t, in(t, "mutate", "root", dir+"/CODEC::hits", dir+"/CODEC::hits/x.npy", dir+"/.hipofs/populated/CODEC::hits"))
	for _, m := range mutations {
		asks := strings.HasPrefix(m.name, "access ") // and changes nothing
		if got[m.name] == "ok" && m.want != "ok" && !asks {
			t.Errorf("%s succeeds", m.name)
		}
	}
	if after := run(t, "ls", "-lR", dir); after != before {
		t.Errorf("the tree has changed:\n%s\n%s", before, after)
	}
}

// posixCases are what go-fuse's posixtest asks of every file system, as far as
// one that cannot be written to can be asked: its own case where that only
// reads, elsewhere one that asks the same of what is there already. dir has 168
// folders, as many as it takes to list it in several pieces.
var posixCases = map[string]func(t *testing.T, dir string){
	"ReadDirConsistency":  posixtest.ReadDirConsistency,
	"DirSeek":             dirSeek,
	"FdLeak":              fdLeak,
	"OpenAt":              openAt,
	"ParallelFileOpen":    parallelFileOpen,
	"ReadDirBasic":        readDirBasic,
	"SymlinkReadlink":     symlinkReadlink,
	"XAttr":               xattrs,
	"LseekEnxioCheck":     lseekEnxio,
	"LseekHoleSeeksToEOF": lseekHole,
	"DirectIO":            directIO,
}

const (
	posixFolders = 168
	posixFile    = "B::1/offsets.npy"
	posixSize    = 128 + 8*3 // header, and offsets of two entries
)

// TestPosix runs each case in a child: this program once more, with that case.
func TestPosix(t *testing.T) {
	const variable = "HIPOFS_TEST_POSIX"
	if name := os.Getenv(variable); name != "" {
		posixCases[name](t, os.Getenv("HIPOFS_TEST_MOUNT"))
		return
	}
	f := hipotest.File{Records: []hipotest.Record{{Events: []hipotest.Event{
		{Structures: []hipotest.Structure{hipotest.Bank(1, 2, hipotest.Pack(float32(7)))}}, {},
	}}}}
	for i := range posixFolders {
		f.Schemas = append(f.Schemas, hipotest.Schema{Name: fmt.Sprintf("B::%d", i), Group: 1, Item: uint8(1 + i), Columns: "x/F", Form: hipotest.TextOnly})
	}
	dir := mount(t, Options{}, open(t, materialize.Options{}, write(t, "many.hipo", f.Bytes())))
	for name := range posixCases {
		t.Run(name, func(t *testing.T) {
			cmd := childCommand("", "-test.run=^TestPosix$", "-test.v")
			cmd.Env = append(cmd.Env, variable+"="+name, "HIPOFS_TEST_MOUNT="+dir)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestPosix ") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// dirSeek goes to every entry of a folder, the last first.
func dirSeek(t *testing.T, dir string) {
	fd := must(unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0))
	all := dirents(fd)
	for i := len(all) - 1; i >= 0; i-- {
		var at int64
		if i > 0 {
			at = all[i-1].next
		}
		must(unix.Seek(fd, at, io.SeekStart))
		if got := dirents(fd); len(got) != len(all)-i || got[0] != all[i] {
			t.Errorf("entry %d: %d follow, from %v; not %d, from %v", i, len(got), got[:1], len(all)-i, all[i])
		}
	}
	if len(all) <= posixFolders {
		t.Errorf("%d entries", len(all))
	}
}

// fdLeak looks at the server's descriptors: it is the parent.
func fdLeak(t *testing.T, dir string) {
	open := func() int { return len(must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", os.Getppid())))) }
	must(os.ReadFile(dir + "/" + posixFile))
	before := open()
	for range 100 {
		for _, name := range []string{posixFile, "B::1/x.npy", ".hipofs/stats.json", "B::1/form.json"} {
			must(os.ReadFile(dir + "/" + name))
		}
		must(os.ReadDir(dir))
	}
	if after := open(); after > before+15 {
		t.Errorf("%d descriptors open, then %d", before, after)
	}
}

func openAt(t *testing.T, dir string) {
	folder := must(unix.Open(dir+"/B::1", unix.O_RDONLY, 0))
	path := must(unix.Open(dir+"/B::1", unix.O_PATH, 0))
	for _, fd := range []int{folder, path} {
		var at, direct unix.Stat_t
		check(unix.Fstat(must(unix.Openat(fd, "offsets.npy", unix.O_RDONLY, 0)), &at))
		check(unix.Stat(dir+"/"+posixFile, &direct))
		if at != direct {
			t.Errorf("%+v, not %+v", at, direct)
		}
		if _, err := unix.Openat(fd, "none", unix.O_RDONLY, 0); err != unix.ENOENT {
			t.Errorf("what is not there: %v", err)
		}
	}
}

func parallelFileOpen(t *testing.T, dir string) {
	var g errgroup.Group
	for range 10 {
		g.Go(func() error {
			b, err := os.ReadFile(dir + "/" + posixFile)
			if err == nil && (len(b) != posixSize || !bytes.HasSuffix(b, []byte("\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00"))) {
				err = fmt.Errorf("%q", b)
			}
			return err
		})
	}
	check(g.Wait())
}

func readDirBasic(t *testing.T, dir string) {
	want := map[string]bool{".": true, "..": true, ".nodes": true, ".files": true, ".entries": true, ".where": true, ".event": true, ".hipofs": true, cacheTag: true,
		".ignore": true, ".trackerignore": true, ".metadata_never_index": true}
	for i := range posixFolders {
		want[fmt.Sprintf("B::%d", i)] = true
		want[fmt.Sprintf("B::%d.arrow", i)] = true
	}
	for _, e := range dirents(must(unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0))) {
		if !want[e.name] {
			t.Errorf("%q is one too many", e.name)
		}
		delete(want, e.name)
	}
	if len(want) > 0 {
		t.Errorf("not listed: %v", want)
	}
}

func symlinkReadlink(t *testing.T, dir string) {
	const want = "../../B::1"
	link := dir + "/.hipofs/populated/B::1"
	if got := must(os.Readlink(link)); got != want {
		t.Errorf("leads to %q", got)
	}
	var st unix.Stat_t
	check(unix.Lstat(link, &st))
	if st.Mode != unix.S_IFLNK|0o777 || st.Size != int64(len(want)) {
		t.Errorf("mode %o, size %d", st.Mode, st.Size)
	}
	if _, err := unix.Open(link, unix.O_RDONLY|unix.O_NOFOLLOW, 0); err != unix.ELOOP {
		t.Errorf("opened without following: %v", err)
	}
}

func xattrs(t *testing.T, dir string) {
	file := dir + "/" + posixFile
	b := make([]byte, 100)
	if _, err := unix.Getxattr(file, "user.xattrtest", b); err != unix.ENODATA {
		t.Errorf("what is not there: %v", err)
	}
	if n := must(unix.Getxattr(file, "user.hipofs.name", b)); string(b[:n]) != "offsets" {
		t.Errorf("name %q", b[:n])
	}
	if n := must(unix.Getxattr(file, "user.hipofs.name", nil)); n != len("offsets") {
		t.Errorf("its length is %d", n)
	}
	if _, err := unix.Getxattr(file, "user.hipofs.name", b[:3]); err != unix.ERANGE {
		t.Errorf("in too little space: %v", err)
	}
	if n := must(unix.Listxattr(file, b)); n != 0 {
		t.Errorf("listed: %q", b[:n])
	}
}

func lseekEnxio(t *testing.T, dir string) {
	for _, name := range []string{posixFile, "B::1/form.json"} {
		fd := must(unix.Open(dir+"/"+name, unix.O_RDONLY, 0))
		end := must(unix.Seek(fd, 0, io.SeekEnd))
		for _, off := range []int64{end, end + 1, 1 << 40} {
			for _, whence := range []int{unix.SEEK_DATA, unix.SEEK_HOLE} {
				if at, err := unix.Seek(fd, off, whence); err != unix.ENXIO {
					t.Errorf("%s of %d, whence %d at %d: %d, %v", name, end, whence, off, at, err)
				}
			}
		}
	}
}

func lseekHole(t *testing.T, dir string) {
	fd := must(unix.Open(dir+"/"+posixFile, unix.O_RDONLY, 0))
	if at := must(unix.Seek(fd, posixSize/2, unix.SEEK_HOLE)); at != posixSize {
		t.Errorf("the hole begins at %d", at)
	}
	if at := must(unix.Seek(fd, posixSize/2, unix.SEEK_DATA)); at != posixSize/2 {
		t.Errorf("the data begin at %d", at)
	}
}

func directIO(t *testing.T, dir string) {
	want := must(os.ReadFile(dir + "/" + posixFile))
	fd := must(unix.Open(dir+"/"+posixFile, unix.O_RDONLY|unix.O_DIRECT, 0))
	b := must(unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)) // aligned
	if n := must(unix.Read(fd, b)); !bytes.Equal(b[:n], want) || len(want) != posixSize {
		t.Errorf("%q, not %q", b[:n], want)
	}
}

// readOnlyExt4 is such a tree on a real one, where this machine lets us mount it.
func readOnlyExt4(t *testing.T) (three, bool) {
	t.Helper()
	work := t.TempDir()
	check(os.Chmod(filepath.Dir(work), 0o755))
	tree, image, dir := work+"/tree", work+"/image", work+"/mnt"
	check(os.MkdirAll(tree+"/folder", 0o755))
	check(os.WriteFile(tree+"/folder/file", make([]byte, 10000), 0o444))
	check(os.Symlink("folder", tree+"/link"))
	check(os.Mkdir(dir, 0o755))
	check(os.WriteFile(image, nil, 0o600))
	check(os.Truncate(image, 4<<20))
	for _, argv := range [][]string{{"mkfs.ext4", "-q", "-F", "-d", tree, image}, {"mount", "-t", "ext4", "-o", "ro,loop", image, dir}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Logf("no ext4 to compare with, only the table: %s: %v %s", argv[0], err, out)
			return three{}, false
		}
	}
	points = append(points, dir)
	t.Cleanup(func() { run(t, "umount", dir) })
	return three{dir + "/folder", dir + "/folder/file", dir + "/link"}, true
}
