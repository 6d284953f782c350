// Command hipofs shows the banks of HIPO files as folders of .npy files.
//
// It has words with the user: options become calls of packages fs and
// materialize, errors become one line and an exit status. What it knows beyond
// that is about processes and mount points, not about HIPO.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hipofs/hipofs/fs"
	"github.com/hipofs/hipofs/hipo"
	"github.com/hipofs/hipofs/materialize"
)

// The kernel wakes a process's first thread for a signal, and Go's handlers run
// nowhere else then. That thread must not be the one that a hanging file server
// holds up, so it is left to the main goroutine, which waits and opens nothing.
func init() { runtime.LockOSThread() }

func main() {
	if isGuest() {
		err := runGuest(os.Args[1:])
		tell(err, os.Stderr)
		os.Exit(status(err))
	}
	if isHelper(os.Args[0]) {
		os.Args[0] = "hipofs" // as which it goes on in the background
		os.Exit(runHelper(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// What the command's end says, beside 0 for done.
const (
	statusFailed      = 1
	statusUsage       = 2
	statusSource      = 3 // unreadable or damaged
	statusDictionary  = 4 // two sources contradict each other
	statusFolder      = 5 // a cache or index folder that was asked for is unusable
	statusNoFUSE      = 6
	statusMountpoint  = 7 // bad, busy or not empty
	statusInterrupted = 130
)

// statusError is an error with an exit status of its own. One without a
// message has been told already, by the process in the background.
type statusError struct {
	status int
	msg    string
}

func (e *statusError) Error() string { return e.msg }

func failure(status int, format string, args ...any) error {
	return &statusError{status, fmt.Sprintf(format, args...)}
}

// run is the whole command as a function of its arguments. Errors go to stderr
// as one line; the result is the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	if os.Getuid() != os.Geteuid() || os.Getgid() != os.Getegid() {
		fmt.Fprintln(stderr, "hipofs: this program is setuid or setgid, and would show files that its caller may not read; as root: chmod ug-s on it")
		return statusFailed
	}
	root := newMount("hipofs", args, stderr)
	root.Long = rootHelp
	root.Version = programVersion()
	root.SetVersionTemplate(versionLine())
	root.AddCommand(
		newMount("mount", args, stderr),
		newRun(stderr),
		newUmount(),
		newLs(stderr),
		newShow(stderr),
		newIndex(stderr),
		newExport(stderr),
		newSkim(stderr),
		newPack(stderr),
		newCache(stderr),
		newCheck(stderr),
		newReport(stderr),
		newStats(),
		newDoctor(),
		newDemo(stderr),
		newVersion(),
		newCompletion(),
		newMan(),
	)
	root.SetHelpCommand(newHelp())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpTemplate("{{.Long}}")
	root.SetFlagErrorFunc(flagError)

	err := root.Execute()
	if err == nil {
		return 0
	}
	tell(err, stderr)
	return status(err)
}

// tell tells an error, unless it has been told.
func tell(err error, stderr io.Writer) {
	if line := errorLine(err); line != "" {
		fmt.Fprintln(stderr, "hipofs: "+line)
	}
}

// status is the exit status that belongs to an error.
func status(err error) int {
	var own *statusError
	var dictionary *materialize.DictionaryError
	var save *materialize.SaveError
	var cache *materialize.CacheError
	var format *hipo.FormatError
	var noFUSE *fs.NoFUSEError
	var mountpoint *fs.MountPointError
	var where *materialize.WhereError
	switch {
	case errors.As(err, &own):
		return own.status
	case errors.As(err, &where):
		return statusUsage
	case errors.As(err, &dictionary):
		return statusDictionary
	case errors.As(err, &save), errors.As(err, &cache):
		return statusFolder
	case errors.As(err, &format):
		return statusSource
	case errors.As(err, &noFUSE):
		return statusNoFUSE
	case errors.As(err, &mountpoint):
		return statusMountpoint
	}
	return statusFailed
}

// untilSignal is a context that ends when the user, the system or the closing of
// a terminal wants the command to.
func untilSignal() (ctx context.Context, stop context.CancelFunc) {
	signals := endSignals()
	if len(signals) == 0 { // which would mean all
		return context.WithCancel(context.Background())
	}
	return signal.NotifyContext(context.Background(), signals...)
}

// endSignals are the signals that end a command, but for those that this process
// was started deaf to (nohup, a shell's background job).
func endSignals() (signals []os.Signal) {
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signals = append(signals, s)
		}
	}
	return signals
}

