package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/fs"
	"github.com/hipofs/hipofs/materialize"
)

const doctorHelp = `Usage: hipofs doctor [OPTIONS]

Look whether this machine can mount, and what would make it better. Each line
is "ok", "warn" or "fail", with what was found, and below it what to do where
something can be done. Nothing is changed.

Options:
    --index-dir DIR      look at DIR as the folder of indexes (your cache folder
                         otherwise)
    --cache-dir DIR      look at DIR as a folder for finished columns, too
    --json               print it as JSON

Exit status: 0 one can mount here, or use "hipofs run", 1 failed, 2 wrong usage,
6 neither.

    $ hipofs doctor
    ok    /dev/fuse      can be opened
    ok    hipofs run     a mount in namespaces of one's own works
    ...
`

// finding is one line of the doctor.
type finding struct {
	Name   string `json:"name"`
	State  string `json:"state"` // stateOK, stateWarn or stateFail
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
}

const (
	stateOK   = "ok"
	stateWarn = "warn" // it works, but worse than it could
	stateFail = "fail"
)

// diagnosis is what the doctor says.
type diagnosis struct {
	Mount  bool      `json:"mount"` // "hipofs mount" works here
	Run    bool      `json:"run"`   // "hipofs run" does
	Checks []finding `json:"checks"`
}

func newDoctor() *cobra.Command {
	var indexDir, cacheDir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "doctor [OPTIONS]",
		Short:   "look whether this machine can mount",
		Long:    doctorHelp,
		Args:    usage(0, 0, "doctor takes no arguments"),
		PreRunE: setFromEnvironment,
		RunE: func(cmd *cobra.Command, args []string) error {
			d := diagnose(indexDir, cacheDir)
			out := cmd.OutOrStdout()
			if asJSON {
				e := json.NewEncoder(out)
				e.SetIndent("", "  ")
				e.SetEscapeHTML(false)
				if err := e.Encode(d); err != nil {
					return err
				}
			} else if err := d.print(out); err != nil {
				return err
			}
			if !d.Mount && !d.Run {
				return &statusError{status: statusNoFUSE} // which has been told
			}
			return nil
		},
	}
	if cache, err := os.UserCacheDir(); err == nil {
		indexDir = filepath.Join(cache, "hipofs")
	}
	cmd.Flags().StringVar(&indexDir, "index-dir", indexDir, "")
	cmd.Flags().StringVar(&cacheDir, "cache-dir", "", "")
	cmd.Flags().BoolVar(&asJSON, "json", false, "")
	return cmd
}

// diagnose looks at everything. None of it takes long.
func diagnose(indexDir, cacheDir string) diagnosis {
	var uts unix.Utsname
	_ = unix.Uname(&uts) // fails for no reason that could occur
	kernel := parseKernel(unix.ByteSliceToString(uts.Release[:]))
	admin := maySetMounts()

	device := lookAtDevice()
	run := lookAtRun()
	helper := lookAtHelper(admin)
	d := diagnosis{
		Run: run.State == stateOK,
		Checks: []finding{
			lookAtKernel(kernel), device, helper, lookAtAllowOther("/etc/fuse.conf"), run,
			lookAtPassthrough(kernel, admin && ownsMachine()), lookAtReadAhead(),
			lookAtFolder("index folder", indexDir, "--index-dir"),
		},
	}
	// With the capability, a mount is what the run has tried.
	d.Mount = device.State == stateOK && helper.State == stateOK && (d.Run || !admin)
	if cacheDir != "" {
		d.Checks = append(d.Checks, lookAtFolder("cache folder", cacheDir, "--cache-dir"))
	}
	d.Checks = append(d.Checks, lookAtMemory(materialize.DefaultMemory()), lookAtOpenFiles(),
		finding{Name: "processors", State: stateOK, Found: fmt.Sprintf("%d, each decodes a record (--threads)", runtime.GOMAXPROCS(0))})
	return d
}

// print prints a line for each finding, and one for the result.
func (d diagnosis) print(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, f := range d.Checks {
		fmt.Fprintf(b, "%-5s %-14s %s\n", f.State, f.Name, printable(f.Found))
		if f.Remedy != "" {
			fmt.Fprintf(b, "%-20s -> %s\n", "", printable(f.Remedy))
		}
	}
	can := []string{"hipofs mount: no", "hipofs run: no"}
	if d.Mount {
		can[0] = "hipofs mount: yes"
	}
	if d.Run {
		can[1] = "hipofs run: yes"
	}
	fmt.Fprintln(b, strings.Join(can, ", "))
	return b.Flush()
}

// kernelVersion is the beginning of uname -r.
type kernelVersion struct {
	release      string
	major, minor int
}

func parseKernel(release string) kernelVersion {
	v := kernelVersion{release: release}
	// What cannot be read stays 0, which is before every version asked for.
	_, _ = fmt.Sscanf(release, "%d.%d", &v.major, &v.minor)
	return v
}

