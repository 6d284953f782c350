package hipo

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Batch is events on their way into a record: little-endian, as records of the
// whole layout hold them, one behind the other. Its memory is used again after
// Reset. It is not safe for concurrent use.
type Batch struct {
	lengths []uint32
	events  []byte
}

const (
	maxFormat = 127 // of a composite bank; what readers take beyond it, nobody writes
	maxEvent  = math.MaxInt32
)

// Events is how many events there are.
func (b *Batch) Events() int { return len(b.lengths) }

// Size is how many bytes the events have.
func (b *Batch) Size() int { return len(b.events) }

// Reset leaves no event.
func (b *Batch) Reset() { b.lengths, b.events = b.lengths[:0], b.events[:0] }

// Begin begins an event, which has no structures yet.
func (b *Batch) Begin(tag uint32) { b.begin([4]byte{'E', 'V', 'N', 'T'}, tag, 0) }

func (b *Batch) begin(identifier [4]byte, tag, mask uint32) {
	le := binary.LittleEndian
	b.events = append(b.events, identifier[:]...)
	b.events = le.AppendUint32(b.events, eventHeader)
	b.events = le.AppendUint32(b.events, tag)
	b.events = le.AppendUint32(b.events, mask)
	b.lengths = append(b.lengths, eventHeader)
}

// Add adds a structure to the event that was begun last. Its data is
// little-endian. One that the format has no room for is an error.
func (b *Batch) Add(s Structure) error {
	n := len(s.Format) + len(s.Data)
	switch {
	case len(s.Format) > maxFormat:
		return fmt.Errorf("structure %d/%d has a format of %d characters, the most is %d", s.Group, s.Item, len(s.Format), maxFormat)
	case n > dataLengthMask:
		return fmt.Errorf("structure %d/%d has %d bytes in one event, the most is %d", s.Group, s.Item, n, dataLengthMask)
	case int(b.lengths[len(b.lengths)-1])+structureHeader+n > maxEvent:
		return fmt.Errorf("an event of over %d bytes", maxEvent)
	}
	b.header(makeKey(s.Group, s.Item), s.Type, uint8(len(s.Format)), n)
	b.events = append(append(b.events, s.Format...), s.Data...)
	return nil
}

// header appends the header of a structure, whose n bytes of data follow.
func (b *Batch) header(k key, kind, format uint8, n int) {
	b.events = binary.LittleEndian.AppendUint64(b.events, uint64(k)|uint64(kind)<<24|uint64(format)<<(32+formatShift)|uint64(n)<<32)
	last := &b.lengths[len(b.lengths)-1]
	*last += uint32(structureHeader + n)
	binary.LittleEndian.PutUint32(b.events[len(b.events)-int(*last)+n+4:], *last)
}

// Join appends events A to B, B excluded, of another batch; off is where event A
// begins in it. It gives where event B begins.
func (b *Batch) Join(o *Batch, off, from, to int) int {
	end := off
	for _, n := range o.lengths[from:to] {
		end += int(n)
	}
	b.lengths = append(b.lengths, o.lengths[from:to]...)
	b.events = append(b.events, o.events[off:end]...)
	return end
}

// Fit is how many events from the given one on have at most that many bytes
// together, and are not more than most.
func (b *Batch) Fit(from, bytes, most int) int {
	n := 0
	for _, length := range b.lengths[from:] {
		if bytes -= int(length); bytes < 0 || n == most {
			break
		}
		n++
	}
	return n
}

// Taking says what Record.Take leaves out; the zero value takes everything.
type Taking struct {
	Events []bool                              // whether each event is taken; nil: all are
	Bank   func(group uint16, item uint8) bool // whether structures of an id are taken; nil: all are
	Split  bool                                // without what a split record cannot hold
}

// Lost is what a split record cannot hold, and Record.Take has left out. No
// column shows any of it.
type Lost struct {
	Repeats int // structures behind the first of their id in an event
	Masks   int // events whose mask word was not 0
}

