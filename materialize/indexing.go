package materialize

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/hipofs/hipofs/hipo"
)

// IndexOptions say how indexes are built.
type IndexOptions struct {
	Dir       string            // folder to keep them in
	Beside    bool              // beside the files instead
	Memory    int64             // as in Options, for all files together
	Threads   int               // records decoded at once; 0: one a processor
	MaxRecord int64             // as in Options
	Log       *slog.Logger      // nil: discard
	Progress  func(bytes int64) // called for what was read of a file, or need not be; nil: nobody asks
}

// Indexed is what became of the index of one file.
type Indexed struct {
	File  string
	Path  string
	Fresh bool  // it was there already, and complete
	Err   error // why there is none
}

// Index builds the index of each file that has none, several at once, and tells
// done of each. All of them together decode as many records at once, and in as
// much memory, as one would. What is finished stays if the context ends.
func Index(ctx context.Context, names []string, o IndexOptions, done func(Indexed)) error {
	threads := cmp.Or(o.Threads, runtime.GOMAXPROCS(0))
	o.Memory = cmp.Or(o.Memory, DefaultMemory())
	x := &indexer{o: o, threads: threads, shop: newSharedWorkshop(threads, o.Memory)}
	var g errgroup.Group
	g.SetLimit(threads)
	results := make(chan Indexed)
	go func() {
		for _, name := range names {
			g.Go(func() error {
				if ctx.Err() == nil {
					results <- x.index(ctx, name)
				}
				return nil
			})
		}
		_ = g.Wait()
		close(results)
	}()
	for r := range results {
		if !errors.Is(r.Err, context.Canceled) {
			done(r)
		}
	}
	return ctx.Err()
}

// indexer is what one call of Index has for all files.
type indexer struct {
	o       IndexOptions
	threads int
	shop    *workshop
	swept   sync.Map // folders in which removeStale has been, or is
}

func (x *indexer) index(ctx context.Context, name string) Indexed {
	o := &x.o
	r := Indexed{File: PlainName(name), Path: IndexPath(o.Dir, name)}
	if o.Beside && IsRemote(name) {
		r.Err = &SourceError{r.File, errors.New("an index cannot be put beside a file that a server has")}
		return r
	}
	if o.Beside {
		r.Path = name + IndexSuffix
	}
	if size, err := completeIndex(ctx, name, r.Path, o.MaxRecord); err == nil {
		r.Fresh = true
		if o.Progress != nil {
			o.Progress(size)
		}
		return r
	}
	if _, swept := x.swept.LoadOrStore(filepath.Dir(r.Path), true); !swept {
		removeStale(filepath.Dir(r.Path))
	}
	c := newChain(o.Log)
	c.shop, c.indexDir, c.beside, c.allSums, c.progress = x.shop, o.Dir, o.Beside, true, o.Progress
	opt := Options{Memory: o.Memory, Threads: x.threads, MaxRecord: o.MaxRecord, Index: IndexLazy}
	if r.Err = c.open(ctx, []string{name}, opt, x.threads); r.Err != nil {
		return r
	}
	s := c.sources[0]
	r.Err = s.wait(ctx)
	if err := c.Close(); r.Err == nil {
		r.Err = err
	}
	if r.Err == nil {
		r.Err = s.unsaved
	}
	return r
}

// completeIndex reads all of the index at path, and looks whether it is that of
// the file, is whole, has all checksums of the file, and is one that a mount
// goes by. It gives the file's size.
func completeIndex(ctx context.Context, name, path string, maxRecord int64) (int64, error) {
	c := newChain(nil)
	defer c.Close()
	defer context.AfterFunc(ctx, c.cancel)()
	h, _, err := newHandle(name, c.descriptors)
	if err != nil {
		return 0, err
	}
	k := &known{parts: map[string]knownDictionary{}}
	f, head, err := loadIndex(path, h, hipo.Options{MaxRecord: maxRecord}, k)
	if err != nil {
		return 0, err
	}
	if head.id != h.id || len(head.sums) != len(f.Records) {
		return 0, errIndex
	}
	for i, s := range head.sums {
		if f.Records[i].Split() && s.streams == nil && f.Records[i].DataLength > 0 {
			return 0, errIndex
		}
		for _, t := range s.streams {
			if !t.known {
				return 0, errIndex
			}
		}
	}
	s := &source{chain: c, info: &FileInfo{Name: h.name}, handle: h, file: f}
	c.sources = []*source{s}
	if err := c.banks.unite(c.sources, nil); err != nil {
		return 0, err
	}
	c.layOut()
	if _, _, _, err := s.understand(head, path); err != nil {
		return 0, err
	}
	blocks, _, err := openIndex(path, h.owner)
	if err != nil {
		return 0, err
	}
	defer blocks.Close()
	return h.id.size, head.checkBlocks(blocks)
}

// CheckIndexDir makes the folder of indexes, and tells whether it can be written.
func CheckIndexDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, lock, err := newTemporary(dir)
	if err != nil {
		return fmt.Errorf("%s cannot be written: %w", dir, errors.Unwrap(err))
	}
	defer lock.Close()
	f.Close()
	return os.Remove(f.Name())
}

