package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

const umountHelp = `Usage: hipofs umount [-z] MOUNTPOINT

End a mount. "umount" and "fusermount3 -u" do the same. While programs have
files or a working directory there, it stays, and they are named.

Options:
    -z, --lazy    take the mount away at once; programs that have files open
                  keep them until they close them

Exit status: 0 done, 1 failed, 2 wrong usage, 6 no FUSE here, 7 not a mount of
hipofs, or busy.

    $ hipofs umount /mnt/run
    hipofs: /mnt/run: in use by 4711 (python3); end it, or unmount with -z
    $ hipofs umount -z /mnt/run
`

func newUmount() *cobra.Command {
	var lazy bool
	cmd := &cobra.Command{
		Use:   "umount [-z] MOUNTPOINT",
		Short: "end a mount",
		Long:  umountHelp,
		Args:  usage(1, 1, "umount ends one mount"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return umount(args[0], lazy)
		},
	}
	cmd.Flags().BoolVarP(&lazy, "lazy", "z", false, "")
	return cmd
}

func umount(given string, lazy bool) error {
	path, err := findMount(given)
	if err != nil {
		return err
	}
	// Not to be the one who keeps it busy.
	if err := os.Chdir("/"); err != nil {
		return err
	}
	err = unmount(path, lazy)
	var own *statusError
	if err == nil || errors.As(err, &own) {
		return err
	}
	// Whether it is the use that keeps it, fusermount3 says only in prose.
	if users := usersOf(path); len(users) > 0 {
		return failure(statusMountpoint, "%s: in use by %s; end %s, or unmount with -z",
			given, strings.Join(users, ", "), themOrIt(len(users)))
	}
	return failure(statusMountpoint, "%s: %v", given, err)
}

func themOrIt(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

// usersOf are the processes that have a file, a mapping or a directory below
// path, as "4711 (python3)". Links of /proc are read, never followed, so that
// nothing asks the mount.
func usersOf(path string) []string {
	var pids []int
	processes, _ := os.ReadDir("/proc")
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err == nil && pid != os.Getpid() && uses(filepath.Join("/proc", p.Name()), path) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	users := make([]string, len(pids))
	for i, pid := range pids {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		users[i] = fmt.Sprintf("%d (%s)", pid, strings.TrimSpace(string(comm)))
	}
	return users
}

// uses looks at one process; other people's are closed to all but root.
func uses(proc, path string) bool {
	links := []string{proc + "/cwd", proc + "/root"}
	fds, _ := os.ReadDir(proc + "/fd")
	for _, fd := range fds {
		links = append(links, proc+"/fd/"+fd.Name())
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && within(path, target) {
			return true
		}
	}
	maps, _ := os.ReadFile(proc + "/maps")
	for line := range bytes.Lines(maps) {
		// address perms offset dev inode path
		if i := bytes.IndexByte(line, '/'); i >= 0 && within(path, string(bytes.TrimSpace(line[i:]))) {
			return true
		}
	}
	return false
}
