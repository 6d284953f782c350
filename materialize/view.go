package materialize

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/hipofs/hipofs/hipo"
)

// View is the entries that one tree shows: the whole chain, one of its files, or
// those of another view that pass a filter.
type View struct {
	chain   *Chain
	sources []*source
	starts  []int64    // entries before each source; one more than there are sources
	narrow  *narrowing // nil: all entries of the sources
	shown   *BankSet

	eventTags, recordTags, entryNumbers *Column

	mu    sync.Mutex
	banks []*Bank // of shown, or nil; each made when it is asked for
	nodes []*Bank // nil until the pass is through

	part    string // which entries of its sources it shows; "": its columns are not kept on disk
	setName string // in the tier; "": not made yet
	about   []byte
}

// BankSet is the banks of views that show one dictionary, which share it.
type BankSet struct {
	ids    []bankID
	names  []string
	byName []int32 // their numbers in the order of their names
}

func newBankSet(schemas []*hipo.Schema, ids []bankID) *BankSet {
	set := &BankSet{ids: ids, names: make([]string, len(ids)), byName: make([]int32, len(ids))}
	for i, id := range ids {
		set.names[i] = schemas[id].Name
		set.byName[i] = int32(i)
	}
	slices.SortFunc(set.byName, func(a, b int32) int { return strings.Compare(set.names[a], set.names[b]) })
	return set
}

// number is which of the banks has that name.
func (b *BankSet) number(name string) (int, bool) {
	i, ok := slices.BinarySearchFunc(b.byName, name, func(n int32, name string) int { return strings.Compare(b.names[n], name) })
	if !ok {
		return 0, false
	}
	return int(b.byName[i]), true
}

// Names are the names of the banks, in the dictionary's order. The slice is
// shared: do not change it.
func (b *BankSet) Names() []string { return b.names }

// RecordInfo is one record, as records.json shows it.
type RecordInfo struct {
	File        string `json:"file"`
	Record      int    `json:"record"` // in its file, from 0
	Byte        int64  `json:"byte"`
	Length      int64  `json:"length"`
	DataLength  int64  `json:"data_length"` // inflated bytes of events
	Events      int    `json:"events"`
	FirstEntry  int64  `json:"first_entry"` // in the view
	Compression int    `json:"compression"` // tag 0 to 14
	RecordTag   int64  `json:"record_tag"`
}

// Codec names the record's compression and layout.
func (r *RecordInfo) Codec() string { return hipo.CodecName(uint8(r.Compression)) }

func newView(c *Chain, sources []*source, shown *BankSet) *View {
	v := &View{chain: c, sources: sources, starts: make([]int64, len(sources)+1), shown: shown}
	for i, s := range sources {
		v.starts[i+1] = v.starts[i] + s.entries
	}
	v.eventTags = &Column{Name: "event_tags", Length: 1, Dtype: "<u4", kind: eventTagsColumn, view: v, width: 4, disk: c.newOnDisk()}
	v.recordTags = int64Column(recordTagsColumn, v, nil, "record_tags")
	v.entryNumbers = int64Column(entryNumbersColumn, v, nil, "entries")
	return v
}

// Entries is how many entries the view has; -1, if that is not known before
// records have been looked into, for which Count waits.
func (v *View) Entries() int64 {
	if v.narrow == nil {
		return v.starts[len(v.sources)]
	}
	c := v.narrow.try()
	if c == nil {
		return -1
	}
	return c.starts[len(c.runs)]
}

// Count is how many entries the view has. It waits where a filter looks inside
// records.
func (v *View) Count(ctx context.Context) (int64, error) {
	if v.narrow != nil {
		if _, err := v.narrow.choose(ctx); err != nil {
			return 0, err
		}
	}
	return v.Entries(), nil
}

// Sizes of what a view makes, roughly.
const (
	viewBytes   = 4 << 10 // with its folders
	columnBytes = 1 << 10 // with its file
)

// Bytes is about what the view takes of memory beside chunks.
func (v *View) Bytes() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	bytes := int64(viewBytes)
	bytes += 8 * int64(len(v.banks))
	for _, b := range v.banks {
		if b == nil {
			continue
		}
		b.mu.Lock()
		bytes += int64(len(b.Columns)+3)*columnBytes + 8*int64(len(b.rows))
		b.mu.Unlock()
	}
	if v.narrow != nil {
		if c := v.narrow.chosen.Load(); c != nil {
			bytes += c.bytes
		}
	}
	return bytes
}

// BankSet is the banks of the view's dictionary.
func (v *View) BankSet() *BankSet { return v.shown }

