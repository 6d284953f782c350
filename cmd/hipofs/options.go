package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hipofs/hipofs/materialize"
)

// addChainFlags adds the options that say how sources are read.
func addChainFlags(flags *pflag.FlagSet, o *materialize.Options) {
	flags.Func("banks", "", patterns(&o.Banks, func(pattern string) error {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return errors.New("want names or patterns of banks, such as REC::*,MC::Particle")
		}
		return nil
	}))
	flags.Func("memory", "", size(&o.Memory))
	flags.Func("max-record", "", size(&o.MaxRecord))
	flags.Func("threads", "", threads(&o.Threads))
	flags.Func("on-error", "", func(s string) error {
		if s != "fail" && s != "skip" {
			return errors.New("want fail or skip")
		}
		o.Skip = s == "skip"
		return nil
	})
	addIndexDir(flags, &o.IndexDir)
	addNoIndex(flags, &o.IndexDir)
}

// addNoIndex adds --no-index, which takes back --index-dir.
func addNoIndex(flags *pflag.FlagSet, dir *string) {
	flags.BoolFunc("no-index", "", func(s string) error {
		none, err := strconv.ParseBool(s)
		if err == nil && none {
			*dir = ""
		}
		return err
	})
}

// addNames adds --names.
func addNames(flags *pflag.FlagSet, dots *bool) {
	flags.Func("names", "", func(s string) error {
		if s != "colons" && s != "dot" {
			return errors.New("want colons or dot")
		}
		*dots = s == "dot"
		return nil
	})
}

// addEntries adds --entries; without it all are meant.
func addEntries(flags *pflag.FlagSet, entries *materialize.Slice) {
	*entries = materialize.Slice{To: math.MaxInt64}
	flags.Func("entries", "", func(s string) (err error) {
		*entries, err = materialize.ParseSlice(s)
		return err
	})
}

// addFilter adds the options that say which entries are kept. Given twice, an
// option adds another condition.
func addFilter(flags *pflag.FlagSet, entries *materialize.Slice, where *materialize.Where) {
	addEntries(flags, entries)
	for _, word := range []string{"require", "tag", "record_tag"} {
		flags.Func(strings.ReplaceAll(word, "_", "-"), "", func(s string) error { return where.Add(word, s) })
	}
}

// filterWords are those options as they would be given, in one order.
func filterWords(entries materialize.Slice, where *materialize.Where) (words []string) {
	if entries != (materialize.Slice{To: math.MaxInt64}) {
		words = append(words, fmt.Sprintf("--entries=%d:%d", entries.From, entries.To))
	}
	if len(where.Require) > 0 {
		words = append(words, "--require="+strings.Join(where.Require, "+"))
	}
	numbers := func(tags any) string { return strings.Trim(strings.ReplaceAll(fmt.Sprint(tags), " ", "+"), "[]") }
	for _, tags := range where.EventTags {
		words = append(words, "--tag="+numbers(tags))
	}
	for _, tags := range where.RecordTags {
		words = append(words, "--record-tag="+numbers(tags))
	}
	return words
}

// addViewFilter adds the same for commands that show those entries alone.
func addViewFilter(flags *pflag.FlagSet, o *materialize.Options) {
	o.Entries = new(materialize.Slice)
	addFilter(flags, o.Entries, &o.Where)
}

// patterns adds a list of patterns, each of which must pass a check.
func patterns(to *[]string, check func(string) error) func(string) error {
	return func(s string) error {
		for pattern := range strings.SplitSeq(s, ",") {
			if err := check(pattern); err != nil {
				return err
			}
			*to = append(*to, pattern)
		}
		return nil
	}
}

// addIndexDir adds --index-dir; without it indexes are in the user's cache
// folder, if there is one.
func addIndexDir(flags *pflag.FlagSet, dir *string) {
	if cache, err := os.UserCacheDir(); err == nil {
		*dir = filepath.Join(cache, "hipofs")
	}
	flags.Func("index-dir", "", func(s string) error {
		abs, err := filepath.Abs(s)
		if err == nil {
			err = materialize.CheckIndexDir(abs)
		}
		if err != nil {
			return failure(statusFolder, "--index-dir %s: %v; choose another folder", s, err)
		}
		*dir = abs
		return nil
	})
}

// addCacheDir adds --cache-dir. Without it there is none.
func addCacheDir(flags *pflag.FlagSet, dir *string) {
	flags.Func("cache-dir", "", func(s string) (err error) {
		*dir, err = filepath.Abs(s)
		return err
	})
}

// threads reads a number of threads.
func threads(n *int) func(string) error {
	return func(s string) error {
		v, err := strconv.Atoi(s)
		if err != nil || v < 1 || v > 1<<16 {
			return errors.New("want a number of threads, 1 or more")
		}
		*n = v
		return nil
	}
}

// indexModes are the values of --index.
var indexModes = map[string]materialize.IndexMode{
	"auto":  materialize.IndexAuto,
	"eager": materialize.IndexEager,
	"lazy":  materialize.IndexLazy,
}

// size reads 512M, 2GB, 64MiB or plain bytes into n. As with dd, M and MiB are
// powers of 1024, MB of 1000.
func size(n *int64) func(string) error {
	return func(s string) error {
		digits := strings.TrimRight(s, "BKMGTibkmgt")
		unit, ok := sizeUnits[strings.ToUpper(s[len(digits):])]
		value, err := strconv.ParseFloat(digits, 64)
		// NaN fails this comparison too.
		if !ok || err != nil || !(value*unit >= 1 && value*unit < math.MaxInt64) {
			return errors.New("want a size such as 512M, 2GB or 64MiB")
		}
		*n = int64(value * unit)
		return nil
	}
}

