package materialize

import (
	"context"
	"os"
	"testing"

	"github.com/hipofs/hipofs/hipo"
)

// BenchmarkGather is decoding without and with all columns, one run after the other.
func BenchmarkGather(b *testing.B) {
	name := dst(b)
	st, err := os.Stat(name)
	if err != nil {
		b.Fatal(err)
	}
	c, err := Open(context.Background(), []string{name}, Options{Index: IndexLazy, Memory: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	all := func(_ bankID, layout *hipo.Schema) []bool {
		keep := make([]bool, len(layout.Columns))
		for k := range keep {
			keep[k] = true
		}
		return keep
	}
	none := func(bankID, *hipo.Schema) []bool { return nil }
	for _, kind := range []struct {
		name string
		want wanted
	}{{"nothing", none}, {"everything", all}} {
		b.Run(kind.name, func(b *testing.B) {
			b.SetBytes(st.Size())
			d := new(decoder)
			for b.Loop() {
				for r := range c.sources[0].runs {
					if _, err := d.decode(c.sources[0], int32(r), kind.want, nil, func(*hipo.Record) {}); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
