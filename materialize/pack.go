package materialize

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"path/filepath"
	"slices"

	"github.com/hipofs/hipofs/hipo"
)

// A step of a pack takes as many entries as have about this many bytes, and no
// more than this.
const (
	packBytes   = 2 << 20
	packEntries = 4096
	maxPack     = 1 << 30 // bytes of such entries, at most
)

// Pack writes the folder's banks to a file. If there is a chain, they are added
// to a copy of it, entry by entry, and event tags, record tags and settings are
// the chain's. Of the options, those that choose entries mean nothing here.
func (f *Folder) Pack(ctx context.Context, onto *Chain, o SkimOptions) (*Skimmed, error) {
	s := &skim{chain: onto, SkimOptions: o, needs: map[*plan]*planNeeds{}}
	if s.Progress == nil {
		s.Progress = func(int64) {}
	}
	var stored int64
	for _, b := range f.banks {
		stored += b.columns[0].rows * int64(b.schema.RowSize)
	}
	if s.Codec == nil && onto == nil {
		s.Codec = &hipo.Codec{Tag: 1}
	}
	if s.Codec != nil && s.Codec.Stored() {
		if err := checkSpace(filepath.Dir(o.Out), stored); err != nil {
			return nil, err
		}
	}
	if onto == nil {
		return s.assemble(ctx, f.declarations(), f.steps(s, stored))
	}
	dictionary, err := f.addTo(s)
	if err != nil {
		return nil, err
	}
	return s.assemble(ctx, dictionary, f.stepsOnto(s))
}

// addTo is the dictionary of a chain with the banks of the folder, none of which
// it may have already.
func (f *Folder) addTo(s *skim) ([]hipo.Declaration, error) {
	c := s.chain
	if f.entries != c.view.Entries() {
		return nil, fmt.Errorf("%s has %d entries, the chain has %d: they must be the same", f.dir, f.entries, c.view.Entries())
	}
	dictionary, notes, err := c.declarations()
	if err != nil {
		return nil, err
	}
	s.notes = notes
	for _, b := range f.banks {
		if _, ok := c.banks.byName[b.name]; ok {
			return nil, fmt.Errorf("bank %s is in the chain already; give it another name, or leave it out with --banks", b.name)
		}
		for _, schema := range c.banks.schemas {
			if schema.Group == b.schema.Group && schema.Item == b.schema.Item {
				return nil, fmt.Errorf("%s: the id %d/%d is that of bank %s in the chain; give it another one in schema.json",
					b.dir, schema.Group, schema.Item, schema.Name)
			}
		}
		if !b.node {
			dictionary = append(dictionary, hipo.Declare(b.schema))
		}
	}
	return dictionary, nil
}

// steps gives a step for every few entries that have one record tag.
func (f *Folder) steps(s *skim, stored int64) iter.Seq[step] {
	few := int64(packEntries)
	if f.entries > 0 {
		few = max(1, min(few, packBytes/max(1, stored/f.entries)))
	}
	return func(yield func(step) bool) {
		for from := int64(0); from < f.entries; {
			to := min(f.entries, from+few)
			words := hipo.Words{}
			var failed error
			if f.recordTags != nil {
				var tags []int64
				if tags, failed = f.recordTags.readInts(from, to-from); failed == nil {
					words.Tag = tags[0]
					if i := slices.IndexFunc(tags, func(t int64) bool { return t != words.Tag }); i > 0 {
						to = from + int64(i)
					}
				}
			}
			first := from
			if !yield(func(_ *assembler, p *piece) error {
				if failed != nil {
					return failed
				}
				p.codec, p.words = *s.Codec, words
				return f.fill(s, &p.batch, first, to, nil)
			}) {
				return
			}
			from = to
		}
	}
}

// stepsOnto gives a step for every record of the chain.
func (f *Folder) stepsOnto(s *skim) iter.Seq[step] {
	s.Entries.To = f.entries
	return func(yield func(step) bool) {
		entry := int64(0)
		s.eachRecord(func(*hipo.RecordHeader) {}, func(src *source, number int, _, _ int64) bool {
			h := &src.file.Records[number]
			first, end := entry, entry+int64(h.Events)
			entry = end
			needs := s.of(src.plan)
			return yield(func(w *assembler, p *piece) error {
				defer s.Progress(h.Length)
				if err := s.read(w, src, number); err != nil {
					return err
				}
				t, _, _, err := s.taking(src, needs, &w.rec, number, 0, int64(h.Events))
				if err != nil {
					return err
				}
				for _, b := range f.banks {
					if slices.ContainsFunc(w.rec.Banks, func(r hipo.Bank) bool {
						return len(r.Spans) > 0 && r.Group == b.schema.Group && r.Item == b.schema.Item
					}) {
						return fmt.Errorf("%s: %s has structures %d/%d already; give it another id", b.dir, src.info.Name, b.schema.Group, b.schema.Item)
					}
				}
				if t.Bank == nil { // structure by structure: something will follow the last
					t.Bank = func(uint16, uint8) bool { return true }
				}
				var there piece
				if err := s.take(&there, &w.rec, t); err != nil {
					return err
				}
				p.codec, p.words = there.codec, there.words
				return f.fill(s, &p.batch, first, end, &there.batch)
			})
		})
	}
}

