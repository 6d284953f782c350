package hipo

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Dictionary is what the dictionary record of a file declares.
type Dictionary struct {
	Schemas  []*Schema         // by first appearance of the name; the last schema of a name counts
	Config   map[string]string // user settings
	TagNames map[string]int    // names of event tag bits
	Dropped  []string          // schemas that break a rule, each with the reason
	columns  int               // about how many all schemas spell, also those that are dropped
	byName   map[string]int
	byKey    map[key]*Schema
}

func newDictionary() *Dictionary {
	return &Dictionary{
		Config:   map[string]string{},
		TagNames: map[string]int{},
		byName:   map[string]int{},
		byKey:    map[key]*Schema{},
	}
}

// Lookup is the schema of a bank by name, or nil.
func (d *Dictionary) Lookup(name string) *Schema {
	if i, ok := d.byName[name]; ok {
		return d.Schemas[i]
	}
	return nil
}

// ByID is the last schema declared for a (group, item), or nil.
func (d *Dictionary) ByID(group uint16, item uint8) *Schema { return d.byKey[makeKey(group, item)] }

// addEvent takes in one event of the dictionary record; each of its parts is
// optional, and find gives the first structure of a key.
func (d *Dictionary) addEvent(find func(key) ([]byte, bool)) {
	text, isText := find(keySchemaText)
	js, isJSON := find(keySchemaJSON)
	var s *Schema
	var err error
	switch {
	case isText:
		spelled := stringNode(text)
		d.columns += strings.Count(spelled, "/")
		s, err = parseSchemaText(spelled)
	case isJSON:
		spelled := stringNode(js)
		d.columns += strings.Count(spelled, "{")
		s, err = parseSchemaJSON(spelled)
	}
	if err != nil {
		d.Dropped = append(d.Dropped, err.Error())
	} else if s != nil {
		d.add(s)
	}

	name, isName := find(keyConfigKey)
	value, isValue := find(keyConfigValue)
	if isName && isValue {
		d.Config[stringNode(name)] = stringNode(value)
	}
	if names, ok := find(keyTagNames); ok {
		for line := range strings.Lines(stringNode(names)) {
			name, bit, ok := strings.Cut(strings.TrimRight(line, "\r\n"), "=")
			n, err := parseNumber(strings.TrimSpace(bit))
			if ok && err == nil && n < 32 {
				d.TagNames[strings.TrimSpace(name)] = n
			}
		}
	}
}

func (d *Dictionary) add(s *Schema) {
	if i, ok := d.byName[s.Name]; ok {
		d.Schemas[i] = s
	} else {
		d.byName[s.Name] = len(d.Schemas)
		d.Schemas = append(d.Schemas, s)
	}
}

// finish maps ids to schemas, once all are known.
func (d *Dictionary) finish() {
	for _, s := range d.Schemas {
		d.byKey[makeKey(s.Group, s.Item)] = s
	}
}

// stringNode is a string structure's text: up to the first NUL, trimmed.
func stringNode(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return strings.TrimSpace(s)
}

// parseNumber reads an unsigned decimal number of at most nine digits.
func parseNumber(s string) (int, error) {
	if s == "" || len(s) > 9 || strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	return strconv.Atoi(s)
}

// excerpt is a text short enough, and tame enough, for an error message.
func excerpt(s string) string {
	const most = 60
	if len(s) > most {
		s = s[:most]
	}
	return strconv.QuoteToASCII(s)
}

// parseSchemaText reads {NAME/GROUP/ITEM}{COLUMN/TYPE,COLUMN/TYPE#N,…}; what
// surrounds the two blocks is ignored.
func parseSchemaText(text string) (*Schema, error) {
	head, rest, ok := block(text)
	if !ok {
		return nil, fmt.Errorf("schema text %s has no {name/group/item}", excerpt(text))
	}
	body, _, ok := block(rest)
	if !ok {
		return nil, fmt.Errorf("schema text %s has no {columns}", excerpt(text))
	}
	id := strings.Split(head, "/")
	if len(id) != 3 {
		return nil, fmt.Errorf("schema text %s does not begin with {name/group/item}", excerpt(text))
	}
	group, err1 := parseNumber(strings.TrimSpace(id[1]))
	item, err2 := parseNumber(strings.TrimSpace(id[2]))
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("schema text %s: group or item is not a number", excerpt(text))
	}
	var columns [][2]string
	for col := range strings.SplitSeq(body, ",") {
		if strings.TrimSpace(col) == "" {
			continue
		}
		name, kind, ok := strings.Cut(col, "/")
		if !ok {
			return nil, fmt.Errorf("schema text %s: a column without a type", excerpt(text))
		}
		columns = append(columns, [2]string{name, kind})
	}
	return makeSchema(strings.TrimSpace(id[0]), group, item, columns)
}

