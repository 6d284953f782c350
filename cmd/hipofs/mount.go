package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/fs"
	"github.com/hipofs/hipofs/materialize"
)

const mountHelp = `Usage: hipofs [mount] [OPTIONS] SOURCE... MOUNTPOINT

Show the banks of HIPO files, read as one chain, as folders of .npy files.
SOURCE is a file, a folder (its *.hipo), a quoted pattern, an https or s3
address, or @list.txt with one source a line. Returns when the mount answers.

Options:
    -f, --foreground     stay attached; log to standard error
    --until-eof          the same, for programs: say "mounted" on standard
                         output, and end when standard input does
    --banks PATTERN,...  show only these banks, such as 'REC::*,MC::Particle'
    --entries A:B        show entries A to B alone, B excluded
    --require BANK+...   entries with rows in each of these banks
    --tag N+..., --record-tag N+...  entries that have one of these tags
    --memory SIZE        keep SIZE bytes of columns in memory (a quarter of it)
    --threads N          decode N records at once (one a processor)
    --index WHEN         count rows: auto, eager (at once), lazy (when asked)
    --index-dir DIR      keep indexes in DIR (your cache folder otherwise)
    --no-index           neither read nor write an index
    --prefetch NAMES     decode these columns in the background, as far as the
                         memory goes: 'REC::Particle/p*,REC::Calorimeter'
    --cache-dir DIR      keep columns that were read as files in DIR
    --cache-size SIZE    let DIR grow up to SIZE (20G); the least used go
    --names colons|dot   folders are called REC::Particle or REC.Particle
    --on-error fail|skip leave out unreadable files and damaged records: skip
    --max-record SIZE    refuse records that inflate to more (1G)
    --grace TIME         let open files be read on after a signal (20s)
    --log-file FILE      write the log there
    --log-level LEVEL    debug, info, warn, error
    -q, --quiet          say nothing but errors
    -o OPTION,...        allow_other, auto_unmount, debug, fsname=NAME,
                         nonempty; long options as name=value
Each long option is also read from the environment, as HIPOFS_MEMORY.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 a source is unreadable or
damaged, 4 dictionaries in conflict, 5 a cache or index folder is unusable,
6 no FUSE here, 7 the mount point is bad, busy or not empty, 130 interrupted.

    $ hipofs --memory 2G 'run5042.*.hipo' /mnt/run
    >>> numpy.load("/mnt/run/REC::Particle/px.npy", mmap_mode="r")
`

// mount is one mount as its command line describes it.
type mount struct {
	args   []string // the whole command line, for the process in the background
	stderr io.Writer

	chain materialize.Options
	fs    fs.Options

	foreground bool
	device     int  // /dev/fuse, mounted already by who started this process; 0: none
	untilEOF   bool // in the foreground, for as long as standard input is open
	quiet      bool
	logFile    string
	logLevel   slog.Level
	log        *os.File      // the log file; nil: none
	grace      time.Duration // for those who have files open when a signal ends the mount
}

func newMount(name string, args []string, stderr io.Writer) *cobra.Command {
	m := &mount{args: args, stderr: stderr, grace: defaultGrace}
	cmd := &cobra.Command{
		Use:     name + " [OPTIONS] SOURCE... MOUNTPOINT",
		Short:   "mount",
		Long:    mountHelp,
		Args:    knownWord,
		PreRunE: setFromEnvironment,
		RunE: func(cmd *cobra.Command, args []string) error {
			return m.run(args)
		},
	}
	flags := cmd.Flags()
	m.addFlags(flags)
	flags.BoolVarP(&m.foreground, "foreground", "f", false, "")
	flags.BoolVar(&m.untilEOF, "until-eof", false, "")
	flags.Func("grace", "", duration(&m.grace))
	flags.FuncP("o", "o", "", func(s string) error { return m.setMountOptions(flags, s) })
	return cmd
}

// knownWord refuses a single word that is nothing at all: a command, most likely,
// that is called otherwise.
func knownWord(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || !isNothing(args[0]) {
		return nil
	}
	word := args[0]
	if cmd.HasParent() || strings.Contains(word, "/") {
		return failure(statusUsage, "there is no file or folder %s; see %q", word, helpFor(cmd))
	}
	cmd.SuggestionsMinimumDistance = min(2, len(word)/2)
	if near := cmd.SuggestionsFor(word); len(near) > 0 {
		return failure(statusUsage, "there is no command or file %s; did you mean %s?", word, strings.Join(near, " or "))
	}
	return failure(statusUsage, "there is no command or file %s; %q lists the commands", word, "hipofs help")
}

