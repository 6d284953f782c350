package materialize

import (
	"cmp"
	"fmt"
	"os"
	"slices"
)

// learn adds the checksums of streams that this process knows to those of the
// index, which another process may have added to.
func (s *source) learn(head *indexHead) {
	for i := range head.sums {
		theirs, ours := &head.sums[i], s.sums[i].streams
		if theirs.streams == nil {
			*theirs = s.sums[i]
			if l := s.sums[i].layout; ours != nil && l != noLayout {
				theirs.layout = addLayout(&head.layouts, s.layouts[l])
			}
			continue
		}
		for j := range min(len(ours), len(theirs.streams)) {
			if ours[j].known {
				theirs.streams[j] = ours[j]
			}
		}
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
	s.sumMu.Lock()
	s.learn(head)
	encoded := head.encode() // what has been learned is still the source's
	s.sumMu.Unlock()
	if err := writeIndex(idx.path, encoded, blocks, s.info.Mode.Perm(), s.file.Size); err != nil {
		s.chain.log.Warn(fmt.Sprintf("%s: %v", idx.path, err))
	}
}
