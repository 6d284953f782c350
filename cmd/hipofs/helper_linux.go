package main

import (
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
)

// mount(8) and fstab start /sbin/mount.fuse.hipofs for the type fuse.hipofs:
//
//	mount.fuse.hipofs SOURCE DIR [-sfnv] [-t TYPE] [-N NAMESPACE] [-o OPTION,...]
//
// That is this program by another name.

// helperName is the name that makes this program the helper.
const helperName = "mount.fuse.hipofs"

// What mount(8) says of its own end.
const (
	helperUsage  = 1
	helperSystem = 2
	helperFailed = 32
)

// runHelper mounts as mount(8) asks for it; the result is a status of its kind.
func runHelper(args []string, stdout, stderr io.Writer) int {
	flags := pflag.NewFlagSet(helperName, pflag.ContinueOnError)
	flags.Usage = func() {}
	flags.BoolP("sloppy", "s", false, "")
	flags.BoolP("no-mtab", "n", false, "")
	flags.BoolP("verbose", "v", false, "")
	flags.StringP("type", "t", "", "")
	flags.StringP("namespace", "N", "", "")
	fake := flags.BoolP("fake", "f", false, "")
	options := flags.StringArrayP("options", "o", nil, "")
	if err := flags.Parse(args); err != nil || flags.NArg() != 2 {
		tell(failure(statusUsage, "usage: %s SOURCE DIR [-sfnv] [-o OPTION,...]", helperName), stderr)
		return helperUsage
	}
	if *fake {
		return 0
	}
	fillEnvironment()
	source, dir := flags.Arg(0), flags.Arg(1)
	// What mount, df and "mount -a" look for in the table of mounts.
	name := strings.NewReplacer(`\`, `\\`, `,`, `\,`).Replace(source)
	command := []string{"mount", "-o", "fsname=" + name}
	for _, o := range *options {
		command = append(command, "-o", o)
	}
	// mount(8), and a boot with it, waits for the end of the helper, whatever -o, the
	// environment and the user's settings say.
	command = append(command, "--foreground=false", "--until-eof=false")
	switch run(append(command, "--", source, dir), stdout, stderr) {
	case 0:
		return 0
	case statusUsage:
		return helperUsage
	case statusNoFUSE:
		return helperSystem
	}
	return helperFailed
}

// fillEnvironment adds what mount(8) takes away when an ordinary user calls it:
// where fusermount3 is, and where the user's indexes and settings are.
func fillEnvironment() {
	if os.Getenv("PATH") == "" {
		os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	}
	if os.Getenv("HOME") == "" {
		if u, err := user.Current(); err == nil {
			os.Setenv("HOME", u.HomeDir)
		}
	}
}

// isHelper says whether this program was started by the helper's name.
func isHelper(name string) bool { return filepath.Base(name) == helperName }
