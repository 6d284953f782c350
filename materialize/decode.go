package materialize

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"

	"github.com/hipofs/hipofs/hipo"
)

// Events are gathered in blocks of about this many bytes, which stay in the
// processor's cache while one column after another is copied out of them.
const blockBytes = 256 << 10

// A run of records is decoded at once: one large record, or as many small ones
// as make up this many inflated bytes.
const (
	runBytes   = 1 << 20
	runRecords = 1 << 12
)

// run is a run of records of one file, all of one layout.
type run struct {
	first, records int   // in the file's record table
	entry          int64 // number in the file of its first entry
	entries        int64
	data           int64 // bytes of all its events or streams, inflated
	inflated       int64 // of its largest record
	stored         int64 // of its largest record
	split          bool
	byColumn       bool // split, with a stream for each column
}

// makeRuns cuts a record table into runs.
func makeRuns(records []hipo.RecordHeader) []run {
	var runs []run
	var bytes, entry int64
	for i := range records {
		h := &records[i]
		r := len(runs) - 1
		if r < 0 || runs[r].split != h.Split() || runs[r].byColumn != h.ByColumn() || bytes+h.Inflated() > runBytes || runs[r].records == runRecords {
			runs = append(runs, run{first: i, entry: entry, split: h.Split(), byColumn: h.ByColumn()})
			bytes = 0
			r++
		}
		runs[r].records++
		runs[r].entries += int64(h.Events)
		runs[r].data += h.DataLength
		runs[r].inflated = max(runs[r].inflated, h.Inflated())
		runs[r].stored = max(runs[r].stored, h.Length)
		bytes += h.Inflated()
		entry += int64(h.Events)
	}
	return runs
}

// runAt is the run numbered r: one of those that the file is cut into or, from
// len(s.runs) on, a single record. A view of few entries needs no more.
func (s *source) runAt(r int32) *run {
	if int(r) < len(s.runs) {
		return &s.runs[r]
	}
	record := int(r) - len(s.runs)
	whole, base := s.wholeRun(r)
	h := &s.file.Records[record]
	return &run{
		first: record, records: 1, entry: s.runs[whole].entry + base, entries: int64(h.Events),
		data: h.DataLength, inflated: h.Inflated(), stored: h.Length, split: h.Split(), byColumn: h.ByColumn(),
	}
}

// recordRun is the number of the run that is a record alone.
func (s *source) recordRun(record int) int32 {
	if whole := s.runOfRecord(record); s.runs[whole].records == 1 {
		return int32(whole)
	}
	return int32(len(s.runs) + record)
}

// wholeRun is the run of the file that the run numbered r is, or lies in, and how
// many of its entries come before.
func (s *source) wholeRun(r int32) (whole int, base int64) {
	if int(r) < len(s.runs) {
		return int(r), 0
	}
	record := int(r) - len(s.runs)
	whole = s.runOfRecord(record)
	for _, h := range s.file.Records[s.runs[whole].first:record] {
		base += int64(h.Events)
	}
	return whole, base
}

func (s *source) runOfRecord(record int) int {
	return sort.Search(len(s.runs)-1, func(r int) bool { return s.runs[r+1].first > record })
}

// wanted says which columns of a bank a decode keeps, by column; nil if none.
// It is asked once a bank and run.
type wanted func(bank bankID, layout *hipo.Schema) []bool

// part is one bank in one decoded run.
type part struct {
	bank    bankID
	layout  *hipo.Schema
	kind    string // what a structure without a schema is, for messages
	rows    int64
	filled  int64    // entries that have rows
	most    uint32   // rows of the entry that has most of them
	stored  int64    // bytes of the file, where split records tell; -1: unknown
	record  int      // 1 + the last one whose bytes are in stored
	counts  []uint32 // rows of each entry; the decoder's memory
	keep    []bool   // columns to gather; nil: none
	columns [][]byte // chunks; empty where not kept
	err     error    // why this bank cannot be served, where others can

	primitive uint8  // type of a primitive node
	format    string // of a composite bank
}

// unknownSize is the stored size of a bank that is stored together with others.
const unknownSize = -1

// ends makes the chunk of endsColumn of the counts of a run.
func ends(counts []uint32) []byte {
	b := make([]byte, 4*len(counts))
	var sum uint32
	for e, n := range counts {
		sum += n
		binary.LittleEndian.PutUint32(b[4*e:], sum)
	}
	return b
}

