package materialize

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"

	"github.com/hipofs/hipofs/hipo"
)

// An Arrow IPC file of a bank has one column, which is called like the bank and
// has a list of rows for each entry: large_list<struct>, in which T#N is a
// fixed_size_list. Nothing in it is nullable. Each run of records is a record batch.
//
//	ARROW1 0 0 | schema message
//	record batch message | offsets int64 × (entries+1) | column | column | …    for each batch
//	end of the stream: ffffffff 00000000
//	footer: schema, where each batch lies | i32 its length | ARROW1
//
//	message: ffffffff | i32 length of what follows | metadata | padding
//
// What is called a message here begins and ends at a multiple of 64, and so does
// every buffer of a batch. Metadata and footer are FlatBuffers. All those of
// batches are alike but for numbers, which have fixed places: one that arrow-go
// has made is the mould for them. So a file's size is arithmetic on entries and
// rows, and any part of it can be made alone.
const (
	arrowAlign   = 64
	arrowMagic   = "ARROW1"
	arrowMessage = 8 // bytes before the metadata
	arrowEnd     = 8
	arrowBlock   = 24 // i64 offset | i32 length of the message | i32 0 | i64 length of its body

	// Fields of the tables Message, RecordBatch and Footer, as a vtable has them.
	fieldHeader, fieldBodyLength          = 4 + 2*2, 4 + 2*3
	fieldLength, fieldNodes, fieldBuffers = 4 + 2*0, 4 + 2*1, 4 + 2*2
	fieldRecordBatches                    = 4 + 2*3
)

// arrowFrame is what a bank's Arrow file has beside the values.
type arrowFrame struct {
	head   []byte // up to the first batch
	batch  []byte // message of a batch
	footer []byte // up to the places of the batches, whose number comes last

	lengths []int   // of T#N, else 1: values a row of each column
	widths  []int64 // bytes a row of each column

	// Places in batch.
	entries, body, nodes, buffers int
}

func align(n int64) int64 { return (n + arrowAlign - 1) &^ (arrowAlign - 1) }

// newArrowFrame makes the frame of a bank with that schema.
func newArrowFrame(s *hipo.Schema) (*arrowFrame, error) {
	f := &arrowFrame{}
	schema := arrowSchema(s)
	for _, c := range s.Columns {
		f.lengths = append(f.lengths, c.Length)
		f.widths = append(f.widths, int64(c.Width()))
	}
	if err := f.takeEnds(schema); err != nil {
		return nil, fmt.Errorf("internal error: Arrow file of %s: %w", s.Name, err)
	}
	if err := f.takeBatch(schema); err != nil {
		return nil, fmt.Errorf("internal error: Arrow batch of %s: %w", s.Name, err)
	}
	return f, nil
}

// arrowSchema is the schema of a bank's Arrow file.
func arrowSchema(s *hipo.Schema) *arrow.Schema {
	fields := make([]arrow.Field, len(s.Columns))
	taken := map[string]int{}
	for k, c := range s.Columns {
		t := arrowTypes[c.Type.Letter]
		if c.Length > 1 {
			t = arrow.FixedSizeListOfField(int32(c.Length), arrow.Field{Name: "item", Type: t})
		}
		fields[k] = arrow.Field{Name: arrowName(taken, c.Name), Type: t}
	}
	rows := arrow.LargeListOfField(arrow.Field{Name: "item", Type: arrow.StructOf(fields...)})
	return arrow.NewSchema([]arrow.Field{{Name: arrowName(nil, s.Name), Type: rows}}, nil)
}

var arrowTypes = map[byte]arrow.DataType{
	'B': arrow.PrimitiveTypes.Int8,
	'S': arrow.PrimitiveTypes.Int16,
	'I': arrow.PrimitiveTypes.Int32,
	'L': arrow.PrimitiveTypes.Int64,
	'F': arrow.PrimitiveTypes.Float32,
	'D': arrow.PrimitiveTypes.Float64,
}

// arrowName is a name as Arrow takes it: bytes that are not UTF-8 are U+FFFD, and
// a name that is taken gets ~2, ~3, ….
func arrowName(taken map[string]int, name string) string {
	name = strings.ToValidUTF8(name, "\uFFFD")
	unique := name
	for taken[unique] > 0 {
		taken[name]++
		unique = fmt.Sprintf("%s~%d", name, taken[name])
	}
	if taken != nil {
		taken[unique] = 1
	}
	return unique
}

// takeEnds takes what comes before and after the batches from a file without any.
func (f *arrowFrame) takeEnds(schema *arrow.Schema) error {
	var file bytes.Buffer
	w, err := ipc.NewFileWriter(&file, ipc.WithSchema(schema))
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	b := file.Bytes()
	const begin = 8 // the magic, padded
	length := int(binary.LittleEndian.Uint32(b[begin+4:]))
	f.head = message(b[:begin:begin], b[begin+arrowMessage:begin+arrowMessage+length])

	last := len(b) - len(arrowMagic) - 4
	length = int(binary.LittleEndian.Uint32(b[last:]))
	f.footer = bytes.Clone(b[last-length : last])
	// The list of batches, of which there are none here, goes to the end: its
	// length, and blocks from a multiple of 8 on.
	for len(f.footer)%8 != 4 {
		f.footer = append(f.footer, 0)
	}
	root := flatbuffers.Table{Bytes: f.footer, Pos: flatbuffers.GetUOffsetT(f.footer)}
	field := root.Offset(fieldRecordBatches)
	if field == 0 {
		return fmt.Errorf("the footer has no list of batches")
	}
	at := root.Pos + flatbuffers.UOffsetT(field)
	flatbuffers.WriteUOffsetT(f.footer[at:], flatbuffers.UOffsetT(len(f.footer))-at)
	f.footer = append(f.footer, 0, 0, 0, 0)
	return nil
}

