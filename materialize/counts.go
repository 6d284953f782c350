package materialize

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/fse"
)

// Counts are how many rows a bank has in each of a group of entries. They are
// stored in the planes of their bytes, low first, as many as the largest count
// needs; each plane by itself:
//
//	planes u8 | per plane: how u8, length varint, bytes
const (
	planeSame = 0 // one byte: all are that
	planeRaw  = 1
	planeFSE  = 2 // entropy coded: near the entropy of the counts, which zstd is not
)

var errCounts = errors.New("counts are damaged")

// packer packs and unpacks counts. It is not safe for concurrent use.
type packer struct {
	fse   fse.Scratch
	plane []byte
}

// pack appends counts to dst.
func (k *packer) pack(dst []byte, counts []uint32) []byte {
	var most uint32
	for _, n := range counts {
		most |= n
	}
	planes := 1
	for most > 0xFF {
		most >>= 8
		planes++
	}
	dst = append(dst, byte(planes))
	for p := range planes {
		k.plane = k.plane[:0]
		for _, n := range counts {
			k.plane = append(k.plane, byte(n>>(8*p)))
		}
		dst = k.packPlane(dst)
	}
	return dst
}

func (k *packer) packPlane(dst []byte) []byte {
	how, b := byte(planeRaw), k.plane
	same := len(b) > 0
	for _, v := range b {
		if v != b[0] {
			same = false
			break
		}
	}
	if same {
		how, b = planeSame, b[:1]
	} else if packed, err := fse.Compress(b, &k.fse); err == nil {
		how, b = planeFSE, packed
	}
	dst = append(dst, how)
	dst = binary.AppendUvarint(dst, uint64(len(b)))
	return append(dst, b...)
}

// unpack fills counts from what pack made, which must be all of src.
func (k *packer) unpack(counts []uint32, src []byte) error {
	if len(src) == 0 || src[0] < 1 || src[0] > 4 {
		return errCounts
	}
	clear(counts)
	planes := int(src[0])
	src = src[1:]
	for p := range planes {
		if len(src) == 0 {
			return errCounts
		}
		how := src[0]
		n, used := binary.Uvarint(src[1:])
		if used <= 0 || n > uint64(len(src)-1-used) {
			return errCounts
		}
		b := src[1+used : 1+used+int(n)]
		src = src[1+used+int(n):]
		if err := k.unpackPlane(counts, uint(8*p), how, b); err != nil {
			return err
		}
	}
	if len(src) != 0 {
		return errCounts
	}
	return nil
}

func (k *packer) unpackPlane(counts []uint32, shift uint, how byte, b []byte) error {
	switch how {
	case planeSame:
		if len(b) != 1 {
			return errCounts
		}
		for i := range counts {
			counts[i] |= uint32(b[0]) << shift
		}
		return nil
	case planeFSE:
		k.fse.DecompressLimit = len(counts)
		out, err := fse.Decompress(b, &k.fse)
		if err != nil {
			return fmt.Errorf("%w: %w", errCounts, err)
		}
		b = out
	case planeRaw:
	default:
		return errCounts
	}
	if len(b) != len(counts) {
		return errCounts
	}
	for i, v := range b {
		counts[i] |= uint32(v) << shift
	}
	return nil
}
