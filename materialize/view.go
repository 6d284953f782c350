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

// View is the entries that one tree shows: the whole chain, or one of its files.
type View struct {
	chain   *Chain
	sources []*source
	starts  []int64 // entries before each source; one more than there are sources
	banks   []*Bank

	eventTags, recordTags, entryNumbers *Column

	mu    sync.Mutex
	files []*View // made when asked for
	nodes []*Bank // nil until the pass is through

	part    string // which entries of its sources it shows; "": its columns are not kept on disk
	setName string // in the tier; "": not made yet
	about   []byte
}

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

func newView(c *Chain, sources []*source, banks []bankID) *View {
	v := &View{chain: c, sources: sources, starts: make([]int64, len(sources)+1), files: make([]*View, len(sources))}
	for i, s := range sources {
		v.starts[i+1] = v.starts[i] + s.entries
	}
	byName := make(map[string]*Bank, len(banks))
	for _, id := range banks {
		s := c.banks.schemas[id]
		b := newBank(v, id, s)
		b.Name, b.Group, b.Item = s.Name, s.Group, s.Item
		v.banks = append(v.banks, b)
		byName[b.Name] = b
	}
	for _, b := range v.banks {
		b.point(byName)
	}
	v.eventTags = &Column{Name: "event_tags", Length: 1, Dtype: "<u4", view: v, width: 4}
	v.eventTags.fill = v.eventTags.fillEventTags
	v.recordTags = int64Column(v, nil, "record_tags")
	v.recordTags.fill = v.recordTags.fillRecordTags
	v.entryNumbers = int64Column(v, nil, "entries")
	v.entryNumbers.fill = v.entryNumbers.fillEntryNumbers
	return v
}

// Entries is how many entries the view has. It never waits.
func (v *View) Entries() int64 { return v.starts[len(v.sources)] }

// Banks are the banks of the view's dictionary, in its order, also those
// without rows. It never waits. The slice is shared: do not change it.
func (v *View) Banks() []*Bank { return v.banks }

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
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.files[i] == nil {
		s := v.sources[i]
		v.files[i] = newView(v.chain, []*source{s}, s.plan.banks)
		v.files[i].part = fmt.Sprintf("one file, entries from %d", s.first)
	}
	return v.files[i]
}

// Records are the view's records, in order. It never waits.
func (v *View) Records() []RecordInfo {
	records := []RecordInfo{}
	for i, s := range v.sources {
		entry := v.starts[i]
		for j, h := range s.file.Records {
			records = append(records, RecordInfo{
				File: s.info.Name, Record: j, Byte: h.Off, Length: h.Length, DataLength: h.DataLength,
				Events: int(h.Events), FirstEntry: entry, Compression: int(h.Tag), RecordTag: h.UserTag,
			})
			entry += int64(h.Events)
		}
	}
	return records
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
// with nil, of nobody. Damage in a file is an error.
func (v *View) wait(ctx context.Context, who *Waiting) error {
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
				b = newBank(v, id, t.layout)
				b.Group, b.Item = v.chain.nodeIDs(id)
				b.Name = fmt.Sprintf("%d.%d", b.Group, b.Item)
				byID[id] = b
				from[id] = origin{s.file.Name, t.kind}
				nodes = append(nodes, b)
			} else if b.conflict == nil && !b.schema.SameLayout(t.layout) {
				b.conflict = fmt.Errorf("%s is %s in %s and %s in %s", v.chain.bankName(id), from[id].kind, from[id].file, t.kind, s.file.Name)
				v.chain.faults.add(b.conflict)
			}
		}
	}
	slices.SortFunc(nodes, func(a, b *Bank) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Item, b.Item))
	})
	v.nodes = nodes
	return nodes, nil
}

// Bank is a bank of a view, or a structure without a schema.
type Bank struct {
	Name    string
	Group   uint16
	Item    uint8
	Columns []*Column // in schema order; f0, f1, … or value for structures without one

	Offsets *Column // int64, entries+1
	Entry   *Column // int64, rows: the entry of each row
	Pointer *Column // int64, rows: the row of PointsTo that pindex points to; nil where there is none

	PointsTo string // name of the bank that Pointer counts in

	view     *View
	id       bankID
	schema   *hipo.Schema
	pindex   int   // column of Pointer
	target   *Bank // of Pointer
	conflict error // why files disagree about it

	mu     sync.Mutex
	rows   []int64 // before each source of the view, one more; nil until counted
	filled int64
}

func newBank(v *View, id bankID, s *hipo.Schema) *Bank {
	b := &Bank{view: v, id: id, schema: s, Columns: make([]*Column, len(s.Columns))}
	for k, c := range s.Columns {
		content := &Column{
			Name: c.Name, Type: string(c.Type.Letter), Length: c.Length, Dtype: c.Type.Dtype,
			view: v, bank: b, index: k, width: int64(c.Width()),
		}
		content.fill = content.fillContent
		b.Columns[k] = content
	}
	b.Offsets = int64Column(v, b, "offsets")
	b.Offsets.fill = b.Offsets.fillOffsets
	b.Entry = int64Column(v, b, "entry")
	b.Entry.fill = b.Entry.fillEntry
	return b
}

// int64Column is a computed column of a bank, or of the view if b is nil.
func int64Column(v *View, b *Bank, name string) *Column {
	return &Column{Name: name, Length: 1, Dtype: "<i8", view: v, bank: b, width: 8}
}

// point gives a bank P::X its Pointer, if it has a pindex of one integer and
// there is a P::Particle.
func (b *Bank) point(byName map[string]*Bank) {
	i := strings.LastIndex(b.Name, "::")
	if i < 0 {
		return
	}
	target := byName[b.Name[:i]+"::Particle"]
	if target == nil {
		return
	}
	for k, c := range b.schema.Columns {
		if c.Name == "pindex" && c.Length == 1 && strings.IndexByte("BSIL", c.Type.Letter) >= 0 {
			b.pindex, b.target, b.PointsTo = k, target, target.Name
			b.Pointer = int64Column(b.view, b, target.Name)
			b.Pointer.fill = b.Pointer.fillPointer
			return
		}
	}
}

// count waits for the pass, as View.wait does, and sums it up for the bank.
func (b *Bank) count(ctx context.Context, who *Waiting) error {
	// Who asks how many rows a bank has, before that is known, is likely to read it.
	b.view.chain.m.askWhileCounting(columnKey{b.id, 0})
	if err := b.view.wait(ctx, who); err != nil {
		return err
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
	return b.filled, nil
}

// Largest is how many rows the entry of the view has that has most of them. It
// waits for the counting pass.
func (b *Bank) Largest(ctx context.Context) (most int64, err error) {
	if _, err := b.Rows(ctx); err != nil {
		return 0, err
	}
	for _, s := range b.view.sources {
		if t := s.tables[b.id]; t != nil {
			most = max(most, t.most)
		}
	}
	return most, nil
}

// Stored is how many bytes of the files the bank takes, if they tell it: only
// split records store a bank apart from others. It waits for the counting pass.
func (b *Bank) Stored(ctx context.Context) (bytes int64, ok bool, err error) {
	if _, err := b.Rows(ctx); err != nil {
		return 0, false, err
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
