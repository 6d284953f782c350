package hipo

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Options of a File; the zero value is useful.
type Options struct {
	MaxRecord int64 // ceiling on one inflated record or stream; 0: 1 GiB
	Salvage   bool  // pass over damage between records, and list it in File.Damage
	Abreast   int   // record headers that are read at once, where each is long in coming; 0: 1
}

// FileHeader is what the first 56 bytes of a file say.
type FileHeader struct {
	Identifier string // HIPO or HREC; OPIH or CERH when written as a swapped word
	FileNumber uint32
	Length     int64 // of the header; the dictionary record is next
	UserLength int64 // of the dictionary record, its header included; 0: none
	BitInfo    uint32
	Trailer    int64 // position of the trailer as the header gives it: a hint
	order      binary.ByteOrder
}

// FirstRecord is the position of the first data record.
func (h *FileHeader) FirstRecord() int64 { return h.Length + h.UserLength }

// File is a HIPO file: its dictionary and its record table. It is safe for
// concurrent use.
type File struct {
	Name       string
	Size       int64
	Header     FileHeader
	Dictionary *Dictionary
	Records    []RecordHeader // those with events, in file order
	Damage     []error        // what Options.Salvage passed over, in file order

	r       io.ReaderAt
	limit   int64
	salvage bool
	abreast int
}

// NewFile reads headers, dictionary and record table of the file of that size
// in r, which it keeps. The name is for messages.
func NewFile(name string, r io.ReaderAt, size int64, o Options) (*File, error) {
	f := newFile(name, r, size, o)
	if err := f.readHeader(); err != nil {
		return nil, err
	}
	if err := f.readDictionary(); err != nil {
		return nil, err
	}
	if err := f.readTable(); err != nil {
		return nil, err
	}
	return f, nil
}

func newFile(name string, r io.ReaderAt, size int64, o Options) *File {
	f := &File{Name: name, Size: size, r: r, limit: o.MaxRecord, salvage: o.Salvage, abreast: max(1, o.Abreast)}
	if f.limit <= 0 {
		f.limit = defaultMaxRecord
	}
	f.limit = min(f.limit, maxMaxRecord)
	return f
}

// errorf is a *FormatError about this file, outside any record.
func (f *File) errorf(off int64, format string, args ...any) *FormatError {
	return &FormatError{File: f.Name, Record: -1, Off: off, Msg: fmt.Sprintf(format, args...)}
}

// readAt fills p from position off. The caller has compared off and len(p)
// with the size, so that less means that the file is not what it was.
func (f *File) readAt(p []byte, off int64) error { return f.readFrom(f.r, p, off) }

func (f *File) readFrom(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return f.errorf(off, "the file ends after %d of %d bytes: it has become shorter", n, len(p))
	default:
		return fmt.Errorf("%s: byte %d: %w", f.Name, off, err)
	}
}

func (f *File) readHeader() error {
	if f.Size == 0 {
		return f.errorf(-1, "the file is empty (a job that failed before it wrote anything leaves such a file)")
	}
	b := make([]byte, min(f.Size, headerLength))
	if err := f.readAt(b, 0); err != nil {
		return err
	}
	if other := recognize(b); other != "" {
		return f.errorf(-1, "%s", other)
	}
	if len(b) < headerLength {
		return f.errorf(0, "%d bytes are too short for the %d-byte file header", f.Size, headerLength)
	}
	order, err := byteOrder(b)
	if err != nil {
		return f.errorf(magicAt, "file header: %v", err)
	}
	h := &f.Header
	h.order = order
	c := cursor{b, order}
	h.Identifier = string(c.take(4))
	h.FileNumber = c.u32()
	words := c.u32()
	_, _ = c.u32(), c.u32() // record count and index length: 0 from every writer
	h.BitInfo = c.u32()
	h.UserLength = int64(c.u32())
	_, _ = c.u32(), c.u64() // magic, user register
	trailer := c.u64()
	h.Length = 4 * int64(words)
	h.Trailer = int64(trailer)

	swapped := h.Identifier == "OPIH" || h.Identifier == "CERH"
	if h.Identifier != "HIPO" && h.Identifier != "HREC" && !(swapped && order == binary.BigEndian) {
		return f.errorf(0, "not a HIPO file: it begins with %s", excerpt(h.Identifier))
	}
	if v := h.BitInfo & versionMask; v != version {
		return f.errorf(20, "HIPO version %d; only version %d is read", v, version)
	}
	if words < headerWords || h.FirstRecord() > f.Size {
		what := ""
		if f.Size == headerLength {
			what = " (the file is only its 56-byte header, as a job that failed leaves it)"
		}
		return f.errorf(8, "header of %d bytes and dictionary of %d bytes run past the file of %d bytes%s",
			h.Length, h.UserLength, f.Size, what)
	}
	return nil
}