// isNothing says whether a word names nothing that is there, nor could mean files.
func isNothing(word string) bool {
	_, err := os.Lstat(word)
	return errors.Is(err, iofs.ErrNotExist) && word != "" && !strings.HasPrefix(word, "@") &&
		!strings.ContainsAny(word, "*?[") && !strings.HasSuffix(word, ".hipo") && !url.MatchString(word)
}

// addFlags adds the options that every mount has, wherever it is.
func (m *mount) addFlags(flags *pflag.FlagSet) {
	addChainFlags(flags, &m.chain)
	addViewFilter(flags, &m.chain)
	flags.Func("prefetch", "", patterns(&m.chain.Prefetch, materialize.CheckPrefetch))
	addCacheDir(flags, &m.chain.CacheDir)
	flags.Func("cache-size", "", size(&m.chain.CacheSize))
	flags.BoolVarP(&m.quiet, "quiet", "q", false, "")
	flags.StringVar(&m.logFile, "log-file", "", "")
	flags.Func("log-level", "", level(&m.logLevel))
	flags.Func("index", "", func(s string) error {
		mode, ok := indexModes[s]
		if !ok {
			return errors.New("want auto, eager or lazy")
		}
		m.chain.Index = mode
		return nil
	})
	addNames(flags, &m.fs.DotNames)
}

// run checks everything that can be checked while the user is watching, then
// serves, here or in the background.
func (m *mount) run(args []string) error {
	if isChild() {
		return m.runChild()
	}
	m.foreground = m.foreground || m.untilEOF
	if len(args) > 1 && strings.HasPrefix(args[len(args)-1], devicePrefix) {
		return m.serveDevice(args[:len(args)-1], args[len(args)-1])
	}
	sources, mountpoint, err := m.arguments(args)
	if err != nil {
		return err
	}
	if m.untilEOF {
		return m.serveProgram(sources, mountpoint)
	}
	if m.foreground {
		return m.serve(context.Background(), sources, mountpoint, func(context.Context) error { return nil })
	}
	return startChild(m.args, m.stderr, sources, mountpoint)
}

// arguments are the files to read, by absolute names because the process that
// serves goes elsewhere, and the true path of the mount point.
func (m *mount) arguments(args []string) (sources []string, mountpoint string, err error) {
	if len(args) == 0 {
		return nil, "", failure(statusUsage, "which files are to be mounted, and where? see %q", "hipofs help")
	}
	last := args[len(args)-1]
	mounted := isMounted(last)
	if !mounted && isHIPO(last) {
		return nil, "", failure(statusUsage, "where is the mount point? %s is a HIPO file; name a directory after it", materialize.PlainName(last))
	}
	if len(args) == 1 {
		if mounted || isDir(last) {
			return nil, "", failure(statusUsage, "which files are to be mounted on %s? name them before it", last)
		}
		return nil, "", failure(statusUsage, "where is the mount point? name a directory after %s", materialize.PlainName(last))
	}
	files, notes, err := expandSources(args[:len(args)-1])
	if err != nil {
		return nil, "", err
	}
	for _, note := range notes {
		m.note(note)
	}
	if m.chain.CacheDir != "" {
		if err := checkCacheDir(m.chain.CacheDir, last); err != nil {
			return nil, "", err
		}
	}
	needed := slices.DeleteFunc(slices.Clone(files), materialize.IsRemote)
	if m.chain.IndexDir != "" {
		needed = append(needed, m.chain.IndexDir)
	}
	mountpoint, err = prepareMountpoint(last, needed, m.fs.NonEmpty)
	if err != nil {
		return nil, "", err
	}
	sources, err = absolute(files)
	return sources, mountpoint, err
}

// isMounted says whether a mount of ours is at path, without looking into it:
// its process may hang.
func isMounted(path string) bool {
	path, err := truePath(path)
	if err != nil {
		return false
	}
	mount, err := mountAt(path)
	return err == nil && mount != nil && mount.FSType == ourType
}

// isHIPO says whether a name is a HIPO file's, whatever state that is in.
func isHIPO(name string) bool {
	fi, err := os.Stat(name)
	switch {
	case err == nil && fi.IsDir():
		return false
	case strings.HasSuffix(materialize.PlainName(name), ".hipo"):
		return true
	case materialize.IsRemote(name):
		return true
	case err != nil || !fi.Mode().IsRegular():
		return false
	}
	chain, err := materialize.Open(context.Background(), []string{name}, materialize.Options{Index: materialize.IndexLazy})
	if err != nil {
		return false
	}
	chain.Close()
	return true
}

