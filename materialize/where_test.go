package materialize

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestWhereIsReadAsWritten(t *testing.T) {
	for _, tt := range []struct {
		expr string
		want Where
	}{
		{"require=REC::Particle+REC::Calorimeter", Where{Require: []string{"REC::Particle", "REC::Calorimeter"}}},
		{"require=a%2Bb%2Cc%25,require=d", Where{Require: []string{"a+b,c%", "d"}}},
		{"tag=1+4294967295", Where{EventTags: [][]uint32{{1, math.MaxUint32}}}},
		{"tag=1+2,tag=2", Where{EventTags: [][]uint32{{1, 2}, {2}}}},
		{"tag_any=5+8,tag_any=2", Where{EventBits: [][]uint32{{5, 8}, {2}}}},
		{"record_tag=-1+0", Where{RecordTags: [][]int64{{-1, 0}}}},
		{"file=run*%2B1.hipo+b", Where{Files: [][]string{{"run*+1.hipo", "b"}}}},
	} {
		got, err := ParseWhere(tt.expr)
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, %v; want %+v", tt.expr, got, err, tt.want)
		}
	}
}

func TestWrongWhereSaysWhatIsWanted(t *testing.T) {
	for _, tt := range []struct{ expr, says string }{
		{"", "no condition"},
		{"REC::Particle", "no condition"},
		{"require=", "one or more values"},
		{"require=A++B", "one or more values"},
		{"require=%ZZ", "one or more values"},
		{"require=A,", "no condition"},
		{"tag=-1", "event tags"},
		{"tag=4294967296", "event tags"},
		{"tag=0x1", "event tags"},
		{"tag_any=4294967296", "event tags"},
		{"tag=1_0", "event tags"},
		{"record_tag=9223372036854775808", "record tags"},
		{"record_tag=1.0", "record tags"},
		{"file=[", "pattern"},
		{"px=1", "no such condition"},
	} {
		if got, err := ParseWhere(tt.expr); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: %+v, %v; want an error about %q", tt.expr, got, err, tt.says)
		}
	}
}

func TestConditionsMustAllHold(t *testing.T) {
	w, err := ParseWhere("tag=1+2,tag=2+3,record_tag=-1+5,file=run*,file=*.hipo")
	if err != nil {
		t.Fatal(err)
	}
	for tag, want := range map[uint32]bool{0: false, 1: false, 2: true, 3: false} {
		if w.event(tag) != want {
			t.Errorf("event tag %d passes: %t", tag, !want)
		}
	}
	for tag, want := range map[int64]bool{-1: true, 5: true, 1: false} {
		if w.record(tag) != want {
			t.Errorf("record tag %d passes: %t", tag, !want)
		}
	}
	for name, want := range map[string]bool{"/data/run1.hipo": true, "/run/1.hipo": false, "run1": false} {
		if w.file(name) != want {
			t.Errorf("file %s passes: %t", name, !want)
		}
	}
	if !w.looksInside() || (&Where{RecordTags: [][]int64{{1}}, Files: [][]string{{"a"}}}).looksInside() {
		t.Error("event tags are in records, record tags and names of files are not")
	}
}

func TestSlice(t *testing.T) {
	const end = math.MaxInt64
	for _, tt := range []struct {
		text string
		want Slice
	}{
		{"0:1000", Slice{0, 1000}},
		{":", Slice{0, end}},
		{"5:", Slice{5, end}},
		{":7", Slice{0, 7}},
		{"7:7", Slice{7, 7}},
		{"007:010", Slice{7, 10}},
		{"3:99999999999999999999", Slice{3, end}},
	} {
		if got, err := ParseSlice(tt.text); err != nil || got != tt.want {
			t.Errorf("%s: %v, %v; want %v", tt.text, got, err, tt.want)
		}
	}
	for _, text := range []string{"", "5", "2:1", "-1:5", "+1:5", "0x1:5", "1e3:", "a:", ":b", "1:2:3", " 1:2", "1_0:20", "٣:٤"} {
		if got, err := ParseSlice(text); err == nil {
			t.Errorf("%q is no range, but read as %v", text, got)
		}
	}
}

// FuzzSlice fuzzes A:B.
func FuzzSlice(f *testing.F) {
	for _, s := range []string{":", "0:1000", "5:", ":5", "5:4", "1:2:3", "+1:2", "0x1:2", "9223372036854775808:", "-1:1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseSlice(s)
		if err == nil && (r.From < 0 || r.To < r.From || strings.Count(s, ":") != 1 || strings.Trim(s, "0123456789:") != "") {
			t.Fatalf("%q is %d:%d", s, r.From, r.To)
		}
	})
}

// FuzzWhere fuzzes expressions: what is read has as many conditions as commas
// say, and no empty name.
func FuzzWhere(f *testing.F) {
	for _, s := range []string{"require=A+B", "tag=1+2,record_tag=-1", "file=[a-c]*", "require=%2C%2B", "tag_any=1+6", "tag=", ",", "file=["} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		w, err := ParseWhere(s)
		if err != nil {
			return
		}
		values := len(w.Require)
		for _, list := range append(w.EventTags, w.EventBits...) {
			values += len(list)
		}
		for _, list := range w.RecordTags {
			values += len(list)
		}
		for _, list := range w.Files {
			values += len(list)
		}
		if values != 1+strings.Count(s, ",")+strings.Count(s, "+") || slices.Contains(w.Require, "") {
			t.Fatalf("%q is %+v", s, w)
		}
	})
}
