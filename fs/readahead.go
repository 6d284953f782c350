package fs

import (
	"fmt"
	"os"
	"sync"

	"github.com/moby/sys/mountinfo"
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
// records at most. Of a file that is in memory the stride is 0.
func readAheadFor(stride int64) int {
	if stride == 0 {
		return largeReadAhead
	}
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

// find finds the setting by the number of the mount's device, MAJOR:MINOR. The
// mount itself is not asked: a process that waits for its own answer cannot be
// killed, and so neither can its mount.
func (r *readAhead) find(device string) {
	knob := "/sys/class/bdi/" + device + "/read_ahead_kb"
	if unix.Access(knob, unix.W_OK) != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.knob, r.now = knob, smallReadAhead
}

// deviceAt is the number of the device that is mounted at dir, a path without
// links; "" if that cannot be found.
func deviceAt(dir string) string {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
	if err != nil || len(mounts) == 0 {
		return ""
	}
	m := mounts[len(mounts)-1] // later ones lie on top
	return fmt.Sprintf("%d:%d", m.Major, m.Minor)
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
