package hipo

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// Writer writes a file: header, dictionary, records, and a trailer that lists
// them. The header has no trailer position before Close, so that a file whose
// writer was killed can still be read record by record. It is not safe for
// concurrent use.
type Writer struct {
	w     io.WriterAt
	at    int64
	index []indexed
}

// indexed is a row of the file index.
type indexed struct {
	off, length  int64
	events       uint32
	word1, word2 uint64
}

// maxIndexed is how many records a trailer can list.
const maxIndexed = dataLengthMask / indexRow

// trailerAt is where the file header has the trailer's position.
const trailerAt = 40

// NewWriter writes header and dictionary.
func NewWriter(w io.WriterAt, dictionary []Declaration) (*Writer, error) {
	var events Batch
	for _, d := range dictionary {
		if err := events.add(d); err != nil {
			return nil, err
		}
	}
	record, err := plainRecord(&events)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	head := make([]byte, headerLength, headerLength+len(record))
	copy(head, "HIPO")
	put := func(word int, v uint32) { le.PutUint32(head[4*word:], v) }
	put(1, 1) // file number
	put(2, headerWords)
	put(5, 5<<28|version)
	put(6, uint32(len(record)))
	put(7, magic)
	x := &Writer{w: w}
	return x, x.write(append(head, record...))
}

// plainRecord is a record that every reader reads, also one without events.
func plainRecord(b *Batch) ([]byte, error) {
	record, _, err := new(Encoder).Record(nil, b, 0, Codec{}, Words{})
	return record, err
}

func (w *Writer) write(b []byte) error {
	_, err := w.w.WriteAt(b, w.at)
	w.at += int64(len(b))
	return err
}

// Size is how long the file is with the trailer that its records need.
func (w *Writer) Size() int64 {
	return w.at + headerLength + 4 + eventHeader + structureHeader + int64(len(w.index))*indexRow
}

// SizeWith is how long it is with another record of n bytes.
func (w *Writer) SizeWith(n int64) int64 { return w.Size() + n + indexRow }

// Append writes a record that an Encoder has made, and numbers it.
func (w *Writer) Append(record []byte) error {
	binary.LittleEndian.PutUint32(record[4:], uint32(len(w.index)+1))
	return w.Place(record[:headerLength], int64(len(record)), func(at int64) error {
		_, err := w.w.WriteAt(record, at)
		return err
	})
}

// Place makes room for a record with that header, which put puts there as it is.
func (w *Writer) Place(header []byte, length int64, put func(at int64) error) error {
	order, err := byteOrder(header)
	switch {
	case err != nil:
		return err
	case length > math.MaxInt32:
		return fmt.Errorf("a record of %d bytes is more than a trailer can list", length)
	case len(w.index) == maxIndexed:
		return fmt.Errorf("over %d records, the most that a trailer can list; make records larger, or several files", maxIndexed)
	}
	if err := put(w.at); err != nil {
		return err
	}
	w.index = append(w.index, indexed{w.at, length, order.Uint32(header[12:]), order.Uint64(header[40:]), order.Uint64(header[48:])})
	w.at += length
	return nil
}

// Close writes the trailer and its position. It does not close what is written to.
func (w *Writer) Close() error {
	le := binary.LittleEndian
	var rows []byte
	for _, r := range w.index {
		rows = le.AppendUint64(rows, uint64(r.off))
	}
	for _, r := range w.index {
		rows = le.AppendUint32(rows, uint32(r.length))
	}
	for _, r := range w.index {
		rows = le.AppendUint32(rows, r.events)
	}
	for _, r := range w.index {
		rows = le.AppendUint64(rows, r.word1)
	}
	for _, r := range w.index {
		rows = le.AppendUint64(rows, r.word2)
	}
	var events Batch
	events.Begin(0)
	if err := events.Add(Structure{Group: keyFileIndex.group(), Item: keyFileIndex.item(), Type: tableType, Data: rows}); err != nil {
		return err
	}
	record, err := plainRecord(&events)
	if err != nil {
		return err
	}
	at := le.AppendUint64(nil, uint64(w.at))
	if err := w.write(record); err != nil {
		return err
	}
	_, err = w.w.WriteAt(at, trailerAt)
	return err
}

// tableType is the type of a structure that is an ordinary bank.
const tableType = 11