// decoded is what one run gave. The chunks are new memory, the rest lives until
// the decoder is used again.
type decoded struct {
	tags  []byte // event tags
	parts []part
}

// decoder decodes runs. It owns the memory that records are read into, and is
// not safe for concurrent use.
type decoder struct {
	rec     hipo.Record
	out     decoded
	place   map[bankID]int // in out.parts
	rows    []uint32       // of each span at hand
	counts  [][]uint32     // memory for the counts of parts
	seen    bool           // the stored bytes of the record at hand have been compared with their checksum
	packer  packer
	touched byte
	apart   bool // a damaged stream of a split record is the fault of its bank alone

	density map[bankID]float64 // rows an entry in the last run: how much memory the next will take

	src    *source
	run    *run
	got    *fetched
	r      int32 // its number
	number int   // of the record at hand in its file
	base   int64 // number in the run of its first entry
	whole  int   // bank of the record whose stream is in data; -1: none
	data   []byte
}

// decode reads the records of run r and gathers what is wanted. An error means
// that a record is damaged or unreadable; a bank that is damaged alone has its
// part's err. After each record, count sees what it took.
//
// A source that a server has is read ahead: got is what there is of the run.
func (d *decoder) decode(src *source, r int32, want wanted, got *fetched, count func(*hipo.Record)) (*decoded, error) {
	d.src, d.run, d.r, d.base = src, src.runAt(r), r, 0
	if err := src.confirm(); err != nil {
		return nil, err
	}
	d.rec.Check, d.rec.From, d.got = nil, nil, got
	if got != nil {
		d.rec.From = got
	}
	if src.sums != nil {
		d.rec.Check = func(part int, stored []byte) error {
			d.seen = true
			return src.checkStored(d.number, part, stored)
		}
	}
	d.out.parts = d.out.parts[:0]
	d.out.tags = make([]byte, 0, 4*d.run.entries)
	if d.place == nil {
		d.place = map[bankID]int{}
		d.density = map[bankID]float64{}
	}
	clear(d.place)
	for d.number = d.run.first; d.number < d.run.first+d.run.records; d.number++ {
		err := d.gatherRecord(want)
		count(&d.rec)
		if err != nil {
			return nil, err
		}
		d.base += int64(d.rec.Header.Events)
	}
	for i := range d.out.parts {
		p := &d.out.parts[i]
		d.density[p.bank] = float64(p.rows) / float64(d.run.entries)
		for k, c := range p.columns {
			if cap(c)-len(c) > len(c)/8+word { // appendColumn needs a word to spare
				p.columns[k] = slices.Clone(c)
			}
		}
	}
	return &d.out, nil
}

// gatherRecord reads the record at hand and adds it to the parts, block by block.
func (d *decoder) gatherRecord(want wanted) error {
	d.seen = false
	if err := d.start(); err != nil {
		if !d.seen {
			err = d.src.sinceIndexed(d.number, err)
		}
		return err
	}
	for {
		more, err := d.rec.Next(blockBytes)
		if err != nil {
			return err
		}
		if !more {
			break
		}
		if err := d.gather(want); err != nil {
			return err
		}
	}
	for _, t := range d.rec.Tags {
		d.out.tags = binary.LittleEndian.AppendUint32(d.out.tags, t)
	}
	switch {
	case d.src.chain.checks:
		if err := d.rec.InflateStreams(); err != nil {
			return err
		}
		return d.rec.Audit()
	case d.src.chain.allSums:
		return d.readStreams()
	}
	return nil
}

// start reads the beginning of the record at hand, or takes what is known of it.
func (d *decoder) start() error {
	if d.got != nil && d.got.directories != nil {
		return d.src.file.RestoreRecord(d.number, &d.rec, &d.got.directories[d.number-d.run.first])
	}
	err := d.src.file.StartRecord(d.number, &d.rec)
	if err == nil && d.run.split && d.src.sums != nil {
		d.src.noteDirectory(d.number, &d.rec)
	}
	return err
}

// readStreams reads the streams of a split record for their checksums.
func (d *decoder) readStreams() error {
	if !d.run.split {
		return nil
	}
	for i := range d.rec.StreamCount() {
		if err := d.rec.CheckStream(i); err != nil {
			return err
		}
	}
	return nil
}