// recognize names a file that is not HIPO 6 by its first bytes, as far as they
// tell; "" means that nothing speaks against HIPO.
func recognize(b []byte) string {
	begins := func(s string) bool { return bytes.HasPrefix(b, []byte(s)) }
	switch {
	case begins("bitfileIndex="), begins("volser="), begins("sourceHost="):
		return "a stub of a file that is on tape: stage the file first (jcache get)"
	case begins("EVIO"), begins("OIVE"):
		return "an EVIO file, not HIPO"
	case begins("root"):
		return "a ROOT file, not HIPO"
	case begins("\x89HDF"):
		return "an HDF5 file, not HIPO"
	case begins("\x1f\x8b"), begins("\x28\xb5\x2f\xfd"):
		return "a compressed file: decompress it first"
	}
	if len(b) < headerLength || begins("HIPO") || begins("HREC") || begins("OPIH") || begins("CERH") {
		return ""
	}
	if order, err := byteOrder(b); err == nil {
		// EVIO has the same magic word, and counts its versions below 6 in the same place.
		if v := order.Uint32(b[20:]) & versionMask; v >= 1 && v <= 4 {
			return fmt.Sprintf("an EVIO file (version %d), not HIPO", v)
		}
	}
	if text := strings.TrimSpace(string(b)); bytes.IndexFunc(b, func(r rune) bool { return r < '\t' || r == '\uFFFD' }) < 0 {
		return "a text file, not HIPO: it begins with " + excerpt(text)
	}
	return ""
}

// readDictionary reads the record behind the file header, if there is one.
func (f *File) readDictionary() error {
	f.Dictionary = newDictionary()
	if f.Header.UserLength < headerLength {
		return f.checkNoDictionary()
	}
	h, err := f.readRecordHeader(f.Header.Length)
	if err != nil {
		return inDictionary(err)
	}
	err = f.eachDictionaryEvent(h, func(find func(key) ([]byte, bool)) error {
		f.Dictionary.addEvent(find)
		if n := f.Dictionary.columns; n > maxDictionaryColumns {
			return f.errorf(h.Off, "dictionary: over %d columns", maxDictionaryColumns)
		}
		return nil
	})
	if err != nil {
		return err
	}
	f.Dictionary.finish()
	return nil
}

// eachDictionaryEvent calls each for each event of the dictionary record that has
// something to say, in order, with what finds its first structure of a key.
func (f *File) eachDictionaryEvent(h RecordHeader, each func(find func(key) ([]byte, bool)) error) error {
	var rec Record
	if err := f.read(h, -1, &rec); err != nil {
		return inDictionary(err)
	}
	// Each of the pairs that matter, by event, in the order of events.
	wanted := []key{keySchemaJSON, keySchemaText, keyTagNames, keyConfigKey, keyConfigValue}
	found := make(map[key]map[uint32][]byte, len(wanted))
	var events []uint32
	for i := range rec.Banks {
		b := &rec.Banks[i]
		for _, k := range wanted {
			if b.key != k || len(b.Spans) == 0 {
				continue
			}
			data, err := rec.Data(i)
			if err != nil {
				return inDictionary(err)
			}
			byEvent := make(map[uint32][]byte, len(b.Spans))
			for _, s := range b.Spans {
				byEvent[s.Event] = bytes.Clone(data[s.Off : s.Off+s.Len])
				events = append(events, s.Event)
			}
			found[k] = byEvent
		}
	}
	last := int64(-1)
	for _, e := range sorted(events) {
		if int64(e) == last {
			continue
		}
		last = int64(e)
		err := each(func(k key) ([]byte, bool) {
			b, ok := found[k][e]
			return b, ok
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkNoDictionary looks at the record behind a file header that declares no
// dictionary. If that length is damaged, it is the dictionary record, and its
// schemas would be served as the first events.
func (f *File) checkNoDictionary() error {
	var rec Record
	h, err := f.readRecordHeader(f.Header.Length)
	if err == nil {
		err = f.read(h, -1, &rec)
	}
	if err != nil {
		return nil // for readTable to say
	}
	for i := range rec.Banks {
		if k := rec.Banks[i].key; k == keySchemaJSON || k == keySchemaText {
			return f.errorf(24, "file header: no dictionary declared, but the first record holds schemas")
		}
	}
	return nil
}

// inDictionary says of an error that it is about the dictionary record, which
// is not among the numbered ones.
func inDictionary(err error) error {
	var fe *FormatError
	if errors.As(err, &fe) {
		fe.Record, fe.Msg = -1, "dictionary: "+fe.Msg
	}
	return err
}
