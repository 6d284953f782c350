package materialize

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/hipofs/hipofs/hipo"
)

// everything is all entries of any view.
var everything = Slice{0, math.MaxInt64}

// A view of some entries has a number below those of sources, for the chunks that
// are its own. When a chain has none left, none of a view's are kept.
const noNumber = math.MinInt32

// narrowing is which entries a view keeps of another one. Headers of records
// decide as far as they can; the rest is found out when somebody needs it, from
// indexes where there are any. Only records that may have entries to keep are
// decoded, each alone where the run that it lies in has others.
type narrowing struct {
	of     *View
	slice  Slice
	where  Where
	only   *source  // the only file; nil: all
	banks  []bankID // that entries must have rows of
	number int32    // of its chunks

	// chosen is what is kept, once that is known. When it is settled, rows can be
	// counted as well.
	chosen  atomic.Pointer[choice]
	settled atomic.Pointer[choice]
	planned atomic.Int64 // bytes of all events of the candidates, inflated

	mu         sync.Mutex
	job        *settling // under way
	waiting    int       // for it
	candidates []keptRun
	results    [][]keptRun // by candidate, nil: not looked at
	failure    error       // damage
}

// choice is what a view keeps: runs, or single records of them, each of which
// has entries, in order.
type choice struct {
	runs   []keptRun
	starts []int64 // entries of the view before each; one more
	data   int64   // bytes of all events of these runs, inflated
	bytes  int64   // that this takes of memory
	some   bool    // of one of them not a range is kept
}

// keptRun is what a view keeps of a run.
type keptRun struct {
	source   *source
	run      int32 // as source.runAt numbers them
	some     bool  // not all of the range: those that pass the view's conditions
	listed   bool  // the range is one of what the other view keeps of its run parent
	parent   int32
	from, to int64 // a range of the run's entries
	entries  int64
	found    []find // of a file that is not counted: the banks that these entries have rows of
}

// find is a bank in a run of a file that is not counted.
type find struct {
	bank bankID
	rows int64
	*looked
}

// Slice is the entries r.From to r.To, excluded, of the view. It never waits.
func (v *View) Slice(r Slice) *View {
	return v.narrowed(&narrowing{slice: r}, v.shown)
}

// Where is the entries of the view that pass all conditions. It never waits. An
// error says which condition no chain of these files can answer.
func (v *View) Where(w Where) (*View, error) {
	n := &narrowing{slice: everything, where: w}
	for _, name := range w.Require {
		id, ok := v.chain.banks.byName[name]
		if !ok {
			return nil, &WhereError{fmt.Sprintf("no bank is called %s; \"hipofs ls --all\" lists them", name)}
		}
		n.banks = append(n.banks, id)
	}
	return v.narrowed(n, v.shown), nil
}

func (v *View) narrowed(n *narrowing, set *BankSet) *View {
	n.of, n.number = v, noNumber
	if number := -v.chain.views.Add(1); number > noNumber {
		n.number = int32(number)
	}
	var sources []*source
	for _, s := range v.sources {
		if (n.only == nil || n.only == s) && n.where.file(s.info.Name) {
			sources = append(sources, s)
		}
	}
	sub := newView(v.chain, sources, set)
	sub.narrow = n
	return sub
}

// try is what the view keeps, if that is known, or follows from headers.
func (n *narrowing) try() *choice {
	if c := n.chosen.Load(); c != nil {
		return c
	}
	if n.where.looksInside() {
		return nil
	}
	var outer *choice
	if p := n.of.narrow; p != nil {
		if outer = p.try(); outer == nil || outer.some {
			return nil
		}
	}
	n.chosen.CompareAndSwap(nil, newChoice(n.candidatesOf(outer)))
	return n.chosen.Load()
}

// What a run that is kept, and a bank found in it, take of memory.
const (
	keptBytes = 96
	findBytes = 24
)

func newChoice(runs []keptRun) *choice {
	c := &choice{runs: slices.Clip(runs), starts: make([]int64, len(runs)+1)}
	for r := range runs {
		k := &runs[r]
		c.starts[r+1] = c.starts[r] + k.entries
		c.data += k.source.runAt(k.run).data
		c.some = c.some || k.some
		c.bytes += keptBytes + findBytes*int64(len(k.found))
	}
	return c
}

