package fs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/hipo/hipotest"
	"github.com/hipofs/hipofs/materialize"
)

// The tests mount for real. What looks at a mount is a child: a process that
// uses a mount it serves can wait for itself.

const codecs = "../hipo/testdata/codecs/"

func TestMain(m *testing.M) {
	if op := os.Getenv("HIPOFS_TEST_CHILD"); op != "" {
		child(op, os.Args[1:])
		return
	}
	status := m.Run()
	for _, dir := range points {
		if line := mountLine(dir); line != "" {
			fmt.Println("mount left behind:", line)
			status = 1
		}
	}
	os.Exit(status)
}

var points []string // where the tests have mounted

// mountLine is what /proc/self/mounts says of a mount point.
func mountLine(dir string) string {
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(table)) {
		if strings.Fields(line)[1] == dir {
			return line
		}
	}
	return ""
}

// log is a logger's lines.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *log) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func open(t *testing.T, o materialize.Options, names ...string) *materialize.Chain {
	t.Helper()
	chain, err := materialize.Open(context.Background(), names, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { chain.Close() })
	return chain
}

// mount mounts a chain in a folder of its own until the test ends.
func mount(t *testing.T, o Options, chain *materialize.Chain) string {
	t.Helper()
	dir := t.TempDir()
	s, err := Mount(dir, chain, o)
	if err != nil {
		t.Fatal(err)
	}
	ends(t, dir, s)
	return dir
}

func ends(t *testing.T, dir string, s *Server) {
	points = append(points, dir)
	t.Cleanup(func() {
		if err := s.Unmount(); err != nil {
			t.Error(err)
		}
		s.Wait()
	})
}

// run is the output of a command that must succeed.
func run(t *testing.T, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, &stderr)
	}
	return string(out)
}

// in is the output of this program's child.
func in(t *testing.T, op string, args ...string) string {
	t.Helper()
	cmd := childCommand(op, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("child %s: %v\n%s", op, err, out)
	}
	return strings.TrimSpace(string(out))
}

