package materialize

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hipofs/hipofs/hipo/hipotest"
)

// failing stands before the sources of a chain, and makes reads of them fail.
type failing struct {
	mu    sync.Mutex
	next  func(p []byte, off int64) (int, error) // how the next read fails; nil, nil: not
	reads int
}

// fault is one way to fail: by an errno, or by bytes that are too few.
type fault struct {
	name  string
	errno syscall.Errno // 0: reads end early, after this many bytes
	bytes int
}

var faultKinds = []fault{
	{"EIO", syscall.EIO, 0},
	{"ETIMEDOUT", syscall.ETIMEDOUT, 0},
	{"EINTR", syscall.EINTR, 0},
	{"EAGAIN", syscall.EAGAIN, 0},
	{"ENOMEM", syscall.ENOMEM, 0},
	{"EREMOTEIO", syscall.EREMOTEIO, 0},
	{"EHOSTDOWN", syscall.EHOSTDOWN, 0},
	{"ENOTCONN", syscall.ENOTCONN, 0},
	{"ESTALE", syscall.ESTALE, 0},
	{"nothing read", 0, 0},
	{"100 bytes read", 0, 100},
}

func (f *failing) read(file *os.File, p []byte, off int64) (int, error) {
	f.mu.Lock()
	f.reads++
	fail := f.next
	f.mu.Unlock()
	if fail != nil {
		if n, err := fail(p, off); err != nil {
			return n, err
		}
	}
	return file.ReadAt(p, off)
}

func (f *failing) set(fail func(p []byte, off int64) (int, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next = fail
}

// fail is what a read gives that fails so.
func (k fault) fail(file *os.File, p []byte, off int64) (int, error) {
	if k.errno != 0 {
		return 0, &os.PathError{Op: "read", Path: "some.hipo", Err: k.errno}
	}
	n := min(k.bytes, len(p)-1)
	if _, err := file.ReadAt(p[:n], off); err != nil {
		return 0, err
	}
	return n, io.EOF
}

// openFailing is a chain whose reads can be made to fail, and are tried again
// at once.
func openFailing(t *testing.T, o Options, names ...string) (*Chain, *failing) {
	t.Helper()
	f := &failing{}
	c := newChain(nil)
	c.indexDir = o.IndexDir
	c.descriptors.read = f.read
	c.descriptors.pauses = make([]time.Duration, 3)
	if err := c.open(context.Background(), names, o, 2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, f
}

// sampler reads slices of random columns, and knows what they must be.
type sampler struct {
	c    *Chain
	want map[string][]byte
	rng  *rand.Rand
}

// read gives an error, or whether the bytes were right.
func (s *sampler) read(ctx context.Context) (right bool, err error) {
	b := s.c.View().Banks()[s.rng.IntN(len(s.c.View().Banks()))]
	col := b.Columns[s.rng.IntN(len(b.Columns))]
	content := s.want[b.Name+"/"+col.Name]
	f, err := col.measure(ctx)
	if err != nil {
		return false, err
	}
	off := s.rng.IntN(len(content))
	p := make([]byte, min(1+s.rng.IntN(2000), len(content)-off))
	n, err := col.ReadAt(ctx, p, int64(len(f.header)+off))
	return n == len(p) && string(p) == string(content[off:off+n]), err
}

// countOf is how often a test tries something: as often as the variable says, or
// as there is time for in every run of the tests.
func countOf(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv(variable), strconv.Itoa(otherwise)))
	if err != nil {
		t.Fatal(variable, ": ", err)
	}
	return n
}

// HIPOFS_FAULTS is how many reads are tried with each kind of fault.
func TestReadsThatFailForAMomentAreTriedAgain(t *testing.T) {
	name, want := large(t, 10)
	source, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	reads := countOf(t, "HIPOFS_FAULTS", 100)
	for _, kind := range faultKinds {
		t.Run(kind.name, func(t *testing.T) {
			c, f := openFailing(t, Options{Index: IndexLazy, Memory: 32 << 10}, name)
			// Three in four reads fail, never more than three in a row.
			failed := map[int64]int{}
			f.set(func(p []byte, off int64) (int, error) {
				f.mu.Lock()
				failed[off]++
				n := failed[off]
				f.mu.Unlock()
				if n%4 == 0 {
					return 0, nil
				}
				return kind.fail(source, p, off)
			})
			s := &sampler{c, want, rand.New(rand.NewPCG(7, 7))}
			for i := range reads {
				if right, err := s.read(context.Background()); err != nil || !right {
					t.Fatalf("read %d: right %v, %v", i, right, err)
				}
			}
			if f.reads < reads || len(c.Errors()) > 0 {
				t.Errorf("%d reads of the source, errors %v", f.reads, c.Errors())
			}
		})
	}
}

