package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	iofs "io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hipofs/hipofs/materialize"
)

const indexHelp = `Usage: hipofs index [OPTIONS] SOURCE...

Build the index of each file: what one pass over it finds out, so that mounts
open at once. What is finished stays when the command is interrupted; the next
run does only what is missing or damaged, or has changed.

Options:
    --beside             keep each index beside its file, for all its readers
    --index-dir DIR      keep them in DIR (your cache folder otherwise)
    --threads N          decode N records at once (one a processor)
    --max-record SIZE    refuse records that inflate to more (1G)
    -q, --quiet          no progress, only errors
    --dump               instead: print what the indexes say of each record
    --plan BANK/COLUMN   instead: print the ranges of the files that a read of
                         the column needs
    --entries A:B        with --plan: of entries A to B, B excluded

--dump and --plan print a JSON object a line.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 a source is unreadable or
damaged, 5 the folder cannot be written, 130 interrupted.

    $ hipofs index run5042/*.hipo
    $ hipofs index --plan REC::Particle/px --entries 0:1000 run5042.hipo
    {"file":"run5042.hipo","record":0,"offset":2412,"length":6733140,...}
`

// indexing is one run of hipofs index.
type indexing struct {
	stdout, stderr io.Writer

	beside  bool
	chain   materialize.Options
	quiet   bool
	dump    bool
	plan    string
	entries materialize.Slice
}

func newIndex(stderr io.Writer) *cobra.Command {
	x := &indexing{stderr: stderr}
	cmd := &cobra.Command{
		Use:     "index [OPTIONS] SOURCE...",
		Short:   "build the index of each file",
		Long:    indexHelp,
		Args:    cobra.ArbitraryArgs,
		PreRunE: setFromEnvironment,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return failure(statusUsage, "which files are to be indexed? see %q", "hipofs help index")
			}
			x.stdout = cmd.OutOrStdout()
			return x.run(args)
		},
	}
	flags := cmd.Flags()
	flags.Func("max-record", "", size(&x.chain.MaxRecord))
	flags.Func("threads", "", threads(&x.chain.Threads))
	addIndexDir(flags, &x.chain.IndexDir)
	flags.BoolVar(&x.beside, "beside", false, "")
	flags.BoolVarP(&x.quiet, "quiet", "q", false, "")
	flags.BoolVar(&x.dump, "dump", false, "")
	flags.StringVar(&x.plan, "plan", "", "")
	addEntries(flags, &x.entries)
	return cmd
}

func (x *indexing) run(words []string) error {
	bank, column, ok := cutLast(x.plan, "/")
	if x.plan != "" && !ok {
		return failure(statusUsage, "--plan %s: want BANK/COLUMN, such as REC::Particle/px", x.plan)
	}
	files, err := sourceFiles(words, x.stderr)
	if err != nil {
		return err
	}
	if x.chain.IndexDir == "" && !x.beside {
		return failure(statusFailed, "there is no cache folder for you here; name one with --index-dir, or use --beside")
	}
	ctx, stop := untilSignal()
	defer stop()
	err = x.build(ctx, files)
	if err == nil && (x.dump || x.plan != "") {
		err = x.print(ctx, files, bank, column)
	}
	if errors.Is(err, context.Canceled) {
		return failure(statusInterrupted, "interrupted; what is finished stays")
	}
	return err
}

// build builds what is missing, with a word on each file that cannot be indexed.
func (x *indexing) build(ctx context.Context, files []string) error {
	bar := newProgress(x.stderr, files, x.quiet || x.dump || x.plan != "")
	first := 0 // status of the first that failed
	err := materialize.Index(ctx, files, materialize.IndexOptions{
		Dir: x.chain.IndexDir, Beside: x.beside, Threads: x.chain.Threads, MaxRecord: x.chain.MaxRecord,
		Progress: bar.add,
	}, func(r materialize.Indexed) {
		if r.Err == nil {
			bar.done()
			return
		}
		bar.say("hipofs: " + errorLine(r.Err))
		if first == 0 {
			first = indexStatus(r)
		}
	})
	bar.end()
	if err != nil {
		return err
	}
	if first != 0 {
		return &statusError{status: first}
	}
	return nil
}

// indexStatus tells a file that cannot be read from a folder that cannot be
// written.
func indexStatus(r materialize.Indexed) int {
	var pe *iofs.PathError
	switch {
	case !errors.As(r.Err, &pe):
		return status(r.Err)
	case pe.Path == r.File:
		return statusSource
	}
	return statusFolder
}

// print prints what the indexes say.
func (x *indexing) print(ctx context.Context, files []string, bank, column string) error {
	o := x.chain
	o.Index = materialize.IndexLazy
	if o.IndexDir == "" {
		o.IndexDir = os.DevNull // only those beside the files are there
	}
	chain, err := materialize.Open(ctx, files, o)
	if err != nil {
		return err
	}
	defer chain.Close()
	out := json.NewEncoder(x.stdout)
	out.SetEscapeHTML(false)
	if x.dump {
		return chain.RecordIndexes(ctx, func(r materialize.RecordIndex) error { return out.Encode(r) })
	}
	return chain.Plan(ctx, bank, column, x.entries.From, x.entries.To, func(r materialize.Range) error { return out.Encode(r) })
}

// cutLast cuts s at the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
