package materialize

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/zeebo/xxh3"

	"github.com/hipofs/hipofs/hipo"
)

// survey collects what a counting pass finds out, for the index.
type survey struct {
	src    *source
	groups []group

	mu   sync.Mutex
	left []int                 // runs of each group that are not through
	open []map[bankID][]uint32 // counts of groups that are not packed; tagsBank has the tags
	done []map[bankID][]byte   // packed
}

func newSurvey(s *source) *survey {
	v := &survey{src: s, groups: makeGroups(s.runs)}
	v.left = make([]int, len(v.groups))
	v.open = make([]map[bankID][]uint32, len(v.groups))
	v.done = make([]map[bankID][]byte, len(v.groups))
	for g := range v.groups {
		v.left[g] = v.groups[g].runs
	}
	return v
}

// add takes in a decoded run, and packs its group if that was the last one.
func (v *survey) add(r int, out *decoded, k *packer) {
	g := groupOf(v.groups, r)
	gr := &v.groups[g]
	first := v.src.runs[r].entry - v.src.runs[gr.first].entry
	v.mu.Lock()
	if v.open[g] == nil {
		v.open[g] = map[bankID][]uint32{}
	}
	counts := func(id bankID) []uint32 {
		c := v.open[g][id]
		if c == nil {
			c = make([]uint32, gr.entries)
			v.open[g][id] = c
		}
		return c[first : first+v.src.runs[r].entries]
	}
	for i := range out.parts {
		if p := &out.parts[i]; p.rows > 0 && p.err == nil {
			copy(counts(p.bank), p.counts)
		}
	}
	for e, c := 0, counts(tagsBank); e < len(c); e++ {
		c[e] = binary.LittleEndian.Uint32(out.tags[4*e:])
	}
	v.left[g]--
	var all map[bankID][]uint32
	if v.left[g] == 0 {
		all, v.open[g] = v.open[g], nil
	}
	v.mu.Unlock()
	if all == nil {
		return
	}
	packed := make(map[bankID][]byte, len(all))
	for id, c := range all {
		packed[id] = k.pack(nil, c)
	}
	v.mu.Lock()
	v.done[g] = packed
	v.mu.Unlock()
}

// save writes the index of a file whose pass is through.
func (v *survey) save(path string) error {
	s := v.src
	outline, err := s.file.Outline()
	if err != nil {
		return err
	}
	h := &indexHead{
		id: s.handle.id, header: outline.Header, groups: len(v.groups), sums: s.sums,
		dictionary: compress(outline.Dictionary), dictionaryLength: int64(len(outline.Dictionary)),
		records: compress(outline.Records), recordsLength: int64(len(outline.Records)),
	}
	if h.headSum, h.tailSum, err = s.endSums(); err != nil {
		return err
	}
	var blocks []byte
	put := func(id bankID) []block {
		bs := make([]block, len(v.groups))
		for g, packed := range v.done {
			if b := packed[id]; b != nil {
				bs[g] = block{length: uint32(len(b)), sum: xxh3.Hash(b)}
				blocks = append(blocks, b...)
			}
		}
		return bs
	}
	h.tags = put(tagsBank)
	ids := make([]bankID, 0, len(s.tables))
	for id := range s.tables {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		h.tables = append(h.tables, s.indexTable(id, s.tables[id]))
		h.counts = append(h.counts, put(id))
	}
	h.asked = s.chain.m.askedNames()
	return writeIndex(path, h, blocks, s.info.Mode.Perm())
}

// SaveError is about an index that cannot be written.
type SaveError struct {
	Path string
	Err  error
}

func (e *SaveError) Error() string {
	err := e.Err
	var pe *iofs.PathError // names a temporary file
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Sprintf("%s: the index cannot be written: %v", e.Path, err)
}

func (e *SaveError) Unwrap() error { return e.Err }

// saveIndex saves what the pass has found out, and goes by it from now on.
func (s *source) saveIndex(v *survey) error {
	path := s.info.Name + IndexSuffix
	if !s.chain.beside {
		path = IndexPath(s.chain.indexDir, s.info.Name)
		if err := os.MkdirAll(s.chain.indexDir, 0o700); err != nil {
			return &SaveError{path, err}
		}
	}
	if err := v.save(path); err != nil {
		return &SaveError{path, err}
	}
	s.news.Store(false)
	head, err := readIndex(path)
	if err == nil {
		err = s.adopt(head, path)
	}
	s.confirmed = err == nil
	return err
}

