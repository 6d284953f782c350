package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/hipofs/hipofs/materialize"
)

const lsHelp = `Usage: hipofs ls [OPTIONS] SOURCE...

List the banks of HIPO files, read as one chain: name, group/item, number of
columns, rows, how many entries have rows, the mean and the largest number of
rows in those, and the columns with their types. SIZE is what a bank takes in
files that store each bank apart. Structures that no dictionary declares are
listed as .nodes/GROUP.ITEM.

Options:
    --all                also list banks without rows
    --columns            list columns one a line, with their NumPy types
    --json               the same as one JSON object, with all banks
    --banks PATTERN,...  list only these banks, such as 'REC::*,MC::Particle'
    --entries A:B        count in entries A to B alone, B excluded
    --require BANK+...   in entries with rows in each of these banks
    --tag N+...          in entries with one of these event tags
    --record-tag N+...   in entries of records with one of these tags
    --on-error fail|skip leave out unreadable files and damaged records: skip
    --threads N          decode N records at once (one a processor)
    --memory SIZE        keep up to SIZE bytes of columns in memory
    --max-record SIZE    refuse records that inflate to more (1G)
    --index-dir DIR      keep indexes in DIR (your cache folder otherwise)
    --no-index           neither read nor write an index

Exit status: 0 done, 1 failed, 2 wrong usage, 3 a source is unreadable or
damaged, 4 dictionaries in conflict, 5 an index folder is unusable.

    $ hipofs ls run5042.hipo
    BANK               ID  COLUMNS  ROWS  ENTRIES  MEAN  MOST  SIZE
    REC::Event     300/30        2    16       16   1.0     1     -
        evno/L beamE/F
    REC::Particle  300/31        6    24       16   1.5     2     -
        pid/I px/F py/F pz/D status/S charge/B
    1 file, 16 entries, 2 records; 3 banks without rows (--all lists them)
`

func newLs(stderr io.Writer) *cobra.Command {
	var o materialize.Options
	var show listing
	cmd := &cobra.Command{
		Use:     "ls [OPTIONS] SOURCE...",
		Short:   "list banks, columns, rows",
		Long:    lsHelp,
		Args:    cobra.ArbitraryArgs,
		PreRunE: setFromEnvironment,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return failure(statusUsage, "which files are to be listed? see %q", "hipofs help ls")
			}
			return ls(cmd.OutOrStdout(), stderr, args, o, show)
		},
	}
	flags := cmd.Flags()
	addChainFlags(flags, &o)
	addViewFilter(flags, &o)
	flags.BoolVar(&show.empty, "all", false, "")
	flags.BoolVar(&show.columns, "columns", false, "")
	flags.BoolVar(&show.json, "json", false, "")
	return cmd
}

// listing says what to list beside the banks that have rows.
type listing struct {
	empty   bool // banks without rows
	columns bool // the columns of each bank
	json    bool
}

// listed is what is listed of a bank. Rows and what follows is nil where damage
// keeps it from being counted; JSON as hipofs ls prints it.
type listed struct {
	Name    string         `json:"name"`
	Folder  string         `json:"-"` // as in the tree
	Group   uint16         `json:"group"`
	Item    uint8          `json:"item"`
	Node    bool           `json:"undeclared"`
	Columns []listedColumn `json:"columns"`
	*listedRows
}

type listedColumn struct {
	Name   string `json:"name"`
	Type   string `json:"type"`
	Length int    `json:"length"`
	Dtype  string `json:"dtype"`
}

type listedRows struct {
	Rows    int64  `json:"rows"`
	Entries int64  `json:"entries_with_rows"`
	Most    int64  `json:"largest"`
	Stored  *int64 `json:"stored_bytes"` // null: stored together with other banks
}

// list gives what there is to list of a bank.
func list(ctx context.Context, b *materialize.Bank, node bool) (l listed, err error) {
	l = listed{Name: b.Name, Folder: b.Name, Group: b.Group, Item: b.Item, Node: node, Columns: []listedColumn{}}
	if node {
		l.Folder = ".nodes/" + b.Name
	}
	for _, c := range b.Columns {
		l.Columns = append(l.Columns, listedColumn{c.Name, c.Type, c.Length, c.Dtype})
	}
	var r listedRows
	if r.Rows, err = b.Rows(ctx); err != nil {
		return l, err
	}
	if r.Entries, err = b.Filled(ctx); err != nil {
		return l, err
	}
	if r.Most, err = b.Largest(ctx); err != nil {
		return l, err
	}
	stored, ok, err := b.Stored(ctx)
	if err != nil {
		return l, err
	}
	if ok && r.Rows > 0 {
		r.Stored = &stored
	}
	l.listedRows = &r
	return l, nil
}

