package hipo

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// RecordHeader is a row of the record table.
type RecordHeader struct {
	Off        int64  // position in the file
	Length     int64  // header and body, padding included
	DataLength int64  // inflated: the events, or the streams of a split record
	UserTag    int64  // user word 1, the record tag
	Events     uint32 // how many
	header     uint32 // length of the header
	user       uint32 // length of the user header inside the payload
	bits       uint32
	Tag        uint8 // compression tag, 0 to 14
	big        bool  // header and index array are big-endian
}

// Split reports whether the record stores its banks apart.
func (h *RecordHeader) Split() bool { return tags[h.Tag].layout != layoutWhole }

// ByColumn reports whether it also stores the columns of its banks apart.
func (h *RecordHeader) ByColumn() bool { return tags[h.Tag].layout == layoutColumn }

// BigEndian reports whether header and index array are big-endian.
func (h *RecordHeader) BigEndian() bool { return h.big }

// Codec names the record's compression and layout: "lz4", "zstd by bank", …
func (h *RecordHeader) Codec() string { return CodecName(h.Tag) }

// CodecName names what a compression tag stands for.
func CodecName(tag uint8) string {
	t := tags[tag]
	return [...]string{"none", "lz4", "gzip", "zstd"}[t.codec] + [...]string{"", " by bank", " by column"}[t.layout]
}

// Inflated is about the memory that the record takes when it is inflated.
func (h *RecordHeader) Inflated() int64 { return h.eventsAt() + h.DataLength }

// eventsAt is where the first event begins in the payload.
func (h *RecordHeader) eventsAt() int64 {
	return 4*int64(h.Events) + int64(h.user) + int64(h.bits>>pad1Shift&padMask)
}

