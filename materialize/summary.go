package materialize

import (
	"context"
	"encoding/binary"
	"math"
)

// Summary is what a column's values are like. Values that are not finite are
// counted, and part of nothing else.
type Summary struct {
	Count    int64 // of all values
	NaNs     int64
	Infinite int64
	Min, Max float64 // of the finite ones, if there are any
	Mean     float64
	Bins     Bins
}

// Finite is how many values are finite.
func (s *Summary) Finite() int64 { return s.Count - s.NaNs - s.Infinite }

// Bins is a histogram that finds its own range while it is filled, in one pass:
// a value outside makes the bins twice as wide, until it has one.
type Bins struct {
	From   float64 // where the first bin begins
	Width  float64 // of a bin
	Counts [maxBins]int64
}

const maxBins = 256

// begin sets the range by the first values there are.
func (b *Bins) begin(low, high float64, whole bool) {
	b.From, b.Width = low, (high-low)/(maxBins/2)
	if whole {
		b.From, b.Width = math.Floor(low), math.Max(1, math.Ceil(b.Width))
	}
	if smallest := math.Max(math.Abs(low), math.Abs(high)) * 0x1p-40; b.Width < smallest {
		b.Width = smallest
	}
	if b.Width == 0 {
		b.Width = 1
	}
}

func (b *Bins) add(x float64) {
	for {
		i := math.Floor((x - b.From) / b.Width)
		switch {
		case i < 0:
			b.widen(maxBins / 2) // the old bins are the upper half
			b.From -= b.Width * maxBins / 2
		case i >= maxBins:
			b.widen(0)
		default:
			b.Counts[int(i)]++
			return
		}
	}
}

// widen joins bins in pairs, which are then the half that begins at bin to.
func (b *Bins) widen(to int) {
	var joined [maxBins]int64
	for i, n := range b.Counts {
		joined[to+i/2] += n
	}
	b.Counts = joined
	b.Width *= 2
}

// summaryBytes is how much of a column is looked at at once.
const summaryBytes = 1 << 20

// Summarize looks at all values of a content column, once.
func (c *Column) Summarize(ctx context.Context) (*Summary, error) {
	if _, err := c.Open(ctx); err != nil {
		return nil, err
	}
	f, err := c.measure(ctx)
	if err != nil {
		return nil, err
	}
	s := &Summary{Min: math.Inf(1), Max: math.Inf(-1)}
	size := int64(valueSize(c.Type))
	read := valueReader(c.Type)
	p := make([]byte, max(summaryBytes/c.width, 1)*c.width)
	values := make([]float64, 0, int64(len(p))/size)
	var sum float64
	for row := int64(0); row < f.rows; {
		n := min(f.rows-row, int64(len(p))/c.width)
		if _, err := c.ReadAt(ctx, p[:n*c.width], int64(len(f.header))+row*c.width); err != nil {
			return nil, err
		}
		row += n
		values = values[:0]
		low, high := math.Inf(1), math.Inf(-1)
		for at := int64(0); at < n*c.width; at += size {
			x := read(p[at:])
			s.Count++
			switch {
			case math.IsNaN(x):
				s.NaNs++
			case math.IsInf(x, 0):
				s.Infinite++
			default:
				values = append(values, x)
				low, high = min(low, x), max(high, x)
				sum += x
			}
		}
		if len(values) == 0 {
			continue
		}
		if s.Bins.Width == 0 {
			s.Bins.begin(low, high, c.Type != "F" && c.Type != "D")
		}
		s.Min, s.Max = min(s.Min, low), max(s.Max, high)
		for _, x := range values {
			s.Bins.add(x)
		}
	}
	if n := s.Finite(); n > 0 {
		s.Mean = sum / float64(n)
	} else {
		s.Min, s.Max = 0, 0
	}
	return s, nil
}

func valueSize(letter string) int {
	switch letter {
	case "B":
		return 1
	case "S":
		return 2
	case "I", "F":
		return 4
	}
	return 8
}

func valueReader(letter string) func([]byte) float64 {
	le := binary.LittleEndian
	switch letter {
	case "F":
		return func(b []byte) float64 { return float64(math.Float32frombits(le.Uint32(b))) }
	case "D":
		return func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) }
	}
	size := valueSize(letter)
	return func(b []byte) float64 { return float64(integer(b, size)) }
}
