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
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hipofs/hipofs/hipo"
)

// IndexMode says when the pass that counts rows starts.
type IndexMode int

const (
	IndexAuto  IndexMode = iota // soon when the chain is under 4 GB, no server has it and View is all of it, else on first need
	IndexEager                  // at once
	IndexLazy                   // on first need
)

// IndexAuto counts chains up to autoLimit unasked. It begins at once, and stops
// after headStart inflated bytes for autoDelay: a program that reads at once
// says by then what it is after, and the rest of the pass keeps just that.
const (
	autoLimit = 4 << 30
	autoDelay = 300 * time.Millisecond
	headStart = 64 << 20
)

// Options of a chain; the zero value is useful.
type Options struct {
	Memory    int64    // bytes of columns kept in memory; 0: DefaultMemory
	Threads   int      // records decoded at once; 0: one a processor
	MaxRecord int64    // ceiling on one inflated record or stream, bytes; 0: 1 GiB
	Banks     []string // patterns (path.Match) of the banks to show; nil: all
	Skip      bool     // leave out unreadable files and damaged records; indexes are compared with, and not gone by

	// Without, for Skip: where records begin that are left out, too, by file, ascending.
	Without   map[string][]int64
	Index     IndexMode    // when to count
	IndexDir  string       // folder of indexes; "": none is read or written, also not beside the files
	Entries   *Slice       // of the files, those that View has; nil: all
	Where     Where        // of these, those that View has
	Prefetch  []string     // patterns BANK or BANK/COLUMN of what to decode unasked, as far as Memory goes
	CacheDir  string       // folder of finished columns; "": they are kept in memory alone
	CacheSize int64        // bytes that folder may hold; 0: DefaultCacheSize
	Log       *slog.Logger // nil: discard

	Progress func(bytes int64) // called for what was read of records; nil: nobody asks
}

// Chain is the given files in order, read as one. It is safe for concurrent use.
type Chain struct {
	sources []*source
	infos   []FileInfo // of every file given, also those left out
	view    *View
	views   atomic.Int64 // numbers that views of some entries have had
	banks   dictionary
	m       *materializer
	shop    *workshop // nil: one of its own
	tier    *tier     // nil: none
	faults  *faults
	log     *slog.Logger

	descriptors *descriptors
	wrong       map[string]bool // indexes, by path, that are not to be used
	indexDir    string          // where indexes are written; "": nowhere
	beside      bool            // they are written beside the files
	allSums     bool            // a pass also reads what it need not decode
	checks      bool            // and decodes it, and looks at what a reader passes over
	progress    func(bytes int64)
	prefetches  bool // Options.Prefetch names something
	prefetching prefetching

	need    sync.Once
	told    sync.Once     // to say that all is counted
	unsaved sync.Once     // to say that indexes cannot be kept
	needed  chan struct{} // closed when somebody waits for the counts of all files
	counts  chan struct{} // closed when it is time to count all files

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	unasked context.Context // of what no reader waits for; ends with Retire
	retire  context.CancelFunc
	work    sync.WaitGroup // background passes
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
	handle  *handle
	file    *hipo.File
	plan    *plan
	runs    []run
	entries int64
	first   int64         // number in the chain of its first entry
	length  int64         // bytes of its records
	places  chan struct{} // a place for each decode of it, under way or about to be

	ctx     context.Context // of passes
	end     context.CancelFunc
	awaited atomic.Int32 // how many wait for the counts
	need    sync.Once
	needed  chan struct{}     // closed when somebody waits for the file's counts
	counted chan struct{}     // closed when a pass is through
	soFar   *soFar            // the pass under way has it
	tables  map[bankID]*table // written before counted is closed
	passed  atomic.Int64      // bytes of records that the pass has seen
	unsaved error             // why its index was not saved, if it should have been

	index      atomic.Pointer[saved] // nil: none, or not to be believed
	confirming sync.Mutex
	ends       *endings              // as they were when the file was opened; nil: they have not been looked at
	confirmed  bool                  // the file's beginning and end are those of the index
	byIndex    bool                  // the tables are those of an index, also of one that was dropped since
	contrary   atomic.Pointer[error] // file and index contradict each other: nothing of it is served any more

	sumMu   sync.Mutex
	sums    []recordSums // by record; nil where no index is read or written
	layouts []splitLayout
	news    atomic.Bool // the index lacks something of sums or verified

	mu       sync.Mutex
	pass     *pass               // the last; nil: there was none, or it could not read the file
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
// Errors: a *DictionaryError, a *WhereError, a *hipo.FormatError, a *CacheError, an error of the
// operating system about a file, or the context's.
func Open(ctx context.Context, names []string, o Options) (*Chain, error) {
	if len(names) == 0 {
		return nil, errors.New("no files")
	}
	for _, pattern := range o.Banks {
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, fmt.Errorf("bank pattern %q: %w", pattern, err)
		}
	}
	for _, pattern := range o.Prefetch {
		if err := CheckPrefetch(pattern); err != nil {
			return nil, err
		}
	}
	c := newChain(o.Log)
	threads := cmp.Or(o.Threads, runtime.GOMAXPROCS(0))
	if !o.Skip {
		c.indexDir = o.IndexDir
	}
	if err := c.open(ctx, names, o, threads); err != nil {
		return nil, err
	}
	if c.indexDir != "" {
		c.work.Go(func() { removeStale(c.indexDir) })
	}
	return c, nil
}

