// Package heavy has sketches that find heavy hitters and that weir does not use, and weir's own
// behind the same interface, to compare them. They are written to be read, for one process.
package heavy

import (
	"container/heap"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/sketch"
)

// Sketch counts packets. A flow is named by 64 bits that are as good as random, and not 0.
type Sketch interface {
	Count(flow uint64)
	Flows() map[uint64]float64 // the flows that it can name, and their estimated packets
}

// Kind is a kind of sketch. New makes one of the given number of bytes, in which a flow that
// can be named takes slot bytes, for its key and count. Flows of at least threshold packets are wanted.
// Not counted are hash tables and pointers by which slots are found: none for weir's, Elastic
// and CocoSketch.
type Kind struct {
	Name, Source string
	Field        int // bytes of a slot beyond key and count, where it has those of [Slot]
	New          func(bytes, slot int, threshold uint64, seed uint64) (Sketch, error)
}

// Slot is the bytes of a flow that others name as they are published: 8 of key and 8 of count.
// WeirSlot is its size in weir: the key of an IPv6 flow, packets, bytes, and a hash.
const (
	Slot     = 16
	WeirSlot = 72
)

// Kinds are all kinds, weir's first.
var Kinds = []Kind{
	{"weir (trackers)", "filter/sketch; Estan, Varghese, TOCS 2003, sections 3.2 and 3.3; Zhou et al., SIGMOD 2018, section 3", 0, newBank},
	{"count-min, conservative update", "Cormode, Muthukrishnan, J. Algorithms 2005, section 3; Estan, Varghese, section 3.3", 0, newCountMin},
	{"SpaceSaving, count", "Metwally, Agrawal, El Abbadi, ICDT 2005, section 3.1", 0, newSpaceSaving},
	{"SpaceSaving, count − error", "the same: flows that are guaranteed to be heavy", 8, newGuaranteed},
	{"HeavyKeeper", "Gong et al., ATC 2018, sections 3.2 to 3.4", 0, newHeavyKeeper},
	{"Elastic", "Yang et al., SIGCOMM 2018, sections 3.1 and 4.2; its heavy part does not grow here", 0, newElastic},
	{"CocoSketch", "Zhang et al., SIGCOMM 2021, section 4", 0, newCoco},
}

// bank is weir's, as a program in the kernel has it.
type bank struct{ *sketch.Bank }

func newBank(bytes, _ int, threshold, seed uint64) (Sketch, error) {
	t := sketch.Tracker{
		V4:       key.Shape{SrcBits: 32},
		V6:       key.Shape{Fields: key.FieldV6, SrcBits: 128},
		Secret:   hash.NewSecret(hash.Seed{byte(seed)}),
		Geometry: sketch.PlanGeometry(bytes).WithCold(),
	}
	b, err := sketch.NewBank(t, make([]uint64, t.LineWords()), make([]uint64, t.FlowWords()))
	if err != nil {
		return nil, err
	}
	b.Admit(sketch.Threshold{Units: threshold}.Admission(0, 1))
	return bank{b}, nil
}

// Count has the flow for the lower half of a source.
func (b bank) Count(flow uint64) {
	k := key.Key{Shape: b.V6, Dst: netip.IPv6Unspecified()}
	var src [16]byte
	binary.BigEndian.PutUint64(src[8:], flow)
	k.Src = netip.AddrFrom16(src)
	b.CountKey(k, b.Hash(k), 1)
}

func (b bank) Flows() map[uint64]float64 {
	flows := make(map[uint64]float64)
	for f := range b.Bank.Flows() {
		src := f.Key.Src.As16()
		flows[binary.BigEndian.Uint64(src[8:])] = float64(f.Estimate(sketch.Packets))
	}
	return flows
}

// top is the flows with the highest counts, of a fixed number: a heap with the least on top.
type top struct {
	flows  []uint64
	counts []uint64
	at     map[uint64]int // place of a flow in both
	room   int
}

func newTop(room int) *top { return &top{at: make(map[uint64]int), room: max(1, room)} }

func (t *top) Len() int           { return len(t.flows) }
func (t *top) Less(i, j int) bool { return t.counts[i] < t.counts[j] }
func (t *top) Push(any)           {} // put appends
func (t *top) Pop() any           { return nil }

func (t *top) Swap(i, j int) {
	t.flows[i], t.flows[j] = t.flows[j], t.flows[i]
	t.counts[i], t.counts[j] = t.counts[j], t.counts[i]
	t.at[t.flows[i]], t.at[t.flows[j]] = i, j
}

func (t *top) full() bool { return len(t.flows) == t.room }

