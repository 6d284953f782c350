package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	iofs "io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hipofs/hipofs/materialize"
)

const reportHelp = `Usage: hipofs report [OPTIONS] SOURCE... -o run.html

Write one page about HIPO files, read as one chain: how often each bank has
rows, minimum, maximum, mean and a histogram of columns, the sizes of records,
and what is damaged. The page needs no server and no network.

Options:
    -o, --output FILE    the page
    --force              replace FILE if it is there
    --columns PATTERN,...  look at these columns, such as 'REC::Particle/p*'
                         (those of banks *::Event and *::Particle)
    --banks PATTERN,...  list only these banks, such as 'REC::*,MC::Particle'
    --entries A:B        of entries A to B of the chain, B excluded
    --require BANK+...   of entries with rows in each of these banks
    --tag N+...          of entries with one of these event tags
    --record-tag N+...   of entries of records with one of these tags
    --on-error fail|skip leave out unreadable files and damaged records: skip
    --threads N          decode N records at once (one a processor)
    --memory SIZE        keep up to SIZE bytes of columns in memory
    --max-record SIZE    refuse records that inflate to more (1G)
    --index-dir DIR      keep indexes in DIR (your cache folder otherwise)
    --no-index           neither read nor write an index
    -q, --quiet          no progress, only errors

Exit status: 0 done, 1 failed, 2 wrong usage, 3 a source is unreadable or
damaged (the page says so), 4 dictionaries in conflict, 5 an index folder is
unusable, 130 interrupted.

    $ hipofs report run5042/*.hipo -o run5042.html
    $ hipofs report run5042.hipo -o q.html --columns 'REC::Calorimeter/*'
`

// reporting is one run of hipofs report.
type reporting struct {
	stderr  io.Writer
	chain   materialize.Options
	out     string
	force   bool
	columns []string
	quiet   bool
}

func newReport(stderr io.Writer) *cobra.Command {
	x := &reporting{stderr: stderr}
	cmd := &cobra.Command{
		Use:     "report [OPTIONS] SOURCE... -o run.html",
		Short:   "write a page about files",
		Long:    reportHelp,
		Args:    cobra.ArbitraryArgs,
		PreRunE: setFromEnvironment,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return failure(statusUsage, "which files is the page to be about? see %q", "hipofs help report")
			case x.out == "":
				return failure(statusUsage, "where is the page to be written? say -o run.html")
			}
			return x.run(args)
		},
	}
	flags := cmd.Flags()
	addChainFlags(flags, &x.chain)
	addViewFilter(flags, &x.chain)
	flags.StringVarP(&x.out, "output", "o", "", "")
	flags.BoolVar(&x.force, "force", false, "")
	flags.BoolVarP(&x.quiet, "quiet", "q", false, "")
	flags.Func("columns", "", patterns(&x.columns, materialize.CheckPrefetch))
	return cmd
}

func (x *reporting) run(words []string) error {
	files, err := sourceFiles(words, x.stderr)
	if err != nil {
		return err
	}
	if err := x.free(); err != nil {
		return err
	}
	ctx, stop := untilSignal()
	defer stop()
	bar := newProgress(x.stderr, files, x.quiet)
	x.chain.Progress = bar.add
	p, err := x.look(ctx, files)
	bar.quiet = true // the page says it all
	bar.end()
	if errors.Is(err, context.Canceled) {
		return failure(statusInterrupted, "interrupted; %s is not there", x.out)
	}
	if err != nil {
		return err
	}
	var html bytes.Buffer
	if err := reportTemplate.Execute(&html, p); err != nil {
		return err
	}
	if err := x.write(html.Bytes()); err != nil {
		return err
	}
	if len(p.Damage) > 0 {
		return failure(statusSource, "%s; %s tells of the rest", p.Damage[0], x.out)
	}
	return nil
}

// look opens the files, and finds out what the page says.
func (x *reporting) look(ctx context.Context, files []string) (*page, error) {
	chain, err := openChain(ctx, files, x.chain)
	if err != nil {
		return nil, err
	}
	defer chain.Close()
	tellLeftOut(x.stderr, chain)
	return x.page(ctx, chain)
}

// free makes sure that nothing is in the way of the page.
func (x *reporting) free() error {
	if _, err := os.Lstat(x.out); err == nil && !x.force {
		return failure(statusFailed, "%s is there already; choose another name, or say --force", x.out)
	}
	return nil
}

