package hipo

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/zeebo/xxh3"
)

// A split record stores a section: a directory, and behind it the streams, each
// compressed on its own.
//
//	0   version u8, 3 zero bytes
//	4   B  banks (distinct ids)      u32
//	8   E  events                    u32
//	12  Dc directory, stored         u32
//	16  Dd directory, inflated       u32
//	20  directory, always LZ4; streams
//
// The directory, when inflated:
//
//	bank layout                      column layout
//	4 B    group u16, item, type     4 B    the same
//	4 B    stored sizes              2 B    streams of each bank; 0: one, with the whole bank
//	4 B    inflated sizes
//	4 E    event tags                4 E    the same
//	E w    presence bits             E w    the same; w = ceil(B/8)
//	4 B E  data size, bank by bank   4 B E  the same
//	                                 8 S    stored and inflated size of each stream
//	B      format lengths            B      the same; may be missing
//	                                 5 S    version 3: encodings u8, then checksums u32
const (
	sectionHeader  = 20
	directoryGuess = 8 << 10 // bytes read at first: most small directories fit
	spanSize       = 16      // bytes of a Span in memory
	encodingRaw    = 0
	encodingSplit  = 1 // bytes of values apart: all first bytes, all second bytes, …
)

// split is a split record's directory.
type split struct {
	directory []byte
	streams   []stream
	out       []byte // memory for one stream
	shuffled  []byte // memory for one byte-split stream
	stored    []byte // memory for one stream as it lies in the file
	banks     []int  // places in Record.Banks, in the order of the directory
}

type stream struct {
	off      int64 // in the file
	stored   uint32
	inflated uint32
	checksum uint32 // low half of XXH3 of the stored bytes; 0: not given
	encoding uint8  // element width << 4 | how
}

// section is what the header of a split record's section says, and where the
// section lies.
type section struct {
	layout           layout
	version          uint8
	banks, events    int
	stored, inflated int64 // of the directory
	off, length      int64 // of the section; off is in the file
}

// readDirectory reads and checks everything of a split record but its streams.
func (rec *Record) readDirectory() error {
	h := &rec.Header
	x, err := rec.readSection()
	if err != nil {
		return err
	}
	// What is left of the directory, if the first read did not have it all.
	head := int64(h.header) + sectionHeader + x.stored
	if have := int64(len(rec.raw)); have < head {
		grown := resize(rec.raw, head)
		if &grown[0] != &rec.raw[0] {
			copy(grown, rec.raw)
		}
		rec.raw = grown
		if err := rec.readAt(rec.raw[have:], h.Off+have); err != nil {
			return err
		}
	}
	rec.head = head
	if err := rec.check(Whole, rec.raw[:head]); err != nil {
		return err
	}
	s := &rec.split
	dir, err := rec.inflater.inflate(codecLZ4, s.directory, rec.raw[h.header+sectionHeader:head], x.inflated)
	if err != nil {
		return rec.errorf("directory: %v", err)
	}
	s.directory = dir
	rec.BytesInflated += x.inflated
	return rec.parseDirectory(x)
}

// readSection reads the beginning of a split record, and what the header of its
// section says: tables that depend on the numbers of banks and events alone fit
// into a directory of that size.
func (rec *Record) readSection() (x section, err error) {
	h := &rec.Header
	if h.big {
		return x, rec.errorf("a split record cannot be big-endian")
	}
	x.layout, x.off = tags[h.Tag].layout, h.Off+int64(h.header)
	x.length = h.Length - int64(h.header) - int64(h.bits>>pad3Shift&padMask)
	if x.length < sectionHeader {
		return x, rec.errorf("a split section of %d bytes", x.length)
	}
	if err := rec.readRaw(min(h.Length, int64(h.header)+directoryGuess)); err != nil {
		return x, err
	}
	c := cursor{rec.raw[h.header:], binary.LittleEndian}
	x.version = c.take(4)[0]
	nb, ne := int64(c.u32()), int64(c.u32())
	x.stored, x.inflated = int64(c.u32()), int64(c.u32())
	if x.layout == layoutBank && x.version != 2 && x.version != 3 || x.layout == layoutColumn && (x.version < 1 || x.version > 3) {
		return x, rec.errorf("split section of version %d", x.version)
	}
	if ne != int64(h.Events) {
		return x, rec.errorf("a directory of %d events, the record has %d", ne, h.Events)
	}
	if x.stored > x.length-sectionHeader {
		return x, rec.errorf("a directory of %d bytes in a section of %d", x.stored, x.length)
	}
	if nb > x.inflated/4 { // so that the next line cannot overflow, whatever MaxRecord allows
		return x, rec.errorf("a directory of %d bytes cannot hold %d banks", x.inflated, nb)
	}
	need := nb*12 + ne*(4+(nb+7)/8) + 4*nb*ne
	if x.layout == layoutColumn {
		need -= nb * 6
	}
	if need > x.inflated {
		return x, rec.errorf("a directory of %d bytes cannot hold %d banks in %d events", x.inflated, nb, ne)
	}
	x.banks, x.events = int(nb), int(ne)
	return x, nil
}

