package membership

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"weir/filter/cascade"
	"weir/filter/cuckoo"
	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/filter/key"
)

// Gate is the condition under which a shape is looked up: always, or only if
// the packet's source or destination is marked. The numbers are from
// bpf/marker.h.
type Gate uint32

const (
	GateAlways Gate = 1 << iota // looked up for every packet
	GateSrc                     // looked up if the source is marked
	GateDst                     // looked up if the destination is marked
)

// GatedShape is a shape in use and its gate.
type GatedShape struct {
	key.Shape
	Gate Gate
}

// MaxShapes is the maximum number of shapes of one kind (IPv4 or IPv6, address
// or tuple).
const MaxShapes = 32

// Prefix lengths of the markers.
const (
	mark4Bits = 24
	Mark6Bits = 48
)

const mark4Words = 1 << mark4Bits / 64

// Sizing of the structures.
const (
	// ExactBits is the number of bits of the first line in exact mode, at
	// ExactBitsPerKey: the table confirms, so the cascade needs no second line.
	// A sixth bit would lower the rate from 1.05 % to 0.97 % and slow down a
	// hit by a sixth or more.
	ExactBits       = 5
	ExactBitsPerKey = 10
	// TableFill is the planned fraction of slots in use.
	TableFill = cuckoo.Fill
	// Spare capacity for keys that are added in place, as a fraction and as a
	// number. Beyond manyKeys only the table has spare capacity: the cascade
	// has the requested bits per key, and its rate grows by a few percent as
	// the spare capacity is used.
	roomShare = 0.03
	roomKeys  = 1024
	mostRoom  = 1 << 18
	manyKeys  = 16 * roomKeys
	// HotFill is the planned fraction of the hot table's slots in use, within a
	// factor of √2, since its number of buckets is a power of two. At the
	// highest, 0.57, one element in 70 finds its bucket full, and the coolest
	// of the bucket gets no weight.
	HotFill = 0.4
)

// Mode selects whether a table confirms the positives of the cascade.
type Mode uint8

const (
	Exact       Mode = iota // nothing unlisted matches
	Approximate             // the cascade alone decides; lists are not distinguished
)

// String returns the mode's name on the command line: exact or approx.
func (m Mode) String() string {
	if m == Approximate {
		return "approx"
	}
	return "exact"
}

// MarshalText returns the mode's name.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText sets the mode by its name.
func (m *Mode) UnmarshalText(text []byte) error {
	switch string(text) {
	case "exact":
		*m = Exact
	case "approx":
		*m = Approximate
	default:
		return fmt.Errorf("unknown mode %q: want exact or approx", text)
	}
	return nil
}

// Census counts the keys of a set before it is built.
type Census struct {
	Keys map[key.Shape]int // number of keys of each shape, after prefix expansion
	// Highest is the highest list number that prefixes may have; 0 counts as 1.
	Highest uint16
	// NearCache is the size in bytes of the cache that a CPU has for itself; 0 is
	// unknown.
	NearCache int
	// MarkedSrc24 and MarkedDst24 are the numbers of /24 networks that IPv4
	// keys cover by source and by destination; 0 means unknown, and plans no
	// marker.
	MarkedSrc24, MarkedDst24 int
	// Prefixes are the prefixes of an exact set, for which a directory may be planned.
	Prefixes []iter.Seq[Prefix]
}

// Layout is the geometry of a set, to which the data plane's program is
// specialised.
type Layout struct {
	Mode                   Mode
	Secret                 *hash.Secret
	Prefixes               PrefixLayout
	Directory              DirectoryLayout
	Reach                  ReachLayout
	Capacity               int    // keys of cascade and table for which the rates are planned
	Lines                  uint32 // of the cascade, 64 bytes each
	First, Rest            int    // bits per key in the first line and in further ones
	Buckets                uint32 // of the table, 64 bytes each; 0 in approximate mode
	V4, V4Flow, V6, V6Flow []GatedShape
	Mark4Src, Mark4Dst     bool
	Mark6Lines             uint32
	HotBuckets             uint32 // of the hot table, 64 bytes each; a power of two, or 0: no weights
	Classes                Classes
	ClassFactor            uint32       // places networks in classes: odd, secret
	ClassShares            []ClassShare // for predictions
	Sightings              *Sightings   // that the plan of the classes had
}

// Planned returns the number of keys that there is room for, as planned.
func (l *Layout) Planned() int { return l.Capacity + l.Prefixes.Capacity }

// withRoom returns the number of keys to plan for if there are n now.
func withRoom(n int) int { return n + max(roomKeys, min(int(roomShare*float64(n)), mostRoom)) }

