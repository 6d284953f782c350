package main

import (
	"io"

	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// On macOS there is all that needs no mount.

const terminalState = unix.TIOCGETA

func privileged() bool { return unix.Issetugid() }

func noMounts() error {
	return failure(statusNoFUSE, "hipofs mounts on Linux alone; here, \"hipofs export\" writes the same folders as files")
}

// ofLinux is a command that is about mounts.
func ofLinux(name, short string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              short,
		Long:               "Usage: hipofs " + name + "\n\nOn Linux alone.\n\nExit status: 6 no FUSE here.\n",
		DisableFlagParsing: true,
		RunE:               func(*cobra.Command, []string) error { return noMounts() },
	}
}

func newRun(io.Writer) *cobra.Command {
	return ofLinux("run", "run a command with the files mounted for it alone")
}
func newUmount() *cobra.Command        { return ofLinux("umount", "unmount") }
func newDoctor() *cobra.Command        { return ofLinux("doctor", "look whether this machine can mount") }
func newDemo(io.Writer) *cobra.Command { return ofLinux("demo", "mount a small file, and look at it") }

const ourType = "fuse.hipofs"

func isGuest() bool                                            { return false }
func isHelper(string) bool                                     { return false }
func isChild() bool                                            { return false }
func runGuest([]string) error                                  { return noMounts() }
func runHelper([]string, io.Writer, io.Writer) int             { return statusNoFUSE }
func (m *mount) runChild() error                               { return noMounts() }
func startChild([]string, io.Writer, []string, string) error   { return noMounts() }
func checkCacheDir(string, string) error                       { return nil }
func prepareMountpoint(string, []string, bool) (string, error) { return "", noMounts() }
func truePath(path string) (string, error)                     { return path, nil }
func mountAt(string) (*mountinfo.Info, error)                  { return nil, nil }
func findMount(string) (string, error)                         { return "", noMounts() }
func lockMountpoint(string) func()                             { return func() {} }
func forgetStart()                                             {}
func freeMountpoint(string, string) (*mountinfo.Info, error)   { return nil, noMounts() }
