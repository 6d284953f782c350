package materialize

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"sync"

	"github.com/hipofs/hipofs/hipo"
)

// bankID numbers the banks of a chain: those of its dictionary in order, then
// the structures without a schema as they are met.
type bankID int32

// maxNodes bounds the kinds of structures without a schema that a chain may have,
// about 1 KiB each. Real files have a few dozen; a hostile one can claim millions.
const maxNodes = 1 << 14

// DictionaryError is a conflict between the dictionaries of two files.
type DictionaryError struct{ Msg string }

func (e *DictionaryError) Error() string { return e.Msg }

// dictionary is the union over the files of a chain.
type dictionary struct {
	schemas []*hipo.Schema // by bankID; not of nodes
	hidden  []bool         // by bankID: left out by --banks
	visible []bankID       // in order
	shown   *BankSet       // of them
	byName  map[string]bankID
	plans   map[[sha256.Size]byte]*plan // by dictionarySum

	patterns []string // of the banks that are visible; nil: all are

	mu     sync.Mutex
	nodes  map[uint32]bankID // group | item << 16
	nodeOf []uint32          // by bankID - len(schemas)
}

// plan is what the dictionary of a file means in its chain. Files with the same
// dictionary share one.
type plan struct {
	dictionary *hipo.Dictionary
	banks      []bankID // visible ones, in the order of this dictionary
	shown      *BankSet // of them
	byID       map[uint32][]planBank
	conflicts  map[bankID]string // banks that this dictionary contradicts itself about
}

// planBank is a bank that a dictionary declares for an id.
type planBank struct {
	id     bankID
	schema *hipo.Schema
	hidden bool
}

// declared are the banks of a (group, item), nil if there is no schema for it.
func (p *plan) declared(group uint16, item uint8) []planBank {
	return p.byID[uint32(group)|uint32(item)<<16]
}

// origin remembers where a schema was first met.
type origin struct {
	file   string
	schema *hipo.Schema
}

// unite fills the union from the files in order and gives each its plan. Only
// banks that match one of the patterns are visible; with no pattern all are.
func (d *dictionary) unite(sources []*source, patterns []string) error {
	most := 0 // banks; a map that grows takes twice its memory
	for _, s := range sources {
		most = max(most, len(s.file.Dictionary.Schemas))
	}
	d.byName = make(map[string]bankID, most)
	d.plans = map[[sha256.Size]byte]*plan{}
	d.nodes = map[uint32]bankID{}
	d.patterns = patterns
	var files []string // of each schema, where it was first met
	byID := make(map[uint32]origin, most)
	seen := map[*hipo.Dictionary]*plan{}
	for _, s := range sources {
		if p := seen[s.file.Dictionary]; p != nil {
			s.plan = p
			continue
		}
		sum := dictionarySum(s.file.Dictionary)
		p := d.plans[sum]
		seen[s.file.Dictionary] = p
		if p == nil {
			p = &plan{dictionary: s.file.Dictionary, byID: make(map[uint32][]planBank, len(s.file.Dictionary.Schemas)), conflicts: map[bankID]string{}}
			d.plans[sum] = p
			seen[s.file.Dictionary] = p
			if err := d.merge(p, s.file.Name, patterns, files, byID); err != nil {
				return err
			}
			for len(files) < len(d.schemas) {
				files = append(files, s.file.Name)
			}
		}
		s.plan = p
		if sameMeaning(p.dictionary, s.file.Dictionary) {
			s.file.Dictionary = p.dictionary
		}
	}
	d.shown = newBankSet(d.schemas, d.visible)
	for _, p := range d.plans {
		p.shown = d.shown
		if !slices.Equal(p.banks, d.visible) {
			p.shown = newBankSet(d.schemas, p.banks)
		}
	}
	return nil
}

// dictionarySum tells dictionaries apart by their schemas.
func dictionarySum(d *hipo.Dictionary) (sum [sha256.Size]byte) {
	h := sha256.New()
	b := bufio.NewWriter(h)
	for _, s := range d.Schemas {
		// Names may hold anything; the lengths keep the text unambiguous.
		fmt.Fprintf(b, "%d %d %d %d:%s", s.Group, s.Item, len(s.Columns), len(s.Name), s.Name)
		for _, c := range s.Columns {
			fmt.Fprintf(b, " %d:%s %c%d", len(c.Name), c.Name, c.Type.Letter, c.Length)
		}
		_ = b.WriteByte('\n')
	}
	_ = b.Flush() // a hash does not fail
	h.Sum(sum[:0])
	return sum
}

