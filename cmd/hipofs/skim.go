package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hipofs/hipofs/hipo"
	"github.com/hipofs/hipofs/materialize"
)

const skimHelp = `Usage: hipofs skim [OPTIONS] SOURCE... -o OUT.hipo

Write entries and banks of HIPO files, read as one chain, to a new file. Order,
event tags and record tags stay. A record of which everything is taken is copied
as it is. OUT.hipo appears when it is whole, and replaces nothing unasked.

Options:
    -o, --output FILE    the new file
    --entries A:B        entries A to B of the chain, B excluded
    --require BANK+...   entries with rows in each of these banks
    --tag N+...          entries with one of these event tags
    --record-tag N+...   entries of records with one of these tags
    --banks PATTERN,...  only these banks; 'GROUP.ITEM' is a structure that no
                         dictionary declares
    --codec CODEC        none, lz4, lz4hc, gzip, zstd or zstd1 to zstd9, whole or
                         with +perbank or +percolumn (that of the source); every
                         HIPO library reads none, lz4 and lz4hc
    --record-size SIZE   events in a record, bytes (8M)
    --split SIZE         files of at most SIZE: OUT.0000.hipo, OUT.0001.hipo, ...
    --force              replace files that exist, but no source
    --on-error fail|skip leave out unreadable files and damaged records: skip
    --threads N          work on N records at once (one a processor)
    --memory SIZE        keep up to SIZE bytes of columns in memory
    --max-record SIZE    refuse records that inflate to more (1G)
    --index-dir DIR      keep indexes in DIR (your cache folder otherwise)
    --no-index           neither read nor write an index
    -q, --quiet          no progress, only errors

Exit status: 0 done, 1 failed, 2 wrong usage, 3 a source is unreadable or
damaged, 4 dictionaries in conflict, 130 interrupted.

    $ hipofs skim run5042/*.hipo --require REC::Particle --codec zstd -o out.hipo
    hipofs: out.hipo: 81213 entries, 43 records, 212.4 MB
`

// skimming is one run of hipofs skim.
type skimming struct {
	stderr io.Writer
	chain  materialize.Options
	skim   materialize.SkimOptions
	quiet  bool
}

func newSkim(stderr io.Writer) *cobra.Command {
	x := &skimming{stderr: stderr}
	cmd := &cobra.Command{
		Use:     "skim [OPTIONS] SOURCE... -o OUT.hipo",
		Short:   "write entries and banks to a new file",
		Long:    skimHelp,
		Args:    cobra.ArbitraryArgs,
		PreRunE: setFromEnvironment,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return failure(statusUsage, "which files are to be skimmed? see %q", "hipofs help skim")
			case x.skim.Out == "":
				return failure(statusUsage, "where to? name the new file with -o OUT.hipo")
			}
			return x.run(args)
		},
	}
	flags := cmd.Flags()
	addChainFlags(flags, &x.chain)
	addOutFlags(flags, &x.skim)
	addFilter(flags, &x.skim.Entries, &x.skim.Where)
	flags.BoolVarP(&x.quiet, "quiet", "q", false, "")
	return cmd
}

// addOutFlags adds the options that say what a new file is like.
func addOutFlags(flags *pflag.FlagSet, o *materialize.SkimOptions) {
	flags.StringVarP(&o.Out, "output", "o", "", "")
	flags.BoolVar(&o.Force, "force", false, "")
	flags.Func("split", "", size(&o.Split))
	flags.Func("codec", "", func(s string) error {
		codec, err := hipo.ParseCodec(s)
		o.Codec = &codec
		return err
	})
	flags.Func("record-size", "", func(s string) error {
		const most = 1 << 30
		if err := size(&o.RecordSize)(s); err != nil {
			return err
		}
		if o.RecordSize > most {
			return errors.New("want at most 1G: readers hold a record in memory")
		}
		return nil
	})
}

func (x *skimming) run(words []string) error {
	files, err := sourceFiles(words, x.stderr)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal()
	defer stop()
	x.chain.Index = materialize.IndexLazy
	x.skim.Threads = x.chain.Threads
	chain, err := openChain(ctx, files, x.chain)
	if err != nil {
		return err
	}
	defer chain.Close()
	tellLeftOut(x.stderr, chain)

	return write(ctx, x.stderr, files, x.quiet, x.skim, func(o materialize.SkimOptions) (*materialize.Skimmed, error) {
		return chain.Skim(ctx, o)
	})
}

// write has a new file made of files, with a progress bar, and says what it is.
func write(ctx context.Context, stderr io.Writer, files []string, quiet bool, o materialize.SkimOptions,
	make func(materialize.SkimOptions) (*materialize.Skimmed, error)) error {
	bar := newProgress(stderr, files, quiet)
	o.Progress = bar.add
	made, err := make(o)
	if err == nil {
		for range files {
			bar.done()
		}
	}
	bar.quiet = bar.quiet || err != nil
	bar.end()
	if err != nil {
		return outError(ctx, err, o.Out)
	}
	tellMade(stderr, made, quiet)
	return nil
}

// outError gives what went wrong while a new file was made its exit status: a
// source that cannot be read is not the same as a file that cannot be written.
func outError(ctx context.Context, err error, out string) error {
	var where *materialize.WhereError
	var dictionary *materialize.DictionaryError
	var input *materialize.InputError
	switch {
	case ctx.Err() != nil:
		return failure(statusInterrupted, "interrupted; %s is not there", out)
	case errors.As(err, &where):
		return failure(statusUsage, "%v", err)
	case errors.As(err, &dictionary):
		return err
	case errors.As(err, &input), errors.Is(err, materialize.ErrChanged):
		return failure(statusSource, "%s", errorLine(err))
	}
	return err
}

// tellMade says what was written.
func tellMade(w io.Writer, made *materialize.Skimmed, quiet bool) {
	for _, note := range made.Notes {
		fmt.Fprintln(w, "hipofs: "+printable(note))
	}
	if quiet {
		return
	}
	name := printable(made.Files[0])
	if n := len(made.Files); n > 1 {
		name = fmt.Sprintf("%s to %s", name, printable(made.Files[n-1]))
	}
	fmt.Fprintf(w, "hipofs: %s: %s, %s, %.1f MB\n", name, count(made.Entries, "entry", "entries"),
		count(made.Records, "record", "records"), float64(made.Bytes)/1e6)
}
