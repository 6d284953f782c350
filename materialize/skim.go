package materialize

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/hipofs/hipofs/hipo"
)

// SkimOptions say what of a chain is written, and how.
type SkimOptions struct {
	Out   string // name of the file; where there may be several, of OUT.0000.hipo and so on
	Force bool   // replace files of that name
	Split int64  // bytes of a file at most; 0: there is one

	Entries Slice // of the chain
	Where   Where

	Codec      *hipo.Codec // nil: that of the source
	RecordSize int64       // bytes of events in a record; 0: 8 MiB. If it is set, no record is copied as it is.
	Threads    int         // records worked on at once; 0: one a processor

	Progress func(bytes int64) // called for what was read of a source, or need not be; nil: nobody asks
}

// Skimmed is what was written.
type Skimmed struct {
	Files   []string
	Entries int64
	Records int64
	Copied  int64 // records that are as they were
	Bytes   int64
	Notes   []string // sentences about what could not be kept
}

// WhereError is a condition that no chain of these files can answer.
type WhereError struct{ Msg string }

func (e *WhereError) Error() string { return e.Msg }

// Skim writes the chain's banks (those of Options.Banks) of the entries that
// are asked for, in order, to one file or several.
//
// A record of which everything is taken, and which keeps its codec, is copied
// as it is, without a look inside.
func (c *Chain) Skim(ctx context.Context, o SkimOptions) (*Skimmed, error) {
	s := &skim{chain: c, SkimOptions: o, needs: map[*plan]*planNeeds{}}
	if s.Progress == nil {
		s.Progress = func(int64) {}
	}
	if err := s.checkRequired(); err != nil {
		return nil, err
	}
	dictionary, notes, err := c.declarations()
	if err != nil {
		return nil, err
	}
	s.notes = notes
	if err := checkSpace(filepath.Dir(o.Out), s.least()); err != nil {
		return nil, err
	}
	return s.assemble(ctx, dictionary, s.steps())
}

// skim is one run of Skim, or of a Pack onto a chain.
type skim struct {
	SkimOptions
	chain *Chain
	needs map[*plan]*planNeeds
	notes []string

	repeats, masks, headers atomic.Int64 // left out, since split records cannot hold them
}

// planNeeds is what a skim has to know of the files of one dictionary.
type planNeeds struct {
	take    func(group uint16, item uint8) bool // nil: every structure is taken
	foreign map[[2]int]string                   // banks, by id, that only other files of the chain declare
	require []*hipo.Schema                      // nil, if the files do not have a bank that is required
	never   bool                                // no entry of these files can pass
}

// assemble writes what the steps give, and gives it its name.
func (s *skim) assemble(ctx context.Context, dictionary []hipo.Declaration, steps iter.Seq[step]) (*Skimmed, error) {
	out := &outSet{name: s.Out, force: s.Force, split: s.Split, dictionary: dictionary}
	if s.chain != nil {
		out.sources = s.chain.infos
	}
	defer out.drop()
	if err := out.begin(); err != nil {
		return nil, err
	}
	a := &assembly{out: out, threads: cmp.Or(s.Threads, runtime.GOMAXPROCS(0)), limit: int(cmp.Or(s.RecordSize, recordBytes))}
	for _, d := range dictionary {
		if d.Schema != nil {
			a.schemas = append(a.schemas, d.Schema)
		}
	}
	if err := a.run(ctx, steps); err != nil {
		return nil, err
	}
	files, err := out.seal()
	if err != nil {
		return nil, err
	}
	for _, lost := range []struct {
		n    int64
		what string
	}{
		{s.repeats.Load(), "structures that repeat another one of their event, of which readers see the first only,"},
		{s.masks.Load(), "event masks"},
		{s.headers.Load(), "user headers of records"},
	} {
		if lost.n > 0 {
			s.notes = append(s.notes, fmt.Sprintf("%d %s are left out: records stored by bank or column cannot hold them", lost.n, lost.what))
		}
	}
	return &Skimmed{Files: files, Entries: a.entries, Records: a.records, Copied: a.copied, Bytes: out.bytes, Notes: s.notes}, nil
}

