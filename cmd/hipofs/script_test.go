package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"hipofs": main, helperName: main})
}

// TestScripts runs testdata/*.txtar. The command is a real process there, and
// so is the mount. A script that leaves a mount or a process behind fails.
func TestScripts(t *testing.T) {
	var mu sync.Mutex
	var left []string
	t.Cleanup(func() {
		for _, l := range left {
			t.Error("left behind: " + l)
		}
	})
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, ".cache")) // indexes
			e.Defer(func() {
				mu.Lock()
				defer mu.Unlock()
				left = append(left, cleanUp(e.WorkDir)...)
			})
			return copyFiles("testdata", ".hipo", e.WorkDir)
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "fuse":
				return canMount(), nil
			case "root":
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"fails":   fails,
			"mounted": mounted,
			"pid":     pid,
			"signal":  sendSignal,
			"ended":   ended,
		},
	})
}

func canMount() bool {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	f.Close()
	_, err = exec.LookPath("fusermount3")
	return os.Geteuid() == 0 || err == nil
}

func copyFiles(from, ext, to string) error {
	names, err := filepath.Glob(filepath.Join(from, "*"+ext))
	if err != nil {
		return err
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(name)), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// cleanUp ends what a script has left below its folder, and tells what it was.
func cleanUp(dir string) (left []string) {
	for _, p := range processes(dir + "/") { // script-help is not script-helper
		left = append(left, fmt.Sprintf("process %d", p))
		syscall.Kill(p, syscall.SIGKILL)
	}
	mounts, _ := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	for _, m := range mounts {
		left = append(left, "mount "+m.Mountpoint)
		unix.Unmount(m.Mountpoint, unix.MNT_DETACH)
	}
	return left
}

// processes are the hipofs processes with an argument that begins with prefix.
func processes(prefix string) []int {
	var pids []int
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		b, _ := os.ReadFile(name)
		args := strings.Split(string(b), "\x00")
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if filepath.Base(args[0]) == "hipofs" && slices.ContainsFunc(args[1:], func(a string) bool { return strings.HasPrefix(a, prefix) }) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// fails STATUS COMMAND... wants the command to end with this exit status.
func fails(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: fails STATUS COMMAND...")
	}
	err := ts.Exec(args[1], args[2:]...)
	status := 0
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		status = ee.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if fmt.Sprint(status) != args[0] {
		ts.Fatalf("exit status %d, not %s", status, args[0])
	}
}

// mounted DIR waits until hipofs is mounted there and has answered once, so that
// unmounting does not come in between; ! mounted DIR until nothing is mounted.
func mounted(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: mounted DIR")
	}
	dir := ts.MkAbs(args[0])
	// Not by os.Open: the Go runtime would take the events that are awaited here.
	table, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	ts.Check(err)
	defer unix.Close(table)
	for deadline := time.Now().Add(10 * time.Second); ; {
		m, err := mountAt(dir)
		ts.Check(err)
		if (m != nil && m.FSType == ourType) != neg {
			answered := make(chan bool)
			go func() {
				defer close(answered)
				if !neg {
					_ = unix.Statfs(dir, new(unix.Statfs_t)) // a mount whose server is dead answers, too
				}
			}()
			select {
			case <-answered:
			case <-time.After(time.Until(deadline)):
				ts.Fatalf("%s: mounted, but does not answer", dir)
			}
			return
		}
		left := int(time.Until(deadline).Milliseconds())
		if left <= 0 {
			ts.Fatalf("%s: mounted: %v", dir, m != nil)
		}
		// The kernel wakes whoever polls the table when it changes.
		unix.Poll([]unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}}, left)
	}
}

// pid VARIABLE DIR sets a variable to the process that serves the mount at DIR.
func pid(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: pid VARIABLE DIR")
	}
	pids := processes(ts.MkAbs(args[1]))
	if len(pids) != 1 {
		ts.Fatalf("processes that serve %s: %v", args[1], pids)
	}
	ts.Setenv(args[0], fmt.Sprint(pids[0]))
}

// signal NAME PID sends a signal. After STOP the process stands still, with no
// request half answered.
func sendSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: signal NAME PID")
	}
	pid, err := strconv.Atoi(args[1])
	ts.Check(err)
	ts.Check(syscall.Kill(pid, unix.SignalNum("SIG"+args[0])))
	for args[0] == "STOP" && !stopped(pid) {
		runtime.Gosched()
	}
}

func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	return !slices.ContainsFunc(threads, func(thread string) bool {
		b, _ := os.ReadFile(thread)
		return !strings.Contains(string(b), "\nState:\tT")
	})
}

// ended PID waits until a process has ended.
func ended(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: ended PID")
	}
	pid, err := strconv.Atoi(args[0])
	ts.Check(err)
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	ts.Check(err)
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
		switch {
		case err == unix.EINTR:
		case err != nil:
			ts.Fatalf("%v", err)
		case n == 0:
			ts.Fatalf("process %d goes on", pid)
		default:
			return
		}
	}
}
