package materialize

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hipofs/hipofs/hipo"
	"github.com/hipofs/hipofs/hipo/hipotest"
)

// kinds is an event with so many structures, each of another kind.
func kinds(n int) (e hipotest.Event) {
	for i := range n {
		e.Structures = append(e.Structures, hipotest.Structure{Group: uint16(1 + i), Item: 1, Type: 1, Data: []byte("x")})
	}
	return e
}

func TestIndexThatAsksForMoreThanAnIndexRemembersIsRefused(t *testing.T) {
	h := &indexHead{asked: make([][2]string, maxAsked)}
	if _, err := parseHead(h.encode(), 0, 0); err != nil {
		t.Fatal(err)
	}
	h.asked = append(h.asked, [2]string{})
	if _, err := parseHead(h.encode(), 0, 0); !errors.Is(err, errIndex) {
		t.Fatalf("%v; want %v", err, errIndex)
	}
}

func TestHeadOfAnIndexIsBoundedByTheFile(t *testing.T) {
	name, _ := large(t, 1)
	st, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	indexed(t, dir, name)
	read := func() error {
		_, err := readIndex(IndexPath(dir, name), uint32(os.Getuid()), st.Size())
		return err
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	changedIndex(t, dir, name, func(h *indexHead, _ *[]byte) {
		h.tables[0].failure = strings.Repeat("x", int(mostIndexHead(st.Size())))
	})
	if err := read(); !errors.Is(err, errIndex) {
		t.Fatalf("%v; want %v", err, errIndex)
	}
}

// held is the bytes that a survey has of groups that are not through.
func (v *survey) held() (n int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, open := range v.open {
		for _, c := range open {
			n += 4 * int64(len(c))
		}
	}
	return n
}

func TestNoIndexIsMadeOfADamagedFile(t *testing.T) {
	f := hipotest.File{}
	for range 3 { // each group of runs has one that is damaged
		bad := hipotest.Record{Tag: 10, Events: make([]hipotest.Event, 400)}
		bad.Section = func(b []byte) []byte { b[0] = 99; return b }
		f.Records = append(f.Records, hipotest.Record{Tag: 1, Events: append([]hipotest.Event{kinds(300)}, make([]hipotest.Event, groupEntries)...)}, bad)
	}
	c := open(t, Options{IndexDir: t.TempDir(), Index: IndexLazy, Threads: 1}, build(t, "a.hipo", f))
	s := c.sources[0]
	s.soFar = &soFar{tables: map[bankID]*table{}, done: make([]bool, len(s.runs)), faults: make([]error, len(s.runs)), survey: newSurvey(s)}
	v := s.soFar.survey
	if err := s.wait(context.Background()); err == nil {
		t.Fatal("a damaged file is counted")
	}
	if n, one := v.held(), int64(4*300*groupEntries); n > one {
		t.Errorf("%d bytes are held after the damage; those of one group are %d", n, one)
	}
}

func TestTooManyKindsForAnIndexAreCountedWithoutOne(t *testing.T) {
	f := hipotest.File{Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{kinds(3000)}},
		{Tag: 10, Events: make([]hipotest.Event, groupEntries/2)}, // a run of its own, in the same group
	}}
	name, dir := build(t, "a.hipo", f), t.TempDir()
	c := open(t, Options{IndexDir: dir, Index: IndexLazy}, name)
	s := c.sources[0]
	if err := s.wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(s.unsaved, errKinds) || len(s.tables) != 3000 {
		t.Errorf("unsaved %v with %d tables; want %v, 3000", s.unsaved, len(s.tables), errKinds)
	}
	if _, err := os.Stat(IndexPath(dir, name)); err == nil {
		t.Error("there is an index")
	}
}

func TestMoreTablesThanAReaderCanCount(t *testing.T) {
	f := hipotest.File{Records: []hipotest.Record{{Tag: 0, Events: []hipotest.Event{kinds(16000)}}}}
	for i := range 1000 { // each a run of its own
		f.Records = append(f.Records, hipotest.Record{Tag: 13 * (1 - i%2), Events: []hipotest.Event{{}}})
	}
	c := open(t, Options{Index: IndexLazy}, build(t, "a.hipo", f))
	err := c.sources[0].wait(context.Background())
	var fe *hipo.FormatError
	if !errors.As(err, &fe) || !strings.Contains(err.Error(), "more than a reader can count") {
		t.Fatalf("%v", err)
	}
}