// least returns the least count, 0 while there is room.
func (t *top) least() uint64 {
	if !t.full() {
		return 0
	}
	return t.counts[0]
}

// put sets the count of a flow. A new one takes the place of the least if there is no other.
func (t *top) put(flow, count uint64) {
	i, ok := t.at[flow]
	switch {
	case ok:
	case t.full():
		i = 0
		delete(t.at, t.flows[0])
	default:
		i = len(t.flows)
		t.flows, t.counts = append(t.flows, flow), append(t.counts, count)
	}
	t.flows[i], t.counts[i], t.at[flow] = flow, count, i
	heap.Fix(t, i)
}

func (t *top) Flows() map[uint64]float64 {
	flows := make(map[uint64]float64, len(t.flows))
	for i, f := range t.flows {
		flows[f] = float64(t.counts[i])
	}
	return flows
}

// countMin is a count-min sketch of four rows with conservative update in half of the memory,
// and the flows with the highest estimates in the other.
type countMin struct {
	*sketch.Sketch[uint32]
	*top
}

func newCountMin(bytes, slot int, _, _ uint64) (Sketch, error) {
	s, err := sketch.New[uint32](sketch.Rows, 4, bytes/2/16)
	if err != nil {
		return nil, err
	}
	return countMin{s, newTop(bytes / 2 / slot)}, nil
}

func (s countMin) Count(flow uint64) {
	if n := s.AddConservative(flow, 1); n > s.least() {
		s.put(flow, n)
	}
}

// spaceSaving counts the flow of a packet, which takes the place and the count of the least if it is new.
type spaceSaving struct{ *top }

func newSpaceSaving(bytes, slot int, _, _ uint64) (Sketch, error) {
	return spaceSaving{newTop(bytes / slot)}, nil
}

func (s spaceSaving) Count(flow uint64) {
	if i, ok := s.at[flow]; ok {
		s.put(flow, s.counts[i]+1)
		return
	}
	s.put(flow, s.least()+1)
}

// guaranteed is SpaceSaving with the error of each count, which is the count of the flow whose place
// was taken: count less error is the least that the flow can have had.
type guaranteed struct {
	spaceSaving
	errors map[uint64]uint64
}

func newGuaranteed(bytes, slot int, _, _ uint64) (Sketch, error) {
	return guaranteed{spaceSaving{newTop(bytes / slot)}, make(map[uint64]uint64)}, nil
}

func (s guaranteed) Count(flow uint64) {
	if _, ok := s.at[flow]; !ok {
		if s.full() {
			delete(s.errors, s.flows[0])
		}
		s.errors[flow] = s.least()
	}
	s.spaceSaving.Count(flow)
}

func (s guaranteed) Flows() map[uint64]float64 {
	flows := s.spaceSaving.Flows()
	for f := range flows {
		flows[f] -= float64(s.errors[f])
	}
	return flows
}

// heavyKeeper has two arrays of a fingerprint of 16 bits and a count of 32, which decays with
// the packets of others: in three quarters of the memory, with the flows of the highest counts
// in the rest.
type heavyKeeper struct {
	*top
	arrays [2][]kept
	r      *rand.Rand
}

type kept struct {
	fingerprint uint16
	count       uint32
}

const (
	keptBytes = 6
	decay     = 1.08 // section 3.2
)

func newHeavyKeeper(bytes, slot int, _, seed uint64) (Sketch, error) {
	s := &heavyKeeper{top: newTop(bytes / 4 / slot), r: rand.New(rand.NewPCG(seed, 1))}
	for i := range s.arrays {
		s.arrays[i] = make([]kept, bytes*3/4/2/keptBytes)
	}
	return s, nil
}

func keeperFingerprint(flow uint64) uint16 { return uint16(hash.Nth(flow, 9)) }

func (s *heavyKeeper) Count(flow uint64) {
	fingerprint, count := keeperFingerprint(flow), uint64(0)
	_, named := s.at[flow]
	for i, array := range s.arrays {
		switch b := &array[hash.Reduce(hash.Nth(flow, uint64(i)), uint32(len(array)))]; {
		case b.count == 0:
			*b = kept{fingerprint, 1}
			count = max(count, 1)
		case b.fingerprint == fingerprint:
			if named || uint64(b.count) <= s.least() || !s.full() {
				b.count++
				count = max(count, uint64(b.count))
			}
		case s.r.Float64() < math.Pow(decay, -float64(b.count)):
			if b.count--; b.count == 0 {
				*b = kept{fingerprint, 1}
				count = max(count, 1)
			}
		}
	}
	if named {
		if count > s.counts[s.at[flow]] {
			s.put(flow, count)
		}
	} else if !s.full() && count > 0 || count == s.least()+1 { // a jump is a collision of fingerprints
		s.put(flow, count)
	}
}

