package hipotest_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/hipofs/hipofs/hipo/hipotest"
)

// The worked example of format.md, section 16, as its table spells it.
const tiny = `
48 49 50 4F  01000000 0E000000  00000000 00000000  06000050  DC000000  0001DAC0
00000000 00000000  8C010000 00000000  00000000 00000000

37000000 00000000 0E000000  01000000 04000000  06000041  00000000 0001DAC0
9F000000  29000000  00000000 00000000 00000000 00000000
9F000000
45564E54 9F000000 00000000 00000000
7800 01 06 6F000000
7B226E616D65223A2254222C2267726F7570223A312C226974656D223A312C22656E7472696573223A5B
7B226E616D65223A2278222C2274797065223A2249222C22696E666F223A22227D2C
7B226E616D65223A2279222C2274797065223A2246222C22696E666F223A22227D5D7D
7800 02 06 10000000
7B542F312F317D7B782F492C792F467D
00

1E000000 01000000 0E000000  02000000 08000000  06000040 00000000 0001DAC0
38000000 10000000  00000000 00000000 00000000 00000000
28000000 10000000
45564E54 28000000 00000000 00000000
0100 01 0B 10000000
01000000 02000000
0000003F 000080BF
45564E54 10000000 03000000 00000000

1D000000 00000000 0E000000  01000000 04000000  06000040 00000000 0001DAC0
38000000 0F000000  00000000 00000000 00000000 00000000
38000000
45564E54 38000000 00000000 00000000
6F7D 01 0B 20000000
14010000 00000000
78000000 02000000
00000000 00000000 00000000 00000000
`

func TestTinyIsTheWorkedExampleByteForByte(t *testing.T) {
	want, err := hex.DecodeString(strings.Join(strings.Fields(tiny), ""))
	if err != nil {
		t.Fatal(err)
	}
	f := File{
		Schemas: []Schema{{Name: "T", Group: 1, Item: 1, Columns: "x/I,y/F"}},
		Records: []Record{{Events: []Event{
			{Structures: []Structure{Bank(1, 1, Pack(int32(1), int32(2)), Pack(float32(0.5), float32(-1)))}},
			{Tag: 3},
		}}},
	}
	b := f.Build()
	if len(want) != 512 || !bytes.Equal(b.Bytes, want) {
		t.Errorf("got\n%s\nwant\n%s", hex.Dump(b.Bytes), hex.Dump(want))
	}
	if b.Dictionary != (Span{56, 112, 276}) || b.Records[0] != (Span{276, 332, 396}) || b.Trailer != (Span{396, 452, 512}) {
		t.Errorf("parts at %v %v %v", b.Dictionary, b.Records, b.Trailer)
	}
}

// The by-column record of format.md, section 5.7: its directory is written out there.
func TestColumnDirectoryIsTheWorkedExample(t *testing.T) {
	var got []byte
	row := func(values ...float32) []byte { return Pack(values) }
	f := File{
		Schemas: []Schema{
			{Name: "REC::Particle", Group: 300, Item: 1, Columns: "pid/I,px/F,cov/F#3"},
			{Name: "REC::Event", Group: 300, Item: 30, Columns: "evno/L"},
		},
		Records: []Record{{
			Tag: 7, NoTail: true,
			Directory: func(dir []byte) []byte { got = bytes.Clone(dir); return dir },
			Events: []Event{
				{Tag: 1, Structures: []Structure{Bank(300, 30, Pack(int64(1)))}},
				{Tag: 2, Structures: []Structure{Bank(300, 1, Pack(int32(100)), row(1), row(1, 2, 3)), Bank(300, 30, Pack(int64(2)))}},
				{Tag: 4, Structures: []Structure{Bank(300, 1, Pack(int32(200), int32(201)), row(1, 2), row(1, 2, 3, 4, 5, 6)), Bank(300, 30, Pack(int64(3)))}},
			},
		}},
	}
	f.Build()
	want, _ := hex.DecodeString("2C01010B2C011E0B" + "03000100" + "010000000200000004000000" + "020303" +
		"000000001400000028000000" + "080000000800000008000000")
	if len(got) != 83 || !bytes.HasPrefix(got, want) {
		t.Errorf("directory\n%swant to begin with\n%s", hex.Dump(got), hex.Dump(want))
	}
	for i, raw := range []int{12, 12, 36, 24} { // the raw sizes; the stored ones depend on the compressor
		if n := int(got[51+8*i+4]); n != raw {
			t.Errorf("stream %d: raw size %d, want %d", i, n, raw)
		}
	}
}

