package hipo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Declaration is one thing that a dictionary record declares: a schema, a user
// setting, the names of event tags, or what no reader knows.
type Declaration struct {
	Schema   *Schema        // nil: no schema
	Setting  string         // key of a setting
	Value    string         // of the setting
	TagNames map[string]int // nil: none

	schemaText string      // as it was found
	schemaJSON []byte      // as it was found; it has descriptions, which Schema has not
	unknown    []Structure // what it is otherwise
}

// Declare declares a schema.
func Declare(s *Schema) Declaration { return Declaration{Schema: s} }

// Unknown is what tells a declaration that is none of the others from the rest;
// "" for the others.
func (d *Declaration) Unknown() string {
	var b strings.Builder
	for _, s := range d.unknown {
		fmt.Fprintf(&b, "%d/%d %d:%s", s.Group, s.Item, len(s.Data), s.Data)
	}
	return b.String()
}

// Declarations reads the dictionary record again, and gives what it declares in
// the order in which it does. Of several schemas of a name there is only the
// last, which is the one that counts.
func (f *File) Declarations() ([]Declaration, error) {
	if f.Header.UserLength < headerLength {
		return nil, nil
	}
	h, err := f.readRecordHeader(f.Header.Length)
	if err != nil {
		return nil, inDictionary(err)
	}
	var rec Record
	var events Batch
	if err = f.read(h, -1, &rec); err == nil {
		_, err = rec.Take(&events, Taking{})
	}
	if err != nil {
		return nil, inDictionary(err)
	}
	var all []Declaration
	for e := range events.structures() {
		all = append(all, declarations(e)...)
	}
	last := map[string]int{}
	for i, d := range all {
		if d.Schema != nil {
			last[d.Schema.Name] = i
		}
	}
	kept := all[:0]
	for i, d := range all {
		if d.Schema == nil || last[d.Schema.Name] == i {
			kept = append(kept, d)
		}
	}
	return kept, nil
}

// structures gives the structures of each event.
func (b *Batch) structures() func(yield func([]Structure) bool) {
	return func(yield func([]Structure) bool) {
		rec := Record{Header: RecordHeader{Events: uint32(len(b.lengths))}, Tags: make([]uint32, len(b.lengths)), payload: b.events}
		var ln lane
		for e, length := range b.lengths {
			ln.begin(ln.at, int(length))
			if ln.header(&rec, e) != nil {
				return
			}
			var event []Structure
			for ; ln.step(b.events); ln.n = 0 {
				w, k := ln.headers[0], key(ln.headers[0]&keyMask)
				data := b.events[ln.places[0]+structureHeader : ln.next]
				format := w >> 32 >> formatShift
				event = append(event, Structure{k.group(), k.item(), uint8(w >> 24), string(data[:format]), data[format:]})
			}
			if !yield(event) {
				return
			}
			ln.at += int(length)
		}
	}
}

// declarations are what one event of a dictionary declares.
func declarations(event []Structure) []Declaration {
	found := map[key][]byte{}
	for _, s := range event {
		found[makeKey(s.Group, s.Item)] = append([]byte(s.Format), s.Data...)
	}
	var all []Declaration
	d := newDictionary()
	d.addEvent(func(k key) ([]byte, bool) { b, ok := found[k]; return b, ok })
	for _, s := range d.Schemas {
		all = append(all, Declaration{Schema: s, schemaText: string(found[keySchemaText]), schemaJSON: found[keySchemaJSON]})
	}
	for k, v := range d.Config {
		all = append(all, Declaration{Setting: k, Value: v})
	}
	if len(d.TagNames) > 0 {
		all = append(all, Declaration{TagNames: d.TagNames})
	}
	if len(all) == 0 && len(event) > 0 {
		all = append(all, Declaration{unknown: slices.Clone(event)})
	}
	return all
}

const stringType = 6

// companion is a schema that only the C++ library can read. It ends where the
// dictionary has an event without any, and with a real one beside a setting
// another reader misses the setting (format.md 15.1).
const companion = "{hipo::meta/32555/1}{key/B,text/C}"

// add adds the event that declares d.
func (b *Batch) add(d Declaration) error {
	type part struct {
		key  key
		data []byte
	}
	var parts []part
	text := func(k key, s string) { parts = append(parts, part{k, []byte(s)}) }
	switch {
	case d.Schema != nil:
		// Readers want one form or the other, as their own writers spell it. The JSON
		// that was there has descriptions; an entry without one ends the Java library.
		js := d.schemaJSON
		if s, err := parseSchemaJSON(string(js)); err != nil || !s.Equal(d.Schema) || bytes.Count(js, []byte(`"info"`)) < len(s.Columns) {
			js = schemaJSON(d.Schema)
		}
		spelled := d.Schema.String()
		if s, err := parseSchemaText(spelled); err != nil || !s.Equal(d.Schema) {
			spelled = d.schemaText // a name with a bracket or a comma in it
		}
		parts = append(parts, part{keySchemaJSON, js})
		if spelled != "" {
			text(keySchemaText, spelled)
		}
	case len(d.unknown) > 0:
		b.Begin(0)
		for _, s := range d.unknown {
			if err := b.Add(s); err != nil {
				return err
			}
		}
		return nil
	case d.TagNames != nil:
		lines := make([]string, 0, len(d.TagNames))
		for name, bit := range d.TagNames {
			lines = append(lines, fmt.Sprintf("%s=%d\n", name, bit))
		}
		slices.Sort(lines)
		text(keySchemaText, companion)
		text(keyTagNames, strings.Join(lines, ""))
	default:
		text(keySchemaText, companion)
		text(keyConfigKey, d.Setting)
		text(keyConfigValue, d.Value)
	}
	b.Begin(0)
	for _, p := range parts {
		if err := b.Add(Structure{Group: p.key.group(), Item: p.key.item(), Type: stringType, Data: p.data}); err != nil {
			return fmt.Errorf("dictionary: %w", err)
		}
	}
	return nil
}

// schemaJSON is the JSON form of a schema, as the Java library wants it.
func schemaJSON(s *Schema) []byte {
	type entry struct {
		Name string `json:"name"`
		Type string `json:"type"`
		Info string `json:"info"`
	}
	entries := make([]entry, len(s.Columns))
	for i, c := range s.Columns {
		entries[i] = entry{Name: c.Name, Type: string(c.Type.Letter)}
		if c.Length > 1 {
			entries[i].Type += fmt.Sprintf("#%d", c.Length)
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(struct { // strings and numbers can always be written
		Name    string  `json:"name"`
		Group   uint16  `json:"group"`
		Item    uint8   `json:"item"`
		Entries []entry `json:"entries"`
	}{s.Name, s.Group, s.Item, entries})
	return bytes.TrimSpace(b.Bytes())
}

// NewSchema makes a schema of columns, each a name and a type as dictionaries
// spell it: F, or F#3.
func NewSchema(name string, group, item int, columns [][2]string) (*Schema, error) {
	return makeSchema(name, group, item, columns)
}
