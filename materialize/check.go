package materialize

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/hipofs/hipofs/hipo"
)

// CheckOptions say how files are checked.
type CheckOptions struct {
	IndexDir  string            // folder of indexes; "": none is looked at, also not beside the files
	Threads   int               // records decoded at once; 0: one a processor
	MaxRecord int64             // as in Options
	Progress  func(bytes int64) // called for what was read of a file; nil: nobody asks
}

// Checked is what was found out about one file. JSON as hipofs check prints it.
type Checked struct {
	File           string         `json:"file"`
	Size           int64          `json:"size"`
	Good           bool           `json:"good"`
	Records        int            `json:"records"`
	DamagedRecords int            `json:"damaged_records"`
	Events         int64          `json:"events"`
	DamagedEvents  int64          `json:"damaged_events"` // all those of damaged records
	Codecs         map[string]int `json:"codecs"`         // records of each
	Index          string         `json:"index"`          // path of the one that every byte was compared with; "": none
	Faults         []ErrorInfo    `json:"faults"`         // the first ones, by their places
	MoreFaults     int            `json:"more_faults"`
	Notes          []string       `json:"notes"` // what is odd, and no damage

	Changed []int64 `json:"-"` // where the records begin whose bytes are not those that were indexed
}

// mostTold is how many faults of a file are told.
const mostTold = 1000

// Check reads every byte of every file, several at once, and tells done of each,
// in order. All of them together take the decoders and the memory of one. It
// writes nothing.
func Check(ctx context.Context, names []string, o CheckOptions, done func(Checked)) error {
	threads := cmp.Or(o.Threads, runtime.GOMAXPROCS(0))
	results := make([]chan Checked, len(names))
	for i := range results {
		results[i] = make(chan Checked, 1)
	}
	var g errgroup.Group
	g.SetLimit(threads)
	shop := newSharedWorkshop(threads, DefaultMemory())
	go func() {
		for i, name := range names {
			g.Go(func() error {
				results[i] <- checkFile(ctx, name, o, threads, shop)
				return nil
			})
		}
	}()
	for _, r := range results {
		checked := <-r
		if ctx.Err() != nil {
			break
		}
		done(checked)
	}
	return ctx.Err()
}

// checker checks one file.
type checker struct {
	chain *Chain
	src   *source

	mu     sync.Mutex
	found  Checked
	faults []error
	tables map[bankID]*table
}

func checkFile(ctx context.Context, name string, o CheckOptions, threads int, shop *workshop) Checked {
	c := newChain(nil)
	defer c.Close()
	c.checks, c.progress, c.shop = true, o.Progress, shop
	k := &checker{chain: c, tables: map[bankID]*table{}}
	k.found = Checked{File: PlainName(name), Codecs: map[string]int{}, Notes: []string{}}
	if err := k.open(ctx, o, threads); err != nil {
		k.fault(err)
	} else if err := k.records(ctx, threads); err != nil {
		k.fault(err)
	}
	return k.report()
}

func (k *checker) fault(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults = append(k.faults, err)
}

func (k *checker) note(text string) { k.found.Notes = append(k.found.Notes, text) }

// report puts the faults in order.
func (k *checker) report() Checked {
	r := &k.found
	r.Faults = []ErrorInfo{}
	for _, err := range k.faults {
		// What a mount would do about a file that has changed is not the question here.
		var fe *hipo.FormatError
		if errors.As(err, &fe) {
			err = fe
		}
		var pe *iofs.PathError
		if errors.As(err, &pe) {
			err = fmt.Errorf("%s: %w", pe.Path, pe.Err)
		}
		info := Explain(err)
		info.File = r.File
		r.Faults = append(r.Faults, info)
	}
	slices.SortStableFunc(r.Faults, func(a, b ErrorInfo) int {
		return cmp.Or(cmp.Compare(a.Byte, b.Byte), cmp.Compare(a.Message, b.Message))
	})
	r.Faults = slices.Compact(r.Faults)
	if n := len(r.Faults); n > mostTold {
		r.Faults, r.MoreFaults = r.Faults[:mostTold], n-mostTold
	}
	r.Good = len(r.Faults) == 0
	slices.Sort(r.Changed) // they come in any order
	return k.found
}

// open opens the file, and looks at whatever is no record with events.
func (k *checker) open(ctx context.Context, o CheckOptions, threads int) error {
	c := k.chain
	opt := Options{MaxRecord: o.MaxRecord, Skip: true} // so that all damage is found
	_, err := c.openFiles(ctx, []string{k.found.File}, opt, threads)
	k.found.Size = c.infos[0].Size
	if err != nil {
		return err
	}
	if err := c.banks.unite(c.sources, nil); err != nil {
		return err
	}
	s := c.sources[0]
	k.src = s
	// Each record on its own, so that the damage of one does not hide another's.
	for i := range s.file.Records {
		r := makeRuns(s.file.Records[i : i+1])[0]
		r.first, r.entry = i, s.entries
		s.runs = append(s.runs, r)
		s.entries += r.entries
		k.found.Codecs[s.file.Records[i].Codec()]++
	}
	k.found.Records, k.found.Events = len(s.runs), s.entries
	c.m = newMaterializer(c, DefaultMemory(), threads)

	k.faults = append(k.faults, s.file.Damage...)
	for _, why := range s.plan.conflicts {
		k.faults = append(k.faults, errors.New(why))
	}
	for _, why := range s.file.Dictionary.Dropped {
		if !isCarrier(why) {
			k.note("dictionary: " + why)
		}
	}
	differ, err := s.file.AuditDictionary()
	if err != nil {
		return err
	}
	for _, why := range differ {
		k.faults = append(k.faults, &hipo.FormatError{File: s.file.Name, Record: -1, Off: s.file.Header.Length, Msg: why})
	}
	var fe *hipo.FormatError
	if err := s.file.AuditTrailer(); errors.As(err, &fe) {
		if len(s.file.Damage) == 0 { // otherwise that is why
			k.note(fmt.Sprintf("at byte %d: %s", fe.Off, fe.Msg))
		}
	} else if err != nil {
		return err
	}
	if o.IndexDir != "" {
		return k.compare(o)
	}
	return nil
}

