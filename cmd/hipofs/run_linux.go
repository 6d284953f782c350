package main

import (
	"context"
	"errors"
	"io"
	iofs "io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/fs"
)

const runHelp = `Usage: hipofs run [OPTIONS] SOURCE... -- COMMAND...

Run a command that finds the files mounted in the folder $HIPOFS_MNT. The mount
is in namespaces that only the command and what it starts can see; it needs
neither root nor fusermount3, and ends with the command, however that ends.
Files have the mode 0400 and are yours.

Options, as of "hipofs mount":
    --banks PATTERN,...  show only these banks, such as 'REC::*,MC::Particle'
    --entries A:B        show entries A to B alone, B excluded
    --require BANK+...   entries with rows in each of these banks
    --tag N+..., --record-tag N+...  entries that have one of these tags
    --memory SIZE        keep up to SIZE bytes of columns in memory (512M, 2GB)
    --threads N          decode N records at once (one a processor)
    --index WHEN         count rows: auto, eager (at once), lazy (when asked)
    --index-dir DIR      keep indexes in DIR (your cache folder otherwise)
    --no-index           neither read nor write an index
    --prefetch NAMES     decode these columns in the background
    --cache-dir DIR      keep columns that were read as files in DIR
    --cache-size SIZE    let DIR grow up to SIZE (20G)
    --names colons|dot   folders are called REC::Particle or REC.Particle
    --on-error fail|skip leave out unreadable files and damaged records: skip
    --max-record SIZE    refuse records that inflate to more (1G)
    --log-file FILE      write the log there
    --log-level LEVEL    debug, info, warn (otherwise), error
    -q, --quiet          say nothing but errors

Exit status: that of the command, 128+N if signal N ended it, 126 if it cannot
be run, 127 if there is none; before it runs those of "hipofs mount": 2 wrong
usage, 3 a source is unreadable, 4 dictionaries in conflict, 5 a cache or index
folder is unusable, 6 no FUSE here.

    $ hipofs run 'run5042.*.hipo' -- python analysis.py
    $ hipofs run run5042.hipo -- sh -c 'ls "$HIPOFS_MNT/REC::Particle"'
`

// What shells say when there is no command to run, and when it cannot be.
const (
	statusNotExecutable = 126
	statusNotFound      = 127
	statusSignal        = 128 // and the signal's number
)

func newRun(stderr io.Writer) *cobra.Command {
	// It is watched as a mount in the foreground is, but the terminal is the
	// command's.
	m := &mount{stderr: stderr, foreground: true, logLevel: slog.LevelWarn}
	m.fs.Private = true
	cmd := &cobra.Command{
		Use:     "run [OPTIONS] SOURCE... -- COMMAND...",
		Short:   "run a command with the files mounted for it alone",
		Long:    runHelp,
		Args:    cobra.ArbitraryArgs,
		PreRunE: setFromEnvironment,
		RunE: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			const form = "hipofs run SOURCE... -- COMMAND..."
			switch {
			case dash < 0:
				return failure(statusUsage, "which command is to be run? put -- before it: %s", form)
			case dash == 0:
				return failure(statusUsage, "which files are to be mounted? name them before --: %s", form)
			case dash == len(args):
				return failure(statusUsage, "which command is to be run? name it after --: %s", form)
			}
			return m.runCommand(args[:dash], args[dash:])
		},
	}
	m.addFlags(cmd.Flags())
	return cmd
}

// runCommand serves the words' files for as long as a command runs, and fails
// with the command's status.
func (m *mount) runCommand(words, command []string) error {
	program, err := findProgram(command[0])
	if err != nil {
		return err
	}
	files, notes, err := expandSources(words)
	if err != nil {
		return err
	}
	for _, note := range notes {
		m.note(note)
	}
	// The command may go elsewhere, but this process does not.
	ended := make(chan os.Signal, 1)
	notifyEnd(ended)
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	go func() {
		<-ended
		interrupt()
	}()
	chain, closeChain, err := m.open(ctx, files, "$HIPOFS_MNT/.nodes")
	if err != nil {
		return err
	}
	defer closeChain()

	// From here on, signals are the command's.
	signals := make(chan os.Signal, 16)
	notifyPassed(signals)
	signal.Stop(ended)
	if ctx.Err() != nil {
		return interrupted()
	}
	guest, err := startGuest(command, os.Stderr)
	if err != nil {
		return err
	}
	if _, err := fs.Serve(guest.device, guest.number, chain, m.fs); err != nil {
		if ws := guest.dismiss(); ws.Signaled() { // which takes the mount away
			return &statusError{status: exitStatus(ws)}
		}
		return err
	}
	forgetStart()
	guest.release(program)
	if status := exitStatus(guest.wait(signals)); status != 0 {
		return &statusError{status: status} // the command has told what there is to tell
	}
	return nil
}

// findProgram is where the command's program is, by $PATH as a shell does it.
func findProgram(name string) (string, error) {
	program, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot): // whose $PATH has "." wants it
		return program, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, iofs.ErrNotExist):
		return "", failure(statusNotFound, "%s: no such command", name)
	}
	return "", failure(statusNotExecutable, "%s: %v", name, rootCause(err))
}

// exitStatus is what a shell would call the end of a process.
func exitStatus(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return statusSignal + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// passedSignals are what the command hears when it is sent to this process.
var passedSignals = []os.Signal{
	syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGWINCH,
}

// notifyPassed sends them to c, but for those that this process was started
// deaf to, to which the command then is, too. Writing to a pipe that nobody
// reads must not end this process; were that signal ignored here, it would be
// in the command.
func notifyPassed(c chan<- os.Signal) {
	for _, s := range append(passedSignals, syscall.SIGPIPE) {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
}

// wait passes signals on until the command has ended.
func (g *guest) wait(signals <-chan os.Signal) syscall.WaitStatus {
	changes := make(chan syscall.WaitStatus)
	go func() {
		for {
			var ws syscall.WaitStatus
			_, err := syscall.Wait4(g.process.Pid, &ws, syscall.WUNTRACED, nil)
			if err == syscall.EINTR {
				continue
			}
			changes <- ws
			if !ws.Stopped() {
				return
			}
		}
	}()
	for {
		select {
		case s := <-signals:
			if s != syscall.SIGPIPE && !sentByTerminal(s) {
				g.process.Signal(s)
			}
		case ws := <-changes:
			if !ws.Stopped() {
				return ws
			}
			// A shell that has started both watches this process. Where there is none,
			// nobody would wake it, and the command's reads would wait for it.
			if hasTerminal() {
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			}
		}
	}
}

// sentByTerminal says whether a signal is one that the terminal sends to all
// processes of the job in front, and so to the command as well.
func sentByTerminal(s os.Signal) bool {
	switch s {
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGWINCH:
	default:
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	front, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && front == unix.Getpgrp()
}

// hasTerminal says whether this process belongs to a terminal.
func hasTerminal() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	tty.Close()
	return true
}
