package fs

import "testing"

func FuzzNames(f *testing.F) {
	for _, name := range []string{"REC::Particle", "a/b", "%2F", ".hipofs", "@entry", "x~2", "x~0123abcd", "offsets", "a.arrow", "\xff\xc3", "\u202ecba", "::arrow", ""} {
		f.Add(name, name+"~")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		for what, encode := range encodings() {
			checkEncoding(t, what, encode, a, b)
		}
	})
}
