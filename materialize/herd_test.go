package materialize

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// A bank asked for by 64 readers at once is decoded once, whether they want one
// column or all of them.
func TestHerdOfFirstReadersDecodesOnce(t *testing.T) {
	for _, tag := range []int{1, 9, 10} {
		for _, columns := range []int{1, 4} {
			t.Run(fmt.Sprintf("tag %d, %d columns", tag, columns), func(t *testing.T) {
				name, want := large(t, tag)
				c := open(t, Options{Index: IndexLazy, Threads: 4}, name)
				b := c.View().Banks()[3]
				start := make(chan struct{})
				var wg sync.WaitGroup
				for reader := range 64 {
					wg.Go(func() {
						<-start
						col := b.Columns[reader%columns]
						if got, err := serve(col); err != nil || string(got) != string(want[b.Name+"/"+col.Name]) {
							t.Errorf("%s: %v, or other bytes", col.Name, err)
						}
					})
				}
				close(start)
				wg.Wait()
				// The pass sees each record once; of those that are split it reads directories only.
				records, streams := int64(12), int64(0)
				switch tag {
				case 9:
					records, streams = 24, 12
				case 10:
					records, streams = 12+12*int64(columns), 12*int64(columns)
				}
				if s := c.Stats(); s.RecordsDecoded > records || s.StreamsDecoded != streams {
					t.Errorf("%d records and %d streams decoded, want %d and %d", s.RecordsDecoded, s.StreamsDecoded, records, streams)
				}
			})
		}
	}
}

// hang makes every read of the sources wait until it is called. Whoever waits
// says so first.
func (f *failing) hang() (waiting <-chan struct{}, goOn func()) {
	waits, held := make(chan struct{}, 1000), make(chan struct{})
	f.set(func([]byte, int64) (int, error) {
		waits <- struct{}{}
		<-held
		return 0, nil
	})
	return waits, sync.OnceFunc(func() { f.set(nil); close(held) })
}

// HIPOFS_INTERRUPTS is how many opens, and how many reads, are interrupted.
func TestInterruptedWaitersLeaveAndTheRestIsServed(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	name, want := large(t, 1)
	c, f := openFailing(t, Options{Index: IndexLazy, Memory: 32 << 10}, name)
	defer c.Close()
	col := c.View().Banks()[0].Columns[0]
	content := want["T::b0/i"]
	count := countOf(t, "HIPOFS_INTERRUPTS", 100)

	// crowd lets as many callers wait beside the one who does, interrupts them all,
	// and waits for each to leave.
	crowd := func(what string, call func(context.Context) error) {
		ctx, interrupt := context.WithCancel(context.Background())
		left := make(chan error)
		for range count {
			go func() { left <- call(ctx) }()
		}
		for len(c.Waiting()) < count+1 {
			runtime.Gosched()
		}
		interrupt()
		for range count {
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Errorf("an interrupted %s: %v", what, err)
			}
		}
	}

	waiting, goOn := f.hang()
	defer goOn()
	open := func(ctx context.Context) error {
		_, err := col.Open(ctx)
		return err
	}
	stays := make(chan error)
	go func() { stays <- open(context.Background()) }()
	<-waiting // the pass
	crowd("open", open)
	select {
	case err := <-stays:
		t.Fatalf("who was not interrupted has left: %v", err)
	default:
	}
	goOn()
	if err := <-stays; err != nil {
		t.Fatal(err)
	}
	decoded := c.Stats().RecordsDecoded
	equal(t, "records decoded by the pass that all waited for", decoded, 12)

	// The same for reads of what has to be decoded again, and nobody stays.
	c.m.chunks.forget(func(chunkKey) bool { return true })
	waiting, goOn = f.hang()
	defer goOn()
	read := func(ctx context.Context) error {
		p := make([]byte, 4096)
		n, err := col.ReadAt(ctx, p, 128)
		if err == nil && string(p[:n]) != string(content[:4096]) {
			return errors.New("other bytes")
		}
		return err
	}
	ctx, interrupt := context.WithCancel(context.Background())
	first := make(chan error)
	go func() { first <- read(ctx) }()
	<-waiting
	crowd("read", read)
	interrupt()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first reader: %v", err)
	}
	c.m.mu.Lock()
	flying := len(c.m.flights)
	c.m.mu.Unlock()
	equal(t, "decodes that can be joined when nobody waits", flying, 0)
	goOn()
	if err := read(context.Background()); err != nil {
		t.Error(err)
	}
	if s := c.Stats(); s.Errors > 0 || len(c.Waiting()) > 0 {
		t.Errorf("errors %v, waiting %v", c.Errors(), c.Waiting())
	}
}

// HIPOFS_REPEATS is how often everything is made again for each setting.
func TestColumnsMadeAgainAreTheSame(t *testing.T) {
	repeats := countOf(t, "HIPOFS_REPEATS", 5)
	for _, tag := range []int{4, 6, 8} {
		name, want := large(t, tag)
		for _, o := range []Options{
			{Threads: 1, Memory: 1},
			{Threads: 2, Memory: 64 << 10},
			{Threads: 3, Memory: 512 << 10},
			{Threads: 8, Memory: 1 << 20},
			{Threads: 16},
		} {
			c, err := Open(context.Background(), []string{name}, o)
			if err != nil {
				t.Fatal(err)
			}
			for i := range repeats {
				for _, b := range c.View().Banks() {
					for _, col := range b.Columns {
						if got, err := serve(col); err != nil || string(got) != string(want[b.Name+"/"+col.Name]) {
							t.Fatalf("tag %d, %d threads, %d bytes of memory: the %d. time %s/%s is %v, or other bytes", tag, o.Threads, o.Memory, i, b.Name, col.Name, err)
						}
					}
				}
				c.m.chunks.forget(func(chunkKey) bool { return true })
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