// directoryTables are the tables of an inflated directory, as the comment at the
// top draws them.
type directoryTables struct {
	section
	descriptors []byte
	bankSizes   []byte // bank layout: B stored sizes, then B inflated ones
	columns     []byte // column layout: streams of each bank
	tags        []byte
	presence    []byte
	sizes       []byte
	streamSizes []byte // column layout: stored and inflated size of each stream
	formats     []byte // nil: missing
	encodings   []byte // nil: missing, as the checksums are
	checksums   []byte
	streams     int // of all banks
}

// parseDirectory fills Tags, Banks and streams.
func (rec *Record) parseDirectory(x section) error {
	t, err := rec.cutDirectory(x)
	if err != nil {
		return err
	}
	if err := rec.placeStreams(&t); err != nil {
		return err
	}
	rec.Tags = resizeTags(rec.Tags, x.events)
	for e := range rec.Tags {
		rec.Tags[e] = binary.LittleEndian.Uint32(t.tags[4*e:])
	}
	return rec.listBanks(&t)
}

// cutDirectory cuts the directory into its tables. readSection has seen that
// those which depend on the numbers of banks and events alone fit.
func (rec *Record) cutDirectory(x section) (t directoryTables, err error) {
	t.section = x
	nb, ne := x.banks, x.events
	c := cursor{rec.split.directory, binary.LittleEndian}
	t.descriptors = c.take(4 * nb)
	t.streams = nb
	if x.layout == layoutBank {
		t.bankSizes = c.take(8 * nb)
	} else {
		t.columns = c.take(2 * nb)
		t.streams = 0
		for b := range nb {
			t.streams += max(1, t.columnsOf(b))
		}
	}
	t.tags = c.take(4 * ne)
	t.presence = c.take(ne * x.width())
	t.sizes = c.take(4 * nb * ne)
	// A directory compresses 255-fold, and a span is longer than what it is made of.
	structures := int64(0)
	for _, b := range t.presence {
		structures += int64(bits.OnesCount8(b))
	}
	if structures*spanSize > rec.f.limit {
		return t, rec.tooLarge("directory: %d structures, more than a limit of %d bytes allows", structures, rec.f.limit)
	}
	if x.layout == layoutColumn {
		if 8*t.streams > len(c.b) {
			return t, rec.errorf("directory: the sizes of %d streams do not fit", t.streams)
		}
		t.streamSizes = c.take(8 * t.streams)
	}
	if len(c.b) >= nb {
		t.formats = c.take(nb)
	}
	if x.layout == layoutColumn && x.version == 3 {
		if 5*t.streams > len(c.b) {
			return t, rec.errorf("directory: the encodings of %d streams do not fit", t.streams)
		}
		t.encodings = c.take(t.streams)
		t.checksums = c.take(4 * t.streams)
	}
	return t, nil
}

// width is how many bytes of presence bits an event has.
func (x *section) width() int { return (x.banks + 7) / 8 }

// columnsOf is in how many columns bank b is stored; 0: in one piece.
func (t *directoryTables) columnsOf(b int) int {
	if t.columns == nil {
		return 0
	}
	return int(binary.LittleEndian.Uint16(t.columns[2*b:]))
}