// write puts the page in its place, whole or not at all.
func (x *reporting) write(html []byte) error {
	f, err := os.CreateTemp(filepath.Dir(x.out), ".hipofs-report-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(html)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	if x.force {
		return os.Rename(f.Name(), x.out)
	}
	err = os.Link(f.Name(), x.out) // which replaces nothing
	if errors.Is(err, iofs.ErrExist) {
		return x.free()
	}
	if err != nil { // a file system without links
		if err := x.free(); err != nil {
			return err
		}
		return os.Rename(f.Name(), x.out)
	}
	return nil
}

//go:embed report.html
var reportHTML string

var reportTemplate = template.Must(template.New("report").Parse(reportHTML))

// page is what the template is filled with.
type page struct {
	Title, Entries, Records, Size, Version string
	Selection                              string // options that leave entries out
	Damage                                 []string
	Banks                                  []pageBank
	Empty                                  int
	Columns                                []pageColumn
	Files                                  []pageFile
}

type pageBank struct {
	Name, ID, Rows, Entries, Mean, Most, Size string
	Percent                                   float64
}

type pageColumn struct {
	Name, Type, Count, Low, High, Min, Max, Mean string
	Always                                       bool // all values are Min
	NaNs, Infinite                               int64
	Bars                                         []bar
	Span                                         int
}

type pageFile struct {
	Name, Size, Codecs, Range string
	Records                   int
	Entries, First            int64
	Bars                      []bar
	Span                      int
}

// bar is one of a chart that is 100 high, each 1 wide.
type bar struct {
	X         int
	Y, Height float64
	Label     string
}

func (x *reporting) page(ctx context.Context, chain *materialize.Chain) (*page, error) {
	view := chain.View()
	infos := view.Files()
	p := &page{
		Title:     titleOf(infos),
		Version:   programVersion(),
		Selection: printable(strings.Join(filterWords(*x.chain.Entries, &x.chain.Where), " ")),
	}
	entries, err := view.Count(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	p.Entries = count(entries, "event", "events")
	if err != nil {
		p.damaged(err)
		p.Entries = "an unknown number of events"
	}
	records := view.Records() // which a view knows when it has been counted
	p.Records = count(len(records), "record", "records")
	if err := x.addBanks(ctx, p, view, entries); err != nil {
		return nil, err
	}
	for _, f := range chain.Files() {
		if f.LeftOut != "" {
			p.damaged(errors.New(f.LeftOut))
		}
	}
	p.addFiles(infos, records)
	return p, nil
}

// titleOf names the files: the first and the last.
func titleOf(infos []materialize.FileInfo) string {
	title := filepath.Base(infos[0].Name)
	if len(infos) > 1 {
		title += " to " + filepath.Base(infos[len(infos)-1].Name)
	}
	return printable(title)
}

// damaged has the page tell of an error, once.
func (p *page) damaged(err error) {
	if line := errorLine(err); !slices.Contains(p.Damage, line) {
		p.Damage = append(p.Damage, line)
	}
}

// addBanks adds the banks of a view of so many entries, and their columns. Its
// error is that of ctx; others are for the page to tell.
func (x *reporting) addBanks(ctx context.Context, p *page, view *materialize.View, entries int64) error {
	banks := view.Banks()
	nodes, err := view.Nodes(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		p.damaged(err)
	}
	for i, b := range append(banks[:len(banks):len(banks)], nodes...) {
		l, err := list(ctx, b, i >= len(banks))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			p.damaged(err)
		} else if l.Rows == 0 {
			p.Empty++
			continue
		}
		p.Banks = append(p.Banks, l.onPage(entries))
		if l.listedRows == nil {
			continue
		}
		if err := x.addColumns(ctx, p, b, l.Folder); err != nil {
			return err
		}
	}
	return nil
}

// onPage is the bank's line on a page about so many entries.
func (l *listed) onPage(entries int64) pageBank {
	c := l.cells()
	row := pageBank{Name: c[0], ID: c[1], Rows: c[3], Entries: c[4], Mean: c[5], Most: c[6], Size: c[7]}
	if l.listedRows != nil && entries > 0 {
		row.Percent = 100 * float64(l.Entries) / float64(entries)
	}
	return row
}

// addColumns adds the columns of a bank that are to be looked at.
func (x *reporting) addColumns(ctx context.Context, p *page, b *materialize.Bank, folder string) error {
	for _, col := range b.Columns {
		if !x.wants(folder, col.Name) {
			continue
		}
		s, err := col.Summarize(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			p.damaged(err)
			continue
		}
		p.Columns = append(p.Columns, summarized(folder, listedColumn{col.Name, col.Type, col.Length, col.Dtype}, s))
	}
	return nil
}

