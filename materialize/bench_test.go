package materialize

import (
	"context"
	"os"
	"testing"

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
// BenchmarkPass/bare reads and inflates the same records and does nothing else.
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
	b.Run("bare", func(b *testing.B) {
		b.SetBytes(st.Size())
		for b.Loop() {
			f, err := hipo.Open(name, hipo.Options{})
			if err != nil {
				b.Fatal(err)
			}
			var rec hipo.Record
			for i := range f.Records {
				if err := f.ReadRecord(i, &rec); err != nil {
					b.Fatal(err)
				}
			}
			f.Close()
		}
	})
}
