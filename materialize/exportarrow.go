package materialize

import (
	"bufio"
	"encoding/binary"
	"errors"
	"os"

	"github.com/hipofs/hipofs/hipo"
)

// arrowWriter writes a bank as an Arrow IPC file, a record batch for each run: the
// file that a mount of the same entries shows.
type arrowWriter struct {
	*arrowFrame
	file    *os.File
	out     *bufio.Writer
	columns []ExportColumn
	size    int64
	blocks  []byte
	offsets []byte
}

const arrowBuffer = 256 << 10

// newArrowWriter begins a file, of which runs with so many entries, and no row, have
// passed.
func newArrowWriter(f *os.File, b *exportedBank, passed []int64) (*arrowWriter, error) {
	schema := &hipo.Schema{Name: b.Bank.Name}
	for _, c := range b.Columns {
		schema.Columns = append(schema.Columns, b.Bank.schema.Columns[c.Column.index])
	}
	frame, err := newArrowFrame(schema)
	if err != nil {
		return nil, err
	}
	w := &arrowWriter{arrowFrame: frame, file: f, out: bufio.NewWriterSize(f, arrowBuffer), columns: b.Columns}
	if err := w.put(w.head); err != nil {
		return nil, err
	}
	for _, entries := range passed {
		if err := w.batchOf(entries, 0, nil); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *arrowWriter) put(b []byte) error {
	n, err := w.out.Write(b)
	w.size += int64(n)
	return err
}

// padded puts a buffer of a batch.
func (w *arrowWriter) padded(b []byte) error {
	if err := w.put(b); err != nil {
		return err
	}
	var zeros [arrowAlign]byte
	return w.put(zeros[:align(int64(len(b)))-int64(len(b))])
}

// batchOf begins a batch, up to its columns.
func (w *arrowWriter) batchOf(entries, rows int64, ends []byte) error {
	if entries == 0 {
		return nil
	}
	w.blocks = append(w.blocks, w.block(w.size, entries, rows)...)
	if err := w.put(w.batchMessage(entries, rows)); err != nil {
		return err
	}
	w.offsets = binary.LittleEndian.AppendUint64(w.offsets[:0], 0)
	for e := range entries {
		through, _ := end(ends, e)
		w.offsets = binary.LittleEndian.AppendUint64(w.offsets, uint64(through))
	}
	return w.padded(w.offsets)
}

func (w *arrowWriter) write(s *share) error {
	if err := w.batchOf(s.run.entries, s.rows, s.ends); err != nil || s.rows == 0 {
		return err
	}
	for _, c := range w.columns {
		if err := w.padded(s.columns[c.Column.index]); err != nil {
			return err
		}
	}
	return nil
}

func (w *arrowWriter) end(int64, int64) error {
	batches := len(w.blocks) / arrowBlock
	for _, b := range [][]byte{w.tailHead(batches), w.blocks, w.tailEnd(batches)} {
		if err := w.put(b); err != nil {
			return err
		}
	}
	err := errors.Join(w.out.Flush(), w.file.Close())
	w.file = nil
	return err
}

func (w *arrowWriter) drop() {
	if w.file != nil {
		w.file.Close()
	}
}
