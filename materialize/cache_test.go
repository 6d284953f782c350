package materialize

import (
	"context"
	"testing"
)

func TestChunksThatWereReadGoFirst(t *testing.T) {
	const size = 1000
	key := func(i int) chunkKey { return chunkKey{run: int32(i)} }
	c := newChunks(8 * (size + chunkOverhead))
	for i := range 8 {
		c.add(key(i), make([]byte, size))
	}
	for i := range 4 {
		c.serve(key(7-i), size)
	}
	// Of those, a fourth of the budget is kept: the last two.
	for i, want := range []bool{true, true, true, true, true, true, false, false} {
		if c.has(key(i)) != want {
			t.Errorf("chunk %d is there = %v", i, !want)
		}
	}
	for i := 8; i < 12; i++ {
		c.add(key(i), make([]byte, size))
	}
	for i, want := range []bool{true, true, true, true, false, false} {
		if c.has(key(i)) != want {
			t.Errorf("chunk %d is there after others came = %v", i, !want)
		}
	}
	if c.addIfRoom(key(12), make([]byte, size), 1) {
		t.Error("addIfRoom found room in a full budget")
	}
	c.forget(func(k chunkKey) bool { return k == key(8) })
	if c.addIfRoom(key(12), make([]byte, size), 0.9) || !c.addIfRoom(key(12), make([]byte, size), 1) {
		t.Error("addIfRoom does not go by the share")
	}
	if bytes, _, _ := c.state(); bytes > c.budget {
		t.Errorf("%d bytes are held, the budget is %d", bytes, c.budget)
	}
}

// What was read to its end is not gathered again for others; read again, all
// columns of the bank come with one decode.
func TestColumnReadAgainBringsItsBank(t *testing.T) {
	name, want := large(t, 1)
	c := open(t, Options{Index: IndexLazy}, name)
	banks := c.View().Banks()
	read := func(b *Bank) {
		for _, col := range b.Columns {
			if got, _ := readAll(t, col); string(got) != string(want[b.Name+"/"+col.Name]) {
				t.Errorf("%s/%s: other bytes", b.Name, col.Name)
			}
		}
	}
	read(banks[0])
	read(banks[1])
	c.m.chunks.forget(func(k chunkKey) bool { return k.bank == banks[0].id })
	before := c.Stats().RecordsDecoded
	if _, err := banks[0].Rows(context.Background()); err != nil {
		t.Fatal(err)
	}
	read(banks[0])
	if n := c.Stats().RecordsDecoded - before; n > 12 {
		t.Errorf("%d records decoded to read a bank again, there are 12", n)
	}
}

// Several who read one column at once ask for its pages in any order, and one of
// them may want a page long after the others have read the end.
func TestAChunkStaysUntilAllOfItIsRead(t *testing.T) {
	const size, page = 64 << 10, 4 << 10
	c := newChunks(8 * size)
	k := chunkKey{run: 1}
	c.add(k, make([]byte, size))
	fill := func() {
		for i := 2; i < 10; i++ {
			c.addIfRoom(chunkKey{run: int32(i)}, make([]byte, size), 1)
		}
	}
	c.serve(k, size-2*page)
	c.serve(k, page) // its end, as it happens
	fill()
	if !c.has(k) {
		t.Fatal("a chunk with an unread page was let go of for another that nobody waits for")
	}
	c.serve(k, page)
	fill()
	if c.has(k) {
		t.Fatal("a chunk that is all read stays where there is no room")
	}
}
