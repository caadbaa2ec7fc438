package membership

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"weir/filter/fpr"
	"weir/filter/key"
)

// Gate says when a shape is asked: always, or only if the packet's source or
// destination is marked. The numbers are those of bpf/marker.h.
type Gate uint32

const (
	GateAlways Gate = 1 << iota // asked for every packet
	GateSrc                     // asked if the source is marked
	GateDst                     // asked if the destination is marked
)

// GatedShape is a shape in use and its gate.
type GatedShape struct {
	key.Shape
	Gate Gate
}

// MaxShapes bounds the shapes of one kind (IPv4 or IPv6, address or tuple).
const MaxShapes = 32

// Prefix lengths of the markers.
const (
	Mark4Bits = 24
	Mark6Bits = 48
)

const mark4Words = 1 << Mark4Bits / 64

// Sizing of the structures.
const (
	// ExactBits of the first line in exact mode, at ExactBitsPerKey: the table
	// confirms, so the cascade needs no second line. A sixth bit would make the
	// rate 0.97 % instead of 1.05 %, and a hit slower by a sixth or more.
	ExactBits       = 5
	ExactBitsPerKey = 10
	// TableFill is the share of slots that are planned to be in use.
	TableFill = 0.88
	// Room for keys that are added in place, as a share and a number. Beyond
	// manyKeys it is in the table only: the cascade has the bits per key that
	// were asked for, and its rate grows by a few percent as the room is used.
	roomShare = 0.03
	roomKeys  = 1024
	manyKeys  = 16 * roomKeys
	// HotFill is the share of the hot table's slots that are planned to be in
	// use, within a factor of √2, since its buckets are a power of two. At the
	// highest, 0.57, one element in 70 finds its bucket full; the coolest of the
	// bucket goes without.
	HotFill = 0.4
)

// Mode says whether a table confirms what the cascade suspects.
type Mode uint8

const (
	Exact       Mode = iota // nothing unlisted matches
	Approximate             // the cascade decides alone; lists are not told apart
)

// String is the mode's name on the command line: exact or approx.
func (m Mode) String() string {
	if m == Approximate {
		return "approx"
	}
	return "exact"
}

// Census says what a set shall hold, before it is built.
type Census struct {
	Keys map[key.Shape]int // number of keys of each shape, after prefix expansion
	// MarkedSrc24 and MarkedDst24 are the networks /24 that IPv4 keys touch, by
	// sources and by destinations; 0 stands for unknown, and for no marker.
	MarkedSrc24, MarkedDst24 int
}

// Total is the number of keys.
func (c Census) Total() int {
	n := 0
	for _, m := range c.Keys {
		n += m
	}
	return n
}

// Layout is the geometry of a set: all that the data plane's program is
// specialised to.
type Layout struct {
	Mode                   Mode
	Seed                   uint64 // secret
	Capacity               int    // keys for which the rates hold
	Lines                  uint32 // of the cascade, 64 bytes each
	First, Rest            int    // bits per key in the first and in the second line
	Buckets                uint32 // of the table, 64 bytes each; 0 in approximate mode
	V4, V4Flow, V6, V6Flow []GatedShape
	Mark4Src, Mark4Dst     bool
	Mark6Lines             uint32
	HotBuckets             uint32 // of the hot table, 64 bytes each; a power of two, or 0: no weights
}

