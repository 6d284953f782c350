package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// ourType is the type of our mounts in /proc/self/mountinfo.
const ourType = "fuse.hipofs"

// prepareMountpoint answers the true path of a directory that can be mounted
// on without hiding a source, or says what to do. A mount of ours whose
// process is gone is removed from it.
func prepareMountpoint(given string, sources []string, nonempty bool) (string, error) {
	path, err := truePath(given)
	if err != nil {
		return "", mountpointError(given, err)
	}
	mount, err := mountAt(path)
	for err == nil && mount != nil && mount.FSType == ourType {
		if !isDead(path) {
			return "", failure(statusMountpoint, "%s: hipofs is mounted here already; \"hipofs umount %s\" ends that", given, given)
		}
		if err := unmount(path, true); err != nil {
			return "", failure(statusMountpoint, "%s: a dead mount is in the way and cannot be removed: %v", given, err)
		}
		mount, err = mountAt(path)
	}
	if err != nil {
		return "", err
	}

	fi, err := os.Stat(path)
	if err != nil {
		return "", mountpointError(given, err)
	}
	if !fi.IsDir() {
		return "", failure(statusMountpoint, "%s: not a directory; a mount point is an empty directory", given)
	}
	for _, source := range sources {
		if hides(path, source) {
			return "", failure(statusMountpoint, "mounting on %s would hide %s; choose another directory", given, source)
		}
	}
	if !nonempty {
		if mount != nil {
			return "", failure(statusMountpoint, "%s: a file system is mounted here already (%s); choose a directory inside it, or hide it with -o nonempty", given, mount.FSType)
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return "", mountpointError(given, err)
		}
		if len(entries) > 0 {
			return "", failure(statusMountpoint, "%s: not empty; choose an empty directory, or hide what is in it with -o nonempty", given)
		}
	}
	// fusermount3 asks this of everybody but root.
	if os.Geteuid() != 0 && unix.Access(path, unix.W_OK) != nil {
		return "", failure(statusMountpoint, "%s: only a directory that you may write to can be your mount point; choose one of your own", given)
	}
	return path, nil
}

func mountpointError(given string, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return failure(statusMountpoint, "%s: no such directory; make it first: mkdir %s", given, given)
	case errors.Is(err, unix.ENOTCONN):
		return failure(statusMountpoint, "%s: the mount here is dead; remove it first: umount -l %s", given, given)
	}
	var pe *os.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return failure(statusMountpoint, "%s: %v; choose another directory", given, err)
}

// truePath is path without symbolic links. A mount at its end is not looked
// into: that would fail where its process is dead, and wait where it hangs.
func truePath(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if abs == "/" {
		return abs, nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", err
	}
	abs = filepath.Join(dir, filepath.Base(abs))
	if mount, err := mountAt(abs); err != nil || mount != nil {
		return abs, err
	}
	target, err := os.Readlink(abs)
	if err != nil { // not a link, or not there
		return abs, nil
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(dir, target)
	}
	if _, err := filepath.EvalSymlinks(filepath.Dir(target)); err != nil {
		return "", err
	}
	// Links that form a ring end here.
	if _, err := os.Stat(abs); errors.Is(err, unix.ELOOP) {
		return "", err
	}
	return truePath(target)
}

// mountAt is the mount that one sees at path, nil if there is none.
func mountAt(path string) (*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	if err != nil {
		return nil, fmt.Errorf("reading the table of mounts: %w", err)
	}
	if len(mounts) == 0 {
		return nil, nil
	}
	return mounts[len(mounts)-1], nil // later ones lie on top
}

// findMount is the true path of a mount of ours, or says that it is none.
func findMount(given string) (string, error) {
	path, err := truePath(given)
	if err != nil {
		return "", failure(statusMountpoint, "%s: not a mount of hipofs (%v)", given, err)
	}
	mount, err := mountAt(path)
	if err != nil {
		return "", err
	}
	if mount == nil {
		return "", failure(statusMountpoint, "%s: nothing is mounted here", given)
	}
	if mount.FSType != ourType {
		return "", failure(statusMountpoint, "%s: not a mount of hipofs but of %s; \"umount %s\" ends it", given, mount.FSType, given)
	}
	return path, nil
}

// isDead says whether the process behind a FUSE mount is gone. Statfs is
// never answered from a cache of attributes; a process that does not answer is
// alive.
func isDead(path string) bool {
	dead := make(chan bool, 1)
	go func() {
		var st unix.Statfs_t
		dead <- errors.Is(unix.Statfs(path, &st), unix.ENOTCONN)
	}()
	select {
	case d := <-dead:
		return d
	case <-time.After(5 * time.Second):
		return false
	}
}

// hides says whether a mount on dir, a true path, takes source away.
func hides(dir, source string) bool {
	// The name that is given goes too when a link to the file is what lies in dir.
	abs, err := filepath.Abs(source)
	if err != nil {
		return false
	}
	if parent, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		abs = filepath.Join(parent, filepath.Base(abs))
	}
	target, err := filepath.EvalSymlinks(abs)
	if err != nil {
		target = abs
	}
	return within(dir, abs) || within(dir, target)
}

// within says whether path is dir or lies below it; both are absolute.
func within(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// unmount ends the mount at path, a true path; lazily: also while it is in
// use, or dead. Who is not root asks fusermount3 for it.
func unmount(path string, lazily bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	args := []string{"-u", "--", path}
	if lazily {
		flags |= unix.MNT_DETACH
		args = slices.Insert(args, 1, "-z")
	}
	err := unix.Unmount(path, flags)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	for _, name := range []string{"fusermount3", "/usr/bin/fusermount3", "fusermount"} {
		program, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		out, err := exec.Command(program, args...).CombinedOutput()
		if err == nil {
			return nil
		}
		if said := strings.TrimSpace(string(out)); said != "" {
			return errors.New(said)
		}
		return err
	}
	return failure(statusNoFUSE, "fusermount3 is missing; install fuse3")
}
