package fs

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestNamesAreEncodedOnlyWhereTheyMust(t *testing.T) {
	for _, tt := range []struct{ name, bank, column string }{
		{"REC::Particle", "REC::Particle", "REC::Particle"},
		{"px", "px", "px"},
		{"a b", "a b", "a b"},
		{"Größe", "Größe", "Größe"},
		{"e\u0301", "e\u0301", "e\u0301"}, // NFD stays NFD
		{"", "%", "%"},
		{".", "%2E", "%2E"},
		{"..", "%2E.", "%2E."},
		{".hipofs", "%2Ehipofs", "%2Ehipofs"},
		{"@entry", "%40entry", "%40entry"},
		{"a@b.c", "a@b.c", "a@b.c"},
		{"a/b", "a%2Fb", "a%2Fb"},
		{"a\x00b", "a%00b", "a%00b"},
		{"N\nL", "N%0AL", "N%0AL"},
		{"\x7f", "%7F", "%7F"},
		{"\u0085", "%C2%85", "%C2%85"},
		{"\xff", "%FF", "%FF"},
		{"\xc3", "%C3", "%C3"},
		{"\ufffd", "\ufffd", "\ufffd"},
		{"100%", "100%25", "100%25"},
		{"%2F", "%252F", "%252F"},
		{"\u202ecba", "%E2%80%AEcba", "%E2%80%AEcba"},
		{"a\u2066b", "a%E2%81%A6b", "a%E2%81%A6b"},
		{"x~2", "x%7E2", "x%7E2"},
		{"x~2~3", "x~2%7E3", "x~2%7E3"},
		{"x~", "x~", "x~"},
		{"x~y", "x~y", "x~y"},
		{"~", "~", "~"},
		{"x~0123abcd", "x%7E0123abcd", "x%7E0123abcd"}, // as a shortened name ends
		{"offsets", "offsets", "%6Fffsets"},
		{"Offsets", "Offsets", "Offsets"},
		{"REC.arrow", "REC%2Earrow", "REC.arrow"},
		{".arrow", "%2Earrow", "%2Earrow"},
		{"CACHEDIR.TAG", "%43ACHEDIR.TAG", "CACHEDIR.TAG"},
		{"x.npy", "x.npy", "x.npy"},
		{"schema.json", "schema.json", "schema.json"},
		{strings.Repeat("b", 249), strings.Repeat("b", 249), strings.Repeat("b", 249)},
		{strings.Repeat("c", 251), strings.Repeat("c", 200) + "~84ddcf1a", strings.Repeat("c", 251)},
		{strings.Repeat("c", 252), strings.Repeat("c", 200) + "~c0604d25", strings.Repeat("c", 200) + "~c0604d25"},
		{"a" + strings.Repeat("é", 130), "a" + strings.Repeat("é", 99) + "~e726a760", "a" + strings.Repeat("é", 99) + "~e726a760"},
		{"a" + strings.Repeat("/", 100), "a" + strings.Repeat("%2F", 66) + "~fc5583e0", "a" + strings.Repeat("%2F", 66) + "~fc5583e0"},
	} {
		if got := (naming{}).bank(tt.name); got != tt.bank {
			t.Errorf("bank %.20q: %q, not %q", tt.name, got, tt.bank)
		}
		if got := (naming{}).column(tt.name); got != tt.column {
			t.Errorf("column %.20q: %q, not %q", tt.name, got, tt.column)
		}
	}
}

func TestDotNames(t *testing.T) {
	for _, tt := range []struct{ name, want string }{
		{"REC::Particle", "REC.Particle"},
		{"REC.Particle", "REC%2EParticle"},
		{"a:b", "a:b"},
		{"a:::b", "a.:b"},
		{"a::::b", "a..b"},
		{"::a", "%3A:a"},
		{":::a", "%3A.a"},
		{"a::", "a."},
		{"REC::arrow", "REC%3A%3Aarrow"},
		{"REC.arrow", "REC%2Earrow"},
		{"::arrow", "%3A:arrow"},
		{"CACHEDIR::TAG", "%43ACHEDIR.TAG"},
		{"CACHEDIR.TAG", "CACHEDIR%2ETAG"},
	} {
		if got := (naming{dots: true}).bank(tt.name); got != tt.want {
			t.Errorf("%q: %q, not %q", tt.name, got, tt.want)
		}
	}
}

