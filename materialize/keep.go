package materialize

import "github.com/hipofs/hipofs/hipo"

// Shares of the budget. A decode keeps what is expected to stay.
const (
	keepShare  = 0.8 // of what a decode keeps for later, over the whole chain
	passShare  = 0.9 // of what a pass keeps of the banks that were asked for
	guessShare = 0.5 // of what a pass keeps before anything was asked for
)

// maxNamesKept is how many names an id may have for a pass to keep their columns.
const maxNamesKept = 4

// ask notes that a column's content is wanted.
func (m *materializer) ask(k columnKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.askedFor[k] {
		return
	}
	m.askedFor[k] = true
	m.asked = append(m.asked, k)
	m.plan()
}

// askWhileCounting notes the same of a column that is only looked at, before all
// files are counted: the pass then keeps it. Later, opening it is a better sign.
func (m *materializer) askWhileCounting(k columnKey) {
	m.mu.Lock()
	counting := m.counted < len(m.chain.sources)
	m.mu.Unlock()
	if counting {
		m.ask(k)
	}
}

// askedBanks are the banks of the columns that were asked for. m.mu is held.
func (m *materializer) askedBanks() map[bankID]bool {
	banks := make(map[bankID]bool, len(m.asked))
	for _, k := range m.asked {
		banks[k.bank] = true
	}
	return banks
}

// hint notes what readers of earlier mounts asked for, by bank and column.
func (m *materializer) hint(asked [][2]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := len(asked) - 1; i >= 0; i-- {
		id, ok := m.chain.banks.byName[asked[i][0]]
		if !ok || m.chain.banks.hidden[id] {
			continue
		}
		for c := range m.chain.banks.schemas[id].Columns {
			k := columnKey{id, int32(c)}
			if m.chain.banks.schemas[id].Columns[c].Name == asked[i][1] && !m.askedFor[k] {
				m.askedFor[k] = true
				m.asked = append(m.asked, k)
			}
		}
	}
}

// maxAsked is how many columns an index remembers to have been asked for.
const maxAsked = 256

// askedNames are the columns that were asked for, the last ones first.
func (m *materializer) askedNames() [][2]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names [][2]string
	for i := len(m.asked) - 1; i >= 0 && len(names) < maxAsked; i-- {
		k := m.asked[i]
		if int(k.bank) < len(m.chain.banks.schemas) {
			s := m.chain.banks.schemas[k.bank]
			names = append(names, [2]string{s.Name, s.Columns[k.column].Name})
		}
	}
	return names
}

// recount counts the files that need no pass.
func (m *materializer) recount() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.chain.sources {
		if s.index.Load() != nil {
			m.counted++
		}
	}
	m.plan()
}

// passed notes that a file has been counted.
func (m *materializer) passed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counted++
	m.plan()
}

// plan decides what later decodes keep, when all files are counted: the columns
// that were asked for, the others of their banks, then everything else, as far
// as they fit the budget over the whole chain. So whatever comes after the
// second decode of a record is there. m.mu is held.
func (m *materializer) plan() {
	if m.counted < len(m.chain.sources) {
		return
	}
	if m.rows == nil {
		m.sumUp()
	}
	rows, layouts := m.rows, m.layouts
	left := int64(keepShare * float64(m.chunks.budget))
	m.keep = map[bankID][]bool{}
	add := func(id bankID, k int) {
		layout := layouts[id]
		if layout == nil || k >= len(layout.Columns) {
			return
		}
		if m.keep[id] == nil {
			m.keep[id] = make([]bool, len(layout.Columns))
		}
		size := rows[id] * int64(layout.Columns[k].Width())
		if !m.keep[id][k] && size <= left {
			m.keep[id][k] = true
			left -= size
		}
	}
	for i := len(m.asked) - 1; i >= 0; i-- {
		add(m.asked[i].bank, int(m.asked[i].column))
	}
	banks := make([]bankID, 0, len(m.asked)+len(layouts))
	for i := len(m.asked) - 1; i >= 0; i-- {
		banks = append(banks, m.asked[i].bank)
	}
	banks = append(banks, m.chain.banks.visible...)
	for _, id := range banks {
		if layouts[id] != nil {
			for k := range layouts[id].Columns {
				add(id, k)
			}
		}
	}
}

// sumUp adds up the rows of every bank that can be served, over all files.
func (m *materializer) sumUp() {
	m.rows, m.layouts = map[bankID]int64{}, map[bankID]*hipo.Schema{}
	for _, s := range m.chain.sources {
		for id, t := range s.tablesSoFar() {
			if t.err == nil && s.plan.conflicts[id] == "" {
				m.rows[id] += t.total()
				m.layouts[id] = t.layout
			}
		}
	}
}

