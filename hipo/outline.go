package hipo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Outline is what opening a file learns from it, in a form that can be stored:
// with it the file is open again without being read. It is as little to be
// trusted as the file itself: Restore checks what NewFile checks, and only the
// file can tell whether the two belong together.
type Outline struct {
	Header     []byte // of the file, as it lies there
	Dictionary []byte // the dictionary record, as it lies there
	Records    []byte // one outlineRow a record that has events
}

// An outline row is a record's position (8 bytes) and its header, 14 words,
// with zeros for what File does not keep.
const outlineRow = 8 + headerLength

// Outline reads header and dictionary again, and gives them with the record table.
func (f *File) Outline() (Outline, error) {
	head := make([]byte, f.Header.FirstRecord())
	if err := f.readAt(head, 0); err != nil {
		return Outline{}, err
	}
	o := Outline{Header: head[:f.Header.Length], Dictionary: head[f.Header.Length:]}
	for i := range f.Records {
		h := &f.Records[i]
		o.Records = binary.LittleEndian.AppendUint64(o.Records, uint64(h.Off))
		o.Records = h.append(o.Records)
	}
	return o, nil
}

// append appends the header of a record, in the record's own byte order.
func (h *RecordHeader) append(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, headerLength)...)
	order := h.order()
	put := func(word int, v uint32) { order.PutUint32(b[at+4*word:], v) }
	put(0, uint32(h.Length/4))
	put(2, h.header/4)
	put(3, h.Events)
	put(4, 4*h.Events)
	put(5, h.bits)
	put(6, h.user)
	put(7, magic)
	put(8, uint32(h.DataLength))
	put(9, uint32(h.Tag)<<tagShift|uint32((h.Length-int64(h.header))/4))
	order.PutUint64(b[at+40:], uint64(h.UserTag))
	return b
}

var errOutline = errors.New("the outline is not one of this file")

// Restore makes a File of an outline, without reading r where records and trailer
// follow each other without a gap. A dictionary that is
// known to be that of the outline spares parsing it; otherwise it is nil.
func Restore(name string, r io.ReaderAt, size int64, o Outline, known *Dictionary, opt Options) (*File, error) {
	f := newFile(name, outlineReader(o), size, opt)
	if err := f.readHeader(); err != nil {
		return nil, err
	}
	if f.Header.Length != int64(len(o.Header)) || f.Header.UserLength != int64(len(o.Dictionary)) || len(o.Records)%outlineRow != 0 {
		return nil, errOutline
	}
	f.Dictionary = known
	if known == nil {
		if err := f.readDictionary(); err != nil {
			return nil, err
		}
	}
	f.r = r
	next := f.Header.FirstRecord()
	f.Records = make([]RecordHeader, 0, len(o.Records)/outlineRow)
	for rows := o.Records; len(rows) > 0; rows = rows[outlineRow:] {
		off := int64(binary.LittleEndian.Uint64(rows))
		if off < next || off > f.Size-headerLength {
			return nil, fmt.Errorf("%w: a record at %d", errOutline, off)
		}
		if err := f.nothingBetween(next, off); err != nil {
			return nil, err
		}
		h, err := f.parseRecordHeader(rows[8:outlineRow], off)
		if err != nil {
			return nil, err
		}
		if h.Events == 0 {
			return nil, fmt.Errorf("%w: a record without events", errOutline)
		}
		f.Records = append(f.Records, h)
		next = off + h.Length
	}
	if err := f.nothingBehind(next); err != nil {
		return nil, err
	}
	return f, nil
}

// nothingBetween makes sure that the outline left out no events between two
// places. They are the same unless the file has records without events.
func (f *File) nothingBetween(from, to int64) error {
	for from < to {
		h, err := f.readRecordHeader(from)
		if err != nil {
			return err
		}
		if h.Events != 0 {
			return fmt.Errorf("%w: it leaves out the record at %d", errOutline, from)
		}
		from += h.Length
	}
	if from != to {
		return fmt.Errorf("%w: no record ends at %d", errOutline, to)
	}
	return nil
}

// nothingBehind makes sure that no events follow the last record, which ends at
// from. The trailer is there, or the end of the file, unless a writer was odd.
func (f *File) nothingBehind(from int64) error {
	if from == f.Header.Trailer || from == f.Size {
		return nil
	}
	t, err := f.walk(from)
	if err != nil {
		return err
	}
	for _, h := range t.records {
		if h.Events != 0 {
			return fmt.Errorf("%w: it leaves out the record at %d", errOutline, h.Off)
		}
	}
	return nil
}

// outlineReader is the beginning of a file.
type outlineReader Outline

func (o outlineReader) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	if h := int64(len(o.Header)); off < h {
		n = copy(p, o.Header[off:])
		off = h
	}
	if at := off - int64(len(o.Header)); n < len(p) && at < int64(len(o.Dictionary)) {
		n += copy(p[n:], o.Dictionary[at:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
