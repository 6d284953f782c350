package main

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/fs"
)

// The command of hipofs run is a child of the process that serves it, in a
// mount namespace of its own, and for who may not make one, in a user namespace
// that allows it. It begins as this program once more, which mounts, hands the
// device over a socket to its parent, waits until the mount answers, and then
// becomes the command: nothing but the command is in the namespaces, and only
// the parent has the device, so that the mount dies with the parent. The parent
// stays where it was started, and reads the files with its user's own rights.

// guestVariable holds the number of the child's socket, and is not in the
// command's environment.
const guestVariable = "HIPOFS_GUEST"

// guest is the child, as its parent has it.
type guest struct {
	process *os.Process
	socket  int    // closed by both when the child becomes the command
	device  int    // /dev/fuse
	number  string // MAJOR:MINOR of the mount
}

// startGuest starts the child, which waits for release. What is wrong inside it
// tells stderr itself; the error has its exit status.
func startGuest(command []string, stderr *os.File) (*guest, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	// Its number stays: the low ones may be files that the shell has opened for
	// the command. Nothing else is started meanwhile that could keep it.
	theirs := pair[1]
	if _, err := unix.FcntlInt(uintptr(theirs), unix.F_SETFD, 0); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	// Not found by $PATH, which may lead anywhere.
	process, err := os.StartProcess("/proc/self/exe", append([]string{os.Args[0]}, command...), &os.ProcAttr{
		Env:   append(os.Environ(), guestVariable+"="+strconv.Itoa(theirs)),
		Files: []*os.File{os.Stdin, os.Stdout, stderr},
		Sys:   namespaces(),
	})
	unix.Close(theirs)
	if err != nil {
		unix.Close(pair[0])
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) {
			return nil, fmt.Errorf("no process can be started for the command: %w; look at ulimit -u", rootCause(err))
		}
		return nil, notGranted(rootCause(err))
	}
	g := &guest{process: process, socket: pair[0], device: -1}
	g.device, g.number, err = fs.ReceiveDevice(g.socket)
	if err != nil {
		if status := exitStatus(g.dismiss()); status != 0 {
			return nil, &statusError{status: status}
		}
		return nil, fmt.Errorf("the process of the command: %w", err)
	}
	return g, nil
}

// release lets the child become the command. If it has ended meanwhile, its
// status says so.
func (g *guest) release(program string) {
	_ = unix.Send(g.socket, []byte(program), unix.MSG_NOSIGNAL)
	unix.Close(g.socket)
}

// dismiss ends a child that was not released.
func (g *guest) dismiss() syscall.WaitStatus {
	unix.Close(g.socket)
	var ws syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(g.process.Pid, &ws, 0, nil); err != syscall.EINTR {
			return ws
		}
	}
}

// namespaces are for a child that dies with this process, whose first thread,
// which starts it, lasts as long.
func namespaces() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if maySetMounts() {
		return attr // and the command keeps all that its user is
	}
	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
	attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	return attr
}

// maySetMounts says whether this process has CAP_SYS_ADMIN.
func maySetMounts() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	err := unix.Capget(&header, &caps[0])
	return err == nil && caps[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// isGuest says whether this process is such a child.
func isGuest() bool { return os.Getenv(guestVariable) != "" && !privileged() }

// runGuest mounts, and becomes the command once the mount answers.
func runGuest(command []string) error {
	socket, err := strconv.Atoi(os.Getenv(guestVariable))
	if err != nil || len(command) == 0 {
		return failure(statusUsage, "%s is for hipofs itself; unset it", guestVariable)
	}
	unix.CloseOnExec(socket)
	os.Unsetenv(guestVariable)
	dir, device, err := mountPrivately()
	if err != nil {
		return err
	}
	mount, err := mountAt(dir)
	if err != nil || mount == nil {
		return fmt.Errorf("%s: not in the table of mounts: %v", dir, err)
	}
	number := fmt.Sprintf("%d:%d", mount.Major, mount.Minor)
	err = unix.Sendmsg(socket, []byte(number), unix.UnixRights(device), nil, 0)
	unix.Close(device) // for the parent alone: whoever has it keeps the mount's readers waiting
	if err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	program := make([]byte, unix.PathMax)
	n, err := 0, error(unix.EINTR)
	for err == unix.EINTR {
		n, err = unix.Read(socket, program)
	}
	if err != nil || n == 0 {
		return &statusError{status: statusFailed} // the parent has told why, or was killed
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("%s: mounted, but does not answer: %w", dir, err)
	}
	if err := giveUpAmbient(); err != nil {
		return fmt.Errorf("giving up capabilities: %w", err)
	}
	os.Setenv(mountVariable, dir)
	// By this, the first thread: the parent's death is told to that alone.
	err = syscall.Exec(string(program[:n]), command, os.Environ())
	if errors.Is(err, iofs.ErrNotExist) {
		// Or that of the interpreter in the first line of a script.
		return failure(statusNotFound, "%s: no such command", command[0])
	}
	return failure(statusNotExecutable, "%s: %v", command[0], err)
}

// mountVariable tells the command where the mount is.
const mountVariable = "HIPOFS_MNT"

// mountPrivately mounts a device that nobody serves yet, where nobody outside
// this mount namespace sees it.
func mountPrivately() (dir string, device int, err error) {
	// What is mounted outside later, automatically or not, comes in; nothing
	// goes out.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return "", -1, notGranted(fmt.Errorf("mount: %w", err))
	}
	device, err = fs.OpenDevice()
	if err != nil {
		return "", -1, err
	}
	dir, err = privateFolder(covered)
	if err == nil {
		err = fs.Attach(device, dir, fs.Options{})
	}
	if err != nil {
		unix.Close(device)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			err = notGranted(err)
		}
		return "", -1, err
	}
	return dir, device, nil
}

