package hipo

import (
	"encoding/binary"
	"fmt"
)

// Record is one record, read and taken apart. It owns its memory and uses it
// again for the next one; what it hands out lives until then.
type Record struct {
	Header RecordHeader
	Tags   []uint32 // event tags, one an event
	Banks  []Bank   // those of this record have Spans; others are left from earlier ones

	// Check, if set, is called with all stored bytes before they are used: those
	// of the record or, if it is split, of its head up to the directory's end
	// (Whole), and those of each stream that is read, with its number. What it
	// returns ends the reading.
	Check func(part int, stored []byte) error

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
	slots    slots
	inflater inflater
}

// Bank is one (group, item) of a record, in all its events.
type Bank struct {
	Group uint16
	Item  uint8
	Spans []Span // by event, ascending; one for each event that has the bank

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

// ReadRecord reads record i, all of it or, if it is split, its directory. An
// error about the record's bytes is a *FormatError.
func (f *File) ReadRecord(i int, rec *Record) error { return f.read(f.Records[i], i, rec) }

// read reads the record with that header. The number is for messages.
func (f *File) read(h RecordHeader, number int, rec *Record) error {
	rec.f, rec.Header, rec.number = f, h, number
	rec.BytesRead, rec.BytesInflated, rec.Streams = 0, 0, 0
	rec.inflater.limit = f.limit + slack
	if len(rec.Banks) > maxSlots {
		rec.Banks, rec.slots = nil, slots{}
	}
	for i := range rec.Banks {
		b := &rec.Banks[i]
		b.Spans, b.last, b.columns = b.Spans[:0], 0, 0
	}
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
	return rec.walk()
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
	if err := rec.f.readAt(p, off); err != nil {
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

// walk notes where the structures of every event lie, by bank. The first
// structure of a (group, item) in an event counts; later copies do not.
//
//	payload   index array | user header | pad 1 | event 0 | event 1 | …
func (rec *Record) walk() error {
	h, p := &rec.Header, rec.payload
	le, be := binary.LittleEndian, binary.BigEndian
	n := int(h.Events)
	if cap(rec.Tags) < n {
		rec.Tags = make([]uint32, n)
	}
	rec.Tags = rec.Tags[:n]
	at := int(h.eventsAt())
	for e := range n {
		length := int(le.Uint32(p[4*e:]))
		if h.big {
			length = int(be.Uint32(p[4*e:]))
		}
		if length < eventHeader || length > len(p)-at {
			return rec.errorf("event %d has %d bytes and begins at %d, the payload holds %d", e, length, at, len(p))
		}
		ev := p[at : at+length]
		// A big-endian record may hold little-endian events; the length tells.
		big := h.big && int(be.Uint32(ev[4:])) == length
		size, tag := int(le.Uint32(ev[4:])), le.Uint32(ev[8:])
		if big {
			size, tag = length, be.Uint32(ev[8:])
		}
		if size == 0 {
			size = length // old Java writers left the word 0
		}
		if size < eventHeader || size > length {
			return rec.errorf("event %d says that it has %d bytes, its record gives it %d", e, size, length)
		}
		rec.Tags[e] = tag
		for q := eventHeader; q+structureHeader <= size; {
			w := le.Uint64(ev[q:])
			if big {
				w = uint64(be.Uint16(ev[q:])) | w&0xFFFF0000 | uint64(be.Uint32(ev[q+4:]))<<32
			}
			data := int(w >> 32 & dataLengthMask)
			format := uint8(w >> 32 >> formatShift)
			k := key(w & 0xFFFFFF)
			begin := q + structureHeader
			q = begin + data
			if q > size {
				return rec.errorf("event %d: structure %d/%d of %d bytes ends at %d, the event has %d", e, k.group(), k.item(), data, q, size)
			}
			if int(format) > data {
				return rec.errorf("event %d: structure %d/%d has a format of %d bytes and %d bytes in all", e, k.group(), k.item(), format, data)
			}
			slot := rec.slot(k)
			if slot >= maxIDs {
				return rec.errorf("event %d: more than %d kinds of structures", e, maxIDs)
			}
			b := &rec.Banks[slot]
			if b.last == uint32(e)+1 {
				continue
			}
			b.last = uint32(e) + 1
			b.Spans = append(b.Spans, Span{
				Event: uint32(e), Off: uint32(at + begin), Len: uint32(data),
				Type: uint8(w >> 24), Format: format, Big: big,
			})
		}
		at += length
	}
	return nil
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
			rec.Banks = append(rec.Banks, Bank{Group: k.group(), Item: k.item()})
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
		k := uint32(makeKey(rec.Banks[s].Group, rec.Banks[s].Item))
		i := k * 0x9E3779B1 >> t.shift
		for t.entries[i].key != 0 {
			i = (i + 1) & mask
		}
		t.entries[i] = slotEntry{k + 1, uint32(s)}
	}
}