// indexTable is a table as an index has it.
func (s *source) indexTable(id bankID, t *table) indexTable {
	x := indexTable{filled: t.filled, rows: make([]int64, len(s.runs)), decoded: s.decodedColumns(id)}
	if int(id) < len(s.chain.banks.schemas) {
		x.name = s.chain.banks.schemas[id].Name
	} else {
		x.group, x.item = s.chain.nodeIDs(id)
		x.prim, x.format = t.primitive, t.format
	}
	if t.err != nil {
		x.failure = t.err.Error()
	}
	for r := range x.rows {
		x.rows[r] = t.in(r)
	}
	return x
}

// decodedColumns are the columns of a bank that have been verified.
func (s *source) decodedColumns(id bankID) []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var columns []int64
	for k, err := range s.verified {
		if k.bank == id && err == nil {
			columns = append(columns, int64(k.column))
		}
	}
	slices.Sort(columns)
	return columns
}

// endSums are the checksums of the file before its first record and behind its
// last: header, dictionary, trailer.
func (s *source) endSums() (head, tail uint64, err error) {
	first := s.file.Header.FirstRecord()
	last := first
	if n := len(s.file.Records); n > 0 {
		last = s.file.Records[n-1].Off + s.file.Records[n-1].Length
	}
	if head, err = s.sumOf(0, first); err != nil {
		return 0, 0, err
	}
	tail, err = s.sumOf(last, s.file.Size)
	return head, tail, err
}

func (s *source) sumOf(from, to int64) (uint64, error) {
	x := xxh3.New()
	if _, err := io.Copy(x, io.NewSectionReader(s.handle, from, to-from)); err != nil {
		return 0, fmt.Errorf("%s: byte %d: %w", s.info.Name, from, err)
	}
	return x.Sum64(), nil
}

// saved is an index that a source goes by.
type saved struct {
	path             string
	id               identity
	headSum, tailSum uint64
	groups           []group
	tags             []block
	counts           map[bankID][]block
	asked            [][2]string
}

// errNoIndex says that there is none, which is no fault.
var errNoIndex = errors.New("no index")

// known are the dictionaries of indexes that have been read, by the bytes that
// are stored of them, so that files which share one share its memory.
type known struct {
	mu    sync.Mutex
	parts map[string]knownDictionary
}

type knownDictionary struct {
	raw    []byte
	parsed *hipo.Dictionary
}

// loadIndex opens a file by an index at path. Without one the error is
// errNoIndex; another error says why the one that is there is of no use.
func loadIndex(path string, h *handle, o hipo.Options, k *known) (*hipo.File, *indexHead, error) {
	head, err := readIndex(path)
	switch {
	case errors.Is(err, iofs.ErrNotExist):
		return nil, nil, errNoIndex
	case err != nil:
		return nil, nil, err
	}
	if head.id.size != h.id.size || head.id.mtime != h.id.mtime {
		return nil, nil, errors.New("the file has changed since")
	}
	records, err := decompress(head.records, head.recordsLength)
	if err != nil {
		return nil, nil, err
	}
	key := string(head.dictionary)
	k.mu.Lock()
	d, ok := k.parts[key]
	k.mu.Unlock()
	if !ok {
		if d.raw, err = decompress(head.dictionary, head.dictionaryLength); err != nil {
			return nil, nil, err
		}
	}
	x := xxh3.New()
	_, _ = x.Write(head.header) // it never fails
	_, _ = x.Write(d.raw)
	if x.Sum64() != head.headSum { // which confirm compares with the file
		return nil, nil, errIndex
	}
	f, err := hipo.Restore(h.name, h, h.id.size, hipo.Outline{Header: head.header, Dictionary: d.raw, Records: records}, d.parsed, o)
	if err != nil {
		return nil, nil, err
	}
	if !ok {
		d.parsed = f.Dictionary
		k.mu.Lock()
		if other, ok := k.parts[key]; ok {
			f.Dictionary = other.parsed
		} else {
			k.parts[key] = d
		}
		k.mu.Unlock()
	}
	head.header, head.dictionary, head.records = nil, nil, nil
	return f, head, nil
}

// adopt makes the tables of an index those of the source, if they can be.
func (s *source) adopt(head *indexHead, path string) error {
	idx, tables, verified, err := s.understand(head, path)
	if err != nil {
		return err
	}
	s.sums, s.tables, s.verified = head.sums, tables, verified
	s.index.Store(idx)
	return nil
}