func (v kernelVersion) since(major, minor int) bool {
	return v.major > major || v.major == major && v.minor >= minor
}

func lookAtKernel(v kernelVersion) finding {
	f := finding{Name: "kernel", State: stateOK, Found: "Linux " + v.release}
	if !v.since(4, 5) {
		f.State, f.Remedy = stateWarn, "hipofs needs Linux 4.5 or newer, and 4.18 for hipofs run"
	}
	return f
}

func lookAtDevice() finding {
	f := finding{Name: "/dev/fuse", State: stateOK, Found: "can be opened"}
	device, err := fs.OpenDevice()
	if err != nil {
		f.State = stateFail
		f.Found, f.Remedy, _ = strings.Cut(strings.TrimPrefix(err.Error(), "/dev/fuse: "), "; ")
		return f
	}
	unix.Close(device)
	return f
}

// lookAtHelper looks at fusermount3, which mounts for who may not.
func lookAtHelper(admin bool) finding {
	f := finding{Name: "fusermount3", State: stateOK}
	if os.Geteuid() == 0 {
		f.Found = "not needed: root mounts directly"
		if !admin {
			f.State, f.Found = stateWarn, "not for root, who mounts directly, and has no CAP_SYS_ADMIN for that here"
			f.Remedy = "in a container, start it with --cap-add SYS_ADMIN --device /dev/fuse"
		}
		return f
	}
	path, err := exec.LookPath("fusermount3")
	if err != nil {
		f.State, f.Found, f.Remedy = stateWarn, "not found: only hipofs run can mount", "install it: apt install fuse3, or dnf install fuse3"
		return f
	}
	fi, err := os.Stat(path)
	noNew, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	switch {
	case err != nil:
		f.State, f.Found = stateWarn, errorLine(err)
	case !hasRootRights(path, fi):
		f.State, f.Found, f.Remedy = stateWarn, path+" is not set-user-ID root: only hipofs run can mount", "as root: chmod u+s "+path
	case noNew == 1:
		f.State, f.Found = stateWarn, "no set-user-ID program has an effect here (no_new_privs): only hipofs run can mount"
		f.Remedy = "in a container, start it without --security-opt no-new-privileges"
	default:
		f.Found = path + ", set-user-ID root"
	}
	return f
}

// hasRootRights says whether a program runs with rights of root, by its mode or
// by capabilities of its file.
func hasRootRights(path string, fi os.FileInfo) bool {
	var st unix.Stat_t
	if fi.Mode()&os.ModeSetuid != 0 && unix.Stat(path, &st) == nil && st.Uid == 0 {
		return true
	}
	n, err := unix.Getxattr(path, "security.capability", nil)
	return err == nil && n > 0
}

// lookAtAllowOther is about mounts that other users see.
func lookAtAllowOther(conf string) finding {
	f := finding{Name: "allow_other", State: stateOK}
	text, err := os.ReadFile(conf)
	switch {
	case os.Geteuid() == 0:
		f.Found = "root may always let other users in (-o allow_other)"
	case err == nil && allowsOther(string(text)):
		f.Found = "other users can be let in (-o allow_other)"
	default:
		f.Found = "a mount is its user's alone: " + conf + " does not have user_allow_other"
		f.Remedy = "only where -o allow_other is wanted; as root: echo user_allow_other >>" + conf
	}
	return f
}

// allowsOther reads fuse.conf as fusermount3 does: a line is a word, spaces
// around it do not matter, and # begins a comment.
func allowsOther(conf string) bool {
	for line := range strings.Lines(conf) {
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) == "user_allow_other" {
			return true
		}
	}
	return false
}

// lookAtRun tries it: a child mounts in namespaces of its own, and ends.
func lookAtRun() finding {
	f := finding{Name: "hipofs run", State: stateOK, Found: "a mount in namespaces of one's own works"}
	said, err := tryGuest()
	if err != nil {
		f.State = stateFail
		if said == "" {
			said = errorLine(err)
		}
		f.Found, f.Remedy, _ = strings.Cut(said, "; ")
	}
	return f
}

// tryGuest starts a child as hipofs run does, and dismisses it. What it has
// said, if it failed, comes without the name of the program.
func tryGuest() (said string, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	g, err := startGuest([]string{"doctor"}, w)
	w.Close()
	if err == nil {
		unix.Close(g.device)
		g.dismiss()
		return "", nil
	}
	text, _ := io.ReadAll(r)
	said, _, _ = strings.Cut(strings.TrimPrefix(string(text), "hipofs: "), "\n")
	return said, err
}

// ownsMachine says whether this user namespace is the first one, in which
// capabilities hold for the machine.
func ownsMachine() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && isFirstUserNamespace(string(text))
}

func isFirstUserNamespace(uidMap string) bool {
	return slices.Equal(strings.Fields(uidMap), []string{"0", "0", "4294967295"})
}

