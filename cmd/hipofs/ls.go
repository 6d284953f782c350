package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hipofs/hipofs/materialize"
)

const lsHelp = `Usage: hipofs ls [OPTIONS] SOURCE...

List the banks of HIPO files, read as one chain: name, group/item, number of
columns, rows, and how many entries have rows. Structures that no dictionary
declares are listed as .nodes/GROUP.ITEM.

Options:
    --all                also list banks without rows
    --columns            list the columns of each bank with their types
    --banks PATTERN,...  list only these banks, such as 'REC::*,MC::Particle'
    --on-error fail|skip leave out unreadable files and damaged records: skip
    --threads N          decode N records at once (one a processor)
    --memory SIZE        keep up to SIZE bytes of columns in memory
    --max-record SIZE    refuse records that inflate to more (1G)
    --no-index           neither read nor write a saved index

Exit status: 0 done, 1 failed, 2 wrong usage, 3 a source is unreadable or
damaged, 4 dictionaries in conflict.

    $ hipofs ls run5042.hipo
    BANK           ID      COLUMNS  ROWS  ENTRIES
    REC::Event     300/30  18       998   998
    REC::Particle  300/31  12       4120  991
    1 file, 1000 entries, 8 records; 192 banks without rows (--all lists them)
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

	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "BANK\tID\tCOLUMNS\tROWS\tENTRIES")
	hidden := 0
	for i, b := range banks {
		name := b.Name
		if i >= isNode {
			name = ".nodes/" + name
		}
		// A bank whose rows damage keeps from being counted is listed, and
		// the others are, too; the damage is told at the end.
		rows, filled := "?", "?"
		n, err := b.Rows(ctx)
		if err == nil && n == 0 && !show.empty {
			hidden++
			continue
		}
		if err == nil {
			rows = fmt.Sprint(n)
			n, err = b.Filled(ctx)
		}
		if err == nil {
			filled = fmt.Sprint(n)
		} else if damage == nil {
			damage = err
		}
		fmt.Fprintf(table, "%s\t%d/%d\t%d\t%s\t%s\n", printable(name), b.Group, b.Item, len(b.Columns), rows, filled)
		if show.columns {
			for _, c := range b.Columns {
				fmt.Fprintf(table, "  %s\t%s\t\t\t\n", printable(c.Name), columnType(c))
			}
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}

	line := fmt.Sprintf("%s, %s, %s", count(len(view.Files()), "file", "files"),
		count(view.Entries(), "entry", "entries"), count(len(view.Records()), "record", "records"))
	if hidden > 0 {
		line += fmt.Sprintf("; %s without rows (--all lists them)", count(hidden, "bank", "banks"))
	}
	if _, err := fmt.Fprintln(stdout, line); err != nil {
		return err
	}
	if damage != nil {
		return failure(statusSource, "%s", errorLine(damage))
	}
	return nil
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
