package fs

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"strconv"

	"github.com/hipofs/hipofs/materialize"
)

// eventDocument is event.json: one entry, with the banks that have rows.
type eventDocument struct {
	Entry     int64       `json:"entry"` // its number in the whole chain
	File      string      `json:"file"`
	Record    int         `json:"record"`
	Tag       uint32      `json:"tag"`
	RecordTag int64       `json:"record_tag"`
	Banks     []eventBank `json:"banks"`
	Nodes     []eventBank `json:"nodes,omitempty"`
}

type eventBank struct {
	Name trueText      `json:"name"`
	Rows []eventValues `json:"rows"`
	Why  string        `json:"error,omitempty"` // it cannot be served
}

// eventValues is a row: columns by name, in their order.
type eventValues []eventValue

type eventValue struct {
	name  string
	value []json.RawMessage // of T#N N, else 1
	array bool
}

func (row eventValues) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i, v := range row {
		name, err := trueText(v.name).MarshalJSON()
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(out, name...), ':')
		if !v.array {
			out = append(out, v.value[0]...)
			continue
		}
		list, err := json.Marshal(v.value)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	}
	return append(out, '}'), nil
}

// eventJSON renders the entry of a tree of one.
func eventJSON(ctx context.Context, t *tree) ([]byte, error) {
	ev, err := t.view.Event(ctx)
	if err != nil {
		return nil, err
	}
	d := eventDocument{Entry: ev.Entry, File: ev.File, Record: ev.Record, Tag: ev.Tag, RecordTag: ev.RecordTag, Banks: []eventBank{}}
	for i := range ev.Banks {
		b := &ev.Banks[i]
		if b.Node {
			d.Nodes = append(d.Nodes, eventBankOf(b))
		} else {
			d.Banks = append(d.Banks, eventBankOf(b))
		}
	}
	return toJSON(d)
}

func eventBankOf(b *materialize.EventBank) eventBank {
	if b.Err != nil {
		return eventBank{trueText(b.Name), []eventValues{}, b.Err.Error()}
	}
	table := make([]eventValues, b.Rows)
	for _, c := range b.Columns {
		content := c.Content
		for r := range table {
			v := eventValue{name: c.Name, array: c.Length > 1}
			for range c.Length {
				var text string
				text, content = value(content, c.Type)
				v.value = append(v.value, json.RawMessage(text))
			}
			table[r] = append(table[r], v)
		}
	}
	return eventBank{trueText(b.Name), table, ""}
}

// value is the first value of content as JSON has it, and what comes after. JSON
// has no NaN and no infinity: they are strings.
func value(content []byte, letter byte) (text string, rest []byte) {
	le := binary.LittleEndian
	switch letter {
	case 'B':
		return strconv.Itoa(int(int8(content[0]))), content[1:]
	case 'S':
		return strconv.Itoa(int(int16(le.Uint16(content)))), content[2:]
	case 'I':
		return strconv.Itoa(int(int32(le.Uint32(content)))), content[4:]
	case 'L':
		return strconv.FormatInt(int64(le.Uint64(content)), 10), content[8:]
	case 'F':
		return float(float64(math.Float32frombits(le.Uint32(content))), 32), content[4:]
	default:
		return float(math.Float64frombits(le.Uint64(content)), 64), content[8:]
	}
}

func float(f float64, bits int) string {
	switch {
	case math.IsNaN(f):
		return `"NaN"`
	case math.IsInf(f, 1):
		return `"Infinity"`
	case math.IsInf(f, -1):
		return `"-Infinity"`
	}
	return strconv.FormatFloat(f, 'g', -1, bits)
}
