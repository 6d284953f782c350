package fs

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
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
	var d eventDocument
	for c, to := range map[*materialize.Column]any{t.view.EntryNumbers(): &d.Entry, t.view.RecordTags(): &d.RecordTag, t.view.EventTags(): &d.Tag} {
		content, err := c.Content(ctx)
		if err != nil {
			return nil, err
		}
		if _, err := binary.Decode(content, binary.LittleEndian, to); err != nil {
			return nil, fmt.Errorf("internal error: %s of one entry: %w", c.Name, err)
		}
	}
	for _, r := range t.view.Records() {
		d.File, d.Record = r.File, r.Record
	}
	nodes, err := t.view.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	if d.Banks, err = eventBanks(ctx, t.view.Banks()); err != nil {
		return nil, err
	}
	if d.Nodes, err = eventBanks(ctx, nodes); err != nil {
		return nil, err
	}
	return toJSON(d)
}

func eventBanks(ctx context.Context, banks []*materialize.Bank) ([]eventBank, error) {
	list := []eventBank{}
	for _, b := range banks {
		rows, err := b.Rows(ctx)
		if err != nil && !isContextError(err) {
			list = append(list, eventBank{trueText(b.Name), []eventValues{}, err.Error()})
			continue
		}
		if err != nil {
			return nil, err
		}
		if rows == 0 {
			continue
		}
		table := make([]eventValues, rows)
		for _, c := range b.Columns {
			content, err := c.Content(ctx)
			if err != nil {
				return nil, err
			}
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
		list = append(list, eventBank{trueText(b.Name), table, ""})
	}
	return list, nil
}

// value is the first value of content as JSON has it, and what comes after. JSON
// has no NaN and no infinity: they are strings.
func value(content []byte, letter string) (text string, rest []byte) {
	le := binary.LittleEndian
	switch letter {
	case "B":
		return strconv.Itoa(int(int8(content[0]))), content[1:]
	case "S":
		return strconv.Itoa(int(int16(le.Uint16(content)))), content[2:]
	case "I":
		return strconv.Itoa(int(int32(le.Uint32(content)))), content[4:]
	case "L":
		return strconv.FormatInt(int64(le.Uint64(content)), 10), content[8:]
	case "F":
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
