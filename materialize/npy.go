package materialize

import (
	"fmt"
	"strings"
)

// npyAlign is what the header of a .npy file is padded to, so that mapped
// content is aligned for every dtype and for vector instructions.
const npyAlign = 64

// npyHeader is the header of a version 1.0 .npy file in C order. Its length
// follows from dtype and shape alone, so that a file's size can be told before
// a value has been read.
//
//	\x93NUMPY 1 0 | u16 length of what follows | {'descr': …} spaces \n
func npyHeader(dtype string, shape ...int64) []byte {
	var dims strings.Builder
	for i, n := range shape {
		if i > 0 {
			dims.WriteString(", ")
		}
		fmt.Fprintf(&dims, "%d", n)
	}
	if len(shape) == 1 {
		dims.WriteByte(',')
	}
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", dtype, dims.String())
	const preamble = 10
	n := (preamble + len(text) + 1 + npyAlign - 1) / npyAlign * npyAlign
	h := make([]byte, n)
	copy(h, "\x93NUMPY\x01\x00")
	h[8], h[9] = byte(n-preamble), byte((n-preamble)>>8)
	copy(h[preamble:], text)
	for i := preamble + len(text); i < n-1; i++ {
		h[i] = ' '
	}
	h[n-1] = '\n'
	return h
}