// declarations is the dictionary of what a skim of the chain writes: the union
// over its files, without hidden banks. Of a setting that several files have,
// the last one's value counts, as it does in a mount; notes tell of others.
func (c *Chain) declarations() (all []hipo.Declaration, notes []string, err error) {
	seen := map[*hipo.Dictionary]bool{}
	schemas, unknown, settings := map[string]bool{}, map[string]bool{}, map[string]int{}
	tagNames := c.view.TagNames()
	for _, src := range c.sources {
		if seen[src.file.Dictionary] {
			continue
		}
		seen[src.file.Dictionary] = true
		declared, err := src.file.Declarations()
		if err != nil {
			return nil, nil, err
		}
		for _, d := range declared {
			switch {
			case d.Schema != nil:
				if !schemas[d.Schema.Name] && matches(c.banks.patterns, d.Schema.Name) {
					schemas[d.Schema.Name] = true
					all = append(all, d)
				}
			case d.TagNames != nil: // all in one, below
			case d.Unknown() != "":
				if !unknown[d.Unknown()] {
					unknown[d.Unknown()] = true
					all = append(all, d)
				}
			default:
				i, ok := settings[d.Setting]
				if !ok {
					settings[d.Setting] = len(all)
					all = append(all, d)
					continue
				}
				if note := fmt.Sprintf("the setting %s is not the same in all files: the last one's is kept", d.Setting); all[i].Value != d.Value && !slices.Contains(notes, note) {
					notes = append(notes, note)
				}
				all[i] = d
			}
		}
	}
	if len(tagNames) > 0 {
		all = append(all, hipo.Declaration{TagNames: tagNames})
	}
	return all, notes, nil
}

// checkRequired makes sure that there are the banks that entries must have.
func (s *skim) checkRequired() error {
	for _, name := range s.Where.Require {
		if _, ok := s.chain.banks.byName[name]; !ok {
			return &WhereError{fmt.Sprintf("no bank is called %s; \"hipofs ls --all\" lists them", name)}
		}
	}
	return nil
}

// of is what the skim needs to know of the files with that dictionary.
func (s *skim) of(p *plan) *planNeeds {
	if n := s.needs[p]; n != nil {
		return n
	}
	banks := &s.chain.banks
	n := &planNeeds{foreign: map[[2]int]string{}}
	s.needs[p] = n
	for _, id := range banks.visible {
		if schema := banks.schemas[id]; p.declared(schema.Group, schema.Item) == nil {
			n.foreign[[2]int{int(schema.Group), int(schema.Item)}] = schema.Name
		}
	}
	for _, name := range s.Where.Require {
		schema := p.dictionary.Lookup(name)
		if schema == nil {
			n.never = true
			return n
		}
		n.require = append(n.require, schema)
	}
	if banks.patterns != nil {
		n.take = func(group uint16, item uint8) bool {
			declared := p.declared(group, item)
			if declared == nil {
				return matches(banks.patterns, fmt.Sprintf("%d.%d", group, item))
			}
			return slices.ContainsFunc(declared, func(b planBank) bool { return !b.hidden })
		}
	}
	return n
}

// copies reports whether a record of the source may be copied without a look
// inside, if all its entries are asked for.
func (s *skim) copies(src *source, h *hipo.RecordHeader) bool {
	n := s.of(src.plan)
	return s.stays(h) && !s.Where.looksInside() && n.take == nil && len(n.foreign) == 0
}

// stays reports whether a record keeps its form. A big-endian one does not:
// many readers cannot read it.
func (s *skim) stays(h *hipo.RecordHeader) bool {
	return s.RecordSize == 0 && !h.BigEndian() && (s.Codec == nil || *s.Codec == hipo.Codec{Tag: h.Tag})
}