func lookAtPassthrough(v kernelVersion, admin bool) finding {
	f := finding{Name: "passthrough", State: stateOK}
	switch {
	case !v.since(6, 9):
		f.State, f.Found, f.Remedy = stateWarn, "this kernel does not have it", "Linux 6.9 or newer serves finished files itself"
	case !admin:
		f.State, f.Found, f.Remedy = stateWarn, "needs CAP_SYS_ADMIN", "only a mount that root makes has it"
	default:
		f.Found = "possible: Linux 6.9 or newer, and CAP_SYS_ADMIN"
	}
	return f
}

// lookAtReadAhead looks whether the kernel's setting for a mount can be changed;
// that of any other file system is as open.
func lookAtReadAhead() finding {
	f := finding{Name: "read-ahead", State: stateOK, Found: "is raised for what is in memory"}
	knobs, _ := filepath.Glob("/sys/class/bdi/*/read_ahead_kb")
	if len(knobs) == 0 || unix.Access(knobs[0], unix.W_OK) != nil {
		f.State, f.Found, f.Remedy = stateWarn, "stays small: only root may raise it, in /sys/class/bdi", "only a mount that root makes has it"
	}
	return f
}

// folderPatience is how long a file system may take to answer; one whose server
// is away never does.
const folderPatience = 300 * time.Millisecond

func lookAtFolder(name, dir, option string) finding {
	if dir == "" {
		return finding{name, stateWarn, "none: there is no cache folder for you here", "name one with " + option}
	}
	looked := make(chan finding, 1)
	go func() { looked <- folderFinding(name, dir, option) }()
	select {
	case f := <-looked:
		return f
	case <-time.After(folderPatience):
		return finding{name, stateWarn, dir + ": its file system does not answer", "name another folder with " + option}
	}
}

// littleSpace is what a folder should have free.
const littleSpace = 1 << 30

func folderFinding(name, dir, option string) finding {
	f := finding{Name: name, State: stateOK}
	there, err := nearestFolder(dir)
	if err != nil {
		return finding{name, stateWarn, errorLine(err), "name another folder with " + option}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(there, &st); err != nil {
		return finding{name, stateWarn, dir + ": " + err.Error(), "name another folder with " + option}
	}
	free := int64(st.Bavail) * st.Bsize
	kind := fileSystemOf(there)
	f.Found = fmt.Sprintf("%s: %s, %s free", dir, kind, sizeText(free))
	switch {
	case unix.Access(there, unix.W_OK|unix.X_OK) != nil:
		f.State, f.Found, f.Remedy = stateWarn, f.Found+", not writable", "name another folder with "+option
	case isRemote(kind):
		f.State, f.Remedy = stateWarn, "a folder on a disk of this machine is faster: "+option
	case kind == "tmpfs":
		f.State, f.Remedy = stateWarn, "what it holds takes memory, and is gone after a restart; a folder on a disk: "+option
	case free < littleSpace:
		f.State, f.Remedy = stateWarn, "make room, or name another folder with "+option
	}
	return f
}

// nearestFolder is dir, or the folder in which it would be made.
func nearestFolder(dir string) (string, error) {
	path, err := filepath.Abs(dir)
	for err == nil {
		var fi os.FileInfo
		fi, err = os.Stat(path)
		switch {
		case err == nil && fi.IsDir():
			return filepath.EvalSymlinks(path)
		case err == nil:
			return "", &os.PathError{Op: "stat", Path: path, Err: unix.ENOTDIR}
		case errors.Is(err, os.ErrNotExist) && path != "/":
			path, err = filepath.Dir(path), nil
		}
	}
	return "", err
}

// fileSystemOf is the type of the file system that a true path is on.
func fileSystemOf(path string) string {
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return "unknown file system"
	}
	kind, longest := "unknown file system", 0
	for _, m := range mounts {
		if len(m.Mountpoint) >= longest { // later ones lie on top
			kind, longest = m.FSType, len(m.Mountpoint)
		}
	}
	return kind
}

var remoteTypes = []string{
	"9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.cvmfs", "fuse.glusterfs", "fuse.sshfs", "gpfs", "lustre",
	"nfs", "nfs4", "panfs", "pvfs2", "smb3", "virtiofs",
}

func isRemote(kind string) bool { return slices.Contains(remoteTypes, kind) }

func lookAtMemory(budget int64) finding {
	f := finding{Name: "memory", State: stateOK}
	f.Found = fmt.Sprintf("%s, limits of its groups included; a mount keeps up to %s of columns (--memory)", sizeText(4*budget), sizeText(budget))
	if budget < 64<<20 {
		f.State, f.Remedy = stateWarn, "records are decoded again and again; let the job have more memory"
	}
	return f
}

func lookAtOpenFiles() finding {
	f := finding{Name: "open files", State: stateOK}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return finding{f.Name, stateWarn, err.Error(), ""}
	}
	f.Found = fmt.Sprintf("%d at once", limit.Cur)
	if limit.Cur < 1024 {
		f.State, f.Remedy = stateWarn, "files of a long chain are opened again and again; as root, raise the hard limit, or: ulimit -n 1024"
	}
	return f
}
