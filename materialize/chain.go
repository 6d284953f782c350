package materialize

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"log/slog"
	"path"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hipofs/hipofs/hipo"
)

// IndexMode says when the pass that counts rows starts.
type IndexMode int

const (
	IndexAuto  IndexMode = iota // at once when the chain is under 4 GB, else on first need
	IndexEager                  // at once
	IndexLazy                   // on first need
)

// autoLimit is the size of the chains that IndexAuto counts at once.
const autoLimit = 4 << 30

// Options of a chain; the zero value is useful.
type Options struct {
	Memory    int64        // bytes of columns kept in memory; 0: DefaultMemory
	Threads   int          // records decoded at once; 0: one a processor
	MaxRecord int64        // ceiling on one inflated record or stream, bytes; 0: 1 GiB
	Banks     []string     // patterns (path.Match) of the banks to show; nil: all
	Skip      bool         // leave out unreadable files and damaged records
	Index     IndexMode    // when to count
	Log       *slog.Logger // nil: discard
}

// Chain is the given files in order, read as one. It is safe for concurrent use.
type Chain struct {
	sources []*source
	infos   []FileInfo // of every file given, also those left out
	view    *View
	banks   dictionary
	m       *materializer
	faults  *faults
	log     *slog.Logger

	descriptors *descriptors

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // background passes
}

// FileInfo describes one source. JSON as in files.json, but for what stat gave.
type FileInfo struct {
	Name    string        `json:"name"` // as given
	Size    int64         `json:"size"`
	Records int           `json:"records"`
	Entries int64         `json:"entries"`
	First   int64         `json:"first_entry"`           // number of its first entry in the chain
	LeftOut string        `json:"left_out,omitempty"`    // why the file, or some of its records, are not served
	Lost    int64         `json:"lost_events,omitempty"` // events of its damaged records
	ModTime time.Time     `json:"-"`
	Mode    iofs.FileMode `json:"-"`
	UID     uint32        `json:"-"`
	GID     uint32        `json:"-"`
}

// source is one file of a chain.
type source struct {
	chain   *Chain
	number  int32
	info    *FileInfo
	file    *hipo.File
	plan    *plan
	runs    []run
	entries int64
	first   int64 // number in the chain of its first entry

	start   sync.Once
	counted chan struct{}     // closed when the pass is through
	tables  map[bankID]*table // written before counted is closed
	fault   error             // a damaged record: nothing of the file can be counted

	mu       sync.Mutex
	verified map[columnKey]error // columns of split records whose streams have all been tried; nil: good
}

// columnKey names a column of a bank.
type columnKey struct {
	bank   bankID
	column int32
}

// Open opens the named files in order. It checks headers, dictionaries and the
// ends of all of them and, with Options.Skip, every record.
//
// Errors: a *DictionaryError, a *hipo.FormatError, an error of the operating
// system about a file, or the context's.
func Open(ctx context.Context, names []string, o Options) (*Chain, error) {
	if len(names) == 0 {
		return nil, errors.New("no files")
	}
	for _, pattern := range o.Banks {
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, fmt.Errorf("bank pattern %q: %w", pattern, err)
		}
	}
	c := &Chain{log: o.Log, descriptors: newDescriptors()}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.faults = &faults{log: c.log}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	threads := cmp.Or(o.Threads, runtime.GOMAXPROCS(0))

	if err := c.openFiles(ctx, names, o, threads); err != nil {
		c.Close()
		return nil, err
	}
	if err := c.banks.unite(c.sources, o.Banks); err != nil {
		c.Close()
		return nil, err
	}
	c.warn()
	if o.Skip {
		if err := c.verify(ctx, threads); err != nil {
			c.Close()
			return nil, err
		}
	}
	c.layOut()
	c.m = newMaterializer(c, cmp.Or(o.Memory, DefaultMemory()), threads)
	c.view = newView(c, c.sources, c.banks.visible)
	var size int64
	for _, s := range c.sources {
		size += s.file.Size
	}
	if o.Index == IndexEager || o.Index == IndexAuto && size < autoLimit {
		c.countAll(threads)
	}
	return c, nil
}

// openFiles fills infos and sources.
func (c *Chain) openFiles(ctx context.Context, names []string, o Options, threads int) error {
	c.infos = make([]FileInfo, len(names))
	files := make([]*hipo.File, len(names))
	faults := make([]error, len(names))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4 * threads) // opening waits for the disk more than for the processor
	for i, name := range names {
		g.Go(func() error {
			if err := gctx.Err(); err != nil {
				return err
			}
			c.infos[i] = FileInfo{Name: name}
			h, st, err := newHandle(name, c.descriptors)
			if st != nil {
				c.infos[i].fill(st)
			}
			if err == nil {
				files[i], err = hipo.NewFile(name, h, h.id.size, hipo.Options{MaxRecord: o.MaxRecord, Salvage: o.Skip})
			}
			faults[i] = err
			return nil
		})
	}
	err := g.Wait()
	for i, f := range files {
		if f != nil {
			c.sources = append(c.sources, &source{
				chain: c, number: int32(len(c.sources)), info: &c.infos[i], file: f,
				counted: make(chan struct{}), verified: map[columnKey]error{},
			})
		}
	}
	if err != nil {
		return err
	}
	for i, err := range faults {
		if err == nil {
			continue
		}
		c.infos[i].LeftOut = err.Error()
		if !o.Skip || len(c.sources) == 0 {
			return err
		}
		c.faults.add(err)
	}
	return nil
}

func (f *FileInfo) fill(st iofs.FileInfo) {
	f.Size, f.ModTime, f.Mode = st.Size(), st.ModTime(), st.Mode()
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		f.UID, f.GID = sys.Uid, sys.Gid
	}
}

// warn says what is odd about the dictionaries.
func (c *Chain) warn() {
	for _, s := range c.sources {
		if len(s.file.Dictionary.Schemas) == 0 && len(s.file.Records) > 0 {
			c.log.Warn(s.file.Name + ": no dictionary; its structures are below .nodes")
		}
		for _, why := range s.file.Dictionary.Dropped {
			// A schema that carries settings past readers which need one beside them (format.md 15.1).
			if !strings.Contains(why, "hipo::meta") {
				c.log.Warn(s.file.Name + ": dictionary: " + why)
			}
		}
		for _, err := range s.file.Damage {
			c.faults.add(err)
			s.info.LeftOut = err.Error()
		}
	}
}

// layOut cuts the records of every file into runs and numbers the entries.
func (c *Chain) layOut() {
	var first int64
	for _, s := range c.sources {
		s.runs = makeRuns(s.file.Records)
		s.first = first
		for _, r := range s.runs {
			s.entries += r.entries
		}
		first += s.entries
		s.info.Records, s.info.Entries, s.info.First = len(s.file.Records), s.entries, s.first
	}
}

// Close stops background work and closes the files.
func (c *Chain) Close() error {
	c.cancel()
	c.work.Wait()
	c.descriptors.close()
	return nil
}

// View is the whole chain.
func (c *Chain) View() *View { return c.view }

// Files describes every file given, in order, also those that are left out.
func (c *Chain) Files() []FileInfo { return c.infos }

// Errors are the distinct faults met so far, oldest first.
func (c *Chain) Errors() []ErrorInfo { return c.faults.all() }