// odd is a file with something of everything, all but the way it is stored.
func odd() File {
	schemas := []Schema{
		{Name: "A::one", Group: 300, Item: 30, Columns: "b/B,s/S,i/I,l/L,f/F,d/D"},
		{Name: "A::many", Group: 300, Item: 31, Columns: "p/S,cov/F#3,m/B#2"},
		{Name: "A::high", Group: 60000, Item: 200, Columns: "u/I"},
		{Name: "A::never", Group: 1, Item: 1, Columns: "x/I"},
	}
	var records []Record
	for r := range 3 {
		var events []Event
		for k := range 9 {
			e := 9*r + k
			ev := Event{Tag: uint32(e * 0x01010101)}
			if e%7 != 3 {
				ev.Structures = append(ev.Structures, Bank(300, 30, Pack(int8(-e)), Pack(int16(-e)), Pack(int32(e)), Pack(int64(-e)<<33), Pack(float32(math.Inf(-1))), Pack(math.NaN())))
			}
			if n := e % 4; e%5 != 2 { // 0 rows: present and empty
				p, cov, m := make([]int16, n), make([]float32, 3*n), make([]int8, 2*n)
				for i := range p {
					p[i], cov[3*i+1], m[2*i+1] = int16(e*i), float32(e)/3, int8(e)
				}
				ev.Structures = append(ev.Structures, Bank(300, 31, Pack(p), Pack(cov), Pack(m)))
			}
			if e%6 == 5 {
				ev.Structures = append(ev.Structures, Node(800, 3, []int32{1, 2, int32(e)}), Composite(700, 5, "bif", Pack(int8(e), int32(e), float32(e)), Pack(int8(1), int32(-1), float32(2))))
			}
			if e%8 == 1 {
				ev.Structures = append(ev.Structures, Bank(60000, 200, Pack(uint32(1<<31))), Text(900, 1, "text"))
			}
			events = append(events, ev)
		}
		records = append(records, Record{Events: events, Word1: uint64(r)})
	}
	return File{Schemas: schemas, Records: records, Config: []Setting{{"k", "v=1"}}, TagNames: "dvcs=3\n"}
}

// stored are the ways to store odd(): the answer of a reader is the same for all.
func stored() map[string]File {
	out := map[string]File{}
	add := func(name string, change func(*File)) {
		f := odd()
		change(&f)
		out[name] = f
	}
	each := func(change func(*Record)) func(*File) {
		return func(f *File) {
			for i := range f.Records {
				change(&f.Records[i])
			}
		}
	}
	for tag := range 15 {
		add(fmt.Sprintf("tag%02d", tag), each(func(r *Record) { r.Tag = tag }))
		if Split(tag) {
			add(fmt.Sprintf("tag%02d_notail", tag), each(func(r *Record) {
				r.Tag, r.NoTail = tag, true
				for i := range r.Events { // without the tail a composite cannot be told from bytes
					r.Events[i].Structures = plain(r.Events[i].Structures)
				}
			}))
		}
		if ByColumn(tag) {
			add(fmt.Sprintf("tag%02d_v2", tag), each(func(r *Record) { r.Tag, r.Version = tag, 2 }))
			add(fmt.Sprintf("tag%02d_v3", tag), each(func(r *Record) { r.Tag, r.Version, r.ByteSplit = tag, 3, true }))
			add(fmt.Sprintf("tag%02d_v3_nosums", tag), each(func(r *Record) { r.Tag, r.Version, r.NoSums = tag, 3, true }))
			add(fmt.Sprintf("tag%02d_opaque", tag), each(func(r *Record) { r.Tag, r.Opaque = tag, true }))
		}
	}
	add("tag06_v3", each(func(r *Record) { r.Tag, r.Version = 6, 3 }))
	add("user_header", each(func(r *Record) { r.Tag, r.User = 1, []byte("hello") }))
	add("pad2", each(func(r *Record) { r.Tag, r.Pad2 = 3, true }))
	add("long_headers", func(f *File) { f.Words = 17; f.Records[0].Words = 16; f.Records[1].Words = 15; f.Records[2].Tag = 4 })
	add("big", func(f *File) { f.Big = true; each(func(r *Record) { r.Big = true })(f) })
	add("big_lz4", func(f *File) {
		f.Big, f.DictTag, f.TrailerTag = true, 1, 1
		each(func(r *Record) { r.Big, r.Tag = true, 1 })(f)
	})
	add("big_container", func(f *File) {
		f.Ident, f.Big, f.LittleEvents = "OPIH", true, true
		each(func(r *Record) { r.Big, r.LittleEvents = true, true })(f)
	})
	add("hrec", func(f *File) { f.Ident = "HREC" })
	add("text", func(f *File) {
		for i := range f.Schemas {
			f.Schemas[i].Form = TextOnly
		}
	})
	add("json", func(f *File) {
		for i := range f.Schemas {
			f.Schemas[i].Form = JSONOnly
		}
	})
	for name, tr := range map[string]Trailer{"none": NoTrailer, "unreferenced": Unreferenced, "misplaced": Misplaced, "lists_all": ListsAll, "old_java": OldJava} {
		add("trailer_"+name, func(f *File) { f.Trailer = tr })
	}
	add("no_length", func(f *File) {
		for _, r := range f.Records {
			for i := range r.Events {
				r.Events[i].NoLength = true
			}
		}
	})
	return out
}