func TestDuplicatesAreNumbered(t *testing.T) {
	taken := claims{}
	long := strings.Repeat("x", nameMax)
	var got []string
	for _, name := range []string{"a", "b", "a", "a", "b", "", long, long} {
		got = append(got, taken.claim(name, nameMax))
	}
	want := fmt.Sprint([]string{"a", "b", "a~2", "a~3", "b~2", "", long, long[:253] + "~2"})
	if fmt.Sprint(got) != want {
		t.Errorf("%v, not %v", got, want)
	}
}

// nasty are names with everything in them that names.go knows about.
func nasty() *rapid.Generator[string] {
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{"/", "\x00", "%", "%2F", ".", "..", "@", "~", "~2", "~0123abcd", "::", ":", "\xff", "\xc3", "\u0085",
			"\u202e", "é", "\n", "\x7f", "offsets", ".arrow", "::arrow", "arrow", ".npy", cacheTag, "CACHEDIR", "TAG", "a", "0"}),
		rapid.String(),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 4), func(b []byte) string { return string(b) }),
		rapid.Map(rapid.IntRange(0, 300), func(n int) string { return strings.Repeat("y", n) }),
	)
	return rapid.Map(rapid.SliceOfN(piece, 0, 5), func(p []string) string { return strings.Join(p, "") })
}

func TestEncodingCanBeUndoneAndFits(t *testing.T) {
	for what, encode := range encodings() {
		t.Run(what, rapid.MakeCheck(func(t *rapid.T) {
			checkEncoding(t, what, encode, nasty().Draw(t, "a"), nasty().Draw(t, "b"))
		}))
	}
}

// checkEncoding checks what holds for any two names.
func checkEncoding(t rapid.TB, what string, encode func(string) string, a, b string) {
	for _, name := range []string{a, b} {
		s := encode(name)
		switch {
		case s == "" || len(s) > nameMax-len(".npy"), strings.ContainsAny(s, "/\x00"), !utf8.ValidString(s):
			t.Fatalf("%q becomes %q", name, s)
		case strings.HasPrefix(s, "."), strings.HasPrefix(s, "@"), s == cacheTag && what != "column", s == "offsets" && what == "column":
			t.Fatalf("%q becomes %q, which is taken", name, s)
		case strings.HasSuffix(s, ".arrow") && strings.HasPrefix(what, "bank"):
			t.Fatalf("%q becomes %q, which is taken", name, s)
		}
		if shortened(s) {
			continue
		}
		if back := decode(s, what == "bank, dots"); back != name {
			t.Fatalf("%q becomes %q becomes %q", name, s, back)
		}
	}
	if a != b && encode(a) == encode(b) {
		t.Fatalf("%q and %q both become %q", a, b, encode(a))
	}
}

// A name that looks as if it had been shortened must not be one that was.
func TestShortenedNameCannotBeForged(t *testing.T) {
	for what, encode := range encodings() {
		long := strings.Repeat("z", 300)
		s := encode(long)
		if encode(s) == s {
			t.Errorf("%s: the name %q is taken by a longer one", what, s)
		}
	}
}

func encodings() map[string]func(string) string {
	return map[string]func(string) string{
		"bank":       naming{}.bank,
		"bank, dots": naming{dots: true}.bank,
		"column":     naming{}.column,
	}
}

func shortened(s string) bool {
	at := tildeEnd.FindStringIndex(s)
	return at != nil && len(s)-at[0] == len("~0123abcd") && len(s) > keptOf-10
}

// decode undoes the encoding of a name that was not shortened.
func decode(s string, dots bool) string {
	if s == "%" {
		return ""
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '%':
			var c byte
			if _, err := fmt.Sscanf(s[i+1:i+3], "%02X", &c); err != nil {
				return "not an escape: " + s[i:]
			}
			b.WriteByte(c)
			i += 2
		case dots && s[i] == '.':
			b.WriteString("::")
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}
