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

	"github.com/zeebo/xxh3"

	"github.com/hipofs/hipofs/hipo"
)

// saved is an index that a source goes by.
type saved struct {
	path             string
	file             iofs.FileInfo // as it was read
	id               identity
	headSum, tailSum uint64
	groups           []group
	tags             []block
	counts           map[bankID][]block
	asked            [][2]string
}

// errNoIndex says that there is none, which is no fault; errRefused, that there
// is an empty one, which says the same and, in the folder, that one beside the
// data is of no use.
var (
	errNoIndex = errors.New("no index")
	errRefused = fmt.Errorf("%w: it is empty", errNoIndex)
)

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
	head, err := readIndex(path, h.owner, h.id.size)
	if err != nil {
		return nil, nil, err
	}
	if head.id.size != h.id.size || head.id.mtime != h.id.mtime || h.remote != nil && head.id != h.id {
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
	for _, t := range tables {
		if t.err != nil {
			s.chain.faults.add(t.err)
		}
	}
	s.sums, s.layouts, s.tables, s.verified, s.byIndex = head.sums, head.layouts, tables, verified, true
	s.index.Store(idx)
	return nil
}

// adoptOwn goes by the index that was made of the source's own pass. Checksums,
// and what has been decoded, stay where decodes for views use them meanwhile.
func (s *source) adoptOwn(head *indexHead, path string) error {
	idx, tables, _, err := s.understand(head, path)
	if err != nil {
		return err
	}
	s.tables, s.byIndex = tables, true
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
		if x := &head.sums[i]; x.streams != nil && !x.fits(&s.file.Records[i], head.layouts) {
			return fail(errIndex)
		}
	}
	tables := make(map[bankID]*table, len(head.tables))
	idx := &saved{
		path: path, file: head.file, id: head.id, headSum: head.headSum, tailSum: head.tailSum, groups: groups,
		tags: head.tags, counts: make(map[bankID][]block, len(head.tables)), asked: head.asked,
	}
	verified := map[columnKey]error{}
	for i := range head.tables {
		x := &head.tables[i]
		id, t, err := s.laidOut(x)
		if err != nil {
			return fail(err)
		}
		if tables[id] != nil || !s.takeRows(t, x, groups, head.counts[i]) {
			return fail(errIndex)
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

// laidOut makes the table of the bank that x is about, with its layout and
// without its rows.
func (s *source) laidOut(x *indexTable) (id bankID, t *table, err error) {
	t = &table{filled: x.filled, most: x.most, stored: x.stored, primitive: x.prim, format: x.format}
	if x.name != "" {
		id, ok := s.chain.banks.byName[x.name]
		t.layout = s.plan.dictionary.Lookup(x.name)
		if !ok || t.layout == nil {
			return 0, nil, errIndex
		}
		return id, t, nil
	}
	if s.plan.declared(x.group, x.item) != nil && x.format == "" {
		return 0, nil, errIndex
	}
	if id, err = s.chain.node(x.group, x.item); err != nil {
		return 0, nil, err
	}
	if x.format != "" {
		t.layout, t.kind = hipo.Composite(x.format), compositeKind(x.format)
	} else {
		t.layout, t.kind = hipo.Primitive(x.prim), primitiveKind(x.prim)
	}
	if t.layout.RowSize == 0 {
		return 0, nil, errIndex
	}
	return id, t, nil
}

// takeRows gives a table the rows that x says, and its failure. It reports
// whether what x says can be: by the runs of the file, their groups, and the
// blocks of counts that the index has for these.
func (s *source) takeRows(t *table, x *indexTable, groups []group, counts []block) bool {
	if len(x.rows) != len(s.runs) || x.filled > s.entries {
		return false
	}
	if x.failure != "" {
		t.err = errors.New(x.failure)
	}
	t.rows = make([]int64, len(s.runs)+1)
	for r, n := range x.rows {
		if n < 0 || n > s.runs[r].data/int64(t.layout.RowSize) {
			return false
		}
		t.rows[r+1] = t.rows[r] + n
	}
	if t.err == nil && x.most > t.total() || x.stored > s.length {
		return false
	}
	for g, b := range counts {
		last := groups[g].first + groups[g].runs
		if int64(b.length) > groups[g].maxPacked() || t.err == nil && (b.length == 0) != (t.rows[last] == t.rows[groups[g].first]) {
			return false
		}
	}
	return true
}

// reread gives the index anew if another process has written it again since,
// with what it has learned, and says the same of the file; nil if not.
func (s *source) reread(old *saved) *saved {
	head, err := readIndex(old.path, s.handle.owner, s.file.Size)
	if err != nil || head.id != old.id && head.id != s.handle.id || head.headSum != old.headSum || head.tailSum != old.tailSum {
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
	err := confirmEnds(s.handle, s.file, endings{idx.headSum, idx.tailSum})
	if err != nil && !unread(err) {
		return s.contradict(idx, "its header, dictionary or end are others", err)
	}
	s.confirmed = err == nil
	return err
}

// confirmEnds compares what an index says of a file's beginning and end with the
// file.
func confirmEnds(h *handle, f *hipo.File, said endings) error {
	are, err := endSums(h, f)
	if err != nil {
		return err
	}
	if are != said {
		return fmt.Errorf("%s: header, dictionary or end are not those that were indexed: %w", h.name, ErrChanged)
	}
	return nil
}

// dropIndex forgets an index that is wrong, so that the next mount counts anew.
func (s *source) dropIndex(idx *saved, why string) {
	if !s.index.CompareAndSwap(idx, nil) {
		return
	}
	s.chain.m.chunks.forget(func(k chunkKey) bool {
		// Views keep lists and counts that were made of it.
		return (k.source == s.number || k.source < 0) && (k.column == endsColumn || k.bank == tagsBank || k.bank == pickedBank)
	})
	if s.owns(idx) {
		// Not one that another process has put there since.
		if st, err := os.Lstat(idx.path); err == nil && os.SameFile(st, idx.file) && st.ModTime().Equal(idx.file.ModTime()) {
			os.Remove(idx.path)
		}
	} else {
		why += "; its owner can make it again, and " + s.refuse()
	}
	s.chain.log.Warn(fmt.Sprintf("%s: the index is wrong and no longer used: %s", idx.path, why))
}

// refuse sees to it that the next mount makes an index of its own, where this one
// has gone by what lies beside the data: it puts an empty one in the folder, where
// it is looked for first. It says what can be counted on.
func (s *source) refuse() string {
	dir := s.chain.indexDir
	if os.MkdirAll(dir, 0o700) != nil || replaceFile(IndexPath(dir, s.info.Name), nil, 0o600) != nil {
		return "--no-index does without it"
	}
	return "the next mount makes one of its own"
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
	if idx != nil { // else it was dropped before, for something that is no contradiction
		s.dropIndex(idx, why)
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
	counts, err := m.groupCounts(s, idx, k.bank, g)
	if err != nil {
		if again := s.reread(idx); again != nil {
			idx = again
			counts, err = m.groupCounts(s, idx, k.bank, g)
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, errIndex), errors.Is(err, errCounts), errors.Is(err, errNoIndex), errors.Is(err, io.EOF):
		s.dropIndex(idx, err.Error())
		return nil, false
	default: // for want of descriptors, say: the index is as good as before
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
			_ = s.contradict(idx, "counts of entries and of records differ",
				fmt.Errorf("%s: its index counts other rows of %s in entries than in records: %w", s.info.Name, m.chain.bankName(k.bank), ErrChanged))
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
func (m *materializer) groupCounts(s *source, idx *saved, bank bankID, g int) ([]uint32, error) {
	b := idx.tags[g]
	if bank != tagsBank {
		b = idx.counts[bank][g]
	}
	packed, err := readBlock(idx.path, s.handle.owner, b)
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