// Take appends events of the record, all of which Next must have found, to b.
//
// A record of the whole layout gives its events as they are, in little-endian
// order and with their length words right; a split one keeps neither the order
// of structures nor masks, and has the banks by group and item.
func (rec *Record) Take(b *Batch, t Taking) (Lost, error) {
	var lost Lost
	var banks []bool // by place in Banks; nil: all are taken
	if t.Bank != nil {
		banks = make([]bool, len(rec.Banks))
		for i := range rec.Banks {
			banks[i] = t.Bank(rec.Banks[i].Group, rec.Banks[i].Item)
		}
	}
	if rec.Header.Split() {
		return lost, rec.takeSplit(b, t.Events, banks)
	}
	h, p := &rec.Header, rec.payload
	order := h.order()
	seen := make([]int, len(rec.Banks)) // 1 + the last event that has the bank
	var ln lane
	ln.at = int(h.eventsAt())
	for e := range int(h.Events) {
		ln.begin(ln.at, int(order.Uint32(p[4*e:])))
		if t.Events == nil || t.Events[e] {
			if err := ln.header(rec, e); err != nil {
				return lost, err
			}
			ev := p[ln.at : ln.at+ln.length]
			if !ln.big && ln.end == ln.at+ln.length && binary.LittleEndian.Uint32(ev[4:]) != 0 && banks == nil && !t.Split {
				b.lengths = append(b.lengths, uint32(ln.length))
				b.events = append(b.events, ev...)
			} else if err := rec.takeEvent(b, &ln, e, banks, t.Split, seen, &lost); err != nil {
				return lost, err
			}
		}
		ln.at += ln.length
	}
	return lost, nil
}

// takeEvent appends the event in the lane structure by structure.
func (rec *Record) takeEvent(b *Batch, ln *lane, e int, banks []bool, split bool, seen []int, lost *Lost) error {
	ev := rec.payload[ln.at:]
	mask := binary.LittleEndian.Uint32(ev[12:])
	if ln.big {
		mask = binary.BigEndian.Uint32(ev[12:])
	}
	if split && mask != 0 {
		lost.Masks++
	}
	b.begin([4]byte(ev), rec.Tags[e], mask)
	for place := 0; ln.step(rec.payload); ln.n = 0 {
		w := ln.headers[0]
		slot := rec.guess(place, key(w&keyMask))
		place++
		if slot < 0 || slot >= len(seen) {
			return rec.errorf("event %d has structures that were not there before", e)
		}
		if banks != nil && !banks[slot] {
			continue
		}
		if again := seen[slot] == e+1; again && split {
			lost.Repeats++
			continue
		}
		seen[slot] = e + 1
		format, kind := uint8(w>>32>>formatShift), uint8(w>>24)
		b.header(rec.Banks[slot].key, kind, format, int(w>>32&dataLengthMask))
		begin := len(b.events)
		b.events = append(b.events, rec.payload[ln.places[0]+structureHeader:ln.next]...)
		if ln.big {
			if err := rec.toLittle(b.events[begin:], rec.Banks[slot].key, kind, format); err != nil {
				return rec.errorf("event %d: %v", e, err)
			}
		}
	}
	return nil
}

// toLittle turns the values of a big-endian structure round.
func (rec *Record) toLittle(data []byte, k key, kind, format uint8) error {
	layout := rec.f.Dictionary.byKey[k]
	byRow := format > 0
	switch {
	case byRow:
		layout = Composite(string(data[:format]))
		data = data[format:]
		if len(layout.Columns) == 0 {
			return nil
		}
	case layout == nil:
		layout = Primitive(kind)
	}
	if len(data)%layout.RowSize != 0 {
		return fmt.Errorf("structure %d/%d of %d bytes is not a whole number of %d-byte rows, and so cannot be turned into little-endian",
			k.group(), k.item(), len(data), layout.RowSize)
	}
	rows := len(data) / layout.RowSize
	for _, c := range layout.Columns {
		if !byRow {
			off, n := c.Span(rows)
			reverse(data[off:off+n], c.Type.Size)
			continue
		}
		for r := range rows {
			off := r*layout.RowSize + c.start
			reverse(data[off:off+c.Width()], c.Type.Size)
		}
	}
	return nil
}

