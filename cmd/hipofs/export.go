package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hipofs/hipofs/fs"
	"github.com/hipofs/hipofs/materialize"
)

const exportHelp = `Usage: hipofs export [OPTIONS] SOURCE... DIR

Write what a mount of HIPO files, read as one chain, would show to a folder: one
for each bank, with its columns as .npy files, offsets.npy, the computed columns
(@entry.npy, ...), schema.json and form.json. Every record is read once; no FUSE
is needed. Files get their names when all are whole. An export that was
interrupted goes on where it was when it is started again; one that is there
already gets what is missing of it.

Options:
    --format FORMAT      npy, or one file for each bank: arrow (as in a mount),
                         parquet (a row for each entry, of lists), csv (a line
                         for each row)
    --compression HOW    of parquet: zstd, snappy or none (zstd)
    --banks PATTERN,...  only these banks; 'GROUP.ITEM' is a structure that no
                         dictionary declares
    --columns PATTERN,...  only these columns, such as 'p?' (of every bank) or
                         'REC::Particle/p*', with the offsets of their banks
    --entries A:B        entries A to B of the chain, B excluded
    --require BANK+...   entries with rows in each of these banks
    --tag N+...          entries with one of these event tags
    --record-tag N+...   entries of records with one of these tags
    --force              replace files that are there, also another export
    --names colons|dot   folders are called REC::Particle or REC.Particle
    --on-error fail|skip leave out unreadable files and damaged records: skip
    --threads N          work on N records at once (one a processor)
    --memory SIZE        decode in up to half of SIZE bytes of memory
    --max-record SIZE    refuse records that inflate to more (1G)
    --index-dir DIR      look for indexes in DIR (your cache folder otherwise)
    --no-index           use no index
    -q, --quiet          no progress, only errors

Exit status: 0 done, 1 failed, 2 wrong usage, 3 a source is unreadable or
damaged (a bank that is damaged alone is left out), 4 dictionaries in conflict,
130 interrupted.

    $ hipofs export run5042/*.hipo columns --banks 'REC::*'
    hipofs: columns: 400000 entries, 9 banks, 178 files, 1250.3 MB
`

// exportation is one run of hipofs export.
type exportation struct {
	stderr  io.Writer
	chain   materialize.Options
	export  materialize.ExportOptions
	fs      fs.Options
	columns []string
	quiet   bool
}

func newExport(stderr io.Writer) *cobra.Command {
	x := &exportation{stderr: stderr}
	cmd := &cobra.Command{
		Use:     "export [OPTIONS] SOURCE... DIR",
		Short:   "write banks as files to a folder",
		Long:    exportHelp,
		Args:    cobra.ArbitraryArgs,
		PreRunE: setFromEnvironment,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch last := len(args) - 1; {
			case last < 0:
				return failure(statusUsage, "which files are to be exported, and where to? see %q", "hipofs help export")
			case last == 0, isFile(args[last]):
				return failure(statusUsage, "where to? %s is the last word; name a folder after the files", args[last])
			default:
				x.export.Dir = args[last]
				return x.run(args[:last])
			}
		},
	}
	flags := cmd.Flags()
	addChainFlags(flags, &x.chain)
	addFilter(flags, &x.export.Entries, &x.export.Where)
	addNames(flags, &x.fs.DotNames)
	flags.Func("columns", "", patterns(&x.columns, materialize.CheckExportColumns))
	x.export.Format = materialize.ExportNpy
	flags.Func("format", "", func(s string) error {
		if x.export.Format = materialize.ExportFormat(s); !slices.Contains(materialize.ExportFormats, x.export.Format) {
			return fmt.Errorf("want one of %s", joined(materialize.ExportFormats))
		}
		return nil
	})
	x.export.Compression = "zstd"
	flags.Func("compression", "", func(s string) error {
		if x.export.Compression = s; s != "zstd" && s != "snappy" && s != "none" {
			return errors.New("want zstd, snappy or none")
		}
		return nil
	})
	flags.BoolVar(&x.export.Force, "force", false, "")
	flags.BoolVarP(&x.quiet, "quiet", "q", false, "")
	return cmd
}

