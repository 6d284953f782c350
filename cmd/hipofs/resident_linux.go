package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// forgetStart lets the kernel take back the pages of this program that only its start
// has touched: the packages that write Parquet and Arrow files fill large tables
// then, and a mount that lives for days uses none of them. They are read-only, and
// whatever is needed again comes from the page cache.
func forgetStart() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		// 00400000-01e2d000 r-xp 00000000 fe:00 1234   /usr/bin/hipofs
		var from, to uintptr
		var rights string
		_, err := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &rights)
		if err == nil && rights[1] == '-' && strings.HasSuffix(lines.Text(), " "+program) {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}