// eachRecord gives the records that may have entries to write, with the range
// of them in the record, and tells passed of the others.
func (s *skim) eachRecord(passed func(h *hipo.RecordHeader), yield func(src *source, number int, from, to int64) bool) {
	for _, src := range s.chain.sources {
		passes := !s.of(src.plan).never && s.Where.file(src.info.Name)
		entry := src.first
		for i := range src.file.Records {
			h := &src.file.Records[i]
			from, to := max(s.Entries.From-entry, 0), min(s.Entries.To-entry, int64(h.Events))
			entry += int64(h.Events)
			if from >= to || !passes || !s.Where.record(h.UserTag) {
				passed(h)
				continue
			}
			if !yield(src, i, from, to) {
				return
			}
		}
	}
}

// least is how many bytes will be written at least, as far as headers tell.
func (s *skim) least() int64 {
	var sum int64
	s.eachRecord(func(*hipo.RecordHeader) {}, func(src *source, number int, from, to int64) bool {
		h := &src.file.Records[number]
		switch {
		case from > 0 || to < int64(h.Events):
		case s.copies(src, h):
			sum += h.Length
		case s.Codec != nil && s.Codec.Stored() && !s.Codec.Split() && !s.Where.looksInside() && s.of(src.plan).take == nil:
			sum += h.DataLength
		}
		return true
	})
	return sum
}

// steps gives a step for each record.
func (s *skim) steps() iter.Seq[step] {
	return func(yield func(step) bool) {
		passed := func(h *hipo.RecordHeader) { s.Progress(h.Length) }
		s.eachRecord(passed, func(src *source, number int, from, to int64) bool {
			needs := s.of(src.plan) // here, where nobody else is looking
			some, all := s.foretell(src, number, from, to)
			if !some {
				passed(&src.file.Records[number])
				return true
			}
			return yield(func(w *assembler, p *piece) error {
				defer s.Progress(src.file.Records[number].Length)
				return s.record(w, p, src, needs, number, from, to, all)
			})
		})
	}
}

// foretell says, without a look inside, whether some of the entries from to to,
// excluded, of a record may pass, and whether it is sure that all do: the counts
// of an index tell, where there is one.
func (s *skim) foretell(src *source, number int, from, to int64) (some, all bool) {
	if !s.Where.looksInside() {
		return true, true
	}
	tables := src.tablesSoFar()
	if tables == nil || src.confirm() != nil { // of what is wrong, the record tells
		return true, false
	}
	run := src.recordRun(number)
	whole, _ := src.wholeRun(run)
	passes := make([]bool, to-from)
	for e := range passes {
		passes[e] = true
	}
	for _, name := range s.Where.Require {
		id := s.chain.banks.byName[name]
		t := tables[id]
		if src.plan.conflicts[id] != "" || t != nil && t.err != nil {
			return true, false
		}
		if t == nil || t.in(whole) == 0 {
			return false, false
		}
		ends, ok := s.chain.m.there(src, chunkKey{src.number, run, id, endsColumn})
		if !ok {
			return true, false
		}
		for e := range passes {
			through, upTo := end(ends, from+int64(e))
			passes[e] = passes[e] && through > upTo
		}
	}
	if s.Where.looksAtTags() {
		tags, ok := s.chain.m.there(src, chunkKey{src.number, run, tagsBank, 0})
		if !ok {
			return true, false
		}
		for e := range passes {
			passes[e] = passes[e] && s.Where.event(binary.LittleEndian.Uint32(tags[4*(from+int64(e)):]))
		}
	}
	return slices.Contains(passes, true), !slices.Contains(passes, false)
}

// record takes the entries from to to, excluded, of a record; pass tells that no
// condition leaves any of them out.
func (s *skim) record(w *assembler, p *piece, src *source, needs *planNeeds, number int, from, to int64, pass bool) error {
	h := &src.file.Records[number]
	whole := from == 0 && to == int64(h.Events)
	if !whole || !s.stays(h) || !pass || needs.take != nil || len(needs.foreign) > 0 {
		if err := s.read(w, src, number); err != nil {
			return err
		}
		taking, some, all, err := s.taking(src, needs, &w.rec, number, from, to)
		if err != nil || !some {
			return err
		}
		if !all || !s.stays(h) {
			return s.take(p, &w.rec, taking)
		}
	} else if err := src.confirm(); err != nil {
		return err
	}
	w.rec.Check = src.check(number, new(bool))
	header, err := src.file.Confirm(number, &w.rec)
	p.copy = &copied{src.handle, h.Off, h.Length, slices.Clone(header), h.Events}
	return err
}

