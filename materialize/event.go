package materialize

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/hipofs/hipofs/hipo"
)

// Event is one entry, with what lies in it.
type Event struct {
	Entry     int64 // in the chain
	File      string
	Record    int // in its file
	Number    int // in its record
	Tag       uint32
	RecordTag int64
	Banks     []EventBank // those with rows, in the order of the dictionary, then structures without a schema
}

// EventBank is a bank in one event, or a structure without a schema.
type EventBank struct {
	Name      string // GROUP.ITEM of a structure without a schema
	Group     uint16
	Item      uint8
	Node      bool   // no dictionary declares it
	Primitive uint8  // the type of such a structure, if it is no composite bank
	Format    string // of a composite bank
	Rows      int
	Columns   []EventColumn
	Err       error // why it cannot be read, where others can
}

// EventColumn is a column in one event.
type EventColumn struct {
	Name    string
	Type    byte // letter
	Length  int  // values a row
	Content []byte
}

// Event gives the entry of that number. It decodes the record that holds it, and
// needs no counts.
func (c *Chain) Event(ctx context.Context, entry int64) (*Event, error) {
	v := c.view
	if entry < 0 || entry >= v.starts[len(v.sources)] {
		return nil, fmt.Errorf("there is no entry %d: there are %d, from 0 on", entry, v.starts[len(v.sources)])
	}
	i := before(v.starts, entry)
	s := v.sources[i]
	r := s.runOf(entry - v.starts[i])
	in := entry - v.starts[i] - s.runs[r].entry
	ev := &Event{Entry: entry, File: s.info.Name, Record: s.runs[r].first}
	at := in
	for ; at >= int64(s.file.Records[ev.Record].Events); ev.Record++ {
		at -= int64(s.file.Records[ev.Record].Events)
	}
	ev.Number, ev.RecordTag = int(at), s.file.Records[ev.Record].UserTag
	alone := s.recordRun(ev.Record)
	err := c.m.withRun(ctx, s, alone, reading{}, func(d *decoder, got *fetched) error {
		out, err := d.decode(s, alone, all, got, c.m.note)
		if err != nil {
			return err
		}
		ev.Tag = binary.LittleEndian.Uint32(out.tags[4*at:])
		slices.SortFunc(out.parts, func(a, b part) int { return cmp.Compare(a.bank, b.bank) })
		for i := range out.parts {
			if b, ok := c.eventBank(&out.parts[i], at); ok {
				ev.Banks = append(ev.Banks, b)
			}
		}
		return nil
	})
	return ev, err
}

// all wants every column.
func all(_ bankID, layout *hipo.Schema) []bool {
	return slices.Repeat([]bool{true}, len(layout.Columns))
}

// eventBank is a part's rows of event in of its record. It reports false if there
// are none, or the bank is left out.
func (c *Chain) eventBank(p *part, in int64) (b EventBank, ok bool) {
	if int(p.bank) < len(c.banks.schemas) {
		schema := c.banks.schemas[p.bank]
		b.Name, b.Group, b.Item = schema.Name, schema.Group, schema.Item
		if c.banks.hidden[p.bank] {
			return b, false
		}
	} else {
		b.Group, b.Item = c.nodeIDs(p.bank)
		b.Name, b.Node = fmt.Sprintf("%d.%d", b.Group, b.Item), true
		b.Primitive, b.Format = p.primitive, p.format
	}
	if p.err != nil {
		b.Err = p.err
		return b, true
	}
	b.Rows = int(p.counts[in])
	if b.Rows == 0 {
		return b, false
	}
	var first int
	for _, n := range p.counts[:in] {
		first += int(n)
	}
	for k, col := range p.layout.Columns {
		w := col.Width()
		b.Columns = append(b.Columns, EventColumn{
			Name: col.Name, Type: col.Type.Letter, Length: col.Length,
			Content: p.columns[k][first*w : (first+b.Rows)*w],
		})
	}
	return b, true
}
