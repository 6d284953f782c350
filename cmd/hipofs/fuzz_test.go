package main

import (
	"io"
	"math/big"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// FuzzMountOptions fuzzes what fstab gives to -o.
func FuzzMountOptions(f *testing.F) {
	for _, list := range []string{
		"ro,nosuid", `banks=REC::*\,MC::*,ro`, "memory=2G,threads=4,on-error=skip", "allow_other,fsname=a=b,nonempty",
		"x-systemd.automount,_netdev", "no-index=false,names=dot", `a\\,b`, "help", "=", ",,", "index=lazy,entries=1:2",
	} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		words := splitMountOptions(list)
		for i, word := range words { // joined again, they are split the same
			words[i] = strings.NewReplacer(`\`, `\\`, ",", `\,`).Replace(word)
		}
		joined := strings.Join(words, ",")
		if again := splitMountOptions(joined); !slices.Equal(again, splitMountOptions(list)) {
			t.Fatalf("%q is split to %q, but %q to %q", list, splitMountOptions(list), joined, again)
		}
		m := &mount{stderr: io.Discard}
		cmd := newMount("mount", nil, io.Discard)
		if err := m.setMountOptions(cmd.Flags(), list); err != nil {
			line := printable(err.Error())
			if line == "" || strings.ContainsFunc(line, unicode.IsControl) {
				t.Fatalf("%q: the error is %q", list, line)
			}
		}
	})
}

// FuzzSizes compares sizes with exact arithmetic.
func FuzzSizes(f *testing.F) {
	for _, s := range []string{"512M", "2GB", "64MiB", "1.5G", "1e3k", "0x10p2", "NaN", "inf", "-1", "9223372036854775807", "_1", "1TIB", "18014398509481984K"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var n int64
		if err := size(&n)(s); err != nil {
			if n != 0 {
				t.Fatalf("%q is refused, but %d is set", s, n)
			}
			return
		}
		digits := strings.TrimRight(s, "BKMGTibkmgt")
		number, _, err := big.ParseFloat(strings.ReplaceAll(digits, "_", ""), 0, 200, big.ToNearestEven)
		if err != nil {
			t.Fatalf("%q is taken for %d: %v", s, n, err)
		}
		unit := map[string]float64{"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
		u := strings.ToUpper(s[len(digits):])
		factor := unit[strings.TrimSuffix(strings.TrimSuffix(u, "IB"), "B")]
		if strings.HasSuffix(u, "B") && !strings.HasSuffix(u, "IB") && len(u) == 2 {
			factor = map[byte]float64{'K': 1e3, 'M': 1e6, 'G': 1e9, 'T': 1e12}[u[0]]
		}
		want, _ := new(big.Float).Mul(number, big.NewFloat(factor)).Float64()
		if n < 1 || float64(n) < want*(1-1e-12)-1 || float64(n) > want*(1+1e-12)+1 {
			t.Fatalf("%q is %d, want %g", s, n, want)
		}
	})
}

// FuzzNaturalOrder fuzzes the order of files: it must be one.
func FuzzNaturalOrder(f *testing.F) {
	f.Add("run.9", "run.10", "run.010")
	f.Add("run.1a2", "run.01a1", "run.1a")
	f.Add("", "0", "00")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		if compareNatural(a, b) != -compareNatural(b, a) || (compareNatural(a, b) == 0) != (a == b) {
			t.Fatalf("%q and %q have no order", a, b)
		}
		three := []string{a, b, c}
		slices.SortFunc(three, compareNatural)
		if compareNatural(three[0], three[2]) > 0 {
			t.Fatalf("%q is not in order", three)
		}
	})
}