// PlanLayout returns the geometry for a census. bitsPerKey is the size of the
// cascade in approximate mode; exact mode has its own. It fails if more than
// MaxShapes of one kind are in use.
func PlanLayout(c Census, mode Mode, bitsPerKey float64, secret *hash.Secret) (Layout, error) {
	l := Layout{Mode: mode, Secret: secret}
	if mode == Approximate && secret != nil {
		l.ClassFactor = classFactor(secret)
	}
	l.planPrefixes(c)
	if err := l.planHashed(c, bitsPerKey); err != nil {
		return l, err
	}
	if err := l.planShapes(c); err != nil {
		return l, err
	}
	l.planDirectory(c)
	return l, nil
}

// planHashed plans cascade and table.
func (l *Layout) planHashed(c Census, bitsPerKey float64) error {
	n := 0
	for s, keys := range c.Keys {
		if l.Hashed(s) {
			n += keys
		}
	}
	if n == 0 {
		return nil
	}
	l.Capacity = withRoom(n)
	sized := n // the keys to which bitsPerKey applies
	if n < manyKeys {
		sized = l.Capacity
	}
	if l.Mode == Exact {
		bitsPerKey = ExactBitsPerKey
		l.First = ExactBits
		l.Buckets = uint32(float64(l.Capacity)/(TableFill*BucketSlots)) + 1
	}
	lines := uint64(float64(sized)*bitsPerKey/cascade.LineBits) + 1
	if lines > 1<<32-1 {
		return fmt.Errorf("membership: %d keys at %g bits need more than 2^32 lines", n, bitsPerKey)
	}
	l.Lines = uint32(lines)
	if l.Mode == Approximate {
		best := fpr.BestCascade(n, l.Lines, fpr.MaxFurther)
		l.First, l.Rest = best.First, best.Rest
	}
	return nil
}

func (l *Layout) planShapes(c Census) error {
	var gatedSrc6, gatedDst6 int
	for s, n := range c.Keys {
		if n == 0 {
			continue
		}
		g := GatedShape{s, GateAlways}
		if l.Hashed(s) {
			g.Gate = widestGate(s)
		}
		if s.V6() && g.Gate == GateSrc {
			gatedSrc6++
		}
		if s.V6() && g.Gate == GateDst {
			gatedDst6++
		}
		kind := l.kind(s)
		*kind = append(*kind, g)
	}
	l.Mark4Src = l.pays(c.MarkedSrc24, gated(l.V4, l.V4Flow, GateSrc), c.NearCache)
	l.Mark4Dst = l.pays(c.MarkedDst24, gated(l.V4, l.V4Flow, GateDst), c.NearCache)
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
			if g.V6() { // the marker costs as much as one shape
				src, dst = gatedSrc6 > 1, gatedDst6 > 1
			}
			if g.Gate == GateSrc && !src || g.Gate == GateDst && !dst {
				g.Gate = GateAlways
			}
		}
		// The most specific shape comes first: a match is attributed to it.
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
		l.Mark6Lines = uint32(float64(marked+roomKeys)*ExactBitsPerKey/cascade.LineBits) + 1
	}
	return nil
}

// PlanHot reserves room for the weights of n elements, possibly 0.
func (l *Layout) PlanHot(n int) {
	l.HotBuckets = 0
	if n > 0 && l.Lines > 0 {
		buckets := math.Exp2(math.Round(math.Log2(float64(n) / (HotFill * BucketSlots))))
		l.HotBuckets = uint32(max(buckets, MinHotBuckets))
	}
}

// widestGate returns the gate that a shape can have if its side is marked.
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

// pays reports whether a marker speeds up clean traffic: a marked packet pays
// for the marker and for the shapes, and loading the marker costs about 0.7 of
// a shape, or 4 if the lines fit the near cache and the marker does not. If memory is scarce, in approximate mode, a marker must not add more
// than a twentieth.
func (l *Layout) pays(marked, shapes, near int) bool {
	if marked == 0 || shapes == 0 {
		return false
	}
	if l.Mode == Approximate && mark4Words*8*20 > int(l.Lines)*64 {
		return false
	}
	cost := 0.7
	if 8*mark4Words > near && int(l.Lines)*64 <= near {
		cost = 4
	}
	return float64(marked)/(1<<mark4Bits) < 1-cost/float64(shapes)
}

// marked6 returns the number of keys that are marked at Mark6Bits.
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

// Gates returns the union of the gates of a family's shapes in the cascade.
func (l *Layout) Gates(v6 bool) Gate {
	shapes := slices.Concat(l.V4, l.V4Flow)
	if v6 {
		shapes = slices.Concat(l.V6, l.V6Flow)
	}
	var g Gate
	for _, s := range shapes {
		if l.Hashed(s.Shape) {
			g |= s.Gate
		}
	}
	return g
}

