package materialize

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hipofs/hipofs/hipo"
)

// table is a bank in one file, as the counting pass found it.
type table struct {
	layout *hipo.Schema
	kind   string  // what a structure without a schema is, for messages
	rows   []int64 // rows in the runs before run i; one more than there are runs
	filled int64   // entries that have rows
	most   int64   // rows of the entry that has most of them
	stored int64   // bytes of the file, where all its records are split; -1: unknown
	err    error   // why the bank cannot be served

	primitive uint8  // type of a primitive node
	format    string // of a composite bank
}

// total is the table's rows in the file.
func (t *table) total() int64 { return t.rows[len(t.rows)-1] }

// in is the table's rows in run r.
func (t *table) in(r int) int64 { return t.rows[r+1] - t.rows[r] }

// countWhen counts every file, a few at once, in order, as soon as it is time.
func (c *Chain) countWhen(mode IndexMode, threads int) {
	var size int64
	var first *source
	remote := false
	for _, s := range c.sources {
		if s.index.Load() == nil {
			size += s.file.Size
			remote = remote || s.handle.remote != nil
			if first == nil {
				first = s
			}
		}
	}
	var soon <-chan time.Time
	if mode == IndexAuto && size < autoLimit && first != nil && !remote && c.view.narrow == nil {
		soon = time.After(autoDelay)
		first.begin()
	}
	if mode != IndexEager {
		select {
		case <-soon:
		case <-c.needed:
		case <-c.unasked.Done():
			return
		}
	}
	close(c.counts)
	var g errgroup.Group
	g.SetLimit(threads)
	for _, s := range c.sources {
		g.Go(func() error {
			if c.unasked.Err() == nil {
				<-s.begin().ended
			}
			return nil
		})
	}
	_ = g.Wait()
}

// isCounted reports whether the pass is through.
func (s *source) isCounted() bool {
	select {
	case <-s.counted:
		return true
	default:
		return false
	}
}

// pass is one try to count a file. One that cannot read the file ends, and who
// waits next starts another, which goes on where it was.
type pass struct {
	ended chan struct{}
	err   error // once ended
}

// begin starts the file's pass if it has not been started.
func (s *source) begin() *pass {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pass == nil {
		p := &pass{ended: make(chan struct{})}
		s.pass = p
		s.chain.work.Go(func() { s.run(p) })
	}
	return s.pass
}

// needsNoPass says that the file's tables are there.
func (s *source) needsNoPass() {
	s.pass = &pass{ended: s.counted}
	close(s.counted)
}