// choose waits until it is known what the view keeps.
func (n *narrowing) choose(ctx context.Context) (*choice, error) {
	if c := n.try(); c != nil {
		return c, nil
	}
	return n.settle(ctx)
}

// candidatesOf are the runs and records that may have entries to keep, as far as
// headers tell. outer is what the other view keeps, nil if it is a whole one.
func (n *narrowing) candidatesOf(outer *choice) []keptRun {
	var all []keptRun
	add := func(k keptRun) {
		if n.only != nil && n.only != k.source || !n.where.file(k.source.info.Name) {
			return
		}
		all = n.appendRecords(all, k)
	}
	if outer != nil {
		first := before(outer.starts, min(n.slice.From, outer.starts[len(outer.starts)-1]))
		for r := first; r < len(outer.runs) && outer.starts[r] < n.slice.To; r++ {
			k := outer.runs[r]
			from, to := max(0, n.slice.From-outer.starts[r]), min(k.entries, n.slice.To-outer.starts[r])
			if from >= to {
				continue
			}
			k.found = nil
			k.listed, k.parent = k.some, int32(r)
			k.some = false
			if !k.listed {
				from, to = k.from+from, k.from+to
			}
			k.from, k.to, k.entries = from, to, to-from
			add(k)
		}
		return all
	}
	for i, s := range n.of.sources {
		begin, end := max(0, n.slice.From-n.of.starts[i]), min(s.entries, n.slice.To-n.of.starts[i])
		if begin >= end {
			continue
		}
		for r := s.runOf(begin); r < len(s.runs) && s.runs[r].entry < end; r++ {
			from, to := max(0, begin-s.runs[r].entry), min(s.runs[r].entries, end-s.runs[r].entry)
			if from < to {
				add(keptRun{source: s, run: int32(r), from: from, to: to, entries: to - from})
			}
		}
	}
	return all
}

// appendRecords appends what headers leave of a candidate: all of it, or those of
// its records that entries can be in.
func (n *narrowing) appendRecords(all []keptRun, k keptRun) []keptRun {
	s := k.source
	run := s.runAt(k.run)
	headers := s.file.Records[run.first : run.first+run.records]
	passes := func(j int) bool { return n.where.record(headers[j].UserTag) }
	if run.records == 1 {
		if passes(0) {
			all = append(all, k)
		}
		return all
	}
	if k.listed { // not known here in which records they are
		if slices.ContainsFunc(headers, func(h hipo.RecordHeader) bool { return n.where.record(h.UserTag) }) {
			all = append(all, k)
		}
		return all
	}
	return appendSplit(all, k, passes)
}

// appendSplit appends a range of a run: whole, if it reaches into each record,
// and each passes; else record by record.
func appendSplit(all []keptRun, k keptRun, passes func(record int) bool) []keptRun {
	s := k.source
	run := s.runAt(k.run)
	had := len(all)
	var at int64
	for j := range run.records {
		record := run.first + j
		events := int64(s.file.Records[record].Events)
		from, to := max(0, k.from-at), min(events, k.to-at)
		at += events
		if from < to && passes(j) {
			p := k
			p.run, p.from, p.to, p.entries = s.recordRun(record), from, to, to-from
			all = append(all, p)
		}
	}
	if len(all)-had == run.records {
		return append(all[:had], k)
	}
	return all
}

// settling is the work of finding out what a view keeps, and of looking into the
// records of files that are not counted.
type settling struct {
	ended chan struct{}
	err   error // once ended
}

// errUnwanted ends a settling that nobody waits for any more.
var errUnwanted = errors.New("nobody waits for this view")