// cells are the bank's line.
func (l *listed) cells() [8]string {
	row := [8]string{printable(l.Folder), fmt.Sprintf("%d/%d", l.Group, l.Item), fmt.Sprint(len(l.Columns)), "?", "?", "?", "?", "?"}
	if r := l.listedRows; r != nil {
		mean := "-"
		if r.Entries > 0 {
			mean = fmt.Sprintf("%.1f", float64(r.Rows)/float64(r.Entries))
		}
		row = [8]string{row[0], row[1], row[2], fmt.Sprint(r.Rows), fmt.Sprint(r.Entries), mean, fmt.Sprint(r.Most), "-"}
		if r.Stored != nil {
			row[7] = sizeText(*r.Stored)
		}
	}
	return row
}

func ls(stdout, stderr io.Writer, words []string, o materialize.Options, show listing) error {
	ctx := context.Background()
	chain, err := openWords(ctx, words, o, stderr)
	if err != nil {
		return err
	}
	defer chain.Close()

	view := chain.View()
	banks := view.Banks()
	nodes, damage := view.Nodes(ctx)
	isNode := len(banks) // from here on
	banks = append(banks[:len(banks):len(banks)], nodes...)

	hidden := 0
	all := []listed{}
	for i, b := range banks {
		// A bank whose rows damage keeps from being counted is listed, and
		// the others are, too; the damage is told at the end.
		l, err := list(ctx, b, i >= isNode)
		if err != nil && damage == nil {
			damage = err
		}
		if err == nil && l.Rows == 0 && !show.empty && !show.json {
			hidden++
			continue
		}
		all = append(all, l)
	}
	out := bufio.NewWriter(stdout)
	if show.json {
		err = listJSON(out, view, all)
	} else {
		listText(out, view, all, show.columns, hidden)
	}
	if err := errors.Join(err, out.Flush()); err != nil {
		return err
	}
	if damage != nil {
		return failure(statusSource, "%s", errorLine(damage))
	}
	return nil
}

func listJSON(w io.Writer, view *materialize.View, banks []listed) error {
	files := []string{}
	for _, f := range view.Files() {
		files = append(files, f.Name)
	}
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	return out.Encode(struct {
		Files   []string `json:"files"`
		Entries int64    `json:"entries"`
		Records int      `json:"records"`
		Banks   []listed `json:"banks"`
	}{files, max(0, view.Entries()), len(view.Records()), banks})
}

// listText prints a table of banks, with their columns.
func listText(out io.Writer, view *materialize.View, banks []listed, columns bool, hidden int) {
	rows := [][8]string{{"BANK", "ID", "COLUMNS", "ROWS", "ENTRIES", "MEAN", "MOST", "SIZE"}}
	for i := range banks {
		rows = append(rows, banks[i].cells())
	}
	var widths [8]int
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for i, row := range rows {
		fmt.Fprintf(out, "%-*s", widths[0], row[0])
		for j, cell := range row[1:] {
			fmt.Fprintf(out, "  %*s", widths[j+1], cell)
		}
		fmt.Fprintln(out)
		if i > 0 && columns {
			printColumns(out, banks[i-1].Columns)
		} else if i > 0 {
			printColumnsShort(out, banks[i-1].Columns)
		}
	}
	line := fmt.Sprintf("%s, %s, %s", count(len(view.Files()), "file", "files"),
		count(max(0, view.Entries()), "entry", "entries"), count(len(view.Records()), "record", "records"))
	if hidden > 0 {
		line += fmt.Sprintf("; %s without rows (--all lists them)", count(hidden, "bank", "banks"))
	}
	fmt.Fprintln(out, line)
}

// printColumns has a line for each column: its type in the dictionary, and
// what NumPy makes of it.
func printColumns(w io.Writer, columns []listedColumn) {
	width := 0
	for _, c := range columns {
		width = max(width, utf8.RuneCountInString(printable(c.Name)))
	}
	for _, c := range columns {
		fmt.Fprintf(w, "    %-*s  %-4s  %s\n", width, printable(c.Name), columnType(c), c.Dtype)
	}
}

// printColumnsShort has all columns as dictionaries write them, in lines of at
// most 80 characters.
func printColumnsShort(w io.Writer, columns []listedColumn) {
	const indent = "   "
	line := indent
	for _, c := range columns {
		word := " " + printable(c.Name) + "/" + columnType(c)
		if line != indent && utf8.RuneCountInString(line+word) > 80 {
			fmt.Fprintln(w, line)
			line = indent
		}
		line += word
	}
	if line != indent {
		fmt.Fprintln(w, line)
	}
}

// columnType is a column's type as dictionaries write it: F, or F#3.
func columnType(c listedColumn) string {
	if c.Length > 1 {
		return fmt.Sprintf("%s#%d", c.Type, c.Length)
	}
	return c.Type
}

// count is a number with the word for what is counted.
func count[N int | int64](n N, one, many string) string {
	if n == 1 {
		return fmt.Sprint(n, " ", one)
	}
	return fmt.Sprint(n, " ", many)
}
