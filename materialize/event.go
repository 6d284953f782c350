package materialize

import (
	"context"
	"encoding/binary"
	"fmt"
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
	n, err := c.view.Count(ctx)
	if err != nil {
		return nil, err
	}
	if entry < 0 || entry >= n {
		return nil, fmt.Errorf("there is no entry %d: there are %d, from 0 on", entry, n)
	}
	return c.view.Slice(Slice{entry, entry + 1}).Event(ctx)
}

// Event is the entry of a view that has one, and was made by Slice or Where.
func (v *View) Event(ctx context.Context) (*Event, error) {
	n := v.narrow
	c, err := n.settle(ctx) // of a file that is not counted, what rows there are
	if err != nil {
		return nil, err
	}
	if len(c.runs) != 1 || c.runs[0].entries != 1 {
		return nil, fmt.Errorf("internal error: an event of %d entries", v.Entries())
	}
	of, err := n.picked(ctx, c, 0)
	if err != nil {
		return nil, err
	}
	k := &c.runs[0]
	s := k.source
	run := s.runAt(k.run)
	in := of.at(0)
	ev := &Event{Entry: s.first + run.entry + in, File: s.info.Name, Record: run.first}
	for ; in >= int64(s.file.Records[ev.Record].Events); ev.Record++ {
		in -= int64(s.file.Records[ev.Record].Events)
	}
	ev.Number, ev.RecordTag = int(in), s.file.Records[ev.Record].UserTag

	all, err := v.chain.m.look(ctx, s, k.run, n.wants)
	if err != nil {
		return nil, err
	}
	tags, err := n.chunk(ctx, 0, tagsBank, 0, 0)
	if err != nil {
		return nil, err
	}
	ev.Tag = binary.LittleEndian.Uint32(tags)
	add := func(b *Bank, l *looked) error {
		e, err := b.inEvent(ctx, c, l)
		if err == nil && (e.Rows > 0 || e.Err != nil) {
			ev.Banks = append(ev.Banks, e)
		}
		return err
	}
	found := map[bankID]*looked{}
	var nodes []*Bank
	for _, l := range all {
		found[l.bank] = l
		if int(l.bank) >= len(v.chain.banks.schemas) {
			nodes = append(nodes, newNode(v, l.bank, l.layout))
		}
	}
	for i, id := range v.shown.ids {
		if l := found[id]; l != nil {
			if err := add(v.Bank(i), l); err != nil {
				return nil, err
			}
		}
	}
	sortNodes(nodes)
	for _, b := range nodes {
		if err := add(b, found[b.id]); err != nil {
			return nil, err
		}
	}
	return ev, nil
}

// inEvent is a bank in the one event of its view, in the record of which it was
// found. What keeps this bank alone from being read is no error here.
func (b *Bank) inEvent(ctx context.Context, c *choice, l *looked) (EventBank, error) {
	e := EventBank{Name: b.Name, Group: b.Group, Item: b.Item, Err: l.err}
	if int(b.id) >= len(b.view.chain.banks.schemas) {
		e.Node, e.Primitive, e.Format = true, l.primitive, l.format
	}
	if e.Err != nil {
		return e, nil
	}
	n := b.view.narrow
	rows, err := n.rows(ctx, c, 0, b)
	switch {
	case ctx.Err() != nil:
		return e, ctx.Err()
	case err != nil:
		e.Err = err
		return e, nil
	case rows == 0:
		return e, nil
	}
	e.Rows = int(rows)
	for k, col := range b.schema.Columns {
		content, err := n.chunk(ctx, 0, b.id, int32(k), rows)
		if err != nil {
			return e, err
		}
		e.Columns = append(e.Columns, EventColumn{Name: col.Name, Type: col.Type.Letter, Length: col.Length, Content: content})
	}
	return e, nil
}