// formatOf is how long the format is that each structure of bank b begins with.
func (t *directoryTables) formatOf(b int) uint8 {
	if t.formats == nil {
		return 0
	}
	return t.formats[b]
}

// stream is what the tables say of stream i, without its place.
func (t *directoryTables) stream(i int) (st stream) {
	le := binary.LittleEndian
	if t.bankSizes != nil { // one stream a bank
		st.stored, st.inflated = le.Uint32(t.bankSizes[4*i:]), le.Uint32(t.bankSizes[4*(t.streams+i):])
	} else {
		st.stored, st.inflated = le.Uint32(t.streamSizes[8*i:]), le.Uint32(t.streamSizes[8*i+4:])
	}
	if t.encodings != nil {
		st.encoding, st.checksum = t.encodings[i], le.Uint32(t.checksums[4*i:])
	}
	return st
}

// placeStreams finds the streams, which follow the directory and each other to
// the section's end.
func (rec *Record) placeStreams(t *directoryTables) error {
	s := &rec.split
	if cap(s.streams) < t.streams {
		s.streams = make([]stream, t.streams)
	}
	s.streams = s.streams[:t.streams]
	at, sum := sectionHeader+t.stored, int64(0)
	for i := range s.streams {
		st := t.stream(i)
		if how := st.encoding & 15; how > encodingSplit {
			return rec.errorf("stream %d has the unknown encoding %d", i, how)
		}
		st.off = t.off + at
		at += int64(st.stored)
		if at > t.length {
			return rec.errorf("stream %d ends at %d, the section has %d bytes", i, at, t.length)
		}
		if int64(st.inflated) > rec.f.limit {
			return rec.tooLarge("stream %d inflates to %d bytes, the limit is %d", i, st.inflated, rec.f.limit)
		}
		sum += int64(st.inflated)
		s.streams[i] = st
	}
	if at != t.length {
		return rec.errorf("streams end at %d, the section has %d bytes", at, t.length)
	}
	if sum != rec.Header.DataLength { // a directory of fewer banks than there are would pass every other test
		return rec.errorf("streams of %d bytes in all, the record header says %d", sum, rec.Header.DataLength)
	}
	return nil
}

// listBanks fills Banks, each with its spans and its streams.
func (rec *Record) listBanks(t *directoryTables) error {
	s := &rec.split
	s.banks = s.banks[:0]
	first := 0
	var previous key
	for b := range t.banks {
		d := t.descriptors[4*b:]
		k := makeKey(binary.LittleEndian.Uint16(d), d[2])
		if b > 0 && !previous.less(k) {
			return rec.errorf("directory: bank %d/%d is listed behind %d/%d", k.group(), k.item(), previous.group(), previous.item())
		}
		previous = k
		slot := rec.slot(k)
		s.banks = append(s.banks, slot)
		bank := &rec.Banks[slot]
		bank.stream, bank.columns = first, t.columnsOf(b)
		sum, err := rec.addSpans(t, b, bank)
		if err != nil {
			return err
		}
		streams := s.streams[first : first+max(1, bank.columns)]
		first += len(streams)
		if err := rec.checkStreams(k, bank, streams, sum, t.formatOf(b)); err != nil {
			return err
		}
	}
	return nil
}

// addSpans gives bank b of the directory its spans, and how long they are together.
func (rec *Record) addSpans(t *directoryTables, b int, bank *Bank) (sum int64, err error) {
	k, kind, format := bank.key, t.descriptors[4*b+3], t.formatOf(b)
	sizes, present, width, bit := t.sizes[4*b*t.events:], t.presence, t.width(), b%8
	for e := range t.events {
		size := binary.LittleEndian.Uint32(sizes[4*e:])
		if present[e*width+b/8]>>bit&1 == 0 {
			if size != 0 {
				return 0, rec.errorf("event %d has %d bytes of bank %d/%d, which it does not have", e, size, k.group(), k.item())
			}
			continue
		}
		if size > dataLengthMask {
			return 0, rec.errorf("event %d: bank %d/%d of %d bytes", e, k.group(), k.item(), size)
		}
		if uint32(format) > size {
			return 0, rec.errorf("event %d: structure %d/%d has a format of %d bytes and %d bytes in all", e, k.group(), k.item(), format, size)
		}
		bank.Spans = append(bank.Spans, Span{Event: uint32(e), Off: uint32(sum), Len: size, Type: kind, Format: format})
		if sum += int64(size); sum > math.MaxUint32 {
			return 0, rec.errorf("bank %d/%d has over 4 GiB", k.group(), k.item())
		}
	}
	return sum, nil
}

