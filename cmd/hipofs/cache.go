package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hipofs/hipofs/materialize"
)

const cacheHelp = `Usage: hipofs cache ls [--json]
       hipofs cache prune --to SIZE | --gone | --all | --indexes
       hipofs cache verify

Look after the folder of columns that mounts with --cache-dir fill, and after
the folder of indexes. Mounts may use them meanwhile: what a program has open it
reads on, and a path that was handed out a moment ago stays.

    ls        list the columns, the one that was used last first
    prune     remove columns; what is needed again is made again
    verify    compare everything with its checksums, and remove what is bad

Options:
    --cache-dir DIR      the folder of columns, as of the mounts
    --index-dir DIR      the folder of indexes (your cache folder otherwise)
    --json               list as JSON, an object a line
    --to SIZE            remove those used least recently, down to SIZE
    --gone               remove those of files that are gone or have changed
    --all                remove all columns
    --indexes            remove all indexes

Exit status: 0 done, 1 failed, 2 wrong usage, 5 a folder is unusable, or
something in it was bad, 130 interrupted.

    $ hipofs cache ls --cache-dir /scratch/me/hipofs
    $ hipofs cache prune --gone --to 10G --cache-dir /scratch/me/hipofs
`

// caching is one run of hipofs cache.
type caching struct {
	stdout, stderr io.Writer

	dir      string // of columns; "": none was named
	indexDir string
	asJSON   bool
	to       int64 // 0: not asked for
	gone     bool
	all      bool
	indexes  bool
}

func newCache(stderr io.Writer) *cobra.Command {
	c := &caching{stderr: stderr}
	cmd := &cobra.Command{
		Use:       "cache ls|prune|verify",
		Short:     "look after the cache folders",
		Long:      cacheHelp,
		ValidArgs: []string{"ls", "prune", "verify"},
		Args:      usage(1, 1, "cache wants to know what to do: ls, prune or verify"),
		PreRunE:   setFromEnvironment,
		RunE: func(cmd *cobra.Command, args []string) error {
			c.stdout = cmd.OutOrStdout()
			return c.run(args[0])
		},
	}
	flags := cmd.Flags()
	addCacheDir(flags, &c.dir)
	addIndexDir(flags, &c.indexDir)
	flags.BoolVar(&c.asJSON, "json", false, "")
	flags.Func("to", "", size(&c.to))
	flags.BoolVar(&c.gone, "gone", false, "")
	flags.BoolVar(&c.all, "all", false, "")
	flags.BoolVar(&c.indexes, "indexes", false, "")
	return cmd
}

func (c *caching) run(what string) error {
	do := map[string]func(*materialize.Cache, []materialize.CachedColumn, []materialize.CachedIndex) error{
		"ls": c.list, "prune": c.prune, "verify": c.verify,
	}[what]
	columns := c.to > 0 || c.gone || c.all
	switch {
	case do == nil:
		return failure(statusUsage, "cache %s: want ls, prune or verify; see %q", what, "hipofs help cache")
	case what != "prune" && (columns || c.indexes):
		return failure(statusUsage, "--to, --gone, --all and --indexes are for hipofs cache prune")
	case what == "prune" && !columns && !c.indexes:
		return failure(statusUsage, "what is to go? --to SIZE, --gone, --all or --indexes; see %q", "hipofs help cache")
	case columns && c.dir == "":
		return failure(statusUsage, "of which folder? name it with --cache-dir")
	}
	var cache *materialize.Cache
	var list []materialize.CachedColumn
	var err error
	if c.dir != "" {
		if cache, err = materialize.OpenCache(c.dir); err != nil {
			return err
		}
		defer cache.Close()
		if list, err = cache.Columns(); err != nil {
			return err
		}
	}
	var indexes []materialize.CachedIndex
	if c.indexDir != "" {
		if indexes, err = materialize.CachedIndexes(c.indexDir); err != nil {
			return failure(statusFolder, "%s", errorLine(err))
		}
	}
	return do(cache, list, indexes)
}

