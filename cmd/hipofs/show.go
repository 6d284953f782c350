package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/hipofs/hipofs/materialize"
)

const showHelp = `Usage: hipofs show [OPTIONS] SOURCE... --entry N [PATTERN...]

Print one event of HIPO files, read as one chain: its banks as tables, also
structures that no dictionary declares (.nodes/GROUP.ITEM). Only the records
that hold the event are read.

A PATTERN such as 'REC::*' is known by its "::", and is the same as --banks.

Options:
    --entry N            the event's number in the chain, from 0
    --banks PATTERN,...  print only these banks
    --threads N          open N files at once (one a processor)
    --memory SIZE        keep up to SIZE bytes of columns in memory
    --max-record SIZE    refuse records that inflate to more (1G)
    --on-error fail|skip leave out unreadable files and damaged records: skip
    --index-dir DIR      look for indexes in DIR (your cache folder otherwise)
    --no-index           use no index

Exit status: 0 done, 1 failed, 2 wrong usage, 3 a source is unreadable or
damaged, 4 dictionaries in conflict, 5 an index folder is unusable.

    $ hipofs show run5042.hipo --entry 2 'REC::*'
    entry 2: event 2 of record 0 in run5042.hipo, event tag 0, record tag 0

    REC::Particle  300/31  1 row
        pid     px    py    pz  status  charge
    0  2212  -0.25  0.75  1.25     100       1
`

func newShow(stderr io.Writer) *cobra.Command {
	var o materialize.Options
	entry := int64(-1)
	cmd := &cobra.Command{
		Use:     "show [OPTIONS] SOURCE... --entry N [PATTERN...]",
		Short:   "print one event",
		Long:    showHelp,
		Args:    cobra.ArbitraryArgs,
		PreRunE: setFromEnvironment,
		RunE: func(cmd *cobra.Command, args []string) error {
			sources := bankPatterns(args, &o.Banks)
			switch {
			case len(sources) == 0:
				return failure(statusUsage, "of which files is an event to be shown? see %q", "hipofs help show")
			case entry < 0:
				return failure(statusUsage, "which event? say --entry N; see %q", "hipofs help show")
			}
			for _, pattern := range o.Banks {
				if _, err := path.Match(pattern, ""); err != nil {
					return failure(statusUsage, "%s: not a pattern of banks; brackets and backslashes come in pairs", pattern)
				}
			}
			return show(cmd.OutOrStdout(), stderr, sources, o, entry)
		},
	}
	flags := cmd.Flags()
	addChainFlags(flags, &o)
	flags.Func("entry", "", func(s string) (err error) {
		if entry, err = strconv.ParseInt(s, 10, 64); err != nil || entry < 0 {
			return fmt.Errorf("want the number of an event, 0 or more")
		}
		return nil
	})
	return cmd
}

// bankPatterns takes the patterns of banks out of a list of sources: words with
// "::" that are no files.
func bankPatterns(words []string, banks *[]string) (sources []string) {
	for _, word := range words {
		if _, err := os.Stat(word); err != nil && strings.Contains(word, "::") {
			*banks = append(*banks, word)
		} else {
			sources = append(sources, word)
		}
	}
	return sources
}

func show(stdout, stderr io.Writer, words []string, o materialize.Options, entry int64) error {
	o.Index = materialize.IndexLazy
	ctx := context.Background()
	chain, err := openWords(ctx, words, o, stderr)
	if err != nil {
		return err
	}
	defer chain.Close()
	ev, err := chain.Event(ctx, entry)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(stdout)
	fmt.Fprintf(out, "entry %d: event %d of record %d in %s, event tag %d, record tag %d\n",
		ev.Entry, ev.Number, ev.Record, printable(ev.File), ev.Tag, ev.RecordTag)
	var damage error
	shown := 0
	for i := range ev.Banks {
		b := &ev.Banks[i]
		if b.Node && !matchesAny(o.Banks, b.Name) {
			continue
		}
		shown++
		if b.Err != nil {
			damage = b.Err
			continue
		}
		fmt.Fprintln(out)
		printBank(out, b)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if len(o.Banks) > 0 && shown == 0 && len(chain.View().Banks()) == 0 {
		fmt.Fprintf(stderr, "hipofs: no bank of these files is called %s; \"hipofs ls\" lists their names\n", printable(strings.Join(o.Banks, " or ")))
	}
	if damage != nil {
		return failure(statusSource, "%s", errorLine(damage))
	}
	return nil
}

// matchesAny reports whether a name matches one of the patterns, or there are none.
func matchesAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, _ := path.Match(p, name); ok {
			return true
		}
	}
	return len(patterns) == 0
}

