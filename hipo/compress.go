package hipo

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// Codec is how records are to be stored: a compression tag, 0 to 14, which
// stands for codec and layout, and how much effort zstd makes.
type Codec struct {
	Tag  uint8
	Zstd int // level; 0: 3
}

const (
	zstdLevel = 3
	lz4Best   = lz4.Level9 // what tags 2, 6 and 7 stand for
)

var best = []uint8{2, 6, 7}

// words spell a tag: codec, layout.
func (c Codec) words() (codec, layout string) {
	t := tags[c.Tag]
	codec = [...]string{"none", "lz4", "gzip", "zstd"}[t.codec]
	if slices.Contains(best, c.Tag) {
		codec = "lz4hc"
	}
	return codec, [...]string{"perchunk", "perbank", "percolumn"}[t.layout]
}

// String is the codec as ParseCodec reads it.
func (c Codec) String() string {
	codec, layout := c.words()
	if c.Zstd != 0 {
		codec += strconv.Itoa(c.Zstd)
	}
	return codec + "+" + layout
}

// Split reports whether records with this codec store their banks apart.
func (c Codec) Split() bool { return tags[c.Tag].layout != layoutWhole }

// Stored reports whether records with this codec are not compressed.
func (c Codec) Stored() bool { return tags[c.Tag].codec == codecNone }

// older names of what now has a codec and a layout.
var olderCodecs = map[string]string{
	"lz4best":      "lz4hc",
	"lz4perbank":   "lz4hc+perbank",
	"lz4percolumn": "lz4hc+percolumn",
}

// ParseCodec reads CODEC or CODEC+LAYOUT: none, lz4, lz4hc, gzip, zstd or zstd1
// to zstd9, and perchunk (a record is compressed whole), perbank or percolumn.
func ParseCodec(s string) (Codec, error) {
	full := s
	if older, ok := olderCodecs[s]; ok {
		full = older
	}
	name, by, ok := strings.Cut(full, "+")
	if !ok {
		by = "perchunk"
	}
	level := 0
	if digits, ok := strings.CutPrefix(name, "zstd"); ok && digits != "" {
		if len(digits) != 1 || digits < "1" || digits > "9" {
			return Codec{}, fmt.Errorf("zstd has levels 1 to 9, as in zstd3")
		}
		level, name = int(digits[0]-'0'), "zstd"
	}
	for tag := range uint8(maxTag + 1) {
		if codec, layout := (Codec{Tag: tag}).words(); codec == name && layout == by {
			return Codec{tag, level}, nil
		}
	}
	return Codec{}, fmt.Errorf("want none, lz4, lz4hc, gzip or zstd, alone or with +perchunk, +perbank or +percolumn, as in lz4+perbank")
}

// compressor holds what the codecs keep between calls. It is not safe for
// concurrent use. The same bytes give the same bytes, whatever came before.
type compressor struct {
	lz4   lz4.Compressor
	best  lz4.CompressorHC
	out   bytes.Buffer
	gzip  *gzip.Writer
	zstd  *zstd.Encoder
	level int // of zstd
}

// compress appends src, compressed, to dst. Nothing becomes nothing.
func (z *compressor) compress(dst, src []byte, c Codec) ([]byte, error) {
	if len(src) == 0 {
		return dst, nil
	}
	switch tags[c.Tag].codec {
	case codecNone:
		return append(dst, src...), nil
	case codecLZ4:
		return z.block(dst, src, slices.Contains(best, c.Tag))
	case codecGzip:
		z.out.Reset()
		if z.gzip == nil {
			z.gzip = gzip.NewWriter(&z.out)
		} else {
			z.gzip.Reset(&z.out)
		}
		if _, err := z.gzip.Write(src); err != nil {
			return nil, err
		}
		if err := z.gzip.Close(); err != nil {
			return nil, err
		}
	default:
		if err := z.frame(src, c.Zstd); err != nil {
			return nil, err
		}
	}
	return append(dst, z.out.Bytes()...), nil
}

// frame makes a zstd frame in out: without a content size and a checksum, as
// the other writer of such records leaves them out.
func (z *compressor) frame(src []byte, level int) error {
	if level == 0 {
		level = zstdLevel
	}
	z.out.Reset()
	if z.zstd == nil || z.level != level {
		enc, err := zstd.NewWriter(&z.out, zstd.WithEncoderCRC(false), zstd.WithEncoderConcurrency(1),
			zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)))
		if err != nil {
			return err
		}
		z.zstd, z.level = enc, level
	} else {
		z.zstd.Reset(&z.out)
	}
	if _, err := z.zstd.Write(src); err != nil {
		return err
	}
	// A frame that is begun before its end is known has no content size.
	if err := z.zstd.Flush(); err != nil {
		return err
	}
	return z.zstd.Close()
}

// block appends src as an LZ4 block.
func (z *compressor) block(dst, src []byte, effort bool) ([]byte, error) {
	begin := len(dst)
	dst = slices.Grow(dst, lz4.CompressBlockBound(len(src)))
	room := dst[begin:cap(dst)]
	var n int
	var err error
	if effort {
		z.best.Level = lz4Best
		n, err = z.best.CompressBlock(src, room)
	} else {
		n, err = z.lz4.CompressBlock(src, room)
	}
	if err != nil {
		return nil, err
	}
	if n > 0 {
		return dst[:begin+n], nil
	}
	// Nothing was found to compress: a block of literals alone.
	const few = 15
	dst = append(dst[:begin], byte(min(len(src), few))<<4)
	if rest := len(src) - few; rest >= 0 {
		for ; rest >= 255; rest -= 255 {
			dst = append(dst, 255)
		}
		dst = append(dst, byte(rest))
	}
	return append(dst, src...), nil
}