// checkStreams compares the inflated sizes of a bank's streams with the sum of
// its sizes in the events and, stored by column, with the dictionary.
func (rec *Record) checkStreams(k key, bank *Bank, streams []stream, sum int64, format uint8) error {
	var inflated int64
	for _, s := range streams {
		inflated += int64(s.inflated)
	}
	if inflated != sum {
		return rec.errorf("bank %d/%d has %d bytes in its events and %d in its streams", k.group(), k.item(), sum, inflated)
	}
	if bank.columns == 0 {
		return nil
	}
	schema := rec.f.Dictionary.byKey[k]
	if schema == nil || len(schema.Columns) != bank.columns {
		return rec.errorf("bank %d/%d is stored in %d columns, which the dictionary does not declare", k.group(), k.item(), bank.columns)
	}
	if format != 0 {
		return rec.errorf("composite bank %d/%d is stored by column", k.group(), k.item())
	}
	for _, s := range bank.Spans {
		if s.Len%uint32(schema.RowSize) != 0 {
			return rec.errorf("event %d: bank %s of %d bytes is not a whole number of %d-byte rows", s.Event, excerpt(schema.Name), s.Len, schema.RowSize)
		}
	}
	rows := sum / int64(schema.RowSize)
	for i, c := range schema.Columns {
		if int64(streams[i].inflated) != rows*int64(c.Width()) {
			return rec.errorf("column %d of bank %s has %d bytes for %d rows of %d", i, excerpt(schema.Name), streams[i].inflated, rows, c.Width())
		}
	}
	return nil
}

// A Directory stands for that of a split record, so far as it is about some of
// the banks: what somebody has kept of it who has read it before.
type Directory struct {
	Streams []Stream        // all of the record, in order
	Banks   []DirectoryBank // those that are to be read
}

// Stream is what a directory says of a stream.
type Stream struct {
	Off      int64 // in the file
	Stored   uint32
	Inflated uint32
	Encoding uint8
}

// DirectoryBank is what a directory says of a bank.
type DirectoryBank struct {
	Group   uint16
	Item    uint8
	Stream  int    // number of its first
	Columns int    // how many are stored apart; 0: the bank lies in one piece
	Format  bool   // it is composite
	Spans   []Span // by event, ascending
}

// RestoreRecord is StartRecord for split record i, whose directory is known. It
// reads nothing, and leaves Tags empty. What is wrong with the directory shows
// when streams are read, or here.
func (f *File) RestoreRecord(i int, rec *Record, d *Directory) error {
	h := f.Records[i]
	rec.begin(f, h, i)
	if !h.Split() {
		return rec.errorf("it is not split")
	}
	rec.raw, rec.Tags = rec.raw[:0], rec.Tags[:0]
	s := &rec.split
	s.streams, s.banks = s.streams[:0], s.banks[:0]
	for j, st := range d.Streams {
		if st.Off < h.Off+int64(h.header) || st.Off+int64(st.Stored) > h.Off+h.Length || int64(st.Inflated) > f.limit || st.Encoding&15 > encodingSplit {
			return rec.errorf("stream %d cannot be where it is said to be", j)
		}
		s.streams = append(s.streams, stream{off: st.Off, stored: st.Stored, inflated: st.Inflated, encoding: st.Encoding})
	}
	for _, b := range d.Banks {
		if b.Stream < 0 || b.Stream+max(1, b.Columns) > len(s.streams) {
			return rec.errorf("it has no stream %d", b.Stream)
		}
		slot := rec.slot(makeKey(b.Group, b.Item))
		s.banks = append(s.banks, slot)
		bank := &rec.Banks[slot]
		bank.stream, bank.columns = b.Stream, b.Columns
		bank.Spans = append(bank.Spans[:0], b.Spans...)
	}
	return nil
}