// tablesSoFar are the file's tables, if it has been counted.
func (s *source) tablesSoFar() map[bankID]*table {
	if s.isCounted() {
		return s.tables
	}
	return nil
}

// smallChain is how many inflated bytes a chain may have for a pass to keep all
// of it, whatever is asked for.
const smallChain = 64 << 20

// passWants says what a counting pass keeps of a run: the banks asked for so
// far or, before anything was, whatever there is room for. Of a small chain, and
// of the beginning of any, where previews and indexers look, it keeps everything.
// The directory of a split record has the counts; its streams wait until somebody
// needs them.
func (m *materializer) passWants(s *source, r *run) wanted {
	if r.split {
		return func(bankID, *hipo.Schema) []bool { return nil }
	}
	budget := float64(m.chunks.budget)
	m.mu.Lock()
	banks := m.askedBanks()
	full := m.chain.allSums || float64(m.passing) > passShare*budget
	m.mu.Unlock()
	everything := len(banks) == 0 || m.inflated <= smallChain || s.number == 0 && r == &s.runs[0]
	held, _, _ := m.chunks.state()
	room := float64(held+r.data) <= guessShare*budget
	hidden := m.chain.banks.hidden
	return func(bank bankID, layout *hipo.Schema) []bool {
		if int(bank) < len(hidden) && hidden[bank] {
			return nil
		}
		if full || !banks[bank] && !(everything && room) {
			return nil
		}
		// A file can give one id a thousand names, each of which would be kept.
		if names := s.plan.declared(layout.Group, layout.Item); len(names) > maxNamesKept {
			return nil
		}
		keep := make([]bool, len(layout.Columns))
		for k := range keep {
			keep[k] = true
		}
		return keep
	}
}

// runWants is what a decode gathers for a view of some of the entries: all of the
// run or, if that is not to be, the banks that were asked for; always the chunk
// itself with the others of its bank. Of a split record it takes only the streams
// that the chunk needs. m.mu is held.
func (m *materializer) runWants(s *source, k chunkKey, everything bool) (wanted, func(chunkKey) bool) {
	content := k.bank != tagsBank && k.column != endsColumn
	run := s.runAt(k.run)
	asked := m.askedBanks()
	takes := func(id bankID) bool {
		switch {
		case content && id == k.bank:
			return true
		case run.split:
			return false
		case int(id) >= len(m.chain.banks.schemas): // a node
			return everything
		case m.chain.banks.hidden[id] || !everything && !asked[id]:
			return false
		}
		schema := m.chain.banks.schemas[id]
		return len(s.plan.declared(schema.Group, schema.Item)) <= maxNamesKept
	}
	want := func(id bankID, layout *hipo.Schema) []bool {
		if !takes(id) {
			return nil
		}
		keep := make([]bool, len(layout.Columns))
		for c := range keep {
			keep[c] = !run.byColumn || c == int(k.column)
		}
		return keep
	}
	gives := func(other chunkKey) bool {
		return takes(other.bank) && (!run.byColumn || other.column == k.column)
	}
	return want, gives
}

// keepPassed keeps what a pass gathered.
func (m *materializer) keepPassed(s *source, r int, out *decoded) {
	if m.chain.allSums {
		return
	}
	m.mu.Lock()
	asked := m.askedBanks()
	m.mu.Unlock()
	var kept int64 // of what was asked for
	for i := range out.parts {
		p := &out.parts[i]
		if p.err != nil {
			continue
		}
		for k, b := range p.columns {
			if len(b) == 0 {
				continue
			}
			key := chunkKey{s.number, int32(r), p.bank, int32(k)}
			if !asked[p.bank] {
				m.chunks.addIfRoom(key, b, guessShare)
				continue
			}
			m.chunks.add(key, b)
			kept += cost(b)
		}
		if p.rows > 0 && m.chain.indexDir == "" {
			m.chunks.addIfRoom(chunkKey{s.number, int32(r), p.bank, endsColumn}, ends(p.counts), passShare)
		}
	}
	if m.chain.indexDir == "" { // otherwise the index has them
		m.chunks.addIfRoom(chunkKey{s.number, int32(r), tagsBank, 0}, out.tags, passShare)
	}
	m.mu.Lock()
	m.passing += kept
	m.mu.Unlock()
}

// finish notes that a column has been read to its end: the kernel has it, and
// decodes for others need not gather it again.
func (m *materializer) finish(k columnKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.finished[k] = true
}

// begin takes that back for the columns of a bank, one of which is read again.
// m.mu is held.
func (m *materializer) begin(bank bankID) {
	for k := range m.finished {
		if k.bank == bank {
			delete(m.finished, k)
		}
	}
}