// note tells the user something that is no error.
func (m *mount) note(s string) {
	if !m.quiet {
		fmt.Fprintln(m.stderr, "hipofs: "+printable(s))
	}
}

// Batch systems kill half a minute after they ask; this leaves time to finish
// first.
const defaultGrace = 20 * time.Second

// serveProgram serves a program that has started this one, and whose end is the
// end of standard input, whatever it ends by. Its open files are served on.
func (m *mount) serveProgram(sources []string, mountpoint string) error {
	asked, end := context.WithCancel(context.Background())
	defer end()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	return m.serve(asked, sources, mountpoint, func(context.Context) error {
		_, err := os.Stdout.WriteString("mounted\n")
		return err
	})
}

// serve mounts and answers the kernel until the mount ends: because somebody
// unmounts it, by a signal, or with asked. ready is called once the mount
// answers.
func (m *mount) serve(asked context.Context, sources []string, mountpoint string, ready func(context.Context) error) error {
	// A log whose reader has gone must not end the mount.
	signal.Ignore(syscall.SIGPIPE)
	signal.Ignore(syscall.SIGXFSZ) // nor a limit on the size of files (ulimit -f)
	signals := make(chan os.Signal, 2)
	notifyEnd(signals)
	ctx, interrupt := context.WithCancel(asked)
	defer interrupt()
	go func() {
		<-signals // the first; whoever waits for a second reads the channel
		interrupt()
	}()

	chain, closeChain, err := m.open(ctx, sources, filepath.Join(mountpoint, ".nodes"))
	if err != nil {
		return err
	}
	defer closeChain()
	log := m.fs.Log

	server, err := m.mountAlone(mountpoint, chain)
	if err != nil {
		return err
	}
	what := []any{"mountpoint", mountpoint, "files", len(sources)}
	if n := chain.View().Entries(); n >= 0 { // known without a look into records
		what = append(what, "entries", n)
	}
	log.Info("mounted", what...)
	forgetStart()
	if err := ready(ctx); err != nil {
		// Whoever asked for the mount has gone, or asks no more.
		return errors.Join(err, server.Unmount())
	}

	ended := make(chan struct{})
	go func() {
		server.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		log.Info("unmounted", "mountpoint", mountpoint)
		return nil
	case <-ctx.Done():
	}
	// The name goes now; who has files open may read on for a while.
	if err := server.Retire(); err != nil {
		return fmt.Errorf("%s: %w", mountpoint, err)
	}
	if m.untilEOF {
		os.Stdout.Close() // tells that it has gone
	}
	select {
	case <-ended:
	case <-signals:
	case <-time.After(m.grace):
	}
	log.Info("unmounted", "mountpoint", mountpoint)
	return nil
}

// open opens the log and the chain, and tells what there is to tell about the
// chain; nodes is where the mount will have what no schema describes.
func (m *mount) open(ctx context.Context, sources []string, nodes string) (chain *materialize.Chain, closeChain func(), err error) {
	log, closeLog, err := m.openLog()
	if err != nil {
		return nil, nil, err
	}
	m.chain.Log, m.fs.Log = log, log
	m.fs.Version = programVersion()

	chain, err = openChain(ctx, sources, m.chain)
	if err != nil {
		_ = closeLog()
		return nil, nil, err
	}
	limitMemory(chain.Stats().CacheBudget)
	tellLeftOut(m.stderr, chain)
	if files, bytes := chain.ToFetch(); files > 0 {
		m.note(fmt.Sprintf("no index of %s on a server: counting rows, when they are first asked for, fetches %.3g MB", count(files, "file", "files"), float64(bytes)/1e6))
	}
	if len(chain.View().Banks()) == 0 && !m.logsToStderr() { // the log has it, too
		if len(m.chain.Banks) > 0 {
			m.note("--banks shows no bank of these files; \"hipofs ls\" lists their names")
		} else {
			m.note("no bank of these files has a schema; what they hold is in " + nodes)
		}
	}
	if !m.logsToStderr() { // the log has it, too
		for _, pattern := range chain.View().NoColumns(m.chain.Prefetch) {
			m.note(fmt.Sprintf("--prefetch: no column is called %s; \"hipofs ls\" lists their names", pattern))
		}
	}
	if m.fs.DotNames { // made for where case may not count
		if a, b, ok := caseTwins(chain.View().Banks()); ok {
			m.note(fmt.Sprintf("%s and %s differ in case only; where case does not count (Samba, Windows, macOS), one of them cannot be seen", a, b))
		}
	}
	return chain, func() { chain.Close(); _ = closeLog() }, nil
}