// Bank is the i-th bank of BankSet. It never waits.
func (v *View) Bank(i int) *Bank {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.bank(i)
}

// bank makes a bank that is not there. v.mu is held.
func (v *View) bank(i int) *Bank {
	if v.banks == nil {
		v.banks = make([]*Bank, len(v.shown.ids))
	}
	if b := v.banks[i]; b != nil {
		return b
	}
	s := v.chain.banks.schemas[v.shown.ids[i]]
	b := newBank(v, v.shown.ids[i], s)
	b.Arrow = &Arrow{bank: b}
	b.Name, b.Group, b.Item = s.Name, s.Group, s.Item
	v.banks[i] = b
	b.point()
	return b
}

// Banks are the banks of the view's dictionary, in its order, also those
// without rows. It never waits.
func (v *View) Banks() []*Bank {
	v.mu.Lock()
	defer v.mu.Unlock()
	banks := make([]*Bank, len(v.shown.ids))
	for i := range banks {
		banks[i] = v.bank(i)
	}
	return banks
}

// Files describes the files of the view, in order.
func (v *View) Files() []FileInfo {
	infos := make([]FileInfo, len(v.sources))
	for i, s := range v.sources {
		infos[i] = *s.info
	}
	return infos
}

// File is the view of the i-th file alone, with that file's own dictionary.
func (v *View) File(i int) *View {
	s := v.sources[i]
	if v.narrow != nil {
		return v.narrowed(&narrowing{slice: everything, only: s}, s.plan.shown)
	}
	sub := newView(v.chain, []*source{s}, s.plan.shown)
	sub.part = fmt.Sprintf("one file, entries from %d", s.first)
	return sub
}

// Records are the records that the view has entries of, in order; Events is how
// many. It never waits: while Entries is not known, there are none.
func (v *View) Records() []RecordInfo {
	records := []RecordInfo{}
	if v.narrow != nil {
		if c := v.narrow.try(); c != nil {
			records = c.records(records)
		}
		return records
	}
	for i, s := range v.sources {
		entry := v.starts[i]
		for j := range s.file.Records {
			events := int(s.file.Records[j].Events)
			records = append(records, s.recordInfo(j, entry, events))
			entry += int64(events)
		}
	}
	return records
}

// recordInfo describes a record of which a view has events, from that entry on.
func (s *source) recordInfo(record int, entry int64, events int) RecordInfo {
	h := &s.file.Records[record]
	return RecordInfo{
		File: s.info.Name, Record: record, Byte: h.Off, Length: h.Length, DataLength: h.DataLength,
		Events: events, FirstEntry: entry, Compression: int(h.Tag), RecordTag: h.UserTag,
	}
}

// Config is the user configuration of the view's files; for a key that several
// have, the last one's.
func (v *View) Config() map[string]string {
	all := map[string]string{}
	for _, s := range v.sources {
		maps.Copy(all, s.file.Dictionary.Config)
	}
	return all
}

// TagNames are the names of event tag bits.
func (v *View) TagNames() map[string]int {
	all := map[string]int{}
	for _, s := range v.sources {
		maps.Copy(all, s.file.Dictionary.TagNames)
	}
	return all
}

// EventTags is a uint32 column, one value an entry.
func (v *View) EventTags() *Column { return v.eventTags }

// RecordTags is an int64 column, one value an entry: its record's user word 1.
func (v *View) RecordTags() *Column { return v.recordTags }

// EntryNumbers is an int64 column, one value an entry: its number in the chain.
func (v *View) EntryNumbers() *Column { return v.entryNumbers }

