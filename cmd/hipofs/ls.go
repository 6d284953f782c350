package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/hipofs/hipofs/materialize"
)

const lsHelp = `Usage: hipofs ls [OPTIONS] SOURCE...

List the banks of HIPO files, read as one chain: name, group/item, number of
columns, rows, how many entries have rows, and the columns with their types.
Structures that no dictionary declares are listed as .nodes/GROUP.ITEM.

Options:
    --all                also list banks without rows
    --columns            list columns one a line, with their NumPy types
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
    BANK               ID  COLUMNS  ROWS  ENTRIES
    REC::Event     300/30        2    16       16
        evno/L beamE/F
    REC::Particle  300/31        6    24       16
        pid/I px/F py/F pz/D status/S charge/B
    1 file, 16 entries, 2 records; 3 banks without rows (--all lists them)
`

func newLs(stderr io.Writer) *cobra.Command {
	var o materialize.Options
	var show listing
	cmd := &cobra.Command{
		Use:   "ls [OPTIONS] SOURCE...",
		Short: "list banks, columns, rows",
		Long:  lsHelp,
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := setFromEnvironment(cmd.Flags()); err != nil {
				return err
			}
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
	return cmd
}

// listing says what to list beside the banks that have rows.
type listing struct {
	empty   bool // banks without rows
	columns bool // the columns of each bank
}

func ls(stdout, stderr io.Writer, words []string, o materialize.Options, show listing) error {
	files, notes, err := expandSources(words)
	if err != nil {
		return err
	}
	for _, note := range notes {
		fmt.Fprintln(stderr, "hipofs: "+printable(note))
	}
	ctx := context.Background()
	chain, err := openChain(ctx, files, o)
	if err != nil {
		return err
	}
	defer chain.Close()
	tellLeftOut(stderr, chain)

	view := chain.View()
	banks := view.Banks()
	nodes, damage := view.Nodes(ctx)
	isNode := len(banks) // from here on
	banks = append(banks[:len(banks):len(banks)], nodes...)

	rows := [][5]string{{"BANK", "ID", "COLUMNS", "ROWS", "ENTRIES"}}
	listed := []*materialize.Bank{nil}
	hidden := 0
	for i, b := range banks {
		// A bank whose rows damage keeps from being counted is listed, and
		// the others are, too; the damage is told at the end.
		n, err := b.Rows(ctx)
		if err == nil && n == 0 && !show.empty {
			hidden++
			continue
		}
		row := [5]string{printable(b.Name), fmt.Sprintf("%d/%d", b.Group, b.Item), fmt.Sprint(len(b.Columns)), "?", "?"}
		if i >= isNode {
			row[0] = ".nodes/" + row[0]
		}
		if err == nil {
			row[3] = fmt.Sprint(n)
			n, err = b.Filled(ctx)
		}
		if err == nil {
			row[4] = fmt.Sprint(n)
		} else if damage == nil {
			damage = err
		}
		rows, listed = append(rows, row), append(listed, b)
	}

	out := bufio.NewWriter(stdout)
	var widths [5]int
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for i, row := range rows {
		fmt.Fprintf(out, "%-*s  %*s  %*s  %*s  %*s\n", widths[0], row[0], widths[1], row[1],
			widths[2], row[2], widths[3], row[3], widths[4], row[4])
		if i > 0 && show.columns {
			printColumns(out, listed[i].Columns)
		} else if i > 0 {
			printColumnsShort(out, listed[i].Columns)
		}
	}
	line := fmt.Sprintf("%s, %s, %s", count(len(view.Files()), "file", "files"),
		count(max(0, view.Entries()), "entry", "entries"), count(len(view.Records()), "record", "records"))
	if hidden > 0 {
		line += fmt.Sprintf("; %s without rows (--all lists them)", count(hidden, "bank", "banks"))
	}
	fmt.Fprintln(out, line)
	if err := out.Flush(); err != nil {
		return err
	}
	if damage != nil {
		return failure(statusSource, "%s", errorLine(damage))
	}
	return nil
}

// printColumns has a line for each column: its type in the dictionary, and
// what NumPy makes of it.
func printColumns(w io.Writer, columns []*materialize.Column) {
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
func printColumnsShort(w io.Writer, columns []*materialize.Column) {
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
func columnType(c *materialize.Column) string {
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
