package hipotest

import (
	"bytes"
	"compress/gzip"
)

// GzipZeros is n zeros, in a thousandth of their size.
func GzipZeros(n int) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	for zeros := make([]byte, 1<<20); n > 0; n -= len(zeros) {
		_, _ = w.Write(zeros)
	}
	_ = w.Close()
	return b.Bytes()
}

// ZstdZeros is n zeros as blocks of one repeated byte: 4 bytes stand for 128 kB.
func ZstdZeros(n int) []byte {
	const block = 128 << 10
	b := []byte{0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x58} // window of 2 MB, no content size
	for at := 0; at < n; at += block {
		last := uint32(0)
		if at+block >= n {
			last = 1
		}
		h := block<<3 | 1<<1 | last
		b = append(b, byte(h), byte(h>>8), byte(h>>16), 0)
	}
	return b
}

// LZ4Zeros is a block of n zeros, in a 255th of their size; n is 1000 or more.
func LZ4Zeros(n int) []byte {
	const literals = 12 // at the end of every block, and before its last match
	length := n - 1 - literals - 4 - 15
	b := []byte{0x1F, 0, 1, 0} // a zero, and a match of 4 + 15 + length bytes at distance 1
	for ; length >= 255; length -= 255 {
		b = append(b, 255)
	}
	b = append(b, byte(length), literals<<4)
	return append(b, make([]byte, literals)...)
}
