package materialize

import (
	"encoding/binary"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"slices"
	"sync"

	"github.com/zeebo/xxh3"
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

// errKinds says that no index is made of a file, for what its counts would take.
var errKinds = errors.New("too many kinds of structures in few bytes")

// add takes in a decoded run, and packs its group if that was the last one.
func (v *survey) add(r int, out *decoded, k *packer) error {
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
			if 4*int64(len(v.open[g]))*gr.entries > smallCounts+2*v.src.dataOf(gr) {
				v.open[g] = nil
				v.mu.Unlock()
				return errKinds
			}
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
		return nil
	}
	packed := make(map[bankID][]byte, len(all))
	for id, c := range all {
		packed[id] = k.pack(nil, c)
	}
	v.mu.Lock()
	v.done[g] = packed
	v.mu.Unlock()
	return nil
}

// dataOf is the bytes of all events of a group, inflated.
func (s *source) dataOf(g *group) (data int64) {
	for r := g.first; r < g.first+g.runs; r++ {
		data += s.runs[r].data
	}
	return data
}

// save writes the index of a file whose pass is through.
func (v *survey) save(path string) error {
	s := v.src
	outline, err := s.file.Outline()
	if err != nil {
		return err
	}
	h := &indexHead{
		id: s.handle.id, header: outline.Header, groups: len(v.groups),
		dictionary: compress(outline.Dictionary), dictionaryLength: int64(len(outline.Dictionary)),
		records: compress(outline.Records), recordsLength: int64(len(outline.Records)),
	}
	if s.ends == nil {
		e, err := endSums(s.handle, s.file)
		if err != nil {
			return err
		}
		s.ends = &e
	}
	h.headSum, h.tailSum = s.ends.head, s.ends.tail
	if h.restSum, err = s.restSum(); err != nil {
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
	s.sumMu.Lock()
	h.sums, h.layouts = s.sums, s.layouts
	head := h.encode()
	s.sumMu.Unlock()
	return writeIndex(path, head, blocks, s.info.Mode.Perm(), s.file.Size)
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
	head, err := readIndex(path, s.handle.owner, s.file.Size)
	if err == nil {
		err = s.adoptOwn(head, path)
	}
	s.confirmed = err == nil
	return err
}

// indexTable is a table as an index has it.
func (s *source) indexTable(id bankID, t *table) indexTable {
	x := indexTable{filled: t.filled, most: t.most, stored: t.stored, rows: make([]int64, len(s.runs)), decoded: s.decodedColumns(id)}
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
