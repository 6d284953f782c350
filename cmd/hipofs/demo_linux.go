package main

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

const demoHelp = `Usage: hipofs demo

Mount a small HIPO file that comes with hipofs, look at it, and unmount it: in a
temporary folder, which is removed again. Shows what one would type.

Exit status: 0 done, 1 failed, 2 wrong usage, 6 no FUSE here, 130 interrupted.

    $ hipofs demo
    $ hipofs demo.hipo mnt
    $ ls mnt
    REC::Event  REC::Particle
    ...
`

// demoFile has 16 events by the C++ library.
//
//go:embed testdata/cpp_golden_lz4.hipo
var demoFile []byte

func newDemo(stderr io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "mount a small file, look at it, and unmount it",
		Long:  demoHelp,
		Args:  usage(0, 0, "demo takes no arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			signal.Ignore(syscall.SIGPIPE) // who reads only the first lines leaves no mount
			ctx, stop := untilSignal()
			defer stop()
			err := runDemo(ctx, cmd.OutOrStdout(), stderr)
			if ctx.Err() != nil {
				return interrupted()
			}
			return err
		},
	}
}

// runDemo looks at the mount from here: it is served by a process in the
// background, as every mount is.
func runDemo(ctx context.Context, stdout, stderr io.Writer) (err error) {
	folder, err := os.MkdirTemp("", "hipofs-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	mnt := filepath.Join(folder, "mnt")
	if err := errors.Join(os.WriteFile(filepath.Join(folder, "demo.hipo"), demoFile, 0o600), os.Mkdir(mnt, 0o700)); err != nil {
		return err
	}

	hipofs := func(words ...string) error {
		fmt.Fprintf(stdout, "$ hipofs %s\n", strings.Join(words, " "))
		c := exec.Command("/proc/self/exe", words...)
		c.Args[0], c.Dir, c.Stdout, c.Stderr = os.Args[0], folder, stdout, stderr
		c.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "HIPOFS_") }),
			"HIPOFS_NO_INDEX=true", "XDG_CONFIG_HOME="+folder) // nobody's settings
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt of the terminal is for this process, which cleans up
		err := c.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return &statusError{status: exit.ExitCode()} // which has been told
		}
		return err
	}
	if err := hipofs("demo.hipo", "mnt"); err != nil {
		return err
	}
	err = look(stdout, mnt)
	if ctx.Err() != nil {
		return unmount(mnt, true)
	}
	return errors.Join(err, hipofs("umount", "mnt"))
}

// look shows the folders of a mount, and the first values of a column.
func look(w io.Writer, mnt string) error {
	for _, folder := range []string{"", "REC::Particle"} {
		entries, err := os.ReadDir(filepath.Join(mnt, folder))
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "$ ls %s\n", filepath.Join("mnt", folder))
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") {
				fmt.Fprintf(w, "%s\n", e.Name())
			}
		}
	}
	px, err := readNpy[float32](filepath.Join(mnt, "REC::Particle/px.npy"))
	if err != nil {
		return err
	}
	offsets, err := readNpy[int64](filepath.Join(mnt, "REC::Particle/offsets.npy"))
	if err != nil {
		return err
	}
	from, to := offsets[3], offsets[4]
	var values []string
	for _, v := range px[from:to] {
		values = append(values, strconv.FormatFloat(float64(v), 'g', -1, 64))
	}
	_, err = fmt.Fprintf(w, "$ python\n"+
		">>> import numpy as np\n"+
		">>> px = np.load(\"mnt/REC::Particle/px.npy\", mmap_mode=\"r\")\n"+
		">>> px.shape\n(%d,)\n"+
		">>> offsets = np.load(\"mnt/REC::Particle/offsets.npy\")\n"+
		">>> offsets[3:5].tolist()  # the rows of event 3\n[%d, %d]\n"+
		">>> px[%[2]d:%[3]d].tolist()\n[%[4]s]\n", len(px), from, to, strings.Join(values, ", "))
	return err
}

// readNpy reads the values of a .npy file by their size alone.
func readNpy[T float32 | int64](path string) ([]T, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	b = b[10+binary.LittleEndian.Uint16(b[8:]):] // magic, version, length of the text, text
	values := make([]T, len(b)/binary.Size(T(0)))
	_, err = binary.Decode(b, binary.LittleEndian, values)
	return values, err
}
