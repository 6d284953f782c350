package materialize

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

// npyHeaderSize is the length of every header that a column of a bank can have: no
// number of rows makes it longer.
const npyHeaderSize = 128

// npyWriter writes the columns of a bank, share by share, as .npy files. The
// header, which says how many rows there are, comes last.
type npyWriter struct {
	dir   *exportFolder
	files []npyOut
}

// npyOut is a column on its way into a file.
type npyOut struct {
	column *Column
	name   string
	file   *os.File // nil: it is opened for each write
	buf    []byte
}

func newNpyWriter(dir *exportFolder, columns []ExportColumn) *npyWriter {
	w := &npyWriter{dir: dir}
	for _, c := range columns {
		w.files = append(w.files, npyOut{column: c.Column, name: c.File})
	}
	return w
}

// write writes what a run has of the bank.
func (w *npyWriter) write(s *share) error {
	for i := range w.files {
		o := &w.files[i]
		b, row := s.content(o.column, o.buf)
		if o.column.kind != contentColumn && o.column.kind != eventTagsColumn {
			o.buf = b
		}
		if err := w.writeAt(o, b, npyHeaderSize+row*o.column.width); err != nil {
			return err
		}
	}
	return nil
}

func (w *npyWriter) writeAt(o *npyOut, b []byte, off int64) error {
	if len(b) == 0 {
		return nil
	}
	return w.with(o, func(f *os.File) error {
		_, err := f.WriteAt(b, off)
		return err
	})
}

// with calls f with the open file.
func (w *npyWriter) with(o *npyOut, f func(*os.File) error) error {
	if o.file != nil {
		return f(o.file)
	}
	file, kept, err := w.dir.open(o.name)
	if err != nil {
		return err
	}
	if kept {
		o.file = file
		return f(file)
	}
	return errors.Join(f(file), file.Close())
}

// end writes the headers. Rows that nothing was written of are zeros.
func (w *npyWriter) end(entries, rows int64) error {
	for i := range w.files {
		o := &w.files[i]
		n := o.column.exportedRows(entries, rows)
		shape := []int64{n}
		if o.column.Length > 1 {
			shape = append(shape, int64(o.column.Length))
		}
		header := npyHeader(o.column.Dtype, shape...)
		if len(header) != npyHeaderSize {
			return fmt.Errorf("internal error: a header of %d bytes for %d rows of %s", len(header), n, o.column.Name)
		}
		err := w.with(o, func(f *os.File) error {
			if err := f.Truncate(npyHeaderSize + n*o.column.width); err != nil {
				return err
			}
			_, err := f.WriteAt(header, 0)
			return err
		})
		if o.file != nil {
			err = errors.Join(err, o.file.Close())
			o.file = nil
			w.dir.released()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// drop closes what is open.
func (w *npyWriter) drop() {
	for i := range w.files {
		if o := &w.files[i]; o.file != nil {
			o.file.Close()
			o.file = nil
			w.dir.released()
		}
	}
}

// exportedRows is how many rows the file of a column has.
func (c *Column) exportedRows(entries, rows int64) int64 {
	switch c.kind {
	case eventTagsColumn, recordTagsColumn, entryNumbersColumn:
		return entries
	case offsetsColumn:
		return entries + 1
	}
	return rows
}

// content is what a share has of a column, and the row of the file that it begins
// at. What has to be made is made in p, if that is large enough.
func (s *share) content(c *Column, p []byte) (b []byte, row int64) {
	x := s.run
	n, row := s.rows, s.first
	switch c.kind {
	case eventTagsColumn:
		return x.tags, x.first
	case contentColumn:
		if n == 0 {
			return nil, row
		}
		return s.columns[c.index], row
	case recordTagsColumn, entryNumbersColumn:
		n, row = x.entries, x.first
	case offsetsColumn: // but the first, which is 0
		n, row = x.entries, x.first+1
	}
	if n == 0 {
		return nil, row
	}
	b = slices.Grow(p[:0], int(8*n))[:8*n]
	p = b
	switch c.kind {
	case recordTagsColumn:
		putRecordTags(p, x.kept.source.file.Records[x.run.first:x.run.first+x.run.records], x.of, 0, n)
	case entryNumbersColumn:
		first := x.kept.source.first + x.run.entry
		for i := range n {
			p = put(p, first+x.of.at(i))
		}
	case offsetsColumn:
		for e := range n {
			through, _ := end(s.ends, e)
			p = put(p, s.first+through)
		}
	case entryColumn:
		eachRow(s.ends, 0, n, func(_, e int64) { p = put(p, x.first+e) })
	case pointerColumn:
		k := c.bank.pindex
		size := c.bank.schema.Columns[k].Type.Size
		eachRow(s.ends, 0, n, func(row, e int64) {
			p = put(p, pointed(s.target, e, s.targetFirst, integer(s.columns[k][row*int64(size):], size)))
		})
	}
	return b, row
}
