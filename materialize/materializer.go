package materialize

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/hipofs/hipofs/hipo"
)

// materializer turns runs of records into chunks, each once for all who wait
// for it, and keeps what fits.
type materializer struct {
	chain    *Chain
	chunks   *chunks
	threads  int
	shop     *workshop
	waiters  *waiters
	passes   passes
	inflated int64 // bytes of all events and streams of the chain

	mu       sync.Mutex
	looks    *simplelru.LRU[flightKey, []*looked]
	flights  map[flightKey][]*flight
	asked    []columnKey // content that was asked for, in order
	askedFor map[columnKey]bool
	keep     map[bankID][]bool  // what a decode keeps beside what it is for; by column
	finished map[columnKey]bool // read to their ends, and not wanted since
	rows     map[bankID]int64   // of the whole chain, when all files are counted; nil before
	layouts  map[bankID]*hipo.Schema
	passing  int64 // bytes that passes have kept of what was asked for
	counted  int   // files
	packers  sync.Pool

	recordsDecoded, streamsDecoded, bytesRead, bytesInflated atomic.Int64
	bytesServed, hits, misses                                atomic.Int64

	framing sync.Mutex // held while the frame of an Arrow file is made

	inFlight   atomic.Int64 // decodes under way
	decodeTime atomic.Int64 // nanoseconds
}

func newMaterializer(c *Chain, memory int64, threads int) *materializer {
	// Records being decoded are part of the budget: half of it at most, beside
	// that of prefetching.
	var need, inflated int64
	for _, s := range c.sources {
		for i := range s.runs {
			need = max(need, s.runs[i].need())
			inflated += s.runs[i].data
		}
	}
	room := min(memory/2, int64(threads)*need)
	var aside int64
	if c.prefetches {
		aside = min(memory/4, need)
	}
	var fetch int64 // beside both, what is on its way from servers
	if c.abreast() > 1 {
		fetch = min(memory/4, mostFetched)
	}
	for _, s := range c.sources {
		s.places = make(chan struct{}, threads)
	}
	shop := c.shop
	if shop == nil {
		shop = newWorkshop(threads, room, fetch)
	}
	looks, err := simplelru.NewLRU[flightKey, []*looked](rememberedLooks, nil)
	if err != nil {
		panic("internal error: " + err.Error())
	}
	return &materializer{
		looks: looks,
		chain: c, chunks: newChunks(memory - room - aside - fetch), threads: threads,
		inflated: inflated, shop: shop, waiters: newWaiters(),
		flights: map[flightKey][]*flight{}, askedFor: map[columnKey]bool{}, finished: map[columnKey]bool{},
	}
}

// need is about the memory that decoding the run takes: its largest record as
// stored and inflated, and what is gathered from it.
func (r *run) need() int64 { return r.stored + r.inflated + min(r.inflated, runBytes) }

// rememberedLooks is of how many runs it is remembered what banks they have: an
// event display asks for one event after the other.
const rememberedLooks = 256

// tooLargeToKeep is the inflated length from which a decoder's memory is given
// back after use.
const tooLargeToKeep = 64 << 20

// withDecoder calls f with a decoder when there is a place for the run.
func (m *materializer) withDecoder(ctx context.Context, s *source, r *run, f func(*decoder) error) error {
	p, err := m.enter(ctx, s, r)
	if err != nil {
		return err
	}
	defer p.leave()
	return m.lendDecoder(r, f)
}

// withRun calls f with a decoder, and with what was fetched of a run.
func (m *materializer) withRun(ctx context.Context, s *source, r int32, what reading, f func(*decoder, *fetched) error) error {
	got, err := m.fetch(ctx, s, r, what)
	if err != nil {
		return err
	}
	defer m.release(got)
	return m.withDecoder(ctx, s, s.runAt(r), func(d *decoder) error { return f(d, got) })
}

// lendDecoder calls f with a decoder.
func (m *materializer) lendDecoder(r *run, f func(*decoder) error) error {
	began := time.Now()
	m.inFlight.Add(1)
	defer func() {
		m.inFlight.Add(-1)
		m.decodeTime.Add(int64(time.Since(began)))
	}()
	d := m.shop.decoder()
	err := m.chain.guard(func() error { return f(d) })
	if r.inflated < tooLargeToKeep && !errors.Is(err, errPanic) {
		m.shop.rest(d)
	}
	return err
}

var errPanic = errors.New("internal error: panic")

