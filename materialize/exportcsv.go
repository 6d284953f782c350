package materialize

import (
	"encoding/binary"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

// csvWriter writes a bank as a table of text: a line for each row, which begins with
// the entry that it belongs to. Reading a number gives the value that it was made of.
type csvWriter struct {
	file    *os.File
	columns []csvColumn
	buf     []byte
}

// csvColumn is a column of a table; T#N is N of them.
type csvColumn struct {
	index, length, size int
	put                 func(b, value []byte) []byte
}

// csvBuffer is how much text is written at once.
const csvBuffer = 1 << 20

func newCSVWriter(f *os.File, columns []ExportColumn) (*csvWriter, error) {
	w := &csvWriter{file: f}
	names := []string{"entry"}
	for _, c := range columns {
		if c.Column.kind != contentColumn {
			continue
		}
		letter := c.Column.Type
		w.columns = append(w.columns, csvColumn{c.Column.index, c.Column.Length, valueSize(letter), textOf(letter)})
		if c.Column.Length == 1 {
			names = append(names, c.Name)
			continue
		}
		for i := range c.Column.Length {
			names = append(names, fmt.Sprintf("%s[%d]", c.Name, i))
		}
	}
	var header strings.Builder
	h := csv.NewWriter(&header)
	if err := h.Write(names); err != nil {
		return nil, err
	}
	h.Flush()
	_, err := f.WriteString(header.String())
	return w, err
}

func (w *csvWriter) write(s *share) (err error) {
	eachRow(s.ends, 0, s.rows, func(row, e int64) {
		w.buf = strconv.AppendInt(w.buf, s.run.first+e, 10)
		for i := range w.columns {
			c := &w.columns[i]
			at := int(row) * c.length * c.size
			for range c.length {
				w.buf = c.put(append(w.buf, ','), s.columns[c.index][at:])
				at += c.size
			}
		}
		w.buf = append(w.buf, '\n')
		if len(w.buf) > csvBuffer && err == nil {
			err = w.flush()
		}
	})
	return err
}

func (w *csvWriter) flush() error {
	_, err := w.file.Write(w.buf)
	w.buf = w.buf[:0]
	return err
}

func (w *csvWriter) end(int64, int64) error {
	err := errors.Join(w.flush(), w.file.Close())
	w.file = nil
	return err
}

func (w *csvWriter) drop() {
	if w.file != nil {
		w.file.Close()
	}
}

// textOf writes a value of a type so that it can be read back exactly, with as few
// digits as that takes.
func textOf(letter string) func(b, value []byte) []byte {
	le := binary.LittleEndian
	switch letter {
	case "F":
		return func(b, v []byte) []byte { return appendFloat(b, float64(math.Float32frombits(le.Uint32(v))), 32) }
	case "D":
		return func(b, v []byte) []byte { return appendFloat(b, math.Float64frombits(le.Uint64(v)), 64) }
	}
	size := valueSize(letter)
	return func(b, v []byte) []byte { return strconv.AppendInt(b, integer(v, size), 10) }
}

// appendFloat spells what is not finite as most readers do.
func appendFloat(b []byte, x float64, bits int) []byte {
	switch {
	case math.IsNaN(x):
		return append(b, "nan"...)
	case math.IsInf(x, 1):
		return append(b, "inf"...)
	case math.IsInf(x, -1):
		return append(b, "-inf"...)
	}
	return strconv.AppendFloat(b, x, 'g', -1, bits)
}