func childCommand(op string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "HIPOFS_TEST_CHILD="+op, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// files of a view by their path below the mount.
func columnsOf(t *testing.T, view *materialize.View) map[string]*materialize.Column {
	t.Helper()
	columns := map[string]*materialize.Column{
		".hipofs/event_tags.npy":  view.EventTags(),
		".hipofs/record_tags.npy": view.RecordTags(),
		".hipofs/entries.npy":     view.EntryNumbers(),
	}
	add := func(folder string, b *materialize.Bank) {
		columns[folder+"/offsets.npy"] = b.Offsets()
		columns[folder+"/@entry.npy"] = b.Entry()
		if b.Pointer != nil {
			columns[folder+"/@"+b.PointsTo+".npy"] = b.Pointer
		}
		for _, c := range b.Columns {
			columns[folder+"/"+c.Name+".npy"] = c
		}
	}
	for _, b := range view.Banks() {
		add(b.Name, b)
	}
	nodes, err := view.Nodes(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range nodes {
		add(".nodes/"+b.Name, b)
	}
	return columns
}

func content(t *testing.T, c *materialize.Column) []byte {
	t.Helper()
	ctx := context.Background()
	size, err := c.Size(ctx)
	if err == nil {
		_, err = c.Open(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if n, err := c.ReadAt(ctx, b, 0); err != nil || int64(n) != size {
		t.Fatalf("%s: %d of %d bytes: %v", c.Name, n, size, err)
	}
	return b
}

func TestEveryColumnIsAFileOfItsBytes(t *testing.T) {
	for _, name := range []string{
		"tag01_lz4_perchunk", "tag08_zstd_percolumn", "composite", "empty_dictionary", "meta", "record_tags", "zero_events",
	} {
		t.Run(name, func(t *testing.T) {
			chain := open(t, materialize.Options{}, codecs+name+".hipo")
			dir := mount(t, Options{}, chain)
			want := map[string]string{}
			sizes := map[string]int{}
			for path, c := range columnsOf(t, chain.View()) {
				b := content(t, c)
				want[path] = fmt.Sprintf("%x", sha256.Sum256(b))
				sizes[path] = len(b)
			}

			// Sizes first, and again when everything has been read.
			checkSizes := func() {
				for line := range strings.Lines(run(t, "find", dir, "-name", "*.npy", "-printf", "%s %b %P\n")) {
					var size, blocks int
					var path string
					if _, err := fmt.Sscanf(line, "%d %d %s", &size, &blocks, &path); err != nil {
						t.Fatal(err)
					}
					if size != sizes[path] || blocks != (size+511)/512 {
						t.Errorf("%s: size %d in %d blocks, not %d", path, size, blocks, sizes[path])
					}
				}
			}
			checkSizes()
			got := map[string]string{}
			for line := range strings.Lines(run(t, "find", dir, "-name", "*.npy", "-exec", "sha256sum", "{}", "+")) {
				sum, path, _ := strings.Cut(strings.TrimSpace(line), "  ")
				got[strings.TrimPrefix(path, dir+"/")] = sum
			}
			checkSizes()
			if len(got) != len(want) {
				t.Errorf("%d files, not %d", len(got), len(want))
			}
			for path, sum := range want {
				if got[path] != sum {
					t.Errorf("%s: %s, not %s", path, got[path], sum)
				}
			}
		})
	}
}

func TestReadsAtOddPlaces(t *testing.T) {
	chain := open(t, materialize.Options{}, codecs+"tag07_lz4hc_percolumn.hipo")
	dir := mount(t, Options{}, chain)
	c := columnsOf(t, chain.View())["CODEC::hits/t.npy"]
	want := content(t, c)
	file := dir + "/CODEC::hits/t.npy"
	n := len(want)
	for _, tt := range []struct{ off, length int }{
		{0, 1}, {1, 7}, {127, 2}, {n - 1, 1}, {n - 1, 5}, {n, 5}, {n + 1, 5}, {n + 5000, 5}, {0, n}, {0, n + 1}, {3, n},
	} {
		at := func(i int) int { return min(i, n) }
		wanted := fmt.Sprintf("%x", want[at(tt.off):at(tt.off+tt.length)])
		if got := in(t, "pread", file, fmt.Sprint(tt.off), fmt.Sprint(tt.length)); got != wanted {
			t.Errorf("%d bytes at %d: %s, not %s", tt.length, tt.off, got, wanted)
		}
	}
	if got := in(t, "direct", file); got != fmt.Sprintf("%x", want[:min(n, 4096)]) {
		t.Errorf("with O_DIRECT: %s", got)
	}
	if got := in(t, "mmap", file); got != fmt.Sprintf("%x", sha256.Sum256(want)) {
		t.Errorf("mapped: %s", got)
	}
}

func TestDataIsDataToTheEnd(t *testing.T) {
	dir := mount(t, Options{}, open(t, materialize.Options{}, codecs+"tiny.hipo"))
	for _, name := range []string{"SM::event/offsets.npy", "SM::event/schema.json"} {
		name = dir + "/" + filepath.Join(firstBank(t, dir), filepath.Base(name))
		n := len(run(t, "cat", name))
		want := fmt.Sprintf("data 0=0 hole 0=%d data %d=%d hole %d=%d data %d=ENXIO hole %d=ENXIO data %d=ENXIO hole %d=ENXIO end=%d",
			n, n-1, n-1, n-1, n, n, n, n+1, n+1, n)
		if got := in(t, "seek", name, fmt.Sprint(n)); got != want {
			t.Errorf("%s:\n%s, not\n%s", name, got, want)
		}
	}
}

// firstBank is a bank's folder.
func firstBank(t *testing.T, dir string) string {
	t.Helper()
	for name := range strings.Lines(run(t, "ls", dir)) {
		if name = strings.TrimSpace(name); name != cacheTag {
			return name
		}
	}
	t.Fatal("no banks")
	return ""
}

func TestPagesStayAcrossOpens(t *testing.T) {
	chain := open(t, materialize.Options{}, codecs+"tag01_lz4_perchunk.hipo")
	dir := mount(t, Options{}, chain)
	run(t, "cat", dir+"/CODEC::hits/x.npy")
	before := chain.Stats().BytesServed
	run(t, "cat", dir+"/CODEC::hits/x.npy")
	if after := chain.Stats().BytesServed; after != before || before == 0 {
		t.Errorf("%d bytes served, then %d", before, after)
	}
}

func TestListings(t *testing.T) {
	chain := open(t, materialize.Options{}, codecs+"tag01_lz4_perchunk.hipo", codecs+"tiny.hipo")
	numbers := func() string {
		dir := mount(t, Options{}, chain)
		for _, folder := range []string{"", "CODEC::hits", ".nodes", ".files", ".hipofs", ".hipofs/populated", ".files/tiny.hipo"} {
			if got := in(t, "list", filepath.Join(dir, folder)); got != "ok" {
				t.Errorf("/%s: %s", folder, got)
			}
		}
		if out := run(t, "ls", "-A", dir+"/.files"); out != "" {
			t.Errorf(".files lists %s", out)
		}
		return run(t, "find", dir, "-printf", "%i %y %P\n")
	}
	first := numbers()
	if again := numbers(); again != first {
		t.Errorf("another mount has other inodes:\n%s\n%s", first, again)
	}
	seen := map[string]string{}
	for line := range strings.Lines(first) {
		ino, path, _ := strings.Cut(line, " ")
		if other, ok := seen[ino]; ok || ino == "0" {
			t.Errorf("inode %s: %s and %s", ino, path, other)
		}
		seen[ino] = path
	}
}

func TestFoldersHaveTheLinksThatWalkersCount(t *testing.T) {
	dir := mount(t, Options{}, open(t, materialize.Options{}, codecs+"tag01_lz4_perchunk.hipo"))
	for line := range strings.Lines(run(t, "find", dir, "-type", "d", "-printf", "%n %p\n")) {
		var links int
		var path string
		if _, err := fmt.Sscanf(line, "%d %s", &links, &path); err != nil {
			t.Fatal(err)
		}
		folders := strings.Count(run(t, "find", path, "-mindepth", "1", "-maxdepth", "1", "-type", "d", "-printf", "x"), "x")
		if links < 2+folders {
			t.Errorf("%s: %d links, %d folders", path, links, folders)
		}
	}
}

func TestDictionaryOf70000IsListedAtOnce(t *testing.T) {
	var f hipotest.File
	for i := range 70000 {
		f.Schemas = append(f.Schemas, hipotest.Schema{Name: fmt.Sprintf("B::%d", i), Group: uint16(i % 60000), Item: uint8(1 + i/60000),
			Columns: "x/F", Form: hipotest.TextOnly})
	}
	chain := open(t, materialize.Options{}, write(t, "many.hipo", f.Bytes()))
	dir := mount(t, Options{}, chain)
	if got := strings.Count(run(t, "ls", "-f", dir), "\n"); got != 2*70000+2+6+4 {
		t.Errorf("%d names", got)
	}
	if got := run(t, "stat", "-c", "%s", dir+"/B::69999/x.npy"); got != "128\n" {
		t.Errorf("size %s", got)
	}
}

func write(t *testing.T, name string, b []byte) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// results are a child's lines "name: result".
func results(t *testing.T, out string) map[string]string {
	t.Helper()
	m := map[string]string{}
	for line := range strings.Lines(out) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok {
			t.Fatal(out)
		}
		m[k] = v
	}
	return m
}

func TestExtendedAttributesComeFromMemory(t *testing.T) {
	chain := open(t, materialize.Options{Index: materialize.IndexLazy}, codecs+"tag01_lz4_perchunk.hipo")
	dir := mount(t, Options{DotNames: true}, chain)
	for _, tt := range []struct{ path, name, want string }{
		{"CODEC.hits", "user.hipofs.name", "CODEC::hits"},
		{"CODEC.hits", "security.capability", "ENODATA"},
		{"CODEC.hits", "user.hipofs.realpath", "ENODATA"},
		{"", "user.hipofs.name", "ENODATA"},
		{"CODEC.hits/x.npy", "user.hipofs.name", "x"},
		{"CODEC.hits/x.npy", "user.hipofs.realpath", "ENODATA"},
		{"CODEC.hits/x.npy", "security.selinux", "ENODATA"},
		{"CODEC.hits/@entry.npy", "user.hipofs.name", "@entry"},
		{"CODEC.hits/offsets.npy", "user.hipofs.name", "offsets"},
		{"CODEC.hits/x.npy", "", ""}, // listxattr
		{"CODEC.hits", "", ""},
	} {
		if got := in(t, "xattr", filepath.Join(dir, tt.path), tt.name); got != tt.want {
			t.Errorf("%s %s: %s, not %s", tt.path, tt.name, got, tt.want)
		}
	}
}

func TestUnknownNamesAreNotThere(t *testing.T) {
	dir := mount(t, Options{}, open(t, materialize.Options{}, codecs+"tiny.hipo"))
	for _, folder := range []string{"", firstBank(t, dir), ".nodes", ".files", ".hipofs", ".hipofs/populated"} {
		for _, name := range []string{".git", ".Trash", ".hidden", "._x", ".localized", "x", "1.1", "x.npy.npy"} {
			if got := in(t, "stat", filepath.Join(dir, folder, name)); got != "ENOENT" {
				t.Errorf("%s/%s: %s", folder, name, got)
			}
		}
		if got := in(t, "stat", filepath.Join(dir, folder, strings.Repeat("x", 256))); got != "ENAMETOOLONG" {
			t.Errorf("%s: %s", folder, got)
		}
	}
}

func TestDamageIsToldAtOpenAndOnce(t *testing.T) {
	var said log
	chain := open(t, materialize.Options{Log: said.logger()}, codecs+"corrupt_record.hipo", codecs+"tiny.hipo")
	dir := mount(t, Options{Log: said.logger()}, chain)
	for range 2 {
		for _, b := range chain.View().File(0).Banks() {
			for _, op := range []string{"stat", "open"} {
				if got := in(t, op, filepath.Join(dir, b.Name, "offsets.npy")); got != "EIO" {
					t.Errorf("%s of %s: %s", op, b.Name, got)
				}
			}
		}
	}
	if n := strings.Count(said.String(), "corrupt_record.hipo"); n != 1 {
		t.Errorf("said %d times:\n%s", n, said.String())
	}
	for _, good := range []string{".files/tiny.hipo", ".hipofs/version", ".hipofs/errors.json"} {
		run(t, "ls", "-lR", dir+"/"+good)
	}
	for _, b := range chain.View().File(1).Banks() {
		run(t, "cat", filepath.Join(dir, ".files/tiny.hipo", b.Name, "offsets.npy"))
	}
	if faults := run(t, "cat", dir+"/.hipofs/errors.json"); !strings.Contains(faults, `"record": 1`) {
		t.Errorf("errors.json: %s", faults)
	}
}

func TestPanicBecomesEIO(t *testing.T) {
	var said log
	o := Options{Log: said.logger()}
	root := newRoot(open(t, materialize.Options{}, codecs+"tiny.hipo"), o, new(readAhead))
	root.in = newFixed(append(root.in.(*fixed).entries,
		entry{"x.npy", syscall.S_IFREG, func(at place) node {
			return newDocument(at, func(context.Context) ([]byte, error) { panic("as told") })
		}}))
	dir := t.TempDir()
	conn, err := connect(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := serve(conn, root, o)
	if err != nil {
		t.Fatal(err)
	}
	ends(t, dir, s)
	if got := in(t, "stat", dir+"/x.npy"); got != "EIO" {
		t.Error(got)
	}
	if !strings.Contains(said.String(), "as told") || !strings.Contains(said.String(), "TestPanicBecomesEIO") {
		t.Errorf("no stack: %s", said.String())
	}
	run(t, "ls", "-l", dir+"/"+firstBank(t, dir))
}

func TestWaitingEndsWithASignal(t *testing.T) {
	gate := &gated{waiting: make(chan struct{}, 100)}
	b, err := os.ReadFile(codecs + "tag01_lz4_perchunk.hipo")
	if err != nil {
		t.Fatal(err)
	}
	gate.data = b
	source := gate.mount(t)
	chain := open(t, materialize.Options{Index: materialize.IndexLazy}, source)
	dir := mount(t, Options{}, chain)
	column := dir + "/CODEC::hits/x.npy"
	gate.mu.Lock() // the source hangs
	unlock := sync.OnceFunc(gate.mu.Unlock)
	defer unlock()

	// None of these waits for counts.
	run(t, "ls", "-a", dir, dir+"/CODEC::hits", dir+"/.files", dir+"/.hipofs", dir+"/.files/run.hipo")
	run(t, "cat", dir+"/CODEC::hits/form.json", dir+"/.hipofs/dictionary.json", dir+"/.hipofs/files.json", dir+"/.hipofs/stats.json")
	for _, name := range []string{".git", ".nodes/.git", ".hipofs/populated/x", "CODEC::hits/y.npz"} {
		if got := in(t, "stat", filepath.Join(dir, name)); got != "ENOENT" {
			t.Errorf("%s: %s", name, got)
		}
	}

	patient := childCommand("stat", column)
	var out bytes.Buffer
	patient.Stdout = &out
	if err := patient.Start(); err != nil {
		t.Fatal(err)
	}
	<-gate.waiting
	for _, tt := range [][2]string{
		{"stat", column},
		{"open", column},
		{"open", dir + "/CODEC::hits/schema.json"},
		{"readdir", dir + "/.nodes"},
		{"readdir", dir + "/.hipofs/populated"},
	} {
		// The patient one waits for the same name, and must not be in the way.
		if got := in(t, "interrupted-"+tt[0], tt[1]); got != "EINTR" {
			t.Errorf("%s %s: %s", tt[0], tt[1], got)
		}
	}
	unlock()
	if err := patient.Wait(); err != nil {
		t.Fatal(err)
	}
	size, err := chain.View().Banks()[1].Columns[3].Size(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(out.String()); got != fmt.Sprint(size) {
		t.Errorf("who has waited sees size %s, not %d", got, size)
	}
}

// gated is a source that hangs while it is locked, and fails when it is told to.
type gated struct {
	fusefs.Inode
	data    []byte
	mu      sync.RWMutex
	waiting chan struct{}
	fails   atomic.Int32 // errno of reads; endsEarly: they give nothing; 0: they are as they should be
}

const endsEarly = -1

var _ = (fusefs.NodeGetattrer)((*gated)(nil))
var _ = (fusefs.NodeOpener)((*gated)(nil))
var _ = (fusefs.NodeReader)((*gated)(nil))

func (g *gated) Getattr(_ context.Context, _ fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = 0o444, uint64(len(g.data))
	return 0
}

func (g *gated) Open(context.Context, uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (g *gated) Read(_ context.Context, _ fusefs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if !g.mu.TryRLock() {
		g.waiting <- struct{}{}
		g.mu.RLock()
	}
	defer g.mu.RUnlock()
	switch errno := g.fails.Load(); {
	case errno == endsEarly:
		return fuse.ReadResultData(nil), 0
	case errno != 0:
		return nil, syscall.Errno(errno)
	}
	r := io.NewSectionReader(bytes.NewReader(g.data), off, int64(len(dest)))
	n, _ := io.ReadFull(r, dest)
	return fuse.ReadResultData(dest[:n]), 0
}

// gatedRoot is the folder it is in.
type gatedRoot struct {
	fusefs.Inode
	file *gated
}

var _ = (fusefs.NodeOnAdder)((*gatedRoot)(nil))

func (r *gatedRoot) OnAdd(ctx context.Context) {
	r.AddChild("run.hipo", r.NewPersistentInode(ctx, r.file, fusefs.StableAttr{}), true)
}

// mount is the path of the source.
func (g *gated) mount(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	o := Options{Log: slog.New(slog.DiscardHandler)}
	conn, err := connect(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := serve(conn, &gatedRoot{file: g}, o)
	if err != nil {
		t.Fatal(err)
	}
	ends(t, dir, s)
	// This process opens the file itself: go-fuse, api.go, deadlock 2.
	name := dir + "/run.hipo"
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestTheMountIsReadOnlyAndNamed(t *testing.T) {
	chain := open(t, materialize.Options{}, codecs+"tiny.hipo")
	for _, tt := range []struct {
		how     string
		connect func(string, Options) (*connection, error)
		o       Options
		source  string
		has     string
	}{
		{"directly", mountDirectly, Options{FSName: "hipofs"}, "hipofs", ""},
		{"directly, others", mountDirectly, Options{FSName: `a,b\c`, AllowOther: true}, `a,b\134c`, "allow_other"},
		{"by fusermount3", mountByHelper, Options{FSName: "hipofs"}, "hipofs", ""},
		{"by fusermount3, others", mountByHelper, Options{FSName: `a,b\c`, AllowOther: true}, `a,b\134c`, "allow_other"},
	} {
		t.Run(tt.how, func(t *testing.T) {
			dir := t.TempDir()
			tt.o.Log = slog.New(slog.DiscardHandler)
			conn, err := tt.connect(dir, tt.o)
			if err != nil {
				t.Fatal(err)
			}
			s, err := serve(conn, newRoot(chain, tt.o, new(readAhead)), tt.o)
			if err != nil {
				t.Fatal(err)
			}
			ends(t, dir, s)
			f := strings.Fields(mountLine(dir))
			options := strings.Split(f[3], ",")
			for _, want := range []string{"ro", "nosuid", "nodev", "noexec", "default_permissions", "max_read=1048576", tt.has} {
				if want != "" && !slices.Contains(options, want) {
					t.Errorf("%s is not in %s", want, f[3])
				}
			}
			if f[0] != tt.source || f[2] != "fuse.hipofs" {
				t.Errorf("source %s, type %s", f[0], f[2])
			}
			if got := run(t, "cat", dir+"/.hipofs/version"); got != "\n" {
				t.Errorf("version %q", got)
			}
		})
	}
}

func TestFUSEClosesOnExec(t *testing.T) {
	mount(t, Options{}, open(t, materialize.Options{}, codecs+"tiny.hipo"))
	if inherited := in(t, "fds"); strings.Contains(inherited, "/dev/fuse") {
		t.Errorf("a child has inherited %s", inherited)
	}
}

func TestUnmountWhileInUse(t *testing.T) {
	chain := open(t, materialize.Options{}, codecs+"tiny.hipo")
	dir := t.TempDir()
	s, err := Mount(dir, chain, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ends(t, dir, s)
	reader := childCommand("hold", filepath.Join(dir, firstBank(t, dir), "offsets.npy"))
	stdin, _ := reader.StdinPipe()
	stdout, _ := reader.StdoutPipe()
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	opened := make([]byte, 5)
	if _, err := io.ReadFull(stdout, opened); err != nil {
		t.Fatal(err)
	}
	if err := s.Unmount(); err != nil {
		t.Fatal(err)
	}
	if line := mountLine(dir); line != "" {
		t.Error(line)
	}
	stdin.Close()
	rest, _ := io.ReadAll(stdout)
	if !strings.HasPrefix(string(rest), "\x93NUMPY") {
		t.Errorf("who had it open reads %q", rest)
	}
	if err := reader.Wait(); err != nil {
		t.Error(err)
	}
	s.Wait()
}

func TestRetiredMountCountsForThoseWhoWait(t *testing.T) {
	const records = 8
	f := hipotest.File{Schemas: []hipotest.Schema{{Name: "B::b", Group: 1, Item: 1, Columns: "x/F", Form: hipotest.TextOnly}}}
	for range records { // large enough to be decoded one by one
		f.Records = append(f.Records, hipotest.Record{Tag: 1, Events: []hipotest.Event{
			{Structures: []hipotest.Structure{hipotest.Bank(1, 1, make([]byte, 3<<19))}}, {}, {},
		}})
	}
	for _, awaited := range []bool{false, true} {
		t.Run(fmt.Sprintf("awaited=%v", awaited), func(t *testing.T) {
			gate := &gated{data: f.Bytes(), waiting: make(chan struct{}, 100)}
			chain := open(t, materialize.Options{Index: materialize.IndexLazy, Threads: 1}, gate.mount(t))
			dir := t.TempDir()
			s, err := Mount(dir, chain, Options{})
			if err != nil {
				t.Fatal(err)
			}
			ends(t, dir, s)
			gate.mu.Lock() // the source hangs
			unlock := sync.OnceFunc(gate.mu.Unlock)
			defer unlock()

			// The first waits, and so the pass begins; the second comes too late.
			first := childCommand("readdir", dir+"/.nodes")
			var said bytes.Buffer
			first.Stdout = &said
			if err := first.Start(); err != nil {
				t.Fatal(err)
			}
			<-gate.waiting
			if !awaited {
				_ = first.Process.Kill()
				_ = first.Wait() // the kernel has had its answer by then
			}
			second := childCommand("stat-later", dir+"/B::b", "offsets.npy")
			stdin, _ := second.StdinPipe()
			stdout, _ := second.StdoutPipe()
			if err := second.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(stdout, make([]byte, len("open\n"))); err != nil {
				t.Fatal(err)
			}
			if err := s.Retire(); err != nil {
				t.Fatal(err)
			}
			unlock()
			for chain.Progress().Counting.State == "counting" {
				runtime.Gosched()
			}
			stdin.Close()
			late, _ := io.ReadAll(stdout)
			if err := second.Wait(); err != nil {
				t.Error(err)
			}
			decoded := chain.Stats().RecordsDecoded
			if awaited {
				if err := first.Wait(); err != nil {
					t.Error(err)
				}
				dots := fmt.Sprintln(2 * 24) // bytes of two entries
				if said.String() != dots || decoded != records || string(late) != fmt.Sprintln(128+8*(3*records+1)) {
					t.Errorf("who has waited reads %s, another's size is %s; %d of %d records were decoded", said.String(), late, decoded, records)
				}
			} else if decoded > 2 || string(late) != "ENOTCONN\n" {
				t.Errorf("%d of %d records were decoded for nobody; who comes late is told %s", decoded, records, late)
			}
			s.Wait()
		})
	}
}

func TestUnmountedByOthers(t *testing.T) {
	dir := t.TempDir()
	s, err := Mount(dir, open(t, materialize.Options{}, codecs+"tiny.hipo"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	run(t, "umount", dir)
	s.Wait()
	if err := s.Unmount(); err != nil {
		t.Error(err)
	}
}

func TestAutoUnmount(t *testing.T) {
	dir := t.TempDir()
	points = append(points, dir)
	server := childCommand("serve", dir, codecs+"tiny.hipo")
	stdin, _ := server.StdinPipe()
	defer stdin.Close()
	stdout, _ := server.StdoutPipe()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stdout, make([]byte, len("mounted"))); err != nil {
		t.Fatal(err)
	}
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	if mountLine(dir) == "" {
		t.Fatal("not mounted")
	}
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait() // killed
	for patience := 100; mountLine(dir) != ""; patience-- {
		if patience == 0 {
			t.Fatal("still mounted")
		}
		// The kernel wakes whoever polls the table when it changes, unless it was
		// read in the same instant.
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(table.Fd()), Events: unix.POLLPRI}}, 100)
		_, _ = io.Copy(io.Discard, table)
	}
}

func TestBadMountPoints(t *testing.T) {
	chain := open(t, materialize.Options{}, codecs+"tiny.hipo")
	full := t.TempDir()
	if err := os.WriteFile(full+"/precious", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ dir, says string }{
		{full + "/nowhere", "mkdir"},
		{full + "/precious", "not a directory"},
		{full, `would hide "precious"`},
	} {
		_, err := Mount(tt.dir, chain, Options{})
		if bad, ok := err.(*MountPointError); !ok || bad.Path != tt.dir || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.dir, err)
		}
	}
	points = append(points, full)
	s, err := Mount(full, chain, Options{NonEmpty: true})
	if err != nil {
		t.Fatal(err)
	}
	ends(t, full, s)
}

func TestWhatFusermountSaysIsSorted(t *testing.T) {
	for _, tt := range []struct{ said, want string }{
		{"/usr/bin/fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf", "*fs.NoFUSEError"},
		{"/usr/bin/fusermount3: fuse device not found, try 'modprobe fuse' first", "*fs.NoFUSEError"},
		{"/usr/bin/fusermount3: too many FUSE filesystems mounted; mount_max=N can be set in /etc/fuse.conf", "*fs.NoFUSEError"},
		{"/usr/bin/fusermount3: mount failed: Operation not permitted", "*fs.NoFUSEError"},
		{"/usr/bin/fusermount3: user has no write access to mountpoint /mnt", "*fs.MountPointError"},
		{"/usr/bin/fusermount3: bad mount point /mnt: No such file or directory", "*fs.MountPointError"},
		{"/usr/bin/fusermount3: mounting over filesystem type 0x009fa0 is forbidden", "*fs.MountPointError"},
	} {
		if got := fmt.Sprintf("%T", helperError("/mnt", tt.said)); got != tt.want {
			t.Errorf("%s: %s", tt.said, got)
		}
	}
}

func TestControlFiles(t *testing.T) {
	chain := open(t, materialize.Options{}, codecs+"tag01_lz4_perchunk.hipo", codecs+"../codecs/tag01_lz4_perchunk.hipo", codecs+"meta.hipo")
	dir := mount(t, Options{Version: "1.2.3"}, chain)
	parsed := func(name string, v any) {
		t.Helper()
		if err := json.Unmarshal([]byte(run(t, "cat", dir+"/"+name)), v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := run(t, "cat", dir+"/.hipofs/version"); got != "1.2.3\n" {
		t.Errorf("version %q", got)
	}
	var files []struct {
		Name, Folder string
		Entries      int
	}
	parsed(".hipofs/files.json", &files)
	if len(files) != 3 || files[0].Folder != "tag01_lz4_perchunk.hipo" || files[1].Folder != "tag01_lz4_perchunk.hipo~2" || files[0].Entries != 300 {
		t.Errorf("files.json: %+v", files)
	}
	var schema struct {
		Name          string
		Group, Item   int
		Entries, Rows int
		Columns       []struct {
			Name, Type, Dtype, File string
			Length                  int
		}
	}
	parsed(".files/"+files[1].Folder+"/CODEC::cov/schema.json", &schema)
	if schema.Name != "CODEC::cov" || schema.Group != 1000 || schema.Item != 3 || schema.Entries != 300 || len(schema.Columns) != 4 ||
		schema.Columns[1].File != "cov.npy" || schema.Columns[1].Length != 16 || schema.Columns[1].Dtype != "<f4" || schema.Columns[1].Type != "F" {
		t.Errorf("schema.json: %+v", schema)
	}
	var dictionary []struct{ Name, Folder string }
	parsed(".hipofs/dictionary.json", &dictionary)
	if len(dictionary) != len(chain.View().Banks()) {
		t.Errorf("dictionary.json: %v", dictionary)
	}
	var config map[string]string
	parsed(".hipofs/config.json", &config)
	if len(config) == 0 {
		t.Error("config.json is empty")
	}
	var tags map[string]int
	parsed(".hipofs/tags.json", &tags)
	if len(tags) == 0 {
		t.Error("tags.json is empty")
	}
	var records []materialize.RecordInfo
	parsed(".hipofs/records.json", &records)
	if len(records) != len(chain.View().Records()) {
		t.Errorf("records.json: %d records", len(records))
	}

	populated := strings.Fields(run(t, "ls", dir+"/.hipofs/populated"))
	if !slices.Contains(populated, "CODEC::hits") || slices.Contains(populated, "CODEC::never") {
		t.Errorf("populated: %v", populated)
	}
	run(t, "test", "-f", dir+"/.hipofs/populated/CODEC::hits/offsets.npy")
	if got := in(t, "stat", dir+"/.hipofs/populated/CODEC::never"); got != "ENOENT" {
		t.Errorf("populated/CODEC::never: %s", got)
	}

	var stats materialize.Stats
	parsed(".hipofs/stats.json", &stats)
	if stats.Files != 3 {
		t.Errorf("stats.json: %+v", stats)
	}
	if got := run(t, "stat", "-c", "%s", dir+"/.hipofs/stats.json", dir+"/.hipofs/errors.json"); got != "0\n0\n" {
		t.Errorf("sizes of live files: %q", got)
	}
}

func TestNamesAreShownAsTheyCanBe(t *testing.T) {
	f := hipotest.File{
		Schemas: []hipotest.Schema{
			{Name: "A::offsets", Group: 1, Item: 1, Columns: "offsets/F,x/I", Form: hipotest.TextOnly},
			{Name: ".hidden", Group: 1, Item: 2, Columns: "@entry/I", Form: hipotest.TextOnly},
			{Name: cacheTag, Group: 1, Item: 3, Columns: "x~2/I", Form: hipotest.TextOnly},
		},
	}
	dir := mount(t, Options{}, open(t, materialize.Options{}, write(t, ".odd~2", f.Bytes())))
	for path, name := range map[string]string{
		"A::offsets/%6Fffsets.npy": "offsets", "A::offsets/offsets.npy": "offsets", "%2Ehidden/%40entry.npy": "@entry",
		"%43ACHEDIR.TAG/x%7E2.npy": "x~2", ".files/%2Eodd%7E2/%43ACHEDIR.TAG": cacheTag,
	} {
		if got := in(t, "xattr", filepath.Join(dir, path), "user.hipofs.name"); got != name {
			t.Errorf("%s: %s", path, got)
		}
	}
	if got := run(t, "head", "-c", "43", dir+"/"+cacheTag); got != "Signature: 8a477f597d28d172789f06886806bc55" {
		t.Errorf("%s begins with %q", cacheTag, got)
	}
}
