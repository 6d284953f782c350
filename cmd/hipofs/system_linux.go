package main

import (
	"slices"

	"golang.org/x/sys/unix"
)

// terminalState is asked of a terminal; other files have none.
const terminalState = unix.TCGETS

// privileged says whether this program gives its caller rights that the caller
// does not have, by a set-user-ID bit or capabilities of its file. The caller's
// environment then steers nothing.
func privileged() bool {
	const atSecure = 23 // getauxval(3)
	vector, err := unix.Auxv()
	return err != nil || slices.Contains(vector, [2]uintptr{atSecure, 1})
}