// gather adds the events at hand to the parts.
func (d *decoder) gather(want wanted) error {
	d.whole = -1
	for i := range d.rec.Banks {
		b := &d.rec.Banks[i]
		if len(b.Spans) == 0 {
			continue
		}
		banks := d.src.plan.declared(b.Group, b.Item)
		for rest := b.Spans; len(rest) > 0; {
			// A stretch of spans of one kind is gathered at once: nearly always all of them.
			stretch, format, err := d.stretch(i, rest, banks == nil)
			if err != nil && d.apart { // what it is cannot be told, either
				node, nodeErr := d.src.chain.node(b.Group, b.Item)
				if nodeErr != nil {
					return nodeErr
				}
				if err = d.spoil(d.part(node, hipo.Primitive(1), "", want), err); err == nil {
					break
				}
			}
			if err != nil {
				return err
			}
			rest = rest[len(stretch):]
			if err := d.gatherStretch(i, stretch, format, banks, want); err != nil {
				return err
			}
		}
	}
	return nil
}

// stretch is the longest beginning of spans that one layout describes: the same
// format string or none and, for a structure without a schema, the same type.
func (d *decoder) stretch(i int, spans []hipo.Span, node bool) ([]hipo.Span, string, error) {
	first, n := spans[0], 1
	if first.Format == 0 {
		for i := range spans {
			if s := &spans[i]; s.Format != 0 || node && s.Type != first.Type {
				return spans[:i], "", nil
			}
		}
		return spans, "", nil
	}
	data, err := d.bankData(i)
	if err != nil {
		return nil, "", err
	}
	format := data[first.Off : first.Off+uint32(first.Format)]
	for n < len(spans) && spans[n].Format == first.Format &&
		bytes.Equal(data[spans[n].Off:spans[n].Off+uint32(first.Format)], format) {
		n++
	}
	return spans[:n], string(format), nil
}

// gatherStretch decides what the structures are (format.md 7.2): composite if
// they carry a format, whatever the dictionary says; else the banks that the
// dictionary declares for the id; else a node.
func (d *decoder) gatherStretch(i int, spans []hipo.Span, format string, banks []planBank, want wanted) error {
	b := &d.rec.Banks[i]
	switch {
	case format != "":
		layout := hipo.Composite(format)
		if len(layout.Columns) == 0 {
			return nil
		}
		node, err := d.src.chain.node(b.Group, b.Item)
		if err != nil {
			return d.errorf("%v", err)
		}
		p := d.part(node, layout, compositeKind(format), want)
		p.format = format
		return d.gatherSpans(i, spans, p)
	case banks != nil:
		for _, pb := range banks {
			if err := d.gatherSpans(i, spans, d.part(pb.id, pb.schema, "", want)); err != nil {
				return err
			}
		}
		return nil
	default:
		node, err := d.src.chain.node(b.Group, b.Item)
		if err != nil {
			return d.errorf("%v", err)
		}
		p := d.part(node, hipo.Primitive(spans[0].Type), primitiveKind(spans[0].Type), want)
		p.primitive = spans[0].Type
		return d.gatherSpans(i, spans, p)
	}
}

func compositeKind(format string) string { return fmt.Sprintf("composite %q", format) }

func primitiveKind(kind uint8) string { return fmt.Sprintf("type %d", kind) }

// bankData is the memory that the spans of bank i of the record point into.
func (d *decoder) bankData(i int) ([]byte, error) {
	if d.whole != i {
		data, err := d.rec.Data(i)
		if err != nil {
			return nil, err
		}
		d.whole, d.data = i, data
	}
	return d.data, nil
}

// errorf is about the record at hand.
func (d *decoder) errorf(format string, args ...any) error {
	return &hipo.FormatError{
		File: d.src.file.Name, Record: d.number, Off: d.rec.Header.Off,
		Msg: fmt.Sprintf(format, args...),
	}
}

// smallCounts and twice the bytes of the events are what the counts of a run may
// take. A hostile record names thousands of banks once, and has a million events.
const smallCounts = 64 << 20