// block cuts the first {…} out of s: what is inside, and what follows.
func block(s string) (inside, rest string, ok bool) {
	_, s, ok = strings.Cut(s, "{")
	if !ok {
		return "", "", false
	}
	return strings.Cut(s, "}")
}

// makeSchema builds a schema from (name, type) pairs, where a type is T or T#N.
func makeSchema(name string, group, item int, columns [][2]string) (*Schema, error) {
	if name == "" || group < 0 || group > 0xFFFF || item < 0 || item > 0xFF {
		return nil, fmt.Errorf("schema %s has the ids %d/%d", excerpt(name), group, item)
	}
	s := &Schema{Name: name, Group: uint16(group), Item: uint8(item)}
	for _, c := range columns {
		letter, length, isArray := strings.Cut(c[1], "#")
		letter = strings.TrimSpace(letter)
		n := 1
		if length = strings.TrimSpace(length); isArray && length != "" {
			var err error
			if n, err = parseNumber(length); err != nil {
				return nil, fmt.Errorf("schema %s: column %s has the type %s", excerpt(name), excerpt(c[0]), excerpt(c[1]))
			}
		}
		if len(letter) != 1 {
			return nil, fmt.Errorf("schema %s: column %s has the type %s", excerpt(name), excerpt(c[0]), excerpt(c[1]))
		}
		t, ok := typeOf(letter[0])
		if !ok {
			return nil, fmt.Errorf("schema %s: column %s has the type %s", excerpt(name), excerpt(c[0]), excerpt(c[1]))
		}
		if err := s.add(strings.TrimSpace(c[0]), t, n); err != nil {
			return nil, fmt.Errorf("schema %s: %w", excerpt(name), err)
		}
	}
	if s.RowSize == 0 {
		return nil, fmt.Errorf("schema %s has no columns", excerpt(name))
	}
	return s, nil
}

// parseSchemaJSON reads the same from {"name", "group", "item", "entries":
// [{"name", "type", …}, …]}; other keys are ignored.
func parseSchemaJSON(text string) (*Schema, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal([]byte(escapeControls(text)), &top); err != nil {
		return nil, fmt.Errorf("schema JSON %s: %w", excerpt(text), err)
	}
	bad := func(what string) error { return fmt.Errorf("schema JSON %s: %s", excerpt(text), what) }
	var name string
	if json.Unmarshal(top["name"], &name) != nil {
		return nil, bad("no name")
	}
	group, ok1 := jsonNumber(top["group"])
	item, ok2 := jsonNumber(top["item"])
	if !ok1 || !ok2 {
		return nil, bad("group or item is not a number")
	}
	var entries []map[string]json.RawMessage
	if json.Unmarshal(top["entries"], &entries) != nil {
		return nil, bad("no entries")
	}
	columns := make([][2]string, len(entries))
	for i, e := range entries {
		if json.Unmarshal(e["name"], &columns[i][0]) != nil || json.Unmarshal(e["type"], &columns[i][1]) != nil {
			return nil, bad("an entry without name or type")
		}
	}
	return makeSchema(name, group, item, columns)
}

// jsonNumber reads a whole number, also one in quotes.
func jsonNumber(raw json.RawMessage) (int, bool) {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		s = string(raw)
	}
	n, err := parseNumber(strings.TrimSpace(s))
	return n, err == nil
}

// escapeControls escapes raw control characters inside strings, which writers
// leave in and encoding/json refuses.
func escapeControls(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r < ' ' }) < 0 {
		return s
	}
	var b strings.Builder
	inString, escaped := false, false
	for i := range len(s) {
		ch := s[i]
		if inString && ch < ' ' && !escaped {
			fmt.Fprintf(&b, "\\u%04x", ch)
			continue
		}
		if ch == '"' && !escaped {
			inString = !inString
		}
		escaped = inString && ch == '\\' && !escaped
		b.WriteByte(ch)
	}
	return b.String()
}