// guard makes a panic in f an error: a bug that one record brings out must not
// end the mount.
func (c *Chain) guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errPanic, p)
			c.faults.add(err, "stack", string(debug.Stack()))
		}
	}()
	return f()
}

// note counts what reading a record took.
func (m *materializer) note(rec *hipo.Record) {
	m.recordsDecoded.Add(1)
	m.streamsDecoded.Add(int64(rec.Streams))
	m.bytesRead.Add(rec.BytesRead)
	m.bytesInflated.Add(rec.BytesInflated)
	if m.chain.progress != nil {
		m.chain.progress(rec.BytesRead)
	}
}

type flightKey struct{ source, run int32 }

// flight is the decoding of one run, under way, and those who wait for it.
type flight struct {
	want    wanted
	gives   func(chunkKey) bool // whether it gathers a chunk of content
	cancel  context.CancelFunc
	done    chan struct{}
	partial bool // it may know nothing of other banks than those it gathers
	waiters int  // under materializer.mu

	chunks map[chunkKey][]byte // once done
	found  []*looked
	faults map[bankID]error
	err    error
}

// covers reports whether the flight gives a chunk. A decode gives the ends of all
// banks, and the tags, unless it is partial.
func (f *flight) covers(k chunkKey) bool {
	if k.column == endsColumn || k.bank == tagsBank {
		return !f.partial
	}
	return f.gives(k)
}

// wants decides what a decode for a chunk gathers.
type wants func(s *source, k chunkKey) (want wanted, gives func(chunkKey) bool)

// looked is a bank as a decode has found it in a run.
type looked struct {
	bank   bankID
	layout *hipo.Schema
	kind   string // what a structure without a schema is, for messages
	total  int64  // rows
	err    error  // why the bank cannot be served

	primitive uint8  // type of a primitive node
	format    string // of a composite bank
}

// chunk gives a chunk of a counted file: kept, from a decode under way, or
// decoded now. It gives up with the context; the decode goes on if others wait.
func (m *materializer) chunk(ctx context.Context, s *source, k chunkKey) ([]byte, error) {
	return m.chunkBy(ctx, s, k, m.chainWants)
}

// chunkBy gives a chunk, which it decodes, if need be, with others that w wants.
func (m *materializer) chunkBy(ctx context.Context, s *source, k chunkKey, w wants) ([]byte, error) {
	if err := s.contrary.Load(); err != nil {
		return nil, *err
	}
	if b, ok := m.chunks.get(k); ok {
		m.hits.Add(1)
		return b, nil
	}
	if b, ok := m.known(s, k); ok {
		return b, nil
	}
	m.mu.Lock()
	// It may have come while nobody was looking.
	if b, ok := m.chunks.get(k); ok {
		m.mu.Unlock()
		m.hits.Add(1)
		return b, nil
	}
	m.misses.Add(1)
	f := m.join(s, k, w)
	f.waiters++
	m.mu.Unlock()
	if err := m.awaitFlight(ctx, s, k, f); err != nil {
		return nil, err
	}
	if err := f.faults[k.bank]; err != nil {
		return nil, err
	}
	if err := s.contrary.Load(); err != nil { // found by another decode meanwhile
		return nil, *err
	}
	b, ok := f.chunks[k]
	if !ok && k.column == endsColumn { // a record alone may have no row of what its run has
		return make([]byte, 4*s.runAt(k.run).entries), nil
	}
	if !ok {
		return nil, fmt.Errorf("internal error: decoding run %d of %s gave no column %d of %s", k.run, s.file.Name, k.column, m.chain.bankName(k.bank))
	}
	return b, nil
}

// there gives a chunk of a counted file, if that takes no decode.
func (m *materializer) there(s *source, k chunkKey) ([]byte, bool) {
	if b, ok := m.chunks.get(k); ok {
		return b, true
	}
	return m.known(s, k)
}