// newChain is a chain without files.
func newChain(log *slog.Logger) *Chain {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Chain{
		log: log, faults: &faults{log: log},
		prefetching: prefetching{now: PrefetchProgress{State: "none"}},
		needed:      make(chan struct{}), counts: make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.descriptors = newDescriptors(c.ctx)
	c.unasked, c.retire = context.WithCancel(c.ctx)
	return c
}

// open does what Open says, on a chain that knows where indexes are.
func (c *Chain) open(ctx context.Context, names []string, o Options, threads int) (err error) {
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	c.prefetches = len(o.Prefetch) > 0
	if o.Progress != nil {
		c.progress = o.Progress
	}
	if o.CacheDir != "" {
		if c.tier, err = openTier(o.CacheDir, o.CacheSize, threads, c.log); err != nil {
			return err
		}
	}
	for again := true; again; {
		heads, err := c.openFiles(ctx, names, o, threads)
		if err != nil {
			return err
		}
		if err := c.banks.unite(c.sources, o.Banks); err != nil {
			return err
		}
		if o.Skip {
			if err := c.verify(ctx, o, threads); err != nil {
				return err
			}
		}
		c.layOut()
		c.m = newMaterializer(c, cmp.Or(o.Memory, DefaultMemory()), threads)
		// What a wrong index says of dictionary and records is in the sources by now.
		if again = !c.adoptIndexes(heads); again {
			c.sources, c.banks = nil, dictionary{}
		}
	}
	c.warn()
	c.view = newView(c, c.sources, c.banks.shown)
	c.view.part = "whole"
	if o.Entries != nil && *o.Entries != everything {
		c.view = c.view.Slice(*o.Entries)
	}
	if !o.Where.all() {
		if c.view, err = c.view.Where(o.Where); err != nil {
			return err
		}
	}
	c.work.Go(func() { c.countWhen(o.Index, threads) })
	c.work.Go(func() {
		tick := time.NewTicker(quietTime)
		defer tick.Stop()
		c.m.tidy(c.ctx, tick.C)
	})
	if c.prefetches {
		c.work.Go(func() { c.prefetchAll(o.Prefetch) })
	}
	return nil
}

// found is an index that a file was opened by.
type found struct {
	head *indexHead
	path string
	ends *endings // of a file on a server that has no index
}

// openFiles fills infos and sources, and gives the index of each source that
// has one.
func (c *Chain) openFiles(ctx context.Context, names []string, o Options, threads int) ([]found, error) {
	c.infos = make([]FileInfo, len(names))
	files := make([]*hipo.File, len(names))
	handles := make([]*handle, len(names))
	heads := make([]found, len(names))
	faults := make([]error, len(names))
	dictionaries := &known{parts: map[string]knownDictionary{}}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4 * threads) // opening waits for the disk more than for the processor
	for i, name := range names {
		g.Go(func() error {
			if err := gctx.Err(); err != nil {
				return err
			}
			c.infos[i] = FileInfo{Name: PlainName(name)}
			h, st, err := newHandle(name, c.descriptors)
			if st != nil {
				c.infos[i].fill(st)
			}
			if err == nil {
				handles[i] = h
				files[i], heads[i], err = c.openFile(h, o, dictionaries)
				if h.remote != nil {
					h.remote.opened()
				}
			}
			faults[i] = err
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var kept []found
	for i, f := range files {
		if f != nil {
			ctx, end := context.WithCancel(c.ctx)
			c.sources = append(c.sources, &source{
				chain: c, ctx: ctx, end: end, number: int32(len(c.sources)), info: &c.infos[i], handle: handles[i], file: f,
				needed: make(chan struct{}), counted: make(chan struct{}), verified: map[columnKey]error{},
			})
			kept = append(kept, heads[i])
		}
	}
	for i, err := range faults {
		if err == nil {
			continue
		}
		c.infos[i].LeftOut = err.Error()
		if !o.Skip || len(c.sources) == 0 {
			return nil, err
		}
		c.faults.add(err)
	}
	return kept, nil
}

// openFile opens a file by its index, in the folder or beside it, or without.
func (c *Chain) openFile(h *handle, o Options, k *known) (*hipo.File, found, error) {
	opt := hipo.Options{MaxRecord: o.MaxRecord, Salvage: o.Skip, Abreast: h.abreast()}
	if c.indexDir != "" && !c.allSums {
		var unused []string // why others are not used, should there be none to use
		for _, path := range indexPaths(c.indexDir, h.name) {
			if c.wrong[path] {
				continue
			}
			f, head, err := loadIndex(path, h, opt, k)
			if err == nil && h.remote != nil { // while the ends are at hand
				err = confirmEnds(h, f, endings{head.headSum, head.tailSum})
			}
			if err == nil {
				return f, found{head: head, path: path}, nil
			}
			if h.remote != nil && unread(err) {
				return nil, found{}, err
			}
			if errors.Is(err, errRefused) && path == IndexPath(c.indexDir, h.name) {
				break
			}
			if !errors.Is(err, errNoIndex) {
				unused = append(unused, fmt.Sprintf("%s: this index is not used, and made again: %v", path, err))
			}
		}
		for _, why := range unused {
			c.log.Warn(why)
		}
	}
	f, err := hipo.NewFile(h.name, h, h.id.size, opt)
	if err != nil || h.remote == nil || c.indexDir == "" {
		return f, found{}, err
	}
	e, err := endSums(h, f) // for the index, while the ends are at hand
	return f, found{ends: &e}, err
}

// adoptIndexes goes by the indexes that agree with their files' records. It
// reports false if there were others, which are noted as wrong.
func (c *Chain) adoptIndexes(heads []found) bool {
	good := true
	for i, s := range c.sources {
		if c.indexDir != "" || c.beside {
			s.sums = make([]recordSums, len(s.file.Records))
		}
		head, path := heads[i].head, heads[i].path
		s.ends = heads[i].ends
		if head == nil {
			continue
		}
		err := s.adopt(head, path)
		// Another place, or another time of the last change of anything: the two
		// ends must speak for the rest before anybody is told a size.
		if err == nil && head.id != s.handle.id {
			err = s.confirm()
		}
		if err != nil {
			c.log.Warn(fmt.Sprintf("%s: this index is not used, and made again: %v", path, err))
			if c.wrong == nil {
				c.wrong = map[string]bool{}
			}
			c.wrong[path] = true
			good = false
			continue
		}
		s.confirmed = s.confirmed || s.handle.remote != nil // openFile has
		s.needsNoPass()
		c.m.hint(head.asked)
	}
	c.m.recount()
	return good
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
			if !isCarrier(why) {
				c.log.Warn(s.file.Name + ": dictionary: " + why)
			}
		}
		for _, why := range s.plan.conflicts {
			c.faults.add(errors.New(why))
		}
		for _, err := range s.file.Damage {
			c.faults.add(err)
			if s.info.LeftOut == "" {
				s.info.LeftOut = err.Error()
			}
		}
	}
}

// isCarrier reports whether a schema was dropped that only carries settings past
// readers which need one beside them (format.md 15.1).
func isCarrier(why string) bool { return strings.Contains(why, "hipo::meta") }

// layOut cuts the records of every file into runs and numbers the entries.
func (c *Chain) layOut() {
	var first int64
	for _, s := range c.sources {
		s.runs = makeRuns(s.file.Records)
		s.first = first
		for _, r := range s.runs {
			s.entries += r.entries
			s.length += s.lengthOf(&r)
		}
		first += s.entries
		s.info.Records, s.info.Entries, s.info.First = len(s.file.Records), s.entries, s.first
	}
}

// Retire ends what no reader waits for, now and from now on: prefetching, and
// each pass as soon as nobody waits for its counts. What is in memory or can be
// decoded is served as before.
func (c *Chain) Retire() {
	c.retire()
	for _, s := range c.sources {
		if s.awaited.Load() == 0 { // otherwise the last who waits ends it
			s.end()
		}
	}
}

// Close stops background work and closes the files. A read of a source that hangs
// it does not wait for.
func (c *Chain) Close() error {
	if c.tier != nil {
		c.tier.settle()
	}
	c.cancel()
	ended := make(chan struct{})
	go func() {
		c.work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(hangsAfter):
		c.log.Warn("a source hangs, and the read of it is left to itself")
		go func() {
			<-ended
			c.closeFiles()
		}()
		return nil
	}
	if c.m != nil {
		asked := c.m.askedNames()
		for _, s := range c.sources {
			s.update(asked)
		}
	}
	c.closeFiles()
	return nil
}

func (c *Chain) closeFiles() {
	c.descriptors.close()
	if c.tier != nil {
		c.tier.close()
	}
}

// hangsAfter is how long Close waits for background work, which ends at once
// unless a source hangs.
const hangsAfter = 5 * time.Second

// View is the whole chain, or the entries of it that Options ask for.
func (c *Chain) View() *View { return c.view }

// Files describes every file given, in order, also those that are left out.
func (c *Chain) Files() []FileInfo { return c.infos }

// Errors are the distinct faults met so far, oldest first.
func (c *Chain) Errors() []ErrorInfo { return c.faults.all() }
