package materialize

import (
	"context"
	"runtime"
	"testing"
	"time"
)

// until waits for something that another goroutine is about to do.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

// read reads n bytes of content from the first on.
func read(t *testing.T, c *Column, n int) {
	t.Helper()
	if _, err := c.Open(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got, err := c.ReadAt(context.Background(), make([]byte, n), 128); err != nil || got != n {
		t.Fatalf("%s: %d of %d bytes: %v", c.Name, got, n, err)
	}
}

func TestStatsOfAKnownSequenceAreExact(t *testing.T) {
	name, _ := large(t, 1)
	dir := t.TempDir()
	indexed(t, dir, name)
	c := open(t, Options{IndexDir: dir, Threads: 1}, name)
	// The first run is as many records as inflate to 1 MiB.
	var run []RecordInfo
	var stored, inflated int64
	for _, r := range c.View().Records() {
		if inflated+r.DataLength+4*int64(r.Events) > 1<<20 {
			break
		}
		run = append(run, r)
		stored += r.Length
		inflated += r.DataLength + 4*int64(r.Events)
	}
	b0, b1 := bank(t, c.View(), "T::b0"), bank(t, c.View(), "T::b1")
	check := func(what string, want Stats) {
		t.Helper()
		s := c.Stats()
		got := Stats{
			RecordsDecoded: s.RecordsDecoded, BytesRead: s.BytesRead, BytesInflated: s.BytesInflated,
			BytesServed: s.BytesServed, CacheHits: s.CacheHits, CacheMisses: s.CacheMisses,
		}
		if got != want {
			t.Errorf("%s:\n%+v, want\n%+v", what, got, want)
		}
	}
	check("opened", Stats{})
	read(t, b0.Columns[0], 400)
	want := Stats{RecordsDecoded: int64(len(run)), BytesRead: stored, BytesInflated: inflated, BytesServed: 400, CacheMisses: 1}
	check("one column", want)
	read(t, b0.Columns[0], 300)
	want.BytesServed, want.CacheHits = 700, 1
	check("again", want)
	read(t, b0.Columns[2], 10) // a decode keeps the others of the bank
	want.BytesServed, want.CacheHits = 710, 2
	check("another column", want)
	read(t, b1.Columns[0], 40) // and, with so much room, everything
	want.BytesServed, want.CacheHits = 750, 3
	check("another bank", want)

	s := c.Stats()
	if s.DecodeSeconds <= 0 || s.WaitSeconds <= 0 {
		t.Errorf("%v s in decodes, %v s waiting", s.DecodeSeconds, s.WaitSeconds)
	}
	if s.DecodesInFlight != 0 || s.OpenSources != 1 || s.CacheBytes <= 0 {
		t.Errorf("%+v", s)
	}
}

func TestEvictedBytesAreCounted(t *testing.T) {
	c := newChunks(10 * 1000)
	size := int(1000 - chunkOverhead)
	for i := range 13 {
		c.add(chunkKey{run: int32(i)}, make([]byte, size))
	}
	bytes, evictions, evicted := c.state()
	equal(t, "held, evictions, evicted", []int64{bytes, evictions, evicted}, []int64{10000, 3, 3000})
	// Of what was read to its end, only a share stays.
	for i := 3; i < 13; i++ {
		c.serve(chunkKey{run: int32(i)}, int64(size))
	}
	bytes, evictions, evicted = c.state()
	equal(t, "after all were read", []int64{bytes, evictions, evicted}, []int64{2000, 11, 11000})
}

func TestWhoWaitsIsKnown(t *testing.T) {
	name, _ := large(t, 1)
	dir := t.TempDir()
	indexed(t, dir, name)
	type readerKey struct{}
	reader := context.WithValue(context.Background(), readerKey{}, 4711)

	decoding := open(t, Options{IndexDir: dir, Threads: 1}, name)
	counting := open(t, Options{Threads: 1, Index: IndexLazy}, name)
	for _, tt := range []struct {
		c    *Chain
		want string
		wait func(*Column) error
		in   string
	}{
		{decoding, forDecoding, func(c *Column) error { _, err := c.ReadAt(reader, make([]byte, 8), 128); return err }, name},
		{counting, forCounting, func(c *Column) error { _, err := c.Size(reader); return err }, ""},
	} {
		// With its only worker taken, no decode can begin.
		tt.c.m.shop.workers <- struct{}{}
		done := make(chan error)
		go func() { done <- tt.wait(bank(t, tt.c.View(), "T::b2").Columns[1]) }()
		until(t, "a reader waits", func() bool { return len(tt.c.Waiting()) > 0 })
		w := tt.c.Waiting()[0]
		if w.Bank != "T::b2" || w.Column != "d" || w.For != tt.want || w.File != tt.in || w.Reader.Value(readerKey{}) != 4711 || w.Since.IsZero() {
			t.Errorf("%+v", w)
		}
		first := tt.c.Stats().WaitSeconds
		if first <= 0 {
			t.Error("who still waits has not waited")
		}
		<-tt.c.m.shop.workers
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := len(tt.c.Waiting()); n > 0 || tt.c.Stats().WaitSeconds <= first {
			t.Errorf("%d wait, %v s after %v s", n, tt.c.Stats().WaitSeconds, first)
		}
	}
}

func TestProgressOfCounting(t *testing.T) {
	a, _ := large(t, 1)
	b, _ := large(t, 9)
	dir := t.TempDir()
	indexed(t, dir, b)
	c := open(t, Options{IndexDir: dir, Threads: 1, Index: IndexLazy}, a, b)
	var lengths [2]int64
	for i := range lengths {
		for _, r := range c.View().File(i).Records() {
			lengths[i] += r.Length
		}
	}
	at := func(what, state string, files int, done int64) {
		t.Helper()
		p := c.Progress().Counting
		if p.State != state || p.Files != 2 || p.FilesDone != files || p.Bytes != lengths[0]+lengths[1] || p.BytesDone != done {
			t.Errorf("%s: %+v", what, p)
		}
	}
	at("opened", "waiting", 1, lengths[1])
	c.m.shop.workers <- struct{}{}
	done := make(chan error)
	go func() {
		_, err := c.View().Banks()[0].Rows(context.Background())
		done <- err
	}()
	until(t, "the pass begins", func() bool { return c.Progress().Counting.State == "counting" })
	at("begun", "counting", 1, lengths[1])
	if left := c.Progress().Counting.SecondsLeft; left != nil {
		t.Errorf("%v s are left of what has not shown its speed", *left)
	}
	<-c.m.shop.workers
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	at("through", "done", 2, lengths[0]+lengths[1])
	p := c.Progress().Counting
	if p.SecondsLeft == nil || *p.SecondsLeft != 0 || p.BytesPerSecond <= 0 {
		t.Errorf("%+v", p)
	}
}
