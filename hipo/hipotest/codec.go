package hipotest

import (
	"bytes"
	"fmt"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// layout is how a record stores its events.
type layout int

const (
	wholeRecord layout = iota
	byBank
	byColumn
)

// codec is a compressor by name.
type codec string

// tags are the compression tags 0 to 14.
var tags = [...]struct {
	codec  codec
	layout layout
}{
	{"none", wholeRecord}, {"lz4", wholeRecord}, {"lz4hc", wholeRecord}, {"gzip", wholeRecord}, {"zstd", wholeRecord},
	{"zstd", byBank}, {"lz4hc", byBank}, {"lz4hc", byColumn}, {"zstd", byColumn},
	{"lz4", byBank}, {"lz4", byColumn}, {"gzip", byBank}, {"gzip", byColumn}, {"none", byBank}, {"none", byColumn},
}

func codecOf(tag int) (codec, layout) {
	if tag < 0 || tag >= len(tags) {
		panic(fmt.Sprintf("hipotest: compression tag %d", tag))
	}
	return tags[tag].codec, tags[tag].layout
}

// Split reports whether a compression tag stores streams instead of events.
func Split(tag int) bool { _, l := codecOf(tag); return l != wholeRecord }

// ByColumn reports whether a compression tag stores one stream a column.
func ByColumn(tag int) bool { _, l := codecOf(tag); return l == byColumn }

func (c codec) compress(b []byte) []byte {
	switch c {
	case "none":
		return b
	case "lz4":
		return compressLZ4(b)
	case "lz4hc":
		dst := make([]byte, lz4.CompressBlockBound(len(b)))
		n, err := lz4.CompressBlockHC(b, dst, lz4.Level9, nil, nil)
		return lz4Block(b, dst[:n], err)
	case "gzip":
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		check(w.Write(b))
		check(0, w.Close())
		return out.Bytes()
	case "zstd":
		var out bytes.Buffer
		w, err := zstd.NewWriter(&out, zstd.WithEncoderCRC(false), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(1<<16), zstd.WithLowerEncoderMem(true)) // small: tests build thousands of files
		check(0, err)
		check(w.Write(b))
		check(0, w.Flush()) // a frame begun before its end is known has no content size, as in real files
		check(0, w.Close())
		return out.Bytes()
	}
	panic("hipotest: codec " + string(c))
}

func compressLZ4(b []byte) []byte {
	dst := make([]byte, lz4.CompressBlockBound(len(b)))
	n, err := lz4.CompressBlock(b, dst, nil)
	return lz4Block(b, dst[:n], err)
}

// lz4Block is the compressor's block, or one of literals alone where the
// compressor found nothing to compress and gave none.
func lz4Block(raw, block []byte, err error) []byte {
	check(0, err)
	if len(block) > 0 {
		return block
	}
	out := []byte{byte(min(len(raw), 15)) << 4}
	if rest := len(raw) - 15; rest >= 0 {
		for ; rest >= 255; rest -= 255 {
			out = append(out, 255)
		}
		out = append(out, byte(rest))
	}
	return append(out, raw...)
}

func check(_ int, err error) {
	if err != nil {
		panic("hipotest: " + err.Error())
	}
}