// wait waits until every file of the view is counted, on behalf of a reader or,
// with nil, of nobody. Damage in a file is an error. For a view of some entries,
// it is enough to have looked into the records that hold them.
func (v *View) wait(ctx context.Context, who *Waiting) error {
	if n := v.narrow; n != nil {
		if who != nil && n.settled.Load() == nil {
			waiters := v.chain.m.waiters
			waiters.enter(who)
			defer waiters.leave(who)
		}
		_, err := n.settle(ctx)
		return err
	}
	if len(v.sources) > 1 {
		v.chain.need.Do(func() { close(v.chain.needed) })
	}
	for _, s := range v.sources {
		if who != nil && !s.isCounted() {
			waiters := v.chain.m.waiters
			waiters.enter(who)
			defer waiters.leave(who)
			who = nil
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Nodes are the structures that no dictionary entry declares, by group and
// item, as Banks named "GROUP.ITEM". It waits for the counting pass.
func (v *View) Nodes(ctx context.Context) ([]*Bank, error) {
	if err := v.wait(ctx, &Waiting{Reader: ctx, Bank: ".nodes", For: forCounting}); err != nil {
		return nil, err
	}
	if v.narrow != nil {
		return v.narrow.nodes(ctx, v)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.nodes != nil {
		return v.nodes, nil
	}
	nodes := []*Bank{}
	byID := map[bankID]*Bank{}
	type origin struct{ file, kind string }
	from := map[bankID]origin{}
	for _, s := range v.sources {
		for id, t := range s.tables {
			if int(id) < len(v.chain.banks.schemas) {
				continue
			}
			b := byID[id]
			if b == nil {
				b = newNode(v, id, t.layout)
				byID[id] = b
				from[id] = origin{s.file.Name, t.kind}
				nodes = append(nodes, b)
			} else if b.conflict == nil && !b.schema.SameLayout(t.layout) {
				b.conflict = fmt.Errorf("%s is %s in %s and %s in %s", v.chain.bankName(id), from[id].kind, from[id].file, t.kind, s.file.Name)
				v.chain.faults.add(b.conflict)
			}
		}
	}
	sortNodes(nodes)
	v.nodes = nodes
	return nodes, nil
}

func newNode(v *View, id bankID, layout *hipo.Schema) *Bank {
	b := newBank(v, id, layout)
	b.Group, b.Item = v.chain.nodeIDs(id)
	b.Name = fmt.Sprintf("%d.%d", b.Group, b.Item)
	return b
}

func sortNodes(nodes []*Bank) {
	slices.SortFunc(nodes, func(a, b *Bank) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Item, b.Item))
	})
}

// Bank is a bank of a view, or a structure without a schema.
type Bank struct {
	Name    string
	Group   uint16
	Item    uint8
	Columns []*Column // in schema order; f0, f1, … or value for structures without one

	Pointer *Column // int64, rows: the row of PointsTo that pindex points to; nil where there is none

	PointsTo string // name of the bank that Pointer counts in

	Arrow *Arrow // all columns in one file; nil for structures without a schema

	view     *View
	id       bankID
	schema   *hipo.Schema
	pindex   int   // column of Pointer
	target   *Bank // of Pointer
	conflict error // why files disagree about it

	mu             sync.Mutex
	offsets, entry *Column // nil until asked for: a dictionary may have a hundred thousand banks
	rows           []int64 // before each source of the view or, of some entries, each run; one more; nil until counted
	filled         int64
}

func newBank(v *View, id bankID, s *hipo.Schema) *Bank {
	b := &Bank{view: v, id: id, schema: s, Columns: make([]*Column, len(s.Columns))}
	for k, c := range s.Columns {
		b.Columns[k] = &Column{
			Name: c.Name, Type: string(c.Type.Letter), Length: c.Length, Dtype: c.Type.Dtype,
			view: v, bank: b, index: k, width: int64(c.Width()), disk: v.chain.newOnDisk(),
		}
	}
	return b
}

// Offsets is an int64 column, entries+1: the rows before each entry, and all.
func (b *Bank) Offsets() *Column {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.offsets == nil {
		b.offsets = int64Column(offsetsColumn, b.view, b, "offsets")
	}
	return b.offsets
}

// Entry is an int64 column, one value a row: the entry that the row belongs to.
func (b *Bank) Entry() *Column {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.entry == nil {
		b.entry = int64Column(entryColumn, b.view, b, "entry")
	}
	return b.entry
}

// int64Column is a computed column of a bank, or of the view if b is nil.
func int64Column(kind columnKind, v *View, b *Bank, name string) *Column {
	return &Column{Name: name, Length: 1, Dtype: "<i8", kind: kind, view: v, bank: b, width: 8, disk: v.chain.newOnDisk()}
}

// point gives a bank P::X its Pointer, if it has a pindex of one integer and
// there is a P::Particle.
func (b *Bank) point() {
	i := strings.LastIndex(b.Name, "::")
	if i < 0 {
		return
	}
	target, ok := b.view.shown.number(b.Name[:i] + "::Particle")
	if !ok {
		return
	}
	for k, c := range b.schema.Columns {
		if c.Name == "pindex" && c.Length == 1 && strings.IndexByte("BSIL", c.Type.Letter) >= 0 {
			b.pindex, b.target = k, b.view.bank(target)
			b.PointsTo = b.target.Name
			b.Pointer = int64Column(pointerColumn, b.view, b, b.PointsTo)
			return
		}
	}
}

// count waits for the pass, as View.wait does, and sums it up for the bank.
func (b *Bank) count(ctx context.Context, who *Waiting) error {
	// Who asks how many rows a bank has, before that is known, is likely to read it.
	b.view.chain.m.askWhileCounting(columnKey{b.id, 0})
	return b.sumUp(ctx, who)
}

// sumUp does the same for who only looks at the bank.
func (b *Bank) sumUp(ctx context.Context, who *Waiting) error {
	if err := b.view.wait(ctx, who); err != nil {
		return err
	}
	if n := b.view.narrow; n != nil {
		return b.countKept(ctx, n)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conflict != nil {
		return b.conflict
	}
	if b.rows != nil {
		return nil
	}
	rows := make([]int64, len(b.view.sources)+1)
	var filled int64
	for i, s := range b.view.sources {
		rows[i+1] = rows[i]
		if why := s.plan.conflicts[b.id]; why != "" {
			b.conflict = fmt.Errorf("%s", why)
			b.view.chain.faults.add(b.conflict)
			return b.conflict
		}
		if t := s.tables[b.id]; t != nil {
			if t.err != nil {
				b.conflict = t.err
				return t.err
			}
			rows[i+1] += t.total()
			filled += t.filled
		}
	}
	b.rows, b.filled = rows, filled
	return nil
}

// countKept does the same for a view of some entries.
func (b *Bank) countKept(ctx context.Context, n *narrowing) error {
	b.mu.Lock()
	rows, conflict := b.rows, b.conflict
	b.mu.Unlock()
	if rows != nil || conflict != nil {
		return conflict
	}
	rows, err := n.count(ctx, b)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rows == nil {
		b.rows = rows
	}
	return nil
}

// Rows is the bank's rows in the view. It waits for the counting pass.
func (b *Bank) Rows(ctx context.Context) (int64, error) {
	if err := b.count(ctx, &Waiting{Reader: ctx, Bank: b.Name, For: forCounting}); err != nil {
		return 0, err
	}
	return b.rows[len(b.rows)-1], nil
}

// Filled is how many entries have at least one row. It waits for the counting pass.
func (b *Bank) Filled(ctx context.Context) (int64, error) {
	if err := b.count(ctx, &Waiting{Reader: ctx, Bank: b.Name, For: forCounting}); err != nil {
		return 0, err
	}
	if n := b.view.narrow; n != nil {
		return n.filled(ctx, b)
	}
	return b.filled, nil
}

// Largest is how many rows the entry of the view has that has most of them. It
// waits for the counting pass.
func (b *Bank) Largest(ctx context.Context) (most int64, err error) {
	if _, err := b.Rows(ctx); err != nil {
		return 0, err
	}
	if b.view.narrow != nil {
		return b.largestKept(ctx)
	}
	for _, s := range b.view.sources {
		if t := s.tables[b.id]; t != nil {
			most = max(most, t.most)
		}
	}
	return most, nil
}

// largestKept is Largest for the entries that a filter keeps.
func (b *Bank) largestKept(ctx context.Context) (most int64, err error) {
	offsets := b.Offsets()
	f, err := offsets.measure(ctx)
	if err != nil {
		return 0, err
	}
	p := make([]byte, 64<<10)
	last := int64(0) // offsets begin with 0
	for off := int64(len(f.header)); off < f.size; {
		n, err := offsets.ReadAt(ctx, p, off)
		if err != nil {
			return 0, err
		}
		for at := 0; at < n; at += 8 {
			next := integer(p[at:], 8)
			most, last = max(most, next-last), next
		}
		off += int64(n)
	}
	return most, nil
}

// Stored is how many bytes of the files the bank takes, if they tell it: only
// split records store a bank apart from others, and it is all its entries that
// take it. It waits for the counting pass.
func (b *Bank) Stored(ctx context.Context) (bytes int64, ok bool, err error) {
	if _, err := b.Rows(ctx); err != nil {
		return 0, false, err
	}
	if b.view.narrow != nil {
		return 0, false, nil
	}
	for _, s := range b.view.sources {
		if t := s.tables[b.id]; t != nil {
			if t.stored < 0 {
				return 0, false, nil
			}
			bytes += t.stored
		}
	}
	return bytes, true, nil
}

// before finds the interval of ascending bounds that holds n: the last i with
// bounds[i] <= n < bounds[i+1].
func before(bounds []int64, n int64) int {
	return sort.Search(len(bounds)-1, func(i int) bool { return bounds[i+1] > n })
}
