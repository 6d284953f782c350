package fs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// connection is a mount's link to the kernel, and the way to end it. go-fuse is
// handed the descriptor instead of mounting by itself: its way leaves /dev/fuse
// open in children of this process, where it keeps a dead mount's readers
// hanging, and it does not say why fusermount3 refused.
type connection struct {
	dir    string // "": in another mount namespace, and ends with that
	fd     int    // /dev/fuse, close-on-exec; go-fuse owns it once it serves
	helper string // the fusermount3 that mounted; "": mounted directly

	watcher  *exec.Cmd // unmounts when lifeline closes, as it does when this process dies; nil: none
	lifeline *os.File
	unwatch  sync.Once
}

// connect mounts on dir: root directly, others through fusermount3.
func connect(dir string, o Options) (*connection, error) {
	mount := mountByHelper
	if os.Geteuid() == 0 {
		mount = mountDirectly
	}
	c, err := mount(dir, o)
	if err != nil || !o.AutoUnmount {
		return c, err
	}
	if err := c.watch(); err != nil {
		unix.Close(c.fd)
		_ = c.detach()
		return nil, err
	}
	return c, nil
}

func mountDirectly(dir string, o Options) (*connection, error) {
	device, err := OpenDevice()
	if err != nil {
		return nil, err
	}
	if err := Attach(device, dir, o); err != nil {
		unix.Close(device)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			return nil, &NoFUSEError{err.Error() + "; in a container, start it with --cap-add SYS_ADMIN --device /dev/fuse, or use hipofs run"}
		}
		return nil, err
	}
	return &connection{dir: dir, fd: device}, nil
}

// OpenDevice opens /dev/fuse, close-on-exec. Error: *NoFUSEError.
func OpenDevice() (device int, err error) {
	device, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, deviceError(err)
	}
	return device, nil
}

// Attach mounts the device on dir, which nobody but who has CAP_SYS_ADMIN in
// this mount namespace may. Whoever looks there waits until the device is
// served, in this process or another. Of o it needs FSName and AllowOther.
func Attach(device int, dir string, o Options) error {
	if o.FSName == "" {
		o.FSName = "hipofs"
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,max_read=%d,default_permissions",
		device, os.Geteuid(), os.Getegid(), requestSize)
	if o.AllowOther {
		data += ",allow_other"
	}
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	switch err := unix.Mount(o.FSName, dir, "fuse.hipofs", flags, data); err {
	case nil:
		return nil
	case unix.EPERM, unix.EACCES:
		return fmt.Errorf("mount: %w", err)
	case unix.ENODEV:
		return &NoFUSEError{"this kernel has no FUSE; load it as root: modprobe fuse"}
	default:
		return &MountPointError{dir, err.Error()}
	}
}

