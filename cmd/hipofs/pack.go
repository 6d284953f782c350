package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/hipofs/hipofs/materialize"
)

const packHelp = `Usage: hipofs pack [OPTIONS] DIR -o OUT.hipo

Make a HIPO file of a folder in the shape of a mount: a folder for each bank,
with offsets.npy (int64, entries + 1 numbers, the first 0) and a .npy file for
each column, all with as many rows as the last offset says. schema.json, as a
mount has it, gives name, ids and the order of columns; without it the bank gets
an id of its own. A copy of a mount (cp -r) becomes a file with the same columns.

Options:
    -o, --output FILE    the new file
    --onto SOURCE        add the banks to a copy of a chain, entry by entry; may
                         be given several times
    --banks PATTERN,...  with --onto: keep only these banks of the chain
    --codec CODEC        none, lz4, lz4hc, gzip, zstd or zstd1 to zstd9, whole or
                         with +perbank or +percolumn (lz4; that of the chain)
    --record-size SIZE   events in a record, bytes (8M)
    --split SIZE         files of at most SIZE: OUT.0000.hipo, OUT.0001.hipo, ...
    --force              replace files that exist, but no source
    --on-error fail|skip with --onto: leave out unreadable files and damaged
                         records: skip
    --threads N          work on N records at once (one a processor)
    --memory SIZE        keep up to SIZE bytes of columns in memory
    --max-record SIZE    refuse records that inflate to more (1G)
    --index-dir DIR      keep indexes in DIR (your cache folder otherwise)
    --no-index           neither read nor write an index
    -q, --quiet          no progress, only errors

Exit status: 0 done, 1 failed, 2 wrong usage, 3 a source is unreadable or
damaged, 4 dictionaries in conflict, 130 interrupted.

    $ hipofs pack --onto run5042.hipo analysis -o tagged.hipo
`

// packing is one run of hipofs pack.
type packing struct {
	stderr io.Writer
	chain  materialize.Options
	out    materialize.SkimOptions
	onto   []string
	quiet  bool
}

func newPack(stderr io.Writer) *cobra.Command {
	x := &packing{stderr: stderr}
	cmd := &cobra.Command{
		Use:     "pack [OPTIONS] DIR -o OUT.hipo",
		Short:   "make a HIPO file of a folder of .npy files",
		Long:    packHelp,
		Args:    cobra.ArbitraryArgs,
		PreRunE: setFromEnvironment,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return failure(statusUsage, "which folder is to be packed? see %q", "hipofs help pack")
			case x.out.Out == "":
				return failure(statusUsage, "where to? name the new file with -o OUT.hipo")
			}
			return x.run(args[0])
		},
	}
	flags := cmd.Flags()
	addChainFlags(flags, &x.chain)
	addOutFlags(flags, &x.out)
	flags.StringArrayVar(&x.onto, "onto", nil, "")
	flags.BoolVarP(&x.quiet, "quiet", "q", false, "")
	return cmd
}

func (x *packing) run(dir string) error {
	ctx, stop := untilSignal()
	defer stop()
	folder, err := materialize.OpenFolder(dir)
	if err != nil {
		return failure(statusSource, "%s", errorLine(err))
	}
	files := folder.Files()
	var chain *materialize.Chain
	if len(x.onto) > 0 {
		if files, err = sourceFiles(x.onto, x.stderr); err != nil {
			return err
		}
		x.chain.Index = materialize.IndexLazy
		if chain, err = openChain(ctx, files, x.chain); err != nil {
			return err
		}
		defer chain.Close()
		tellLeftOut(x.stderr, chain)
	}
	x.out.Threads = x.chain.Threads
	return write(ctx, x.stderr, files, x.quiet, x.out, func(o materialize.SkimOptions) (*materialize.Skimmed, error) {
		return folder.Pack(ctx, chain, o)
	})
}
