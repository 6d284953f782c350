package materialize

import (
	"context"
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
	for _, s := range c.sources {
		if s.index.Load() == nil {
			size += s.file.Size
			if first == nil {
				first = s
			}
		}
	}
	var soon <-chan time.Time
	if mode == IndexAuto && size < autoLimit && first != nil {
		soon = time.After(autoDelay)
		first.begin()
	}
	if mode != IndexEager {
		select {
		case <-soon:
		case <-c.needed:
		case <-c.ctx.Done():
			return
		}
	}
	close(c.counts)
	var g errgroup.Group
	g.SetLimit(threads)
	for _, s := range c.sources {
		g.Go(func() error {
			if c.ctx.Err() == nil {
				s.begin()
				<-s.counted
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

// begin starts the file's pass if it has not been started.
func (s *source) begin() {
	s.start.Do(func() { s.chain.work.Go(s.pass) })
}

// wait starts the pass if need be, and waits for its end.
func (s *source) wait(ctx context.Context) error {
	select {
	case <-s.counted:
		return s.fault
	default:
	}
	s.need.Do(func() { close(s.needed) })
	s.begin()
	select {
	case <-s.counted:
		return s.fault
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pass counts the file. A bug that it brings out is the file's fault.
func (s *source) pass() {
	m := s.chain.m
	m.passes.begin()
	if err := s.chain.guard(s.count); err != nil {
		s.fault = err
	}
	m.passes.end()
	close(s.counted)
	m.passed()
	s.chain.tellCounted()
}

// tellCounted logs that all files are counted, once.
func (c *Chain) tellCounted() {
	p := c.Progress().Counting
	if p.State != "done" || c.ctx.Err() != nil {
		return
	}
	c.told.Do(func() {
		busy, _ := c.m.passes.time()
		c.log.Info("counted", "files", p.Files, "bytes", p.Bytes, "seconds", math.Round(busy.Seconds()*1000)/1000)
	})
}

// count counts the rows of every bank in every run, by decoding all runs, and
// keeps columns that are asked for, or may be. Damage does not end it: all of a
// file's damage is told at once, and the first is the error.
func (s *source) count() error {
	m := s.chain.m
	var sv *survey
	if s.chain.indexDir != "" || s.chain.beside {
		sv = newSurvey(s)
	}
	var mu sync.Mutex // over tables and faults
	tables := map[bankID]*table{}
	faults := make([]error, len(s.runs))

	g, ctx := errgroup.WithContext(s.chain.ctx)
	g.SetLimit(m.threads)
	var begun int64
	for r := range s.runs {
		if begun >= headStart {
			select { // not yet, perhaps
			case <-s.needed:
			case <-s.chain.counts:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			break
		}
		begun += s.runs[r].data
		g.Go(func() error {
			defer func() { s.passed.Add(s.lengthOf(&s.runs[r])) }()
			return m.withDecoder(ctx, s, &s.runs[r], func(d *decoder) error {
				out, err := d.decode(s, r, m.passWants(s, &s.runs[r]), m.note)
				if err != nil {
					s.chain.faults.add(err)
					mu.Lock()
					faults[r] = err
					mu.Unlock()
					return nil
				}
				m.keepPassed(s, r, out)
				if sv != nil {
					sv.add(r, out, &d.packer)
				}
				mu.Lock()
				defer mu.Unlock()
				for i := range out.parts {
					s.merge(tables, r, &out.parts[i])
				}
				return nil
			})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, err := range faults {
		if err != nil {
			return err
		}
	}
	for _, t := range tables {
		if t.err != nil {
			s.chain.faults.add(t.err)
		}
		for r := range s.runs {
			t.rows[r+1] += t.rows[r]
		}
	}
	s.tables = tables
	if sv != nil {
		if err := s.saveIndex(sv); err != nil {
			s.unsaved = err
			// A folder that cannot be written is the same news for every file of a run.
			s.chain.unsaved.Do(func() {
				s.chain.log.Warn(err.Error() + "; the next mount counts anew (nothing more is said of other files)")
			})
		}
	}
	return nil
}

// lengthOf is how many bytes of the file the run's records take.
func (s *source) lengthOf(r *run) (length int64) {
	for _, h := range s.file.Records[r.first : r.first+r.records] {
		length += h.Length
	}
	return length
}

// merge adds what one run has of a bank to the file's table of it.
func (s *source) merge(tables map[bankID]*table, r int, p *part) {
	t := tables[p.bank]
	if t == nil {
		t = &table{layout: p.layout, kind: p.kind, rows: make([]int64, len(s.runs)+1), primitive: p.primitive, format: p.format}
		tables[p.bank] = t
	}
	switch {
	case t.err != nil:
	case p.err != nil:
		t.err = p.err
	case t.layout != p.layout && !t.layout.SameLayout(p.layout):
		t.err = fmt.Errorf("%s: %s is %s in one record and %s in another", s.file.Name, s.chain.bankName(p.bank), t.kind, p.kind)
	}
	t.rows[r+1] = p.rows
	t.filled += p.filled
}

// verify reads every record of every file whole, streams included, and takes
// those that are damaged out of the record tables.
func (c *Chain) verify(ctx context.Context, threads int) error {
	for _, s := range c.sources {
		bad := make([]error, len(s.file.Records))
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(threads)
		recs := make(chan *hipo.Record, threads)
		for range threads {
			recs <- new(hipo.Record)
		}
		for i := range s.file.Records {
			g.Go(func() error {
				if err := gctx.Err(); err != nil {
					return err
				}
				rec := <-recs
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
	if err := f.ReadRecord(i, rec); err != nil || !rec.Header.Split() {
		return err
	}
	for b := range rec.Banks {
		if len(rec.Banks[b].Spans) == 0 {
			continue
		}
		if rec.Columns(b) == 0 {
			if _, err := rec.Data(b); err != nil {
				return err
			}
		}
		for k := range rec.Columns(b) {
			if _, err := rec.Column(b, k); err != nil {
				return err
			}
		}
	}
	return nil
}