// understand takes the tables out of an index, and what it says of columns that
// have been decoded. It checks whatever needs no look at the file.
func (s *source) understand(head *indexHead, path string) (*saved, map[bankID]*table, map[columnKey]error, error) {
	fail := func(err error) (*saved, map[bankID]*table, map[columnKey]error, error) { return nil, nil, nil, err }
	groups := makeGroups(s.runs)
	if len(head.sums) != len(s.file.Records) || head.groups != len(groups) {
		return fail(errIndex)
	}
	for i := range head.sums {
		if head.sums[i].streams != nil && !s.file.Records[i].Split() {
			return fail(errIndex)
		}
	}
	tables := make(map[bankID]*table, len(head.tables))
	idx := &saved{
		path: path, id: head.id, headSum: head.headSum, tailSum: head.tailSum, groups: groups,
		tags: head.tags, counts: make(map[bankID][]block, len(head.tables)), asked: head.asked,
	}
	verified := map[columnKey]error{}
	for i := range head.tables {
		x := &head.tables[i]
		t := &table{filled: x.filled, primitive: x.prim, format: x.format}
		id, ok := s.chain.banks.byName[x.name]
		switch {
		case x.name != "" && (!ok || s.plan.dictionary.Lookup(x.name) == nil):
			return fail(errIndex)
		case x.name != "":
			t.layout = s.plan.dictionary.Lookup(x.name)
		default:
			if s.plan.declared(x.group, x.item) != nil && x.format == "" {
				return fail(errIndex)
			}
			var err error
			if id, err = s.chain.node(x.group, x.item); err != nil {
				return fail(err)
			}
			if x.format != "" {
				t.layout, t.kind = hipo.Composite(x.format), compositeKind(x.format)
			} else {
				t.layout, t.kind = hipo.Primitive(x.prim), primitiveKind(x.prim)
			}
			if t.layout.RowSize == 0 {
				return fail(errIndex)
			}
		}
		if tables[id] != nil || len(x.rows) != len(s.runs) || x.filled > s.entries {
			return fail(errIndex)
		}
		if x.failure != "" {
			t.err = errors.New(x.failure)
			s.chain.faults.add(t.err)
		}
		t.rows = make([]int64, len(s.runs)+1)
		for r, n := range x.rows {
			if n < 0 || n > s.runs[r].data/int64(t.layout.RowSize) {
				return fail(errIndex)
			}
			t.rows[r+1] = t.rows[r] + n
		}
		for g, b := range head.counts[i] {
			last := groups[g].first + groups[g].runs
			if int64(b.length) > groups[g].maxPacked() || t.err == nil && (b.length == 0) != (t.rows[last] == t.rows[groups[g].first]) {
				return fail(errIndex)
			}
		}
		for _, k := range x.decoded {
			if k >= int64(len(t.layout.Columns)) {
				return fail(errIndex)
			}
			verified[columnKey{id, int32(k)}] = nil
		}
		tables[id], idx.counts[id] = t, head.counts[i]
	}
	for g := range groups {
		if n := head.tags[g].length; n == 0 || int64(n) > groups[g].maxPacked() {
			return fail(errIndex)
		}
	}
	return idx, tables, verified, nil
}

// reread gives the index anew if another process has written it again since,
// with what it has learned, and says the same of the file; nil if not.
func (s *source) reread(old *saved) *saved {
	head, err := readIndex(old.path)
	if err != nil || head.id != old.id || head.headSum != old.headSum || head.tailSum != old.tailSum {
		return nil
	}
	idx, tables, _, err := s.understand(head, old.path)
	if err != nil || len(tables) != len(s.tables) {
		return nil
	}
	for id, t := range tables {
		if mine := s.tables[id]; mine == nil || !slices.Equal(mine.rows, t.rows) {
			return nil
		}
	}
	s.sumMu.Lock()
	defer s.sumMu.Unlock()
	for i := range s.sums {
		if s.sums[i].whole != head.sums[i].whole {
			return nil
		}
	}
	if !s.index.CompareAndSwap(old, idx) {
		return nil
	}
	return idx
}

// trusted reports whether an index file is as safe as the file it is about:
// nobody but this user, root or the file's owner can have written it.
func trusted(path string, owner uint32) error {
	st, err := os.Lstat(path)
	if errors.Is(err, iofs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return errNoIndex
	}
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || !st.Mode().IsRegular() {
		return errors.New("it is not a regular file")
	}
	if sys.Uid != owner && sys.Uid != 0 && int(sys.Uid) != os.Getuid() || st.Mode().Perm()&0o022 != 0 {
		return errors.New("others can write it")
	}
	return nil
}

