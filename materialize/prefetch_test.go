package materialize

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// logged is a log that a test looks at.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// prefetched waits until prefetching has ended.
func prefetched(t *testing.T, c *Chain) {
	t.Helper()
	until(t, "prefetching ends", func() bool {
		s := c.Progress().Prefetch.State
		return s == "done" || s == "full" || s == "failed"
	})
}

func TestPrefetchedColumnsAreThere(t *testing.T) {
	for _, tag := range []int{1, 9, 10} {
		name, want := large(t, tag)
		dir := t.TempDir()
		indexed(t, dir, name)
		c := open(t, Options{IndexDir: dir, Prefetch: []string{"T::b1/[ds]", "T::b[34]", "T::b1/d"}}, name)
		prefetched(t, c)
		p := c.Progress().Prefetch
		// b1: d and s; b3 and b4: four columns and offsets.
		if p.State != "done" || p.Columns != 12 || p.LeftOut != 0 || p.Bytes != p.BytesDone || p.Bytes == 0 {
			t.Errorf("tag %d: %+v", tag, p)
		}
		before := c.Stats()
		for _, column := range []string{"T::b1/d", "T::b1/s", "T::b3/i", "T::b3/d", "T::b3/b", "T::b3/s", "T::b4/i", "T::b4/d", "T::b4/b", "T::b4/s"} {
			bankName, col, _ := strings.Cut(column, "/")
			if got, _ := readAll(t, bank(t, c.View(), bankName).Columns[strings.Index("idbs", col)]); string(got) != string(want[column]) {
				t.Errorf("tag %d: %s has other bytes", tag, column)
			}
		}
		after := c.Stats()
		if after.CacheMisses != 0 || after.RecordsDecoded != before.RecordsDecoded || after.StreamsDecoded != before.StreamsDecoded {
			t.Errorf("tag %d: reading decodes: %+v, then %+v", tag, before, after)
		}
	}
}

func TestPrefetchDuringTheFirstPassDecodesOnce(t *testing.T) {
	name, _ := large(t, 1)
	c := open(t, Options{Prefetch: []string{"T::b1/d", "T::b2"}}, name)
	prefetched(t, c)
	if s, p := c.Stats(), c.Progress().Prefetch; s.RecordsDecoded != 12 || p.State != "done" || p.BytesDone != p.Bytes {
		t.Errorf("%d records decoded, there are 12; %+v", s.RecordsDecoded, p)
	}
}

func TestPrefetchSaysOnceWhatIsNotThere(t *testing.T) {
	name, _ := large(t, 1)
	var said logged
	c := open(t, Options{Prefetch: []string{"T::b1/x*", "T::b1", "NO::such"}, Log: said.logger()}, name)
	prefetched(t, c)
	for _, none := range []string{"T::b1/x*", "NO::such"} {
		if n := strings.Count(said.String(), "no column is called "+none); n != 1 {
			t.Errorf("%s: said %d times:\n%s", none, n, said.String())
		}
	}
	if p := c.Progress().Prefetch; p.State != "done" || p.Columns != 5 {
		t.Errorf("%+v", p)
	}
	for _, bad := range []string{"", "/x", "T::[", "T::b1/["} {
		if _, err := Open(context.Background(), []string{name}, Options{Prefetch: []string{bad}}); err == nil || !strings.Contains(err.Error(), "BANK/COLUMN") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestPrefetchGoesAsFarAsTheBudget(t *testing.T) {
	name, _ := large(t, 1)
	dir := t.TempDir()
	indexed(t, dir, name)
	var said logged
	c := open(t, Options{IndexDir: dir, Memory: 1 << 20, Threads: 1, Prefetch: []string{"*"}, Log: said.logger()}, name)
	prefetched(t, c)
	s, p := c.Stats(), c.Progress().Prefetch
	if p.State != "done" || p.LeftOut == 0 || p.LeftOut >= p.Columns || p.Bytes != p.BytesDone {
		t.Errorf("%+v", p)
	}
	if s.CacheEvictions != 0 || s.CacheBytes < p.Bytes/2 || s.CacheBytes > s.CacheBudget {
		t.Errorf("%+v", s)
	}
	if n := strings.Count(said.String(), "does not fit"); n != 1 {
		t.Errorf("said %d times:\n%s", n, said.String())
	}
}

// gate makes decodes stop, each when it has read its first record.
type gate struct {
	mu      sync.Mutex
	stopped []chan struct{} // closed to go on
	closed  bool
}

func (g *gate) pass(int64) {
	g.mu.Lock()
	if !g.closed {
		g.mu.Unlock()
		return
	}
	on := make(chan struct{})
	g.stopped = append(g.stopped, on)
	g.mu.Unlock()
	<-on
}

// waiting is how many decodes have come to the gate so far.
func (g *gate) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.stopped)
}