// covered are folders that a command can do without, in the order of
// preference. The first is there wherever FUSE is, no cleaner of temporary
// files ever removes it, and with it the mount, and all that it may hold is
// what root ends stuck FUSE mounts with. The others are only taken when they
// are empty.
var covered = []string{"/sys/fs/fuse/connections", "/mnt", "/media", "/srv"}

// privateSource is the source of the memory file system that lies on one of
// them.
const privateSource = "hipofs-run"

// privateFolder makes a folder to mount on, in a memory file system that ends
// with this namespace. In a command of another hipofs run that is there
// already, and the mount of that one stays.
func privateFolder(covered []string) (string, error) {
	var last error
	for i, base := range covered {
		mount, err := mountAt(base)
		if err != nil {
			return "", err
		}
		if mount == nil || mount.Source != privateSource {
			names, err := os.ReadDir(base)
			if err != nil || i > 0 && len(names) > 0 {
				continue
			}
			if last = unix.Mount(privateSource, base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=64k"); last != nil {
				continue
			}
		}
		for n := 1; ; n++ {
			dir := filepath.Join(base, strconv.Itoa(n))
			if last = os.Mkdir(dir, 0o700); last == nil {
				return dir, nil
			}
			if !errors.Is(last, iofs.ErrExist) {
				break
			}
		}
	}
	if last != nil {
		return "", fmt.Errorf("mount: %w", last)
	}
	return "", failure(statusNoFUSE, "no folder to mount on: %s is missing, and none of %s is empty", covered[0], strings.Join(covered[1:], ", "))
}

// giveUpAmbient gives up what namespaces gave this process for mounting: the
// command has the capabilities that its user id brings along, as outside.
func giveUpAmbient() error {
	if os.Geteuid() == 0 {
		return nil
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return unix.Capset(&header, &none[0])
}

// notGranted says why there is no mount of one's own here, and what to do.
func notGranted(err error) error {
	uids, _ := os.ReadFile("/proc/self/uid_map")
	if maySetMounts() && !mapsOne(string(uids)) {
		return &fs.NoFUSEError{Msg: err.Error() + " in spite of CAP_SYS_ADMIN; in a container, start it with --security-opt apparmor=unconfined, too"}
	}
	return &fs.NoFUSEError{Msg: "no namespaces of your own here: " + whyNoNamespaces("/proc", err)}
}

// mapsOne says whether a user namespace has one user, who is the same outside,
// as those have that startGuest makes.
func mapsOne(uidMap string) bool {
	f := strings.Fields(uidMap)
	return len(f) == 3 && f[0] == f[1] && f[2] == "1"
}

// whyNoNamespaces says what keeps this user from having namespaces, and how to
// allow them. proc is /proc.
func whyNoNamespaces(proc string, err error) string {
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(proc, name))
		return strings.TrimSpace(string(b))
	}
	switch {
	case read("sys/user/max_user_namespaces") == "0":
		return "user.max_user_namespaces is 0; as root: sysctl -w user.max_user_namespaces=15000"
	case read("sys/kernel/unprivileged_userns_clone") == "0":
		return "kernel.unprivileged_userns_clone is 0; as root: sysctl -w kernel.unprivileged_userns_clone=1"
	case read("sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "AppArmor forbids them; as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or give hipofs a profile with the rule \"userns,\""
	case strings.Contains(read("self/status"), "\nSeccomp:\t2"):
		return err.Error() + ", by a filter that containers have; start the container with --cap-add SYS_ADMIN --device /dev/fuse --security-opt seccomp=unconfined"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		return "there are as many as user.max_user_namespaces allows; as root, raise it: sysctl -w user.max_user_namespaces=15000"
	case !exists(filepath.Join(proc, "self/ns/user")):
		return "this kernel has no user namespaces; mount with \"hipofs mount\" instead"
	case os.Geteuid() == 0:
		return err.Error() + " for a root without CAP_SYS_ADMIN; in a container, start it with --cap-add SYS_ADMIN --device /dev/fuse"
	}
	return err.Error() + "; mount with \"hipofs mount\" instead"
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
