package fs

import (
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// On macOS nothing is mounted: its FUSE is another one. The tree is there to be
// exported.

const remoteIO = syscall.EIO

// connection would be a mount's link to the kernel.
type connection struct{ fd int }

func connect(string, Options) (*connection, error) {
	return nil, &NoFUSEError{"hipofs mounts on Linux alone; here, \"hipofs export\" writes the same folders as files"}
}

func (c *connection) release()      {}
func (c *connection) detach() error { return nil }

func registerBacking(*fuse.Server, *os.File) (int32, syscall.Errno) { return 0, syscall.ENOSYS }

func unregisterBacking(*fuse.Server, int32) {}
