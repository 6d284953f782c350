package materialize

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestBinsHaveEveryValueInItsPlace(t *testing.T) {
	for _, tt := range []struct {
		name   string
		values []float64
	}{
		{"growing both ways", []float64{0.5, 0.6, -3, 1e9, -1e12, 7}},
		{"all the same", []float64{10.6, 10.6, 10.6}},
		{"zeros", []float64{0, 0}},
		{"the ends of the range", []float64{math.MaxFloat64 / 4, -math.MaxFloat64 / 4, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) { fill(t, tt.values) })
	}
	rng := rand.New(rand.NewPCG(1, 2))
	values := make([]float64, 10000)
	for i := range values {
		values[i] = rng.NormFloat64() * math.Exp(rng.NormFloat64()*3)
	}
	t.Run("random", func(t *testing.T) { fill(t, values) })
}

// fill begins with the first two values, and compares the bins with the values.
func fill(t *testing.T, values []float64) {
	var b Bins
	b.begin(min(values[0], values[1]), max(values[0], values[1]), false)
	for _, x := range values {
		b.add(x)
	}
	var want [maxBins]int64
	var all int64
	for _, x := range values {
		want[int((x-b.From)/b.Width)]++
	}
	off := int64(0)
	for i, n := range b.Counts {
		all += n
		off += max(n-want[i], want[i]-n)
	}
	if all != int64(len(values)) {
		t.Errorf("%d values in the bins, of %d", all, len(values))
	}
	// A value on the border of two bins may be rounded into either.
	if off > int64(len(values))/100 {
		t.Errorf("%d values are in another bin", off)
	}
}
