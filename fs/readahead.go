package fs

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// How much the kernel reads around what a program touches. A slice of a column
// must not cost the decoding of records that it does not lie in, so that it is
// little; for a file whose content is in memory, where it costs nothing and
// speeds up reading in sequence by half, much.
const (
	leastReadAhead = 4 << 10
	smallReadAhead = 64 << 10
	largeReadAhead = requestSize
)

// readAheadFor is for a file of which one decode makes stride bytes: less than
// half of that, so that what a program touches and what is around it lie in two
// records at most.
func readAheadFor(stride int64) int {
	n := leastReadAhead
	for int64(4*n) <= stride && n < smallReadAhead {
		n *= 2
	}
	return n
}

// readAhead is the kernel's setting for the mount, which every file takes with
// it when it is opened. Only root can change it; for others it stays small.
type readAhead struct {
	mu   sync.Mutex
	knob string // "": not ours to turn
	now  int
}

// find finds the setting of the file system at dir.
func (r *readAhead) find(dir string) {
	var st unix.Stat_t
	if err := uninterrupted(func() error { return unix.Stat(dir, &st) }); err != nil {
		return
	}
	knob := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev))
	if unix.Access(knob, unix.W_OK) != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.knob, r.now = knob, smallReadAhead
}

// set is for the file that is being opened, and those after it.
func (r *readAhead) set(bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.knob == "" || r.now == bytes {
		return
	}
	// One write, not O_TRUNC: that is how sysfs takes it.
	f, err := os.OpenFile(r.knob, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "%d", bytes>>10); err == nil {
		r.now = bytes
	}
}
