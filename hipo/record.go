package hipo

import (
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
)

// Record is one record, read and taken apart. It owns its memory and uses it
// again for the next one; what it hands out lives until then.
type Record struct {
	Header RecordHeader
	Tags   []uint32 // event tags, one an event; of events that Next has found
	Banks  []Bank   // those of the events at hand have Spans; others are left from earlier ones

	// Check, if set, is called with all stored bytes before they are used: those
	// of the record or, if it is split, of its head up to the directory's end
	// (Whole), and those of each stream that is read, with its number. What it
	// returns ends the reading.
	Check func(part int, stored []byte) error

	From io.ReaderAt // where the file's bytes are read; nil: in the file

	BytesRead     int64 // from the file, for this record
	BytesInflated int64
	Streams       int // of a split record: inflated so far

	f        *File
	number   int
	raw      []byte // as it lies in the file; of a split record only its beginning
	payload  []byte // whole layout: the inflated bytes
	inflated []byte // memory for the payload
	split    split
	head     int64 // of a split record: where its directory ends
	next, at int   // of events that Next has not found: the first one, and where it begins in the payload
	slots    slots
	guesses  [laneSize]int // by place in the event: the bank that the last event had there
	inflater inflater
}

// Bank is one (group, item) of a record, in all its events.
type Bank struct {
	Group uint16
	Item  uint8
	Spans []Span // by event, ascending; one for each event that has the bank

	key     key
	last    uint32 // 1 + the last event seen, while walking
	stream  int    // split record: number of its first stream
	columns int    // column layout: how many columns are stored apart; 0: the bank lies in one piece
}

// Span is where the data of one structure lies, in what Record.Data returns.
type Span struct {
	Event  uint32
	Off    uint32
	Len    uint32 // format included
	Type   uint8
	Format uint8 // length of the format string of a composite bank; 0: none
	Big    bool  // values are big-endian
}

// Whole is what Record.Check is told of bytes that are no stream.
const Whole = -1

// A Record that has met more ids than this forgets them before the next
// record: a hostile file must not make every later record slow.
const maxSlots = 1 << 12

// maxIDs bounds the ids that a record may hold, each of which costs memory far
// beyond its bytes. Real files have a few hundred.
const maxIDs = 1 << 16

// ReadRecord reads record i, all of it or, if it is split, its directory, and
// finds the banks of all its events. An error about the record's bytes is a
// *FormatError.
func (f *File) ReadRecord(i int, rec *Record) error { return f.read(f.Records[i], i, rec) }

// StartRecord is ReadRecord for who calls Next: no banks are found yet.
func (f *File) StartRecord(i int, rec *Record) error { return f.start(f.Records[i], i, rec) }

// read reads the record with that header. The number is for messages.
func (f *File) read(h RecordHeader, number int, rec *Record) error {
	if err := f.start(h, number, rec); err != nil {
		return err
	}
	_, err := rec.Next(math.MaxInt)
	return err
}

func (f *File) start(h RecordHeader, number int, rec *Record) error {
	rec.begin(f, h, number)
	if h.Split() {
		return rec.readDirectory()
	}
	if err := rec.readRaw(h.Length); err != nil {
		return err
	}
	if err := rec.check(Whole, rec.raw); err != nil {
		return err
	}
	body := rec.raw[h.header:]
	if h.Tag != 0 {
		body = body[:max(0, len(body)-int(h.bits>>pad3Shift&padMask))]
	}
	want := h.eventsAt() + h.DataLength
	if codec := tags[h.Tag].codec; codec == codecNone {
		if want > int64(len(body)) {
			return rec.errorf("%d bytes of events declared, the body has %d", want, len(body))
		}
		rec.payload = body[:want]
	} else {
		b, err := rec.inflater.inflate(codec, rec.inflated, body, want)
		if err != nil {
			return rec.errorf("%v", err)
		}
		rec.inflated, rec.payload = b, b
	}
	rec.BytesInflated = want
	rec.at = int(h.eventsAt())
	rec.Tags = resizeTags(rec.Tags, int(h.Events))
	return nil
}

// begin forgets the record before.
func (rec *Record) begin(f *File, h RecordHeader, number int) {
	rec.f, rec.Header, rec.number = f, h, number
	rec.BytesRead, rec.BytesInflated, rec.Streams = 0, 0, 0
	rec.inflater.limit = f.limit + slack
	if len(rec.Banks) > maxSlots {
		rec.Banks, rec.slots = nil, slots{}
	}
	rec.forget()
	rec.next = 0
}

