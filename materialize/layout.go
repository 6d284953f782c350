package materialize

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/hipofs/hipofs/hipo"
)

// splitLayout says which streams split records have, six bytes a bank, in the
// order of the directory: group, item, whether it is composite, how many columns
// are stored apart. Most records of a file have the same.
type splitLayout string

const layoutEntry = 6

func layoutOf(d *hipo.Directory) splitLayout {
	var b []byte
	for i := range d.Banks {
		bank := &d.Banks[i]
		b = binary.LittleEndian.AppendUint16(b, bank.Group)
		composite := byte(0)
		if bank.Format {
			composite = 1
		}
		b = append(b, bank.Item, composite)
		b = binary.LittleEndian.AppendUint16(b, uint16(bank.Columns))
	}
	return splitLayout(b)
}

// A file whose records differ more than this from each other is not known by its
// layouts: noLayout is that of the others.
const (
	mostLayouts = 256
	noLayout    = math.MaxUint32
)

// addLayout gives the place of a layout in a list, which it is added to.
func addLayout(list *[]splitLayout, l splitLayout) uint32 {
	i := slices.Index(*list, l)
	if i < 0 && len(*list) < mostLayouts {
		i = len(*list)
		*list = append(*list, l)
	}
	if i < 0 {
		return noLayout
	}
	return uint32(i)
}

// bank is bank i of the layout, and how many streams it has.
func (l splitLayout) bank(i int) (b hipo.DirectoryBank, streams int) {
	e := l[i*layoutEntry:]
	b.Group, b.Item, b.Format = uint16(e[0])|uint16(e[1])<<8, e[2], e[3] != 0
	b.Columns = int(e[4]) | int(e[5])<<8
	return b, max(1, b.Columns)
}

func (l splitLayout) banks() int { return len(l) / layoutEntry }

// find gives a bank of the layout, and the number of its first stream.
func (l splitLayout) find(group uint16, item uint8) (b hipo.DirectoryBank, ok bool) {
	stream := 0
	for i := range l.banks() {
		b, n := l.bank(i)
		if b.Group == group && b.Item == item {
			b.Stream = stream
			return b, true
		}
		stream += n
	}
	return hipo.DirectoryBank{}, false
}

func (l splitLayout) streams() (n int) {
	for i := range l.banks() {
		_, streams := l.bank(i)
		n += streams
	}
	return n
}

// fits says whether what an index has about a split record's streams can be so.
func (r *recordSums) fits(h *hipo.RecordHeader, layouts []splitLayout) bool {
	if !h.Split() {
		return false
	}
	if r.layout != noLayout {
		if int64(r.layout) >= int64(len(layouts)) {
			return false
		}
		if l := layouts[r.layout]; len(l)%layoutEntry != 0 || l.streams() != len(r.streams) {
			return false
		}
	}
	end := int64(r.head)
	for i := range r.streams {
		end += int64(r.streams[i].length)
	}
	return end == h.Length-h.Padding()
}