var sizeUnits = map[string]float64{
	"": 1, "B": 1,
	"K": 1 << 10, "KIB": 1 << 10, "KB": 1e3,
	"M": 1 << 20, "MIB": 1 << 20, "MB": 1e6,
	"G": 1 << 30, "GIB": 1 << 30, "GB": 1e9,
	"T": 1 << 40, "TIB": 1 << 40, "TB": 1e12,
}

// sizeText is a number of bytes as people say it.
func sizeText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 || v >= 100 {
		return fmt.Sprintf("%.0f %s", v, units[i])
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

// duration reads 20s or 1m30s.
func duration(d *time.Duration) func(string) error {
	return func(s string) error {
		v, err := time.ParseDuration(s)
		if err != nil || v < 0 {
			return errors.New("want a time such as 20s or 5m")
		}
		*d = v
		return nil
	}
}

// level reads a level of the log.
func level(l *slog.Level) func(string) error {
	return func(s string) error {
		if !slices.Contains([]string{"debug", "info", "warn", "error"}, s) {
			return errors.New("want debug, info, warn or error")
		}
		return l.UnmarshalText([]byte(s))
	}
}

// ignoredMountOptions are what mount(8) and fstab pass along, and what holds
// for every mount of ours anyway.
var ignoredMountOptions = []string{
	"defaults", "rw", "ro", "dev", "nodev", "suid", "nosuid", "exec", "noexec",
	"default_permissions", "_netdev", "nofail", "auto", "noauto", "user", "nouser", "users", "owner", "group",
	"atime", "noatime", "relatime", "norelatime", "diratime", "nodiratime", "async", "sync",
}

// setMountOptions takes the words of one -o: long options of the command as
// name=value, which is the only way that fstab has, and options of the mount.
// A comma that belongs to a value is written "\,".
func (m *mount) setMountOptions(flags *pflag.FlagSet, list string) error {
	for _, word := range splitMountOptions(list) {
		name, value, hasValue := strings.Cut(word, "=")
		switch flag := flags.Lookup(name); {
		case word == "":
		case name == "allow_other" && !hasValue:
			m.fs.AllowOther = true
		case name == "auto_unmount" && !hasValue:
			m.fs.AutoUnmount = true
		case name == "debug" && !hasValue:
			m.fs.Debug = true
		case name == "nonempty" && !hasValue:
			m.fs.NonEmpty = true
		case name == "fsname" && value != "":
			m.fs.FSName = value
		case slices.Contains(ignoredMountOptions, name) && !hasValue, strings.HasPrefix(name, "x-"):
		case (name == "user" || name == "comment") && hasValue: // who mounts a line of fstab, and what it says of itself
		case flag == nil || len(name) == 1 || name == "help" || name == "version":
			return fmt.Errorf("unknown mount option %s; \"hipofs help mount\" lists what -o takes", word)
		case !hasValue && flag.NoOptDefVal == "":
			return fmt.Errorf("mount option %s needs a value: %s=…", name, name)
		default:
			if !hasValue {
				value = flag.NoOptDefVal
			}
			if err := setFlag(flags, name, value); err != nil {
				return fmt.Errorf("mount option %s: %w", word, err)
			}
		}
	}
	return nil
}

// splitMountOptions splits at commas that no backslash stands before.
func splitMountOptions(list string) []string {
	words := []string{""}
	for i := 0; i < len(list); i++ {
		last := &words[len(words)-1]
		switch c := list[i]; {
		case c == '\\' && i+1 < len(list) && (list[i+1] == ',' || list[i+1] == '\\'):
			i++
			*last += list[i : i+1]
		case c == ',':
			words = append(words, "")
		default:
			*last += list[i : i+1]
		}
	}
	return words
}

// setFromEnvironment gives options that the command line leaves alone their
// value from HIPOFS_MEMORY, HIPOFS_ON_ERROR, …, or else from the user's file of
// settings. It is the PreRunE of commands that have such options.
func setFromEnvironment(cmd *cobra.Command, _ []string) error {
	if privileged() {
		return nil
	}
	var err error
	flags := cmd.Flags()
	flags.VisitAll(func(f *pflag.Flag) {
		variable := "HIPOFS_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value := os.Getenv(variable)
		if value == "" || f.Changed || f.Name == "help" || f.Name == "version" || err != nil {
			return
		}
		var own *statusError
		if e := setFlag(flags, f.Name, value); errors.As(e, &own) {
			err = own
		} else if e != nil {
			err = failure(statusUsage, "%s=%s: %v", variable, value, e)
		}
	})
	if err != nil {
		return err
	}
	return setFromConfig(flags)
}

// setFlag sets a flag, and says what is wrong without naming it again.
func setFlag(flags *pflag.FlagSet, name, value string) error {
	err := flags.Set(name, value)
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		err = invalid.Unwrap()
	}
	return wanted(err)
}

// wanted is what is wrong with a value, as users read it.
func wanted(err error) error {
	if number, ok := errors.AsType[*strconv.NumError](err); ok && number.Func == "ParseBool" {
		return errors.New("want true or false")
	}
	return err
}
