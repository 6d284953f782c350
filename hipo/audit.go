package hipo

import (
	"bytes"
	"fmt"
)

// What reading a file passes over, because some writer is odd there or because
// nothing served depends on it, but a sound file does not have.

// AuditTrailer compares the trailer with the records. The error says why other
// readers, which go by the trailer alone, will miss or invent events.
func (f *File) AuditTrailer() error {
	if f.Header.Trailer == 0 {
		return f.errorf(40, "no trailer: the program that wrote the file did not end, or wrote none; readers that need one find no events")
	}
	if end, err := f.endsOldJavaFile(f.Header.Trailer); end || err != nil {
		return err
	}
	if _, err := f.tableFromTrailer(); err != nil {
		return err
	}
	h, err := f.readRecordHeader(f.Header.Trailer)
	if err != nil {
		return err
	}
	rows, err := f.fileIndex(h)
	if err != nil {
		return err
	}
	for i := range rows.len() {
		pos, _, _ := rows.at(i)
		if pos < f.Header.FirstRecord() || pos == f.Header.Trailer {
			continue
		}
		var b [headerLength]byte
		if err := f.readAt(b[:], pos); err != nil {
			return err
		}
		order, err := byteOrder(b[:])
		if err != nil {
			return f.errorf(pos, "record header: %v", err)
		}
		one, two := rows.words(i)
		if one != order.Uint64(b[40:]) || two != order.Uint64(b[48:]) {
			return f.errorf(pos, "the trailer gives the record other user words than its header")
		}
	}
	return nil
}

// AuditDictionary compares the two forms that a schema may have, each of which
// some reader goes by. It gives a sentence for each schema where they differ.
func (f *File) AuditDictionary() (differ []string, err error) {
	if f.Header.UserLength < headerLength {
		return nil, nil
	}
	h, err := f.readRecordHeader(f.Header.Length)
	if err != nil {
		return nil, inDictionary(err)
	}
	err = f.eachDictionaryEvent(h, func(find func(key) ([]byte, bool)) error {
		text, isText := find(keySchemaText)
		js, isJSON := find(keySchemaJSON)
		if !isText || !isJSON {
			return nil
		}
		one, err := parseSchemaText(stringNode(text))
		if err != nil {
			return nil // among Dictionary.Dropped
		}
		if two, err := parseSchemaJSON(stringNode(js)); err != nil || !two.Equal(one) {
			differ = append(differ, fmt.Sprintf("the text and the JSON of schema %s say different things", excerpt(one.Name)))
		}
		return nil
	})
	return differ, err
}

// words are the record's user words as row i repeats them.
func (x *indexRows) words(i int) (one, two uint64) {
	n := x.len()
	return x.order.Uint64(x.b[16*n+8*i:]), x.order.Uint64(x.b[24*n+8*i:])
}

// Padding is how many bytes at the end of a split record belong to no stream.
func (h *RecordHeader) Padding() int64 {
	if !h.Split() {
		return 0
	}
	return int64(h.bits >> pad3Shift & padMask)
}

// Audit looks for what reading the record passes over. Its events must have
// been found. An error about the record's bytes is a *FormatError.
func (rec *Record) Audit() error {
	h := &rec.Header
	pad := int(h.bits >> pad3Shift & padMask)
	if h.Split() {
		b := make([]byte, pad)
		if err := rec.readAt(b, h.Off+h.Length-int64(pad)); err != nil {
			return err
		}
		return rec.auditPadding(b)
	}
	if h.Tag != 0 {
		if err := rec.auditPadding(rec.raw[max(int(h.header), len(rec.raw)-pad):]); err != nil {
			return err
		}
	}
	order := h.order()
	ln := lane{at: int(h.eventsAt())}
	for e := range int(h.Events) {
		ln.begin(ln.at, int(order.Uint32(rec.payload[4*e:])))
		if err := ln.header(rec, e); err != nil {
			return err
		}
		if length := ln.end - ln.at; length != ln.length {
			return rec.errorf("event %d says that it has %d bytes, its record gives it %d", e, length, ln.length)
		}
		for ; ln.step(rec.payload); ln.n = 0 {
		}
		if ln.next != ln.end {
			return rec.errorf("event %d: %d bytes follow its last structure, too few for another", e, ln.end-ln.next)
		}
		ln.at += ln.length
	}
	if left := len(rec.payload) - ln.at; left > 0 {
		return rec.errorf("%d bytes follow the last event", left)
	}
	return nil
}

func (rec *Record) auditPadding(b []byte) error {
	if i := bytes.IndexFunc(b, func(r rune) bool { return r != 0 }); i >= 0 {
		return rec.errorf("the padding at the record's end is not zero")
	}
	return nil
}
