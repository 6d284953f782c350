package fs

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// passthrough is whether the kernel may read finished files by itself.
type passthrough struct {
	server atomic.Pointer[fuse.Server] // nil: it may not
	why    atomic.Pointer[string]      // not; nil: the kernel has not been asked
	opens  atomic.Int64                // of columns that the kernel was to read by itself
	reads  atomic.Int64                // of such that came here all the same
}

// PassthroughStats is what stats.json says of it.
type PassthroughStats struct {
	On    bool   `json:"on"`
	Why   string `json:"why,omitempty"` // it is off
	Opens int64  `json:"opens"`
	Reads int64  `json:"reads"` // that hipofs had to answer for those
}

func (p *passthrough) stats() PassthroughStats {
	s := PassthroughStats{On: p.server.Load() != nil, Opens: p.opens.Load(), Reads: p.reads.Load()}
	if why := p.why.Load(); !s.On && why != nil {
		s.Why = *why
	}
	return s
}

func (p *passthrough) off(format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	p.why.Store(&why)
}

// try finds out whether the kernel takes a file of the cache folder.
func (p *passthrough) try(server *fuse.Server, probe *os.File) {
	if probe == nil {
		p.off("there is no cache folder; mount with --cache-dir")
		return
	}
	defer probe.Close()
	if server.KernelSettings().Flags64()&fuse.CAP_PASSTHROUGH == 0 {
		p.off("this kernel has none; Linux has it from 6.9 on")
		return
	}
	id, errno := registerBacking(server, probe)
	if errno != 0 {
		p.off("the kernel refuses it (%v); it takes CAP_SYS_ADMIN, and a cache folder that is on no overlay", errno)
		return
	}
	unregisterBacking(server, id)
	p.server.Store(server)
}

// register gives a file to the kernel, which names it by a number from 1 on; 0
// where it must be read through this process.
func (p *passthrough) register(f *os.File) int32 {
	server := p.server.Load()
	if server == nil {
		return 0
	}
	id, errno := registerBacking(server, f)
	if errno != 0 || id >= 1<<(32-backingShift) {
		return 0
	}
	return id
}

// backingShift is above all flags of an open. A node has no other room for the
// number of the file that it tells the kernel.
const backingShift = 8

// backed is a file system whose opens say by which file the kernel is to read.
// go-fuse's own way counts such opens for itself, and loses count when a file
// changes from one way to the other between a Release and its end.
type backed struct{ fuse.RawFileSystem }

func (b backed) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	status := b.RawFileSystem.Open(cancel, in, out)
	if out.OpenFlags&fuse.FOPEN_PASSTHROUGH != 0 {
		out.BackingID = int32(out.OpenFlags >> backingShift)
		out.OpenFlags &= 1<<backingShift - 1
	}
	return status
}

// opens counts who has a column open. For one file, the kernel takes either opens
// that go through its page cache or those that it passes through to one other
// file, and fails the rest (EIO): so the way changes only while nobody has it open.
type opens struct {
	mu      sync.Mutex
	n       int
	file    *os.File // finished; nil: the column is made as it is read
	backing int32    // by which number the kernel reads file by itself; 0: it does not
}

// opened is the handle of a column, so that go-fuse tells when it is released.
type opened struct{}

// add counts an open, and gives the flags that the kernel is told. It takes over
// the finished file, if there is one.
func (o *opens) add(finished *os.File, p *passthrough) uint32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n++
	switch {
	case o.n == 1 && finished != nil:
		o.file, o.backing = finished, p.register(finished)
	case finished == nil:
	case o.file == nil:
		o.file = finished // from now on for everybody
	default:
		finished.Close()
	}
	if o.backing == 0 {
		return fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH
	}
	p.opens.Add(1)
	return fuse.FOPEN_PASSTHROUGH | fuse.FOPEN_NOFLUSH | uint32(o.backing)<<backingShift
}

// remove counts the end of an open. It reports whether that was the last.
func (o *opens) remove(p *passthrough) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n--; o.n > 0 {
		return false
	}
	if o.backing != 0 {
		unregisterBacking(p.server.Load(), o.backing)
	}
	if o.file != nil {
		o.file.Close()
	}
	o.file, o.backing = nil, 0
	return true
}

// finished is the file that reads are answered from, as long as one is open. It
// counts those that the kernel should have answered by itself.
func (o *opens) finished(p *passthrough) *os.File {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.backing != 0 {
		p.reads.Add(1)
	}
	return o.file
}
