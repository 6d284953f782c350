package materialize

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/hipofs/hipofs/hipo"
)

// ErrorInfo is one fault, as errors.json shows it.
type ErrorInfo struct {
	File    string `json:"file"`
	Record  int    `json:"record"` // -1: not in a record
	Byte    int64  `json:"byte"`   // -1: unknown
	Message string `json:"message"`
}

// maxFaults bounds what is remembered: a chain can have more damaged records
// than anybody will read about.
const maxFaults = 1000

// faults remembers the distinct faults of a chain, and logs each once.
type faults struct {
	log  *slog.Logger
	mu   sync.Mutex
	seen map[string]bool
	list []ErrorInfo
}

// Explain says of an error what errors.json says.
func Explain(err error) ErrorInfo {
	info := ErrorInfo{Record: -1, Byte: -1, Message: err.Error()}
	var fe *hipo.FormatError
	var se *SourceError
	switch {
	case errors.As(err, &fe):
		info.File, info.Record, info.Byte = fe.File, fe.Record, fe.Off
	case errors.As(err, &se): // the same for every record of the file
		info.File, info.Message = se.File, se.Error()
	}
	return info
}

// add remembers an error; more is for its line in the log, as slog takes it.
func (f *faults) add(err error, more ...any) {
	info := Explain(err)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen[info.Message] || len(f.list) == maxFaults {
		return
	}
	if f.seen == nil {
		f.seen = map[string]bool{}
	}
	f.seen[info.Message] = true
	f.list = append(f.list, info)
	f.log.Error(info.Message, more...)
}

func (f *faults) all() []ErrorInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]ErrorInfo{}, f.list...)
}