// message appends a message to b, padded so that it ends at a multiple of 64.
func message(b, metadata []byte) []byte {
	size := align(int64(len(b) + arrowMessage + len(metadata)))
	b = binary.LittleEndian.AppendUint32(b, 0xffffffff)
	b = binary.LittleEndian.AppendUint32(b, uint32(size)-uint32(len(b)+4))
	b = append(b, metadata...)
	return append(b, make([]byte, size-int64(len(b)))...)
}

// takeBatch takes the message of a batch of one entry, and finds its numbers.
func (f *arrowFrame) takeBatch(schema *arrow.Schema) error {
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	b.Field(0).AppendEmptyValue()
	one := b.NewRecordBatch()
	defer one.Release()
	payload, err := ipc.GetRecordBatchPayload(one)
	if err != nil {
		return err
	}
	defer payload.Release()
	meta := payload.Meta()
	defer meta.Release()
	f.batch = message(nil, meta.Bytes())

	metadata := f.batch[arrowMessage:]
	root := flatbuffers.Table{Bytes: metadata, Pos: flatbuffers.GetUOffsetT(metadata)}
	header, body := root.Offset(fieldHeader), root.Offset(fieldBodyLength)
	if header == 0 || body == 0 {
		return fmt.Errorf("the message has no header or no body")
	}
	var batch flatbuffers.Table
	root.Union(&batch, flatbuffers.UOffsetT(header))
	entries, nodes, buffers := batch.Offset(fieldLength), batch.Offset(fieldNodes), batch.Offset(fieldBuffers)
	if entries == 0 || nodes == 0 || buffers == 0 {
		return fmt.Errorf("the record batch is incomplete")
	}
	f.body = arrowMessage + int(root.Pos) + int(body)
	f.entries = arrowMessage + int(batch.Pos) + int(entries)
	f.nodes = arrowMessage + int(batch.Vector(flatbuffers.UOffsetT(nodes)))
	f.buffers = arrowMessage + int(batch.Vector(flatbuffers.UOffsetT(buffers)))
	wantNodes, wantBuffers := 2, 3
	for _, n := range f.lengths {
		wantNodes, wantBuffers = wantNodes+1, wantBuffers+2
		if n > 1 {
			wantNodes, wantBuffers = wantNodes+1, wantBuffers+1
		}
	}
	if n, b := batch.VectorLen(flatbuffers.UOffsetT(nodes)), batch.VectorLen(flatbuffers.UOffsetT(buffers)); n != wantNodes || b != wantBuffers {
		return fmt.Errorf("%d nodes and %d buffers, not %d and %d", n, b, wantNodes, wantBuffers)
	}
	return nil
}

// bodyLength is the length of the body of a batch.
func (f *arrowFrame) bodyLength(entries, rows int64) int64 {
	n := align(8 * (entries + 1))
	if rows > 0 {
		for _, w := range f.widths {
			n += align(w * rows)
		}
	}
	return n
}

// batchMessage is the message of a batch.
func (f *arrowFrame) batchMessage(entries, rows int64) []byte {
	b := bytes.Clone(f.batch)
	put(b[f.entries:], entries)
	put(b[f.body:], f.bodyLength(entries, rows))
	nodes, buffers := b[f.nodes:], b[f.buffers:]
	node := func(values int64) { nodes = put(put(nodes, values), 0) } // and no nulls
	var at int64
	buffer := func(length int64) {
		buffers = put(put(buffers, at), length)
		at += align(length)
	}
	node(entries)
	buffer(0) // what is null: nothing
	buffer(8 * (entries + 1))
	node(rows)
	buffer(0)
	for k, n := range f.lengths {
		if n > 1 {
			node(rows)
			buffer(0)
		}
		node(rows * int64(n))
		buffer(0)
		buffer(rows * f.widths[k])
	}
	return b
}

// tailLength is the length of what follows so many batches.
func (f *arrowFrame) tailLength(batches int) int64 {
	return arrowEnd + f.footerLength(batches) + 4 + int64(len(arrowMagic))
}

func (f *arrowFrame) footerLength(batches int) int64 {
	return int64(len(f.footer)) + arrowBlock*int64(batches)
}

// tailHead is what follows so many batches, up to the blocks of the footer.
func (f *arrowFrame) tailHead(batches int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, 0x00000000ffffffff)
	b = append(b, f.footer...)
	binary.LittleEndian.PutUint32(b[len(b)-4:], uint32(batches))
	return b
}

// block is the place of a batch as the footer has it.
func (f *arrowFrame) block(off, entries, rows int64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(off))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(f.batch)))
	return binary.LittleEndian.AppendUint64(b, uint64(f.bodyLength(entries, rows)))
}

// tailEnd is what follows the blocks.
func (f *arrowFrame) tailEnd(batches int) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(f.footerLength(batches)))
	return append(b, arrowMagic...)
}
