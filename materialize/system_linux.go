package materialize

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// What Linux does in its own way; system_darwin.go has the same for macOS.

// errRemoteIO is of a server that fails.
const errRemoteIO = syscall.EREMOTEIO

// changeTime is when a file's inode was changed last, in nanoseconds.
func changeTime(st *syscall.Stat_t) int64 { return st.Ctim.Nano() }

// lockRange waits for a lock that belongs to the open file, not to the process.
func lockRange(fd uintptr, l *unix.Flock_t) error { return unix.FcntlFlock(fd, unix.F_OFD_SETLKW, l) }

// setModified sets the time of the last change of a file in a folder.
func setModified(dir int, name string, to unix.Timespec) error {
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, to}, unix.AT_SYMLINK_NOFOLLOW)
}

// reserveSpace gives a file room for its first bytes.
func reserveSpace(fd int, bytes int64) error { return unix.Fallocate(fd, 0, 0, bytes) }

// punchHole gives room of a file back, which then reads as zeros.
func punchHole(fd int, off, bytes int64) error {
	return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, bytes)
}

// renameToNew renames a file, unless the name is taken.
func renameToNew(from, to string) error {
	return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
}

// copyRange copies bytes from one file to another in the kernel; 0 where it cannot.
func copyRange(from int, off *int64, to int, at *int64, n int64) (int, error) {
	return unix.CopyFileRange(from, off, to, at, int(n), 0)
}
