package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hipofs/hipofs/materialize"
)

// sourceFiles are the files that the words of a command line mean. What was
// passed over it tells.
func sourceFiles(words []string, stderr io.Writer) ([]string, error) {
	files, notes, err := expandSources(words)
	if err != nil {
		return nil, err
	}
	for _, note := range notes {
		fmt.Fprintln(stderr, "hipofs: "+printable(note))
	}
	return files, nil
}

// openWords opens the files that the words of a command line mean, and tells
// what was left out.
func openWords(ctx context.Context, words []string, o materialize.Options, stderr io.Writer) (*materialize.Chain, error) {
	files, err := sourceFiles(words, stderr)
	if err != nil {
		return nil, err
	}
	chain, err := openChain(ctx, files, o)
	if err != nil {
		return nil, err
	}
	tellLeftOut(stderr, chain)
	return chain, nil
}

// expandSources turns the words of a command line into file names, in the
// order of the words; folders and patterns sort naturally. notes are sentences
// about files that were passed over.
//
// A file named outright is not looked for: opening it says best what is wrong,
// and with --on-error=skip that is not even an error.
func expandSources(words []string) (files, notes []string, err error) {
	for _, word := range words {
		f, n, err := expandSource(word)
		if err != nil {
			return nil, nil, err
		}
		files, notes = append(files, f...), append(notes, n...)
	}
	return files, notes, nil
}

var url = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://`)

func expandSource(word string) (files, notes []string, err error) {
	if materialize.IsRemote(word) {
		return expandRemote(word)
	}
	if url.MatchString(word) {
		return nil, nil, failure(statusSource, "%s: only local files and those at http, https and s3 addresses can be mounted; stage the file first (xrdcp, jcache get), then mount the copy", word)
	}
	if list, ok := strings.CutPrefix(word, "@"); ok {
		return expandList(list)
	}
	fi, err := os.Stat(word)
	switch {
	case err == nil && fi.IsDir():
		return expandFolder(word)
	case err == nil && !fi.Mode().IsRegular():
		return nil, nil, failure(statusSource, "%s: neither a file nor a folder", word)
	case errors.Is(err, iofs.ErrNotExist) && strings.ContainsAny(word, "*?["):
		return expandPattern(word)
	}
	return []string{word}, nil, nil
}

// expandRemote is the file at an address or, of a bucket's folder, its *.hipo.
func expandRemote(word string) (files, notes []string, err error) {
	name := materialize.PlainName(word)
	rest, bucket := strings.CutPrefix(name, "s3://")
	switch {
	case bucket && (strings.HasSuffix(rest, "/") || !strings.Contains(rest, "/")):
		files, err = materialize.ListRemote(context.Background(), strings.TrimSuffix(name, "/")+"/")
		if err != nil {
			return nil, nil, failure(statusSource, "%s", errorLine(err))
		}
		if len(files) == 0 {
			return nil, nil, failure(statusSource, "%s: no *.hipo in this folder", name)
		}
		slices.SortFunc(files, compareNatural)
		return files, nil, nil
	case strings.HasSuffix(name, "/"):
		return nil, nil, failure(statusSource, "%s: a server's folder cannot be listed; name its files", name)
	}
	return []string{word}, nil, nil
}

// expandFolder is the folder's *.hipo, without those of its folders. What a
// transfer is still writing (.part) is passed over with a note.
func expandFolder(dir string) (files, notes []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, failure(statusSource, "%s", errorLine(err))
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "."): // as in a shell's *.hipo
		case strings.HasSuffix(e.Name(), ".part"):
			notes = append(notes, name+": skipped, it is still being written")
		case strings.HasSuffix(e.Name(), ".hipo") && !isDir(name):
			files = append(files, name)
		}
	}
	if len(files) == 0 {
		return nil, nil, failure(statusSource, "%s: no *.hipo file in this folder", dir)
	}
	slices.SortFunc(files, compareNatural)
	return files, notes, nil
}

func expandPattern(pattern string) (files, notes []string, err error) {
	matches, err := filepath.Glob(pattern)
	if err != nil {
		return nil, nil, failure(statusSource, "%s: not a pattern; brackets and backslashes come in pairs", pattern)
	}
	hidden := strings.HasPrefix(filepath.Base(pattern), ".")
	slices.SortFunc(matches, compareNatural)
	for _, name := range matches {
		switch {
		case strings.HasPrefix(filepath.Base(name), ".") && !hidden:
		case strings.HasSuffix(name, ".part"):
			notes = append(notes, name+": skipped, it is still being written")
		case isDir(name):
			f, n, err := expandFolder(name)
			if err != nil {
				return nil, nil, err
			}
			files, notes = append(files, f...), append(notes, n...)
		default:
			files = append(files, name)
		}
	}
	if len(files) == 0 {
		return nil, nil, failure(statusSource, "%s: no file matches this pattern", pattern)
	}
	return files, notes, nil
}

// expandList reads sources from a file, one a line; "#" begins a comment.
// Relative names count from the working folder, as on the command line.
func expandList(list string) (files, notes []string, err error) {
	f, err := os.Open(list)
	if err != nil {
		return nil, nil, failure(statusSource, "%s", errorLine(err))
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		text := lines.Text()
		if n == 1 {
			text = strings.TrimPrefix(text, "\ufeff") // Windows' editors begin with it
		}
		word := strings.TrimSpace(text)
		if i := strings.Index(word, " #"); i >= 0 {
			word = strings.TrimSpace(word[:i])
		}
		if word == "" || strings.HasPrefix(word, "#") {
			continue
		}
		if strings.HasPrefix(word, "@") {
			return nil, nil, failure(statusSource, "%s: line %d: a list cannot name another list", list, n)
		}
		more, moreNotes, err := expandSource(word)
		if err != nil {
			return nil, nil, failure(status(err), "%s: line %d: %v", list, n, err)
		}
		files, notes = append(files, more...), append(notes, moreNotes...)
	}
	if err := lines.Err(); err != nil {
		return nil, nil, failure(statusSource, "%s: %v", list, err)
	}
	if len(files) == 0 {
		return nil, nil, failure(statusSource, "%s: this list names no file", list)
	}
	return files, notes, nil
}

// absolute makes names that hold wherever the process goes.
func absolute(names []string) ([]string, error) {
	abs := make([]string, len(names))
	for i, name := range names {
		if materialize.IsRemote(name) {
			abs[i] = name
			continue
		}
		a, err := filepath.Abs(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		abs[i] = a
	}
	return abs, nil
}

func isDir(name string) bool {
	fi, err := os.Stat(name)
	return err == nil && fi.IsDir()
}

// compareNatural orders names as people do: numbers in them by value, so that
// run.9 comes before run.10.
func compareNatural(a, b string) int {
	x, y := a, b
	for x != "" && y != "" {
		nx, ny := digits(x), digits(y)
		if nx == 0 || ny == 0 {
			if x[0] != y[0] {
				return cmp.Compare(x[0], y[0])
			}
			x, y = x[1:], y[1:]
			continue
		}
		// A number may be longer than any integer type; without zeros in
		// front, the longer one is the larger.
		vx, vy := strings.TrimLeft(x[:nx], "0"), strings.TrimLeft(y[:ny], "0")
		if c := cmp.Or(cmp.Compare(len(vx), len(vy)), cmp.Compare(vx, vy)); c != 0 {
			return c
		}
		x, y = x[nx:], y[ny:]
	}
	// The shorter first; run.01 and run.1 still need an order.
	return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(a, b))
}

// digits is how many decimal digits s begins with.
func digits(s string) int {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return i
		}
	}
	return len(s)
}
