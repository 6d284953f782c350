package fs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/materialize"
)

// child is what a child of the tests does with a mount, in system calls that
// nothing repeats or wraps.
func child(op string, args []string) {
	switch op {
	case "stat", "open", "readdir":
		fmt.Println(try(op, args[0]))
	case "interrupted-stat", "interrupted-open", "interrupted-readdir":
		fmt.Println(interrupted(func() string { return try(strings.TrimPrefix(op, "interrupted-"), args[0]) }))
	case "pread":
		off, _ := strconv.ParseInt(args[1], 10, 64)
		length, _ := strconv.Atoi(args[2])
		b := make([]byte, length)
		n, err := unix.Pread(must(unix.Open(args[0], unix.O_RDONLY, 0)), b, off)
		check(err)
		fmt.Printf("%x\n", b[:n])
	case "direct":
		fd := must(unix.Open(args[0], unix.O_RDONLY|unix.O_DIRECT, 0))
		b := must(unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)) // aligned
		fmt.Printf("%x\n", b[:must(unix.Read(fd, b))])
	case "mmap":
		fd := must(unix.Open(args[0], unix.O_RDONLY, 0))
		var st unix.Stat_t
		check(unix.Fstat(fd, &st))
		b := must(unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED))
		check(unix.Close(fd))
		check(unix.Stat(args[0], &st))
		fmt.Printf("%x\n", sha256.Sum256(b))
	case "seek":
		n, _ := strconv.ParseInt(args[1], 10, 64)
		fd := must(unix.Open(args[0], unix.O_RDONLY, 0))
		for _, off := range []int64{0, n - 1, n, n + 1} {
			for _, w := range []struct {
				name   string
				whence int
			}{{"data", unix.SEEK_DATA}, {"hole", unix.SEEK_HOLE}} {
				at, err := unix.Seek(fd, off, w.whence)
				fmt.Printf("%s %d=%s ", w.name, off, result(at, err))
			}
		}
		fmt.Printf("end=%d\n", must(unix.Seek(fd, 0, io.SeekEnd)))
	case "open-all":
		var all sync.WaitGroup
		for _, path := range args {
			all.Go(func() { fmt.Println(try("open", path)) })
		}
		all.Wait()
	case "read":
		n, err := unix.Read(must(unix.Open(args[0], unix.O_RDONLY, 0)), make([]byte, 10))
		fmt.Println(result(n, err))
	case "hole":
		at, err := unix.Seek(must(unix.Open(args[0], unix.O_RDONLY, 0)), 0, unix.SEEK_HOLE)
		fmt.Println(result(at, err))
	case "readlink":
		n, err := unix.Readlink(args[0], make([]byte, 10))
		fmt.Println(result(n, err))
	case "list":
		fmt.Println(list(args[0]))
	case "mutate":
		mutate(args[0], three{args[1], args[2], args[3]})
	case "xattr":
		b := make([]byte, 100)
		var n int
		var err error
		if args[1] == "" {
			n, err = unix.Listxattr(args[0], b)
		} else {
			n, err = unix.Getxattr(args[0], args[1], b)
		}
		fmt.Println(result(string(b[:max(0, n)]), err))
	case "fds":
		for _, e := range must(os.ReadDir("/proc/self/fd")) {
			target, _ := os.Readlink("/proc/self/fd/" + e.Name())
			fmt.Println(target)
		}
	case "hold":
		fd := must(unix.Open(args[0], unix.O_RDONLY, 0))
		fmt.Print("open\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		b := make([]byte, 1000)
		os.Stdout.Write(b[:must(unix.Read(fd, b))])
	case "stat-later":
		folder := must(unix.Open(args[0], unix.O_PATH|unix.O_DIRECTORY, 0))
		fmt.Print("open\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		var st unix.Stat_t
		err := unix.Fstatat(folder, args[1], &st, 0)
		fmt.Println(result(st.Size, err))
	case "serve":
		chain := must(materialize.Open(context.Background(), args[1:], materialize.Options{}))
		s := must(Mount(args[0], chain, Options{AutoUnmount: true}))
		fmt.Print("mounted")
		s.Wait()
	default:
		panic("no child " + op)
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// result is a value, or an error by its name.
func result[T any](v T, err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return fmt.Sprint(v)
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

func try(op, path string) string {
	switch op {
	case "stat":
		var st unix.Stat_t
		err := unix.Stat(path, &st)
		return result(st.Size, err)
	case "open":
		_, err := unix.Open(path, unix.O_RDONLY, 0)
		return result("open", err)
	}
	fd := must(unix.Open(path, unix.O_RDONLY, 0))
	n, err := unix.ReadDirent(fd, make([]byte, 1<<16))
	return result(n, err)
}

// interrupted is what f returns while signals reach its thread.
func interrupted(f func() string) string {
	runtime.LockOSThread()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGUSR1)
	pid, tid := os.Getpid(), unix.Gettid()
	done := make(chan string)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
				_ = unix.Tgkill(pid, tid, syscall.SIGUSR1)
			}
		}
	}()
	got := f()
	close(done)
	return got
}

// list says what is wrong with a folder's listing.
func list(path string) string {
	fd := must(unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0))
	first := dirents(fd)
	must(unix.Seek(fd, 0, io.SeekStart))
	if again := dirents(fd); fmt.Sprint(again) != fmt.Sprint(first) {
		return fmt.Sprintf("rewound: %v, not %v", again, first)
	}
	if len(first) < 2 || first[0].name != "." || first[1].name != ".." {
		return fmt.Sprintf("begins with %v", first)
	}
	seen := map[string]bool{}
	for i, e := range first {
		var st unix.Stat_t
		check(unix.Fstatat(fd, e.name, &st, unix.AT_SYMLINK_NOFOLLOW))
		parent := e.name == ".." && path[strings.LastIndexByte(path, '/')+1:] != "" // of the mount point: outside
		if i != 1 && st.Ino != e.ino || e.ino == 0 || st.Mode>>12 != uint32(e.kind) && !parent || seen[e.name] {
			return fmt.Sprintf("%v has inode %d and mode %o", e, st.Ino, st.Mode)
		}
		seen[e.name] = true
	}
	return "ok"
}

type dirent struct {
	ino  uint64
	next int64 // where the listing goes on
	kind byte
	name string
}

// dirents are all entries, . and .. too, which Go's own way leaves out.
func dirents(fd int) []dirent {
	var all []dirent
	b := make([]byte, 1000) // several calls
	for {
		n := must(unix.ReadDirent(fd, b))
		if n == 0 {
			return all
		}
		for at := 0; at < n; {
			length := int(binary.NativeEndian.Uint16(b[at+16:]))
			name := b[at+19 : at+length]
			all = append(all, dirent{binary.NativeEndian.Uint64(b[at:]), int64(binary.NativeEndian.Uint64(b[at+8:])), b[at+18], unix.ByteSliceToString(name)})
			at += length
		}
	}
}
