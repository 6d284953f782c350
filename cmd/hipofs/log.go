package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
)

// openLog is where the mount logs to: --log-file, or standard error as long as
// somebody sees that, which a terminal or the journal does. One event is one
// line, in which slog quotes what would break it or steer a terminal.
func (m *mount) openLog() (log *slog.Logger, closeLog func() error, err error) {
	if m.quiet {
		m.logLevel = slog.LevelError
	}
	o := &slog.HandlerOptions{Level: m.logLevel}
	nothing := func() error { return nil }
	switch {
	case m.logFile != "":
		m.log, err = os.OpenFile(m.logFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return nil, nil, err
		}
		return slog.New(slog.NewTextHandler(m.log, o)), m.log.Close, nil
	case isJournal(m.stderr):
		return slog.New(newJournal(m.stderr, o.Level)), nothing, nil
	case m.logsToStderr():
		return slog.New(slog.NewTextHandler(m.stderr, o)), nothing, nil
	}
	return slog.New(slog.DiscardHandler), nothing, nil
}

func (m *mount) logsToStderr() bool {
	return m.logFile == "" && (m.foreground || isJournal(m.stderr))
}

// isJournal says whether what is written to w goes to systemd's journal, as
// sd_journal_print(3) has it: $JOURNAL_STREAM names the device and the inode.
func isJournal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	if err != nil {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", sys.Dev, sys.Ino)
}

// journal writes lines as sd-daemon(3) wants them: after their priority, and
// without the time, which the journal has itself.
type journal struct {
	text slog.Handler // writes to line
	out  *journalOut
}

// journalOut is what all handlers of one log share.
type journalOut struct {
	mu   sync.Mutex
	line bytes.Buffer
	w    io.Writer
}

func newJournal(w io.Writer, level slog.Leveler) *journal {
	out := &journalOut{w: w}
	return &journal{out: out, text: slog.NewTextHandler(&out.line, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
				return slog.Attr{}
			}
			return a
		},
	})}
}

var _ = (slog.Handler)((*journal)(nil))

func (j *journal) Enabled(ctx context.Context, l slog.Level) bool { return j.text.Enabled(ctx, l) }

func (j *journal) Handle(ctx context.Context, r slog.Record) error {
	j.out.mu.Lock()
	defer j.out.mu.Unlock()
	j.out.line.Reset()
	fmt.Fprintf(&j.out.line, "<%d>", priority(r.Level))
	if err := j.text.Handle(ctx, r); err != nil {
		return err
	}
	_, err := j.out.w.Write(j.out.line.Bytes())
	return err
}

func (j *journal) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &journal{text: j.text.WithAttrs(attrs), out: j.out}
}

func (j *journal) WithGroup(name string) slog.Handler {
	return &journal{text: j.text.WithGroup(name), out: j.out}
}

// priority is syslog's: the lower, the more urgent.
func priority(l slog.Level) int {
	switch {
	case l >= slog.LevelError:
		return 3
	case l >= slog.LevelWarn:
		return 4
	case l >= slog.LevelInfo:
		return 6
	}
	return 7
}
