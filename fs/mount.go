package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/materialize"
)

// Options of a mount; the zero value is useful.
type Options struct {
	Log         *slog.Logger // nil: discard
	Version     string       // what .hipofs/version says
	DotNames    bool         // show REC::Particle as REC.Particle
	FSName      string       // the source that mount and df show; "": hipofs
	AllowOther  bool         // let other users in, as far as the modes of the sources go
	AutoUnmount bool         // leave a process behind that unmounts when this one has died
	NonEmpty    bool         // mount over a directory that is not empty
	Debug       bool         // log every request and answer
	Private     bool         // owner is who mounts and modes are 0400, whatever those of the sources
}

// NoFUSEError says why this machine does not let this process mount, and what
// to do about it.
type NoFUSEError struct{ Msg string }

func (e *NoFUSEError) Error() string { return e.Msg }

// MountPointError says what is wrong with the directory to mount on.
type MountPointError struct {
	Path string
	Msg  string
}

func (e *MountPointError) Error() string { return e.Path + ": " + e.Msg }

const (
	// requestSize bounds one read.
	requestSize = 1 << 20

	// forever is how long the kernel may keep names, and sizes that are known:
	// nothing of a mount changes while it is mounted.
	forever = 24 * time.Hour

	// A name that does not exist never will; the kernel may still forget it
	// soon, as the names that programs try out are many.
	absentFor = time.Second

	// More reads may wait than the dozen that is the kernel's default: one that
	// waits for a decode must not hold up those of what is cached. Each has a
	// buffer of requestSize.
	maxBackground = 32
)

// Server is a mounted chain. Its methods may be called from any goroutine.
type Server struct {
	conn   *connection
	tree   *tree // what Retire retires
	server *fuse.Server
	served chan struct{} // closed when the kernel has let go of the mount
	unmu   sync.Mutex    // one unmounts at a time
}

// Mount shows the chain on the directory mountpoint. It returns when the mount
// answers. Errors: *NoFUSEError, *MountPointError.
//
// The chain stays the caller's, to be closed after Wait has returned.
func Mount(mountpoint string, chain *materialize.Chain, o Options) (*Server, error) {
	dir, err := filepath.Abs(mountpoint)
	if err != nil {
		return nil, err
	}
	if err := checkMountPoint(dir, o.NonEmpty); err != nil {
		return nil, err
	}

	conn, err := connect(dir, o)
	if err != nil {
		return nil, err
	}
	s, err := show(conn, deviceAt(dir), chain, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return s, nil
}

// Serve shows the chain on a device that Attach has mounted in the namespace of
// another process; number is the MAJOR:MINOR that its table of mounts has. It
// returns when the mount answers, which then ends with its namespace or with
// this process: Unmount does nothing.
func Serve(device int, number string, chain *materialize.Chain, o Options) (*Server, error) {
	return show(&connection{fd: device}, number, chain, o)
}

// show shows the chain on a connection; number is that of its device. It returns
// when the mount answers.
func show(conn *connection, number string, chain *materialize.Chain, o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ahead := new(readAhead)
	root := newRoot(chain, o, ahead)
	s, err := serve(conn, root, o)
	if err != nil {
		return nil, err
	}
	s.tree = root.tree
	ahead.find(number)
	root.through.try(s.server, chain.CacheProbe())
	return s, nil
}

// serve answers the kernel's requests with the tree below root. It returns when
// the mount answers, and unmounts when it fails.
func serve(conn *connection, root fusefs.InodeEmbedder, o Options) (*Server, error) {
	long, short := forever, absentFor
	logger := slog.NewLogLogger(o.Log.Handler(), slog.LevelInfo)
	opts := &fusefs.Options{
		MountOptions: fuse.MountOptions{
			Name:                     "hipofs",
			MaxWrite:                 requestSize, // bounds reads as well
			MaxReadAhead:             smallReadAhead,
			MaxBackground:            maxBackground,
			DisableReadDirPlus:       true, // it looks up what it lists, and so would wait for sizes
			ExplicitDataCacheControl: true, // contents never change
			DisableSplice:            true, // reads are answered out of memory
			// No EnableSymlinkCaching: a finished file may have gone since its link was read.
			Debug:        o.Debug,
			Logger:       logger,
			PanicHandler: (&panics{log: o.Log}).handle,
		},
		EntryTimeout:    &long,
		NegativeTimeout: &short,
		// No AttrTimeout: it would stand in for the timeout of 0 that a size
		// which is not known yet has.
		NullPermissions: true,
		RootStableAttr:  &fusefs.StableAttr{Ino: rootIno},
		Logger:          logger,
	}
	// NewServer answers the kernel's INIT before it returns. That is enough to
	// know: whoever asks the mount from the process that serves it cannot be
	// killed while it waits, as the kernel waits for the answer with it.
	server, err := fuse.NewServer(backed{fusefs.NewNodeFS(root, opts)}, fmt.Sprintf("/dev/fd/%d", conn.fd), &opts.MountOptions)
	if err != nil {
		_ = conn.detach()
		return nil, err
	}
	s := &Server{conn: conn, server: server, served: make(chan struct{})}
	go func() {
		server.Serve()
		conn.release()
		close(s.served)
	}()
	return s, nil
}

// Retire ends the mount for all but those who have something of it open.
// Nothing more is opened, and no work goes on that nobody waits for; then it
// does as Unmount.
func (s *Server) Retire() error {
	s.tree.border.retired.Store(true)
	s.tree.chain.Retire()
	return s.Unmount()
}

// Unmount ends the mount. Where somebody still uses it, it disappears from the
// tree at once, and Wait returns when the last user has gone.
func (s *Server) Unmount() error {
	s.unmu.Lock()
	defer s.unmu.Unlock()
	select {
	case <-s.served: // somebody else has unmounted it, and another mount may be there now
		return nil
	default:
	}
	return s.conn.detach()
}

// Wait returns when the mount is gone, whoever ended it.
func (s *Server) Wait() { <-s.served }

func checkMountPoint(dir string, nonEmpty bool) error {
	bad := func(format string, args ...any) error {
		return &MountPointError{dir, fmt.Sprintf(format, args...)}
	}
	d, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return bad("no such directory; create it first: mkdir -p %s", dir)
	case errors.Is(err, syscall.ENOTCONN):
		return bad("a mount whose server has died; remove it first: hipofs umount %s", dir)
	case errors.Is(err, syscall.ENOTDIR):
		return bad("not a directory; choose another mount point")
	case err != nil:
		return bad("%v", errors.Unwrap(err))
	}
	defer d.Close()
	if names, _ := d.Readdirnames(1); len(names) > 0 && !nonEmpty {
		return bad("not empty: a mount would hide %q; choose another directory, or add -o nonempty", names[0])
	}
	return nil
}

// uninterrupted repeats a system call that a signal has cut short.
func uninterrupted(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