// mark4Sides returns the number of sides in the IPv4 bitmap: 0, 1 (sources) or
// 2. The destinations' bitmap follows the sources'.
func (l *Layout) mark4Sides() int {
	switch {
	case l.Mark4Dst:
		return 2
	case l.Mark4Src:
		return 1
	}
	return 0
}

// Memory contains a set's structures: slices of exactly the sizes of the
// layout, zero before a set is built over them. In the daemon they are kernel
// maps.
type Memory struct {
	Lines   []uint64 // LineWords for each line
	Buckets []uint64 // BucketSlots for each bucket
	Marks4  []uint64 // a bit for each /24, for each side
	Marks6  []uint64 // LineWords for each line
	Hot     []uint64 // BucketSlots for each bucket

	Prefixes []uint64 // LineWords for each line of the prefix table
	Spill    []uint64 // BucketSlots for each bucket of its spill
	Front    []uint64 // words of its front

	Directory []uint64 // words of the directory of prefixes

	Reach []uint64 // words of the reach
}

// Alloc returns memory for the layout on the heap.
func (l *Layout) Alloc() Memory {
	return Memory{
		Lines:   make([]uint64, int(l.Lines)*cascade.LineWords),
		Buckets: make([]uint64, int(l.Buckets)*BucketSlots),
		Marks4:  make([]uint64, l.mark4Sides()*mark4Words),
		Marks6:  make([]uint64, int(l.Mark6Lines)*cascade.LineWords),
		Hot:     make([]uint64, int(l.HotBuckets)*BucketSlots),

		Prefixes: make([]uint64, l.Prefixes.Lines*cascade.LineWords),
		Spill:    make([]uint64, l.Prefixes.Buckets*BucketSlots),
		Front:    make([]uint64, l.Prefixes.Front),

		Directory: make([]uint64, l.Directory.Words()),

		Reach: make([]uint64, l.Reach.Words()),
	}
}

// Bytes returns the size of the layout's memory.
func (l *Layout) Bytes() int {
	return l.Prefixes.Bytes() + 8*(int(l.Lines)*cascade.LineWords+int(l.Buckets)*BucketSlots+
		l.mark4Sides()*mark4Words+int(l.Mark6Lines)*cascade.LineWords+int(l.HotBuckets)*BucketSlots+l.Directory.Words()+l.Reach.Words())
}

// CounterBytes returns the size of the counters by which keys are deleted from the cascade,
// 4 bits for each of its bits. They are in the memory of the process that changes the set.
func (l *Layout) CounterBytes() int { return int(l.Lines) * cascade.LineBits / 2 }

// FalsePositiveRate returns the predicted rate at which the cascade passes a
// key that is none of the n present ones. In approximate mode that is the set's
// rate; in exact mode the table confirms what passes. With classes it is the mean
// over the elements that were known when these were planned.
func (l *Layout) FalsePositiveRate(n int) (rate float64) {
	if l.Lines == 0 {
		return 0
	}
	shares := l.classShares()
	rests := make([]int, len(shares))
	for i, s := range shares {
		rests[i] = l.Rest + s.Extra
	}
	for i, r := range l.cascade(0).RatesAmong(rests, l.members(n)...) {
		rate += shares[i].Predicted * r
	}
	return rate
}

// HotFalsePositiveRate is like [Layout.FalsePositiveRate], for a key with extra
// bits, its class's included, among n present ones that have none but their class's.
func (l *Layout) HotFalsePositiveRate(n, extra int) float64 {
	if l.Lines == 0 {
		return 0
	}
	return l.cascade(extra).RateAmong(l.members(n)...)
}

// ClassRates returns the [Layout.HotFalsePositiveRate] of keys with each number of extra bits.
func (l *Layout) ClassRates(n int) []float64 {
	rests := make([]int, MaxExtra+1)
	for extra := range rests {
		rests[extra] = l.Rest + extra
	}
	if l.Lines == 0 {
		return make([]float64, len(rests))
	}
	return l.cascade(0).RatesAmong(rests, l.members(n)...)
}

func (l *Layout) cascade(extra int) fpr.CascadeLayout {
	return fpr.CascadeLayout{Lines: l.Lines, First: l.First, Rest: l.Rest + extra}
}

// members returns n keys, by their bits.
func (l *Layout) members(n int) (all []fpr.Members) {
	for _, s := range l.classShares() {
		all = append(all, fpr.Members{Keys: int(math.Round(s.Listed * float64(n))), Rest: l.Rest + s.Extra})
	}
	return all
}

// classShares returns the shares of the classes; without classes, one of all keys.
func (l *Layout) classShares() []ClassShare {
	if l.ClassShares == nil {
		return []ClassShare{{Listed: 1, Elements: 1, Predicted: 1}}
	}
	return l.ClassShares
}
