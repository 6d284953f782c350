package main

import (
	_ "embed"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// release is the one place that the version of everything is in: packages and
// the Python wheel read the same file. What comes after a release ends in -dev.
//
//go:embed VERSION
var release string

// programVersion is the one answer to which hipofs this is. Between releases it
// names the commit, as far as the Go tool knows it.
func programVersion() string {
	version := strings.TrimSpace(release)
	info, ok := debug.ReadBuildInfo()
	if !ok || !strings.HasSuffix(version, "-dev") {
		return version
	}
	commit, changed := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = "+" + s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = ".changed"
		}
	}
	if commit == "" {
		return version
	}
	return version + commit + changed
}

func versionLine() string {
	return fmt.Sprintf("hipofs %s %s %s/%s\n", programVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

const versionHelp = `Usage: hipofs version

Print the version of hipofs, the Go version it was built with, and the
platform it was built for.

Exit status: 0 done, 2 wrong usage.

    $ hipofs version
    hipofs 0.1.0 go1.26.0 linux/amd64
`

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Long:  versionHelp,
		Args:  usage(0, 0, "version takes no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), versionLine())
			return err
		},
	}
}