// compare finds the file's index, compares with it what is no record, and sees
// to it that records are compared when they are read.
func (k *checker) compare(o CheckOptions) error {
	s := k.src
	for _, path := range indexPaths(o.IndexDir, s.handle.name) {
		head, err := readIndex(path, s.handle.owner, s.file.Size)
		if errors.Is(err, errNoIndex) {
			continue
		}
		if err == nil {
			err = k.compareWith(head, path, o)
		}
		if unread(err) {
			return err
		}
		if err == nil {
			return nil
		}
		k.note(fmt.Sprintf("%s: this index is of no use: %v; \"hipofs index\" makes it again", path, err))
	}
	return nil
}

func (k *checker) compareWith(head *indexHead, path string, o CheckOptions) error {
	s := k.src
	raw, err := decompress(head.dictionary, head.dictionaryLength)
	if err != nil {
		return err
	}
	records, err := decompress(head.records, head.recordsLength)
	if err != nil {
		return err
	}
	differs := func(record int, off int64, format string, args ...any) {
		k.faults = append(k.faults, &hipo.FormatError{File: s.file.Name, Record: record, Off: off, Msg: fmt.Sprintf(format, args...)})
	}
	const onPurpose = " (if the file was changed on purpose, run hipofs index)"
	k.found.Index = path
	if head.id.size != s.handle.id.size {
		differs(-1, min(head.id.size, s.handle.id.size), "the file has %d bytes, and had %d when it was indexed%s", s.handle.id.size, head.id.size, onPurpose)
	}
	outline := hipo.Outline{Header: head.header, Dictionary: raw, Records: records}
	indexed, err := hipo.Restore(s.file.Name, s.handle, head.id.size, outline, nil, hipo.Options{MaxRecord: o.MaxRecord})
	if unread(err) {
		return err
	}
	if err != nil || len(indexed.Records) != len(head.sums) {
		differs(-1, -1, "the records are not those that were indexed%s", onPurpose)
		return nil
	}
	was := &source{info: s.info, handle: s.handle, file: indexed}
	are, err := endSums(was.handle, was.file)
	if err != nil {
		return err
	}
	rest, err := was.restSum()
	if err != nil {
		return err
	}
	if are.head != head.headSum {
		differs(-1, 0, "header or dictionary are not those that were indexed%s", onPurpose)
	}
	if rest != head.restSum {
		differs(-1, indexed.Header.FirstRecord(), "what pads records or lies between them is not as it was indexed%s", onPurpose)
	}
	if are.tail != head.tailSum {
		last := indexed.Header.FirstRecord()
		if n := len(indexed.Records); n > 0 {
			last = indexed.Records[n-1].Off + indexed.Records[n-1].Length
		}
		differs(-1, last, "the end of the file is not the one that was indexed%s", onPurpose)
	}
	s.layouts = head.layouts
	var gone []int
	s.sums, gone = matchSums(s.file.Records, indexed.Records, head.sums)
	for _, i := range gone {
		differs(-1, indexed.Records[i].Off, "here was record %d when the file was indexed%s", i, onPurpose)
	}
	return nil
}

// matchSums gives each of the records the checksums that an index has for the one
// at the same place, and which of the indexed ones are not there. Both are in the
// order of their places.
func matchSums(records, indexed []hipo.RecordHeader, sums []recordSums) (matched []recordSums, gone []int) {
	matched = make([]recordSums, len(records))
	at := 0
	for i := range indexed {
		for at < len(records) && records[at].Off < indexed[i].Off {
			at++
		}
		if at < len(records) && records[at].Off == indexed[i].Off {
			matched[at] = sums[i]
		} else {
			gone = append(gone, i)
		}
	}
	return matched, gone
}

// records reads every record.
func (k *checker) records(ctx context.Context, threads int) error {
	s := k.src
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(threads)
	for r := range s.runs {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error {
			return s.chain.m.withRun(gctx, s, int32(r), reading{}, func(d *decoder, got *fetched) error { return k.record(d, got, r) })
		})
	}
	if err := cmp.Or(g.Wait(), ctx.Err()); err != nil {
		return err
	}
	for _, t := range k.tables {
		if t.err != nil {
			k.fault(t.err)
		}
	}
	return nil
}

// record reads one record whole, and looks whether its banks are whole rows. An
// error says that the file cannot be read.
func (k *checker) record(d *decoder, got *fetched, r int) error {
	s := k.src
	out, err := d.decode(s, int32(r), func(bankID, *hipo.Schema) []bool { return nil }, got, s.chain.m.note)
	if unread(err) {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	bad := err != nil
	if bad {
		k.faults = append(k.faults, err)
		if errors.Is(err, ErrChanged) {
			k.found.Changed = append(k.found.Changed, d.rec.Header.Off)
		}
	} else {
		for i := range out.parts {
			p := &out.parts[i]
			t := k.tables[p.bank]
			if t == nil {
				t = newTable(p, 1) // whose rows nobody asks for
				k.tables[p.bank] = t
			}
			t.add(s, 0, p)
			if err := p.err; err != nil {
				bad = true
				k.faults = append(k.faults, err)
			}
		}
	}
	if bad {
		k.found.DamagedRecords++
		k.found.DamagedEvents += int64(d.rec.Header.Events)
	}
	return nil
}