// errorLine is an error as users read it: one line, the file first.
func errorLine(err error) string {
	if pe, ok := err.(*iofs.PathError); ok {
		return printable(pe.Path + ": " + pe.Err.Error())
	}
	return printable(err.Error())
}

// rootCause is what the system said.
func rootCause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// printable escapes what would break a line or steer a terminal. Names of
// banks and files are somebody else's text.
func printable(s string) string {
	if strings.IndexFunc(s, unprintable) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unprintable(r) {
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// flagError tells what is wrong with an option, and where options are listed.
func flagError(cmd *cobra.Command, err error) error {
	var own *statusError
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		name := "--" + unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() != "" {
			name = "-" + unknown.GetSpecifiedName()
		}
		return failure(statusUsage, "unknown option %s; %q lists the options", name, helpFor(cmd))
	case errors.As(err, &missing):
		return failure(statusUsage, "option %s needs a value; %q explains it", dashed(missing.GetFlag()), helpFor(cmd))
	case errors.As(err, &own):
		return own // says what it is about, and has a status of its own
	case errors.As(err, &invalid):
		// -o names the mount option itself.
		if invalid.GetFlag().Name == "o" {
			return failure(statusUsage, "%v", invalid.Unwrap())
		}
		return failure(statusUsage, "%s %s: %v", dashed(invalid.GetFlag()), invalid.GetValue(), wanted(invalid.Unwrap()))
	}
	return failure(statusUsage, "%v; %q lists the options", err, helpFor(cmd))
}

// dashed is an option as one types it.
func dashed(f *pflag.Flag) string {
	if len(f.Name) == 1 {
		return "-" + f.Name
	}
	return "--" + f.Name
}

// helpFor is the command line that explains cmd.
func helpFor(cmd *cobra.Command) string {
	if cmd.HasParent() {
		return "hipofs help " + cmd.Name()
	}
	return "hipofs help mount"
}

// usage wants a number of arguments, or says what should be there.
func usage(min, max int, want string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < min || len(args) > max {
			return failure(statusUsage, "%s; see %q", want, helpFor(cmd))
		}
		return nil
	}
}

const rootHelp = `Usage: hipofs [mount] [OPTIONS] SOURCE... MOUNTPOINT
       hipofs COMMAND [OPTIONS] ARGUMENTS...

Show the banks of HIPO files, read as one chain, as folders of .npy files.
Returns when the mount answers; "hipofs umount MOUNTPOINT" ends it.

    MOUNTPOINT/BANK/COLUMN.npy    the column's values in all events, end to end
    MOUNTPOINT/BANK/offsets.npy   where each event's rows begin; last: row count

Commands ("hipofs help COMMAND" explains one):
    mount         mount; what hipofs does where no command is named
    run           run a command with the files mounted for it alone
    umount        unmount
    ls            list banks, columns, rows
    show          print one event
    index         build the index of each file, so that mounts open at once
    export        write banks as files to a folder
    skim          write entries and banks to a new HIPO file
    pack          make a HIPO file of a folder of .npy files
    check         read every byte of files, and tell what is damaged
    report        write a page about files
    stats         tell what a mount is doing
    doctor        look whether this machine can mount
    demo          mount a small file, look at it, and unmount it
    cache         list, compare and remove what mounts keep on disk
    version       print the version
    completion    print a completion script for a shell
    help          print this text

SOURCE is a file, a folder (its *.hipo), a quoted pattern or @list.txt; one
named like a command is written ./run.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 a source is unreadable or
damaged, 4 dictionaries in conflict, 5 a cache or index folder is unusable,
6 no FUSE here, 7 the mount point is bad, busy or not empty, 130 interrupted.

    $ hipofs run5042.*.hipo /mnt/run
    >>> numpy.load("/mnt/run/REC::Particle/px.npy", mmap_mode="r")
    $ hipofs umount /mnt/run
`

func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "explain a command",
		Long:  rootHelp,
		Args:  usage(0, 1, "help explains one command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Root().Help()
			}
			for _, c := range cmd.Root().Commands() {
				if c.Name() == args[0] {
					return c.Help()
				}
			}
			return failure(statusUsage, "there is no command %s; %q lists them", args[0], "hipofs help")
		},
	}
}
