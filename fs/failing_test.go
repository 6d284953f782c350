package fs

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hipofs/hipofs/materialize"
)

// A file system below the mount fails: readers get its error, others are none
// the wiser, and when it works again so does the mount.
func TestErrorsOfTheSourcesFileSystemReachTheReaderAndPass(t *testing.T) {
	const file, column = "tag01_lz4_perchunk.hipo", "/CODEC::hits/x.npy"
	want := run(t, "cat", mount(t, Options{}, open(t, materialize.Options{}, codecs+file))+column)
	for _, tt := range []struct {
		fails int32
		want  string
	}{
		{int32(syscall.EIO), "EIO"},
		{int32(syscall.ETIMEDOUT), "ETIMEDOUT"},
		{int32(syscall.EACCES), "EACCES"},
		{int32(syscall.EPERM), "EPERM"},
		{int32(syscall.EREMOTEIO), "EREMOTEIO"},
		{int32(syscall.EHOSTDOWN), "EHOSTDOWN"},
		{int32(syscall.EHOSTUNREACH), "EHOSTUNREACH"},
		{int32(syscall.ENOMEM), "ENOMEM"},
		{int32(syscall.ESTALE), "ESTALE"},
		{int32(syscall.ENOTCONN), "EIO"}, // or this mount would seem to be dead
		{endsEarly, "EIO"},
	} {
		name := "ends early"
		if tt.fails > 0 {
			name = unix.ErrnoName(syscall.Errno(tt.fails))
		}
		t.Run(name, func(t *testing.T) {
			gate := &gated{waiting: make(chan struct{}, 100), data: must(os.ReadFile(codecs + file))}
			var said log
			o := materialize.Options{Index: materialize.IndexLazy, Log: said.logger()}
			dir := mount(t, Options{Log: said.logger()}, open(t, o, gate.mount(t)))
			gate.fails.Store(tt.fails)
			for _, op := range []string{"stat", "open"} {
				if got := in(t, op, dir+column); got != tt.want {
					t.Errorf("%s: %s", op, got)
				}
			}
			run(t, "ls", dir, dir+"/CODEC::hits")
			gate.fails.Store(0)
			if run(t, "cat", dir+column) != want {
				t.Error("other bytes when it works again")
			}
			var told []materialize.ErrorInfo
			if err := json.Unmarshal([]byte(run(t, "cat", dir+"/.hipofs/errors.json")), &told); err != nil {
				t.Fatal(err)
			}
			if len(told) != 1 || told[0].File == "" || strings.Count(said.String(), "level=ERROR") != 1 {
				t.Errorf("told: %+v\n%s", told, said.String())
			}
		})
	}
}