func (c *caching) list(_ *materialize.Cache, columns []materialize.CachedColumn, indexes []materialize.CachedIndex) error {
	if c.asJSON {
		out := json.NewEncoder(c.stdout)
		out.SetEscapeHTML(false)
		for _, col := range columns {
			if err := out.Encode(col); err != nil {
				return err
			}
		}
		for _, x := range indexes {
			if err := out.Encode(x); err != nil {
				return err
			}
		}
		return nil
	}
	var bytes int64
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	if len(columns) > 0 {
		fmt.Fprintln(w, "COLUMN\tSIZE\tUSED\tOF")
	}
	for _, col := range columns {
		bytes += col.Bytes
		of := "?"
		if len(col.Sources) > 0 {
			of = filepath.Base(col.Sources[0])
		}
		if n := len(col.Sources); n > 1 {
			of += fmt.Sprintf(" and %d more", n-1)
		}
		if col.View != "whole" && col.View != "" {
			of += " (" + col.View + ")"
		}
		if col.Gone != "" {
			of += "; " + col.Gone
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", printable(col.Column), bytesText(float64(col.Size)), col.Used.Format("2006-01-02 15:04"), printable(of))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if c.dir != "" {
		fmt.Fprintf(c.stdout, "%s: %s, %s on disk\n", printable(c.dir), count(int64(len(columns)), "column", "columns"), bytesText(float64(bytes)))
	}
	if c.indexDir != "" {
		var all int64
		for _, x := range indexes {
			all += x.Size
		}
		fmt.Fprintf(c.stdout, "%s: %s, %s\n", printable(c.indexDir), count(int64(len(indexes)), "index", "indexes"), bytesText(float64(all)))
	}
	return nil
}

func (c *caching) prune(cache *materialize.Cache, columns []materialize.CachedColumn, indexes []materialize.CachedIndex) error {
	var removed, used int64
	var freed, kept int64         // bytes
	for _, col := range columns { // the one that was used last first
		stays := !c.all && (!c.gone || col.Gone == "") && (c.to == 0 || kept+col.Bytes <= c.to)
		if !stays {
			ok, err := cache.Remove(col)
			if err != nil {
				return failure(statusFolder, "%s", errorLine(err))
			}
			if ok {
				removed++
				freed += col.Bytes
				continue
			}
			used++
		}
		kept += col.Bytes
	}
	if c.dir != "" {
		line := fmt.Sprintf("%s removed, %s; %s left", count(removed, "column", "columns"), bytesText(float64(freed)), bytesText(float64(kept)))
		if used > 0 {
			line += fmt.Sprintf("; %s in use", count(used, "column is", "columns are"))
		}
		fmt.Fprintln(c.stdout, line)
	}
	if !c.indexes {
		return nil
	}
	for _, x := range indexes {
		if err := os.Remove(x.File); err != nil && !errors.Is(err, os.ErrNotExist) {
			return failure(statusFolder, "%s", errorLine(err))
		}
	}
	fmt.Fprintf(c.stdout, "%s removed\n", count(int64(len(indexes)), "index", "indexes"))
	return nil
}

func (c *caching) verify(cache *materialize.Cache, columns []materialize.CachedColumn, indexes []materialize.CachedIndex) error {
	ctx, stop := untilSignal()
	defer stop()
	bad := 0
	told := func(file string, wrong error) {
		bad++
		fmt.Fprintln(c.stderr, "hipofs: "+printable(fmt.Sprintf("%s: %v; removed, and made again when it is needed", file, wrong)))
	}
	for _, col := range columns {
		wrong, err := cache.Verify(ctx, col)
		switch {
		case ctx.Err() != nil:
			return interrupted()
		case err != nil:
			return failure(statusFolder, "%s", errorLine(err))
		case wrong != nil:
			told(col.File, wrong)
		}
	}
	for _, x := range indexes {
		if ctx.Err() != nil {
			return interrupted()
		}
		if wrong := x.Verify(); wrong != nil {
			if err := os.Remove(x.File); err != nil {
				return failure(statusFolder, "%s", errorLine(err))
			}
			told(x.File, wrong)
		}
	}
	fmt.Fprintf(c.stdout, "%s and %s compared, %d bad\n",
		count(int64(len(columns)), "column", "columns"), count(int64(len(indexes)), "index", "indexes"), bad)
	if bad > 0 {
		return &statusError{status: statusFolder}
	}
	return nil
}
