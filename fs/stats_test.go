package fs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/hipofs/hipofs/hipo/hipotest"
	"github.com/hipofs/hipofs/materialize"
)

func TestControlFilesAreLikeThoseOfProc(t *testing.T) {
	chain := open(t, materialize.Options{}, codecs+"tag01_lz4_perchunk.hipo")
	dir := mount(t, Options{Version: "1.2.3"}, chain)
	for _, name := range []string{"stats.json", "progress.json", "errors.json", "metrics"} {
		path := dir + "/.hipofs/" + name
		if got := run(t, "stat", "-c", "%s %A", path); got != "0 -r--r--r--\n" {
			t.Errorf("%s: %s", name, got)
		}
		if text := run(t, "cat", path); text == "" || !strings.HasSuffix(text, "\n") {
			t.Errorf("%s: %q", name, text)
		}
		// What is read in pieces is what was true when it was opened.
		script := `exec 3<"$1"; head -c 1 <&3 >/dev/null; cat "$2" >/dev/null; cat <&3`
		text := run(t, "sh", "-c", script, "sh", path, dir+"/CODEC::hits/x.npy")
		if name != "metrics" && !json.Valid([]byte(strings.TrimSpace("{["[btoi(name == "errors.json"):][:1]+text))) {
			t.Errorf("%s, read in pieces: %s", name, text)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// statsOf reads a mount's stats.json in another process.
func statsOf(t *testing.T, dir string) Stats {
	t.Helper()
	var s Stats
	d := json.NewDecoder(strings.NewReader(run(t, "cat", dir+"/.hipofs/stats.json")))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStatsOfAMount(t *testing.T) {
	before := time.Now()
	chain := open(t, materialize.Options{}, codecs+"tag01_lz4_perchunk.hipo")
	dir := mount(t, Options{Version: "1.2.3"}, chain)
	served := len(run(t, "cat", dir+"/CODEC::hits/x.npy"))
	s := statsOf(t, dir)
	if s.Version != "1.2.3" || s.PID != os.Getpid() || s.Mounted.Before(before) || !s.Time.After(s.Mounted) || s.Time.After(time.Now()) {
		t.Errorf("%+v", s)
	}
	// /proc/self/fd has at least 0, 1, 2, /dev/fuse and the source.
	if s.ResidentBytes < 1<<20 || s.OpenDescriptors < 5 || s.Goroutines < 2 || s.OpenSources != 1 {
		t.Errorf("%+v", s)
	}
	if s.BytesServed != int64(served) || s.Files != 1 || s.FilesCounted != 1 || s.Errors != 0 || len(s.Waiting) != 0 {
		t.Errorf("%d bytes served, %d read: %+v", s.BytesServed, served, s)
	}
	if s.Counting.State != "done" || s.Counting.BytesDone != s.Counting.Bytes || s.Prefetch.State != "none" {
		t.Errorf("%+v", s.Progress)
	}
}

func TestMetricsAreWhatPrometheusReads(t *testing.T) {
	chain := open(t, materialize.Options{}, codecs+"tag01_lz4_perchunk.hipo")
	dir := mount(t, Options{Version: `1."2\` + "\n"}, chain)
	served := len(run(t, "cat", dir+"/CODEC::hits/x.npy"))
	text := run(t, "cat", dir+"/.hipofs/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if len(families) != len(metrics)+1 {
		t.Errorf("%d metrics, not %d", len(families), len(metrics)+1)
	}
	for name, f := range families {
		if !strings.HasPrefix(name, "hipofs_") || f.GetHelp() == "" || len(f.Metric) != 1 {
			t.Errorf("%s: %v", name, f)
		}
		if counts := f.Metric[0].Counter != nil; counts != strings.HasSuffix(name, "_total") {
			t.Errorf("%s: a counter is called …_total, and nothing else is", name)
		}
	}
	if v := families["hipofs_bytes_served_total"].Metric[0].Counter.GetValue(); v != float64(served) {
		t.Errorf("%v bytes served, %d read", v, served)
	}
	if v := families["hipofs_info"].Metric[0].Label[0].GetValue(); v != `1."2\`+"\n" {
		t.Errorf("version %q", v)
	}
}

func TestWhatTheBorderMetIsInErrors(t *testing.T) {
	var said log
	name := write(t, "tiny.hipo", must(os.ReadFile(codecs+"tiny.hipo")))
	chain := open(t, materialize.Options{Index: materialize.IndexLazy, Log: said.logger()}, name)
	dir := mount(t, Options{Log: said.logger()}, chain)
	column := filepath.Join(dir, firstBank(t, dir), "offsets.npy")
	check(os.Truncate(name, 10))
	for range 3 {
		if got := in(t, "open", column); got != "ESTALE" {
			t.Error(got)
		}
	}
	var faults []materialize.ErrorInfo
	if err := json.Unmarshal([]byte(run(t, "cat", dir+"/.hipofs/errors.json")), &faults); err != nil {
		t.Fatal(err)
	}
	if len(faults) != 1 || !strings.Contains(faults[0].Message, name) || statsOf(t, dir).Errors != 1 {
		t.Errorf("%+v", faults)
	}
	if n := strings.Count(said.String(), "level=ERROR"); n != 1 {
		t.Errorf("said %d times:\n%s", n, said.String())
	}
}

// panicking are contents that panic wherever they are told to.
type panicking struct{ where string }

func (p panicking) panicAt(where string) {
	if p.where == where {
		panic("as told, at " + where)
	}
}

func (p panicking) find(_ context.Context, name string, at place) (node, error) {
	p.panicAt("find")
	return newDocument(at, nil), nil
}

func (p panicking) list(context.Context) ([]entry, error) { p.panicAt("list"); return nil, nil }
func (p panicking) subfolders() uint32                    { return 0 }

// panickingFile is a regular file whose handlers panic where they are told to.
type panickingFile struct {
	fusefs.Inode
	place
	panicking
}

var _ = (fusefs.NodeGetattrer)((*panickingFile)(nil))
var _ = (fusefs.NodeOpener)((*panickingFile)(nil))
var _ = (fusefs.NodeReader)((*panickingFile)(nil))
var _ = (fusefs.NodeLseeker)((*panickingFile)(nil))
var _ = (fusefs.NodeGetxattrer)((*panickingFile)(nil))
var _ = (fusefs.NodeStatfser)((*panickingFile)(nil))

func (f *panickingFile) kind() uint32 { return syscall.S_IFREG }

func (f *panickingFile) look(_ context.Context, out *fuse.EntryOut) syscall.Errno {
	f.panicAt("look")
	f.fill(&out.Attr, syscall.S_IFREG, 100)
	return 0
}

func (f *panickingFile) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	f.panicAt("getattr")
	f.fill(&out.Attr, syscall.S_IFREG, 100)
	return 0
}

func (f *panickingFile) Open(context.Context, uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	f.panicAt("open")
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (f *panickingFile) Read(context.Context, fusefs.FileHandle, []byte, int64) (fuse.ReadResult, syscall.Errno) {
	f.panicAt("read")
	return fuse.ReadResultData(nil), 0
}

func (f *panickingFile) Lseek(context.Context, fusefs.FileHandle, uint64, uint32) (uint64, syscall.Errno) {
	f.panicAt("lseek")
	return 0, 0
}

func (f *panickingFile) Getxattr(context.Context, string, []byte) (uint32, syscall.Errno) {
	f.panicAt("getxattr")
	return 0, syscall.ENODATA
}

// Statfs is not asked of the file that a program names, but of the mount.
func (f *panickingFile) Statfs(context.Context, *fuse.StatfsOut) syscall.Errno { return 0 }

func TestPanicAnywhereIsEIOAndTheMountGoesOn(t *testing.T) {
	for _, tt := range []struct {
		where string
		op    []string // of a child, with the path
	}{
		{"find", []string{"stat", "x/new"}},
		{"list", []string{"readdir", "x"}},
		{"make", []string{"stat", "make"}},
		{"look", []string{"stat", "look"}},
		{"getattr", []string{"stat", "getattr"}},
		{"open", []string{"open", "open"}},
		{"read", []string{"read", "read"}},
		{"lseek", []string{"hole", "lseek"}},
		{"getxattr", []string{"xattr", "getxattr", "user.x"}},
		{"readlink", []string{"readlink", "readlink"}},
		{"live", []string{"open", "live"}},
		{"render", []string{"read", "render"}},
	} {
		t.Run(tt.where, func(t *testing.T) {
			var said log
			o := Options{Log: said.logger()}
			root := newRoot(open(t, materialize.Options{}, codecs+"tiny.hipo"), o, new(readAhead))
			p := panicking{tt.where}
			handler := func(at place) node { return &panickingFile{place: at, panicking: p} }
			looks := 0
			root.in = newFixed(append(root.in.(*fixed).entries,
				entry{"x", syscall.S_IFDIR, func(at place) node { return &folder{place: at, in: p} }},
				entry{"make", syscall.S_IFREG, func(place) node { p.panicAt("make"); return nil }},
				entry{"look", syscall.S_IFREG, handler},
				entry{"getattr", syscall.S_IFREG, handler},
				entry{"open", syscall.S_IFREG, handler},
				entry{"read", syscall.S_IFREG, handler},
				entry{"lseek", syscall.S_IFREG, handler},
				entry{"getxattr", syscall.S_IFREG, handler},
				entry{"readlink", syscall.S_IFLNK, func(at place) node { return &panickingLink{link{place: at}, p} }},
				liveJSON("live", func() any { p.panicAt("live"); return nil }),
				entry{"render", syscall.S_IFREG, func(at place) node {
					return newDocument(at, func(context.Context) ([]byte, error) {
						if looks++; looks > 1 {
							p.panicAt("render")
						}
						return []byte("x"), nil
					})
				}},
			))
			dir := t.TempDir()
			s := must(serve(must(connect(dir, o)), root, o))
			ends(t, dir, s)
			args := append([]string{dir + "/" + tt.op[1]}, tt.op[2:]...)
			for range 2 {
				if got := in(t, tt.op[0], args...); got != "EIO" {
					t.Errorf("%s: %s", tt.op[0], got)
				}
			}
			if n := strings.Count(said.String(), "as told, at "+tt.where); n != 1 || !strings.Contains(said.String(), "stack=") || strings.Count(said.String(), "\n") != n {
				t.Errorf("not one line with a stack: %s", said.String())
			}
			run(t, "cat", filepath.Join(dir, firstBank(t, dir), "offsets.npy"))
		})
	}
}

type panickingLink struct {
	link
	panicking
}

func (l *panickingLink) Readlink(context.Context) ([]byte, syscall.Errno) {
	l.panicAt("readlink")
	return nil, 0
}

// slow is a chain of a source that hangs once its gate is locked, and one that
// does not, mounted.
func slow(t *testing.T, o materialize.Options, data []byte, other string) (dir string, gate *gated, chain *materialize.Chain) {
	t.Helper()
	gate = &gated{data: data, waiting: make(chan struct{}, 1<<16)}
	o.Index = materialize.IndexLazy
	chain = open(t, o, gate.mount(t), other)
	return mount(t, Options{}, chain), gate, chain
}

func TestSourceThatHangsHoldsUpNoOther(t *testing.T) {
	b := must(os.ReadFile(codecs + "tag01_lz4_perchunk.hipo"))
	dir, gate, chain := slow(t, materialize.Options{Threads: 1}, b, codecs+"tag02_lz4hc_perchunk.hipo")
	gate.mu.Lock()
	unlock := sync.OnceFunc(gate.mu.Unlock)
	defer unlock()

	// On the one thread that there is, for the source that hangs.
	hanging := dir + "/.files/run.hipo/CODEC::hits/x.npy"
	patient := childCommand("open", hanging)
	var out bytes.Buffer
	patient.Stdout = &out
	if err := patient.Start(); err != nil {
		t.Fatal(err)
	}
	<-gate.waiting
	// Others are read all the same.
	good := dir + "/.files/tag02_lz4hc_perchunk.hipo/CODEC::hits/x.npy"
	run(t, "cat", good)
	s := statsOf(t, dir)
	if len(s.Waiting) != 1 || s.Waiting[0].PID != patient.Process.Pid || s.Waiting[0].Bank != "CODEC::hits" || s.Waiting[0].Column != "x" || s.Waiting[0].For != "counting" {
		t.Errorf("%+v", s.Waiting)
	}
	if comm := must(os.ReadFile(fmt.Sprintf("/proc/%d/comm", patient.Process.Pid))); s.Waiting[0].Command+"\n" != string(comm) {
		t.Errorf("%+v", s.Waiting)
	}
	if s.DecodesStalled != 1 || s.DecodesInFlight != 1 {
		t.Errorf("%d decodes, %d stalled", s.DecodesInFlight, s.DecodesStalled)
	}
	if got := in(t, "interrupted-open", hanging); got != "EINTR" {
		t.Error(got)
	}
	unlock()
	if err := patient.Wait(); err != nil || out.String() != "open\n" {
		t.Errorf("%v: %s", err, out.String())
	}
	if s := chain.Stats(); s.DecodesStalled != 0 {
		t.Errorf("%d stalled", s.DecodesStalled)
	}
}

// hanging is a source that hangs from now on, until the function is called.
func hanging(gate *gated) (goOn func()) {
	gate.mu.Lock()
	return sync.OnceFunc(gate.mu.Unlock)
}

func TestDecodeOfASourceThatHangsHoldsUpNoOther(t *testing.T) {
	// Counting reads the directories of these records, opening a column its streams.
	b := must(os.ReadFile(codecs + "tag08_zstd_percolumn.hipo"))
	dir, gate, _ := slow(t, materialize.Options{Threads: 1}, b, codecs+"tag02_lz4hc_perchunk.hipo")
	column := dir + "/.files/run.hipo/CODEC::hits/x.npy"
	run(t, "stat", column)
	goOn := hanging(gate)
	defer goOn()
	patient := childCommand("open", column)
	var out bytes.Buffer
	patient.Stdout = &out
	check(patient.Start())
	<-gate.waiting
	run(t, "cat", dir+"/.files/tag02_lz4hc_perchunk.hipo/CODEC::hits/x.npy")
	run(t, "stat", dir+"/.files/run.hipo/CODEC::hits/t.npy", column) // what is known is told
	w := statsOf(t, dir).Waiting
	if len(w) != 1 || w[0].PID != patient.Process.Pid || w[0].Column != "x" || w[0].For != "decoding" || filepath.Base(string(w[0].File)) != "run.hipo" {
		t.Errorf("%+v", w)
	}
	if got := in(t, "interrupted-open", column); got != "EINTR" {
		t.Error(got)
	}
	goOn()
	if err := patient.Wait(); err != nil || out.String() != "open\n" {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestSourcesThatHangHoldUpNoOtherHoweverMany(t *testing.T) {
	b := must(os.ReadFile(codecs + "tag01_lz4_perchunk.hipo"))
	var gates []*gated
	var names []string
	for range 4 {
		gate := &gated{data: b, waiting: make(chan struct{}, 1<<16)}
		gates, names = append(gates, gate), append(names, gate.mount(t))
	}
	names = append(names, codecs+"tag02_lz4hc_perchunk.hipo")
	chain := open(t, materialize.Options{Threads: 2, Index: materialize.IndexLazy}, names...)
	dir := mount(t, Options{}, chain)
	var patient []*exec.Cmd
	var goOn []func()
	for i, gate := range gates {
		goOn = append(goOn, hanging(gate))
		defer goOn[i]()
		folder := "run.hipo"
		if i > 0 {
			folder = fmt.Sprintf("run.hipo~%d", i+1)
		}
		cmd := childCommand("pread", dir+"/.files/"+folder+"/CODEC::hits/x.npy", "0", "200")
		check(cmd.Start())
		patient = append(patient, cmd)
	}
	// The first two have the threads, until they are seen to hang; then the others.
	for _, gate := range gates {
		<-gate.waiting
	}
	run(t, "cat", dir+"/.files/tag02_lz4hc_perchunk.hipo/CODEC::hits/x.npy")
	if s := statsOf(t, dir); len(s.Waiting) != len(gates) || s.DecodesStalled < 2 {
		t.Errorf("%+v", s)
	}
	for i := range gates {
		goOn[i]()
		if err := patient[i].Wait(); err != nil {
			t.Error(err)
		}
	}
	if s := chain.Stats(); s.DecodesStalled != 0 || s.Errors != 0 {
		t.Errorf("%+v", s)
	}
}

// A process whose source hangs ends all the same when its mount does.
func TestChainClosesThoughASourceHangs(t *testing.T) {
	var said log
	gate := &gated{data: must(os.ReadFile(codecs + "tag01_lz4_perchunk.hipo")), waiting: make(chan struct{}, 1<<16)}
	names := []string{gate.mount(t)}
	chain := must(materialize.Open(context.Background(), names, materialize.Options{Index: materialize.IndexLazy, Log: said.logger()}))
	goOn := hanging(gate)
	defer goOn()
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan error)
	go func() {
		_, err := chain.View().Banks()[0].Rows(ctx)
		left <- err
	}()
	<-gate.waiting
	cancel()
	<-left
	check(chain.Close())
	if !strings.Contains(said.String(), "a source hangs") {
		t.Errorf("said %q", said.String())
	}
}

func TestAThousandBlockedOpensLeaveTheRestAlone(t *testing.T) {
	const banks, each = 20, 50
	var f hipotest.File
	var e hipotest.Event
	for i := range banks {
		f.Schemas = append(f.Schemas, hipotest.Schema{Name: fmt.Sprintf("B::%d", i), Group: 100, Item: uint8(i), Columns: "x/I"})
		e.Structures = append(e.Structures, hipotest.Bank(100, uint8(i), hipotest.Pack([]int32{int32(i)})))
	}
	f.Records = []hipotest.Record{{Tag: 1, Events: []hipotest.Event{e}}}
	dir, gate, _ := slow(t, materialize.Options{Threads: 2}, f.Bytes(), codecs+"tag01_lz4_perchunk.hipo")
	gate.mu.Lock()
	unlock := sync.OnceFunc(gate.mu.Unlock)
	defer unlock()

	// Each process opens every bank in a thread of its own.
	var blocked []*exec.Cmd
	var outs []*bytes.Buffer
	for range each {
		args := []string{}
		for i := range banks {
			args = append(args, fmt.Sprintf("%s/.files/run.hipo/B::%d/x.npy", dir, i))
		}
		cmd := childCommand("open-all", args...)
		out := new(bytes.Buffer)
		cmd.Stdout = out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		blocked, outs = append(blocked, cmd), append(outs, out)
	}
	<-gate.waiting
	var s Stats
	for deadline := time.Now().Add(time.Minute); len(s.Waiting) < banks*each; {
		if s = statsOf(t, dir); time.Now().After(deadline) {
			t.Fatalf("%d of %d wait", len(s.Waiting), banks*each)
		}
	}
	pids := map[int]int{}
	for _, w := range s.Waiting {
		pids[w.PID]++
	}
	for _, cmd := range blocked {
		if pids[cmd.Process.Pid] != banks {
			t.Errorf("process %d waits %d times, not %d", cmd.Process.Pid, pids[cmd.Process.Pid], banks)
		}
	}
	// The rest answers while they wait.
	run(t, "ls", dir, dir+"/.files/run.hipo", dir+"/.files/run.hipo/B::0", dir+"/.hipofs")
	run(t, "ls", "-ld", dir+"/B::0", dir+"/.files/run.hipo/B::0")
	run(t, "sh", "-c", `stat "$1"/*.npy && cat "$1"/*.npy >/dev/null`, "sh", dir+"/.files/tag01_lz4_perchunk.hipo/CODEC::hits")
	unlock()
	for i, cmd := range blocked {
		if err := cmd.Wait(); err != nil || outs[i].String() != strings.Repeat("open\n", banks) {
			t.Errorf("%v: %s", err, outs[i])
		}
	}
	if s := statsOf(t, dir); len(s.Waiting) != 0 || s.WaitSeconds <= 0 {
		t.Errorf("%+v", s)
	}
}