// read reads a record and finds the banks of its events.
func (s *skim) read(w *assembler, src *source, number int) error {
	if err := src.confirm(); err != nil {
		return err
	}
	compared := false
	w.rec.Check = src.check(number, &compared)
	err := src.file.ReadRecord(number, &w.rec)
	if err != nil && !compared {
		err = src.sinceIndexed(number, err)
	}
	if err == nil {
		s.chain.m.note(&w.rec)
	}
	return err
}

// check compares stored bytes of a record with their checksums, if the source
// has an index; compared tells that it has been asked.
func (src *source) check(number int, compared *bool) func(part int, stored []byte) error {
	if src.sums == nil {
		return nil
	}
	return func(part int, stored []byte) error {
		*compared = true
		return src.checkStored(number, part, stored)
	}
}

// taking is what is taken of a record: some of it, or all.
func (s *skim) taking(src *source, needs *planNeeds, rec *hipo.Record, number int, from, to int64) (t hipo.Taking, some, all bool, err error) {
	t.Bank, all = needs.take, true
	for i := range rec.Banks {
		b := &rec.Banks[i]
		if len(b.Spans) == 0 {
			continue
		}
		if name, ok := needs.foreign[[2]int{int(b.Group), int(b.Item)}]; ok && slices.ContainsFunc(b.Spans, func(s hipo.Span) bool { return s.Format == 0 }) {
			return t, false, false, &DictionaryError{fmt.Sprintf("%s has structures %d/%d without a schema, which would become bank %s of other files; leave it out with --banks, or write the files apart",
				src.info.Name, b.Group, b.Item, name)}
		}
		all = all && (t.Bank == nil || t.Bank(b.Group, b.Item))
	}
	if !s.Where.looksInside() && from == 0 && to == int64(rec.Header.Events) {
		return t, true, all, nil
	}
	t.Events = make([]bool, rec.Header.Events)
	for e := from; e < to; e++ {
		t.Events[e] = s.Where.event(rec.Tags[e])
	}
	for _, schema := range needs.require {
		if err := require(t.Events, rec, schema, src.info.Name, number); err != nil {
			return t, false, false, err
		}
	}
	return t, slices.Contains(t.Events, true), all && !slices.Contains(t.Events, false), nil
}

// require drops the events that have no row of a bank.
func require(events []bool, rec *hipo.Record, schema *hipo.Schema, file string, number int) error {
	has := make([]bool, len(events))
	for i := range rec.Banks {
		b := &rec.Banks[i]
		if b.Group != schema.Group || b.Item != schema.Item {
			continue
		}
		for _, span := range b.Spans {
			if span.Format == 0 && int(span.Len)%schema.RowSize != 0 {
				return &hipo.FormatError{File: file, Record: number, Off: rec.Header.Off, Msg: fmt.Sprintf("event %d: bank %s of %d bytes is not a whole number of %d-byte rows",
					span.Event, schema.Name, span.Len, schema.RowSize)}
			}
			has[span.Event] = span.Format == 0 && span.Len > 0
		}
	}
	for e := range events {
		events[e] = events[e] && has[e]
	}
	return nil
}

// take puts events of a record into a piece.
func (s *skim) take(p *piece, rec *hipo.Record, t hipo.Taking) error {
	p.codec, p.words = hipo.Codec{Tag: rec.Header.Tag}, rec.Words()
	if s.Codec != nil {
		p.codec = *s.Codec
	}
	t.Split = p.codec.Split()
	lost, err := rec.Take(&p.batch, t)
	if err != nil {
		return err
	}
	s.repeats.Add(int64(lost.Repeats))
	s.masks.Add(int64(lost.Masks))
	if t.Split && p.words.User != "" {
		s.headers.Add(1)
		p.words.User = ""
	}
	return nil
}
