package materialize

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/hipofs/hipofs/hipo"
)

// endings are the checksums of a file before its first record and behind its last:
// header, dictionary, trailer.
type endings struct{ head, tail uint64 }

func endSums(h *handle, f *hipo.File) (e endings, err error) {
	first := f.Header.FirstRecord()
	last := first
	if n := len(f.Records); n > 0 {
		last = f.Records[n-1].Off + f.Records[n-1].Length
	}
	if e.head, err = sumOf(h, 0, first); err != nil {
		return e, err
	}
	e.tail, err = sumOf(h, last, f.Size)
	return e, err
}

// restSum is the checksum of what no other covers: the bytes between records and
// those that pad split ones.
func (s *source) restSum() (uint64, error) {
	var parts []extent
	at := s.file.Header.FirstRecord()
	for i := range s.file.Records {
		h := &s.file.Records[i]
		end := h.Off + h.Length
		parts = append(parts, extent{off: at, length: h.Off - at}, extent{off: end - h.Padding(), length: h.Padding()})
		at = end
	}
	var from io.ReaderAt = s.handle
	if s.handle.remote != nil {
		var err error
		if from, err = s.handle.fetchPieces(s.ctx, slices.Clone(parts)); err != nil {
			return 0, fmt.Errorf("%s: %w", s.info.Name, err)
		}
	}
	x := xxh3.New()
	for _, p := range parts {
		if err := addTo(x, from, s.info.Name, p.off, p.off+p.length); err != nil {
			return 0, err
		}
	}
	return x.Sum64(), nil
}

func sumOf(h *handle, from, to int64) (uint64, error) {
	x := xxh3.New()
	err := addTo(x, h, h.name, from, to)
	return x.Sum64(), err
}

func addTo(x *xxh3.Hasher, r io.ReaderAt, name string, from, to int64) error {
	const step = 1 << 20
	for b := make([]byte, min(step, to-from)); from < to; from += int64(len(b)) {
		b = b[:min(int64(len(b)), to-from)]
		if n, err := r.ReadAt(b, from); n < len(b) {
			return fmt.Errorf("%s: byte %d: %w", name, from, cmp.Or(err, io.ErrUnexpectedEOF))
		}
		_, _ = x.Write(b) // it never fails
	}
	return nil
}

// checkStored compares stored bytes with their checksum, or takes that.
func (s *source) checkStored(number, part int, stored []byte) error {
	x := xxh3.Hash(stored)
	s.sumMu.Lock()
	r := &s.sums[number]
	known := r.whole
	switch {
	case part == hipo.Whole && !known.known:
		r.whole = sum{x, true}
	case part == hipo.Whole:
	case r.streams == nil: // nobody has noted its directory
		s.sumMu.Unlock()
		return nil
	case part >= len(r.streams):
		s.sumMu.Unlock()
		return s.notIndexed(number, "it has other streams")
	default:
		t := &r.streams[part]
		known = sum{t.xxh3, t.known}
		if !t.known {
			t.xxh3, t.known = x, true
		}
	}
	if !known.known {
		s.news.Store(true)
	}
	s.sumMu.Unlock()
	if known.known && known.xxh3 != x {
		what := "its bytes"
		if part != hipo.Whole {
			what = fmt.Sprintf("the bytes of stream %d", part)
		}
		return s.notIndexed(number, what+" are not those that were indexed (if they were changed on purpose, run hipofs index)")
	}
	return nil
}

// noteDirectory keeps what a split record's directory says of its streams.
func (s *source) noteDirectory(number int, rec *hipo.Record) {
	s.sumMu.Lock()
	defer s.sumMu.Unlock()
	r := &s.sums[number]
	if r.streams != nil {
		return
	}
	d := rec.Directory()
	r.head, r.streams = uint32(rec.HeadLength()), make([]storedStream, len(d.Streams))
	for i, t := range d.Streams {
		r.streams[i] = storedStream{length: t.Stored, encoding: t.Encoding}
	}
	r.layout = addLayout(&s.layouts, layoutOf(&d))
}

// notIndexed is the error about a record that is not as it was indexed.
func (s *source) notIndexed(number int, what string) error {
	return fmt.Errorf("%w: %w", s.otherBytes(number, what), ErrChanged)
}

// sinceIndexed makes of an error that came before the record's bytes could be
// compared with their checksum what it is: with these bytes there would be none.
func (s *source) sinceIndexed(number int, err error) error {
	var fe *hipo.FormatError
	if s.sums == nil || !errors.As(err, &fe) {
		return err
	}
	s.sumMu.Lock()
	defer s.sumMu.Unlock()
	if s.sums[number].whole.known {
		return fmt.Errorf("%w: %w", err, ErrChanged)
	}
	return err
}

// wasVerified takes back what an index said of a column's streams, if they do
// not inflate after all: from now on the column does not open.
func (s *source) wasVerified(k chunkKey, err error) {
	var fe *hipo.FormatError
	idx := s.index.Load()
	if idx == nil || !s.runAt(k.run).split || !errors.As(err, &fe) || errors.Is(err, ErrChanged) {
		return // it is the file that is not what it was
	}
	s.mu.Lock()
	said, ok := s.verified[columnKey{k.bank, k.column}]
	if ok && said == nil {
		s.verified[columnKey{k.bank, k.column}] = err
	}
	s.mu.Unlock()
	if ok && said == nil {
		s.dropIndex(idx, "a column that it says to be whole is damaged")
	}
}

// knownSums are the checksums of the file's records by its index; nil if it has
// none, or one of another time.
func (s *source) knownSums(o Options) []recordSums {
	if o.IndexDir == "" {
		return nil
	}
	for _, path := range indexPaths(o.IndexDir, s.handle.name) {
		indexed, head, err := loadIndex(path, s.handle, hipo.Options{MaxRecord: o.MaxRecord}, &known{parts: map[string]knownDictionary{}})
		if err == nil && len(head.sums) == len(indexed.Records) {
			sums, _ := matchSums(s.file.Records, indexed.Records, head.sums)
			return sums
		}
	}
	return nil
}

// compareStored compares stored bytes with their checksum, where there is one.
func (s *source) compareStored(number, part int, stored []byte, r *recordSums) error {
	want := r.whole
	if part != hipo.Whole {
		if part >= len(r.streams) {
			return nil
		}
		want = sum{r.streams[part].xxh3, r.streams[part].known}
	}
	if want.known && xxh3.Hash(stored) != want.xxh3 {
		return s.otherBytes(number, "its bytes are not those that were indexed")
	}
	return nil
}

// otherBytes is the damage of a record that only the index knows of.
func (s *source) otherBytes(number int, what string) error {
	return &hipo.FormatError{File: s.info.Name, Record: number, Off: s.file.Records[number].Off, Msg: what}
}