// RecordIndex is what the index says of one record.
type RecordIndex struct {
	RecordInfo
	Codec   string           `json:"codec"`
	XXH3    string           `json:"xxh3"`              // of the stored record or, if it is split, of its head
	Streams []string         `json:"streams,omitempty"` // of a split record's streams; "" where not known
	Rows    map[string]int64 `json:"rows"`              // of each bank that has any
}

// RecordIndexes gives what the indexes of the chain's files say of each record,
// in order. Every file must have one.
func (c *Chain) RecordIndexes(ctx context.Context, each func(RecordIndex) error) error {
	infos := c.view.Records()
	for _, s := range c.sources {
		if err := s.wait(ctx); err != nil {
			return err
		}
		for r := range s.runs {
			rows, err := c.rowsByRecord(ctx, s, r)
			if err != nil {
				return err
			}
			for j := range s.runs[r].records {
				i := s.runs[r].first + j
				x := RecordIndex{RecordInfo: infos[0], Codec: s.file.Records[i].Codec(), Rows: rows[j]}
				infos = infos[1:]
				if s.sums != nil && s.sums[i].whole.known {
					x.XXH3 = fmt.Sprintf("%016x", s.sums[i].whole.xxh3)
					for _, t := range s.sums[i].streams {
						text := ""
						if t.known {
							text = fmt.Sprintf("%016x", t.xxh3)
						}
						x.Streams = append(x.Streams, text)
					}
				}
				if err := each(x); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// rowsByRecord is the rows of each bank in each record of a run.
func (c *Chain) rowsByRecord(ctx context.Context, s *source, r int) ([]map[string]int64, error) {
	ru := &s.runs[r]
	rows := make([]map[string]int64, ru.records)
	for j := range rows {
		rows[j] = map[string]int64{}
	}
	for id, t := range s.tables {
		if t.in(r) == 0 || t.err != nil {
			continue
		}
		name := c.bankName(id)
		if int(id) < len(c.banks.schemas) {
			name = c.banks.schemas[id].Name
		}
		if ru.records == 1 {
			rows[0][name] = t.in(r)
			continue
		}
		ends, err := c.m.chunk(ctx, s, chunkKey{s.number, int32(r), id, endsColumn})
		if err != nil {
			return nil, err
		}
		last, e := int64(0), int64(0)
		for j := range rows {
			e += int64(s.file.Records[ru.first+j].Events)
			through, _ := end(ends, e-1)
			if through > last {
				rows[j][name] = through - last
			}
			last = through
		}
	}
	return rows, nil
}

// Range is a piece of a file.
type Range struct {
	File   string `json:"file"`
	Record int    `json:"record"`
	Off    int64  `json:"offset"`
	Length int64  `json:"length"`
	What   string `json:"what"` // "record"; of a split record "directory" and "stream"
}

// Plan gives the pieces of files that a read of a column's entries A to B, B
// excluded, needs, in order. Entries beyond the end are clipped.
func (c *Chain) Plan(ctx context.Context, bank, column string, from, to int64, each func(Range) error) error {
	v := c.view
	for _, b := range v.Banks() {
		if b.Name != bank {
			continue
		}
		for k, col := range b.Columns {
			if col.Name != column {
				continue
			}
			if err := b.count(ctx, nil); err != nil {
				return err
			}
			from, to = max(0, from), min(to, v.Entries())
			return v.eachRun(from, max(0, to-from), func(x stretch, first, n int64) error {
				return c.planRun(ctx, x.source, x.r, b.id, k, first, n, each)
			})
		}
		return fmt.Errorf("bank %s has no column %s", bank, column)
	}
	return fmt.Errorf("there is no bank %s", bank)
}

// planRun gives the pieces for n entries of run r from first on.
func (c *Chain) planRun(ctx context.Context, s *source, r int, id bankID, k int, first, n int64, each func(Range) error) error {
	t := s.tables[id]
	if t == nil || t.in(r) == 0 {
		return nil
	}
	ends, err := c.m.chunk(ctx, s, chunkKey{s.number, int32(r), id, endsColumn})
	if err != nil {
		return err
	}
	ru := &s.runs[r]
	var rec hipo.Record
	at := int64(0)
	for i := ru.first; i < ru.first+ru.records; i++ {
		events := int64(s.file.Records[i].Events)
		lo, hi := max(first, at), min(first+n, at+events)
		at += events
		if lo >= hi {
			continue
		}
		_, before := end(ends, lo)
		if through, _ := end(ends, hi-1); through == before {
			continue
		}
		h := &s.file.Records[i]
		if !h.Split() {
			if err := each(Range{s.info.Name, i, h.Off, h.Length, "record"}); err != nil {
				return err
			}
			continue
		}
		if err := s.file.ReadRecord(i, &rec); err != nil {
			return err
		}
		if err := each(Range{s.info.Name, i, h.Off, rec.HeadLength(), "directory"}); err != nil {
			return err
		}
		group, item := c.banks.schemas[id].Group, c.banks.schemas[id].Item
		for j := range rec.Banks {
			if rec.Banks[j].Group != group || rec.Banks[j].Item != item || len(rec.Banks[j].Spans) == 0 {
				continue
			}
			stream := rec.Stream(j)
			if rec.Columns(j) > 0 {
				stream += k
			}
			off, length := rec.StreamRange(stream)
			if err := each(Range{s.info.Name, i, off, length, "stream"}); err != nil {
				return err
			}
		}
	}
	return nil
}
