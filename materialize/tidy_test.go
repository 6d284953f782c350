package materialize

import (
	"context"
	"testing"
	"time"
)

func TestChunksThatAreLetGoOfAreToldWhenTheyAreMany(t *testing.T) {
	const size = 1 << 20 // of a chunk and its overhead
	c := newChunks(1 << 30)
	told := func() bool {
		select {
		case <-c.loose:
			return true
		default:
			return false
		}
	}
	for i := range 2 * looseBytes / size {
		k := chunkKey{run: int32(i)}
		c.add(k, make([]byte, size-chunkOverhead))
		c.serve(k, size)
		// The first servedMost bytes stay.
		if want := i == (servedMost+looseBytes)/size-1; told() != want {
			t.Fatalf("told after %d chunks of %d bytes = %v", i+1, size, !want)
		}
	}
}

func TestMemoryOfDecodesIsGivenBackWhenNothingHappens(t *testing.T) {
	name, _ := large(t, 1)
	c := open(t, Options{Index: IndexLazy, Memory: 64 << 10}, name)
	b := bank(t, c.View(), "T::b0")
	tick := make(chan time.Time)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	over := make(chan struct{})
	go func() {
		defer close(over)
		c.m.tidy(ctx, tick)
	}()
	tick <- time.Time{} // it looks on from here
	if _, err := b.Rows(ctx); err != nil {
		t.Fatal(err)
	}
	atRest := func() int {
		c.m.shop.mu.Lock()
		defer c.m.shop.mu.Unlock()
		return len(c.m.shop.decoders)
	}
	if atRest() == 0 {
		t.Fatal("no decoder is at rest after a pass")
	}
	for range 4 { // something has happened before the first or second; the last one waits for the others
		tick <- time.Time{}
	}
	if atRest() != 0 {
		t.Errorf("%d decoders keep their memory", atRest())
	}
	// A slice now and then keeps nothing alive either.
	if _, err := bank(t, c.View(), "T::b4").Columns[0].ReadAt(ctx, make([]byte, 1000), 0); err != nil {
		t.Fatal(err)
	}
	if atRest() == 0 {
		t.Fatal("no decoder is at rest after a read")
	}
	tick <- time.Time{}
	cancel()
	<-over // what the tick is for has been done
	if atRest() != 0 {
		t.Errorf("%d decoders keep their memory while little is read", atRest())
	}
}