func resizeTags(tags []uint32, n int) []uint32 {
	if cap(tags) < n {
		return make([]uint32, n)
	}
	return tags[:n]
}

// forget empties the banks.
func (rec *Record) forget() {
	for i := range rec.Banks {
		b := &rec.Banks[i]
		b.Spans, b.last, b.columns = b.Spans[:0], 0, 0
	}
}

// Next finds the banks of the next events: about as many as have that many
// bytes, so that who works through them finds them in the processor's cache.
// It reports false when there are no more. The events of a split record, which
// are nothing but a directory, come all at once.
func (rec *Record) Next(bytes int) (bool, error) {
	if rec.next == int(rec.Header.Events) {
		return false, nil
	}
	if rec.Header.Split() {
		rec.next = int(rec.Header.Events)
		return true, nil
	}
	if rec.next > 0 {
		rec.forget()
	}
	return true, rec.walk(bytes)
}

// readRaw makes the first n bytes of the record available, and compares its
// header with the record table.
func (rec *Record) readRaw(n int64) error {
	rec.raw = resize(rec.raw, n)
	if err := rec.readAt(rec.raw, rec.Header.Off); err != nil {
		return err
	}
	if h, err := rec.f.parseRecordHeader(rec.raw, rec.Header.Off); err != nil || h != rec.Header {
		return rec.errorf("the record header is not what it was when the file was opened")
	}
	return nil
}

func (rec *Record) check(part int, stored []byte) error {
	if rec.Check == nil {
		return nil
	}
	return rec.Check(part, stored)
}

func (rec *Record) readAt(p []byte, off int64) error {
	rec.BytesRead += int64(len(p))
	from := rec.From
	if from == nil {
		from = rec.f.r
	}
	if err := rec.f.readFrom(from, p, off); err != nil {
		if fe, ok := err.(*FormatError); ok {
			return rec.errorf("%s", fe.Msg)
		}
		return fmt.Errorf("%w (record %d)", err, rec.number)
	}
	return nil
}

// errorf is a *FormatError about this record.
func (rec *Record) errorf(format string, args ...any) *FormatError {
	return &FormatError{File: rec.f.Name, Record: rec.number, Off: rec.Header.Off, Msg: fmt.Sprintf(format, args...)}
}

// tooLarge is errorf for what is over the limit.
func (rec *Record) tooLarge(format string, args ...any) *FormatError {
	fe := rec.errorf(format, args...)
	fe.TooLarge = true
	return fe
}

// walk notes where the structures of the next events lie, by bank. The first
// structure of a (group, item) in an event counts; later copies do not.
//
//	payload   index array | user header | pad 1 | event 0 | event 1 | …
func (rec *Record) walk(bytes int) error {
	h, p := &rec.Header, rec.payload
	n := int(h.Events)
	order := h.order()
	var lanes [abreast]lane
	begin := rec.at
	for rec.next < n && rec.at-begin < bytes {
		m := min(abreast, n-rec.next)
		for l := range m {
			length := int(order.Uint32(p[4*(rec.next+l):]))
			if length < eventHeader || length > len(p)-rec.at {
				return rec.errorf("event %d has %d bytes and begins at %d, the payload holds %d", rec.next+l, length, rec.at, len(p))
			}
			lanes[l].begin(rec.at, length)
			rec.at += length
		}
		if err := rec.walkAbreast(lanes[:m], rec.next); err != nil {
			return err
		}
		rec.next += m
	}
	return nil
}

// Structures are found one behind the other, and each header is a cache miss.
// Walked abreast, the misses of several events overlap.
const (
	abreast  = 16
	laneSize = 32 // structures that are found before they are noted
)

// lane is the walk through one event.
type lane struct {
	at, length int // of the event in the payload
	end        int // of its structures
	next       int // where the next structure begins, if there is one
	place      int // structures before those in headers
	big        bool
	n          int
	headers    [laneSize]uint64
	places     [laneSize]int
}

func (ln *lane) begin(at, length int) { ln.at, ln.length = at, length }

// header reads an event's header.
func (ln *lane) header(rec *Record, event int) error {
	le, be := binary.LittleEndian, binary.BigEndian
	ev := rec.payload[ln.at : ln.at+ln.length]
	// A big-endian record may hold little-endian events; the length tells.
	ln.big = rec.Header.big && int(be.Uint32(ev[4:])) == ln.length
	size, tag := int(le.Uint32(ev[4:])), le.Uint32(ev[8:])
	if ln.big {
		size, tag = ln.length, be.Uint32(ev[8:])
	}
	if size == 0 {
		size = ln.length // old Java writers left the word 0
	}
	if size < eventHeader || size > ln.length {
		return rec.errorf("event %d says that it has %d bytes, its record gives it %d", event, size, ln.length)
	}
	rec.Tags[event] = tag
	ln.next, ln.end, ln.n, ln.place = ln.at+eventHeader, ln.at+size, 0, 0
	return nil
}