// settle waits until rows can be counted. Who waits may leave: the work goes on
// with the next who comes.
func (n *narrowing) settle(ctx context.Context) (*choice, error) {
	for {
		if c := n.settled.Load(); c != nil {
			return c, nil
		}
		n.mu.Lock()
		if n.failure != nil {
			defer n.mu.Unlock()
			return nil, n.failure
		}
		if n.job == nil && n.settled.Load() == nil {
			n.job = &settling{ended: make(chan struct{})}
			j := n.job
			n.of.chain.work.Go(func() { n.work(j) })
		}
		j := n.job
		n.waiting++
		n.mu.Unlock()
		if j != nil {
			select {
			case <-j.ended:
			case <-ctx.Done():
			}
		}
		n.mu.Lock()
		n.waiting--
		n.mu.Unlock()
		if j == nil {
			continue
		}
		select {
		case <-j.ended:
			if j.err != nil && !errors.Is(j.err, errUnwanted) {
				return nil, j.err
			}
		default:
			return nil, ctx.Err()
		}
	}
}

func (n *narrowing) unwanted() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.waiting == 0
}

// work settles the view.
func (n *narrowing) work(j *settling) {
	chain := n.of.chain
	var made *choice
	err := chain.guard(func() (err error) {
		made, err = n.look(chain.ctx)
		return err
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err == nil:
		n.candidates, n.results = nil, nil
		n.settled.Store(made)
		n.chosen.Store(made)
	case !unread(err) && chain.ctx.Err() == nil && !errors.Is(err, errUnwanted):
		n.failure = err
	}
	n.job, j.err = nil, err
	close(j.ended)
}

// look looks at every candidate. What it has found out when it is interrupted
// is there for the next time.
func (n *narrowing) look(ctx context.Context) (*choice, error) {
	var outer *choice
	if p := n.of.narrow; p != nil {
		var err error
		if outer, err = p.choose(ctx); err != nil {
			return nil, err
		}
	}
	if n.results == nil {
		n.candidates = n.candidatesOf(outer)
		n.results = make([][]keptRun, len(n.candidates))
		n.planned.Store(newChoice(n.candidates).data)
	}
	if err := n.countWhole(ctx); err != nil {
		return nil, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(n.of.chain.m.threads)
	for i := range n.candidates {
		if n.results[i] != nil {
			continue
		}
		if n.unwanted() {
			_ = g.Wait()
			return nil, errUnwanted
		}
		g.Go(func() error {
			return n.of.chain.guard(func() (err error) {
				n.results[i], err = n.lookAt(gctx, outer, n.candidates[i])
				return err
			})
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return newChoice(slices.Concat(n.results...)), nil
}

// countWhole has files counted by a pass of which all may be kept: it makes an
// index, and costs no more.
func (n *narrowing) countWhole(ctx context.Context) error {
	entries := map[*source]int64{}
	for i := range n.candidates {
		if k := &n.candidates[i]; !k.listed {
			entries[k.source] += k.entries
		}
	}
	for _, s := range n.of.sources {
		if s.tablesSoFar() == nil && entries[s] > 0 && entries[s] == s.entries {
			if err := s.wait(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookAt finds what is kept of a candidate: an empty list, if nothing is.
func (n *narrowing) lookAt(ctx context.Context, outer *choice, k keptRun) ([]keptRun, error) {
	s := k.source
	var found []*looked
	counted := s.tablesSoFar() != nil
	if !counted {
		var err error
		if found, err = s.chain.m.look(ctx, s, k.run, n.wants); err != nil {
			return nil, err
		}
	}
	base, err := n.base(ctx, outer, &k)
	if err != nil {
		return nil, err
	}
	run := s.runAt(k.run)
	if k.listed && run.records > 1 {
		base = base.filter(recordFilter(s, run, n.where.record))
	}
	of, err := n.inside(ctx, s, k.run, base)
	if err != nil {
		return nil, err
	}
	all := n.appendKept([]keptRun{}, k, base, of)
	if !counted {
		for i := range all {
			if err := n.find(ctx, &all[i], found, k.run, of); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// recordFilter reports whether an entry of the run lies in a record whose tag passes.
func recordFilter(s *source, run *run, passes func(tag int64) bool) func(e uint32) bool {
	ends := make([]int64, run.records)
	var sum int64
	for j := range ends {
		sum += int64(s.file.Records[run.first+j].Events)
		ends[j] = sum
	}
	return func(e uint32) bool {
		j := sort.Search(len(ends), func(j int) bool { return ends[j] > int64(e) })
		return passes(s.file.Records[run.first+j].UserTag)
	}
}

// appendKept appends what is kept of a candidate, given which entries of the run
// it was about, and which of them are kept. Of a run of several records all of
// which is not kept, it is kept by the record.
func (n *narrowing) appendKept(all []keptRun, k keptRun, base, of picked) []keptRun {
	s := k.source
	run := s.runAt(k.run)
	if of.count() == 0 {
		return all
	}
	if run.records == 1 {
		return append(all, k.keeping(of))
	}
	if of.list == nil {
		k = k.keeping(of)
		return appendSplit(all, k, func(int) bool { return true })
	}
	var at int64
	for j := range run.records {
		record := run.first + j
		events := int64(s.file.Records[record].Events)
		if mine := of.within(at, at+events); mine.count() > 0 {
			p := k
			p.run = s.recordRun(record)
			if k.listed {
				p.from += int64(base.position(at))
				p.to = k.from + int64(base.position(at+events))
			} else {
				p.from, p.to = max(0, k.from-at), min(events, k.to-at)
			}
			all = append(all, p.keeping(mine))
		}
		at += events
	}
	return all
}

// keeping is the candidate with what is kept of it.
func (k keptRun) keeping(of picked) keptRun {
	k.entries = int64(of.count())
	k.some = of.list != nil
	if !k.some {
		k.listed, k.from, k.to = false, of.from, of.to
	}
	return k
}

// base is which entries of the run a candidate, or what is kept of it, is about:
// those that the other view keeps, within the range.
func (n *narrowing) base(ctx context.Context, outer *choice, k *keptRun) (picked, error) {
	if !k.listed {
		return picked{from: k.from, to: k.to}, nil
	}
	p := n.of.narrow
	theirs, err := p.picked(ctx, outer, int(k.parent))
	if err != nil {
		return picked{}, err
	}
	parent := &outer.runs[k.parent]
	shift := k.source.runAt(k.run).entry - k.source.runAt(parent.run).entry
	list := make([]uint32, 0, k.to-k.from)
	for _, e := range theirs.list[k.from:k.to] {
		list = append(list, e-uint32(shift))
	}
	return pick(list), nil
}

// inside is which of the entries of a run have what is inside records as the
// conditions say.
func (n *narrowing) inside(ctx context.Context, s *source, r int32, of picked) (picked, error) {
	m := s.chain.m
	for _, id := range n.banks {
		if of.count() == 0 {
			return of, nil
		}
		ends, err := s.endsOf(ctx, r, id, n.wants)
		if err != nil {
			return picked{}, err
		}
		if ends == nil {
			return picked{}, nil
		}
		of = of.filter(func(e uint32) bool {
			through, upTo := end(ends, int64(e))
			return through > upTo
		})
	}
	if !n.where.looksAtTags() || of.count() == 0 {
		return of, nil
	}
	tags, err := m.chunkBy(ctx, s, chunkKey{s.number, r, tagsBank, 0}, n.wants)
	if err != nil {
		return picked{}, err
	}
	return of.filter(func(e uint32) bool { return n.where.event(binary.LittleEndian.Uint32(tags[4*e:])) }), nil
}

// endsOf is the rows of a bank in a run up to and with each entry; nil, if there
// are none. Why the bank cannot be served is an error.
func (s *source) endsOf(ctx context.Context, r int32, id bankID, w wants) ([]byte, error) {
	m := s.chain.m
	if why := s.plan.conflicts[id]; why != "" {
		return nil, errors.New(why)
	}
	if tables := s.tablesSoFar(); tables != nil {
		t := tables[id]
		switch whole, _ := s.wholeRun(r); {
		case t == nil:
			return nil, nil
		case t.err != nil:
			return nil, t.err
		case t.in(whole) == 0:
			return nil, nil
		}
	} else {
		found, err := m.look(ctx, s, r, w)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(found, func(l *looked) bool { return l.bank == id })
		switch {
		case i < 0:
			return nil, nil
		case found[i].err != nil:
			return nil, found[i].err
		case found[i].total == 0:
			return nil, nil
		}
	}
	return m.chunkBy(ctx, s, chunkKey{s.number, r, id, endsColumn}, w)
}

// find notes the banks that the entries kept of a run have rows of. looked at was
// run r of the file, in which of is kept in all.
func (n *narrowing) find(ctx context.Context, k *keptRun, found []*looked, r int32, of picked) error {
	s := k.source
	run := s.runAt(k.run)
	shift := run.entry - s.runAt(r).entry
	mine := of.within(shift, shift+run.entries) // of what was looked at
	k.found = []find{}
	for _, l := range found {
		if l.err != nil {
			k.found = append(k.found, find{l.bank, 0, l})
			continue
		}
		if l.total == 0 {
			continue
		}
		ends, err := s.chain.m.chunkBy(ctx, s, chunkKey{s.number, r, l.bank, endsColumn}, n.wants)
		if err != nil {
			return err
		}
		if rows := mine.shifted(shift).rows(ends); rows > 0 {
			k.found = append(k.found, find{l.bank, rows, l})
		}
	}
	return nil
}

// wants is what a decode for the view gathers: of a view that is small beside the
// budget everything, so that no record is decoded twice for it.
func (n *narrowing) wants(s *source, k chunkKey) (wanted, func(chunkKey) bool) {
	m := s.chain.m
	data := s.runAt(k.run).data
	if c := n.chosen.Load(); c != nil {
		data = max(data, c.data)
	} else {
		data = max(data, n.planned.Load())
	}
	return m.runWants(s, k, float64(data) <= guessShare*float64(m.chunks.budget))
}

// picked are entries of a run: a range or, if there is one, those of a list.
type picked struct {
	from, to int64
	list     []uint32 // ascending
}

// pick makes a range of a list that is one.
func pick(list []uint32) picked {
	n := len(list)
	if n == 0 {
		return picked{}
	}
	if first, last := int64(list[0]), int64(list[n-1]); last-first == int64(n-1) {
		return picked{from: first, to: last + 1}
	}
	return picked{list: list}
}

func (p picked) count() int {
	if p.list != nil {
		return len(p.list)
	}
	return int(p.to - p.from)
}

// at is the i-th entry.
func (p picked) at(i int64) int64 {
	if p.list != nil {
		return int64(p.list[i])
	}
	return p.from + i
}

// position is how many come before entry e of the run.
func (p picked) position(e int64) int {
	if p.list != nil {
		return sort.Search(len(p.list), func(i int) bool { return int64(p.list[i]) >= e })
	}
	return int(min(max(e, p.from), p.to) - p.from)
}

// within are those from entry from to entry to of the run, counted from from.
func (p picked) within(from, to int64) picked {
	a, b := p.position(from), p.position(to)
	if p.list == nil {
		return picked{from: p.from + int64(a) - from, to: p.from + int64(b) - from}
	}
	list := make([]uint32, 0, b-a)
	for _, e := range p.list[a:b] {
		list = append(list, e-uint32(from))
	}
	return pick(list)
}

// shifted are the same entries, counted from shift entries before.
func (p picked) shifted(shift int64) picked {
	if p.list == nil {
		return picked{from: p.from + shift, to: p.to + shift}
	}
	list := make([]uint32, len(p.list))
	for i, e := range p.list {
		list[i] = e + uint32(shift)
	}
	return picked{list: list}
}

func (p picked) filter(passes func(e uint32) bool) picked {
	var list []uint32
	for i := range int64(p.count()) {
		if e := uint32(p.at(i)); passes(e) {
			list = append(list, e)
		}
	}
	return pick(list)
}

// rows is how many rows these entries have in a run with those ends.
func (p picked) rows(ends []byte) (rows int64) {
	if p.list == nil {
		if p.from == p.to {
			return 0
		}
		_, upTo := end(ends, p.from)
		through, _ := end(ends, p.to-1)
		return through - upTo
	}
	for _, e := range p.list {
		through, upTo := end(ends, int64(e))
		rows += through - upTo
	}
	return rows
}
