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

	// quietTime is how long nothing must happen for the memory that decodes work
	// in to be given back as well.
	quietTime = 15 * time.Second
)

// tidy gives memory that is not in use back to the system, where the runtime
// alone would take minutes: chunks that the kernel has by now, while nothing is
// decoded that could use their memory again; and all that is left of a burst of
// work, once nothing has happened between two ticks.
func (m *materializer) tidy(ctx context.Context, tick <-chan time.Time) {
	last, tidied := m.activity(), true
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.chunks.loose:
			if !m.decoding() {
				debug.FreeOSMemory()
			}
		case <-tick:
			now := m.activity()
			if now != last {
				last, tidied = now, false
			} else if !tidied && !m.decoding() {
				m.mu.Lock()
				m.decoders = nil
				m.mu.Unlock()
				debug.FreeOSMemory()
				tidied = true
			}
		}
	}
}

// activity is a number that changes with whatever is read.
func (m *materializer) activity() int64 { return m.recordsDecoded.Load() + m.bytesServed.Load() }

// decoding reports whether a decode is under way.
func (m *materializer) decoding() bool { return m.inFlight.Load() > 0 }