// fill puts entries of the folder into a batch: behind the events in onto, if
// there are any.
func (f *Folder) fill(s *skim, to *hipo.Batch, from, end int64, onto *hipo.Batch) error {
	n := end - from
	offsets := make([][]int64, len(f.banks))
	total := int64(0)
	for i, b := range f.banks {
		var err error
		if offsets[i], err = b.readOffsets(from, n); err != nil {
			return err
		}
		total += (offsets[i][n] - offsets[i][0]) * int64(b.schema.RowSize)
	}
	if total > maxPack {
		return fmt.Errorf("%s: entries %d to %d have %d bytes, more than can be in memory", f.dir, from, end, total)
	}
	columns := make([][][]byte, len(f.banks))
	for i, b := range f.banks {
		columns[i] = make([][]byte, len(b.columns))
		for k, a := range b.columns {
			var err error
			if columns[i][k], err = a.read(offsets[i][0], offsets[i][n]-offsets[i][0]); err != nil {
				return err
			}
		}
		if onto == nil {
			s.Progress(8*n + (offsets[i][n]-offsets[i][0])*int64(b.schema.RowSize))
		}
	}
	tags := make([]byte, 4*n)
	if f.eventTags != nil && onto == nil {
		var err error
		if tags, err = f.eventTags.read(from, n); err != nil {
			return err
		}
	}
	off := 0
	data := make([][]byte, len(f.banks)) // of the entry, by bank
	for e := range n {
		if onto != nil {
			off = to.Join(onto, off, int(e), int(e)+1)
		} else {
			to.Begin(binary.LittleEndian.Uint32(tags[4*e:]))
		}
		for i, b := range f.banks {
			first, rows := offsets[i][e]-offsets[i][0], offsets[i][e+1]-offsets[i][e]
			data[i] = data[i][:0]
			if rows == 0 {
				continue
			}
			data[i] = b.rows(data[i], columns[i], first, rows)
			if b.shared {
				same, err := f.sameAs(data, i, from+e)
				if err != nil {
					return err
				}
				if same {
					continue
				}
			}
			err := to.Add(hipo.Structure{Group: b.schema.Group, Item: b.schema.Item, Type: b.kind, Format: b.format, Data: data[i]})
			if err != nil {
				return fmt.Errorf("%s: entry %d: %w", b.dir, from+e, err)
			}
		}
	}
	return nil
}

// sameAs looks whether an earlier bank with the id of bank i has put the same
// into the entry, as two names of one bank do. An entry holds an id once.
func (f *Folder) sameAs(data [][]byte, i int, entry int64) (bool, error) {
	b := f.banks[i]
	for j, other := range f.banks[:i] {
		if other.schema.Group != b.schema.Group || other.schema.Item != b.schema.Item || len(data[j]) == 0 {
			continue
		}
		if other.format == b.format && bytes.Equal(data[i], data[j]) {
			return true, nil
		}
		return false, fmt.Errorf("%s and %s both have the id %d/%d, and differ in entry %d; give one another id", other.dir, b.dir, b.schema.Group, b.schema.Item, entry)
	}
	return false, nil
}

// readOffsets gives the offsets of n entries from the given one on, and where
// the last of them ends.
func (b *packBank) readOffsets(from, n int64) ([]int64, error) {
	offsets, err := b.offsets.readInts(from, n+1)
	if err != nil {
		return nil, err
	}
	rows := b.columns[0].rows
	switch {
	case from == 0 && offsets[0] != 0:
		return nil, fmt.Errorf("%s: the first number is %d; want 0", b.offsets.path, offsets[0])
	case from+n == b.offsets.rows-1 && offsets[n] != rows:
		return nil, fmt.Errorf("%s: the last number is %d, and the columns have %d rows", b.offsets.path, offsets[n], rows)
	}
	for e, o := range offsets {
		if o < 0 || o > rows || e > 0 && o < offsets[e-1] {
			return nil, fmt.Errorf("%s: number %d is %d; want numbers that do not decrease, from 0 to %d", b.offsets.path, from+int64(e), o, rows)
		}
	}
	return offsets, nil
}

// rows appends rows of a bank, as an event holds them: column by column or, of a
// composite bank, row by row.
func (b *packBank) rows(data []byte, columns [][]byte, first, n int64) []byte {
	if b.format == "" {
		for k, a := range b.columns {
			data = append(data, columns[k][first*a.width:(first+n)*a.width]...)
		}
		return data
	}
	for r := first; r < first+n; r++ {
		for k, a := range b.columns {
			data = append(data, columns[k][r*a.width:(r+1)*a.width]...)
		}
	}
	return data
}