const stringType = 6 // of a primitive node

// printBank prints a bank as a table.
func printBank(w io.Writer, b *materialize.EventBank) {
	name, what := b.Name, ""
	switch {
	case b.Format != "":
		what = "  composite " + printable(b.Format)
	case b.Node:
		what = fmt.Sprintf("  type %d", b.Primitive)
	}
	if b.Node {
		name = ".nodes/" + name
	}
	fmt.Fprintf(w, "%s  %d/%d  %s%s\n", printable(name), b.Group, b.Item, count(b.Rows, "row", "rows"), what)
	if b.Node && b.Format == "" && b.Primitive == stringType {
		text, _, _ := strings.Cut(string(b.Columns[0].Content), "\x00")
		fmt.Fprintln(w, "    "+printable(text))
		return
	}
	var columns [][]string
	for i := range b.Columns {
		columns = append(columns, cellsOf(&b.Columns[i], b.Rows))
	}
	printTable(w, columns, b.Rows)
}

// cellsOf is a column's name and its values, as text.
func cellsOf(c *materialize.EventColumn, rows int) []string {
	cells := []string{printable(c.Name)}
	size := len(c.Content) / (rows * c.Length)
	for r := range rows {
		row := c.Content[r*c.Length*size : (r+1)*c.Length*size]
		if c.Length == 1 {
			cells = append(cells, valueText(c.Type, row))
			continue
		}
		values := make([]string, c.Length)
		for i := range values {
			values[i] = valueText(c.Type, row[i*size:])
		}
		cells = append(cells, "["+strings.Join(values, " ")+"]")
	}
	return cells
}

// valueText is the value that begins b, so that it reads as the same value again.
func valueText(letter byte, b []byte) string {
	le := binary.LittleEndian
	switch letter {
	case 'B':
		return strconv.Itoa(int(int8(b[0])))
	case 'S':
		return strconv.Itoa(int(int16(le.Uint16(b))))
	case 'I':
		return strconv.Itoa(int(int32(le.Uint32(b))))
	case 'L':
		return strconv.FormatInt(int64(le.Uint64(b)), 10)
	case 'F':
		return strconv.FormatFloat(float64(math.Float32frombits(le.Uint32(b))), 'g', -1, 32)
	default:
		return strconv.FormatFloat(math.Float64frombits(le.Uint64(b)), 'g', -1, 64)
	}
}

// tableWidth is how wide lines of a table get, unless one column is wider.
const tableWidth = 80

// printTable prints columns side by side, each a heading and its cells, and what
// does not fit beside them below. Each part has the numbers of the rows.
func printTable(w io.Writer, columns [][]string, rows int) {
	number := len(strconv.Itoa(max(0, rows-1)))
	for len(columns) > 0 {
		var widths []int
		line := number
		for _, c := range columns {
			width := 0
			for _, cell := range c {
				width = max(width, utf8.RuneCountInString(cell))
			}
			if line+2+width > tableWidth && len(widths) > 0 {
				break
			}
			line += 2 + width
			widths = append(widths, width)
		}
		for r := range rows + 1 {
			label := ""
			if r > 0 {
				label = strconv.Itoa(r - 1)
			}
			fmt.Fprintf(w, "%*s", number, label)
			for i, width := range widths {
				fmt.Fprintf(w, "  %*s", width, columns[i][r])
			}
			fmt.Fprintln(w)
		}
		columns = columns[len(widths):]
	}
}
