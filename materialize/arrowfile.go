package materialize

import (
	"context"
	"fmt"
	"sort"
	"sync"
)

// Arrow is a bank as one Arrow IPC file. Its record batches are the runs of
// records that the view has entries in; they are made of the same chunks as the
// .npy files of the columns.
type Arrow struct {
	bank  *Bank
	reads sequence // of bytes

	mu   sync.Mutex
	size int64     // 0: not known yet
	laid *arrowLay // nil while nobody has it open
}

// arrowLay is where everything in an Arrow file is.
type arrowLay struct {
	*arrowFrame
	bank    *Bank
	batches []arrowBatch
	tail    int64 // where the batches end
	size    int64
}

// arrowBatch is where a record batch begins, and the run that it is made of.
type arrowBatch struct {
	off  int64
	i, r int32 // as in a stretch
}

// Size is the length of the file in bytes, exact. It waits for the counting
// pass, and fails where a record that it needs is damaged.
func (a *Arrow) Size(ctx context.Context) (int64, error) {
	a.mu.Lock()
	size := a.size
	a.mu.Unlock()
	if size == 0 {
		if err := a.count(ctx); err != nil {
			return 0, err
		}
		f, err := a.frame()
		if err != nil {
			return 0, err
		}
		size = int64(len(f.head))
		batches := 0
		for x := range a.bank.view.stretches() {
			if entries := a.bank.view.entriesIn(x); entries > 0 {
				size += int64(len(f.batch)) + f.bodyLength(entries, a.bank.in(x))
				batches++
			}
		}
		size += f.tailLength(batches)
		a.mu.Lock()
		a.size = size
		a.mu.Unlock()
	}
	return size, a.knownFault()
}

func (a *Arrow) count(ctx context.Context) error {
	return a.bank.sumUp(ctx, &Waiting{Reader: ctx, Bank: a.bank.Name, For: forCounting})
}

// frame makes the frame of the file, one at a time in a chain: of a bank with very
// many columns that takes some hundred megabytes, for a moment.
func (a *Arrow) frame() (*arrowFrame, error) {
	m := a.bank.view.chain.m
	m.framing.Lock()
	defer m.framing.Unlock()
	return newArrowFrame(a.bank.schema)
}

func (a *Arrow) knownFault() error {
	for _, c := range a.bank.Columns {
		if err := c.knownFault(); err != nil {
			return err
		}
	}
	return nil
}

// lay lays the file out, unless somebody has done so.
func (a *Arrow) lay(ctx context.Context) (*arrowLay, error) {
	a.mu.Lock()
	l := a.laid
	a.mu.Unlock()
	if l != nil {
		return l, nil
	}
	if err := a.count(ctx); err != nil {
		return nil, err
	}
	f, err := a.frame()
	if err != nil {
		return nil, err
	}
	l = &arrowLay{arrowFrame: f, bank: a.bank}
	off := int64(len(f.head))
	for x := range a.bank.view.stretches() {
		entries := a.bank.view.entriesIn(x)
		if entries == 0 {
			continue
		}
		l.batches = append(l.batches, arrowBatch{off, int32(x.i), int32(x.r)})
		off += int64(len(f.batch)) + f.bodyLength(entries, a.bank.in(x))
	}
	l.tail = off
	l.size = off + f.tailLength(len(l.batches))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.laid = l
	return l, nil
}

// Open makes sure that every record that the bank needs decodes, and gives the
// stride, as Column.Open does.
func (a *Arrow) Open(ctx context.Context) (stride int64, err error) {
	l, err := a.lay(ctx)
	if err != nil {
		return 0, err
	}
	if err := a.knownFault(); err != nil {
		return 0, err
	}
	b := a.bank
	if b.rows[len(b.rows)-1] == 0 {
		return 0, nil
	}
	inMemory := a.inMemory()
	if !inMemory {
		if err := b.look(ctx); err != nil {
			return 0, err
		}
	}
	for _, c := range b.Columns {
		if err := c.verify(ctx); err != nil {
			return 0, err
		}
	}
	if inMemory || a.inMemory() {
		return 0, nil
	}
	return max(1, l.size/int64(max(1, len(l.batches)))), nil
}

// Left notes that nobody has the file open any more.
func (a *Arrow) Left() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.laid = nil
}

// inMemory reports whether all of the file is, but for what is made of counts.
func (a *Arrow) inMemory() bool {
	for _, c := range a.bank.Columns {
		if !c.inMemory() {
			return false
		}
	}
	return true
}

// ReadAt fills p with the file's bytes from off on, as Column.ReadAt does.
func (a *Arrow) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	l, err := a.lay(ctx)
	if err != nil {
		return 0, err
	}
	if off < 0 || off >= l.size {
		return 0, nil
	}
	p = p[:min(int64(len(p)), l.size-off)]
	if a.reads.follows(off, int64(len(p))) && len(l.batches) > 0 && len(l.widths) > 0 {
		a.bank.lookAhead(l.stretch(l.find(off)), 0, a.bank.view.chain.m.bankWants)
	}
	if err := l.copyOut(ctx, p, off); err != nil {
		return 0, err
	}
	a.bank.view.chain.m.bytesServed.Add(int64(len(p)))
	return len(p), nil
}