// Directory gives what the record's directory says, without the spans of its
// banks. The record must have been read, not restored.
func (rec *Record) Directory() Directory {
	s := &rec.split
	d := Directory{Streams: make([]Stream, len(s.streams)), Banks: make([]DirectoryBank, len(s.banks))}
	for i, st := range s.streams {
		d.Streams[i] = Stream{st.off, st.stored, st.inflated, st.encoding}
	}
	for i, slot := range s.banks {
		b := &rec.Banks[slot]
		d.Banks[i] = DirectoryBank{
			Group: b.Group, Item: b.Item, Stream: b.stream, Columns: b.columns,
			Format: len(b.Spans) > 0 && b.Spans[0].Format != 0,
		}
	}
	return d
}

// StreamCount is how many streams the record has, if it is split.
func (rec *Record) StreamCount() int { return len(rec.split.streams) }

// Stream is the number of the stream that holds bank i, or its first column.
func (rec *Record) Stream(i int) int { return rec.Banks[i].stream }

// HeadLength is where the directory of a split record ends, counted from the
// record's beginning.
func (rec *Record) HeadLength() int64 { return rec.head }

// StreamRange is where stream i lies in the file.
func (rec *Record) StreamRange(i int) (off, length int64) {
	s := rec.split.streams[i]
	return s.off, int64(s.stored)
}

// readStream inflates stream i into memory that the next call uses again.
func (rec *Record) readStream(i int) ([]byte, error) {
	s := &rec.split
	st := s.streams[i]
	if st.inflated == 0 {
		return nil, nil
	}
	bad := func(err error) *FormatError {
		fe := rec.errorf("stream %d: %v", i, err)
		fe.Off = st.off
		return fe
	}
	src, err := rec.storedStream(i)
	if err != nil {
		return nil, err
	}
	if st.checksum != 0 && uint32(xxh3.Hash(src)) != st.checksum {
		return nil, bad(errChecksum)
	}
	out, err := rec.inflater.inflate(tags[rec.Header.Tag].codec, s.out, src, int64(st.inflated))
	if err != nil {
		return nil, bad(err)
	}
	s.out = out
	rec.Streams++
	rec.BytesInflated += int64(len(out))
	if width := int(st.encoding >> 4); st.encoding&15 == encodingSplit && width > 1 {
		s.shuffled = resize(s.shuffled, int64(len(out)))
		join(s.shuffled, out, width)
		out = s.shuffled
	}
	return out, nil
}

// storedStream reads stream i as it lies in the file, and has it checked.
func (rec *Record) storedStream(i int) ([]byte, error) {
	s := &rec.split
	st := s.streams[i]
	var src []byte
	if from := st.off - rec.Header.Off; from+int64(st.stored) <= int64(len(rec.raw)) {
		src = rec.raw[from : from+int64(st.stored)]
	} else {
		s.stored = resize(s.stored, int64(st.stored))
		if err := rec.readAt(s.stored, st.off); err != nil {
			return nil, err
		}
		src = s.stored
	}
	return src, rec.check(i, src)
}

// Stored is how many bytes of the file bank i takes in the record, if it is split.
func (rec *Record) Stored(i int) (bytes int64) {
	b := &rec.Banks[i]
	for _, s := range rec.split.streams[b.stream : b.stream+max(1, b.columns)] {
		bytes += int64(s.stored)
	}
	return bytes
}

// InflateStreams inflates every stream of a split record, to see that it can be.
func (rec *Record) InflateStreams() error {
	if !rec.Header.Split() {
		return nil
	}
	for i := range rec.split.streams {
		if _, err := rec.readStream(i); err != nil {
			return err
		}
	}
	return nil
}

// CheckStream reads stream i for Check alone, and inflates nothing.
func (rec *Record) CheckStream(i int) error {
	_, err := rec.storedStream(i)
	return err
}

// join puts the bytes of values together that lie apart in src: all first
// bytes, then all second bytes, and so on. What is no whole value is verbatim.
func join(dst, src []byte, width int) {
	n := len(src) / width
	for k := range width {
		for i, v := range src[k*n : (k+1)*n] {
			dst[i*width+k] = v
		}
	}
	copy(dst[n*width:], src[n*width:])
}