// part finds or begins the part of a bank in the run. A structure that changes
// its layout cannot be a table.
func (d *decoder) part(id bankID, layout *hipo.Schema, kind string, want wanted) *part {
	if i, ok := d.place[id]; ok {
		p := &d.out.parts[i]
		if p.err == nil && p.layout != layout && !p.layout.SameLayout(layout) {
			p.err = d.errorf("%s is %s here and %s before", d.src.chain.bankName(id), kind, p.kind)
		}
		return p
	}
	p := part{bank: id, layout: layout, kind: kind}
	if n := len(d.out.parts); 4*int64(n)*d.run.entries > smallCounts+2*d.run.data {
		p.err = d.errorf("%s is one of over %d kinds of structures in %d events of %d bytes in all: more than a reader can count",
			d.src.chain.bankName(id), n, d.run.entries, d.run.data)
	} else {
		p.counts, p.keep = d.newCounts(), want(id, layout)
	}
	if p.keep != nil {
		p.columns = make([][]byte, len(layout.Columns))
	}
	d.place[id] = len(d.out.parts)
	d.out.parts = append(d.out.parts, p)
	return &d.out.parts[len(d.out.parts)-1]
}

// newCounts gives memory for the counts of a part, which the next run uses again.
func (d *decoder) newCounts() []uint32 {
	i := len(d.out.parts)
	if i == len(d.counts) {
		d.counts = append(d.counts, nil)
	}
	n := int(d.run.entries)
	if cap(d.counts[i]) < n {
		d.counts[i] = make([]uint32, n+n/8)
	}
	c := d.counts[i][:n]
	clear(c)
	return c
}

// gatherSpans adds the rows of the spans of bank i of the record to p.
func (d *decoder) gatherSpans(i int, spans []hipo.Span, p *part) error {
	if p.err != nil {
		return nil
	}
	if d.rec.Columns(i) > 0 {
		b := &d.rec.Banks[i]
		if by := d.src.file.Dictionary.ByID(b.Group, b.Item); by != p.layout && !by.SameLayout(p.layout) {
			p.err = d.errorf("%s is stored by the columns of bank %s, which are others", d.src.chain.bankName(p.bank), by.Name)
			return nil
		}
	}
	switch {
	case !d.run.split:
		p.stored = unknownSize
	case p.record != d.number+1:
		p.stored += d.rec.Stored(i)
		p.record = d.number + 1
	}
	total, err := d.countRows(spans, p)
	if err != nil {
		p.err = err
		return nil
	}
	if p.keep == nil || total == 0 {
		return nil
	}
	if d.rec.Columns(i) > 0 {
		for k, keep := range p.keep {
			if !keep {
				continue
			}
			c, err := d.rec.Column(i, k)
			if err != nil {
				return d.spoil(p, err)
			}
			p.columns[k] = append(p.columns[k], c...)
		}
		return nil
	}
	data, err := d.bankData(i)
	if err != nil {
		return d.spoil(p, err)
	}
	if touchShare*chosen(p.keep) >= len(p.keep) {
		d.touch(data, spans)
	}
	for k, keep := range p.keep {
		if keep {
			if p.columns[k] == nil {
				p.columns[k] = make([]byte, 0, d.expect(p, total)*p.layout.Columns[k].Width()+word)
			}
			p.columns[k] = appendColumn(p.columns[k], p.layout.Columns[k], data, spans, d.rows, total, p.layout.RowSize)
		}
	}
	return nil
}

// countRows notes how many rows each of the spans has, which are of one kind, and
// gives their sum. The rows of each are in d.rows if columns are to be kept.
func (d *decoder) countRows(spans []hipo.Span, p *part) (total int, err error) {
	counts, by, format := p.counts[d.base:], divide(p.layout.RowSize), uint32(spans[0].Format)
	keep := p.keep != nil
	d.rows = d.rows[:0]
	var most uint32
	var filled int
	for i := range spans {
		s := &spans[i]
		length := s.Len - format
		rows := by.quotient(length)
		if rows*by.size != length {
			return 0, d.errorf("event %d: %s has %d bytes, not a whole number of %d-byte rows",
				s.Event, d.src.chain.bankName(p.bank), length, by.size)
		}
		counts[s.Event] = rows
		most = max(most, rows)
		total += int(rows)
		filled += int(min(rows, 1))
		if keep {
			d.rows = append(d.rows, rows)
		}
	}
	p.most = max(p.most, most)
	p.rows += int64(total)
	p.filled += int64(filled)
	return total, nil
}

// divisor divides by the size of a row, which the spans of a pass are in their
// millions: by multiplication, for a third of what a division costs.
type divisor struct {
	size       uint32
	reciprocal uint64 // 2^64 / size, rounded up; of 1, which has none, 0
}

