package hipo_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hipofs/hipofs/hipo"
	"github.com/hipofs/hipofs/hipo/hipotest"
)

// A decoded file is every value of it, as hipo_ref.py's sha_rows has them:
// banks of the dictionary under their names, other structures as @GROUP/ITEM.
// It is the plainest use of package hipo, for the tests to compare.
type decoded struct {
	tags   []uint32
	tables map[string]*table
	names  []string // of tables: the dictionary's, then the others in order
}

// table is one bank, composite bank or primitive node in all events.
type table struct {
	columns []hipo.Column
	content [][]byte // by column, end to end, little-endian
	rows    []int64  // by event
	err     error    // why this table alone cannot be had
}

// skipUnderRaceDetector is for tests that are long because they do one thing many
// times, in one goroutine: nothing in them can race.
func skipUnderRaceDetector(t *testing.T) {
	if raceDetector {
		t.Skip("one goroutine, many times")
	}
}

// decode reads all of a file.
func decode(data []byte, o hipo.Options) (*decoded, error) {
	f, err := hipo.NewFile("test.hipo", bytes.NewReader(data), int64(len(data)), o)
	if err != nil {
		return nil, err
	}
	return decodeFile(f, o.Salvage)
}

// decodeFile reads all of an open file; with salvage, all records that can be read.
func decodeFile(f *hipo.File, salvage bool) (*decoded, error) {
	d := &decoded{tables: map[string]*table{}}
	byID := map[[2]int][]*hipo.Schema{}
	for _, s := range f.Dictionary.Schemas {
		d.names = append(d.names, s.Name)
		d.tables[s.Name] = newTable(s.Columns)
		id := [2]int{int(s.Group), int(s.Item)}
		byID[id] = append(byID[id], s)
	}
	fromDictionary := len(d.names)

	var rec hipo.Record
	for i := range f.Records {
		err := f.ReadRecord(i, &rec)
		if err == nil && salvage {
			err = readStreams(&rec) // before anything of the record is kept
		}
		if err == nil {
			err = d.addRecord(&rec, byID)
		}
		if err != nil && !salvage {
			return nil, err
		}
	}
	slices.Sort(d.names[fromDictionary:])
	for _, t := range d.tables {
		t.grow(len(d.tags))
	}
	return d, nil
}

