package fs

import (
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// remoteIO is of a server of files that fails.
const remoteIO = syscall.EREMOTEIO

// registerBacking gives a file to the kernel, which reads it by itself under the
// number that comes back.
func registerBacking(server *fuse.Server, f *os.File) (int32, syscall.Errno) {
	return server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(f.Fd())})
}

// unregisterBacking takes a file back.
func unregisterBacking(server *fuse.Server, id int32) { _ = server.UnregisterBackingFd(id) }
