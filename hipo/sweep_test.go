package hipo_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hipofs/hipofs/hipo"
)

// mutants calls do for every mutant of a file, in oracle.py's order: every byte
// set to eight values, then every truncation. The mutant is do's until it returns.
func mutants(data []byte, do func(i int, mutant []byte)) {
	i := 0
	b := bytes.Clone(data)
	for at, old := range data {
		for _, v := range []byte{0x00, 0xFF, old ^ 0x01, old ^ 0x80, old + 1, old - 1, 0x7F, old ^ 0x10} {
			b[at] = v
			do(i, b)
			i++
		}
		b[at] = old
	}
	for n := range data {
		do(i, data[:n:n])
		i++
	}
}

// sweepLimit is the ceiling that oracle.py uses, too.
const sweepLimit = 1 << 24

// verdict is oracle.py's: "error", or the first digits of a digest of every row.
func verdict(data []byte) (v string, err error) {
	d, err := decode(data, hipo.Options{MaxRecord: sweepLimit})
	if err != nil {
		return "error", err
	}
	rows, err := d.shaRows(true)
	if err != nil {
		return "error", err
	}
	return digest(rows), nil
}

func digest(rows []string) string {
	sum := sha256.Sum256([]byte(strings.Join(rows, "\n") + "\n"))
	return fmt.Sprintf("%x", sum[:4])
}

// verdicts reads testdata/sweep/verdicts.tsv: what the reference decoder says
// of every mutant of every file, by file.
func verdicts(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("testdata/sweep/verdicts.tsv")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	name := ""
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if fields[0] == "file" {
			name = fields[1]
			data, err := os.ReadFile(filepath.Join("testdata", "sweep", name))
			if err != nil {
				t.Fatal(err)
			}
			if sum := fmt.Sprintf("%x", sha256.Sum256(data)); sum != fields[2] {
				t.Fatalf("%s is not the file that verdicts.tsv is about; see testdata/README.md", name)
			}
			continue
		}
		n, err := strconv.Atoi(fields[0])
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			v := fields[1]
			if strings.HasPrefix(v, "part:") { // some banks cannot be had: no strict decode
				v = "error"
			}
			out[name] = append(out[name], v)
		}
	}
	return out
}

// Bad input never yields other bytes than a strict decode of it, with these
// allowances. Where the reference decoder gives bytes, an error is right, too:
// hipo is stricter about the end of a file. And where the damage is in the
// trailer, which repeats what the records say, the bytes of the undamaged file
// are right: the reference decoder believes a trailer that leaves records out.
func TestDamageGivesAnErrorOrWhatAStrictDecodeGives(t *testing.T) {
	for name, want := range verdicts(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(filepath.Join("testdata", "sweep", name))
			if err != nil {
				t.Fatal(err)
			}
			whole, err := verdict(data)
			if err != nil {
				t.Fatal(err)
			}
			trailer := len(data)
			if f, err := hipo.NewFile(name, bytes.NewReader(data), int64(len(data)), hipo.Options{}); err == nil && f.Header.Trailer > 0 {
				trailer = int(f.Header.Trailer)
			}
			n, served, stricter := 0, 0, 0
			mutants(data, func(i int, mutant []byte) {
				n++
				got, _ := verdict(mutant)
				switch {
				case got == want[i]:
				case got == "error":
					stricter++
				case got == whole && i < 8*len(data) && i/8 >= trailer:
				default:
					t.Errorf("mutant %d (byte %d): got %s, want %s; the whole file gives %s", i, i/8, got, want[i], whole)
				}
				if got != "error" {
					served++
				}
			})
			if n != len(want) {
				t.Errorf("%d mutants, %d verdicts", n, len(want))
			}
			t.Logf("%d mutants: %d served, %d refused that the reference decoder reads", n, served, stricter)
		})
	}
}