// readStreams reads every stream of a record.
func readStreams(rec *hipo.Record) error {
	for i := range rec.Banks {
		if len(rec.Banks[i].Spans) == 0 {
			continue
		}
		if rec.Columns(i) == 0 {
			if _, err := rec.Data(i); err != nil {
				return err
			}
		}
		for k := range rec.Columns(i) {
			if _, err := rec.Column(i, k); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *decoded) addRecord(rec *hipo.Record, byID map[[2]int][]*hipo.Schema) error {
	first := len(d.tags)
	d.tags = append(d.tags, rec.Tags...)
	for i := range rec.Banks {
		b := &rec.Banks[i]
		if len(b.Spans) == 0 {
			continue
		}
		schemas := byID[[2]int{int(b.Group), int(b.Item)}]
		if n := rec.Columns(i); n > 0 {
			// Stored by column: one array a column for the whole record.
			columns := make([][]byte, n)
			for k := range n {
				c, err := rec.Column(i, k)
				if err != nil {
					return err
				}
				columns[k] = bytes.Clone(c)
			}
			d.addColumns(first, b.Spans, columns, schemas)
			continue
		}
		data, err := rec.Data(i)
		if err != nil {
			return err
		}
		for _, s := range b.Spans {
			raw := data[s.Off : s.Off+s.Len]
			e := first + int(s.Event)
			name := fmt.Sprintf("@%d/%d", b.Group, b.Item)
			switch {
			case s.Format > 0:
				if c := hipo.Composite(string(raw[:s.Format])); len(c.Columns) > 0 {
					d.table(name, c.Columns).addRows(e, raw[s.Format:], c, s.Big)
				}
			case len(schemas) > 0:
				for _, schema := range schemas {
					d.tables[schema.Name].addBank(e, raw, schema, s.Big)
				}
			default:
				p := hipo.Primitive(s.Type)
				d.table(name, p.Columns).addBank(e, raw, p, s.Big)
			}
		}
	}
	return nil
}

// addColumns takes in what a by-column record holds of a bank. Every schema of
// the id reads it, whatever schema it was cut up by.
func (d *decoded) addColumns(first int, spans []hipo.Span, columns [][]byte, schemas []*hipo.Schema) {
	by := schemas[len(schemas)-1]
	row := 0
	for _, s := range spans {
		rows := int(s.Len) / by.RowSize
		var raw []byte
		for k, c := range by.Columns {
			raw = append(raw, columns[k][row*c.Width():(row+rows)*c.Width()]...)
		}
		row += rows
		for _, schema := range schemas {
			d.tables[schema.Name].addBank(first+int(s.Event), raw, schema, false)
		}
	}
}

func newTable(columns []hipo.Column) *table {
	return &table{columns: columns, content: make([][]byte, len(columns))}
}

// table is the table of that name, made if it is new.
func (d *decoded) table(name string, columns []hipo.Column) *table {
	t, ok := d.tables[name]
	if !ok {
		t = newTable(columns)
		d.tables[name] = t
		d.names = append(d.names, name)
	}
	return t
}

// fits checks the bytes of one structure against the rows its layout says and
// against the table, and gives the number of rows.
func (t *table) fits(e int, raw []byte, s *hipo.Schema) (rows int, ok bool) {
	letters := func(columns []hipo.Column) (out []byte) {
		for _, c := range columns {
			out = append(out, c.Type.Letter)
		}
		return out
	}
	switch {
	case len(raw)%s.RowSize != 0:
		t.err = cmpErr(t.err, fmt.Errorf("event %d: %d bytes are not a whole number of %d-byte rows", e, len(raw), s.RowSize))
	case !bytes.Equal(letters(s.Columns), letters(t.columns)):
		t.err = cmpErr(t.err, fmt.Errorf("event %d: the format changes", e))
	default:
		rows, ok = len(raw)/s.RowSize, true
		t.grow(e + 1)
		t.rows[e] = int64(rows)
	}
	return rows, ok
}

// cmpErr keeps the first error.
func cmpErr(first, next error) error {
	if first != nil {
		return first
	}
	return next
}

// grow gives rows a place for each of n events.
func (t *table) grow(n int) {
	for len(t.rows) < n {
		t.rows = append(t.rows, 0)
	}
}

// addBank takes in column-major rows.
func (t *table) addBank(e int, raw []byte, s *hipo.Schema, big bool) {
	rows, ok := t.fits(e, raw, s)
	if !ok {
		return
	}
	for k, c := range s.Columns {
		off, n := c.Span(rows)
		t.content[k] = append(t.content[k], little(raw[off:off+n], c, big)...)
	}
}

// addRows takes in the row-major rows of a composite bank.
func (t *table) addRows(e int, raw []byte, s *hipo.Schema, big bool) {
	rows, ok := t.fits(e, raw, s)
	if !ok {
		return
	}
	for r := range rows {
		for k, c := range s.Columns {
			at := r*s.RowSize + c.Start()
			t.content[k] = append(t.content[k], little(raw[at:at+c.Width()], c, big)...)
		}
	}
}

// little is b with its values in little-endian order.
func little(b []byte, c hipo.Column, big bool) []byte {
	out := bytes.Clone(b)
	if big {
		for v := range slices.Chunk(out, c.Type.Size) {
			slices.Reverse(v)
		}
	}
	return out
}

// offsets are the running sums of rows.
func (t *table) offsets() []byte {
	at := int64(0)
	out := binary.LittleEndian.AppendUint64(nil, 0)
	for _, n := range t.rows {
		at += n
		out = binary.LittleEndian.AppendUint64(out, uint64(at))
	}
	return out
}

// shaRows are the lines of sha_rows. With strict, a table with an error makes
// the whole file one; else the table is left out.
func (d *decoded) shaRows(strict bool) ([]string, error) {
	n := len(d.tags)
	tags, numbers := []byte{}, []byte{}
	for _, tag := range d.tags {
		tags = binary.LittleEndian.AppendUint32(tags, tag)
	}
	for i := range n + 1 {
		numbers = binary.LittleEndian.AppendUint64(numbers, uint64(i))
	}
	out := []string{fmt.Sprintf("@event\ttag\tU\t1\t%d\t%x\t%x", n, sha256.Sum256(tags), sha256.Sum256(numbers))}
	for _, name := range d.names {
		t := d.tables[name]
		if t.err != nil {
			if strict {
				return nil, t.err
			}
			continue
		}
		var rows int64
		for _, n := range t.rows {
			rows += n
		}
		offsets := sha256.Sum256(t.offsets())
		for k, c := range t.columns {
			out = append(out, fmt.Sprintf("%s\t%s\t%c\t%d\t%d\t%x\t%x",
				printable(name), printable(c.Name), c.Type.Letter, c.Length, rows, sha256.Sum256(t.content[k]), offsets))
		}
	}
	return out, nil
}

// printable is a name as Python decodes it: no two tests depend on how many
// replacement characters stand for a run of bytes that is not UTF-8.
func printable(name string) string {
	var b strings.Builder
	for _, r := range name {
		b.WriteRune(r)
	}
	return b.String()
}

// openBytes opens a file that must be right.
func openBytes(t testing.TB, data []byte) *hipo.File {
	t.Helper()
	f, err := hipo.NewFile("test.hipo", bytes.NewReader(data), int64(len(data)), hipo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Events with more structures than are found at once, beside short ones: each
// bank's spans must be in the order of events, the first copy of each.
func TestEventsOfManyStructuresKeepTheirOrder(t *testing.T) {
	const events, kinds = 40, 150
	f := hipotest.File{NoDictionary: true}
	var r hipotest.Record
	for e := range events {
		var ev hipotest.Event
		if e%3 != 0 {
			for copies := range 2 {
				for k := range kinds {
					ev.Structures = append(ev.Structures, hipotest.Node(uint16(k), 7, []int32{int32(1000*e + k + 500*copies)}))
				}
			}
		}
		r.Events = append(r.Events, ev)
	}
	r.Tag = 1
	f.Records = []hipotest.Record{r}
	b := f.Bytes()
	file, err := hipo.NewFile("many", bytes.NewReader(b), int64(len(b)), hipo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var rec hipo.Record
	if err := file.ReadRecord(0, &rec); err != nil {
		t.Fatal(err)
	}
	if len(rec.Banks) != kinds {
		t.Fatalf("%d banks, want %d", len(rec.Banks), kinds)
	}
	for i, bank := range rec.Banks {
		data, err := rec.Data(i)
		if err != nil {
			t.Fatal(err)
		}
		e := 0
		for _, s := range bank.Spans {
			for e%3 == 0 {
				e++
			}
			got := binary.LittleEndian.Uint32(data[s.Off:])
			if int(s.Event) != e || int(got) != 1000*e+int(bank.Group) {
				t.Fatalf("bank %d: event %d with %d, want event %d with %d", bank.Group, s.Event, got, e, 1000*e+int(bank.Group))
			}
			e++
		}
		if want := events - (events+2)/3; len(bank.Spans) != want {
			t.Errorf("bank %d: %d spans, want %d", bank.Group, len(bank.Spans), want)
		}
	}
}

func TestRepeatedStructuresAreThereInTheOrderOfTheFile(t *testing.T) {
	f := hipotest.File{Records: []hipotest.Record{{Tag: 1, Events: []hipotest.Event{
		{},
		{Structures: []hipotest.Structure{
			hipotest.Node(9, 1, []int8{1}), hipotest.Composite(7, 5, "b", []byte{2}), hipotest.Node(9, 1, []int8{3}),
		}},
	}}}}
	b := f.Bytes()
	file, err := hipo.NewFile("repeated", bytes.NewReader(b), int64(len(b)), hipo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var rec hipo.Record
	if err := file.ReadRecord(0, &rec); err != nil {
		t.Fatal(err)
	}
	got := ""
	for s := range rec.Structures(1) {
		got += fmt.Sprintf("%d/%d %q %v; ", s.Group, s.Item, s.Format, s.Data)
	}
	if want := `9/1 "" [1]; 7/5 "b" [2]; 9/1 "" [3]; `; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for s := range rec.Structures(0) {
		t.Errorf("an empty event has %v", s)
	}
}