// known makes a chunk without a decode, if that can be: out of an index or, of a
// record alone, out of what is there of the run that it lies in.
func (m *materializer) known(s *source, k chunkKey) ([]byte, bool) {
	counts := k.column == endsColumn || k.bank == tagsBank
	if int(k.run) < len(s.runs) {
		if counts {
			return m.fromIndex(s, k)
		}
		return nil, false
	}
	whole, from := s.wholeRun(k.run)
	to := from + s.runAt(k.run).entries
	there := func(column int32) ([]byte, bool) {
		return m.there(s, chunkKey{k.source, int32(whole), k.bank, column})
	}
	all, ok := there(k.column)
	if !ok {
		return nil, false
	}
	if k.bank == tagsBank {
		return all[4*from : 4*to], true
	}
	ends := all
	if !counts {
		if ends, ok = there(endsColumn); !ok {
			return nil, false
		}
	}
	_, first := end(ends, from)
	if !counts {
		last, _ := end(ends, to-1)
		rows, _ := end(ends, int64(len(ends)/4-1))
		width := int64(len(all)) / rows
		return all[first*width : last*width], true
	}
	b := make([]byte, 0, 4*(to-from))
	for e := from; e < to; e++ {
		through, _ := end(ends, e)
		b = binary.LittleEndian.AppendUint32(b, uint32(through-first))
	}
	return b, true
}

// awaitFlight waits for a flight of which the caller is one of the waiters.
func (m *materializer) awaitFlight(ctx context.Context, s *source, k chunkKey, f *flight) error {
	who := m.reader(ctx, s, k)
	m.waiters.enter(who)
	var err error
	select {
	case <-f.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	m.waiters.leave(who)
	m.leave(k, f)
	if err == nil && f.err != nil {
		s.wasVerified(k, f.err)
		err = f.err
	}
	return err
}

// look gives what banks a run has, whether its file is counted or not: remembered,
// or from a decode that also gathers what w wants.
func (m *materializer) look(ctx context.Context, s *source, r int32, w wants) ([]*looked, error) {
	if err := s.contrary.Load(); err != nil {
		return nil, *err
	}
	k := chunkKey{s.number, r, tagsBank, 0}
	m.mu.Lock()
	if found, ok := m.looks.Get(flightKey{s.number, r}); ok {
		m.mu.Unlock()
		return found, nil
	}
	f := m.join(s, k, w)
	f.waiters++
	m.mu.Unlock()
	if err := m.awaitFlight(ctx, s, k, f); err != nil {
		return nil, err
	}
	return f.found, nil
}

// reader is who waits for a decode that gives a chunk.
func (m *materializer) reader(ctx context.Context, s *source, k chunkKey) *Waiting {
	who := &Waiting{Reader: ctx, For: forDecoding, File: s.info.Name}
	switch {
	case k.bank == tagsBank:
		who.Column = "event_tags"
		return who
	case int(k.bank) < len(m.chain.banks.schemas):
		who.Bank = m.chain.banks.schemas[k.bank].Name
	default:
		group, item := m.chain.nodeIDs(k.bank)
		who.Bank = fmt.Sprintf("%d.%d", group, item)
	}
	who.Column = "offsets"
	switch {
	case k.column == endsColumn:
	case int(k.bank) < len(m.chain.banks.schemas):
		who.Column = m.chain.banks.schemas[k.bank].Columns[k.column].Name
	default:
		who.Column = "f" + strconv.Itoa(int(k.column))
		if t := s.tablesSoFar()[k.bank]; t != nil {
			who.Column = t.layout.Columns[k.column].Name
		}
	}
	return who
}

// leave is for who waits for the flight no longer.
func (m *materializer) leave(k chunkKey, f *flight) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.waiters--; f.waiters == 0 {
		f.cancel()
		m.land(flightKey{k.source, k.run}, f)
	}
}

// ahead starts to decode a chunk that will be asked for.
func (m *materializer) ahead(s *source, k chunkKey, w wants) {
	if m.chunks.has(k) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.chunks.has(k) { // nor has it come while nobody was looking
		m.join(s, k, w)
	}
}

// join finds the flight that gives a chunk, or starts one. m.mu is held.
func (m *materializer) join(s *source, k chunkKey, w wants) *flight {
	if f := m.flying(k); f != nil {
		return f
	}
	return m.launch(s, k, w, m.fly)
}

// flying is the flight under way that gives a chunk, nil if there is none. m.mu
// is held.
func (m *materializer) flying(k chunkKey) *flight {
	for _, f := range m.flights[flightKey{k.source, k.run}] {
		if f.covers(k) {
			return f
		}
	}
	return nil
}