// plain leaves out composite banks.
func plain(in []Structure) []Structure {
	var out []Structure
	for _, s := range in {
		if s.Format == "" {
			out = append(out, s)
		}
	}
	return out
}

// The reference decoder reads every way to store the same events alike; one of
// them, tag 0, it also compares with hashes of values written out here.
func TestReferenceDecoderReadsWhatWasBuilt(t *testing.T) {
	files := stored()
	dir := t.TempDir()
	var names []string
	for name, f := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, f.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
		names = append(names, path)
	}
	rows := oracle(t, append([]string{"rows"}, names...)...)
	got := map[string][]string{}
	for _, line := range strings.Split(strings.TrimSpace(rows), "\n") {
		path, row, _ := strings.Cut(line, "\t")
		got[filepath.Base(path)] = append(got[filepath.Base(path)], row)
	}
	for name := range files {
		want := got["tag00"]
		if strings.HasSuffix(name, "_notail") {
			want = nil
			for _, row := range got["tag00"] {
				if !strings.HasPrefix(row, "@700/5") {
					want = append(want, row)
				}
			}
		}
		if g, w := strings.Join(got[name], "\n"), strings.Join(want, "\n"); g != w {
			t.Errorf("%s: the reference decoder gives\n%s\nwant\n%s", name, g, w)
		}
	}

	var high, composite bytes.Buffer
	for e := range 27 {
		if e%8 == 1 {
			high.WriteString("\x00\x00\x00\x80")
		}
		if e%6 == 5 {
			composite.WriteString(string([]byte{byte(e), 1}))
		}
	}
	for prefix, content := range map[string][]byte{"A::high\tu\tI\t1\t4\t": high.Bytes(), "@700/5\tf0\tB\t1\t8\t": composite.Bytes()} {
		if want := prefix + fmt.Sprintf("%x", sha256.Sum256(content)); !strings.Contains(strings.Join(got["tag00"], "\n"), want) {
			t.Errorf("tag00: no row %q in\n%s", want, strings.Join(got["tag00"], "\n"))
		}
	}
}

// oracle runs hipo/testdata/oracle.py, or skips the test where it cannot run.
func oracle(t *testing.T, args ...string) string {
	t.Helper()
	const ref = "../../../shared/check/hipo_ref.py"
	if _, err := os.Stat(ref); err != nil {
		t.Skip("the reference decoder is not here: ", err)
	}
	python := os.Getenv("HIPOFS_PYTHON")
	if python == "" {
		python = "../../.venv/bin/python"
	}
	if _, err := exec.LookPath(python); err != nil {
		t.Skip("no Python with the reference decoder's packages; set HIPOFS_PYTHON: ", err)
	}
	out, err := exec.Command(python, append([]string{"../testdata/oracle.py"}, args...)...).Output()
	if err != nil {
		if e, ok := err.(*exec.ExitError); ok {
			t.Fatalf("oracle.py: %v\n%s", err, e.Stderr)
		}
		t.Fatal(err)
	}
	return string(out)
}
