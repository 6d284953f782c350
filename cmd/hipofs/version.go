package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker: -ldflags "-X main.version=1.2.3".
var version string

// programVersion is the one answer to which hipofs this is; a build that was
// told none has what the Go tool knows about its source.
func programVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
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
