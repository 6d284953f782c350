package fs

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hipofs/hipofs/materialize"
)

// Stats is what .hipofs/stats.json says.
type Stats struct {
	Version         string    `json:"version"`
	PID             int       `json:"pid"`
	Mounted         time.Time `json:"mounted"`
	Time            time.Time `json:"time"` // of these numbers
	ResidentBytes   int64     `json:"resident_bytes"`
	OpenDescriptors int       `json:"open_descriptors"`
	Goroutines      int       `json:"goroutines"`
	materialize.Stats
	materialize.Progress
	Waiting     []Waiter               `json:"waiting"`
	Tier        *materialize.TierStats `json:"tier"` // null without a cache folder
	Passthrough PassthroughStats       `json:"passthrough"`
}

// Waiter is a process that waits for what it reads.
type Waiter struct {
	PID     int       `json:"pid"` // 0: of another container, or the kernel's own
	Command string    `json:"command"`
	Bank    trueText  `json:"bank"`
	Column  trueText  `json:"column,omitempty"`
	For     string    `json:"for"` // counting, decoding
	File    trueText  `json:"file,omitempty"`
	Since   time.Time `json:"since"`
}

func (t *tree) stats() Stats {
	s := Stats{
		Version: t.version, PID: os.Getpid(), Mounted: t.mounted, Time: time.Now(),
		ResidentBytes: residentBytes(), OpenDescriptors: openDescriptors(), Goroutines: runtime.NumGoroutine(),
		Stats: t.chain.Stats(), Progress: t.chain.Progress(), Waiting: waiters(t.chain),
		Tier: t.chain.TierStats(), Passthrough: t.through.stats(),
	}
	s.Errors = len(t.border.all())
	return s
}

// waiters are the processes that wait, the most patient one first. One that
// waits for several records of a column is there once.
func waiters(chain *materialize.Chain) []Waiter {
	list := []Waiter{}
	at := map[Waiter]int{} // in list, without Since
	for _, w := range chain.Waiting() {
		one := Waiter{Bank: trueText(w.Bank), Column: trueText(w.Column), For: w.For, File: trueText(w.File)}
		if caller, ok := fuse.FromContext(w.Reader); ok {
			one.PID, one.Command = process(caller.Pid)
		}
		i, ok := at[one]
		if !ok {
			i = len(list)
			at[one] = i
			one.Since = w.Since
			list = append(list, one)
		}
		if w.Since.Before(list[i].Since) {
			list[i].Since = w.Since
		}
	}
	slices.SortFunc(list, func(a, b Waiter) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.PID, b.PID))
	})
	return list
}

// process is the process of a thread, and its name: the kernel says which thread
// has asked. One that has ended is its own.
func process(thread uint32) (pid int, command string) {
	pid = int(thread)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return pid, ""
	}
	for line := range strings.Lines(string(status)) {
		if group, ok := strings.CutPrefix(line, "Tgid:"); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(group)); err == nil {
				pid = n
			}
		}
	}
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return pid, strings.ToValidUTF8(strings.TrimSuffix(string(comm), "\n"), "\uFFFD")
}

// residentBytes is the memory of this process, 0 if that is not to be known.
func residentBytes() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident int64
	if _, err := fmt.Fscan(bytes.NewReader(b), &size, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}

// openDescriptors counts those of this process, without the one it takes to count.
func openDescriptors() int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(names) - 1
}
