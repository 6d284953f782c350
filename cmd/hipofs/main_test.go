package main

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

func TestHelpFitsAScreenOf80Columns(t *testing.T) {
	for _, command := range []string{"help", "mount", "run", "umount", "ls", "index", "doctor", "demo", "version", "completion"} {
		var stdout, stderr bytes.Buffer
		if status := run([]string{"help", command}, &stdout, &stderr); status != 0 {
			t.Fatalf("help %s: exit status %d, %s", command, status, &stderr)
		}
		lines := strings.Split(strings.TrimSuffix(stdout.String(), "\n"), "\n")
		if len(lines) > 40 {
			t.Errorf("help %s: %d lines", command, len(lines))
		}
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); n > 80 {
				t.Errorf("help %s: %d columns: %s", command, n, line)
			}
		}
		for _, part := range []string{"Usage: hipofs ", "\nExit status: ", "\n    $ hipofs "} {
			if !strings.Contains(stdout.String(), part) {
				t.Errorf("help %s: without %q", command, part)
			}
		}
	}
}

func TestHelpNamesEveryOption(t *testing.T) {
	var b bytes.Buffer
	mount, within, list, index, doctor, umount, cache := newMount("mount", nil, &b), newRun(&b), newLs(&b), newIndex(&b), newDoctor(), newUmount(), newCache(&b)
	for _, tt := range []struct {
		help  string
		flags *pflag.FlagSet
	}{
		{mount.Long, mount.Flags()},
		{within.Long, within.Flags()},
		{list.Long, list.Flags()},
		{index.Long, index.Flags()},
		{doctor.Long, doctor.Flags()},
		{umount.Long, umount.Flags()},
		{cache.Long, cache.Flags()},
	} {
		tt.flags.VisitAll(func(f *pflag.Flag) {
			if !strings.Contains(tt.help, dashed(f)+" ") {
				t.Errorf("%.30q… does not name %s", tt.help, dashed(f))
			}
		})
	}
}

func TestErrorsAreOneLineWithoutControlCharacters(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"REC::Particle/px: µ", "REC::Particle/px: µ"},
		{"a\nb", `a\nb`},
		{"\x1b[31mred", `\x1b[31mred`},
		{"bidi \u202e", `bidi \u202e`},
	} {
		if got := printable(tt.in); got != tt.want {
			t.Errorf("printable(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int64 // 0: refused
	}{
		{"1", 1},
		{"4096", 4096},
		{"4096B", 4096},
		{"512M", 512 << 20},
		{"512m", 512 << 20},
		{"64MiB", 64 << 20},
		{"2GB", 2_000_000_000},
		{"1.5G", 3 << 29},
		{"1T", 1 << 40},
		{"", 0},
		{"M", 0},
		{"0", 0},
		{"-1", 0},
		{"NaN", 0},
		{"1e30", 0},
		{"9000000T", 0},
		{"5 apples", 0},
		{"1MM", 0},
		{"0x10", 0},
	} {
		var got int64
		if err := size(&got)(tt.in); (err != nil) != (tt.want == 0) || got != tt.want {
			t.Errorf("size(%q) = %d, %v, want %d", tt.in, got, err, tt.want)
		}
	}
}

func TestMountOptionsSplitAtBareCommas(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want []string
	}{
		{"ro", []string{"ro"}},
		{"ro,nosuid", []string{"ro", "nosuid"}},
		{`banks=REC::*\,MC::*,ro`, []string{"banks=REC::*,MC::*", "ro"}},
		{`a\\,b`, []string{`a\`, "b"}},
		{`a\b`, []string{`a\b`}},
		{"größe,", []string{"größe", ""}},
	} {
		if got := splitMountOptions(tt.in); !slices.Equal(got, tt.want) {
			t.Errorf("splitMountOptions(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestNumbersInNamesSortByValue(t *testing.T) {
	want := []string{
		"run", "run.01", "run.1", "run.9", "run.10", "run.10a", "run.99999999999999999999", "run.100000000000000000000",
		"run1/b.2", "run1/b.10", "run2/a", "runs",
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, compareNatural)
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestVersionIsOneThatPackagersCanOrder(t *testing.T) {
	if !regexp.MustCompile(`^\d+\.\d+\.\d+(-dev)?\n$`).MatchString(release) {
		t.Errorf("VERSION holds %q", release)
	}
}
