package materialize

import (
	"context"
	"runtime/debug"
	"time"
)

const (
	// looseBytes is how much is let go of while a column is being read before it
	// is given back to the system, which needs it for the copies of the readers.
	looseBytes = 64 << 20

	// quietTime is how long next to nothing must be decoded for the memory that
	// decodes work in to be given back as well: at most quietRecords records.
	quietTime    = 15 * time.Second
	quietRecords = 64
)

// tidy gives memory that is not in use back to the system, where the runtime
// alone would take minutes: chunks that the kernel has by now, while nothing is
// decoded that could use their memory again; and all that is left of a burst of
// work, once next to nothing was decoded between two ticks, until nothing happens.
func (m *materializer) tidy(ctx context.Context, tick <-chan time.Time) {
	last, records, tidied := m.activity(), m.recordsDecoded.Load(), true
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.chunks.loose:
			if !m.decoding() {
				debug.FreeOSMemory()
			}
		case <-tick:
			now, decoded := m.activity(), m.recordsDecoded.Load()
			quiet := decoded-records <= quietRecords
			tidied = tidied && now == last
			if quiet && !tidied && !m.decoding() {
				m.shop.forget()
				debug.FreeOSMemory()
				tidied = now == last
			}
			last, records = now, decoded
		}
	}
}

// activity is a number that changes with whatever is read.
func (m *materializer) activity() int64 { return m.recordsDecoded.Load() + m.bytesServed.Load() }

// decoding reports whether a decode is under way.
func (m *materializer) decoding() bool { return m.inFlight.Load() > 0 }