// confirm compares, once, what an index says of a file's beginning and end with
// the file.
func (s *source) confirm() error {
	idx := s.index.Load()
	if idx == nil {
		return nil
	}
	s.confirming.Lock()
	defer s.confirming.Unlock()
	if s.confirmed {
		return nil
	}
	head, tail, err := s.endSums()
	if err != nil {
		return err
	}
	if head != idx.headSum || tail != idx.tailSum {
		err := fmt.Errorf("%s: header, dictionary or end are not those that were indexed: %w", s.info.Name, ErrChanged)
		return s.contradict(idx, "its header, dictionary or end are others", err)
	}
	s.confirmed = true
	return nil
}

// dropIndex forgets an index that is wrong, so that the next mount counts anew.
func (s *source) dropIndex(idx *saved, why string) {
	if !s.index.CompareAndSwap(idx, nil) {
		return
	}
	s.chain.m.chunks.forget(func(k chunkKey) bool {
		return k.source == s.number && (k.column == endsColumn || k.bank == tagsBank)
	})
	if s.owns(idx) {
		os.Remove(idx.path) // another process may have been faster
	} else {
		why += "; its owner can make it again, and --no-index does without it"
	}
	s.chain.log.Warn(fmt.Sprintf("%s: the index is wrong and no longer used: %s", idx.path, why))
}

// owns reports whether an index lies in the folder of indexes. What lies beside
// the data is nobody's to change unasked.
func (s *source) owns(idx *saved) bool {
	return s.chain.indexDir != "" && idx.path == IndexPath(s.chain.indexDir, s.info.Name)
}

// contradict notes that file and index contradict each other, and gives err, as
// whatever is asked of the file from now on does: rows and offsets that were
// told by the index must not be joined with columns by the file.
func (s *source) contradict(idx *saved, why string, err error) error {
	s.contrary.CompareAndSwap(nil, &err)
	s.dropIndex(idx, why)
	return err
}

// checkStored compares stored bytes with their checksum, or takes that.
func (s *source) checkStored(number int, rec *hipo.Record, part int, stored []byte) error {
	x := xxh3.Hash(stored)
	s.sumMu.Lock()
	r := &s.sums[number]
	at := &r.whole
	if part != hipo.Whole {
		if r.streams == nil {
			r.streams = make([]sum, rec.StreamCount())
		}
		if part >= len(r.streams) {
			s.sumMu.Unlock()
			return s.notIndexed(number, "it has other streams")
		}
		at = &r.streams[part]
	}
	known := *at
	if !known.known {
		*at = sum{x, true}
		s.news.Store(true)
	}
	s.sumMu.Unlock()
	if known.known && known.xxh3 != x {
		what := "its bytes"
		if part != hipo.Whole {
			what = fmt.Sprintf("the bytes of stream %d", part)
		}
		return s.notIndexed(number, what+" are not those that were indexed (if they were changed on purpose, run hipofs index)")
	}
	return nil
}

// notIndexed is the error about a record that is not as it was indexed.
func (s *source) notIndexed(number int, what string) error {
	fe := &hipo.FormatError{File: s.info.Name, Record: number, Off: s.file.Records[number].Off, Msg: what}
	return fmt.Errorf("%w: %w", fe, ErrChanged)
}

// sinceIndexed makes of an error that came before the record's bytes could be
// compared with their checksum what it is: with these bytes there would be none.
func (s *source) sinceIndexed(number int, err error) error {
	var fe *hipo.FormatError
	if s.sums == nil || !errors.As(err, &fe) {
		return err
	}
	s.sumMu.Lock()
	defer s.sumMu.Unlock()
	if s.sums[number].whole.known {
		return fmt.Errorf("%w: %w", err, ErrChanged)
	}
	return err
}