// launch starts a flight. m.mu is held.
func (m *materializer) launch(s *source, k chunkKey, w wants, fly func(context.Context, *source, chunkKey, *flight)) *flight {
	fk := flightKey{k.source, k.run}
	if m.finished[columnKey{k.bank, k.column}] {
		m.begin(k.bank)
	}
	ctx, cancel := context.WithCancel(m.chain.ctx)
	want, gives := w(s, k)
	f := &flight{want: want, gives: gives, cancel: cancel, done: make(chan struct{}), partial: s.restores(k)}
	m.flights[fk] = append(m.flights[fk], f)
	m.chain.work.Go(func() {
		if err := m.chain.guard(func() error { fly(ctx, s, k, f); return nil }); err != nil {
			f.err = err
		}
		cancel()
		m.mu.Lock()
		m.land(fk, f)
		m.mu.Unlock()
		close(f.done)
	})
	return f
}

// land removes a flight from those that can be joined. m.mu is held.
func (m *materializer) land(fk flightKey, f *flight) {
	fs := m.flights[fk]
	for i := range fs {
		if fs[i] == f {
			fs[i] = fs[len(fs)-1]
			fs = fs[:len(fs)-1]
			break
		}
	}
	if len(fs) == 0 {
		delete(m.flights, fk)
	} else {
		m.flights[fk] = fs
	}
}

// chainWants is what a decode gathers for a reader of a whole file or chain.
func (m *materializer) chainWants(s *source, k chunkKey) (wanted, func(chunkKey) bool) {
	return s.gathering(m.flightWants(s, k))
}

// bankWants is the same for a reader who goes through all columns of the bank,
// run by run. Of a split record with a stream for each column it is no more.
func (m *materializer) bankWants(s *source, k chunkKey) (wanted, func(chunkKey) bool) {
	want := m.flightWants(s, k)
	if t := s.tables[k.bank]; t != nil && t.err == nil && !s.runs[k.run].byColumn {
		columns := make([]bool, len(t.layout.Columns))
		for c := range columns {
			columns[c] = int32(c) == k.column || !m.chunks.has(chunkKey{k.source, k.run, k.bank, int32(c)})
		}
		want[k.bank] = columns
	}
	return s.gathering(want)
}

// gathering makes wants of a list of columns.
func (s *source) gathering(want map[bankID][]bool) (wanted, func(chunkKey) bool) {
	gives := func(k chunkKey) bool {
		keep := want[k.bank]
		return int(k.column) < len(keep) && keep[k.column]
	}
	return func(id bankID, layout *hipo.Schema) []bool {
		if t := s.tables[id]; t == nil || !t.layout.SameLayout(layout) {
			return nil // checkPart says so
		}
		return want[id]
	}, gives
}

// flightWants decides what a decode for chunk k gathers: k; of the other
// columns those that are to be kept and are not there. Of a split record it
// takes only the streams that k needs. m.mu is held.
func (m *materializer) flightWants(s *source, k chunkKey) map[bankID][]bool {
	want := map[bankID][]bool{}
	r := &s.runs[k.run]
	content := k.bank != tagsBank && k.column != endsColumn
	for id, t := range s.tables {
		if t.err != nil || t.in(int(k.run)) == 0 {
			continue
		}
		mine := content && id == k.bank
		if r.split && !mine {
			continue
		}
		keep := m.keep[id]
		var w []bool
		for c := range t.layout.Columns {
			yes := mine && c == int(k.column)
			if !yes && c < len(keep) && keep[c] && !r.byColumn && !m.finished[columnKey{id, int32(c)}] {
				yes = !m.chunks.has(chunkKey{k.source, k.run, id, int32(c)})
			}
			if yes {
				if w == nil {
					w = make([]bool, len(t.layout.Columns))
				}
				w[c] = true
			}
		}
		if w != nil {
			want[id] = w
		}
	}
	return want
}

// fly decodes the run for a reader, and keeps what it gave.
func (m *materializer) fly(ctx context.Context, s *source, k chunkKey, f *flight) {
	f.err = m.withRun(ctx, s, k.run, reading{f.want, f.partial}, func(d *decoder, got *fetched) error { return m.gather(d, s, k, f, got) })
	if f.err != nil {
		return
	}
	if !f.partial {
		m.mu.Lock()
		m.looks.Add(flightKey{k.source, k.run}, f.found)
		m.mu.Unlock()
	}
	// What is asked for next comes last, so that it is there the longest.
	for ck, b := range f.chunks {
		if ck.bank != k.bank {
			m.chunks.add(ck, b)
		}
	}
	for ck, b := range f.chunks {
		if ck.bank == k.bank && ck != k {
			m.chunks.add(ck, b)
		}
	}
	if b, ok := f.chunks[k]; ok {
		m.chunks.add(k, b)
	}
}

