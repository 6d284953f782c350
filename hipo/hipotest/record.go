package hipotest

import "bytes"

// Record is one data record.
type Record struct {
	Tag          int // compression tag, 0 to 14
	Events       []Event
	Word1, Word2 uint64 // Word1 is the record tag
	Number       int    // 0: its place in the file, from 1; -1: 0
	Words        int    // length of the record header; 0: 14
	User         []byte // user header; pad 1 makes it a multiple of 4

	// Big makes the record big-endian; LittleEvents leaves its events
	// little-endian. Only for tags 0 to 4.
	Big, LittleEvents bool

	// Pad2 brings the data to a multiple of 4, says so in the header, and keeps
	// the padding in the payload.
	Pad2 bool

	// The split layouts.
	Version   byte // of the section; 0: 2 for banks, 1 for columns
	NoTail    bool // no format lengths at the directory's end
	Opaque    bool // by column: store every bank as one stream
	ByteSplit bool // column version 3: split the bytes of streams of wide values
	NoSums    bool // column version 3: checksums 0

	// Hooks, called before compression or before the record is put together.
	Payload   func([]byte) []byte            // of tags 0 to 4: index, user header, pad, events
	Directory func([]byte) []byte            // of a split section
	Stream    func(i int, raw []byte) []byte // a stream, before it is compressed; the directory keeps telling the truth about the old one
	Section   func([]byte) []byte            // a split section: header, stored directory, stored streams
	Body      func([]byte) []byte            // the body before padding
}

// bytes is the record, and where in it the body begins.
func (r Record) bytes(number int, schemas []Schema) (record []byte, bodyAt int) {
	codec, layout := codecOf(r.Tag)
	var body []byte
	var dataLength, pad1, pad2 int
	if layout == wholeRecord {
		body, dataLength, pad1, pad2 = r.whole(codec, schemas)
	} else {
		body, dataLength = r.split(codec, layout, schemas)
	}
	if r.Body != nil {
		body = r.Body(body)
	}
	pad3 := padding(len(body))
	body = append(bytes.Clone(body), make([]byte, pad3)...)

	switch {
	case r.Number > 0:
		number = r.Number
	case r.Number < 0:
		number = 0
	}
	bo := order(r.Big)
	h := make([]byte, 4*words(r.Words))
	bo.PutUint32(h[RecordLength:], uint32((len(h)+len(body))/4))
	bo.PutUint32(h[RecordNumber:], uint32(number))
	bo.PutUint32(h[RecordWords:], uint32(len(h)/4))
	bo.PutUint32(h[RecordEvents:], uint32(len(r.Events)))
	bo.PutUint32(h[RecordIndex:], uint32(4*len(r.Events)))
	bo.PutUint32(h[RecordBits:], 0x40000006|uint32(pad1)<<20|uint32(pad2)<<22|uint32(pad3)<<24)
	bo.PutUint32(h[RecordUserLength:], uint32(len(r.User)))
	bo.PutUint32(h[RecordMagic:], magic)
	bo.PutUint32(h[RecordData:], uint32(dataLength))
	bo.PutUint32(h[RecordComp:], uint32(r.Tag)<<28|uint32(len(body)/4))
	bo.PutUint64(h[RecordWord1:], r.Word1)
	bo.PutUint64(h[RecordWord2:], r.Word2)
	return append(h, body...), len(h)
}

// whole is the body of tags 0 to 4:
//
//	index array | user header | pad 1 | events | pad 2
func (r Record) whole(codec codec, schemas []Schema) (body []byte, dataLength, pad1, pad2 int) {
	bo := order(r.Big)
	var events []byte
	index := make([]byte, 4*len(r.Events))
	for i, e := range r.Events {
		b := e.bytes(r.Big && !r.LittleEvents, schemas)
		bo.PutUint32(index[4*i:], uint32(len(b)))
		events = append(events, b...)
	}
	pad1 = padding(len(r.User))
	if r.Pad2 {
		pad2 = padding(len(events))
	}
	payload := bytes.Join([][]byte{index, r.User, make([]byte, pad1), events, make([]byte, pad2)}, nil)
	if r.Payload != nil {
		payload = r.Payload(payload)
	}
	return codec.compress(payload), len(events), pad1, pad2
}

// padding is what brings n to a multiple of 4.
func padding(n int) int { return -n & 3 }