// fromIndex makes the ends, or the tags, of run r from the index, and keeps
// those of the runs beside it. It reports false if there is no index, or none
// to be believed.
func (m *materializer) fromIndex(s *source, k chunkKey) ([]byte, bool) {
	idx := s.index.Load()
	if idx == nil {
		return nil, false
	}
	if k.bank != tagsBank && idx.counts[k.bank] == nil {
		return nil, false
	}
	g := groupOf(idx.groups, int(k.run))
	gr := idx.groups[g]
	counts, err := m.groupCounts(idx, k.bank, g)
	if err != nil {
		if again := s.reread(idx); again != nil {
			idx = again
			counts, err = m.groupCounts(idx, k.bank, g)
		}
	}
	if err != nil {
		s.dropIndex(idx, err.Error())
		return nil, false
	}
	var mine []byte
	for r := gr.first; r < gr.first+gr.runs; r++ {
		n := s.runs[r].entries
		chunk := make([]byte, 0, 4*n)
		var sum uint64
		for _, c := range counts[:n] {
			if k.bank != tagsBank {
				sum += uint64(c)
				c = uint32(sum)
			}
			chunk = binary.LittleEndian.AppendUint32(chunk, c)
		}
		counts = counts[n:]
		if k.bank != tagsBank && sum != uint64(s.tables[k.bank].in(r)) {
			s.dropIndex(idx, "counts of entries and of records differ")
			return nil, false
		}
		if k.bank != tagsBank && sum == 0 {
			continue
		}
		rk := k
		rk.run = int32(r)
		if r == int(k.run) {
			mine = chunk
		}
		m.chunks.add(rk, chunk)
	}
	return mine, mine != nil
}

// groupCounts reads the counts of a bank in a group of entries, or the tags.
func (m *materializer) groupCounts(idx *saved, bank bankID, g int) ([]uint32, error) {
	b := idx.tags[g]
	if bank != tagsBank {
		b = idx.counts[bank][g]
	}
	packed, err := readBlock(idx.path, b)
	if err != nil {
		return nil, err
	}
	counts := make([]uint32, idx.groups[g].entries)
	p := m.packer()
	defer m.packers.Put(p)
	return counts, p.unpack(counts, packed)
}

func (m *materializer) packer() *packer {
	p, _ := m.packers.Get().(*packer)
	return cmp.Or(p, new(packer))
}

// learn adds the checksums of streams that this process knows to those of the
// index, which another process may have added to.
func (s *source) learn(head *indexHead) {
	for i := range head.sums {
		theirs, ours := &head.sums[i], s.sums[i].streams
		if theirs.streams == nil {
			theirs.streams = ours
			continue
		}
		for j := range min(len(ours), len(theirs.streams)) {
			if ours[j].known {
				theirs.streams[j] = ours[j]
			}
		}
	}
}

// wasVerified takes back what an index said of a column's streams, if they do
// not inflate after all: from now on the column does not open.
func (s *source) wasVerified(k chunkKey, err error) {
	var fe *hipo.FormatError
	idx := s.index.Load()
	if idx == nil || !s.runs[k.run].split || !errors.As(err, &fe) || errors.Is(err, ErrChanged) {
		return // it is the file that is not what it was
	}
	s.mu.Lock()
	said, ok := s.verified[columnKey{k.bank, k.column}]
	if ok && said == nil {
		s.verified[columnKey{k.bank, k.column}] = err
	}
	s.mu.Unlock()
	if ok && said == nil {
		s.dropIndex(idx, "a column that it says to be whole is damaged")
	}
}

// sameColumns reports whether two lists name the same columns, in any order.
func sameColumns(a, b [][2]string) bool {
	order := func(list [][2]string) [][2]string {
		list = slices.Clone(list)
		slices.SortFunc(list, func(x, y [2]string) int {
			return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1]))
		})
		return list
	}
	return slices.Equal(order(a), order(b))
}

// update writes what has been learned since to the source's index, if it lies in
// the folder of indexes and that is worth it.
func (s *source) update(asked [][2]string) {
	idx := s.index.Load()
	if idx == nil || !s.news.Load() && (len(asked) == 0 || !s.confirmed || sameColumns(asked, idx.asked)) || !s.owns(idx) {
		return
	}
	all, err := os.ReadFile(idx.path)
	if err != nil {
		return // it is gone: the next mount makes another
	}
	head, blocks, err := parseIndex(all)
	if err != nil || head.id != idx.id || head.headSum != idx.headSum || head.tailSum != idx.tailSum || len(head.sums) != len(s.sums) {
		return // another process has made one since
	}
	s.learn(head)
	if len(asked) > 0 {
		head.asked = asked
	}
	for i := range head.tables {
		x := &head.tables[i]
		id, ok := s.chain.banks.byName[x.name]
		if x.name == "" {
			id, err = s.chain.node(x.group, x.item)
			ok = err == nil
		}
		if ok {
			x.decoded = append(x.decoded, s.decodedColumns(id)...)
			slices.Sort(x.decoded)
			x.decoded = slices.Compact(x.decoded)
		}
	}
	if err := writeIndex(idx.path, head, blocks, s.info.Mode.Perm()); err != nil {
		s.chain.log.Warn(fmt.Sprintf("%s: %v", idx.path, err))
	}
}
