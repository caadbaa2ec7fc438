package quotient

import (
	"fmt"
	"math"
	"math/bits"
)

const (
	lineWords   = 8 // 64-bit words in a line of 64 bytes
	bucketSlots = 8 // 64-bit slots in a bucket of the spill
	// spilled is the bit of a word that sends lookups of keys whose first word it
	// is to the spill.
	spilled = 1 << 63

	// MaxList is the highest list number that any layout has room for.
	MaxList                = math.MaxUint16
	MinKeyBits, MaxKeyBits = 32, 34
	// maxLines keeps the product of an image and a number of words within 64 bits.
	maxLines = 1 << 27
)

// width is a way of dividing the lower 63 bits of a word into lanes.
type width struct {
	bits, lanes int
	// fill is the share of lanes that Plan expects to be in use. inSpill is the
	// share of entries that are then in the spill, as TestInSpill measures it.
	fill, inSpill float64
}

var widths = [...]width{
	{bits: 63, lanes: 1, fill: 0.55, inSpill: 0.051},
	{bits: 31, lanes: 2, fill: 0.75, inSpill: 0.034},
	{bits: 21, lanes: 3, fill: 0.75, inSpill: 0.0138},
	{bits: 15, lanes: 4, fill: 0.78, inSpill: 0.0098},
	{bits: 12, lanes: 5, fill: 0.75, inSpill: 0.0036},
}

// Layout is the geometry of a set. Its zero value is not valid.
type Layout struct {
	KeyBits  int // MinKeyBits … MaxKeyBits
	LaneBits int // 63, 31, 21, 15 or 12
	Lines    int // of 64 bytes
	Buckets  int // of the spill, 64 bytes each; at least 2
	Front    int // words of the front; 0: none
}

// frontBits is the size of the front, in bits for each entry. One absent key in ten
// passes it.
const frontBits = 5

// WithFront returns the layout with a front for a number of entries.
func (l Layout) WithFront(entries int) Layout {
	l.Front = entries*frontBits/64 + 1
	return l
}

// Plan returns the smallest layout for a number of entries, of which the highest
// list number is highest.
func Plan(keyBits, entries int, highest uint16) Layout {
	var best Layout
	for _, w := range widths {
		if l := w.plan(keyBits, max(entries, 0), max(highest, 1)); best.Lines == 0 || l.Bytes() < best.Bytes() {
			best = l
		}
	}
	return best
}

func (w width) plan(keyBits, entries int, highest uint16) Layout {
	n := float64(entries)
	lines := max(int(math.Ceil(n/(lineWords*float64(w.lanes)*w.fill))), 1)
	// As many lines at least as leave room for the list number and the bit of a second
	// word beside the remainder, with eight words each.
	lines = max(lines, 1<<max(keyBits-w.bits+bits.Len16(highest)+1-3, 0))
	return Layout{KeyBits: keyBits, LaneBits: w.bits, Lines: lines, Buckets: w.buckets(n)}
}

// buckets returns the size of the spill for n entries: room for six standard
// deviations more than expected, at five slots a bucket. At that load one entry in
// 10,000 finds both of its buckets full and another goes to the spill instead. One in some
// millions has none of these either, for which Fill moves a slot.
func (w width) buckets(n float64) int {
	const load = 5
	inSpill := n * w.inSpill
	return 2 + int(math.Ceil((inSpill+6*math.Sqrt(inSpill))/load))
}

// Repeat returns a value of one lane in each lane of a word.
func (l Layout) Repeat(v uint64) (word uint64) {
	w, _ := l.width()
	for i := range w.lanes {
		word |= v << (i * w.bits)
	}
	return word
}

// Cut returns a secret's bits that count for keys of this length.
func (l Layout) Cut(s Secret) Secret {
	mask := uint64(1)<<l.KeyBits - 1
	return Secret{s.Xor & mask, [3]uint64{s.Mul[0] & mask, s.Mul[1] & mask, s.Mul[2] & mask}}
}

func (l Layout) width() (width, bool) {
	for _, w := range widths {
		if w.bits == l.LaneBits {
			return w, true
		}
	}
	return width{}, false
}

// Words returns the number of words in all lines.
func (l Layout) Words() int { return l.Lines * lineWords }

// InSecond is the bit of a lane that says that its entry is in its second word. Those below it
// store the remainder.
func (l Layout) InSecond() uint64 {
	words := uint64(l.Words())
	return 1 << bits.Len64((1<<l.KeyBits+words-1)/words-1)
}

// ListBit returns the lowest bit of a lane that stores the list number.
func (l Layout) ListBit() int { return bits.Len64(l.InSecond()) }

// MaxList returns the highest list number that fits into a lane.
func (l Layout) MaxList() uint16 {
	return uint16(min(1<<min(l.LaneBits-l.ListBit(), 16)-1, MaxList))
}

// Bytes returns the memory of lines, spill and front.
func (l Layout) Bytes() int { return 64*(l.Lines+l.Buckets) + 8*l.Front }

func (l Layout) validate() error {
	if l.KeyBits < MinKeyBits || l.KeyBits > MaxKeyBits {
		return fmt.Errorf("quotient: keys of %d bits: want %d to %d", l.KeyBits, MinKeyBits, MaxKeyBits)
	}
	if _, ok := l.width(); !ok {
		return fmt.Errorf("quotient: lanes of %d bits: want 63, 31, 21, 15 or 12", l.LaneBits)
	}
	if l.Lines < 1 || l.Lines > maxLines {
		return fmt.Errorf("quotient: %d lines: want 1 to %d", l.Lines, maxLines)
	}
	if l.Buckets < 2 || l.Buckets > maxLines {
		return fmt.Errorf("quotient: %d buckets: want 2 to %d", l.Buckets, maxLines)
	}
	if l.Front < 0 || l.Front > maxLines {
		return fmt.Errorf("quotient: front of %d words: want 0 to %d", l.Front, maxLines)
	}
	if r := l.ListBit() - 1; r+1 >= l.LaneBits {
		return fmt.Errorf("quotient: %d lines leave remainders of %d bits: too long for lanes of %d bits", l.Lines, r, l.LaneBits)
	}
	return nil
}