// step finds the lane's next structure. It reports false if there is none, or no
// room for it.
func (ln *lane) step(payload []byte) bool {
	if ln.next+structureHeader > ln.end || ln.n == laneSize {
		return false
	}
	b := payload[ln.next : ln.next+structureHeader]
	w := binary.LittleEndian.Uint64(b)
	if ln.big {
		w = uint64(binary.BigEndian.Uint16(b)) | w&0xFFFF0000 | uint64(binary.BigEndian.Uint32(b[4:]))<<32
	}
	ln.headers[ln.n], ln.places[ln.n] = w, ln.next
	ln.n++
	ln.next += structureHeader + int(w>>32&dataLengthMask)
	return true
}

// walkAbreast notes the structures of the events in the lanes, the first of
// which is the given one.
func (rec *Record) walkAbreast(lanes []lane, first int) error {
	for l := range lanes {
		if err := lanes[l].header(rec, first+l); err != nil {
			return err
		}
	}
	if len(lanes) == abreast {
		rec.walkAlike((*[abreast]lane)(lanes), first)
	}
	for busy := true; busy; {
		busy = false
		for l := range lanes {
			busy = lanes[l].step(rec.payload) || busy
		}
	}
	for l := range lanes {
		// An event with more structures than a lane holds is finished alone, before
		// those behind it: a bank's spans are in the order of events.
		for ln := &lanes[l]; ln.n > 0; {
			if err := rec.note(ln, first+l); err != nil {
				return err
			}
			for ln.place, ln.n = ln.place+ln.n, 0; ln.step(rec.payload); {
			}
		}
	}
	return nil
}

// walkAlike notes structures as long as all lanes have the same bank at the
// same place, as most events have for their first banks or for all. The lanes
// then stand at the first place where they differ, or where something is wrong
// with one of them, which is for the others to say.
func (rec *Record) walkAlike(lanes *[abreast]lane, first int) {
	p := rec.payload
	var next, end [abreast]int
	for l := range lanes {
		if lanes[l].big {
			return
		}
		next[l], end[l] = lanes[l].next, lanes[l].end
	}
	for place := 0; place < laneSize; place++ {
		var w [abreast]uint64
		differ := uint64(0)
		for l := range w {
			if next[l]+structureHeader > end[l] {
				return
			}
			w[l] = binary.LittleEndian.Uint64(p[next[l]:])
			differ |= w[l] ^ w[0]
		}
		if differ&keyMask != 0 {
			return
		}
		slot := rec.guess(place, key(w[0]&keyMask))
		if slot < 0 {
			return
		}
		b := &rec.Banks[slot]
		if int(b.last) > first { // for the second time in these events
			return
		}
		n := len(b.Spans)
		if cap(b.Spans)-n < abreast {
			b.Spans = slices.Grow(b.Spans, max(abreast, n))
		}
		spans := (*[abreast]Span)(b.Spans[n : n+abreast])
		for l := range w {
			begin, data, format := next[l]+structureHeader, int(w[l]>>32&dataLengthMask), uint8(w[l]>>32>>formatShift)
			if begin+data > end[l] || int(format) > data {
				return
			}
			// Field by field: what is put together elsewhere and then copied stalls.
			s := &spans[l]
			s.Event, s.Off, s.Len = uint32(first+l), uint32(begin), uint32(data)
			s.Type, s.Format, s.Big = uint8(w[l]>>24), format, false
			next[l] = begin + data
		}
		b.Spans = b.Spans[:n+abreast]
		b.last = uint32(first + abreast)
		for l := range lanes {
			lanes[l].next, lanes[l].place = next[l], place+1
		}
	}
}

// guess is the place in Banks of a structure's key: where the last event had
// one at the same place, or looked up. It is -1 if there are too many.
func (rec *Record) guess(place int, k key) int {
	last := &rec.guesses[place%laneSize]
	if *last < len(rec.Banks) && rec.Banks[*last].key == k {
		return *last
	}
	slot := rec.slot(k)
	if slot >= maxIDs {
		return -1
	}
	*last = slot
	return slot
}

