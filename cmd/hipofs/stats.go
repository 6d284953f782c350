package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hipofs/hipofs/fs"
)

const statsHelp = `Usage: hipofs stats [--watch] [--json] MOUNTPOINT

Tell what a mount is doing: what was read, decoded and served, what is kept in
memory, how far counting and prefetching are, and which processes wait for what.
The same is in MOUNTPOINT/.hipofs/stats.json, and for Prometheus in
MOUNTPOINT/.hipofs/metrics.

Options:
    --watch    again each second, with rates, until Ctrl-C
    --json     print the file stats.json

Exit status: 0 done, 1 failed, 2 wrong usage, 7 not a mount of hipofs.

    $ hipofs stats --watch /mnt/run
`

func newStats() *cobra.Command {
	var watch, asJSON bool
	cmd := &cobra.Command{
		Use:   "stats [--watch] [--json] MOUNTPOINT",
		Short: "tell what a mount is doing",
		Long:  statsHelp,
		Args:  usage(1, 1, "stats looks at one mount"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := findMount(args[0])
			if err != nil {
				return err
			}
			show := &statsView{given: args[0], path: filepath.Join(path, ".hipofs", "stats.json"), asJSON: asJSON, out: cmd.OutOrStdout()}
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if !watch {
				return show.next(ctx)
			}
			show.screen = !asJSON && isTerminal(show.out)
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			return show.watch(ctx, tick.C)
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "")
	cmd.Flags().BoolVar(&asJSON, "json", false, "")
	return cmd
}

// statsView shows the numbers of a mount, once or again and again.
type statsView struct {
	given  string // the mount point, as the user calls it
	path   string // of stats.json
	asJSON bool
	screen bool // out is a terminal, to be drawn on again
	out    io.Writer

	before *fs.Stats // what was shown last
}

// watch shows the numbers now and at each tick. Ctrl-C is how it ends.
func (v *statsView) watch(ctx context.Context, tick <-chan time.Time) error {
	if v.screen {
		fmt.Fprint(v.out, "\x1b[2J")
	}
	for {
		if err := v.next(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return nil
		}
	}
}

// next shows the numbers of now.
func (v *statsView) next(ctx context.Context) error {
	text, err := v.read(ctx)
	if err != nil || text == nil {
		return err
	}
	if v.asJSON {
		_, err := v.out.Write(text)
		return err
	}
	now := new(fs.Stats)
	if err := json.Unmarshal(text, now); err != nil {
		return fmt.Errorf("%s: %w", v.path, err)
	}
	table := statsTable(v.given, now, v.before)
	switch {
	case v.screen:
		// From the top, each line to its end, then all below: nothing flickers.
		table = "\x1b[H" + strings.ReplaceAll(table, "\n", "\x1b[K\n") + "\x1b[J"
	case v.before != nil:
		table = "\n" + table
	}
	v.before = now
	_, err = io.WriteString(v.out, table)
	return err
}

// read reads the file; nil if ctx ends, for a mount may hang.
func (v *statsView) read(ctx context.Context) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := os.ReadFile(v.path)
		done <- result{text, err}
	}()
	select {
	case r := <-done:
		switch {
		case errors.Is(r.err, syscall.ENOTCONN):
			return nil, failure(statusMountpoint, "%s: the mount here is dead; \"hipofs umount %s\" removes it", v.given, v.given)
		case errors.Is(r.err, os.ErrNotExist):
			return nil, failure(statusMountpoint, "%s: hipofs is not mounted here any more", v.given)
		}
		return r.text, r.err
	case <-ctx.Done():
		return nil, nil
	}
}