// open lets everything through from now on but the first n that have come.
func (g *gate) open(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
	for _, on := range g.stopped[n:] {
		close(on)
	}
	g.stopped = g.stopped[:n]
}

// indexedAndGated is a chain that needs no pass, whose decodes a gate stops.
func indexedAndGated(t *testing.T, o Options, prefetch ...string) (*Chain, *gate, map[string][]byte) {
	t.Helper()
	name, want := large(t, 1)
	o.IndexDir = t.TempDir()
	indexed(t, o.IndexDir, name)
	g := &gate{closed: true}
	c := newChain(o.Log)
	c.progress, c.indexDir = g.pass, o.IndexDir
	o.Prefetch = prefetch
	if err := c.open(context.Background(), []string{name}, o, o.Threads); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.open(0)
		c.Close()
	})
	return c, g, want
}

func TestReaderDoesNotQueueBehindPrefetching(t *testing.T) {
	c, g, want := indexedAndGated(t, Options{Threads: 1}, "T::b0")
	// The one decode of prefetching stands still, in the first run.
	until(t, "prefetching decodes", func() bool { return g.waiting() == 1 })
	g.open(1)
	// Whoever wants the last run gets it, on the one thread that there is.
	content := want["T::b1/i"]
	got := make([]byte, 400)
	col := bank(t, c.View(), "T::b1").Columns[0]
	size, err := col.Size(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := col.ReadAt(context.Background(), got, size-400); err != nil || n != 400 || string(got) != string(content[len(content)-400:]) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if s := c.Stats(); s.DecodesInFlight != 1 || s.CacheMisses != 1 {
		t.Errorf("%+v", s)
	}
	// The first run's five records of 40 entries: their offsets are in the index.
	if p := c.Progress().Prefetch; p.State != "decoding" || p.BytesDone != 4*5*40 {
		t.Errorf("%+v", p)
	}
}

func TestPrefetchingGivesWayToAReaderWhoWaits(t *testing.T) {
	c, g, _ := indexedAndGated(t, Options{Threads: 1}, "T::b0")
	until(t, "prefetching decodes", func() bool { return g.waiting() == 1 })
	// A reader of the last run comes, and its decode stands still as well.
	col := bank(t, c.View(), "T::b1").Columns[0]
	size, err := col.Size(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		_, err := col.ReadAt(context.Background(), make([]byte, 400), size-400)
		read <- err
	}()
	until(t, "the reader's decode", func() bool { return g.waiting() == 2 })
	// Prefetching may go on, and does not begin another run.
	g.mu.Lock()
	mine, theirs := g.stopped[0], g.stopped[1]
	g.closed = false
	close(mine)
	g.stopped = nil
	g.mu.Unlock()
	until(t, "prefetching waits", func() bool { return c.Progress().Prefetch.State == "giving way" })
	if s := c.Stats(); s.DecodesInFlight != 1 {
		t.Errorf("%d decodes", s.DecodesInFlight)
	}
	close(theirs)
	if err := <-read; err != nil {
		t.Error(err)
	}
	prefetched(t, c)
	if p := c.Progress().Prefetch; p.State != "done" {
		t.Errorf("%+v", p)
	}
}
