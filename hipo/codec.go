package hipo

import (
	"bytes"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

type codec uint8

const (
	codecNone codec = iota
	codecLZ4
	codecGzip
	codecZstd
)

func (c codec) String() string { return [...]string{"uncompressed", "LZ4", "gzip", "zstd"}[c] }

type layout uint8

const (
	layoutWhole  layout = iota // one compressed payload of events
	layoutBank                 // a directory, and a stream for each bank
	layoutColumn               // a directory, and a stream for each column
)

// tags says what each compression tag stands for.
var tags = [maxTag + 1]struct {
	codec  codec
	layout layout
}{
	0: {codecNone, layoutWhole}, 1: {codecLZ4, layoutWhole}, 2: {codecLZ4, layoutWhole},
	3: {codecGzip, layoutWhole}, 4: {codecZstd, layoutWhole},
	5: {codecZstd, layoutBank}, 6: {codecLZ4, layoutBank}, 9: {codecLZ4, layoutBank},
	11: {codecGzip, layoutBank}, 13: {codecNone, layoutBank},
	7: {codecLZ4, layoutColumn}, 8: {codecZstd, layoutColumn}, 10: {codecLZ4, layoutColumn},
	12: {codecGzip, layoutColumn}, 14: {codecNone, layoutColumn},
}

// A codec's output cannot be longer than this many times its input (and a
// little); a declared length beyond it is a lie, told before it is believed.
// zstd has no such bound: its output grows as it arrives.
const (
	lz4Ratio   = 255
	gzipRatio  = 1040
	gzipExtra  = 64
	firstGuess = 1 << 20 // bytes of zstd output to begin with

	// The decoder allocates the window that a frame asks for, however short its
	// content. The zstd library, too, refuses more than this.
	maxZstdWindow = 128 << 20
)

// inflater holds what the codecs keep between calls. It is not safe for
// concurrent use.
type inflater struct {
	limit int64 // ceiling on one output
	src   bytes.Reader
	gzip  *gzip.Reader
	zstd  *zstd.Decoder
}

// inflate decompresses src into dst's memory, grown where needed, and returns
// its first want bytes. Up to slack bytes more are tolerated and cut off; less
// is an error.
func (z *inflater) inflate(c codec, dst, src []byte, want int64) ([]byte, error) {
	short := func(n int) error {
		return fmt.Errorf("%v data ends after %d bytes, %d declared", c, n, want)
	}
	if want > z.limit {
		return nil, fmt.Errorf("%d bytes declared, the limit is %d", want, z.limit)
	}
	if want == 0 {
		return dst[:0], nil
	}
	n := int64(len(src))
	if c == codecNone && want > n || c == codecLZ4 && want > lz4Ratio*n || c == codecGzip && want > gzipRatio*n+gzipExtra {
		return nil, fmt.Errorf("%d bytes declared, more than %d bytes of %v data can hold", want, n, c)
	}
	switch c {
	case codecNone:
		return append(dst[:0], src[:want]...), nil
	case codecLZ4:
		dst = resize(dst, want+slack)
		n, err := lz4.UncompressBlock(src, dst)
		if err != nil {
			return nil, fmt.Errorf("%v data is damaged", c)
		}
		if int64(n) < want {
			return nil, short(n)
		}
		// A block ends in literals, five at least, which stand at its end as they
		// are. One that ends in a match is damaged; the library lets it pass.
		const literals = 5
		if n >= literals && len(src) >= literals && !bytes.Equal(dst[n-literals:n], src[len(src)-literals:]) {
			return nil, fmt.Errorf("%v data is damaged: it does not end in literals", c)
		}
		return dst[:want], nil
	case codecGzip:
		dst = resize(dst, want+slack)
		n, err := z.gunzip(dst, src)
		if err != nil {
			return nil, fmt.Errorf("%v data is damaged: %w", c, err)
		}
		if int64(n) < want {
			return nil, short(n)
		}
		return dst[:want], nil
	default:
		dst, err := z.unzstd(dst, src, want+slack)
		if err != nil {
			return nil, fmt.Errorf("%v data is damaged: %w", c, err)
		}
		if int64(len(dst)) < want {
			return nil, short(len(dst))
		}
		return dst[:want], nil
	}
}

// gunzip fills dst from the one gzip member in src. A longer member is refused:
// its checksum lies behind its end and would not be compared.
func (z *inflater) gunzip(dst, src []byte) (int, error) {
	z.src.Reset(src)
	if z.gzip == nil {
		r, err := gzip.NewReader(&z.src)
		if err != nil {
			return 0, noEOF(err)
		}
		z.gzip = r
	} else if err := z.gzip.Reset(&z.src); err != nil {
		return 0, noEOF(err)
	}
	z.gzip.Multistream(false)
	n, err := io.ReadFull(z.gzip, dst)
	switch {
	case atEnd(z.gzip, err):
		err = nil
	case err == nil:
		var more [1]byte
		if _, err = io.ReadFull(z.gzip, more[:]); err == nil {
			err = fmt.Errorf("more than %d bytes", len(dst))
		} else if err == io.EOF {
			err = nil
		}
	}
	return n, noEOF(err)
}

// atEnd tells the end of what r decodes, which io.ReadFull reports as an error
// like the end of its input, by asking again.
func atEnd(r io.Reader, err error) bool {
	if err != io.EOF && err != io.ErrUnexpectedEOF {
		return false
	}
	n, err := r.Read(make([]byte, 1))
	return n == 0 && err == io.EOF
}

// unzstd decompresses the frame in src into dst's memory, at most limit bytes.
func (z *inflater) unzstd(dst, src []byte, limit int64) ([]byte, error) {
	z.src.Reset(src)
	if z.zstd == nil {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(uint64(max(min(z.limit, maxZstdWindow), zstd.MinWindowSize))))
		if err != nil {
			return nil, err
		}
		z.zstd = d
	}
	if err := z.zstd.Reset(&z.src); err != nil {
		return nil, noEOF(err)
	}
	dst = resize(dst, min(limit, max(firstGuess, int64(cap(dst)))))
	n := 0
	for {
		m, err := io.ReadFull(z.zstd, dst[n:])
		n += m
		switch {
		case atEnd(z.zstd, err):
			return dst[:n], nil
		case err != nil:
			return nil, noEOF(err)
		case int64(n) == limit:
			return dst, nil
		}
		grown := make([]byte, min(limit, 2*int64(n)))
		copy(grown, dst)
		dst = grown
	}
}

// noEOF makes the end of the input an error that reads like one.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// resize gives b the length n, in its own memory if that is large enough. New
// memory has room to spare: the records of a file are about equally long, and
// memory that was never touched is dear.
func resize(b []byte, n int64) []byte {
	if int64(cap(b)) >= n {
		return b[:n]
	}
	return make([]byte, n, n+n/8)
}
