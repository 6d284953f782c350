package hipo_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hipofs/hipofs/hipo"
	"github.com/hipofs/hipofs/hipo/hipotest"
)

// memory is a file in memory.
type memory struct{ b []byte }

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	if need := int(off) + len(p); need > len(m.b) {
		m.b = append(m.b, make([]byte, need-len(m.b))...)
	}
	return copy(m.b[off:], p), nil
}

// rewrite writes every event of a file again, in records with that tag.
func rewrite(data []byte, tag uint8) ([]byte, error) {
	f, err := hipo.NewFile("test.hipo", bytes.NewReader(data), int64(len(data)), hipo.Options{})
	if err != nil {
		return nil, err
	}
	declarations, err := f.Declarations()
	if err != nil {
		return nil, err
	}
	var out memory
	w, err := hipo.NewWriter(&out, declarations)
	if err != nil {
		return nil, err
	}
	codec := hipo.Codec{Tag: tag}
	e := hipo.NewEncoder(f.Dictionary.Schemas)
	var rec hipo.Record
	var batch hipo.Batch
	for i := range f.Records {
		batch.Reset()
		if err := f.ReadRecord(i, &rec); err != nil {
			return nil, err
		}
		if _, err := rec.Take(&batch, hipo.Taking{Split: hipotest.Split(int(tag))}); err != nil {
			return nil, err
		}
		for from := 0; from < batch.Events(); {
			b, n, err := e.Record(nil, &batch, from, codec, rec.Words())
			if err != nil {
				return nil, err
			}
			if err := w.Append(b); err != nil {
				return nil, err
			}
			from += n
		}
	}
	size := w.Size()
	if err := w.Close(); err != nil {
		return nil, err
	}
	if size != int64(len(out.b)) {
		return nil, fmt.Errorf("a file of %d bytes, foretold were %d", len(out.b), size)
	}
	return out.b, nil
}

// same compares everything that two files give.
func same(got, want *decoded) error {
	if !slices.Equal(got.tags, want.tags) {
		return fmt.Errorf("event tags %v, want %v", got.tags, want.tags)
	}
	if g, w := slices.Sorted(maps.Keys(got.tables)), slices.Sorted(maps.Keys(want.tables)); !slices.Equal(g, w) {
		return fmt.Errorf("banks %v, want %v", g, w)
	}
	for name, w := range want.tables {
		g := got.tables[name]
		if (g.err == nil) != (w.err == nil) {
			return fmt.Errorf("%s: %v, want %v", name, g.err, w.err)
		}
		if w.err != nil {
			continue
		}
		if !bytes.Equal(g.offsets(), w.offsets()) {
			return fmt.Errorf("%s: rows %v, want %v", name, g.rows, w.rows)
		}
		for k, c := range w.columns {
			if g.columns[k].Name != c.Name || g.columns[k].Type != c.Type || g.columns[k].Length != c.Length {
				return fmt.Errorf("%s: column %v, want %v", name, g.columns[k], c)
			}
			if !bytes.Equal(g.content[k], w.content[k]) {
				return fmt.Errorf("%s/%s: % x, want % x", name, c.Name, g.content[k], w.content[k])
			}
		}
	}
	return nil
}

// Whatever a reader finds in a file it finds in what was written of it, with
// any tag; and the same is written each time.
func TestWhatIsWrittenReadsLikeWhatWasRead(t *testing.T) {
	skipUnderRaceDetector(t)
	for tag := range uint8(15) {
		t.Run(fmt.Sprintf("tag%02d", tag), rapid.MakeCheck(func(t *rapid.T) {
			tags := []int{rapid.IntRange(0, 14).Draw(t, "tag"), rapid.IntRange(0, 14).Draw(t, "tag")}
			f, _ := drawFile(t, tags)
			f.Config = append(f.Config, hipotest.Setting{Key: "run", Value: "5038\nsecond line"})
			b := f.Build()
			want, err := decode(b.Bytes, hipo.Options{})
			if err != nil {
				t.Fatal(err)
			}
			out, err := rewrite(b.Bytes, tag)
			if err != nil {
				t.Fatal(err)
			}
			got, err := decode(out, hipo.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := same(got, want); err != nil {
				t.Fatal(err)
			}
			again, err := rewrite(b.Bytes, tag)
			if err != nil || !bytes.Equal(out, again) {
				t.Fatalf("written again it is different (%v)", err)
			}
			before, after := open(t, b.Bytes), open(t, out)
			if !maps.Equal(after.Dictionary.Config, before.Dictionary.Config) || !maps.Equal(after.Dictionary.TagNames, before.Dictionary.TagNames) {
				t.Fatalf("settings %v, want %v", after.Dictionary.Config, before.Dictionary.Config)
			}
		}))
	}
}

func open(t interface{ Fatal(...any) }, data []byte) *hipo.File {
	f, err := hipo.NewFile("test.hipo", bytes.NewReader(data), int64(len(data)), hipo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Files by other writers, with everything odd in them, come through every tag.
func TestFilesOfOthersComeThroughEveryTag(t *testing.T) {
	skipUnderRaceDetector(t)
	names, err := filepath.Glob("testdata/*.hipo")
	if err != nil {
		t.Fatal(err)
	}
	codecs, _ := filepath.Glob("testdata/codecs/*.hipo")
	through := 0
	for _, name := range append(names, codecs...) {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := decode(data, hipo.Options{})
		if err != nil {
			continue // damaged on purpose
		}
		through++
		t.Run(strings.TrimSuffix(filepath.Base(name), ".hipo"), func(t *testing.T) {
			for tag := range uint8(15) {
				out, err := rewrite(data, tag)
				if err != nil {
					t.Errorf("tag %d: %v", tag, err)
					continue
				}
				got, err := decode(out, hipo.Options{})
				if err == nil {
					err = same(got, want)
				}
				if err != nil {
					t.Errorf("tag %d: %v", tag, err)
				}
			}
		})
	}
	if through < 8 {
		t.Errorf("only %d files could be read", through)
	}
}

// The worked example of the format, byte for byte.
func TestTinyFileIsWrittenAsTheFormatSpellsIt(t *testing.T) {
	data, err := os.ReadFile("testdata/codecs/tiny.hipo")
	if err != nil {
		t.Fatal(err)
	}
	out, err := rewrite(data, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out, data) {
		t.Errorf("% x\nwant\n% x", out, data)
	}
}