// statsTable is the numbers as people read them; with rates if there are
// earlier ones.
func statsTable(given string, now, before *fs.Stats) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: hipofs %s, process %d, mounted for %s\n\n",
		printable(given), printable(now.Version), now.PID, roundly(now.Time.Sub(now.Mounted)))
	var seconds float64
	if before != nil {
		seconds = now.Time.Sub(before.Time).Seconds()
	}
	line := func(label, value, rate string) {
		fmt.Fprintf(&b, "%s\n", strings.TrimRight(fmt.Sprintf("%-22s %14s %14s", label, value, rate), " "))
	}
	counter := func(label string, value func(*fs.Stats) float64, show func(float64) string) {
		rate := ""
		if seconds > 0 {
			rate = show((value(now)-value(before))/seconds) + "/s"
		}
		line(label, show(value(now)), rate)
	}
	number := func(v float64) string { return fmt.Sprintf("%.0f", v) }
	duration := func(v float64) string { return fmt.Sprintf("%.1f s", v) }

	counter("served to readers", func(s *fs.Stats) float64 { return float64(s.BytesServed) }, bytesText)
	counter("read from files", func(s *fs.Stats) float64 { return float64(s.BytesRead) }, bytesText)
	counter("inflated", func(s *fs.Stats) float64 { return float64(s.BytesInflated) }, bytesText)
	counter("records decoded", func(s *fs.Stats) float64 { return float64(s.RecordsDecoded) }, number)
	counter("streams decoded", func(s *fs.Stats) float64 { return float64(s.StreamsDecoded) }, number)
	counter("time in decodes", func(s *fs.Stats) float64 { return s.DecodeSeconds }, duration)
	counter("time readers waited", func(s *fs.Stats) float64 { return s.WaitSeconds }, duration)
	counter("found in memory", func(s *fs.Stats) float64 { return float64(s.CacheHits) }, number)
	counter("not found", func(s *fs.Stats) float64 { return float64(s.CacheMisses) }, number)
	counter("evicted", func(s *fs.Stats) float64 { return float64(s.CacheBytesEvicted) }, bytesText)
	line("columns in memory", bytesText(float64(now.CacheBytes)), "of "+bytesText(float64(now.CacheBudget)))
	line("resident memory", bytesText(float64(now.ResidentBytes)), "")
	line("decodes now", fmt.Sprint(now.DecodesInFlight), stalledText(now.DecodesStalled))
	line("open files", fmt.Sprint(now.OpenDescriptors), fmt.Sprintf("%d of them sources", now.OpenSources))
	line("goroutines", fmt.Sprint(now.Goroutines), "")
	line("errors", fmt.Sprint(now.Errors), "")
	if now.Errors > 0 {
		fmt.Fprintf(&b, "    %s says which\n", printable(filepath.Join(given, ".hipofs", "errors.json")))
	}
	fmt.Fprintf(&b, "\ncounting: %s\n", countingText(now))
	if now.Prefetch.State != "none" {
		fmt.Fprintf(&b, "prefetching: %s\n", prefetchText(now))
	}
	for i, w := range now.Waiting {
		if i == 0 {
			fmt.Fprintf(&b, "\n%8s %-15s %8s  %s\n", "PID", "COMMAND", "WAITS", "FOR")
		}
		if i == mostWaiters {
			fmt.Fprintf(&b, "         and %d more\n", len(now.Waiting)-i)
			break
		}
		what := w.For + " " + string(w.Bank)
		if w.Column != "" {
			what += "/" + string(w.Column)
		}
		if w.File != "" {
			what += " of " + string(w.File)
		}
		fmt.Fprintf(&b, "%8d %-15s %8s  %s\n", w.PID, printable(w.Command), roundly(now.Time.Sub(w.Since)), printable(what))
	}
	return b.String()
}

// mostWaiters is how many readers who wait are shown, at most.
const mostWaiters = 20

func stalledText(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d stalled", n)
}

func countingText(s *fs.Stats) string {
	c := &s.Counting
	text := fmt.Sprintf("%s, %d of %s", c.State, c.FilesDone, count(c.Files, "file", "files"))
	if c.State == "done" {
		return text
	}
	text += fmt.Sprintf(", %s of %s", bytesText(float64(c.BytesDone)), bytesText(float64(c.Bytes)))
	if c.BytesPerSecond > 0 {
		text += fmt.Sprintf(", %s/s", bytesText(c.BytesPerSecond))
	}
	if c.SecondsLeft != nil {
		text += fmt.Sprintf(", %s left", roundly(time.Duration(*c.SecondsLeft*float64(time.Second))))
	}
	return text
}

func prefetchText(s *fs.Stats) string {
	p := &s.Prefetch
	text := fmt.Sprintf("%s, %s, %s of %s", p.State, count(p.Columns, "column", "columns"), bytesText(float64(p.BytesDone)), bytesText(float64(p.Bytes)))
	if p.LeftOut > 0 {
		text += fmt.Sprintf("; %d left out, --memory has no room for them", p.LeftOut)
	}
	return text
}

// bytesText is a number of bytes as people read it, in units of 1000.
func bytesText(n float64) string {
	for _, unit := range []string{"B", "kB", "MB", "GB"} {
		if n < 999.95 {
			if unit == "B" {
				return fmt.Sprintf("%.0f B", n)
			}
			return fmt.Sprintf("%.1f %s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.1f TB", n)
}

// roundly is a time that people wait.
func roundly(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1fs", max(0, d.Seconds()))
	}
	return d.Round(time.Second).String()
}
