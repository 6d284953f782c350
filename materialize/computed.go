package materialize

import (
	"context"
	"encoding/binary"

	"github.com/hipofs/hipofs/hipo"
)

// fillOffsets gives offsets[e] = rows before entry e; the last is all rows.
func (c *Column) fillOffsets(ctx context.Context, p []byte, row int64) error {
	n := int64(len(p)) / 8
	last := row+n == c.frame.Load().rows
	if last {
		n--
	}
	err := c.view.eachRun(row, n, func(x stretch, from, n int64) error {
		ends, err := c.bank.ends(ctx, x)
		if err != nil {
			return err
		}
		base := c.bank.rowsBefore(x)
		for e := from; e < from+n; e++ {
			_, upTo := end(ends, e)
			p = put(p, base+upTo)
		}
		return nil
	})
	if err == nil && last {
		put(p, c.bank.rows[len(c.bank.rows)-1])
	}
	return err
}

// fillEntry gives the entry that each row belongs to.
func (c *Column) fillEntry(ctx context.Context, p []byte, row int64) error {
	return c.bank.eachRowRun(ctx, row, int64(len(p))/8, func(x stretch, ends []byte, from, n int64) error {
		base := c.view.entriesBefore(x)
		eachRow(ends, from, n, func(_, e int64) { p = put(p, base+e) })
		return nil
	})
}

// fillPointer gives the row of the target that each row's pindex points to, -1
// where the entry has no such row.
func (c *Column) fillPointer(ctx context.Context, p []byte, row int64) error {
	b := c.bank
	size := b.schema.Columns[b.pindex].Type.Size
	return b.eachRowRun(ctx, row, int64(len(p))/8, func(x stretch, ends []byte, from, n int64) error {
		pindex, err := b.chunk(ctx, x, int32(b.pindex))
		if err != nil {
			return err
		}
		targets, err := b.target.ends(ctx, x)
		if err != nil {
			return err
		}
		base := b.target.rowsBefore(x)
		eachRow(ends, from, n, func(row, e int64) {
			p = put(p, pointed(targets, e, base, integer(pindex[row*int64(size):], size)))
		})
		return nil
	})
}

// pointed is the row that number at of the rows of entry e is, where base rows come
// before the run with these ends; -1, if there is none.
func pointed(ends []byte, e, base, at int64) int64 {
	through, upTo := end(ends, e)
	if at < 0 || at >= through-upTo {
		return -1
	}
	return base + upTo + at
}

// integer is the signed little-endian integer of that size that begins b.
func integer(b []byte, size int) int64 {
	switch size {
	case 1:
		return int64(int8(b[0]))
	case 2:
		return int64(int16(binary.LittleEndian.Uint16(b)))
	case 4:
		return int64(int32(binary.LittleEndian.Uint32(b)))
	default:
		return int64(binary.LittleEndian.Uint64(b))
	}
}

// fillEventTags copies event tags out of chunks.
func (c *Column) fillEventTags(ctx context.Context, p []byte, row int64) error {
	return c.view.eachRun(row, int64(len(p))/4, func(x stretch, from, n int64) error {
		tags, err := c.view.tags(ctx, x)
		if err != nil {
			return err
		}
		p = p[copy(p, tags[4*from:4*(from+n)]):]
		return nil
	})
}

// fillRecordTags gives each entry its record's user word 1.
func (c *Column) fillRecordTags(ctx context.Context, p []byte, row int64) error {
	return c.view.eachRun(row, int64(len(p))/8, func(x stretch, from, n int64) error {
		run, of, err := c.view.entriesOf(ctx, x)
		if err != nil {
			return err
		}
		p = putRecordTags(p, x.source.file.Records[run.first:run.first+run.records], of, from, n)
		return nil
	})
}

// putRecordTags puts the record tags of n picked entries of a run, from the one
// numbered from on.
func putRecordTags(p []byte, headers []hipo.RecordHeader, of picked, from, n int64) []byte {
	next := int64(headers[0].Events)
	for i := from; i < from+n; i++ {
		for e := of.at(i); e >= next; {
			headers = headers[1:]
			next += int64(headers[0].Events)
		}
		p = put(p, headers[0].UserTag)
	}
	return p
}

// fillEntryNumbers gives each entry its number in the whole chain.
func (c *Column) fillEntryNumbers(ctx context.Context, p []byte, row int64) error {
	return c.view.eachRun(row, int64(len(p))/8, func(x stretch, from, n int64) error {
		run, of, err := c.view.entriesOf(ctx, x)
		if err != nil {
			return err
		}
		first := x.source.first + run.entry
		for i := from; i < from+n; i++ {
			p = put(p, first+of.at(i))
		}
		return nil
	})
}

func put(p []byte, v int64) []byte {
	binary.LittleEndian.PutUint64(p, uint64(v))
	return p[8:]
}
