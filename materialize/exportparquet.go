package materialize

import (
	"fmt"
	"os"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"
	codecs "github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"
)

// parquetWriter writes a bank as a Parquet file: a row for each entry, in which a
// column is the list of its values; of T#N, the list of lists of N. Nothing is null.
//
//	required group px (LIST) { repeated group list { required float element } }
//
// Columns of one length have the same levels, which say where lists begin and end.
type parquetWriter struct {
	out     *os.File
	file    *file.Writer
	group   file.BufferedRowGroupWriter // nil: none is begun
	columns []ExportColumn
	entries int64          // that are written
	levels  map[int]levels // of the share at hand, by values a row; their memory is used again
	wide    []int32
}

// levels are the definition and repetition levels of a column (the Dremel paper,
// "Repetition and definition levels").
type levels struct{ definition, repetition []int16 }

const (
	parquetGroup = 8 << 20 // compressed bytes from which on a row group ends
	parquetPage  = 128 << 10
	mostEmpty    = 1 << 16 // entries without rows that are written at once
)

// parquetCodecs are the ways of compression, by name.
var parquetCodecs = map[string]codecs.Compression{
	"zstd": codecs.Codecs.Zstd, "snappy": codecs.Codecs.Snappy, "none": codecs.Codecs.Uncompressed,
}

func newParquetWriter(f *os.File, columns []ExportColumn, compression string) (*parquetWriter, error) {
	w := &parquetWriter{out: f, columns: columns, levels: map[int]levels{}}
	var fields schema.FieldList
	for _, c := range columns {
		field, err := parquetField(c)
		if err != nil {
			return nil, err
		}
		fields = append(fields, field)
	}
	root, err := schema.NewGroupNode("schema", parquet.Repetitions.Required, fields, -1)
	if err != nil {
		return nil, err
	}
	w.file, err = file.NewParquetWriterWithError(f, root, file.WithWriterProps(parquet.NewWriterProperties(
		parquet.WithCompression(parquetCodecs[compression]), parquet.WithCompressionLevel(1),
		parquet.WithDictionaryDefault(false), parquet.WithStats(false),
		parquet.WithDataPageSize(parquetPage), parquet.WithCreatedBy("hipofs"))))
	return w, err
}

// parquetField is the schema of a column.
func parquetField(c ExportColumn) (*schema.GroupNode, error) {
	required := parquet.Repetitions.Required
	var value schema.Node
	var err error
	switch c.Column.Type {
	case "B":
		value, err = schema.NewPrimitiveNodeLogical("element", required, schema.NewIntLogicalType(8, true), parquet.Types.Int32, 0, -1)
	case "S":
		value, err = schema.NewPrimitiveNodeLogical("element", required, schema.NewIntLogicalType(16, true), parquet.Types.Int32, 0, -1)
	case "I":
		value, err = schema.NewPrimitiveNode("element", required, parquet.Types.Int32, -1, 0)
	case "L":
		value, err = schema.NewPrimitiveNode("element", required, parquet.Types.Int64, -1, 0)
	case "F":
		value, err = schema.NewPrimitiveNode("element", required, parquet.Types.Float, -1, 0)
	case "D":
		value, err = schema.NewPrimitiveNode("element", required, parquet.Types.Double, -1, 0)
	default:
		err = fmt.Errorf("internal error: column %s has type %q", c.Name, c.Column.Type)
	}
	if err == nil && c.Column.Length > 1 {
		value, err = schema.ListOf(value, required, -1)
	}
	if err != nil {
		return nil, err
	}
	return schema.ListOfWithName(c.Name, value, required, -1)
}

func (w *parquetWriter) write(s *share) error {
	if err := w.fill(s.run.first); err != nil {
		return err
	}
	made := map[int]bool{}
	for i, c := range w.columns {
		var content []byte
		if s.rows > 0 {
			content = s.columns[c.Column.index]
		}
		n := c.Column.Length
		if !made[n] {
			w.levels[n] = s.levels(n, w.levels[n])
			made[n] = true
		}
		if err := w.put(i, content, w.levels[n]); err != nil {
			return err
		}
	}
	w.entries += s.run.entries
	if w.group != nil && w.group.TotalCompressedBytes()+w.group.TotalBytesWritten() > parquetGroup {
		return w.endGroup()
	}
	return nil
}

// levels are those of a column of n values a row, in the memory of l.
func (s *share) levels(n int, l levels) levels {
	count := int(s.rows)*n + int(s.run.entries)
	l.definition, l.repetition = slices.Grow(l.definition[:0], count), slices.Grow(l.repetition[:0], count)
	full, row := int16(1), int16(1) // of a value; of the first of a row that is not the first
	if n > 1 {
		full = 2
	}
	for e := range s.run.entries {
		through, upTo := end(s.ends, e)
		if through == upTo {
			l.definition, l.repetition = append(l.definition, 0), append(l.repetition, 0)
			continue
		}
		at := len(l.repetition)
		for range through - upTo {
			l.definition, l.repetition = append(l.definition, full), append(l.repetition, row)
			for range n - 1 {
				l.definition, l.repetition = append(l.definition, full), append(l.repetition, 2)
			}
		}
		l.repetition[at] = 0
	}
	return l
}

// put adds values to a column of the row group.
func (w *parquetWriter) put(i int, content []byte, l levels) error {
	if w.group == nil {
		var err error
		if w.group, err = w.file.AppendBufferedRowGroupChecked(); err != nil {
			return err
		}
	}
	column, err := w.group.Column(i)
	if err != nil {
		return err
	}
	switch c := column.(type) {
	case *file.Int32ColumnChunkWriter:
		_, err = c.WriteBatch(w.int32s(w.columns[i].Column.Type, content), l.definition, l.repetition)
	case *file.Int64ColumnChunkWriter:
		_, err = c.WriteBatch(arrow.Int64Traits.CastFromBytes(content), l.definition, l.repetition)
	case *file.Float32ColumnChunkWriter:
		_, err = c.WriteBatch(arrow.Float32Traits.CastFromBytes(content), l.definition, l.repetition)
	case *file.Float64ColumnChunkWriter:
		_, err = c.WriteBatch(arrow.Float64Traits.CastFromBytes(content), l.definition, l.repetition)
	}
	return err
}

// int32s are values as Parquet has them, which knows no shorter integers.
func (w *parquetWriter) int32s(letter string, content []byte) []int32 {
	w.wide = w.wide[:0]
	switch letter {
	case "B":
		for _, b := range content {
			w.wide = append(w.wide, int32(int8(b)))
		}
	case "S":
		for at := 0; at < len(content); at += 2 {
			w.wide = append(w.wide, int32(integer(content[at:], 2)))
		}
	default:
		return arrow.Int32Traits.CastFromBytes(content)
	}
	return w.wide
}

// fill writes entries without rows, up to that one.
func (w *parquetWriter) fill(to int64) error {
	for w.entries < to {
		n := min(to-w.entries, mostEmpty)
		none := levels{make([]int16, n), make([]int16, n)}
		for i := range w.columns {
			if err := w.put(i, nil, none); err != nil {
				return err
			}
		}
		w.entries += n
	}
	return nil
}

func (w *parquetWriter) endGroup() error {
	err := w.group.Close()
	w.group = nil
	return err
}

func (w *parquetWriter) end(entries, _ int64) error {
	if err := w.fill(entries); err != nil {
		return err
	}
	w.out = nil
	return w.file.Close() // with the last row group and the file
}

func (w *parquetWriter) drop() {
	if w.out != nil {
		w.out.Close()
	}
}