// PlanLayout chooses the geometry for a census. bitsPerKey is that of the
// cascade in approximate mode; exact mode has its own. It fails where more than
// MaxShapes of one kind are in use.
func PlanLayout(c Census, mode Mode, bitsPerKey float64, seed uint64) (Layout, error) {
	l := Layout{Mode: mode, Seed: seed}
	n := c.Total()
	if n == 0 {
		return l, nil
	}
	l.Capacity = n + max(roomKeys, int(roomShare*float64(n)))
	sized := n // the keys that bitsPerKey is meant for
	if n < manyKeys {
		sized = l.Capacity
	}
	if mode == Exact {
		bitsPerKey = ExactBitsPerKey
		l.First = ExactBits
		l.Buckets = uint32(float64(l.Capacity)/(TableFill*BucketSlots)) + 1
	}
	lines := uint64(float64(sized)*bitsPerKey/LineBits) + 1
	if lines > 1<<32-1 {
		return l, fmt.Errorf("membership: %d keys at %g bits need more than 2^32 lines", n, bitsPerKey)
	}
	l.Lines = uint32(lines)
	if mode == Approximate {
		best := fpr.BestCascade(n, l.Lines)
		l.First, l.Rest = best.First, best.Rest
	}
	return l, l.planShapes(c)
}

func (l *Layout) planShapes(c Census) error {
	var gatedSrc6, gatedDst6 int
	for s, n := range c.Keys {
		if n == 0 {
			continue
		}
		g := GatedShape{s, widestGate(s)}
		if s.V6() && g.Gate == GateSrc {
			gatedSrc6++
		}
		if s.V6() && g.Gate == GateDst {
			gatedDst6++
		}
		kind := l.kind(s)
		*kind = append(*kind, g)
	}
	l.Mark4Src = l.pays(c.MarkedSrc24, gated(l.V4, l.V4Flow, GateSrc))
	l.Mark4Dst = l.pays(c.MarkedDst24, gated(l.V4, l.V4Flow, GateDst))
	for _, kind := range [...]*[]GatedShape{&l.V4, &l.V4Flow, &l.V6, &l.V6Flow} {
		if len(*kind) > MaxShapes {
			var names []string
			for _, g := range *kind {
				names = append(names, g.String())
			}
			slices.Sort(names)
			return fmt.Errorf("membership: %d combinations of fields and prefix lengths are in use, the limit is %d for each family: %s",
				len(names), MaxShapes, strings.Join(names, ", "))
		}
		for i := range *kind {
			g := &(*kind)[i]
			src, dst := l.Mark4Src, l.Mark4Dst
			if g.V6() { // the marker costs as much as asking one shape
				src, dst = gatedSrc6 > 1, gatedDst6 > 1
			}
			if g.Gate == GateSrc && !src || g.Gate == GateDst && !dst {
				g.Gate = GateAlways
			}
		}
		// The most specific first: it is what a match is attributed to.
		slices.SortFunc(*kind, func(a, b GatedShape) int {
			if d := int(b.SrcBits) + int(b.DstBits) - int(a.SrcBits) - int(a.DstBits); d != 0 {
				return d
			}
			if d := int(b.Fields) - int(a.Fields); d != 0 {
				return d
			}
			return int(b.SrcBits) - int(a.SrcBits)
		})
	}
	if marked := l.marked6(c); marked > 0 {
		l.Mark6Lines = uint32(float64(marked+roomKeys)*ExactBitsPerKey/LineBits) + 1
	}
	return nil
}

// PlanHot makes room for the weights of n elements; 0 is none.
func (l *Layout) PlanHot(n int) {
	l.HotBuckets = 0
	if n > 0 {
		buckets := math.Exp2(math.Round(math.Log2(float64(n) / (HotFill * BucketSlots))))
		l.HotBuckets = uint32(max(buckets, MinHotBuckets))
	}
}

// widestGate is the gate that a shape can have if its side is marked.
func widestGate(s key.Shape) Gate {
	least := 1 // IPv4 marks a short prefix as all networks that it covers
	if s.V6() {
		least = Mark6Bits
	}
	switch {
	case int(s.SrcBits) >= least:
		return GateSrc
	case int(s.DstBits) >= least:
		return GateDst
	}
	return GateAlways
}

func gated(a, b []GatedShape, g Gate) int {
	n := 0
	for _, s := range slices.Concat(a, b) {
		if s.Gate == g {
			n++
		}
	}
	return n
}

