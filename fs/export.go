package fs

import (
	"path"
	"slices"
	"strings"

	"github.com/hipofs/hipofs/materialize"
)

// Exported is a tree that is written to a folder: the files of a mount, by the same
// names.
type Exported struct {
	tree    *tree
	format  materialize.ExportFormat
	columns []string // patterns COLUMN or BANK/COLUMN; nil: all
	schemas []schema // of the banks that are shown
}

// Export prepares the tree of a chain for a folder. Only columns that match one of
// the patterns are in it, and banks that have such columns; with no pattern all are.
// Of formats other than .npy, each bank is one file, beside which there is nothing.
func Export(chain *materialize.Chain, o Options, format materialize.ExportFormat, columns []string) *Exported {
	return &Exported{tree: newRoot(chain, o, nil).tree, format: format, columns: columns}
}

// Banks are the banks of the dictionary, and what .hipofs says of the files.
func (e *Exported) Banks() []materialize.ExportBank {
	var all []materialize.ExportBank
	e.schemas = []schema{}
	for i, folder := range e.tree.bankNames() {
		bank := e.tree.view.Bank(i)
		if b, shown := e.bank(bank, folder); len(shown) > 0 {
			all = append(all, b)
			s := schemaOf(bank, shown)
			s.Folder = folder
			e.schemas = append(e.schemas, s)
		}
	}
	if e.format != materialize.ExportNpy {
		return all
	}
	return append(all, e.control())
}

// Node is the same for a structure that no dictionary declares; false if it is
// not asked for.
func (e *Exported) Node(b *materialize.Bank) (materialize.ExportBank, bool) {
	to, shown := e.bank(b, ".nodes/"+b.Name)
	return to, len(shown) > 0
}

// bank is the files of a bank, and those columns of its schema that are shown.
func (e *Exported) bank(b *materialize.Bank, folder string) (to materialize.ExportBank, shown []columnFile) {
	to.Bank = b
	if e.format != materialize.ExportNpy {
		return e.table(b, folder)
	}
	for _, c := range allColumnFiles(e.tree.names, b) {
		if (c.name != "offsets" || c.Type != "") && !e.shows(b.Name, c.name) {
			continue
		}
		to.Columns = append(to.Columns, materialize.ExportColumn{Column: c.Column, File: folder + "/" + c.file})
		if c.Type != "" {
			shown = append(shown, c)
		}
	}
	to.Texts = []materialize.ExportText{
		{File: folder + "/schema.json", Render: func(entries, rows int64) ([]byte, error) {
			return toJSON(countedSchema(b, shown, entries, rows))
		}},
		{File: folder + "/form.json", Render: func(int64, int64) ([]byte, error) { return toJSON(formOf(shown)) }},
	}
	return to, shown
}

// table is the same where a bank becomes one file.
func (e *Exported) table(b *materialize.Bank, folder string) (to materialize.ExportBank, shown []columnFile) {
	to.Bank, to.File = b, folder+"."+string(e.format)
	taken := claims{}
	for _, c := range columnFiles(e.tree.names, b) {
		if e.shows(b.Name, c.name) {
			to.Columns = append(to.Columns, materialize.ExportColumn{Column: c.Column, Name: taken.field(strings.ToValidUTF8(c.name, "\uFFFD"))})
			shown = append(shown, c)
		}
	}
	return to, shown
}

// shows reports whether a column is asked for.
func (e *Exported) shows(bank, column string) bool {
	return len(e.columns) == 0 || slices.ContainsFunc(e.columns, func(pattern string) bool {
		of, name, both := strings.Cut(pattern, "/")
		if !both {
			of, name = bank, pattern // and a bank's name may be no pattern
		}
		inBank, _ := path.Match(of, bank)
		matches, _ := path.Match(name, column)
		return (inBank || !both) && matches
	})
}

// control is what .hipofs says that holds without a mount.
func (e *Exported) control() materialize.ExportBank {
	t := e.tree
	to := materialize.ExportBank{Columns: []materialize.ExportColumn{
		{Column: t.view.EventTags(), File: ".hipofs/event_tags.npy"},
		{Column: t.view.RecordTags(), File: ".hipofs/record_tags.npy"},
		{Column: t.view.EntryNumbers(), File: ".hipofs/entries.npy"},
	}}
	for file, value := range map[string]any{
		"files.json":      t.files,
		"dictionary.json": e.schemas,
		"config.json":     notNil(t.view.Config()),
		"tags.json":       notNil(t.view.TagNames()),
	} {
		to.Texts = append(to.Texts, materialize.ExportText{File: ".hipofs/" + file, Render: func(int64, int64) ([]byte, error) { return toJSON(value) }})
	}
	return to
}
