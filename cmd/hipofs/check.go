package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hipofs/hipofs/materialize"
)

const checkHelp = `Usage: hipofs check [OPTIONS] SOURCE...

Read every byte of HIPO files and tell what is damaged: headers, every record,
what it decompresses to, its checksums where it has any, every event, and
whether each bank has whole rows. Files are never changed.

A file that has an index (hipofs index) is compared with it, byte by byte. Only
that finds every change: most codecs of the format do not notice when a bit
flips and other numbers come out.

Options:
    --json               a JSON object for each file, one a line
    --threads N          decode N records at once (one a processor)
    --max-record SIZE    refuse records that inflate to more (1G)
    --index-dir DIR      look for indexes in DIR (your cache folder otherwise)
    --no-index           compare with no index
    --salvage OUT.hipo   then write the records that are whole to a new file
    --force              replace OUT.hipo if it is there
    -q, --quiet          no progress; only files with damage

A "note" is odd, but loses nothing.

Exit status: 0 all is good, 1 failed, 2 wrong usage, 3 something is damaged or
unreadable, 130 interrupted.

    $ hipofs check run5042/*.hipo
    run5042/a.hipo: good: 118 records, 61440 events; every byte is as indexed
    run5042/b.hipo: damaged: 1 of 97 records, 512 of 50012 events
        record 3 at byte 20201472: lz4 data is damaged
    2 files: 1 good, 1 damaged
`

// checking is one run of hipofs check.
type checking struct {
	stderr io.Writer

	materialize.CheckOptions
	json    bool
	quiet   bool
	salvage string
	force   bool

	changed map[string][]int64 // records that differ from the index, by file, and are not saved
}

func newCheck(stderr io.Writer) *cobra.Command {
	k := &checking{stderr: stderr}
	cmd := &cobra.Command{
		Use:     "check [OPTIONS] SOURCE...",
		Short:   "tell what is damaged in files",
		Long:    checkHelp,
		Args:    cobra.ArbitraryArgs,
		PreRunE: setFromEnvironment,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return failure(statusUsage, "which files are to be checked? see %q", "hipofs help check")
			}
			return k.run(cmd.OutOrStdout(), args)
		},
	}
	flags := cmd.Flags()
	flags.Func("max-record", "", size(&k.MaxRecord))
	flags.Func("threads", "", threads(&k.Threads))
	addIndexDir(flags, &k.IndexDir)
	addNoIndex(flags, &k.IndexDir)
	flags.BoolVar(&k.json, "json", false, "")
	flags.BoolVarP(&k.quiet, "quiet", "q", false, "")
	flags.StringVar(&k.salvage, "salvage", "", "")
	flags.BoolVar(&k.force, "force", false, "")
	return cmd
}

func (k *checking) run(stdout io.Writer, words []string) error {
	files, err := sourceFiles(words, k.stderr)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal()
	defer stop()
	bar := newProgress(k.stderr, files, k.quiet)
	k.Progress = bar.add
	out := bufio.NewWriter(stdout)
	damaged := 0
	k.changed = map[string][]int64{}
	var written error
	err = materialize.Check(ctx, files, k.CheckOptions, func(c materialize.Checked) {
		bar.done()
		if !c.Good {
			damaged++
		}
		if len(c.Changed) > 0 {
			k.changed[c.File] = c.Changed
		}
		switch {
		case k.json:
			lines := json.NewEncoder(out)
			lines.SetEscapeHTML(false)
			written = errors.Join(written, lines.Encode(c))
		case !c.Good || !k.quiet:
			printChecked(out, c)
		}
		written = errors.Join(written, out.Flush())
	})
	bar.end()
	switch {
	case errors.Is(err, context.Canceled):
		return failure(statusInterrupted, "interrupted")
	case err != nil:
		return err
	case written != nil:
		return written
	}
	if !k.json && !k.quiet {
		line := fmt.Sprintf("%s: %d good", count(len(files), "file", "files"), len(files)-damaged)
		if damaged > 0 {
			line += fmt.Sprintf(", %d damaged", damaged)
		}
		if _, err := fmt.Fprintln(stdout, line); err != nil {
			return err
		}
	}
	if k.salvage != "" {
		if err := k.save(ctx, files); err != nil {
			return err
		}
	}
	if damaged > 0 {
		return &statusError{status: statusSource} // which and why has been told
	}
	return nil
}

// save writes the records of the files that are whole, and tells what is lost.
func (k *checking) save(ctx context.Context, files []string) error {
	chain, err := openChain(ctx, files, materialize.Options{
		Threads: k.Threads, MaxRecord: k.MaxRecord, Skip: true, Without: k.changed, Index: materialize.IndexLazy,
	})
	if err != nil {
		return err
	}
	defer chain.Close()
	o := materialize.SkimOptions{Out: k.salvage, Force: k.force, Threads: k.Threads, Entries: materialize.Slice{To: math.MaxInt64}}
	var saved int64
	if err := write(ctx, k.stderr, files, k.quiet, o, func(o materialize.SkimOptions) (*materialize.Skimmed, error) {
		made, err := chain.Skim(ctx, o)
		if err == nil {
			saved = made.Entries
		}
		return made, err
	}); err != nil {
		return err
	}
	var lost int64
	without := 0
	for _, f := range chain.Files() {
		lost += f.Lost
		if f.LeftOut != "" && f.Records == 0 {
			without++
		}
	}
	line := fmt.Sprintf("hipofs: %s: %s saved", printable(k.salvage), count(saved, "event", "events"))
	if lost > 0 {
		line += fmt.Sprintf(", %d lost in damaged records", lost)
	}
	if without > 0 {
		line += fmt.Sprintf(", nothing of %s", count(without, "file", "files"))
	}
	fmt.Fprintln(k.stderr, line)
	return nil
}

// printChecked prints what was found out about a file, its faults below it.
func printChecked(w io.Writer, c materialize.Checked) {
	state := fmt.Sprintf("good: %s, %s", count(c.Records, "record", "records"), count(c.Events, "event", "events"))
	switch {
	case c.Good && c.Index != "":
		state += "; every byte is as indexed"
	case c.DamagedRecords > 0:
		state = fmt.Sprintf("damaged: %d of %s, %d of %s", c.DamagedRecords, count(c.Records, "record", "records"),
			c.DamagedEvents, count(c.Events, "event", "events"))
	case !c.Good && c.Records > 0:
		state = fmt.Sprintf("damaged; its %s with %s can be read", count(c.Records, "record", "records"), count(c.Events, "event", "events"))
	case !c.Good && c.Size == 0:
		state = "cannot be read"
	case !c.Good:
		state = "damaged, or no HIPO file"
	}
	fmt.Fprintf(w, "%s: %s\n", printable(c.File), state)
	for _, f := range c.Faults {
		fmt.Fprintln(w, "    "+printable(strings.TrimPrefix(f.Message, c.File+": ")))
	}
	if c.MoreFaults > 0 {
		fmt.Fprintf(w, "    and %d more\n", c.MoreFaults)
	}
	for _, note := range c.Notes {
		fmt.Fprintln(w, "    note: "+printable(note))
	}
}