// mountByHelper lets fusermount3 mount, which hands the descriptor back over a
// socket (libfuse lib/mount.c).
func mountByHelper(dir string, o Options) (*connection, error) {
	helper, err := findHelper()
	if err != nil {
		return nil, err
	}
	// fusermount3 would say the same, less plainly.
	probe, err := OpenDevice()
	if err != nil {
		return nil, err
	}
	unix.Close(probe)

	if o.FSName == "" {
		o.FSName = "hipofs"
	}
	escaped := strings.NewReplacer(`\`, `\\`, `,`, `\,`).Replace(o.FSName)
	opts := fmt.Sprintf("ro,nosuid,nodev,noexec,default_permissions,max_read=%d,subtype=hipofs,fsname=%s", requestSize, escaped)
	if o.AllowOther {
		opts += ",allow_other"
	}

	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "fusermount3"), os.NewFile(uintptr(pair[1]), "fusermount3")

	var stderr bytes.Buffer
	cmd := exec.Command(helper, "-o", opts, "--", dir)
	cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = &stderr
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		ours.Close()
		return nil, &NoFUSEError{err.Error()}
	}
	fd, _, err := ReceiveDevice(pair[0])
	if err != nil {
		ours.Close()
		_ = cmd.Wait() // its words say more than its status
		if said := strings.TrimSpace(stderr.String()); said != "" {
			return nil, helperError(dir, said)
		}
		return nil, &NoFUSEError{"fusermount3: " + err.Error()}
	}
	c := &connection{dir: dir, fd: fd, helper: helper}
	ours.Close()
	_ = cmd.Wait() // it has mounted
	return c, nil
}

// watch starts a process that unmounts when this one has died. fusermount3 has
// an option for it, which fails for who mounts without allow_other (3.14 opens
// the mount point as root, and is refused).
func (c *connection) watch() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	unmount := []string{"umount", "-l"}
	if c.helper != "" {
		unmount = []string{c.helper, "-u", "-q", "-z", "--"}
	}
	// The pipe may close before the connection does; what looks at the mount
	// meanwhile is told so, and must try again.
	const script = `read -r _; for i in 1 2 3 4 5 6 7 8 9 10; do "$@" && exit; sleep 0.2; done`
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, append(unmount, c.dir)...)...)
	cmd.Dir = "/"
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal to this job is not for it
	if err := cmd.Start(); err != nil {
		w.Close()
		return fmt.Errorf("auto_unmount: %w", err)
	}
	c.watcher, c.lifeline = cmd, w
	return nil
}

// release ends what outlives the mount.
func (c *connection) release() {
	c.unwatch.Do(func() {
		if c.watcher != nil {
			_ = c.watcher.Process.Kill()
			_ = c.watcher.Wait() // it was killed
			c.lifeline.Close()
		}
	})
}

// detach unmounts, lazily where the mount is in use.
func (c *connection) detach() error {
	if err := c.unmount(); err != nil {
		return err
	}
	c.release() // another mount may take this one's place
	return nil
}

func (c *connection) unmount() error {
	if c.dir == "" {
		return nil
	}
	if c.helper == "" {
		err := unix.Unmount(c.dir, unix.UMOUNT_NOFOLLOW)
		if err == unix.EBUSY {
			err = unix.Unmount(c.dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		if err != nil && err != unix.EINVAL { // nothing is mounted there any more
			return &os.PathError{Op: "umount", Path: c.dir, Err: err}
		}
		return nil
	}
	if exec.Command(c.helper, "-u", "-q", "--", c.dir).Run() == nil {
		return nil
	}
	said, err := exec.Command(c.helper, "-u", "-z", "--", c.dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %s", c.dir, strings.TrimSpace(string(said)))
	}
	return nil
}

// ReceiveDevice takes a device from a socket, and what came with it. A socket
// that ends without one is an error.
func ReceiveDevice(socket int) (device int, said string, err error) {
	b := make([]byte, unix.PathMax)
	oob := make([]byte, unix.CmsgSpace(4))
	var n, oobn int
	err = uninterrupted(func() (err error) {
		n, oobn, _, _, err = unix.Recvmsg(socket, b, oob, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err != nil {
		return -1, "", os.NewSyscallError("recvmsg", err)
	}
	if n == 0 {
		return -1, "", errors.New("ended without mounting")
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) != 1 {
		return -1, "", errors.New("sent no descriptor")
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return -1, "", errors.New("sent no descriptor")
	}
	return fds[0], string(b[:n]), nil
}

// findHelper is the path of fusermount3, found before the mount stands in
// anybody's $PATH.
func findHelper() (string, error) {
	p, err := exec.LookPath("fusermount3")
	if err != nil {
		return "", &NoFUSEError{"no fusermount3 in $PATH, without which only root can mount; install it: apt install fuse3, or dnf install fuse3"}
	}
	return filepath.Abs(p)
}

func deviceError(err error) error {
	switch err {
	case unix.ENOENT:
		return &NoFUSEError{"no /dev/fuse; load it as root: modprobe fuse; in a container, start that with --device /dev/fuse"}
	case unix.ENODEV, unix.ENXIO:
		return &NoFUSEError{"/dev/fuse: this kernel has no FUSE; load it as root: modprobe fuse"}
	case unix.EPERM, unix.EACCES:
		return &NoFUSEError{"/dev/fuse: " + err.Error() + "; as root: chmod 666 /dev/fuse; in a container, start that with --device /dev/fuse"}
	}
	return &NoFUSEError{"/dev/fuse: " + err.Error()}
}

// helperError sorts what fusermount3 (fuse 3.2 to 3.17, util/fusermount.c) says
// on standard error. It has one exit status for everything.
func helperError(dir, said string) error {
	switch {
	case strings.Contains(said, "user_allow_other"):
		return &NoFUSEError{"allow_other: as root, add the line user_allow_other to /etc/fuse.conf, or mount without -o allow_other"}
	case strings.Contains(said, "fuse device not found"):
		return deviceError(unix.ENOENT)
	case strings.Contains(said, "mountpoint"), strings.Contains(said, "mount point"), strings.Contains(said, "mounting over"):
		return &MountPointError{dir, said}
	case strings.Contains(said, "Operation not permitted"):
		return &NoFUSEError{said + "; in a container, start it with --cap-add SYS_ADMIN --device /dev/fuse, or use hipofs run"}
	}
	return &NoFUSEError{said}
}
