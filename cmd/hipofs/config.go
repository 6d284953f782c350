package main

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/pflag"
)

// configPath is the user's file of settings; "" where there can be none.
func configPath() string {
	dir, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "hipofs", "config.toml")
}

// setFromConfig gives options that are still without a value that of the user's
// file of settings. It may name every long option of a mount; other commands
// take those that they have, too.
func setFromConfig(flags *pflag.FlagSet) error {
	path := configPath()
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	// A home that this process may not enter is another user's: sudo and setpriv
	// leave $HOME as it was.
	if errors.Is(err, iofs.ErrNotExist) || errors.Is(err, iofs.ErrPermission) {
		return nil
	}
	if err != nil {
		return failure(statusUsage, "%s: %v", path, rootCause(err))
	}
	settings := map[string]any{}
	if err := toml.Unmarshal(text, &settings); err != nil {
		line := path
		var at *toml.DecodeError
		if errors.As(err, &at) {
			row, _ := at.Position()
			line = fmt.Sprintf("%s: line %d", path, row)
		}
		return failure(statusUsage, "%s: %s", line, strings.TrimPrefix(err.Error(), "toml: "))
	}
	known := newMount("", nil, nil).Flags()
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if f := known.Lookup(name); f == nil || len(name) == 1 {
			return failure(statusUsage, "%s: there is no option %s; %q lists those of a mount", path, name, "hipofs help mount")
		}
		f := flags.Lookup(name)
		if f == nil || f.Changed {
			continue
		}
		value, ok := settingText(settings[name])
		if !ok {
			return failure(statusUsage, "%s: %s: want a text, a number, true, false, or a list of texts", path, name)
		}
		var own *statusError
		if err := setFlag(flags, name, value); errors.As(err, &own) {
			return own
		} else if err != nil {
			return failure(statusUsage, "%s: %s = %s: %v", path, name, value, err)
		}
	}
	return nil
}

// settingText is a setting as it is typed on a command line.
func settingText(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case int64:
		return strconv.FormatInt(v, 10), true
	case bool:
		return strconv.FormatBool(v), true
	case []any:
		var words []string
		for _, w := range v {
			s, ok := w.(string)
			if !ok {
				return "", false
			}
			words = append(words, s)
		}
		return strings.Join(words, ","), len(words) > 0
	}
	return "", false
}
