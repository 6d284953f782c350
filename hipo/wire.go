package hipo

import (
	"encoding/binary"
	"fmt"
)

// A header, of a file or of a record, begins with 14 words of 32 bits:
//
//	word   file header             record header
//	 0     identifier              record length, words
//	 1     file number             record number
//	 2     header length, words    header length, words
//	 3     record count            event count
//	 4     index length            index length, 4 an event
//	 5     bit info                bit info
//	 6     user header length      user header length
//	 7     magic                   magic
//	 8     user register           data length
//	 9     .                       compression: tag << 28 | body words
//	10     trailer position        user word 1 (the record tag)
//	11     .                       .
//	12     user integer 1          user word 2
//	13     user integer 2          .
const (
	headerLength = 56
	headerWords  = 14
	magic        = 0xC0DA0100
	magicAt      = 28
	version      = 6

	versionMask = 0xFF
	pad1Shift   = 20 // bytes after the user header, inside the payload
	pad3Shift   = 24 // bytes after the compressed body
	padMask     = 3

	tagShift      = 28
	bodyWordsMask = 0x0FFFFFFF
	maxTag        = 14
)

// An event is 16 bytes and its structures; a structure is 8 bytes and its data.
//
//	event      identifier, length, tag, mask        4 bytes each
//	structure  group u16, item u8, type u8, word    word: format length << 24 | data length
const (
	eventHeader      = 16
	structureHeader  = 8
	keyMask          = 0xFFFFFF
	dataLengthMask   = 0xFFFFFF
	formatShift      = 24
	indexRow         = 32 // one record in the trailer's file::index
	defaultMaxRecord = 1 << 30
	maxMaxRecord     = 1<<32 - 1<<20 // positions in a payload have 32 bits
	slack            = 3             // bytes that a writer may have compressed behind the events
)

// (group, item) pairs with a meaning of their own.
var (
	keySchemaJSON  = makeKey(120, 1)
	keySchemaText  = makeKey(120, 2)
	keyTagNames    = makeKey(120, 3)
	keyConfigKey   = makeKey(32555, 1)
	keyConfigValue = makeKey(32555, 2)
	keyFileIndex   = makeKey(32111, 1)
)

// key is a (group, item) as it lies in a structure header: group in the low 16
// bits, item above it.
type key uint32

func makeKey(group uint16, item uint8) key { return key(group) | key(item)<<16 }

func (k key) group() uint16 { return uint16(k) }
func (k key) item() uint8   { return uint8(k >> 16) }

// less orders keys by group, then item, as split directories must be.
func (k key) less(o key) bool {
	if k.group() != o.group() {
		return k.group() < o.group()
	}
	return k.item() < o.item()
}

// byteOrder tells the order of the header b by its magic word.
func byteOrder(b []byte) (binary.ByteOrder, error) {
	switch m := binary.LittleEndian.Uint32(b[magicAt:]); {
	case m == magic:
		return binary.LittleEndian, nil
	case binary.BigEndian.Uint32(b[magicAt:]) == magic:
		return binary.BigEndian, nil
	default:
		return nil, fmt.Errorf("bad magic 0x%08x where 0x%08x is due", m, uint32(magic))
	}
}

// cursor consumes words from the front of b. The caller has checked that they
// are there.
type cursor struct {
	b     []byte
	order binary.ByteOrder
}

func (c *cursor) u32() uint32 {
	v := c.order.Uint32(c.b)
	c.b = c.b[4:]
	return v
}

func (c *cursor) u64() uint64 {
	v := c.order.Uint64(c.b)
	c.b = c.b[8:]
	return v
}

func (c *cursor) take(n int) []byte {
	b := c.b[:n]
	c.b = c.b[n:]
	return b
}