func TestMountLeavesAnIndexThatWasMadeSince(t *testing.T) {
	f := hipotest.File{Schemas: []hipotest.Schema{particle, track}}
	for i := range 3 {
		f.Records = append(f.Records, hipotest.Record{Tag: 10, Events: []hipotest.Event{event(particles(10*i, 3)), event(particles(10*i+3, 1), tracks(0))}})
	}
	name, dir := build(t, "a.hipo", f), t.TempDir()
	first := open(t, Options{IndexDir: dir}, name) // its index remembers what was asked for, and is longer by that
	if _, err := serve(bank(t, first.View(), particle.Name).Columns[0]); err != nil {
		t.Fatal(err)
	}
	first.Close()
	waitForTick(t, name)
	if err := os.Chmod(name, 0o600); err != nil {
		t.Fatal(err)
	}
	stays := open(t, Options{IndexDir: dir}, name)
	indexed(t, dir, name)
	if _, err := serve(bank(t, stays.View(), particle.Name).Offsets()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(IndexPath(dir, name)); err != nil {
		t.Errorf("the index that was made meanwhile: %v", err)
	}
	if stays.sources[0].index.Load() == nil {
		t.Error("the mount goes by no index any more")
	}
}

func TestIndexSurvivesAWantOfDescriptors(t *testing.T) {
	name, _ := large(t, 1)
	dir := t.TempDir()
	indexed(t, dir, name)
	c := open(t, Options{IndexDir: dir}, name)
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	low := old
	low.Cur = 3
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	_, _ = serve(bank(t, c.View(), "T::b0").Offsets())
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(IndexPath(dir, name)); err != nil || c.sources[0].index.Load() == nil {
		t.Errorf("the index is gone: %v", err)
	}
	if _, err := serve(bank(t, c.View(), "T::b0").Offsets()); err != nil {
		t.Error(err)
	}
}

func TestIndexOfAStructureOfSeveralKindsIsUsed(t *testing.T) {
	var events []hipotest.Event
	for i := range 50 {
		format := "ii"
		if i%2 == 0 {
			format = "2i"
		}
		events = append(events, event(hipotest.Composite(7, 5, format, hipotest.Pack(int32(i), int32(2)))))
	}
	name, dir := build(t, "a.hipo", hipotest.File{Records: []hipotest.Record{{Tag: 13, Events: events}}}), t.TempDir()
	_ = Index(context.Background(), []string{name}, IndexOptions{Dir: dir}, func(Indexed) {})
	c := open(t, Options{IndexDir: dir}, name)
	if c.sources[0].index.Load() == nil {
		t.Error("the index that was just made is not used")
	}
}

func TestRefusedIndexLeavesNoFaults(t *testing.T) {
	name, _ := large(t, 1)
	dir := t.TempDir()
	indexed(t, dir, name)
	changedIndex(t, dir, name, func(h *indexHead, _ *[]byte) {
		h.tables[0].failure = "made up"
		h.tables[len(h.tables)-1].filled = 1 << 40
	})
	c := open(t, Options{IndexDir: dir}, name)
	if err := c.sources[0].wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, f := range c.faults.all() {
		if strings.Contains(f.Message, "made up") {
			t.Errorf("the fault of an index that was refused: %+v", f)
		}
	}
}

func TestSkipLeavesOutWhatIsNotAsItWasIndexed(t *testing.T) {
	for _, tag := range []int{0, 1, 13, 14} {
		name, _ := large(t, tag)
		dir := t.TempDir()
		indexed(t, dir, name)
		all := open(t, Options{Index: IndexLazy}, name)
		records, entries := all.View().Records(), all.View().Entries()
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		bad := records[1]
		b[bad.Byte+bad.Length-100] ^= 1 // a value: nothing but the index can tell
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, st.ModTime(), st.ModTime()); err != nil {
			t.Fatal(err)
		}
		c := open(t, Options{Skip: true, IndexDir: dir, Index: IndexLazy}, name)
		if got, want := c.View().Entries(), entries-int64(bad.Events); got != want {
			t.Errorf("tag %d: %d entries, want %d", tag, got, want)
		}
		if f := c.Files()[0]; f.Lost != int64(bad.Events) || !strings.Contains(f.LeftOut, "not those that were indexed") {
			t.Errorf("tag %d: lost %d, left out %q", tag, f.Lost, f.LeftOut)
		}
		if c := open(t, Options{Skip: true, Index: IndexLazy, Without: map[string][]int64{name: {bad.Byte}}}, name); c.View().Entries() != entries-int64(bad.Events) {
			t.Errorf("tag %d: %d entries without a record", tag, c.View().Entries())
		}
		// An index of another time says nothing of the file as it is.
		later := st.ModTime().Add(time.Hour)
		if err := os.Chtimes(name, later, later); err != nil {
			t.Fatal(err)
		}
		if c := open(t, Options{Skip: true, IndexDir: dir, Index: IndexLazy}, name); tag == 0 && c.View().Entries() != entries {
			t.Errorf("tag %d: %d entries with an index of another time", tag, c.View().Entries())
		}
	}
}