func joined(formats []materialize.ExportFormat) string {
	words := make([]string, len(formats))
	for i, f := range formats {
		words[i] = string(f)
	}
	return strings.Join(words, ", ")
}

func isFile(name string) bool {
	fi, err := os.Stat(name)
	return err == nil && !fi.IsDir()
}

func (x *exportation) run(words []string) error {
	files, err := sourceFiles(words, x.stderr)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal()
	defer stop()
	x.chain.Index = materialize.IndexLazy
	chain, err := openChain(ctx, files, x.chain)
	if err != nil {
		return err
	}
	defer chain.Close()
	if x.export.Format == materialize.ExportParquet { // of which every bank keeps a part of its file in memory
		limitMemory(chain.Stats().CacheBudget)
	}
	tellLeftOut(x.stderr, chain)
	if err := x.prepare(chain); err != nil {
		return err
	}
	bar := newProgress(x.stderr, files, x.quiet)
	x.export.Progress = bar.add
	made, err := chain.Export(ctx, x.export)
	if err == nil {
		for range files {
			bar.done()
		}
	}
	bar.quiet = bar.quiet || err != nil || made.Written == 0
	bar.end()
	if err != nil {
		return x.failed(ctx, err)
	}
	return x.tell(made)
}

// prepare says what is exported, by which names.
func (x *exportation) prepare(chain *materialize.Chain) error {
	tree := fs.Export(chain, x.fs, x.export.Format, x.columns)
	o := &x.export
	o.Threads = x.chain.Threads
	o.Banks, o.Node = tree.Banks(), tree.Node
	if !slices.ContainsFunc(o.Banks, func(b materialize.ExportBank) bool { return b.Bank != nil }) && len(x.columns) > 0 {
		return failure(statusUsage, "no column matches --columns %s; \"hipofs ls --columns\" lists them", strings.Join(x.columns, ","))
	}
	o.Words = x.words()
	return nil
}

// words are the options that decide what the files hold, in one order.
func (x *exportation) words() []string {
	o := &x.export
	words := []string{"--format=" + string(o.Format)}
	add := func(option, value string, given bool) {
		if given {
			words = append(words, "--"+option+"="+value)
		}
	}
	add("compression", o.Compression, o.Format == materialize.ExportParquet)
	add("banks", strings.Join(x.chain.Banks, ","), len(x.chain.Banks) > 0)
	add("columns", strings.Join(x.columns, ","), len(x.columns) > 0)
	words = append(words, filterWords(o.Entries, &o.Where)...)
	add("names", "dot", x.fs.DotNames)
	add("on-error", "skip", x.chain.Skip)
	return words
}

// failed gives what went wrong its exit status.
func (x *exportation) failed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil && x.export.Format == materialize.ExportNpy:
		return failure(statusInterrupted, "interrupted; started again, it goes on")
	case ctx.Err() != nil:
		return failure(statusInterrupted, "interrupted; nothing is in %s", x.export.Dir)
	}
	var input *materialize.InputError
	if errors.As(err, &input) {
		return outError(ctx, err, x.export.Dir)
	}
	return err
}

// tell says what is there now, and what is not.
func (x *exportation) tell(made *materialize.Exported) error {
	if !x.quiet {
		line := fmt.Sprintf("%s, %s, %s", count(made.Entries, "entry", "entries"), count(int64(made.Banks), "bank", "banks"),
			count(int64(made.Files), "file", "files"))
		switch made.Written {
		case 0:
			line += ", all there already"
		case made.Files:
			line += fmt.Sprintf(", %.1f MB", float64(made.Bytes)/1e6)
		default:
			line += fmt.Sprintf(", of which %d were missing, %.1f MB", made.Written, float64(made.Bytes)/1e6)
		}
		fmt.Fprintf(x.stderr, "hipofs: %s: %s\n", printable(x.export.Dir), line)
	}
	for _, fault := range made.Faults {
		fmt.Fprintf(x.stderr, "hipofs: %s; left out\n", errorLine(fault))
	}
	if len(made.Faults) > 0 {
		return &statusError{status: statusSource}
	}
	return nil
}
