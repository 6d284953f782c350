package materialize

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// An index is what one pass over a file has found out, so that it need never be
// made again. It is a hint: whatever it says is compared with the file's bytes
// when they are read; of a file that a server has, whose index nobody else can
// have written, the counts and the places of streams that have their checksums are
// believed, so that no directory is fetched.
//
//	magic "HIPOFSIX" | version u32 | head length u32 | file length u64 | XXH3 of the head u64
//	head      identity, outline, checksums, banks, places of the blocks
//	blocks    event tags and counts of each bank, by group of entries
//
// Numbers in the head are varints unless a size is said.
const (
	indexMagic   = "HIPOFSIX"
	indexVersion = 3 // also of makeRuns and makeGroups, which decide what the sums mean
	indexHeader  = 32
	maxIndexHead = 1 << 28

	// IndexSuffix is what the name of an index beside its file ends in.
	IndexSuffix = ".hipofs-index"
)

// groupEntries is how many entries share a block of counts: enough to be coded
// well, few enough that a slice of offsets costs little.
const groupEntries = 16384

// group is a run of runs whose counts are stored together.
type group struct {
	first, runs int
	entries     int64
}

func makeGroups(runs []run) []group {
	var groups []group
	for r := range runs {
		g := len(groups) - 1
		if g < 0 || groups[g].entries >= groupEntries {
			groups = append(groups, group{first: r})
			g++
		}
		groups[g].runs++
		groups[g].entries += runs[r].entries
	}
	return groups
}

// maxPacked is more than the counts of the group are packed to.
func (g *group) maxPacked() int64 { return 64 + 4*g.entries }

