package materialize

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// A seal says that a column beside it is whole, and what its bytes are.
//
//	magic "HIPOFSSL" | version u32 | length of the rest u32 | XXH3 of the rest u64
//	size | XXH3 of each block, u64 | bank/column, for people
type seal struct {
	size  int64
	sums  []uint64
	label string
}

const (
	sealMagic   = "HIPOFSSL"
	sealVersion = 1
	sealHeader  = 24
	maxSeal     = 64 << 20 // the sums of 8 TB

	// sealBlock is what has a checksum of its own.
	sealBlock = 1 << 20
)

func blocksOf(size int64) int { return int((size + sealBlock - 1) / sealBlock) }

func (s *seal) encode() []byte {
	var w headWriter
	w.num(s.size)
	w.num(int64(len(s.sums)))
	for _, sum := range s.sums {
		w.fixed(sum)
	}
	w.text(s.label)
	b := make([]byte, sealHeader, sealHeader+len(w.b))
	copy(b, sealMagic)
	binary.LittleEndian.PutUint32(b[8:], sealVersion)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(w.b)))
	binary.LittleEndian.PutUint64(b[16:], xxh3.Hash(w.b))
	return append(b, w.b...)
}

var errSeal = errors.New("its seal is damaged")

func parseSeal(b []byte) (*seal, error) {
	if len(b) < sealHeader || string(b[:8]) != sealMagic {
		return nil, errSeal
	}
	rest := b[sealHeader:]
	if binary.LittleEndian.Uint32(b[8:]) != sealVersion || int(binary.LittleEndian.Uint32(b[12:])) != len(rest) ||
		binary.LittleEndian.Uint64(b[16:]) != xxh3.Hash(rest) {
		return nil, errSeal
	}
	r := &headReader{b: rest}
	s := &seal{size: r.num()}
	s.sums = make([]uint64, r.count(8))
	for i := range s.sums {
		s.sums[i] = r.fixed()
	}
	s.label = r.text()
	if r.err != nil || len(r.b) != 0 || len(s.sums) != blocksOf(s.size) {
		return nil, errSeal
	}
	return s, nil
}

func readSeal(dir *os.File, name string) (*seal, error) {
	f, err := at(dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := ours(f, unix.S_IFREG); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSeal+1))
	if err != nil {
		return nil, err
	}
	return parseSeal(b)
}

var sealBuffers = sync.Pool{New: func() any { return new([sealBlock]byte) }}

// compare compares a file of the right length with the checksums.
func (s *seal) compare(ctx context.Context, f *os.File, threads int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(threads)
	for i := range s.sums {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			buf := sealBuffers.Get().(*[sealBlock]byte)
			defer sealBuffers.Put(buf)
			off := int64(i) * sealBlock
			p := buf[:min(sealBlock, s.size-off)]
			if _, err := f.ReadAt(p, off); err != nil {
				return fmt.Errorf("at byte %d: %w", off, err)
			}
			if xxh3.Hash(p) != s.sums[i] {
				return fmt.Errorf("at byte %d: its checksum is wrong", off)
			}
			return nil
		})
	}
	return g.Wait()
}
