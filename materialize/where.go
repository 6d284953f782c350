package materialize

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Where says which entries are kept: those that pass every condition. The zero
// value keeps all.
type Where struct {
	Require    []string   // banks, each of which must have a row
	EventTags  [][]uint32 // the event tag is in each of these lists
	EventBits  [][]uint32 // the event tag has a bit of one of each of these lists
	RecordTags [][]int64  // the record tag is in each of these lists
	Files      [][]string // of each of these lists, one pattern (path.Match) matches the file's name
}

// ParseWhere reads conditions that must all hold: a comma-separated list of
// require=BANK+BANK, tag=N+N, tag_any=N+N (a bit of any of these),
// record_tag=N+N and file=PATTERN. In names "+", "," and "%" are
// percent-encoded.
func ParseWhere(expr string) (Where, error) {
	var w Where
	for condition := range strings.SplitSeq(expr, ",") {
		word, values, ok := strings.Cut(condition, "=")
		if !ok {
			return Where{}, fmt.Errorf("%q is no condition; want require=BANK, tag=N, tag_any=N, record_tag=N or file=PATTERN", condition)
		}
		if err := w.Add(word, values); err != nil {
			return Where{}, fmt.Errorf("%s=%s: %w", word, values, err)
		}
	}
	return w, nil
}

// Add adds one condition of ParseWhere, in its two parts, which must hold beside
// those that are there.
func (w *Where) Add(word, values string) error {
	var texts []string
	for value := range strings.SplitSeq(values, "+") {
		text, err := url.PathUnescape(value)
		if err != nil || text == "" {
			return errors.New(`want one or more values, with "+" between them; "+", "," and "%" in a name are %2B, %2C and %25`)
		}
		texts = append(texts, text)
	}
	switch word {
	case "require":
		w.Require = append(w.Require, texts...)
	case "tag", "tag_any":
		tags, err := numbers(texts, func(s string) (uint32, error) {
			n, err := strconv.ParseUint(s, 10, 32)
			return uint32(n), err
		})
		if err != nil {
			return errors.New("want event tags, numbers from 0 to 4294967295")
		}
		if word == "tag" {
			w.EventTags = append(w.EventTags, tags)
		} else {
			w.EventBits = append(w.EventBits, tags)
		}
	case "record_tag":
		tags, err := numbers(texts, func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) })
		if err != nil {
			return errors.New("want record tags, whole numbers")
		}
		w.RecordTags = append(w.RecordTags, tags)
	case "file":
		for _, text := range texts {
			if _, err := path.Match(text, ""); err != nil {
				return errors.New("want the name of a file or a pattern, such as run5042*")
			}
		}
		w.Files = append(w.Files, texts)
	default:
		return errors.New("there is no such condition; want require, tag, tag_any, record_tag or file")
	}
	return nil
}

func numbers[N any](texts []string, parse func(string) (N, error)) ([]N, error) {
	list := make([]N, len(texts))
	for i, text := range texts {
		n, err := parse(text)
		if err != nil {
			return nil, err
		}
		list[i] = n
	}
	return list, nil
}

// all reports whether there is no condition.
func (w *Where) all() bool {
	return !w.looksInside() && len(w.RecordTags)+len(w.Files) == 0
}

// looksInside reports whether the headers of records do not decide.
func (w *Where) looksInside() bool { return len(w.Require) > 0 || w.looksAtTags() }

// looksAtTags reports whether the tags of events decide.
func (w *Where) looksAtTags() bool { return len(w.EventTags) > 0 || len(w.EventBits) > 0 }

// file reports whether entries of the file may pass.
func (w *Where) file(name string) bool {
	name = filepath.Base(name)
	for _, patterns := range w.Files {
		if !matches(patterns, name) {
			return false
		}
	}
	return true
}

// record reports whether entries of a record with that tag may pass.
func (w *Where) record(tag int64) bool { return inEach(w.RecordTags, tag) }

// event reports whether an entry with that event tag may pass.
func (w *Where) event(tag uint32) bool {
	for _, list := range w.EventBits {
		if !slices.ContainsFunc(list, func(bits uint32) bool { return tag&bits != 0 }) {
			return false
		}
	}
	return inEach(w.EventTags, tag)
}

func inEach[N comparable](lists [][]N, n N) bool {
	for _, list := range lists {
		if !slices.Contains(list, n) {
			return false
		}
	}
	return true
}

// Slice is a range of entries, To excluded. As with Python's slices, what lies
// beyond the end is clipped.
type Slice struct{ From, To int64 }

// ParseSlice reads A:B in decimal, either of which may be empty.
func ParseSlice(s string) (Slice, error) {
	a, b, ok := strings.Cut(s, ":")
	r := Slice{0, math.MaxInt64}
	if a != "" {
		r.From, ok = entryNumber(a, ok)
	}
	if b != "" {
		r.To, ok = entryNumber(b, ok)
	}
	if !ok || r.From > r.To {
		return Slice{}, errors.New("want A:B, such as 0:1000")
	}
	return r, nil
}

// entryNumber reads a decimal number; of those that are too large for an entry,
// the largest stands for all.
func entryNumber(s string, ok bool) (int64, bool) {
	if strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		n = math.MaxInt64
	}
	return n, ok
}