// groupOf finds the group of a run.
func groupOf(groups []group, r int) int {
	lo, hi := 0, len(groups)-1
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if groups[mid].first <= r {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// recordSums are the XXH3 checksums of a record's stored bytes: all of them or,
// of a split record, its head and each of its streams; and where these are.
type recordSums struct {
	whole   sum
	streams []storedStream // nil while its directory has not been read
	head    uint32         // where its streams begin, from its beginning
	layout  uint32         // which streams there are: a place in the source's layouts
}

// storedStream is a stream of a split record as it lies in the file. Each begins
// where the one before ends.
type storedStream struct {
	xxh3     uint64
	length   uint32
	encoding uint8
	known    bool // the checksum
}

// sum is a checksum, and whether it is known.
type sum struct {
	xxh3  uint64
	known bool
}

// indexTable is a bank as the index has it.
type indexTable struct {
	name    string // of a bank of the file's dictionary; "": a node
	group   uint16 // of a node
	item    uint8
	prim    uint8  // type of a primitive node
	format  string // of a composite bank
	filled  int64
	most    int64
	stored  int64   // -1: unknown
	rows    []int64 // by run
	failure string  // why it cannot be served
	decoded []int64 // columns of split records whose streams all inflate
}

// block is a piece of the index behind the head.
type block struct {
	off    int64
	length uint32
	sum    uint64
}

// indexHead is the head of an index.
type indexHead struct {
	id               identity
	headSum, tailSum uint64 // of the file up to the first record, and from the end of the last one
	restSum          uint64 // of what belongs to no record's checksum: padding, records without events
	header           []byte // of the file
	dictionary       []byte // zstd
	dictionaryLength int64
	records          []byte // zstd
	recordsLength    int64
	sums             []recordSums
	layouts          []splitLayout
	groups           int
	tables           []indexTable
	tags             []block     // by group
	counts           [][]block   // by table, then group; a zero length: no rows in the group
	asked            [][2]string // bank and column that readers wanted, last first

	file iofs.FileInfo // of the index; nil if it was not read from one
}

// encoder and decoder of the head.

type headWriter struct{ b []byte }

func (w *headWriter) num(v int64)    { w.b = binary.AppendUvarint(w.b, uint64(v)) }
func (w *headWriter) fixed(v uint64) { w.b = binary.LittleEndian.AppendUint64(w.b, v) }
func (w *headWriter) bytes(b []byte) { w.num(int64(len(b))); w.b = append(w.b, b...) }
func (w *headWriter) text(s string)  { w.bytes([]byte(s)) }

// headReader consumes a head; the first thing that is not there sets err, and
// everything after that is zero.
type headReader struct {
	b   []byte
	err error
}

var errIndex = errors.New("the index is damaged")

func (r *headReader) fail() { r.err, r.b = errIndex, nil }

func (r *headReader) num() int64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > 1<<62 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return int64(v)
}

func (r *headReader) fixed() uint64 {
	if len(r.b) < 8 {
		r.fail()
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *headReader) num32() uint32 {
	v := r.num()
	if v > math.MaxUint32 {
		r.fail()
		return 0
	}
	return uint32(v)
}

func (r *headReader) byte() uint8 {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	b := r.b[0]
	r.b = r.b[1:]
	return b
}

// count reads a number of things that take at least size bytes each.
func (r *headReader) count(size int) int {
	n := r.num()
	if n > int64(len(r.b)/size) {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *headReader) bytes() []byte {
	n := r.count(1)
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *headReader) text() string { return string(r.bytes()) }

func (h *indexHead) encode() []byte {
	var w headWriter
	w.num(h.id.size)
	w.fixed(uint64(h.id.mtime))
	w.fixed(uint64(h.id.ctime))
	w.fixed(h.id.ino)
	w.fixed(h.headSum)
	w.fixed(h.tailSum)
	w.fixed(h.restSum)
	w.bytes(h.header)
	w.num(h.dictionaryLength)
	w.bytes(h.dictionary)
	w.num(h.recordsLength)
	w.bytes(h.records)
	w.num(int64(len(h.sums)))
	for _, s := range h.sums {
		w.fixed(s.whole.xxh3)
		w.num(int64(len(s.streams)))
		if len(s.streams) > 0 {
			w.num(int64(s.head))
			w.num(int64(s.layout))
		}
		for _, t := range s.streams {
			w.num(int64(t.length))
			if t.known {
				w.b = append(w.b, 1, t.encoding)
				w.fixed(t.xxh3)
			} else {
				w.b = append(w.b, 0, t.encoding)
			}
		}
	}
	w.num(int64(len(h.layouts)))
	for _, l := range h.layouts {
		w.text(string(l))
	}
	w.num(int64(h.groups))
	w.num(int64(len(h.tables)))
	for i := range h.tables {
		t := &h.tables[i]
		w.text(t.name)
		w.num(int64(t.group))
		w.b = append(w.b, t.item, t.prim)
		w.text(t.format)
		w.text(t.failure)
		w.num(t.filled)
		w.num(t.most)
		w.num(t.stored + 1)
		w.num(int64(len(t.decoded)))
		for _, k := range t.decoded {
			w.num(k)
		}
		w.num(int64(len(t.rows)))
		for _, n := range t.rows {
			w.num(n)
		}
	}
	blocks := func(bs []block) {
		for _, b := range bs {
			w.num(int64(b.length))
			if b.length > 0 {
				w.fixed(b.sum)
			}
		}
	}
	blocks(h.tags)
	for _, bs := range h.counts {
		blocks(bs)
	}
	w.num(int64(len(h.asked)))
	for _, a := range h.asked {
		w.text(a[0])
		w.text(a[1])
	}
	return w.b
}

// parseHead decodes a head; blocks lie behind it, from off to end.
func parseHead(b []byte, off, end int64) (*indexHead, error) {
	r := &headReader{b: b}
	h := &indexHead{}
	h.id.size = r.num()
	h.id.mtime = int64(r.fixed())
	h.id.ctime = int64(r.fixed())
	h.id.ino = r.fixed()
	h.headSum, h.tailSum, h.restSum = r.fixed(), r.fixed(), r.fixed()
	h.header = r.bytes()
	h.dictionaryLength = r.num()
	h.dictionary = r.bytes()
	h.recordsLength = r.num()
	h.records = r.bytes()
	h.sums = make([]recordSums, r.count(9))
	for i := range h.sums {
		s := &h.sums[i]
		s.whole = sum{r.fixed(), true}
		if n := r.count(3); n > 0 {
			s.streams = make([]storedStream, n)
			s.head, s.layout = r.num32(), r.num32()
		}
		for j := range s.streams {
			t := &s.streams[j]
			t.length = r.num32()
			t.known, t.encoding = r.byte() != 0, r.byte()
			if t.known {
				t.xxh3 = r.fixed()
			}
		}
	}
	h.layouts = make([]splitLayout, r.count(1))
	for i := range h.layouts {
		h.layouts[i] = splitLayout(r.text())
	}
	h.groups = r.count(1)
	h.tables = make([]indexTable, r.count(8))
	for i := range h.tables {
		t := &h.tables[i]
		t.name = r.text()
		t.group = uint16(r.num())
		if len(r.b) < 2 {
			return nil, errIndex
		}
		t.item, t.prim = r.b[0], r.b[1]
		r.b = r.b[2:]
		t.format = r.text()
		t.failure = r.text()
		t.filled, t.most, t.stored = r.num(), r.num(), r.num()-1
		t.decoded = make([]int64, r.count(1))
		for j := range t.decoded {
			t.decoded[j] = r.num()
		}
		t.rows = make([]int64, r.count(1))
		for j := range t.rows {
			t.rows[j] = r.num()
		}
	}
	if r.err != nil || int64(h.groups)*int64(1+len(h.tables)) > int64(len(r.b)) { // a byte a block
		return nil, errIndex
	}
	blocks := func() []block {
		bs := make([]block, h.groups)
		for i := range bs {
			n := r.num()
			if n == 0 {
				continue
			}
			if n > end-off {
				r.fail()
				return bs
			}
			bs[i] = block{off, uint32(n), r.fixed()}
			off += n
		}
		return bs
	}
	h.tags = blocks()
	h.counts = make([][]block, len(h.tables))
	for i := range h.counts {
		h.counts[i] = blocks()
	}
	if n := r.count(2); n <= maxAsked {
		h.asked = make([][2]string, n)
	} else {
		r.fail()
	}
	for i := range h.asked {
		h.asked[i] = [2]string{r.text(), r.text()}
	}
	if r.err != nil || len(r.b) != 0 || off != end {
		return nil, errIndex
	}
	return h, nil
}

// openIndex opens an index file if it is as safe as the file it is about, whose
// owner is given: nobody but that one, this user or root can have written it.
// Where there is none the error is errNoIndex.
func openIndex(path string, owner uint32) (*os.File, iofs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, iofs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return nil, nil, errNoIndex
	case errors.Is(err, syscall.ELOOP):
		return nil, nil, errors.New("it is a link")
	case err != nil:
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil {
		err = trusted(st, owner)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

func trusted(st iofs.FileInfo, owner uint32) error {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || !st.Mode().IsRegular() {
		return errors.New("it is not a regular file")
	}
	if sys.Uid != owner && sys.Uid != 0 && int(sys.Uid) != os.Getuid() || st.Mode().Perm()&0o022 != 0 {
		return errors.New("others can write it")
	}
	return nil
}

// mostIndexHead bounds the head of an index by the length of the file that it is about:
// taken apart, it is several times as long. What a pass finds fits: its tables are bounded alike.
func mostIndexHead(length int64) int64 { return min(maxIndexHead, smallTables+2*length) }

// readIndex reads the head of the index of a file of that length, and checks it
// against itself.
func readIndex(path string, owner uint32, length int64) (*indexHead, error) {
	f, st, err := openIndex(path, owner)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st.Size() == 0 {
		return nil, errRefused
	}
	var fixed [indexHeader]byte
	if _, err := f.ReadAt(fixed[:], 0); err != nil {
		return nil, errIndex
	}
	n, err := headLength(fixed[:], st.Size())
	if err != nil {
		return nil, err
	}
	if n > mostIndexHead(length) {
		return nil, errIndex
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, indexHeader); err != nil {
		return nil, err
	}
	h, err := checkHead(fixed[:], b, st.Size())
	if err != nil {
		return nil, err
	}
	h.file = st
	return h, nil
}

// headLength is how long the head is that begins with those fixed bytes.
func headLength(fixed []byte, size int64) (int64, error) {
	le := binary.LittleEndian
	if string(fixed[:8]) != indexMagic {
		return 0, errIndex
	}
	if v := le.Uint32(fixed[8:]); v != indexVersion {
		return 0, fmt.Errorf("it has version %d, this program writes %d", v, indexVersion)
	}
	n := int64(le.Uint32(fixed[12:]))
	if n > maxIndexHead || n > size-indexHeader || le.Uint64(fixed[16:]) != uint64(size) {
		return 0, errIndex
	}
	return n, nil
}

func checkHead(fixed, head []byte, size int64) (*indexHead, error) {
	if xxh3.Hash(head) != binary.LittleEndian.Uint64(fixed[24:]) {
		return nil, errIndex
	}
	return parseHead(head, int64(indexHeader+len(head)), size)
}

// parseIndex takes a whole index apart.
func parseIndex(b []byte) (h *indexHead, blocks []byte, err error) {
	if len(b) < indexHeader {
		return nil, nil, errIndex
	}
	n, err := headLength(b[:indexHeader], int64(len(b)))
	if err != nil {
		return nil, nil, err
	}
	h, err = checkHead(b[:indexHeader], b[indexHeader:indexHeader+n], int64(len(b)))
	return h, b[indexHeader+n:], err
}

// writeIndex writes a head, encoded, and blocks, whole or not at all, for those to
// read who may read a file of the given mode and length.
func writeIndex(path string, head, blocks []byte, mode os.FileMode, length int64) error {
	if int64(len(head)) > mostIndexHead(length) {
		return errors.New("the index would be too large")
	}
	b := make([]byte, indexHeader, indexHeader+len(head)+len(blocks))
	copy(b, indexMagic)
	le := binary.LittleEndian
	le.PutUint32(b[8:], indexVersion)
	le.PutUint32(b[12:], uint32(len(head)))
	le.PutUint64(b[16:], uint64(indexHeader+len(head)+len(blocks)))
	le.PutUint64(b[24:], xxh3.Hash(head))
	b = append(b, head...)
	b = append(b, blocks...)
	return replaceFile(path, b, mode&0o644|0o600)
}

// temporary begins the names of indexes that are being written; digits follow.
// Whoever writes one holds its lock.
const temporary = ".hipofs-"

// removeStale removes what processes that were killed have left of such: nobody
// holds the lock or, where there are no locks, an hour ago or longer. A folder may
// have many thousands of files: once is enough.
func removeStale(dir string) {
	entries, _ := os.ReadDir(dir) // as far as it can be read
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), temporary)
		if !ok || digits == "" || strings.Trim(digits, "0123456789") != "" {
			continue // somebody's own
		}
		name := filepath.Join(dir, e.Name())
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		st, err := f.Stat()
		if err == nil && st.Mode().IsRegular() {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && time.Since(st.ModTime()) > time.Hour {
				os.Remove(name)
			}
		}
		f.Close()
	}
}

// newTemporary makes a file for an index that is to be written. Its lock goes
// with the second file, and is still held when the first is closed.
func newTemporary(dir string) (f, lock *os.File, err error) {
	for {
		if f, err = os.CreateTemp(dir, temporary+"*"); err != nil {
			return nil, nil, err
		}
		var st unix.Stat_t
		if lock, err = os.Open(f.Name()); err == nil {
			for unix.Flock(int(lock.Fd()), unix.LOCK_EX) == unix.EINTR { // a file system without locks does without
			}
			if err = unix.Fstat(int(lock.Fd()), &st); err == nil && st.Nlink > 0 {
				return f, lock, nil
			}
			lock.Close()
		}
		f.Close()
		// Another process may have taken it for one that was left.
		if err != nil && !errors.Is(err, iofs.ErrNotExist) {
			os.Remove(f.Name())
			return nil, nil, err
		}
	}
}

// replaceFile puts a new file in the place of path in one step. It does not wait
// for the disk: the checksums tell what a power cut leaves.
func replaceFile(path string, b []byte, mode os.FileMode) error {
	f, lock, err := newTemporary(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer lock.Close()
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// readBlock reads a block of an index file and checks it.
func readBlock(path string, owner uint32, b block) ([]byte, error) {
	f, _, err := openIndex(path, owner)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := make([]byte, b.length)
	if _, err := f.ReadAt(p, b.off); err != nil {
		return nil, err
	}
	if xxh3.Hash(p) != b.sum {
		return nil, errIndex
	}
	return p, nil
}

// checkBlocks reads every block of the index file that r has, and checks it.
func (h *indexHead) checkBlocks(r io.ReaderAt) error {
	var p []byte
	for _, blocks := range append([][]block{h.tags}, h.counts...) {
		for _, b := range blocks {
			if b.length == 0 {
				continue
			}
			p = slices.Grow(p[:0], int(b.length))[:b.length]
			if _, err := r.ReadAt(p, b.off); err != nil {
				return err
			}
			if xxh3.Hash(p) != b.sum {
				return fmt.Errorf("at byte %d: its checksum is wrong", b.off)
			}
		}
	}
	return nil
}

// IndexPath is where the index of a file is kept in a folder, also that of a file
// which a server has.
func IndexPath(dir, file string) string { return indexPath(dir, realPath(file)) }

// indexPaths are the places where the index of a file may be, in the order in
// which they are looked at: in the folder, whose owner can do something about it,
// beside the file, beside what a link leads to.
func indexPaths(dir, file string) []string {
	real := realPath(file)
	paths := []string{indexPath(dir, real)}
	if IsRemote(file) {
		return paths
	}
	paths = append(paths, file+IndexSuffix)
	if abs, err := filepath.Abs(file); err == nil && abs != real {
		paths = append(paths, real+IndexSuffix)
	}
	return paths
}

// realPath is the absolute name of a file, without links as far as it exists, or
// the plain name of one that a server has.
func realPath(file string) string {
	if IsRemote(file) {
		return PlainName(file)
	}
	if abs, err := filepath.Abs(file); err == nil {
		file = abs
	}
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	return file
}

func indexPath(dir, real string) string {
	sum := sha256.Sum256([]byte(real))
	return filepath.Join(dir, hex.EncodeToString(sum[:16])+IndexSuffix)
}

// What is stored once a file is stored with zstd.

const maxStored = 1 << 28 // bytes of a dictionary or a record table

var (
	zstdWriter, _ = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	zstdReader, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxStored))
)

func compress(b []byte) []byte { return zstdWriter.EncodeAll(b, nil) }

// decompress gives exactly n bytes.
func decompress(b []byte, n int64) ([]byte, error) {
	if n > maxStored {
		return nil, errIndex
	}
	out, err := zstdReader.DecodeAll(b, make([]byte, 0, min(n, 1<<20)))
	if err != nil || int64(len(out)) != n {
		return nil, errIndex
	}
	return out, nil
}
