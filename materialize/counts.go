package materialize

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/fse"
	"github.com/klauspost/compress/huff0"
)

// Counts are how many rows a bank has in each of a group of entries. They are
// stored in the planes of their bytes, low first, as many as the largest count
// needs; each plane by itself:
//
//	planes u8 | per plane: how u8, length varint, bytes
const (
	planeSame = 0 // one byte: all are that
	planeRaw  = 1
	planeFSE  = 2 // entropy coded, in fractions of bits: where one value is most of all
	planeHuff = 3 // entropy coded, in whole bits: faster, and nearly as short elsewhere
)

var errCounts = errors.New("counts are damaged")

// packer packs and unpacks counts. It is not safe for concurrent use.
type packer struct {
	fse   fse.Scratch
	huff  huff0.Scratch
	plane []byte
}

// pack appends counts to dst.
func (k *packer) pack(dst []byte, counts []uint32) []byte {
	if cap(k.plane) < len(counts) {
		k.plane = make([]byte, len(counts))
	}
	var most uint32
	for _, n := range counts {
		most |= n
	}
	planes := 1
	for m := most; m > 0xFF; m >>= 8 {
		planes++
	}
	dst = append(dst, byte(planes))
	for p := range planes {
		dst = k.packPlane(dst, counts, 8*p)
	}
	return dst
}

// mostlyOne is the share of one value from which fractions of bits matter.
const mostlyOne = 0.7

// packPlane appends the plane of the byte that is so many bits up.
func (k *packer) packPlane(dst []byte, counts []uint32, shift int) []byte {
	how, b := byte(planeRaw), k.plane[:len(counts)]
	first, others := byte(0), 0 // how many are not like the first
	if len(counts) > 0 {
		first = byte(counts[0] >> shift)
	}
	for i, n := range counts {
		v := byte(n >> shift)
		b[i] = v
		if v != first {
			others++
		}
	}
	switch {
	case others == 0 && len(b) > 0:
		how, b = planeSame, b[:1]
	case float64(len(b)-others) > mostlyOne*float64(len(b)):
		if packed, err := fse.Compress(b, &k.fse); err == nil {
			how, b = planeFSE, packed
		}
	case len(b) <= huff0.BlockSizeMax:
		k.huff.Reuse = huff0.ReusePolicyNone
		if packed, _, err := huff0.Compress1X(b, &k.huff); err == nil {
			how, b = planeHuff, packed
		}
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
	case planeHuff:
		if len(counts) > huff0.BlockSizeMax {
			return errCounts
		}
		d, rest, err := huff0.ReadTable(b, &k.huff)
		if err != nil {
			return fmt.Errorf("%w: %w", errCounts, err)
		}
		if b, err = d.Decoder().Decompress1X(make([]byte, 0, len(counts)), rest); err != nil {
			return fmt.Errorf("%w: %w", errCounts, err)
		}
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