// addFiles adds the files, whose records follow one another.
func (p *page) addFiles(infos []materialize.FileInfo, records []materialize.RecordInfo) {
	var size int64
	for _, f := range infos {
		size += f.Size
		n := 0
		for n < len(records) && records[n].File == f.Name && (n == 0 || records[n].Record > records[n-1].Record) {
			n++
		}
		p.Files = append(p.Files, described(f, records[:n]))
		records = records[n:]
	}
	p.Size = sizeText(size)
}

// wants reports whether a column is to be looked at.
func (x *reporting) wants(bank, column string) bool {
	if len(x.columns) == 0 {
		return strings.HasSuffix(bank, "::Event") || strings.HasSuffix(bank, "::Particle")
	}
	for _, pattern := range x.columns {
		b, c, ok := cutLast(pattern, "/")
		if !ok {
			b, c = pattern, "*"
		}
		inBank, _ := path.Match(b, bank)
		inColumn, _ := path.Match(c, column)
		if inBank && inColumn {
			return true
		}
	}
	return false
}

// mostBars is how many bars a chart has at most.
const mostBars = 64

func summarized(bank string, c listedColumn, s *materialize.Summary) pageColumn {
	col := pageColumn{
		Name: printable(bank + "/" + c.Name), Type: columnType(c), Count: fmt.Sprint(s.Count),
		NaNs: s.NaNs, Infinite: s.Infinite,
	}
	if s.Finite() == 0 {
		return col
	}
	col.Min, col.Max, col.Mean = number(s.Min), number(s.Max), number(s.Mean)
	if s.Min == s.Max {
		col.Always = true
		return col
	}
	b := &s.Bins
	first := int((s.Min - b.From) / b.Width)
	last := int((s.Max - b.From) / b.Width)
	step := (last - first + mostBars) / mostBars
	var counts []int64
	for i := first; i <= last; i += step {
		var n int64
		for j := i; j < min(i+step, len(b.Counts)); j++ {
			n += b.Counts[j]
		}
		counts = append(counts, n)
	}
	at := func(i int) float64 { return b.From + float64(first+i*step)*b.Width }
	col.Bars = bars(counts, func(i int, n int64) string {
		return fmt.Sprintf("%s to %s: %d", number(at(i)), number(at(i+1)), n)
	})
	col.Span, col.Low, col.High = len(counts), number(at(0)), number(at(len(counts)))
	return col
}

// number is a value as a reader of a page wants it.
func number(x float64) string {
	if x == math.Trunc(x) && math.Abs(x) < 1e15 {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return strconv.FormatFloat(x, 'g', 5, 64)
}

// bars makes a chart. What is there is seen, however little it is.
func bars(counts []int64, label func(i int, n int64) string) []bar {
	var most int64
	for _, n := range counts {
		most = max(most, n)
	}
	all := []bar{}
	for i, n := range counts {
		if n == 0 {
			continue
		}
		h := max(1.5, 96*float64(n)/float64(most))
		all = append(all, bar{i, 100 - h, h, label(i, n)})
	}
	return all
}

// described is a file, with the sizes of its records: the mean of as many as
// share a bar.
func described(f materialize.FileInfo, records []materialize.RecordInfo) pageFile {
	p := pageFile{Name: printable(f.Name), Size: sizeText(f.Size), Records: f.Records, Entries: f.Entries, First: f.First}
	if len(records) == 0 {
		return p
	}
	codecs := map[string]bool{}
	step := (len(records) + mostBars - 1) / mostBars
	var sizes []int64
	low, high := records[0].Length, records[0].Length
	for i, r := range records {
		if name := r.Codec(); !codecs[name] {
			codecs[name] = true
			p.Codecs += ", " + name
		}
		if i%step == 0 {
			sizes = append(sizes, 0)
		}
		sizes[len(sizes)-1] += r.Length / int64(min(step, len(records)-i/step*step))
		low, high = min(low, r.Length), max(high, r.Length)
	}
	p.Codecs = strings.TrimPrefix(p.Codecs, ", ")
	p.Range = sizeText(low)
	if low != high {
		p.Range += " to " + sizeText(high)
	}
	p.Span = len(sizes)
	p.Bars = bars(sizes, func(i int, n int64) string { return fmt.Sprintf("record %d: %s", i*step, sizeText(n)) })
	return p
}