// sameMeaning reports whether two dictionaries with the same schemas also have
// the same settings.
func sameMeaning(a, b *hipo.Dictionary) bool {
	if len(a.Config) != len(b.Config) || len(a.TagNames) != len(b.TagNames) || len(a.Dropped) != len(b.Dropped) {
		return false
	}
	for k, v := range a.Config {
		if w, ok := b.Config[k]; !ok || w != v {
			return false
		}
	}
	for k, v := range a.TagNames {
		if w, ok := b.TagNames[k]; !ok || w != v {
			return false
		}
	}
	return true
}

// merge adds the schemas of one file's dictionary to the union, which has been made
// from files, one for each of its schemas.
func (d *dictionary) merge(p *plan, file string, patterns, files []string, byID map[uint32]origin) error {
	for _, s := range p.dictionary.Schemas {
		hidden := !matches(patterns, s.Name)
		id := uint32(s.Group) | uint32(s.Item)<<16
		bank, known := d.byName[s.Name]
		if !known {
			bank = bankID(len(d.schemas))
			d.byName[s.Name] = bank
			d.schemas = append(d.schemas, s)
			d.hidden = append(d.hidden, hidden)
			if !hidden {
				d.visible = append(d.visible, bank)
			}
		}
		if !hidden {
			p.banks = append(p.banks, bank)
			if first := d.schemas[bank]; known && !first.Equal(s) {
				return &DictionaryError{fmt.Sprintf("bank %s differs between files: %s has %v, %s has %v; leave it out with --banks, or mount the files apart",
					s.Name, files[bank], first, file, s)}
			}
			if i := slices.IndexFunc(p.byID[id], func(o planBank) bool { return !o.hidden }); i >= 0 && !p.byID[id][i].schema.SameLayout(s) {
				o := p.byID[id][i]
				why := fmt.Sprintf("%s: the dictionary has two layouts for %d/%d: %v and %v", file, s.Group, s.Item, o.schema, s)
				p.conflicts[bank] = why
				p.conflicts[o.id] = why
			}
			if o, ok := byID[id]; !ok {
				byID[id] = origin{file, s}
			} else if o.file != file && !o.schema.SameLayout(s) {
				return &DictionaryError{fmt.Sprintf("the id %d/%d differs between files: %s has %v, %s has %v; leave one out with --banks, or mount the files apart",
					s.Group, s.Item, o.file, o.schema, file, s)}
			}
		}
		p.byID[id] = append(p.byID[id], planBank{bank, s, hidden})
	}
	return nil
}

// matches reports whether a bank's name matches one of the patterns, which are
// well formed; all names match no patterns.
func matches(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, _ := path.Match(p, name); ok {
			return true
		}
	}
	return len(patterns) == 0
}

// node is the id of the structures without a schema at (group, item).
func (c *Chain) node(group uint16, item uint8) (bankID, error) {
	d := &c.banks
	k := uint32(group) | uint32(item)<<16
	d.mu.Lock()
	defer d.mu.Unlock()
	if id, ok := d.nodes[k]; ok {
		return id, nil
	}
	if len(d.nodes) == maxNodes {
		return 0, fmt.Errorf("more than %d kinds of structures without a schema", maxNodes)
	}
	id := bankID(len(d.schemas) + len(d.nodes))
	d.nodes[k] = id
	d.nodeOf = append(d.nodeOf, k)
	return id, nil
}

// nodeIDs are the (group, item) of a node.
func (c *Chain) nodeIDs(id bankID) (group uint16, item uint8) {
	d := &c.banks
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.nodeOf[int(id)-len(d.schemas)]
	return uint16(k), uint8(k >> 16)
}

// bankName is a bank's name for messages.
func (c *Chain) bankName(id bankID) string {
	if int(id) < len(c.banks.schemas) {
		return "bank " + c.banks.schemas[id].Name
	}
	group, item := c.nodeIDs(id)
	return fmt.Sprintf("structure %d/%d", group, item)
}