// pays reports whether the bitmap is worth its load for clean traffic: a marked
// packet pays for the marker and for the shapes, and the marker's load costs
// about 0.7 of a shape's. Where memory counts, in approximate mode, a marker
// takes no more than a twentieth on top.
func (l *Layout) pays(marked, shapes int) bool {
	if marked == 0 || shapes == 0 {
		return false
	}
	if l.Mode == Approximate && mark4Words*8*20 > int(l.Lines)*64 {
		return false
	}
	return float64(marked)/(1<<Mark4Bits) < 1-0.7/float64(shapes)
}

// marked6 is the number of keys that are marked at Mark6Bits.
func (l *Layout) marked6(c Census) int {
	n := 0
	for _, g := range slices.Concat(l.V6, l.V6Flow) {
		if g.Gate != GateAlways {
			n += c.Keys[g.Shape]
		}
	}
	return n
}

func (l *Layout) kind(s key.Shape) *[]GatedShape {
	switch {
	case s.V6() && s.Tuple():
		return &l.V6Flow
	case s.V6():
		return &l.V6
	case s.Tuple():
		return &l.V4Flow
	}
	return &l.V4
}

func (l *Layout) gate(s key.Shape) (Gate, bool) {
	for _, g := range *l.kind(s) {
		if g.Shape == s {
			return g.Gate, true
		}
	}
	return 0, false
}

// Gates is the union of the gates of the shapes of a family.
func (l *Layout) Gates(v6 bool) Gate {
	shapes := slices.Concat(l.V4, l.V4Flow)
	if v6 {
		shapes = slices.Concat(l.V6, l.V6Flow)
	}
	var g Gate
	for _, s := range shapes {
		g |= s.Gate
	}
	return g
}

// Mark4Sides is the number of sides for which the IPv4 bitmap has room:
// 0, 1 (sources) or 2. The destinations' bitmap always follows the sources'.
func (l *Layout) Mark4Sides() int {
	switch {
	case l.Mark4Dst:
		return 2
	case l.Mark4Src:
		return 1
	}
	return 0
}

// Memory is where a set's structures lie: slices of exactly the sizes that the
// layout asks for, zero before a set is built over them. In the daemon they
// are the kernel's own maps.
type Memory struct {
	Lines   []uint64 // LineWords for each line
	Buckets []uint64 // BucketSlots for each bucket
	Marks4  []uint64 // a bit for each /24, for each side
	Marks6  []uint64 // LineWords for each line
	Hot     []uint64 // BucketSlots for each bucket
}

// Alloc makes memory for the layout on the heap.
func (l *Layout) Alloc() Memory {
	return Memory{
		Lines:   make([]uint64, int(l.Lines)*LineWords),
		Buckets: make([]uint64, int(l.Buckets)*BucketSlots),
		Marks4:  make([]uint64, l.Mark4Sides()*mark4Words),
		Marks6:  make([]uint64, int(l.Mark6Lines)*LineWords),
		Hot:     make([]uint64, int(l.HotBuckets)*BucketSlots),
	}
}

// Bytes is the size of the layout's memory.
func (l *Layout) Bytes() int {
	return 8 * (int(l.Lines)*LineWords + int(l.Buckets)*BucketSlots +
		l.Mark4Sides()*mark4Words + int(l.Mark6Lines)*LineWords + int(l.HotBuckets)*BucketSlots)
}

// FalsePositiveRate predicts the rate at which the cascade passes a key that
// is not among n present ones. In approximate mode that is the set's rate; in
// exact mode the table confirms what passes.
func (l *Layout) FalsePositiveRate(n int) float64 { return l.HotFalsePositiveRate(n, 0) }

// HotFalsePositiveRate is the FalsePositiveRate of a key with so many extra
// bits, where the n present ones have none.
func (l *Layout) HotFalsePositiveRate(n, extra int) float64 {
	if l.Lines == 0 {
		return 0
	}
	c := fpr.CascadeLayout{Lines: l.Lines, First: l.First, Rest: l.Rest + extra}
	return c.RateAmong(fpr.Members{Keys: n, Rest: l.Rest})
}
