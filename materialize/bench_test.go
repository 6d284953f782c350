package materialize

import (
	"context"
	"encoding/binary"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pierrec/lz4/v4"
	"github.com/zeebo/xxh3"

	"github.com/hipofs/hipofs/hipo"
)

// dst is a large file to measure with, which integration/bench.py makes.
func dst(b *testing.B) string {
	name := os.Getenv("HIPOFS_DST")
	if name == "" {
		b.Skip("HIPOFS_DST names no file")
	}
	return name
}

// BenchmarkPass is one counting pass that keeps nothing, opening included.
// BenchmarkPass/index is one that also makes the index, and bare what no pass
// can do without.
func BenchmarkPass(b *testing.B) {
	name := dst(b)
	st, err := os.Stat(name)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("count", func(b *testing.B) {
		b.SetBytes(st.Size())
		for b.Loop() {
			c, err := Open(context.Background(), []string{name}, Options{Index: IndexLazy, Memory: 1})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := c.View().Banks()[0].Rows(context.Background()); err != nil {
				b.Fatal(err)
			}
			c.Close()
		}
	})
	for _, bankName := range []string{"REC::Particle", "REC::Calorimeter"} {
		b.Run("keep/"+bankName, func(b *testing.B) {
			b.SetBytes(st.Size())
			for b.Loop() {
				c, err := Open(context.Background(), []string{name}, Options{Index: IndexLazy})
				if err != nil {
					b.Fatal(err)
				}
				for _, bank := range c.View().Banks() {
					if bank.Name == bankName {
						if _, err := bank.Columns[0].Size(context.Background()); err != nil {
							b.Fatal(err)
						}
					}
				}
				c.Close()
			}
		})
	}
	b.Run("index", func(b *testing.B) {
		b.SetBytes(st.Size())
		for b.Loop() {
			err := Index(context.Background(), []string{name}, IndexOptions{Dir: b.TempDir()}, func(r Indexed) {
				if r.Err != nil || r.Fresh {
					b.Fatalf("%+v", r)
				}
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bare", func(b *testing.B) {
		b.SetBytes(st.Size())
		for b.Loop() {
			bare(b, name)
		}
	})
}

// bare reads, checksums and inflates every record of a plain LZ4 file with the
// same libraries, on every processor, and does nothing else.
func bare(b *testing.B, name string) {
	fd, err := os.Open(name)
	if err != nil {
		b.Fatal(err)
	}
	defer fd.Close()
	st, err := fd.Stat()
	if err != nil {
		b.Fatal(err)
	}
	f, err := hipo.NewFile(name, fd, st.Size(), hipo.Options{})
	if err != nil {
		b.Fatal(err)
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			var raw, out []byte
			for i := int(next.Add(1)) - 1; i < len(f.Records); i = int(next.Add(1)) - 1 {
				h := &f.Records[i]
				raw = slices.Grow(raw[:0], int(h.Length))[:h.Length]
				if _, err := fd.ReadAt(raw, h.Off); err != nil {
					b.Error(err)
				}
				_ = xxh3.Hash(raw)
				n := int(h.Inflated())
				out = slices.Grow(out[:0], n)[:n]
				pad := binary.LittleEndian.Uint32(raw[20:]) >> 24 & 3
				if _, err := lz4.UncompressBlock(raw[56:len(raw)-int(pad)], out); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