// caseTwins are two banks whose names are one where case does not count.
func caseTwins(banks []*materialize.Bank) (a, b string, ok bool) {
	folded := map[string]string{}
	for _, bank := range banks {
		lower := strings.ToLower(bank.Name)
		if first, ok := folded[lower]; ok {
			return first, bank.Name, true
		}
		folded[lower] = bank.Name
	}
	return "", "", false
}

// devicePrefix is of a mount point that a container's runtime (Apptainer's
// --fusemount) or mount.fuse has mounted already: it hands over the open device.
const devicePrefix = "/dev/fd/"

// serveDevice serves a device that was mounted by who started this process.
func (m *mount) serveDevice(words []string, name string) error {
	device, err := strconv.Atoi(strings.TrimPrefix(name, devicePrefix))
	var st unix.Stat_t
	if err != nil || unix.Fstat(device, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || uint64(st.Rdev) != unix.Mkdev(10, 229) {
		return failure(statusMountpoint, "%s: not an open /dev/fuse, which is what a container's runtime hands over", name)
	}
	if !m.foreground {
		return failure(statusUsage, "%s: what others have mounted is served in the foreground; add -f", name)
	}
	unix.CloseOnExec(device) // whoever has it keeps the mount's readers waiting
	m.device = device
	files, err := sourceFiles(words, m.stderr)
	if err != nil {
		return err
	}
	return m.serve(context.Background(), files, name, func(context.Context) error { return nil })
}

// mountAlone mounts where no other hipofs has mounted meanwhile.
func (m *mount) mountAlone(mountpoint string, chain *materialize.Chain) (*fs.Server, error) {
	unlock := lockMountpoint(mountpoint)
	defer unlock()
	if m.device > 0 {
		return fs.Serve(m.device, "", chain, m.fs)
	}
	if _, err := freeMountpoint(mountpoint, mountpoint); err != nil {
		return nil, err
	}
	return fs.Mount(mountpoint, chain, m.fs)
}

// notifyEnd sends the signals that end a mount to c.
func notifyEnd(c chan<- os.Signal) {
	for _, s := range endSignals() {
		signal.Notify(c, s)
	}
}

func interrupted() error { return failure(statusInterrupted, "interrupted") }

// openChain opens sources; what goes wrong has its exit status. It does not
// outlast ctx: a file server that hangs holds up an open(2) beyond any signal.
func openChain(ctx context.Context, sources []string, o materialize.Options) (*materialize.Chain, error) {
	type result struct {
		chain *materialize.Chain
		err   error
	}
	opened := make(chan result, 1)
	go func() {
		chain, err := materialize.Open(ctx, sources, o)
		opened <- result{chain, err}
	}()
	var r result
	select {
	case <-ctx.Done():
		return nil, interrupted()
	case r = <-opened:
	}
	var dictionary *materialize.DictionaryError
	var cache *materialize.CacheError
	var where *materialize.WhereError
	switch {
	case r.err == nil:
		return r.chain, nil
	case ctx.Err() != nil:
		return nil, interrupted()
	case errors.As(r.err, &dictionary), errors.As(r.err, &cache), errors.As(r.err, &where):
		return nil, r.err
	}
	return nil, failure(statusSource, "%s", errorLine(r.err))
}

// tellLeftOut says what --on-error=skip has cost. That is never kept quiet.
func tellLeftOut(w io.Writer, chain *materialize.Chain) {
	for _, f := range chain.Files() {
		if f.LeftOut == "" {
			continue
		}
		line := f.LeftOut // most name the file already
		if !strings.Contains(line, f.Name) {
			line = f.Name + ": " + line
		}
		line += "; left out"
		if f.Lost > 0 {
			line += ", with " + count(f.Lost, "event", "events")
		}
		fmt.Fprintln(w, "hipofs: "+printable(line))
	}
}

// What a mount may have in memory beside the budget; and how much of it are the
// pages of the program itself, which the garbage collector does not count.
const (
	allowance = 64 << 20
	ownPages  = 16 << 20
)

// limitMemory makes the garbage collector work harder before the process
// exceeds what its user granted: the budget of columns, and a small constant
// for all the rest.
func limitMemory(budget int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(budget + allowance - ownPages)
	}
	if os.Getenv("GOGC") == "" {
		// Columns are large and hold no pointers: collecting is cheap, waiting for as
		// much garbage as there are columns is not.
		debug.SetGCPercent(30)
	}
}
