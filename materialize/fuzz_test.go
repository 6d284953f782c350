package materialize

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/hipofs/hipofs/hipo/hipotest"
)

// npyText is the header as the description of the .npy format has it.
var npyText = regexp.MustCompile(`^\{'descr': '([^']*)', 'fortran_order': False, 'shape': \((\d+),( \d+)?\), \} *\n$`)

func FuzzNpyHeader(f *testing.F) {
	f.Add(uint8(0), int64(0), uint32(0))
	f.Add(uint8(3), int64(1)<<62, uint32(65535))
	f.Add(uint8(5), int64(400000), uint32(1))
	f.Fuzz(func(t *testing.T, kind uint8, rows int64, length uint32) {
		dtype := []string{"|i1", "<i2", "<i4", "<f4", "<f8", "<i8"}[kind%6]
		shape := []int64{rows & (1<<63 - 1)}
		want := fmt.Sprint(shape[0])
		if length > 0 {
			shape = append(shape, int64(length))
			want += fmt.Sprint(" ", length)
		}
		h := npyHeader(dtype, shape...)
		if len(h)%64 != 0 || string(h[:8]) != "\x93NUMPY\x01\x00" || int(binary.LittleEndian.Uint16(h[8:])) != len(h)-10 {
			t.Fatalf("%q", h)
		}
		m := npyText.FindStringSubmatch(string(h[10:]))
		if m == nil || m[1] != dtype || m[2]+m[3] != want {
			t.Fatalf("%s of %v: %q", dtype, shape, h[10:])
		}
	})
}

// lied is a file with an index, for FuzzIndexFile to lie about.
func lied(f *testing.F) (name string, index []byte) {
	file := hipotest.File{Schemas: []hipotest.Schema{particle, track}, Records: []hipotest.Record{
		{Tag: 1, Events: []hipotest.Event{event(particles(0, 3)), event(), event(particles(3, 1), tracks(0))}},
		{Tag: 10, Events: []hipotest.Event{event(particles(9, 2), tracks(1, 0))}},
	}}
	name = filepath.Join(f.TempDir(), "a.hipo")
	if err := os.WriteFile(name, file.Bytes(), 0o644); err != nil {
		f.Fatal(err)
	}
	dir := f.TempDir()
	if err := Index(context.Background(), []string{name}, IndexOptions{Dir: dir}, func(Indexed) {}); err != nil {
		f.Fatal(err)
	}
	index, err := os.ReadFile(IndexPath(dir, name))
	if err != nil {
		f.Fatal(err)
	}
	return name, index
}

// FuzzIndexFile fuzzes what lies in an index whose checksum is right. A mount
// by it opens, and serves what the file holds, or errors.
func FuzzIndexFile(f *testing.F) {
	name, good := lied(f)
	n := int(binary.LittleEndian.Uint32(good[12:]))
	f.Add(good[indexHeader:indexHeader+n], good[indexHeader+n:])
	dir := f.TempDir()
	clean := map[string][]byte{}
	c, err := Open(context.Background(), []string{name}, Options{})
	if err != nil {
		f.Fatal(err)
	}
	for _, b := range c.View().Banks() {
		for _, col := range append([]*Column{b.Offsets()}, b.Columns...) {
			if clean[b.Name+"/"+col.Name], err = serve(col); err != nil {
				f.Fatal(err)
			}
		}
	}
	c.Close()
	f.Fuzz(func(t *testing.T, head, blocks []byte) {
		all := append(bytes.Clone(good[:indexHeader]), head...)
		all = append(all, blocks...)
		binary.LittleEndian.PutUint32(all[12:], uint32(len(head)))
		binary.LittleEndian.PutUint64(all[16:], uint64(len(all)))
		binary.LittleEndian.PutUint64(all[24:], xxh3.Hash(head))
		if err := os.WriteFile(IndexPath(dir, name), all, 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := Open(context.Background(), []string{name}, Options{IndexDir: dir, Threads: 1, Memory: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for round := range 2 {
			for _, b := range c.View().Banks() {
				for _, col := range append(append([]*Column{}, b.Columns...), b.Offsets()) {
					key := b.Name + "/" + col.Name
					got, err := serve(col)
					want, ok := clean[key]
					// That there are no rows may be believed until a record is decoded.
					empty := round == 0 && len(bytes.Trim(got, "\x00")) == 0
					if err == nil && !empty && (!ok || !bytes.Equal(got, want)) {
						t.Errorf("%s: %x, want %x", key, got, want)
					}
				}
			}
		}
	})
}
