package materialize

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// DefaultMemory is the budget where none is given: a quarter of the memory that
// this process may use, limits of its control groups included.
func DefaultMemory() int64 {
	limit := machineMemory()
	for _, l := range cgroupLimits() {
		limit = min(limit, l)
	}
	return limit / 4
}

// machineMemory is MemTotal, or 4 GiB where it cannot be read.
func machineMemory() int64 {
	const unknown = 4 << 30
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return unknown
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "MemTotal:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err == nil {
				return kb << 10
			}
		}
	}
	return unknown
}

// cgroupLimits are the limits of this process's group and of those above it,
// in either version of control groups.
func cgroupLimits() []int64 {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	var limits []int64
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		root, file := "/sys/fs/cgroup", "memory.max"
		if parts[1] == "memory" {
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if parts[1] != "" {
			continue
		}
		for dir := parts[2]; ; dir = filepath.Dir(dir) {
			if text, err := os.ReadFile(filepath.Join(root, dir, file)); err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
					limits = append(limits, n)
				}
			}
			if dir == "/" || dir == "." || !strings.HasPrefix(dir, "/") {
				break
			}
		}
	}
	return limits
}