// elastic has a heavy part, in buckets of seven flows with votes against the least of them, in
// a quarter of the memory, and a light part of counters of 8 bits, to which a flow goes that
// is voted out.
type elastic struct {
	heavy []elasticBucket
	light []uint8
}

type elasticBucket struct {
	flows   [7]uint64
	counts  [7]uint32
	shared  [7]bool // part of the flow is in the light part
	against uint32
}

const elasticVotes = 8 // against each of its own, from which on a flow leaves (section 3.1)

func newElastic(bytes, slot int, _, _ uint64) (Sketch, error) {
	heavy := max(1, bytes/4/(7*slot+4))
	return &elastic{make([]elasticBucket, heavy), make([]uint8, bytes-heavy*(7*slot+4))}, nil
}

// faint returns a flow's counter of the light part.
func (s *elastic) faint(flow uint64) *uint8 {
	return &s.light[hash.Reduce(hash.Nth(flow, 1), uint32(len(s.light)))]
}

func (s *elastic) add(flow uint64, n uint32) {
	c := s.faint(flow)
	*c = uint8(min(uint32(*c)+n, math.MaxUint8))
}

func (s *elastic) Count(flow uint64) {
	b := &s.heavy[hash.Reduce(flow, uint32(len(s.heavy)))]
	least := 0
	for i, f := range b.flows {
		if f == flow || f == 0 {
			b.flows[i] = flow
			b.counts[i]++
			return
		}
		if b.counts[i] < b.counts[least] {
			least = i
		}
	}
	if b.against++; b.against < elasticVotes*b.counts[least] {
		s.add(flow, 1)
		return
	}
	s.add(b.flows[least], b.counts[least])
	b.flows[least], b.counts[least], b.shared[least], b.against = flow, 1, true, 0
}

func (s *elastic) Flows() map[uint64]float64 {
	flows := make(map[uint64]float64)
	for _, b := range s.heavy {
		for i, f := range b.flows {
			if f != 0 {
				flows[f] = float64(b.counts[i])
				if b.shared[i] {
					flows[f] += float64(*s.faint(f))
				}
			}
		}
	}
	return flows
}

// coco has two arrays of slots. A packet counts in its flow's slot, or else in the lesser of
// two, whose flow it replaces with a probability that makes all estimates unbiased.
type coco struct {
	arrays [2][]cocoSlot
	r      *rand.Rand
}

type cocoSlot struct {
	flow  uint64
	count uint64
}

func newCoco(bytes, slot int, _, seed uint64) (Sketch, error) {
	s := &coco{r: rand.New(rand.NewPCG(seed, 2))}
	for i := range s.arrays {
		s.arrays[i] = make([]cocoSlot, max(1, bytes/2/slot))
	}
	return s, nil
}

func (s *coco) Count(flow uint64) {
	var least *cocoSlot
	for i, array := range s.arrays {
		slot := &array[hash.Reduce(hash.Nth(flow, uint64(i)), uint32(len(array)))]
		if slot.flow == flow {
			slot.count++
			return
		}
		if least == nil || slot.count < least.count {
			least = slot
		}
	}
	least.count++
	if s.r.Uint64N(least.count) == 0 {
		least.flow = flow
	}
}

func (s *coco) Flows() map[uint64]float64 {
	flows := make(map[uint64]float64)
	for _, array := range s.arrays {
		for _, slot := range array {
			if slot.count > 0 {
				flows[slot.flow] += float64(slot.count)
			}
		}
	}
	return flows
}

// Score is how well a sketch names the flows of at least so many packets.
type Score struct {
	Precision, Recall, F1 float64
	Error                 float64 // mean relative error of those that it finds
}

// Judge compares a sketch with the packets of each flow.
func Judge(s Sketch, truth map[uint64]uint64, threshold uint64) (score Score) {
	var heavy, named, right int
	estimates := s.Flows()
	for flow, n := range truth {
		if n < threshold {
			continue
		}
		heavy++
		if estimate := estimates[flow]; estimate >= float64(threshold) {
			right++
			score.Error += math.Abs(estimate-float64(n)) / float64(n)
		}
	}
	for _, estimate := range estimates {
		if estimate >= float64(threshold) {
			named++
		}
	}
	if right == 0 {
		return Score{}
	}
	score.Error /= float64(right)
	score.Precision, score.Recall = float64(right)/float64(named), float64(right)/float64(heavy)
	score.F1 = 2 * score.Precision * score.Recall / (score.Precision + score.Recall)
	return score
}