// find is the batch that byte off lies in, or the first.
func (l *arrowLay) find(off int64) int {
	return max(0, sort.Search(len(l.batches), func(i int) bool { return l.batches[i].off > off })-1)
}

func (l *arrowLay) stretch(batch int) stretch {
	b := l.batches[batch]
	x := stretch{i: int(b.i), r: int(b.r)}
	if n := l.bank.view.narrow; n != nil {
		x.source = n.chosen.Load().runs[x.r].source
	} else {
		x.source = l.bank.view.sources[x.i]
	}
	return x
}

// copyOut fills p with the file's bytes from off on, all of which exist.
func (l *arrowLay) copyOut(ctx context.Context, p []byte, off int64) error {
	w := window{p, off}
	w.put(0, l.head)
	if len(l.batches) > 0 {
		for i := l.find(off); i < len(l.batches) && w.reaches(l.batches[i].off); i++ {
			if err := l.copyBatch(ctx, w, i); err != nil {
				return err
			}
		}
	}
	l.copyTail(w)
	return nil
}

// copyBatch copies what lies in the window of a batch.
func (l *arrowLay) copyBatch(ctx context.Context, w window, batch int) error {
	x := l.stretch(batch)
	entries, rows := l.bank.view.entriesIn(x), l.bank.in(x)
	at := l.batches[batch].off
	if w.overlaps(at, int64(len(l.batch))) {
		w.put(at, l.batchMessage(entries, rows))
	}
	at += int64(len(l.batch))
	wants := l.bank.view.chain.m.bankWants
	if n := 8 * (entries + 1); w.overlaps(at, align(n)) {
		if err := l.copyOffsets(ctx, w.within(at, align(n)), x, entries, rows, at); err != nil {
			return err
		}
	}
	at += align(8 * (entries + 1))
	if rows == 0 {
		return nil
	}
	for k, width := range l.widths {
		n := width * rows
		if w.overlaps(at, align(n)) {
			chunk, err := l.bank.chunkBy(ctx, x, int32(k), wants)
			if err != nil {
				return err
			}
			if int64(len(chunk)) != n {
				return fmt.Errorf("internal error: %d bytes for %d rows of %s/%s", len(chunk), rows, l.bank.Name, l.bank.Columns[k].Name)
			}
			w.put(at, chunk)
			w.zero(at+n, align(n)-n)
		}
		at += align(n)
	}
	return nil
}

// copyOffsets copies what lies in the window of a batch's offsets, which begin at
// byte at of the file.
func (l *arrowLay) copyOffsets(ctx context.Context, w window, x stretch, entries, rows, at int64) error {
	w.zero(w.off, int64(len(w.p)))
	if rows == 0 {
		return nil
	}
	ends, err := l.bank.chunkBy(ctx, x, endsColumn, l.bank.view.chain.m.bankWants)
	if err != nil {
		return err
	}
	if int64(len(ends)) != 4*entries {
		return fmt.Errorf("internal error: %d bytes for the ends of %d entries of %s", len(ends), entries, l.bank.Name)
	}
	var value [8]byte
	for e := (w.off - at) / 8; e <= entries && at+8*e < w.off+int64(len(w.p)); e++ {
		if e == 0 {
			continue
		}
		through, _ := end(ends, e-1)
		put(value[:], through)
		w.put(at+8*e, value[:])
	}
	return nil
}

// copyTail copies what lies in the window of what follows the batches.
func (l *arrowLay) copyTail(w window) {
	n := len(l.batches)
	if !w.reaches(l.tail) {
		return
	}
	head := l.tailHead(n)
	w.put(l.tail, head)
	blocks := l.tail + int64(len(head))
	for i := max(0, w.off-blocks) / arrowBlock; i < int64(n) && w.reaches(blocks+arrowBlock*i); i++ {
		x := l.stretch(int(i))
		w.put(blocks+arrowBlock*i, l.block(l.batches[i].off, l.bank.view.entriesIn(x), l.bank.in(x)))
	}
	w.put(blocks+arrowBlock*int64(n), l.tailEnd(n))
}

// window is the part of a file that is asked for: its bytes from off on.
type window struct {
	p   []byte
	off int64
}

// reaches reports whether the window goes beyond byte at.
func (w window) reaches(at int64) bool { return at < w.off+int64(len(w.p)) }

// overlaps reports whether any of the n bytes from at on lie in the window.
func (w window) overlaps(at, n int64) bool { return w.reaches(at) && at+n > w.off }

// within is the part of the window in n bytes from at on, some of which lie in it.
func (w window) within(at, n int64) window {
	from, to := max(at, w.off), min(at+n, w.off+int64(len(w.p)))
	return window{w.p[from-w.off : to-w.off], from}
}

// put copies b, which lies at byte at of the file, as far as the window goes.
func (w window) put(at int64, b []byte) {
	if n := int64(len(b)); n > 0 && w.overlaps(at, n) {
		in := w.within(at, n)
		copy(in.p, b[in.off-at:])
	}
}

// zero clears n bytes from at on, as far as the window goes.
func (w window) zero(at, n int64) {
	if n > 0 && w.overlaps(at, n) {
		clear(w.within(at, n).p)
	}
}
