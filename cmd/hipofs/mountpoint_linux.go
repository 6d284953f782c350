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

	"github.com/hipofs/hipofs/materialize"
)

// ourType is the type of our mounts in /proc/self/mountinfo.
const ourType = "fuse.hipofs"

// prepareMountpoint answers the true path of a directory that can be mounted
// on without hiding what the mount needs, or says what to do.
func prepareMountpoint(given string, needed []string, nonempty bool) (string, error) {
	path, err := truePath(given)
	if err != nil {
		return "", mountpointError(given, err)
	}
	unlock := lockMountpoint(path)
	mount, err := freeMountpoint(given, path)
	unlock()
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
	for _, name := range needed {
		if hides(path, name) {
			return "", failure(statusMountpoint, "mounting on %s would hide %s; choose another directory", given, name)
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

// freeMountpoint removes a mount of ours whose process is gone from path, a true
// path, and refuses one that is alive. It answers what else is mounted there.
func freeMountpoint(given, path string) (*mountinfo.Info, error) {
	mount, err := mountAt(path)
	for err == nil && mount != nil && mount.FSType == ourType {
		if !isDead(path) {
			return nil, failure(statusMountpoint, "%s: hipofs is mounted here already; \"hipofs umount %s\" ends that", given, given)
		}
		if err := unmount(path, true); err != nil {
			return nil, failure(statusMountpoint, "%s: a dead mount is in the way and cannot be removed: %v", given, err)
		}
		mount, err = mountAt(path)
	}
	return mount, err
}

// lockPatience is longer than anybody of ours holds the lock.
const lockPatience = 10 * time.Second

// lockMountpoint keeps other hipofs processes from a mount point while this one
// looks at it and mounts: of two who find it free, or a dead mount on it, one
// would hide the other's mount, or remove it. What is locked is the folder that
// the mount point is in: no dead mount is in the way there, and nothing is left
// behind. Where a file system has no such locks, or a stranger keeps one, it is
// done without.
func lockMountpoint(path string) (unlock func()) {
	fd, err := unix.Open(filepath.Dir(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return func() {}
	}
	locked := make(chan struct{})
	go func() {
		for unix.Flock(fd, unix.LOCK_EX) == unix.EINTR {
		}
		close(locked)
	}()
	select {
	case <-locked:
		return func() { unix.Close(fd) }
	case <-time.After(lockPatience):
		go func() {
			<-locked
			unix.Close(fd)
		}()
		return func() {}
	}
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

// hides says whether a mount on dir, a true path, takes a file or folder away,
// also one that is yet to be made.
func hides(dir, name string) bool {
	// The name that is given goes too when a link to the file is what lies in dir.
	abs, err := filepath.Abs(name)
	if err != nil {
		return false
	}
	parent := filepath.Dir(abs)
	for parent != "/" && !exists(parent) {
		parent = filepath.Dir(parent)
	}
	if there, err := filepath.EvalSymlinks(parent); err == nil {
		abs = filepath.Join(there, strings.TrimPrefix(abs, parent))
	}
	target, err := filepath.EvalSymlinks(abs)
	if err != nil {
		target = abs
	}
	return within(dir, abs) || within(dir, target)
}

// checkCacheDir makes the cache folder of a mount, which must not lie below it.
func checkCacheDir(dir, mountpoint string) error {
	if path, err := truePath(mountpoint); err == nil {
		there := dir
		for there != "/" {
			if _, err := os.Lstat(there); err == nil {
				break
			}
			there = filepath.Dir(there)
		}
		if hides(path, dir) || hides(path, there) {
			return failure(statusMountpoint, "mounting on %s would hide the cache folder %s; choose another directory for one of them", mountpoint, dir)
		}
	}
	return materialize.CheckCacheDir(dir)
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
