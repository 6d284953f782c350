package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hipofs/hipofs/fs"
	"github.com/hipofs/hipofs/materialize"
)

// sample is a mount's numbers seconds after 100 s.
func sample(seconds int) fs.Stats {
	mounted := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return fs.Stats{
		Version: "1.2.3", PID: 4711, Mounted: mounted, Time: mounted.Add(time.Duration(100+seconds) * time.Second),
		ResidentBytes: 50_000_000, OpenDescriptors: 12, Goroutines: 34,
		Stats: materialize.Stats{
			RecordsDecoded: int64(10 + 3*seconds), BytesServed: int64(1_234_567 * (1 + seconds)), CacheHits: 7,
			CacheBytes: 999_949, CacheBudget: 1_000_000_000, DecodeSeconds: 1.5 + float64(seconds), DecodesInFlight: 2, DecodesStalled: 1,
			OpenSources: 3, Files: 12, FilesCounted: 4, Errors: 1,
		},
		Progress: materialize.Progress{
			Counting: materialize.CountingProgress{State: "counting", Files: 12, FilesDone: 4, Bytes: 3e9, BytesDone: 1e9, BytesPerSecond: 2e8, SecondsLeft: new(10.0)},
			Prefetch: materialize.PrefetchProgress{State: "decoding", Columns: 1, LeftOut: 2, Bytes: 100, BytesDone: 50},
		},
		Waiting: []fs.Waiter{{PID: 99, Command: "py\x1b[31mthon", Bank: "A\x1b]0;B\x07", Column: "c\nd", For: "decoding", File: "f.hipo", Since: mounted.Add(90 * time.Second)}},
	}
}

func TestStatsTable(t *testing.T) {
	before, now := sample(0), sample(2)
	got := statsTable("/mnt/run", &now, &before)
	want := `/mnt/run: hipofs 1.2.3, process 4711, mounted for 1m42s

served to readers              3.7 MB       1.2 MB/s
read from files                   0 B          0 B/s
inflated                          0 B          0 B/s
records decoded                    16            3/s
streams decoded                     0            0/s
time in decodes                 3.5 s        1.0 s/s
time readers waited             0.0 s        0.0 s/s
found in memory                     7            0/s
not found                           0            0/s
evicted                           0 B          0 B/s
columns in memory            999.9 kB      of 1.0 GB
resident memory               50.0 MB
decodes now                         2      1 stalled
open files                         12 3 of them sources
goroutines                         34
errors                              1
    /mnt/run/.hipofs/errors.json says which

counting: counting, 4 of 12 files, 1.0 GB of 3.0 GB, 200.0 MB/s, 10s left
prefetching: decoding, 1 column, 50 B of 100 B; 2 left out, --memory has no room for them

     PID COMMAND            WAITS  FOR
      99 py\x1b[31mthon       12s  decoding A\x1b]0;B\a/c\nd of f.hipo
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if strings.ContainsAny(got, "\x1b\a") {
		t.Error("a name steers the terminal")
	}
	if first := statsTable("/mnt/run", &now, nil); strings.Contains(first, "/s\n") {
		t.Errorf("rates of one sample:\n%s", first)
	}
}

func TestWatchDrawsAtEachTick(t *testing.T) {
	for _, screen := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "stats.json")
		save := func(s fs.Stats) {
			b, err := json.Marshal(s)
			if err == nil {
				err = os.WriteFile(path, b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		save(sample(0))
		// Each block comes by the pipe; what is on the way decides when to go on.
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		tick := make(chan time.Time)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		v := &statsView{given: "mnt", path: path, screen: screen, out: w}
		go func() { ended <- v.watch(ctx, tick) }()
		block := func() string {
			var got bytes.Buffer
			for b := make([]byte, 1<<16); !strings.Contains(got.String(), "f.hipo"); {
				n, err := r.Read(b)
				if err != nil {
					t.Fatal(err)
				}
				got.Write(b[:n])
			}
			return got.String()
		}
		first := block()
		save(sample(1))
		tick <- time.Time{}
		second := block()
		cancel() // Ctrl-C
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if strings.Contains(first, "MB/s       ") || !strings.Contains(second, "1.2 MB/s") || !strings.Contains(second, "3/s") {
			t.Errorf("first\n%s\nthen\n%s", first, second)
		}
		if escapes := strings.Count(second, "\x1b[K\n"); screen != (escapes == strings.Count(second, "\n")) || screen != strings.HasPrefix(first, "\x1b[2J\x1b[H") {
			t.Errorf("terminal %v: %q", screen, second)
		}
		// The mount ends.
		v.before = nil
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := v.watch(context.Background(), tick); status(err) != statusMountpoint {
			t.Errorf("without a mount: %v", err)
		}
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[float64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_951: "1.0 MB", 4.56e9: "4.6 GB", 999.96e9: "1.0 TB", 123e15: "123000.0 TB",
	} {
		if got := bytesText(n); got != want {
			t.Errorf("%v: %s, not %s", n, got, want)
		}
	}
}

// What a file calls its banks must not break a line or steer a terminal.
func TestLogLinesStayLines(t *testing.T) {
	hostile := "a\nlevel=ERROR msg=b\r\x1b[2J\x1b]0;title\x07\u009b31m\u202e\xff\x00<0>"
	var text, lines bytes.Buffer
	j := newJournal(&lines, slog.LevelDebug)
	for _, log := range []*slog.Logger{slog.New(slog.NewTextHandler(&text, nil)), slog.New(j)} {
		log.Warn(hostile, "path", hostile, hostile, 1)
		log.With("bank", hostile).WithGroup(hostile).Error("said", "stack", "one\ntwo")
	}
	for _, out := range []string{text.String(), lines.String()} {
		if n := strings.Count(out, "\n"); n != 2 || !strings.HasSuffix(out, "\n") {
			t.Errorf("%d lines: %q", n, out)
		}
		for _, r := range out {
			if unprintable(r) && r != '\n' {
				t.Errorf("%U in %q", r, out)
			}
		}
	}
	if s := lines.String(); !strings.HasPrefix(s, "<4>msg=") || !strings.Contains(s, "\n<3>msg=said bank=") {
		t.Errorf("%q", s)
	}
}

func TestJournalIsTheFileThatSystemdNames(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, want := range map[string]bool{"": false, "8:1": false, streamOf(t, f): true} {
		t.Setenv("JOURNAL_STREAM", name)
		if got := isJournal(f); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
	if isJournal(new(bytes.Buffer)) {
		t.Error("a buffer is no journal")
	}
}

// streamOf is what systemd sets $JOURNAL_STREAM to where f is the journal.
func streamOf(t *testing.T, f *os.File) string {
	t.Helper()
	out, err := exec.Command("stat", "-c", "%d:%i", f.Name()).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
