package fs

import (
	"context"
	"syscall"

	"github.com/hipofs/hipofs/materialize"
)

// bankFolder is the folder of a bank, or of a structure without a schema.
func bankFolder(at place, b *materialize.Bank) node {
	var entries []entry
	for _, c := range allColumnFiles(at.names, b) {
		entries = append(entries, columnEntry(c.file, c.Column, c.name))
	}
	entries = append(entries,
		entry{"schema.json", syscall.S_IFREG, func(at place) node {
			return newDocument(at, func(ctx context.Context) ([]byte, error) { return schemaJSON(ctx, at.tree, b) })
		}},
		jsonText("form.json", func() any { return formOf(columnFiles(at.names, b)) }),
	)
	return &folder{place: at, in: newFixed(entries), name: b.Name}
}

func columnEntry(file string, col *materialize.Column, name string) entry {
	return entry{file, syscall.S_IFREG, func(at place) node { return newColumn(at, col, name) }}
}

// columnFile is a column, and the name of its file.
type columnFile struct {
	*materialize.Column
	file string
	name string // the true name
}

// allColumnFiles are the columns of a bank's folder, also those that are computed.
func allColumnFiles(names naming, b *materialize.Bank) []columnFile {
	files := append([]columnFile{{b.Offsets(), "offsets.npy", "offsets"}}, columnFiles(names, b)...)
	files = append(files, columnFile{b.Entry(), "@entry.npy", "@entry"})
	if b.Pointer != nil {
		files = append(files, columnFile{b.Pointer, "@" + names.bank(b.PointsTo) + ".npy", "@" + b.PointsTo})
	}
	return files
}

func columnFiles(names naming, b *materialize.Bank) []columnFile {
	files := make([]columnFile, len(b.Columns))
	taken := claims{}
	for i, c := range b.Columns {
		files[i] = columnFile{c, taken.claim(names.column(c.Name), fileMax) + ".npy", c.Name}
	}
	return files
}

// schema is schema.json; in dictionary.json, which does not wait for counts, it
// has no rows.
type schema struct {
	Name    trueText       `json:"name"`
	Folder  string         `json:"folder,omitempty"`
	Group   uint16         `json:"group"`
	Item    uint8          `json:"item"`
	Entries *int64         `json:"entries,omitempty"`
	Rows    *int64         `json:"rows,omitempty"`
	Columns []schemaColumn `json:"columns"`
}

type schemaColumn struct {
	Name   trueText `json:"name"`
	Type   string   `json:"type"`
	Length int      `json:"length"`
	Dtype  string   `json:"dtype"`
	File   string   `json:"file"`
}

func schemaOf(b *materialize.Bank, columns []columnFile) schema {
	s := schema{Name: trueText(b.Name), Group: b.Group, Item: b.Item, Columns: []schemaColumn{}}
	for _, c := range columns {
		s.Columns = append(s.Columns, schemaColumn{trueText(c.Name), c.Type, c.Length, c.Dtype, c.file})
	}
	return s
}

func schemaJSON(ctx context.Context, t *tree, b *materialize.Bank) ([]byte, error) {
	rows, err := b.Rows(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := t.view.Count(ctx)
	if err != nil {
		return nil, err
	}
	return toJSON(countedSchema(b, columnFiles(t.names, b), entries, rows))
}

func countedSchema(b *materialize.Bank, columns []columnFile, entries, rows int64) schema {
	s := schemaOf(b, columns)
	s.Entries, s.Rows = &entries, &rows
	return s
}

// form is an awkward form (awkward-array.org, "ak.forms"), as far as a bank
// needs it.
type form struct {
	Class     string     `json:"class"`
	Offsets   string     `json:"offsets,omitempty"`
	Fields    []trueText `json:"fields,omitzero"`
	Contents  []form     `json:"contents,omitzero"`
	Size      int        `json:"size,omitempty"`
	Primitive string     `json:"primitive,omitempty"`
	Content   *form      `json:"content,omitempty"`
	FormKey   string     `json:"form_key,omitempty"`
}

// primitives are awkward's words for the dtypes of columns.
var primitives = map[string]string{
	"|i1": "int8",
	"<i2": "int16",
	"<i4": "int32",
	"<i8": "int64",
	"<f4": "float32",
	"<f8": "float64",
}

// formOf is a list of records, one an entry. A form key is the name of the file
// whose content belongs there.
func formOf(columns []columnFile) form {
	record := form{Class: "RecordArray", Fields: []trueText{}, Contents: []form{}}
	taken := claims{}
	for _, c := range columns {
		content := form{Class: "NumpyArray", Primitive: primitives[c.Dtype], FormKey: c.file}
		if c.Length > 1 {
			values := content
			content = form{Class: "RegularArray", Size: c.Length, Content: &values}
		}
		field := taken.field(c.Name)
		record.Fields = append(record.Fields, trueText(field))
		record.Contents = append(record.Contents, content)
	}
	return form{Class: "ListOffsetArray", Offsets: "i64", Content: &record, FormKey: "offsets.npy"}
}