// wait starts the pass if need be, and waits for its end.
func (s *source) wait(ctx context.Context) error {
	if !s.isCounted() {
		s.need.Do(func() { close(s.needed) })
	}
	s.awaited.Add(1)
	defer func() {
		if s.awaited.Add(-1) == 0 && s.chain.unasked.Err() != nil {
			s.end()
		}
	}()
	p := s.begin()
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run counts the file. A bug that it brings out is the file's fault; that the
// file cannot be read may pass.
func (s *source) run(p *pass) {
	m := s.chain.m
	m.passes.begin()
	p.err = s.chain.guard(s.count)
	m.passes.end()
	if unread(p.err) || p.err != nil && s.ctx.Err() != nil {
		s.mu.Lock()
		s.pass = nil
		s.mu.Unlock()
		close(p.ended)
		return
	}
	close(s.counted)
	m.passed()
	s.chain.tellCounted()
	close(p.ended)
}

// unread reports whether an error says nothing of what is in a file.
func unread(err error) bool {
	var se *SourceError
	return errors.As(err, &se)
}

// tellCounted logs that all files are counted, once.
func (c *Chain) tellCounted() {
	p := c.Progress().Counting
	if p.State != "done" || c.unasked.Err() != nil {
		return
	}
	c.told.Do(func() {
		busy, _ := c.m.passes.time()
		c.log.Info("counted", "files", p.Files, "bytes", p.Bytes, "seconds", math.Round(busy.Seconds()*1000)/1000)
	})
}

// soFar is what passes over a file have found in it.
type soFar struct {
	mu     sync.Mutex
	tables map[bankID]*table // their rows are still those in each run
	done   []bool            // by run
	faults []error           // by run
	survey *survey           // nil: no index is made
}

// surveying is the survey, unless something has been found since that no index
// can be made of.
func (f *soFar) surveying() *survey {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.survey
}

// count counts the rows of every bank in every run, by decoding all runs, and
// keeps columns that are asked for, or may be. Damage does not end it: all of a
// file's damage is told at once, and the first is the error.
func (s *source) count() error {
	m := s.chain.m
	if s.soFar == nil {
		s.soFar = &soFar{tables: map[bankID]*table{}, done: make([]bool, len(s.runs)), faults: make([]error, len(s.runs))}
		if s.chain.indexDir != "" || s.chain.beside {
			s.soFar.survey = newSurvey(s)
		}
	}
	found := s.soFar

	g, ctx := errgroup.WithContext(s.ctx)
	g.SetLimit(max(m.threads, s.handle.abreast()))
	var begun int64
	for r := range s.runs {
		if found.done[r] {
			continue
		}
		if begun >= headStart {
			m.passes.end()
			select { // not yet, perhaps
			case <-s.needed:
			case <-s.chain.counts:
			case <-ctx.Done():
			}
			m.passes.begin()
		}
		if ctx.Err() != nil {
			break
		}
		begun += s.runs[r].data
		g.Go(func() error {
			return m.withRun(ctx, s, int32(r), reading{}, func(d *decoder, got *fetched) error {
				return s.countRun(found, r, d, got)
			})
		})
	}
	if err := cmp.Or(g.Wait(), s.ctx.Err()); err != nil {
		return err
	}
	s.soFar = nil
	for _, err := range found.faults {
		if err != nil {
			return err
		}
	}
	for _, t := range found.tables {
		if t.err != nil {
			s.chain.faults.add(t.err)
		}
		for r := range s.runs {
			t.rows[r+1] += t.rows[r]
		}
	}
	s.tables = found.tables
	if found.survey != nil {
		s.keepIndex(found.survey)
	}
	return nil
}

// countRun counts run r, and keeps its columns. The error is that the file cannot
// be read; damage is noted with what is found.
func (s *source) countRun(found *soFar, r int, d *decoder, got *fetched) error {
	m := s.chain.m
	var unsaved error // why no index can be made
	out, err := d.decode(s, int32(r), m.passWants(s, &s.runs[r]), got, m.note)
	if err != nil {
		s.chain.faults.add(err)
		if unread(err) {
			return err
		}
	} else {
		m.keepPassed(s, r, out)
		if v := found.surveying(); v != nil {
			unsaved = v.add(r, out, &d.packer)
		}
	}
	s.passed.Add(s.lengthOf(&s.runs[r]))
	found.mu.Lock()
	defer found.mu.Unlock()
	if err == nil {
		for i := range out.parts {
			if err = s.merge(found.tables, r, &out.parts[i]); err != nil {
				s.chain.faults.add(err)
				break
			}
		}
	}
	found.done[r], found.faults[r] = true, err
	if found.survey != nil && (err != nil || unsaved != nil) { // of damage, the group of runs would never be through
		found.survey = nil
		if unsaved != nil {
			s.noIndex(fmt.Errorf("%s: no index is made: %w", s.info.Name, unsaved))
		}
	}
	return nil
}

// keepIndex saves the index of what a pass has found out, if that can be done.
func (s *source) keepIndex(v *survey) {
	if err := s.saveIndex(v); err != nil {
		s.noIndex(err)
	}
}

// noIndex says why there is none.
func (s *source) noIndex(err error) {
	s.unsaved = err
	// A folder that cannot be written is the same news for every file of a run.
	s.chain.unsaved.Do(func() {
		s.chain.log.Warn(err.Error() + "; the next mount counts anew (nothing more is said of other files)")
	})
}

// lengthOf is how many bytes of the file the run's records take.
func (s *source) lengthOf(r *run) (length int64) {
	for _, h := range s.file.Records[r.first : r.first+r.records] {
		length += h.Length
	}
	return length
}

// smallTables and twice the file's length are what its tables may take. Every run
// of records adds to the table of each structure that was ever met, and a hostile
// file has 16,000 of these and a million records without any.
const smallTables = 8 << 20

// merge adds what one run has of a bank to the file's table of it. The error is
// that there are too many.
func (s *source) merge(tables map[bankID]*table, r int, p *part) error {
	t := tables[p.bank]
	if t == nil {
		if 8*int64(len(tables)+1)*int64(len(s.runs)) > smallTables+2*s.file.Size {
			return &hipo.FormatError{File: s.file.Name, Record: s.runs[r].first, Off: s.file.Records[s.runs[r].first].Off,
				Msg: fmt.Sprintf("%s is one of over %d kinds of structures in a file of %d runs of records: more than a reader can count",
					s.chain.bankName(p.bank), len(tables), len(s.runs))}
		}
		t = newTable(p, len(s.runs))
		tables[p.bank] = t
	}
	t.add(s, r, p)
	return nil
}

// newTable is a table of so many runs, without rows.
func newTable(p *part, runs int) *table {
	return &table{layout: p.layout, kind: p.kind, rows: make([]int64, runs+1), primitive: p.primitive, format: p.format}
}

// add takes in what run r has. The rows of a run stay its own until all are there.
func (t *table) add(s *source, r int, p *part) {
	switch {
	case t.err != nil:
	case p.err != nil:
		t.err = p.err
	case t.layout != p.layout && !t.layout.SameLayout(p.layout):
		t.err = fmt.Errorf("%s: %s is %s in one record and %s in another", s.file.Name, s.chain.bankName(p.bank), t.kind, p.kind)
	}
	t.rows[r+1] = p.rows
	t.filled += p.filled
	t.most = max(t.most, int64(p.most))
	if p.stored < 0 || t.stored < 0 {
		t.stored = unknownSize
	} else {
		t.stored += p.stored
	}
}

// verify reads every record of every file whole, streams included, and takes
// those that are damaged out of the record tables, or have other bytes than the
// file's index says, or are to be left out.
func (c *Chain) verify(ctx context.Context, o Options, threads int) error {
	for _, s := range c.sources {
		sums := s.knownSums(o)
		bad := make([]error, len(s.file.Records))
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(threads)
		recs := make(chan *hipo.Record, threads)
		for range threads {
			recs <- new(hipo.Record)
		}
		for i := range s.file.Records {
			if _, left := slices.BinarySearch(o.Without[s.info.Name], s.file.Records[i].Off); left {
				bad[i] = s.otherBytes(i, "its bytes are not those that were indexed")
				continue
			}
			g.Go(func() error {
				if err := gctx.Err(); err != nil {
					return err
				}
				rec := <-recs
				rec.Check = nil
				if sums != nil {
					rec.Check = func(part int, stored []byte) error { return s.compareStored(i, part, stored, &sums[i]) }
				}
				bad[i] = verifyRecord(s.file, i, rec)
				recs <- rec
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		var good []hipo.RecordHeader
		for i, err := range bad {
			if err == nil {
				good = append(good, s.file.Records[i])
				continue
			}
			c.faults.add(err)
			s.info.Lost += int64(s.file.Records[i].Events)
			if s.info.LeftOut == "" {
				s.info.LeftOut = err.Error()
			}
		}
		s.file.Records = slices.Clip(good)
	}
	return nil
}

// verifyRecord reads record i and inflates every stream of it.
func verifyRecord(f *hipo.File, i int, rec *hipo.Record) error {
	if err := f.ReadRecord(i, rec); err != nil {
		return err
	}
	return rec.InflateStreams()
}
