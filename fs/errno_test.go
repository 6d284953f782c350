package fs

import (
	"context"
	"fmt"
	"io"
	iofs "io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hipofs/hipofs/hipo"
	"github.com/hipofs/hipofs/materialize"
)

func TestErrorsBecomeNumbersAndOneLine(t *testing.T) {
	alive := context.Background()
	gone, cancel := context.WithCancel(alive)
	cancel()
	fault := &hipo.FormatError{File: "run.hipo", Record: 3, Off: 99, Msg: "broken"}
	lost := &materialize.SourceError{File: "run.hipo", Err: fmt.Errorf("read: %w", syscall.EACCES)}
	known := &hipo.FormatError{File: "run.hipo", Record: 4, Off: 999, Msg: "broken"}
	var said log
	b := &border{log: said.logger(), faults: func() []materialize.ErrorInfo {
		return []materialize.ErrorInfo{{Message: known.Error()}}
	}}
	for _, tt := range []struct {
		ctx  context.Context
		err  error
		want syscall.Errno
		says string
	}{
		{alive, nil, 0, ""},
		{gone, context.Canceled, syscall.EINTR, ""},
		{gone, fmt.Errorf("px: %w", context.Canceled), syscall.EINTR, ""},
		{alive, context.Canceled, syscall.EIO, "context canceled"}, // somebody else's
		{alive, fault, syscall.EIO, "run.hipo: record 3 at byte 99: broken"},
		{gone, fault, syscall.EIO, ""},
		{alive, fmt.Errorf("REC::Particle/px: %w", fault), syscall.EIO, ""},
		{alive, known, syscall.EIO, ""},
		{alive, &os.PathError{Op: "read", Path: "run.hipo", Err: syscall.ESTALE}, syscall.ESTALE, "read run.hipo: stale"},
		{alive, &os.PathError{Op: "open", Path: "run.hipo", Err: syscall.ENOENT}, syscall.EIO, "open run.hipo"},
		{alive, fmt.Errorf("run.hipo: byte 9: %w (record 1)", lost), syscall.EACCES, "run.hipo: read: permission denied"},
		{alive, fmt.Errorf("run.hipo: byte 99: %w (record 2)", lost), syscall.EACCES, ""},
		{alive, &materialize.SourceError{File: "run.hipo", Err: syscall.EHOSTDOWN}, syscall.EHOSTDOWN, "host is down"},
		{alive, &materialize.SourceError{File: "run.hipo", Err: syscall.ENOTCONN}, syscall.EIO, "not connected"}, // this mount is
		{alive, &materialize.SourceError{File: "run.hipo", Err: syscall.EINTR}, syscall.EIO, "interrupted"},      // or programs try for ever
		{alive, io.ErrUnexpectedEOF, syscall.EIO, "unexpected EOF"},
		{alive, io.ErrUnexpectedEOF, syscall.EIO, ""},
	} {
		before := len(said.String())
		if got := b.errno(tt.ctx, tt.err, "REC::Particle/px.npy"); got != tt.want {
			t.Errorf("%v: %v, not %v", tt.err, got, tt.want)
		}
		line := said.String()[before:]
		if (line == "") != (tt.says == "") || !strings.Contains(line, tt.says) {
			t.Errorf("%v says %q, not %q", tt.err, line, tt.says)
		}
	}
}

func TestColumnsAreAsPrivateAsTheirSources(t *testing.T) {
	self := uint32(os.Geteuid())
	early, late := time.Unix(1000, 5), time.Unix(2000, 7)
	file := func(mode iofs.FileMode, uid, gid uint32, at time.Time) materialize.FileInfo {
		return materialize.FileInfo{Mode: mode, UID: uid, GID: gid, ModTime: at, Size: 10}
	}
	for _, tt := range []struct {
		what  string
		files []materialize.FileInfo
		want  attributes
	}{
		{"one", []materialize.FileInfo{file(0o644, self, 7, early)}, attributes{early, 0o444, self, 7, 10}},
		{"x and w are nobody's", []materialize.FileInfo{file(0o777, self, 7, early)}, attributes{early, 0o444, self, 7, 10}},
		{"what all allow", []materialize.FileInfo{file(0o640, self, 7, late), file(0o604, self, 7, early)}, attributes{late, 0o400, self, 7, 20}},
		{"owners differ", []materialize.FileInfo{file(0o644, self, 7, early), file(0o644, self+1, 7, late)},
			attributes{late, 0o400, self, uint32(os.Getegid()), 20}},
		{"groups differ", []materialize.FileInfo{file(0o644, self, 7, early), file(0o644, self, 8, early)},
			attributes{early, 0o400, self, uint32(os.Getegid()), 20}},
	} {
		if got := attributesOf(tt.files); got != tt.want {
			t.Errorf("%s: %+v, not %+v", tt.what, got, tt.want)
		}
	}
}
