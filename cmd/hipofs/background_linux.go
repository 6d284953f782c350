package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A mount in the background is this program once more, with the same command
// line, in a session of its own. The parent has done what needs the user's
// working folder, and hands over names through the child's standard input;
// the child answers through a pipe when the mount does.

// childVariable is set in the child's environment alone.
const childVariable = "HIPOFS_CHILD"

// readyFD is the child's end of the pipe to the parent.
const readyFD = 3

func isChild() bool { return os.Getenv(childVariable) != "" && !privileged() }

// startChild returns once the child's mount answers, or with the exit status
// of a child that gave up; what was wrong it has told stderr itself.
func startChild(args []string, stderr io.Writer, sources []string, mountpoint string) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()

	// Not found by $PATH, which may lead into the mount.
	child := exec.Command("/proc/self/exe", args...)
	child.Args[0] = os.Args[0]
	child.Env = append(os.Environ(), childVariable+"=1")
	child.Stdin = strings.NewReader(strings.Join(append([]string{mountpoint}, sources...), "\x00"))
	child.Stderr = stderr
	child.ExtraFiles = []*os.File{write}
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// Locks, pipes and files that the shell had open stay the shell's. A kernel
	// that does not know the call (before 5.11) hands them on.
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)

	// The terminal's Ctrl-C does not reach another session: pass it on.
	signals := make(chan os.Signal, 2)
	notifyEnd(signals)
	err = child.Start()
	write.Close()
	if err != nil {
		return err
	}
	go func() {
		for s := range signals {
			child.Process.Signal(s)
		}
	}()

	if answer, _ := io.ReadAll(read); len(answer) > 0 {
		return child.Process.Release()
	}
	err = child.Wait()
	status, ok := child.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case ok && status.Exited() && status.ExitStatus() != 0:
		return &statusError{status: status.ExitStatus()}
	case ok && status.Signaled() && (status.Signal() == syscall.SIGINT || status.Signal() == syscall.SIGTERM || status.Signal() == syscall.SIGHUP):
		return interrupted() // before it could say so itself
	case err == nil:
		return fmt.Errorf("the process in the background has ended before its mount answered")
	}
	return fmt.Errorf("the process in the background has ended before its mount answered: %w", err)
}

// runChild serves in the background what the parent has checked.
func (m *mount) runChild() error {
	ready := os.NewFile(readyFD, "pipe to the parent")
	unix.CloseOnExec(readyFD)
	os.Unsetenv(childVariable)
	// It was started by a name that ps and pgrep would show as "exe".
	_ = os.WriteFile("/proc/self/comm", []byte("hipofs"), 0)
	names, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	sources := strings.Split(string(names), "\x00")
	mountpoint, sources := sources[0], sources[1:]
	if m.logFile != "" {
		abs, err := absolute([]string{m.logFile})
		if err != nil {
			return err
		}
		m.logFile = abs[0]
	}
	// Not to keep the folder busy that the user happened to be in.
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return m.serve(context.Background(), sources, mountpoint, func(ctx context.Context) error {
		if ctx.Err() != nil {
			return interrupted()
		}
		if err := m.detach(); err != nil {
			return err
		}
		if _, err := ready.WriteString("ready\n"); err != nil {
			return fmt.Errorf("nobody waits for this mount any more: %w", err)
		}
		return ready.Close()
	})
}

// detach lets go of what the child shares with the parent, so that whoever
// waits for the end of the parent's output gets it. A crash still has a place
// to be told if there is a log file, or the journal.
func (m *mount) detach() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	share := []*os.File{null, null, null}
	switch {
	case m.log != nil:
		share[2] = m.log
	case isJournal(m.stderr):
		share = share[:2]
	}
	for fd, f := range share {
		if err := unix.Dup3(int(f.Fd()), fd, 0); err != nil {
			return err
		}
	}
	return nil
}