func divide(size int) divisor {
	return divisor{uint32(size), math.MaxUint64/uint64(size) + 1}
}

// quotient is n / size. The reciprocal is too large by less than 1 in 2^32, and n
// times it by less than 1.
func (v divisor) quotient(n uint32) uint32 {
	if v.reciprocal == 0 {
		return n
	}
	q, _ := bits.Mul64(uint64(n), v.reciprocal)
	return uint32(q)
}

// spoil decides what an error about a stream of p is the fault of.
func (d *decoder) spoil(p *part, err error) error {
	var fe *hipo.FormatError
	if d.apart && d.run.split && errors.As(err, &fe) {
		p.err = err
		return nil
	}
	return err
}

// expect is how many rows the part will have, as far as can be known: those that
// were counted, or as many an entry as in the last run and a few more.
func (d *decoder) expect(p *part, atLeast int) int {
	if t := d.src.tablesSoFar()[p.bank]; t != nil && int(d.r) < len(d.src.runs) {
		return max(atLeast, int(t.in(int(d.r))))
	}
	n := int(d.density[p.bank] * float64(d.run.entries))
	return max(atLeast, min(n+n/32, int(d.run.data)/p.layout.RowSize))
}

// word is how much a short copy moves at once. Most events have a few rows, and
// a call for each of their columns would cost more than the copy.
const word = 32

// lineBytes is how much of memory a processor fetches at once. Spans of which one
// column in touchShare is kept, or more, are worth fetching whole.
const (
	lineBytes  = 64
	touchShare = 4
)

func chosen(keep []bool) (n int) {
	for _, k := range keep {
		if k {
			n++
		}
	}
	return n
}

// touch reads a byte of each line of the spans, in order. The columns are copied
// one after the other, which would fetch the lines of a span in no order that a
// processor foresees: all columns of all banks take a fifth less time so.
func (d *decoder) touch(data []byte, spans []hipo.Span) {
	var sum byte
	for j := range spans {
		s := &spans[j]
		for b := data[s.Off : s.Off+s.Len]; len(b) > 0; b = b[min(lineBytes, len(b)):] {
			sum += b[0]
		}
	}
	d.touched = sum // so that it is not optimized away
}

// appendColumn appends a column's values in every span to dst. Each span has
// the rows that rows gives it; total is their sum.
func appendColumn(dst []byte, c hipo.Column, data []byte, spans []hipo.Span, rows []uint32, total, rowSize int) []byte {
	start, width := c.Start(), c.Width()
	from := len(dst)
	// Short copies write whole words: past their end, where the next one begins.
	dst = slices.Grow(dst, total*width+word)
	room := dst[:cap(dst)]
	at := from
	for j := range spans {
		s := &spans[j]
		n := int(rows[j])
		length := n * width
		switch off := int(s.Off) + n*start; {
		case s.Format != 0: // a composite bank is row-major
			row := int(s.Off) + int(s.Format) + start
			for r := range n {
				copy(room[at+r*width:at+(r+1)*width], data[row+r*rowSize:])
			}
		case length <= 2*word && off+2*word <= len(data) && at+2*word <= len(room):
			copyWord((*[word]byte)(room[at:]), (*[word]byte)(data[off:]))
			if length > word {
				copyWord((*[word]byte)(room[at+word:]), (*[word]byte)(data[off+word:]))
			}
		default:
			copy(room[at:at+length], data[off:off+length])
		}
		if s.Big {
			swap(room[at:at+length], c.Type.Size)
		}
		at += length
	}
	return room[:at]
}

// copyWord copies without a call: assigning the array would be one.
func copyWord(dst, src *[word]byte) {
	le := binary.LittleEndian
	a, b, c, d := le.Uint64(src[0:]), le.Uint64(src[8:]), le.Uint64(src[16:]), le.Uint64(src[24:])
	le.PutUint64(dst[0:], a)
	le.PutUint64(dst[8:], b)
	le.PutUint64(dst[16:], c)
	le.PutUint64(dst[24:], d)
}

// swap reverses the bytes of each value in b.
func swap(b []byte, size int) {
	if size == 1 {
		return
	}
	for ; len(b) >= size; b = b[size:] {
		slices.Reverse(b[:size])
	}
}