func TestSourceThatFailsIsNotDamaged(t *testing.T) {
	name, want := large(t, 9)
	source, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	lastingToo := append([]fault{{"EACCES", syscall.EACCES, 0}, {"EPERM", syscall.EPERM, 0}}, faultKinds...)
	for _, kind := range lastingToo {
		t.Run(kind.name, func(t *testing.T) {
			c, f := openFailing(t, Options{Index: IndexLazy, Memory: 32 << 10}, name)
			errno := kind.errno
			if errno == 0 {
				errno = syscall.EIO
			}
			fail := func(p []byte, off int64) (int, error) { return kind.fail(source, p, off) }
			f.set(fail)
			s := &sampler{c, want, rand.New(rand.NewPCG(8, 8))}
			for range 3 { // also what counts rows
				if _, err := s.read(context.Background()); !errors.Is(err, errno) || errors.Is(err, ErrChanged) {
					t.Fatalf("while it fails: %v, not %v", err, errno)
				}
			}
			f.set(nil)
			if right, err := s.read(context.Background()); err != nil || !right {
				t.Fatalf("when it works again: right %v, %v", right, err)
			}
			for i := range 50 {
				f.set(fail)
				_, err := s.read(context.Background())
				f.set(nil)
				if err != nil && !errors.Is(err, errno) {
					t.Fatalf("read %d, while it fails: %v", i, err)
				}
				if right, err := s.read(context.Background()); err != nil || !right {
					t.Fatalf("read %d, when it works again: right %v, %v", i, right, err)
				}
			}
			if told := c.Errors(); len(told) != 1 || told[0].File != name || strings.Count(told[0].Message, name) != 1 {
				t.Errorf("told: %+v", told)
			}
			for _, b := range c.View().Banks() {
				for _, col := range b.Columns {
					got, err := serve(col)
					if err != nil || string(got) != string(want[b.Name+"/"+col.Name]) {
						t.Errorf("%s/%s: %v, or other bytes", b.Name, col.Name, err)
					}
				}
			}
		})
	}
}

func TestDescriptorsThatCannotBeHadAreWaitedFor(t *testing.T) {
	one := hipotest.File{Schemas: []hipotest.Schema{particle}, Records: []hipotest.Record{{Tag: 1, Events: []hipotest.Event{event(particles(0, 3))}}}}
	a, b := build(t, "a.hipo", one), build(t, "b.hipo", one)
	c, f := openFailing(t, Options{Index: IndexLazy}, a, b)
	first := true
	f.set(func([]byte, int64) (int, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if first {
			first = false
			return 0, &os.PathError{Op: "open", Path: a, Err: syscall.EMFILE}
		}
		return 0, nil
	})
	equal(t, "rows", len(ints(t, bank(t, c.View(), "REC::Particle").Entry())), 6)
}

func TestDeletedFileStaysReadableWhereItIsOpen(t *testing.T) {
	name, want := large(t, 1)
	c, _ := openFailing(t, Options{Index: IndexLazy, Memory: 32 << 10}, name)
	s := &sampler{c, want, rand.New(rand.NewPCG(9, 9))}
	if right, err := s.read(context.Background()); err != nil || !right {
		t.Fatal(right, err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if right, err := s.read(context.Background()); err != nil || !right {
			t.Fatalf("deleted: right %v, %v", right, err)
		}
	}
	if _, err := c.View().Banks()[0].Columns[0].Open(context.Background()); err != nil {
		t.Error(err)
	}
	c.descriptors.close()
	_, err := s.read(context.Background())
	for _, says := range []string{name, "it is gone", "/cache", "jcache get"} {
		if err == nil || !strings.Contains(err.Error(), says) || !errors.Is(err, syscall.ESTALE) {
			t.Fatalf("closed: %v, which does not say %q", err, says)
		}
	}
	if _, err := c.View().Banks()[1].Columns[0].Open(context.Background()); !errors.Is(err, ErrChanged) {
		t.Errorf("open of a column that cannot be read: %v", err)
	}
}

func TestChangeIsToldAtOpen(t *testing.T) {
	name, want := large(t, 1)
	c, _ := openFailing(t, Options{Index: IndexLazy, Memory: 512 << 10}, name)
	cached := c.View().Banks()[4].Columns[3] // 2 bytes a row: it stays in memory
	for range 100 {                          // what is decoded ahead of the reader may push it out again
		if got, _ := readAll(t, cached); string(got) != string(want["T::b4/s"]) {
			t.Fatal("other bytes")
		}
		if cached.inMemory() && c.m.inFlight.Load() == 0 {
			break
		}
	}
	if !cached.inMemory() {
		t.Fatal("the column is not in memory")
	}
	waitForTick(t, name)
	if err := os.Truncate(name, 1000); err != nil {
		t.Fatal(err)
	}
	open := 0
	for _, b := range c.View().Banks() {
		for _, col := range b.Columns {
			_, err := col.Open(context.Background())
			if err == nil {
				open++
				if got, err := serve(col); err != nil || string(got) != string(want[b.Name+"/"+col.Name]) {
					t.Errorf("%s/%s opens, and gives %v, or other bytes", b.Name, col.Name, err)
				}
			} else if !errors.Is(err, ErrChanged) {
				t.Errorf("%s/%s: %v", b.Name, col.Name, err)
			}
		}
	}
	if open == 0 || open == 20 {
		t.Errorf("%d of 20 columns open", open)
	}
}

func TestPassGoesOnWhereItCouldNotRead(t *testing.T) {
	name, want := large(t, 1)
	c, f := openFailing(t, Options{Index: IndexLazy}, name)
	records := c.sources[0].file.Records
	last := records[len(records)-1].Off
	reads := map[int64]int{}
	bad := true
	f.set(func(_ []byte, off int64) (int, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		reads[off]++
		if bad && off == last {
			return 0, syscall.EIO
		}
		return 0, nil
	})
	b := c.View().Banks()[0]
	for range 5 {
		if _, err := b.Rows(context.Background()); !errors.Is(err, syscall.EIO) {
			t.Fatal(err)
		}
	}
	equal(t, "reads of the bad record", reads[last], 5*4)
	equal(t, "files counted", c.Stats().FilesCounted, 0)
	f.mu.Lock()
	bad = false
	f.mu.Unlock()
	if got, _ := readAll(t, b.Columns[0]); string(got) != string(want["T::b0/i"]) {
		t.Error("other bytes")
	}
	equal(t, "reads of the first record", reads[records[0].Off], 1)
	equal(t, "files counted", c.Stats().FilesCounted, 1)
	if p := c.Progress().Counting; p.BytesDone != p.Bytes {
		t.Errorf("progress: %+v", p)
	}
}
