package fs

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A name of a dictionary becomes a file name by percent-encoding what a file
// name cannot carry and what means something else here. No two names become
// one, and the encoding can be undone, but for names that are too long.
//
//	/ NUL control characters, bytes that are not UTF-8, marks of direction, %
//	a leading . or @         fixed names and computed columns begin with these
//	the ~ of a final ~2      duplicates end with it
//	the ~ of a final ~0a1b2c3d    shortened names end with it
//	the empty name           is a lone %, which no escape is
//
// A longer name keeps its first 200 bytes, with ~ and a hash of the whole.
const (
	nameMax  = 255
	bankMax  = nameMax - len(".arrow")
	fileMax  = nameMax - len(".npy")
	keptOf   = 200 // bytes of a name that is too long
	cacheTag = "CACHEDIR.TAG"
)

// naming is how the names of a dictionary are shown.
type naming struct {
	dots bool // . stands for ::, and %2E for .
}

// bank is the name of a bank's folder.
func (n naming) bank(name string) string {
	s := n.escape(name)
	switch {
	case strings.HasSuffix(s, ".arrow"):
		dot := "%2E"
		if n.dots {
			dot = "%3A%3A"
		}
		s = strings.TrimSuffix(s, ".arrow") + dot + "arrow"
	case s == cacheTag:
		s = "%43" + cacheTag[1:]
	}
	return shorten(s, name, bankMax)
}

// column is the name of a column's file, but for .npy and ~2 of duplicates.
func (n naming) column(name string) string {
	if name == "offsets" {
		return "%6Fffsets"
	}
	return shorten(n.escape(name), name, fileMax)
}

// source is the name under .files of a file of the chain.
func source(name string) string {
	base := filepath.Base(name)
	return shorten(naming{}.escape(base), base, nameMax)
}

var tildeEnd = regexp.MustCompile(`~([0-9]+|[0-9a-f]{8})$`)

func (n naming) escape(name string) string {
	if name == "" {
		return "%"
	}
	tilde := -1
	if at := tildeEnd.FindStringIndex(name); at != nil {
		tilde = at[0]
	}
	var b strings.Builder
	for i := 0; i < len(name); {
		r, size := utf8.DecodeRuneInString(name[i:])
		if n.dots && i > 0 && strings.HasPrefix(name[i:], "::") {
			b.WriteByte('.')
			i += 2
			continue
		}
		switch {
		case r == utf8.RuneError && size == 1,
			r == '/', r == '%', unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r),
			i == 0 && (r == '.' || r == '@' || n.dots && strings.HasPrefix(name, "::")),
			i == tilde,
			n.dots && r == '.':
			for _, c := range []byte(name[i : i+size]) {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		default:
			b.WriteString(name[i : i+size])
		}
		i += size
	}
	return b.String()
}

// shorten fits s, which stands for name, into limit bytes.
func shorten(s, name string, limit int) string {
	if len(s) <= limit {
		return s
	}
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%s~%x", cut(s, keptOf), sum[:4])
}

// cut is the first n bytes of s, less if they end within a character or an
// escape.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	if i := strings.LastIndexByte(s[:n], '%'); i >= 0 && n-i < len("%2F") {
		n = i
	}
	return s[:n]
}

// claims are the names that are taken in a folder, with how many asked for each.
type claims map[string]int

// claim is name for the first who asks for it, and name~2, name~3 for others.
func (c claims) claim(name string, limit int) string {
	for unique := name; ; {
		if c[unique] == 0 {
			c[unique] = 1
			return unique
		}
		c[name]++
		end := fmt.Sprintf("~%d", c[name])
		unique = cut(name, limit-len(end)) + end
	}
}

// field is the name of a column among others: of two with one name, only the first
// could be asked for.
func (c claims) field(name string) string { return c.claim(name, len(name)+nameMax) }