func (h *RecordHeader) order() binary.ByteOrder {
	if h.big {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// parseRecordHeader decodes the header in b, which lies at off, and checks
// whatever needs no payload.
func (f *File) parseRecordHeader(b []byte, off int64) (RecordHeader, error) {
	bad := func(format string, args ...any) (RecordHeader, error) {
		return RecordHeader{}, f.errorf(off, "record header: "+format, args...)
	}
	order, err := byteOrder(b)
	if err != nil {
		return bad("%v", err)
	}
	c := cursor{b, order}
	h := RecordHeader{Off: off, big: order == binary.BigEndian}
	h.Length = 4 * int64(c.u32())
	_ = c.u32() // record number: writers differ
	headerLen := 4 * int64(c.u32())
	h.Events = c.u32()
	index := c.u32()
	h.bits = c.u32()
	h.user = c.u32()
	_ = c.u32() // magic
	h.DataLength = int64(c.u32())
	compression := c.u32()
	h.UserTag = int64(c.u64())

	h.Tag = uint8(compression >> tagShift)
	body := 4 * int64(compression&bodyWordsMask)
	switch {
	case h.bits&versionMask != version:
		return bad("version %d where %d is due", h.bits&versionMask, version)
	case headerLen < headerLength || headerLen > h.Length:
		return bad("header of %d bytes in a record of %d", headerLen, h.Length)
	case h.Length > f.Size-off:
		return bad("a record of %d bytes runs past the end of the file, which has %d more", h.Length, f.Size-off)
	case h.Tag > maxTag:
		return bad("unknown compression tag %d", h.Tag)
	case int64(index) != 4*int64(h.Events):
		return bad("an index of %d bytes for %d events", index, h.Events)
	case h.eventsAt()+h.DataLength > f.limit:
		fe := f.errorf(off, "record header: an inflated length of %d bytes, the limit is %d", h.eventsAt()+h.DataLength, f.limit)
		fe.TooLarge = true
		return RecordHeader{}, fe
	case h.Tag != 0 && body != h.Length-headerLen:
		return bad("a compressed length of %d bytes, the body has %d", body, h.Length-headerLen)
	}
	h.header = uint32(headerLen)
	return h, nil
}

func (f *File) readRecordHeader(off int64) (RecordHeader, error) {
	if off < 0 || off > f.Size-headerLength {
		return RecordHeader{}, f.errorf(off, "no room for a record header: the file ends at %d", f.Size)
	}
	var b [headerLength]byte
	if err := f.readAt(b[:], off); err != nil {
		return RecordHeader{}, err
	}
	return f.parseRecordHeader(b[:], off)
}

// readTable fills Records. The trailer is believed as far as it agrees with
// every record header and leaves no byte between the dictionary and itself
// unaccounted for; otherwise the records are walked.
func (f *File) readTable() error {
	t, err := f.tableFromTrailer()
	if err != nil {
		var fe *FormatError
		if !errors.As(err, &fe) {
			return err // the file could not be read: walking it would fail too
		}
		if t, err = f.walk(f.Header.FirstRecord()); err != nil {
			return err
		}
	}
	if err := f.checkEnd(t); err != nil {
		if !f.salvage {
			return err
		}
		f.Damage = append(f.Damage, err)
	}
	f.Records = slices.DeleteFunc(t.records, func(h RecordHeader) bool { return h.Events == 0 })
	return nil
}

// table is what was found between the dictionary and the end.
type table struct {
	records []RecordHeader
	end     int64 // of the last record or of the trailer
	trailer bool  // there is one
}

// tableFromTrailer gives the records that the trailer lists. A *FormatError
// says why the trailer is of no use.
func (f *File) tableFromTrailer() (table, error) {
	at, first := f.Header.Trailer, f.Header.FirstRecord()
	if at < first {
		return table{}, f.errorf(40, "no trailer")
	}
	trailer, err := f.readRecordHeader(at)
	if err != nil {
		return table{}, err
	}
	rows, err := f.fileIndex(trailer)
	if err != nil {
		return table{}, err
	}
	if rows == nil {
		return table{}, f.errorf(at, "the record at the trailer position holds no file index")
	}
	var records []RecordHeader
	var headers map[int64]RecordHeader
	if f.abreast > 1 {
		if headers, err = f.readAbreast(rows, first, at); err != nil {
			return table{}, err
		}
	}
	next := first
	for i := range rows.len() {
		pos, length, entries := rows.at(i)
		if pos < first || pos == at {
			continue // some writers list the dictionary record and the trailer itself
		}
		h, ok := headers[pos]
		if !ok {
			if h, err = f.readRecordHeader(pos); err != nil {
				return table{}, err
			}
		}
		if pos != next || h.Length != length || int64(h.Events) != entries {
			return table{}, f.errorf(pos, "the trailer disagrees with the records")
		}
		records = append(records, h)
		next = pos + h.Length
	}
	if next != at {
		return table{}, f.errorf(next, "the trailer leaves out what lies between %d and %d", next, at)
	}
	return table{records, at + trailer.Length, true}, nil
}

// readAbreast reads the headers of the records that a trailer at the given place
// lists, several at once.
func (f *File) readAbreast(rows *indexRows, first, trailer int64) (map[int64]RecordHeader, error) {
	var mu sync.Mutex
	headers := make(map[int64]RecordHeader, rows.len())
	var g errgroup.Group
	g.SetLimit(f.abreast)
	next := first
	for i := range rows.len() {
		pos, length, _ := rows.at(i)
		if pos < first || pos == trailer {
			continue
		}
		if pos != next || length < headerLength { // which is for the caller to say
			break
		}
		next += length
		g.Go(func() error {
			h, err := f.readRecordHeader(pos)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			headers[pos] = h
			return nil
		})
	}
	return headers, g.Wait()
}

// indexRows are the rows of a file::index bank.
type indexRows struct {
	b     []byte
	order binary.ByteOrder
}

func (x *indexRows) len() int { return len(x.b) / indexRow }

// at gives row i; the record's user words, behind these, are read from its header.
func (x *indexRows) at(i int) (pos, length, entries int64) {
	n := x.len()
	return int64(x.order.Uint64(x.b[8*i:])), int64(int32(x.order.Uint32(x.b[8*n+4*i:]))), int64(int32(x.order.Uint32(x.b[12*n+4*i:])))
}

// fileIndex gives the file index that the record holds; nil if it holds none.
func (f *File) fileIndex(h RecordHeader) (*indexRows, error) {
	if h.Events != 1 || h.Split() {
		return nil, nil
	}
	var rec Record
	if err := f.read(h, -1, &rec); err != nil {
		return nil, err
	}
	for i := range rec.Banks {
		b := &rec.Banks[i]
		if b.key != keyFileIndex || len(b.Spans) == 0 {
			continue
		}
		s := b.Spans[0]
		if s.Len%indexRow != 0 {
			return &indexRows{}, f.errorf(h.Off, "a file index of %d bytes is not a whole number of %d-byte rows", s.Len, indexRow)
		}
		x := &indexRows{rec.payload[s.Off : s.Off+s.Len], binary.LittleEndian}
		if s.Big {
			x.order = binary.BigEndian
		}
		return x, nil
	}
	return nil, nil
}

// walk finds the records one behind the other, up to a record that holds a
// file index or to the end of the file.
func (f *File) walk(at int64) (table, error) {
	var records []RecordHeader
	for at < f.Size {
		end, err := f.endsOldJavaFile(at)
		if err != nil {
			return table{}, err
		}
		if end {
			return table{records, f.Size, true}, nil
		}
		h, err := f.readRecordHeader(at)
		if err == nil {
			if isIndex, ierr := f.holdsIndex(h); ierr != nil {
				return table{}, ierr
			} else if isIndex {
				return table{records, at + h.Length, true}, nil
			}
			records = append(records, h)
			at += h.Length
			continue
		}
		var fe *FormatError
		if !errors.As(err, &fe) {
			return table{}, err
		}
		fe.Record = len(records)
		if len(records) > 0 {
			last := records[len(records)-1]
			fe.Msg += fmt.Sprintf("; the last good record is %d, at byte %d", len(records)-1, last.Off)
		}
		if !f.salvage {
			return table{}, err
		}
		f.Damage = append(f.Damage, err)
		if at, err = f.resync(at + 4); err != nil {
			return table{}, err
		}
	}
	return table{records, f.Size, false}, nil
}

// holdsIndex reports whether the record is a trailer, also one whose index has
// part rows. One that does not decode is not.
func (f *File) holdsIndex(h RecordHeader) (bool, error) {
	x, err := f.fileIndex(h)
	var fe *FormatError
	if errors.As(err, &fe) {
		err = nil
	}
	return x != nil, err
}

// endsOldJavaFile recognizes the last 56 bytes of a file by an old Java writer:
// a trailer without events whose length word counts bytes, so that as words it
// runs past the end.
func (f *File) endsOldJavaFile(at int64) (bool, error) {
	if at+headerLength != f.Size {
		return false, nil
	}
	var b [headerLength]byte
	if err := f.readAt(b[:], at); err != nil {
		return false, err
	}
	le := binary.LittleEndian
	return le.Uint32(b[magicAt:]) == magic && le.Uint32(b[0:]) == headerLength && le.Uint32(b[12:]) == 0 && le.Uint32(b[16:]) == 0, nil
}

// checkEnd looks at what the record table leaves of the file: nothing, or
// zeros that pad a block. A trailer position past the end shows that the file
// was cut short behind a whole record.
func (f *File) checkEnd(t table) error {
	if !t.trailer && f.Header.Trailer > f.Size-headerLength {
		return f.errorf(f.Size, "the file ends here, but its header puts a trailer at %d: it was cut short", f.Header.Trailer)
	}
	const step = 1 << 20
	for at := t.end; at < f.Size; at += step {
		b := make([]byte, min(step, f.Size-at))
		if err := f.readAt(b, at); err != nil {
			return err
		}
		if i := bytes.IndexFunc(b, func(r rune) bool { return r != 0 }); i >= 0 {
			return f.errorf(t.end, "%d bytes follow the trailer, which is the end of a HIPO file: something was appended", f.Size-t.end)
		}
	}
	return nil
}

// resync finds the next place from at on, in steps of 4 bytes, where a record
// header parses; the end of the file if there is none.
func (f *File) resync(at int64) (int64, error) {
	const window = 1 << 20
	for at+headerLength <= f.Size {
		b := make([]byte, min(window, f.Size-at))
		if err := f.readAt(b, at); err != nil {
			return 0, err
		}
		for i := 0; i+headerLength <= len(b); i += 4 {
			if _, err := f.parseRecordHeader(b[i:], at+int64(i)); err == nil {
				return at + int64(i), nil
			}
		}
		at += int64(len(b)-headerLength)/4*4 + 4
	}
	return f.Size, nil
}

func sorted(s []uint32) []uint32 {
	slices.Sort(s)
	return s
}
