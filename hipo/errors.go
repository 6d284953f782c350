package hipo

import (
	"errors"
	"fmt"
	"syscall"
)

// FormatError says that the bytes of a file break a rule of the format, and
// where. Its text is one line: file, record, byte, what was wrong.
type FormatError struct {
	File   string // as it was opened
	Record int    // from 0; -1: not in a record
	Off    int64  // byte in the file; -1: unknown
	Msg    string // what was found, and what was expected

	TooLarge bool // it is over Options.MaxRecord, and may be as it should be
}

// Unwrap makes an error about what is too large an EFBIG.
func (e *FormatError) Unwrap() error {
	if e.TooLarge {
		return syscall.EFBIG
	}
	return nil
}

func (e *FormatError) Error() string {
	switch {
	case e.Record >= 0:
		return fmt.Sprintf("%s: record %d at byte %d: %s", e.File, e.Record, e.Off, e.Msg)
	case e.Off >= 0:
		return fmt.Sprintf("%s: byte %d: %s", e.File, e.Off, e.Msg)
	}
	return e.File + ": " + e.Msg
}

var errChecksum = errors.New("the stored bytes do not have their checksum")
