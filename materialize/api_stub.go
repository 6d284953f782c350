package materialize

import (
	"context"
	"io/fs"
	"log/slog"
	"time"
)

// IndexMode says when the pass that counts rows starts.
type IndexMode int

const (
	IndexAuto  IndexMode = iota // at once when the chain is under 4 GB, else on first need
	IndexEager                  // at once
	IndexLazy                   // on first need
)

// Options of a chain; the zero value is useful.
type Options struct {
	Memory    int64        // bytes of columns kept in memory; 0: a quarter of what this process may use
	Threads   int          // records decoded at once; 0: one a processor
	MaxRecord int64        // ceiling on one inflated record or stream, bytes; 0: 1 GiB
	Banks     []string     // patterns (path.Match) of the banks to show; nil: all
	Skip      bool         // leave out unreadable files and damaged records (--on-error=skip)
	Index     IndexMode    // when to count
	Log       *slog.Logger // nil: discard
}

// Chain is the given files, read as one.
type Chain struct{}

// Open opens the named files in order. With Options.Skip it returns after the
// whole chain is verified; else after headers, dictionaries and ends are checked.
// Errors: *DictionaryError (conflict between files), *hipo.FormatError, *fs.PathError.
func Open(ctx context.Context, names []string, o Options) (*Chain, error) { panic("stub") }

// Close stops background work and closes the files.
func (c *Chain) Close() error { panic("stub") }

// View is the whole chain.
func (c *Chain) View() *View { panic("stub") }

// Files describes every source in order, also those left out.
func (c *Chain) Files() []FileInfo { panic("stub") }

// Stats are the counters of this chain so far.
func (c *Chain) Stats() Stats { panic("stub") }

// Errors are the distinct faults met so far, oldest first, each once.
func (c *Chain) Errors() []ErrorInfo { panic("stub") }

// DictionaryError is a conflict between the dictionaries of two files.
type DictionaryError struct{ Msg string }

func (e *DictionaryError) Error() string { return e.Msg }

// FileInfo describes one source. JSON as in files.json, but for what stat gave.
type FileInfo struct {
	Name    string      `json:"name"` // as given
	Size    int64       `json:"size"`
	Records int         `json:"records"`
	Entries int64       `json:"entries"`
	First   int64       `json:"first_entry"`           // number of its first entry in the chain
	LeftOut string      `json:"left_out,omitempty"`    // why the file, or some of its records, are not served
	Lost    int64       `json:"lost_events,omitempty"` // events of its damaged records
	ModTime time.Time   `json:"-"`
	Mode    fs.FileMode `json:"-"`
	UID     uint32      `json:"-"`
	GID     uint32      `json:"-"`
}

// Stats are counters since the chain was opened, and what is held now.
type Stats struct {
	RecordsDecoded int64 `json:"records_decoded"` // whole records inflated, or split directories read
	StreamsDecoded int64 `json:"streams_decoded"` // streams of split records inflated
	BytesRead      int64 `json:"bytes_read"`      // of the sources
	BytesInflated  int64 `json:"bytes_inflated"`
	BytesServed    int64 `json:"bytes_served"`
	CacheHits      int64 `json:"cache_hits"`
	CacheMisses    int64 `json:"cache_misses"`
	CacheEvictions int64 `json:"cache_evictions"`
	CacheBytes     int64 `json:"cache_bytes"`
	CacheBudget    int64 `json:"cache_budget"`
	FilesCounted   int   `json:"files_counted"`
	Files          int   `json:"files"`
	Errors         int   `json:"errors"`
}

// ErrorInfo is one fault, as errors.json shows it.
type ErrorInfo struct {
	File    string `json:"file"`
	Record  int    `json:"record"` // -1: not in a record
	Byte    int64  `json:"byte"`
	Message string `json:"message"` // the whole line
}

// RecordInfo is one record, as records.json shows it.
type RecordInfo struct {
	File        string `json:"file"`
	Record      int    `json:"record"` // in its file, from 0
	Byte        int64  `json:"byte"`
	Length      int64  `json:"length"`
	DataLength  int64  `json:"data_length"` // inflated bytes of events
	Events      int    `json:"events"`
	FirstEntry  int64  `json:"first_entry"` // in the view
	Compression int    `json:"compression"` // tag 0 to 14
	RecordTag   int64  `json:"record_tag"`
}

// View is the entries that one tree shows.
type View struct{}

// Entries is how many entries the view has. It never waits.
func (v *View) Entries() int64 { panic("stub") }

// Banks are the banks of the view's dictionary, in its order, also those
// without rows. It never waits. The slice is shared: do not change it.
func (v *View) Banks() []*Bank { panic("stub") }

// Nodes are the structures that no dictionary entry declares, by group and
// item, as Banks named "GROUP.ITEM". It waits for the counting pass.
func (v *View) Nodes(ctx context.Context) ([]*Bank, error) { panic("stub") }

// Files are the names (as given) of the files in the view, in order.
func (v *View) Files() []FileInfo { panic("stub") }

// File is the view of its i-th file alone, with that file's own dictionary.
func (v *View) File(i int) *View { panic("stub") }

// Records are the view's records, in order. It never waits.
func (v *View) Records() []RecordInfo { panic("stub") }

// Config is the user configuration of the view's files, the last value of a key.
func (v *View) Config() map[string]string { panic("stub") }

// TagNames are the names of event tag bits.
func (v *View) TagNames() map[string]int { panic("stub") }

// EventTags is a uint32 column ("<u4"), one value an entry.
func (v *View) EventTags() *Column { panic("stub") }

// RecordTags is an int64 column, one value an entry: its record's user word 1.
func (v *View) RecordTags() *Column { panic("stub") }

// EntryNumbers is an int64 column, one value an entry: its number in the whole chain.
func (v *View) EntryNumbers() *Column { panic("stub") }

// Bank is a bank of a view, or a structure without a schema.
type Bank struct {
	Name    string
	Group   uint16
	Item    uint8
	Columns []*Column // in schema order; f0, f1, … or value for nodes

	Offsets *Column // int64, entries+1
	Entry   *Column // int64, rows: the entry of each row
	Pointer *Column // int64, rows: the row of PointsTo that pindex points to; nil where there is none

	PointsTo string // name of the bank that Pointer counts in
}

// Rows is the bank's rows in the view. It waits for the counting pass.
func (b *Bank) Rows(ctx context.Context) (int64, error) { panic("stub") }

// Filled is how many entries have at least one row. It waits for the counting pass.
func (b *Bank) Filled(ctx context.Context) (int64, error) { panic("stub") }

// Column is one .npy file: a header and the content.
type Column struct {
	Name   string // as the dictionary has it; "offsets", "entry", …
	Type   string // HIPO letter B S I F D L; "" for computed columns
	Length int    // values per row, N of T#N; 1
	Dtype  string // "<f4", "|i1", …
}

// Size is the length of the .npy file in bytes, header included, exact. It
// waits for the counting pass, and fails where a record it needs is damaged.
func (c *Column) Size(ctx context.Context) (int64, error) { panic("stub") }

// Open makes sure that every record the column needs decodes. After it,
// ReadAt fails only if a source has changed or cannot be read any more.
func (c *Column) Open(ctx context.Context) error { panic("stub") }

// ReadAt fills p with the file's bytes from off on, and returns how many there
// were; fewer than len(p) only at the end, 0 past it, both without error.
func (c *Column) ReadAt(ctx context.Context, p []byte, off int64) (int, error) { panic("stub") }