// note adds the structures that a lane has found to the banks.
func (rec *Record) note(ln *lane, event int) error {
	for i := range ln.n {
		w, begin := ln.headers[i], ln.places[i]+structureHeader
		data := int(w >> 32 & dataLengthMask)
		format := uint8(w >> 32 >> formatShift)
		k := key(w & keyMask)
		if begin+data > ln.end {
			return rec.errorf("event %d: structure %d/%d of %d bytes ends at %d, the event has %d",
				event, k.group(), k.item(), data, begin+data-ln.at, ln.end-ln.at)
		}
		if int(format) > data {
			return rec.errorf("event %d: structure %d/%d has a format of %d bytes and %d bytes in all", event, k.group(), k.item(), format, data)
		}
		// Most events have the same banks in the same order.
		slot := rec.guess(ln.place+i, k)
		if slot < 0 {
			return rec.errorf("event %d: more than %d kinds of structures", event, maxIDs)
		}
		b := &rec.Banks[slot]
		if int(b.last) > event {
			continue
		}
		b.last = uint32(event) + 1
		b.Spans = append(b.Spans, Span{
			Event: uint32(event), Off: uint32(begin), Len: uint32(data),
			Type: uint8(w >> 24), Format: format, Big: ln.big,
		})
	}
	return nil
}

// Structure is a structure of an event as it is stored.
type Structure struct {
	Group  uint16
	Item   uint8
	Type   uint8
	Format string // of a composite bank
	Data   []byte // without the format
}

// Structures gives the structures of event e in the order of the file, repeated
// ones included, of which the banks have only the first. The record must not be
// split (a split record keeps neither order nor repetitions) and its events must
// have been found.
func (rec *Record) Structures(e int) iter.Seq[Structure] {
	return func(yield func(Structure) bool) {
		order := rec.Header.order()
		ln := lane{at: int(rec.Header.eventsAt())}
		for i := range e {
			ln.at += int(order.Uint32(rec.payload[4*i:]))
		}
		ln.begin(ln.at, int(order.Uint32(rec.payload[4*e:])))
		if ln.header(rec, e) != nil {
			return
		}
		for ; ln.step(rec.payload); ln.n = 0 {
			w, k := ln.headers[0], key(ln.headers[0]&keyMask)
			data := rec.payload[ln.places[0]+structureHeader : ln.next]
			format := w >> 32 >> formatShift
			s := Structure{k.group(), k.item(), uint8(w >> 24), string(data[:format]), data[format:]}
			if !yield(s) {
				return
			}
		}
	}
}

// Data is the memory that the spans of bank i point into.
func (rec *Record) Data(i int) ([]byte, error) {
	if !rec.Header.Split() {
		return rec.payload, nil
	}
	return rec.readStream(rec.Banks[i].stream)
}

// Columns is how many columns of bank i are stored apart; 0 means that the bank
// lies in one piece, which Data returns.
func (rec *Record) Columns(i int) int { return rec.Banks[i].columns }

// Column is column k of bank i in all events of the record, if columns are
// stored apart. It lives until the next call of Column or Data.
func (rec *Record) Column(i, k int) ([]byte, error) {
	return rec.readStream(rec.Banks[i].stream + k)
}

// slots finds the place of a key in Record.Banks: an open table, never more
// than a quarter full, so that it stays small enough to be in the cache.
type slots struct {
	entries []slotEntry
	shift   uint8
}

type slotEntry struct {
	key  uint32 // 1 + key; 0: free
	slot uint32
}

// slot is the place of k in Banks, which is made if it is new.
func (rec *Record) slot(k key) int {
	t := &rec.slots
	if 4*(len(rec.Banks)+1) > len(t.entries) {
		rec.growSlots()
	}
	mask := uint32(len(t.entries) - 1)
	for i := uint32(k) * 0x9E3779B1 >> t.shift; ; i = (i + 1) & mask {
		switch e := &t.entries[i&mask]; e.key {
		case uint32(k) + 1:
			return int(e.slot)
		case 0:
			*e = slotEntry{uint32(k) + 1, uint32(len(rec.Banks))}
			rec.Banks = append(rec.Banks, Bank{Group: k.group(), Item: k.item(), key: k})
			return int(e.slot)
		}
	}
}

func (rec *Record) growSlots() {
	t := &rec.slots
	size := max(64, 2*len(t.entries))
	t.entries = make([]slotEntry, size)
	t.shift = 32
	for n := size; n > 1; n >>= 1 {
		t.shift--
	}
	mask := uint32(size - 1)
	for s := range rec.Banks {
		k := uint32(rec.Banks[s].key)
		i := k * 0x9E3779B1 >> t.shift
		for t.entries[i].key != 0 {
			i = (i + 1) & mask
		}
		t.entries[i] = slotEntry{k + 1, uint32(s)}
	}
}