// reverse turns the bytes of each value of that size round.
func reverse(b []byte, size int) {
	for ; len(b) >= size && size > 1; b = b[size:] {
		slices.Reverse(b[:size])
	}
}

// stored is a bank of a split record, inflated.
type stored struct {
	*Bank
	next    int      // span
	rows    int      // of the spans before it, where columns lie apart
	columns [][]byte // where they do; otherwise the one element is the whole bank
	schema  *Schema  // where columns lie apart
}

// takeSplit puts events together from the streams of a split record.
func (rec *Record) takeSplit(b *Batch, events, taken []bool) error {
	var banks []stored
	for i := range rec.Banks {
		bank := &rec.Banks[i]
		if len(bank.Spans) == 0 || taken != nil && !taken[i] {
			continue
		}
		s := stored{Bank: bank}
		for k := range max(1, bank.columns) {
			read := rec.Data
			if bank.columns > 0 {
				s.schema = rec.f.Dictionary.byKey[bank.key]
				read = func(i int) ([]byte, error) { return rec.Column(i, k) }
			}
			data, err := read(i)
			if err != nil {
				return err
			}
			s.columns = append(s.columns, bytes.Clone(data))
		}
		banks = append(banks, s)
	}
	slices.SortFunc(banks, func(a, b stored) int {
		if a.key.less(b.key) {
			return -1
		}
		return 1
	})
	for e := range int(rec.Header.Events) {
		take := events == nil || events[e]
		if take {
			b.Begin(rec.Tags[e])
		}
		for i := range banks {
			s := &banks[i]
			if s.next == len(s.Spans) || s.Spans[s.next].Event != uint32(e) {
				continue
			}
			span := s.Spans[s.next]
			s.next++
			if take {
				b.header(s.key, span.Type, span.Format, int(span.Len))
			}
			if s.schema == nil {
				if take {
					b.events = append(b.events, s.columns[0][span.Off:span.Off+span.Len]...)
				}
				continue
			}
			rows := int(span.Len) / s.schema.RowSize
			for k, c := range s.schema.Columns {
				if take {
					b.events = append(b.events, s.columns[k][s.rows*c.Width():(s.rows+rows)*c.Width()]...)
				}
			}
			s.rows += rows
		}
	}
	return nil
}

// Words are what a record carries beside its events.
type Words struct {
	Tag  int64  // user word 1: the record tag
	Word uint64 // user word 2
	User string // user header; a split record has no room for one
}

// Words of a record that has been read. A user header is known once its events
// are found.
func (rec *Record) Words() Words {
	h := &rec.Header
	w := Words{Tag: h.UserTag, Word: h.order().Uint64(rec.raw[48:])}
	if !h.Split() {
		w.User = string(rec.payload[4*h.Events:][:h.user])
	}
	return w
}

// Confirm makes sure that record i is still there, and has its stored bytes
// compared if there is a Check. It inflates nothing but a directory, and gives
// the record's header as it lies in the file.
func (f *File) Confirm(i int, rec *Record) (header []byte, err error) {
	h := f.Records[i]
	rec.f, rec.Header, rec.number = f, h, i
	rec.BytesRead, rec.BytesInflated, rec.Streams = 0, 0, 0
	switch {
	case rec.Check == nil:
		err = rec.readRaw(headerLength)
	case h.Split():
		if err = f.start(h, i, rec); err != nil {
			return nil, err
		}
		for s := range rec.StreamCount() {
			if err = rec.CheckStream(s); err != nil {
				return nil, err
			}
		}
	default:
		if err = rec.readRaw(h.Length); err == nil {
			err = rec.check(Whole, rec.raw)
		}
	}
	if err != nil {
		return nil, err
	}
	return rec.raw[:headerLength], nil
}
