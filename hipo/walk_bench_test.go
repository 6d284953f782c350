package hipo

import (
	"os"
	"testing"
)

// BenchmarkWalk finds the structures of records that are inflated: more of them
// than a processor's own cache holds.
func BenchmarkWalk(b *testing.B) {
	name := os.Getenv("HIPOFS_DST")
	if name == "" {
		b.Skip("HIPOFS_DST names no file")
	}
	fd, err := os.Open(name)
	if err != nil {
		b.Fatal(err)
	}
	defer fd.Close()
	st, err := fd.Stat()
	if err != nil {
		b.Fatal(err)
	}
	f, err := NewFile(name, fd, st.Size(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	recs := make([]Record, min(8, len(f.Records)))
	size := int64(0)
	for i := range recs {
		if err := f.StartRecord(i, &recs[i]); err != nil {
			b.Fatal(err)
		}
		size += recs[i].BytesInflated
	}
	b.SetBytes(size)
	spans := 0
	for b.Loop() {
		for i := range recs {
			rec := &recs[i]
			rec.forget()
			rec.next, rec.at = 0, int(rec.Header.eventsAt())
			for {
				more, err := rec.Next(256 << 10)
				if err != nil {
					b.Fatal(err)
				}
				if !more {
					break
				}
				for j := range rec.Banks {
					spans += len(rec.Banks[j].Spans)
				}
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed())/float64(spans), "ns/span")
}