// flyAside does the same for no reader: beside the decodes that readers wait
// for, and keeping what needs nothing else to go.
func (m *materializer) flyAside(ctx context.Context, s *source, k chunkKey, f *flight) {
	got, err := m.fetch(ctx, s, k.run, reading{f.want, f.partial})
	if err != nil {
		f.err = err
		return
	}
	defer m.release(got)
	f.err = m.lendDecoder(s.runAt(k.run), func(d *decoder) error { return m.gather(d, s, k, f, got) })
	if f.err != nil {
		return
	}
	for ck, b := range f.chunks {
		m.chunks.addIfRoom(ck, b, passShare)
	}
}

// gather decodes the run into a flight's chunks.
func (m *materializer) gather(d *decoder, s *source, k chunkKey, f *flight, got *fetched) error {
	out, err := d.decode(s, k.run, f.want, got, m.note)
	if _, damage := errors.AsType[*hipo.FormatError](err); damage && !errors.Is(err, ErrChanged) && got.restored() {
		// The index may be wrong about where streams are; the directory is not.
		got.directories = nil
		out, err = d.decode(s, k.run, f.want, got, m.note)
	}
	if err != nil {
		m.chain.faults.add(err)
		return err
	}
	f.chunks = map[chunkKey][]byte{}
	if !got.restored() {
		f.chunks[chunkKey{k.source, k.run, tagsBank, 0}] = out.tags
	}
	f.faults = map[bankID]error{}
	for i := range out.parts {
		p := &out.parts[i]
		err := s.checkPart(k.run, p)
		if err == nil && p.keep != nil {
			err = m.checkEnds(s, k.run, p)
		}
		f.found = append(f.found, &looked{p.bank, p.layout, p.kind, p.rows, err, p.primitive, p.format})
		if err != nil {
			m.chain.faults.add(err)
			f.faults[p.bank] = err
			continue
		}
		f.chunks[chunkKey{k.source, k.run, p.bank, endsColumn}] = ends(p.counts)
		for c, b := range p.columns {
			if len(b) > 0 {
				f.chunks[chunkKey{k.source, k.run, p.bank, int32(c)}] = b
			}
		}
	}
	return nil
}

// checkEnds compares the counts of entries that an index gives with what a
// decode gave.
func (m *materializer) checkEnds(s *source, r int32, p *part) error {
	k := chunkKey{s.number, r, p.bank, endsColumn}
	idx := s.index.Load()
	if idx == nil || p.rows == 0 {
		return nil
	}
	said, ok := m.chunks.get(k)
	if !ok {
		if said, ok = m.known(s, k); !ok {
			return nil
		}
	}
	if !bytes.Equal(said, ends(p.counts)) {
		err := fmt.Errorf("%s: %s has other rows an entry than its index says: %w", s.info.Name, s.chain.bankName(p.bank), ErrChanged)
		return s.contradict(idx, "it gives other entries their rows", err)
	}
	return nil
}

// checkPart compares what a decode gave with what was counted.
func (s *source) checkPart(r int32, p *part) error {
	if p.err != nil {
		return p.err
	}
	tables := s.tablesSoFar()
	t, run := tables[p.bank], s.runAt(r)
	if tables != nil && (t == nil || int(r) < len(s.runs) && t.in(int(r)) != p.rows) {
		err := fmt.Errorf("%s: %s has %d rows in records %d to %d, other than were counted: %w",
			s.file.Name, s.chain.bankName(p.bank), p.rows, run.first, run.first+run.records-1, ErrChanged)
		return s.otherThanCounted("it counts other rows", err)
	}
	if t != nil && t.err == nil && !t.layout.SameLayout(p.layout) {
		err := fmt.Errorf("%s: %s has other columns in records %d to %d than were counted: %w",
			s.file.Name, s.chain.bankName(p.bank), run.first, run.first+run.records-1, ErrChanged)
		return s.otherThanCounted("it gives a structure other columns", err)
	}
	for k, b := range p.columns {
		if p.keep[k] && int64(len(b)) != p.rows*int64(p.layout.Columns[k].Width()) {
			return fmt.Errorf("internal error: %d bytes for %d rows of %s/%s", len(b), p.rows, s.chain.bankName(p.bank), p.layout.Columns[k].Name)
		}
	}
	return nil
}

// otherThanCounted is for a decode that gave something else than was counted. If
// an index was believed about that, nothing that it told holds any more.
func (s *source) otherThanCounted(why string, err error) error {
	if s.byIndex {
		return s.contradict(s.index.Load(), why, err)
	}
	return err
}
