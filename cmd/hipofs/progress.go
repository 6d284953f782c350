package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/materialize"
)

// progress shows how far long work over files is: a bar with bytes, rate and
// time left on a terminal, elsewhere a line now and then. It is safe for
// concurrent use.
type progress struct {
	bars *mpb.Progress // nil: no terminal
	bar  *mpb.Bar

	mu    sync.Mutex
	out   io.Writer
	quiet bool
	total int64
	open  bool // there is more, on servers, which is not asked how much
	bytes int64
	files int
	of    int
	began time.Time
	next  time.Time // of the next line
}

// lineEvery is how often work tells a log file that it goes on.
const lineEvery = 10 * time.Second

func newProgress(out io.Writer, files []string, quiet bool) *progress {
	p := &progress{out: out, quiet: quiet, of: len(files), began: time.Now()}
	p.next = p.began.Add(lineEvery)
	for _, name := range files {
		if materialize.IsRemote(name) {
			p.open = true
		} else if st, err := os.Stat(name); err == nil {
			p.total += st.Size()
		}
	}
	if !quiet && !p.open && isTerminal(out) {
		p.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(32))
		p.bar = p.bars.AddBar(p.total,
			mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.CountersKibiByte("% .1f of % .1f")),
			mpb.AppendDecorators(
				decor.AverageSpeed(decor.SizeB1024(0), "% .0f"),
				decor.Name(", "),
				decor.AverageETA(decor.ET_STYLE_GO),
				decor.Name(" left"),
			),
		)
	}
	return p
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), terminalState)
	return err == nil
}

// add counts bytes that have been worked through.
func (p *progress) add(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += bytes
	switch now := time.Now(); {
	case p.quiet:
	case p.bar != nil:
		p.bar.SetCurrent(min(p.bytes, p.total-1)) // the end is for end to tell
	case now.After(p.next):
		p.next = now.Add(lineEvery)
		p.line(now)
	}
}

// line tells where the work is. p.mu is held.
func (p *progress) line(now time.Time) {
	rate := float64(p.bytes) / now.Sub(p.began).Seconds()
	if p.open {
		fmt.Fprintf(p.out, "hipofs: %d of %d files, %.0f MB, %.0f MB/s\n", p.files, p.of, float64(p.bytes)/1e6, rate/1e6)
		return
	}
	fmt.Fprintf(p.out, "hipofs: %d of %d files, %.0f of %.0f MB, %.0f MB/s, %v left\n",
		p.files, p.of, float64(p.bytes)/1e6, float64(p.total)/1e6, rate/1e6,
		time.Duration(float64(p.total-p.bytes)/rate*1e9).Round(time.Second))
}

// done counts a file.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files++
}

// say prints a line of its own.
func (p *progress) say(line string) {
	if p.bars != nil {
		fmt.Fprintln(p.bars, line)
		return
	}
	fmt.Fprintln(p.out, line)
}

// end takes the bar away and sums up.
func (p *progress) end() {
	if p.bar != nil {
		p.bar.Abort(true)
		p.bars.Wait()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.quiet {
		took := time.Since(p.began)
		fmt.Fprintf(p.out, "hipofs: %d of %d files, %.0f MB in %.1f s\n", p.files, p.of, float64(p.bytes)/1e6, took.Seconds())
	}
}
