package sketch

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"math/bits"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"weir/filter/hash"
	"weir/filter/key"
)

// Bank counts the flows of a [Tracker] on one CPU in one interval. It is Estan
// and Varghese's parallel multistage filter with conservative update, flow
// memory and shielding (sections 3.2 and 3.3 of their paper): a flow whose
// estimate reaches the limit enters the flow memory, where it is counted
// exactly, and no longer raises the sketch. Only the part before that can be
// overestimated, by less than the limit if the flow entered as soon as it
// reached it.
//
// Before both there may be a cold filter, a first stage of small counters (Zhou et al., Cold
// Filter, SIGMOD 2018, section 3): a packet whose flow's counter there stays within a few steps
// raises nothing else. All packets of a flow raise its counter, so that no more of them than it
// shows are in the cold filter alone, and the estimate is the sum of both stages.
//
// A flow with at least the limit when one of its packets arrives stays in the
// memory unless a larger one replaces it. A replaced flow continues in the
// sketch, as does a flow whose bucket contains only larger ones; Denied counts
// both. The memory also contains lighter flows.
//
// Its memory may be kernel memory in which a program counts: everything but
// Count, CountKey, Keep and Reset may be called meanwhile.
type Bank struct {
	Tracker
	head    *head
	sketch  *Sketch[uint32]
	cold    []uint8 // nil: no cold filter
	buckets []bucket
}

// head is the first line of a bank.
type head struct {
	packets, bytes uint64        // total counted
	denied         uint64        // packets for which a flow at the limit had no room in the memory
	admit          uint64        // the limit's floor, in units
	share          uint32        // the limit as a fraction of the units counted so far, times 2³²; at most 2³¹
	skip           uint16        // steps of a flow that the cold filter counts
	most           uint16        // the largest number that skip can have
	spare          uint64        // a lower limit while there is room to spare, in units
	began          atomic.Uint64 // see Begin; 0: unknown
	step           uint64        // see SetStep: its power of 2 plus 1; 0: none
}

// bucket is a bucket of the flow memory. Its slots are filled from the first
// on.
type bucket struct {
	tags   [slots / 4]uint64 // four in a word, the first in its lowest bits; 0 is an empty slot
	before [slots]uint32
	_      [4]uint32
	flows  [slots]entry
}

type entry struct {
	packets, bytes, hash uint64
	key                  [keyWords]uint64 // serialised, read in little-endian order
}

// tagUsed is set in the tag of a used slot. The other bits are of its flow's hash.
const tagUsed = 1 << 15

func tagOf(h uint64) uint64 { return h>>32&(tagUsed-1) | tagUsed }

// tag returns the tag of a slot.
func (b *bucket) tag(slot int) uint64 {
	return atomic.LoadUint64(&b.tags[slot/4]) >> (16 * (slot % 4)) & 0xffff
}

func (b *bucket) setTag(slot int, tag uint64) {
	word, shift := &b.tags[slot/4], 16*(slot%4)
	atomic.StoreUint64(word, *word&^(0xffff<<shift)|tag<<shift)
}

// hash returns the hash of the flow in a slot, 0 if it is empty.
func (b *bucket) hash(slot int) uint64 {
	tag, h := b.tag(slot), atomic.LoadUint64(&b.flows[slot].hash)
	if tag != tagOf(h) {
		return 0 // or being written
	}
	return h
}

// maxLimit bounds the limit, so that 32-bit counters, which saturate above it,
// can always reach it.
const maxLimit = 1 << 31

// NewBank returns a bank over memory of the geometry's sizes: lines for the
// head and the sketch, flows for the flow memory. It must be zero, or that of a
// bank of the same tracker. NewBank fails if the tracker is invalid or the
// sizes differ.
func NewBank(t Tracker, lines, flows []uint64) (*Bank, error) {
	if err := t.validate(); err != nil {
		return nil, err
	}
	if len(lines) != t.LineWords() || len(flows) != t.FlowWords() {
		return nil, fmt.Errorf("sketch: memory of %d and %d words for %d lines and %d buckets, want %d and %d",
			len(lines), len(flows), t.Lines, t.Buckets, t.LineWords(), t.FlowWords())
	}
	counters := unsafe.Slice((*uint32)(unsafe.Pointer(&lines[lineWords])), 2*int(t.Lines)*lineWords)
	s, err := Over(TwoLines, sketchRows, counters)
	if err != nil {
		return nil, err
	}
	return &Bank{
		Tracker: t,
		head:    (*head)(unsafe.Pointer(&lines[0])),
		sketch:  s,
		cold:    unsafe.Slice((*uint8)(unsafe.Pointer(unsafe.SliceData(lines[(1+int(t.Lines))*lineWords:]))), int(t.Cold)*lineBytes),
		buckets: unsafe.Slice((*bucket)(unsafe.Pointer(&flows[0])), t.Buckets),
	}, nil
}

// coldFull is a counter of the cold filter that nothing may raise: one of its flows is in the
// memory, or was.
const coldFull = 255

// coldStep is the size of a step of the cold filter in the unit, as a power of 2.
func (b *Bank) coldStep() int {
	if b.Unit == Bytes {
		return 9
	}
	return 0
}

// coldAt returns the counter of a key in the cold filter, nil if there is none.
func (b *Bank) coldAt(k key.Key) *uint8 {
	if len(b.cold) == 0 {
		return nil
	}
	return &b.cold[b.coldIndex(k)]
}

// coldIndex hashes the 32-bit words of the key, but for the first where it is the same for all
// of a family, by a multilinear hash (Thorup, High Speed Hashing for Integers and Strings,
// section 3.5). What an attacker could gain by collisions is that packets take longer.
func (b *Bank) coldIndex(k key.Key) uint64 {
	var buf [key.MaxLen]byte
	n := len(k.Append(buf[:0]))
	var z uint64
	for i := range (n + 3) / 4 {
		if i > 0 || b.V4.Tuple() {
			z += uint64(binary.LittleEndian.Uint32(buf[4*i:])) * b.Secret.Pairs[i/2][i%2]
		}
	}
	return z >> b.ColdShift()
}

// coldUnits returns the units that a flow with this counter, which may be nil, may have in the cold
// filter.
func (b *Bank) coldUnits(counter *uint8) uint32 {
	if counter == nil {
		return 0
	}
	return uint32(min(uint16(*counter), b.head.most)) << b.coldStep()
}

// countCold counts a packet in the cold filter, and reports false if its flow has had enough there.
func (b *Bank) countCold(counter *uint8, length uint64) bool {
	n := uint64(1)
	if b.Unit == Bytes {
		n = (length + 1<<b.coldStep() - 1) >> b.coldStep()
	}
	after := uint64(*counter) + n
	if after > uint64(b.head.skip) {
		return false
	}
	*counter = uint8(after)
	return true
}

// cool sets the steps that the cold filter counts: a quarter of the limit's floor, and of spare.
func (b *Bank) cool() {
	b.head.skip = uint16(min(min(b.head.spare, b.head.admit)>>(2+b.coldStep()), uint64(b.head.most)))
}

// Count counts one packet of the given length in bytes.
func (b *Bank) Count(p key.Tuple, length uint64) {
	k := b.Key(p)
	b.CountKey(k, b.Hash(k), length)
}

// CountKey is like [Bank.Count], for a packet with key k, whose Hash is h. It returns the
// units by which the exact count of its flow has passed multiples of the step.
func (b *Bank) CountKey(k key.Key, h, length uint64) (passed uint64) {
	return b.count(Flow{Key: k, Hash: h}, length)
}

// CountDropped is like [Bank.Count], for a packet that is dropped.
func (b *Bank) CountDropped(p key.Tuple, length uint64, c Cause) {
	f := Flow{Key: b.Key(p), Cause: c, Dst: p.Dst}
	f.Hash = b.hash(f.Key, c)
	b.count(f, length)
}

func (b *Bank) count(flow Flow, length uint64) (passed uint64) {
	h := flow.Hash
	b.head.packets++
	b.head.bytes += length
	counter := b.coldAt(flow.Key)
	if counter != nil && b.countCold(counter, length) {
		return 0
	}
	in, slot, found := b.search(h)
	if !found {
		cold := b.coldUnits(counter)
		var buf [MaxRows]int
		at := b.sketch.at(h, &buf)
		before := plus(b.sketch.least(at), uint64(cold))
		after, limit := plus(before, b.Unit.of(1, length)), b.limit()
		if uint64(after) < min(limit, b.head.spare) {
			b.sketch.raise(at, after-cold)
			return 0
		}
		if slot == slots {
			var least uint64
			slot, least = b.evict(in, uint64(after))
			if least >= limit {
				b.head.denied++
			}
			if b.head.spare < maxLimit {
				b.head.spare += b.head.spare>>6 + 1
				b.cool()
			}
			if slot == slots {
				b.sketch.raise(at, after-cold)
				return 0
			}
		}
		// The packet with which a flow enters the memory is counted there only:
		// the shared sketch need not rise for it.
		b.insert(in, slot, flow, before)
		if counter != nil {
			*counter = coldFull
		}
	}
	f := &in.flows[slot]
	f.packets++
	f.bytes += length
	if b.head.step == 0 {
		return 0
	}
	units, shift := b.Unit.of(f.packets, f.bytes), b.head.step-1
	return units>>shift<<shift - (units-b.Unit.of(1, length))>>shift<<shift
}

// SetStep sets the step by which programs report the exact counts of flows, the largest power
// of 2 of at most that many units; they report none with a step of 0.
func (b *Bank) SetStep(units uint64) { atomic.StoreUint64(&b.head.step, uint64(bits.Len64(units))) }

// Limit returns the units that no flow outside of the memory has, if none was denied.
// The bank must not be counting.
func (b *Bank) Limit() uint64 { return b.limit() }

// limit returns the estimate from which a flow enters the memory. A product
// beyond 64 bits, from 2 TB in an interval on, wraps to a lower limit, which is
// safe.
func (b *Bank) limit() uint64 {
	return min(max(b.head.admit, (b.Total()>>8)*uint64(b.head.share)>>24), maxLimit)
}

// search returns the slot of the flow with hash h or, if it has none, the slot
// that it would take, or `slots` if there is no room. A flow is in its second
// bucket only if the first was full when it entered; the first may have a free
// slot while the program exchanges a flow.
func (b *Bank) search(h uint64) (in *bucket, slot int, found bool) {
	n := uint32(len(b.buckets))
	first, second := &b.buckets[hash.Reduce(h, n)], &b.buckets[hash.Reduce(h<<32, n)]
	slot, found = first.search(h)
	if found {
		return first, slot, true
	}
	if i, found := second.search(h); found || slot == slots {
		return second, i, found
	}
	return first, slot, false
}

func (b *bucket) search(h uint64) (slot int, found bool) {
	slot = slots
	for i := range b.flows {
		if b.hash(i) == h {
			return i, true
		}
		if b.tag(i) == 0 {
			slot = min(slot, i)
		}
	}
	return slot, false
}

// evict makes room in a full bucket: the smallest of its flows returns to the
// sketch if it has fewer units than the newcomer. It returns the free slot, or
// `slots` if all flows stay, and the units of the flow that is left without a
// slot.
func (b *Bank) evict(in *bucket, units uint64) (victim int, least uint64) {
	victim, least = slots, units
	for i := range in.flows {
		if n := in.units(i, b.Unit); n < least {
			victim, least = i, n
		}
	}
	if victim < slots {
		// Its estimate there is never below its count here.
		var buf [MaxRows]int
		b.sketch.raise(b.sketch.at(in.flows[victim].hash, &buf), uint32(least))
		in.setTag(victim, 0)
	}
	return victim, least
}

// units returns the upper bound of a flow's units.
func (b *bucket) units(slot int, u Unit) uint64 {
	f := &b.flows[slot]
	return uint64(b.before[slot]) + u.of(f.packets, f.bytes)
}

func (b *Bank) insert(in *bucket, slot int, flow Flow, before uint32) {
	f := &in.flows[slot]
	in.before[slot] = before
	*f = entry{hash: flow.Hash}
	var buf [key.MaxLen]byte
	rest := flow.Key.Append(buf[:0])
	if b.Dropped {
		copy(buf[len(rest):], flow.Dst.AsSlice())
		binary.LittleEndian.PutUint32(buf[causeAt:], flow.Cause.word())
	}
	for i := range f.key {
		f.key[i] = binary.LittleEndian.Uint64(buf[8*i:])
	}
	// The tag comes last: readers find the entry from here on.
	in.setTag(slot, tagOf(flow.Hash))
}

// Admit sets the limit at which a flow enters the memory: floor units, or this
// fraction of the units that the bank has counted so far, whichever is more.
// [Threshold.Admission] returns both. The fraction is capped at one half, and
// the limit at 2³¹ units. It undoes [Bank.SetSpare].
func (b *Bank) Admit(floor uint64, share float64) {
	atomic.StoreUint64(&b.head.spare, maxLimit)
	atomic.StoreUint64(&b.head.admit, floor)
	atomic.StoreUint32(&b.head.share, uint32(math.Ldexp(min(max(share, 0), 0.5), 32)))
	if len(b.cold) > 0 {
		most := uint16(min(floor>>(2+b.coldStep()), coldFull-1))
		if b.Packets() > 0 {
			most = max(most, b.head.most) // so much of a flow may be in the cold filter
		}
		b.head.most = most
	}
	b.cool()
}

// SetSpare lets flows enter the memory from this many units on, if that is below
// the limit, while the memory has room to spare: each flow that finds its bucket
// full raises the number by 1/64. However low it was, a few hundred of them make it
// too high for more to come, so that the work is bounded.
func (b *Bank) SetSpare(units uint64) {
	atomic.StoreUint64(&b.head.spare, min(units, maxLimit))
	b.cool()
}

// Spare returns what [Bank.SetSpare] has set, raised by what found no room.
func (b *Bank) Spare() uint64 { return atomic.LoadUint64(&b.head.spare) }

// Begin records when the bank begins to count, by the kernel's monotonic clock.
func (b *Bank) Begin(at time.Duration) { b.head.began.Store(uint64(at)) }

// Began returns what [Bank.Begin] has recorded, 0 if that is unknown, as after Reset.
func (b *Bank) Began() time.Duration { return time.Duration(b.head.began.Load()) }

// Packets returns the number of packets counted.
func (b *Bank) Packets() uint64 { return atomic.LoadUint64(&b.head.packets) }

// Bytes returns the number of bytes counted.
func (b *Bank) Bytes() uint64 { return atomic.LoadUint64(&b.head.bytes) }

// Total returns Packets or Bytes, by the tracker's unit.
func (b *Bank) Total() uint64 { return b.Unit.of(b.Packets(), b.Bytes()) }

// Denied returns the number of packets for which a flow at or above the limit
// was left to the sketch: the packet's own flow, or the smallest of its bucket,
// which was replaced. At most that many flows are missing from the memory.
func (b *Bank) Denied() uint64 { return atomic.LoadUint64(&b.head.denied) }

// Flows yields the entries of the flow memory, in no particular order. Kept
// entries may have counted nothing yet. While the program counts, a flow's
// packets and bytes may be out of step by one packet.
func (b *Bank) Flows() iter.Seq[Flow] {
	return func(yield func(Flow) bool) {
		for i := range b.buckets {
			in := &b.buckets[i]
			for slot := range in.flows {
				if f, ok := b.read(in, slot); ok && !yield(f) {
					return
				}
			}
		}
	}
}

// Lookup returns the entry of the flow with hash h in the flow memory.
func (b *Bank) Lookup(h uint64) (Flow, bool) {
	in, slot, found := b.search(h)
	if !found {
		return Flow{}, false
	}
	return b.read(in, slot)
}

// read returns the entry in a slot. An entry that is being written is detected
// by its key, which must match the slot's tag and hash before and after reading.
func (b *Bank) read(in *bucket, slot int) (Flow, bool) {
	h := in.hash(slot)
	if h == 0 {
		return Flow{}, false
	}
	e := &in.flows[slot]
	var buf [key.MaxLen]byte
	for i := range e.key {
		binary.LittleEndian.PutUint64(buf[8*i:], atomic.LoadUint64(&e.key[i]))
	}
	s := b.V4
	if key.Fields(buf[0])&key.FieldV6 != 0 {
		s = b.V6
	}
	k, err := key.Parse(buf[:s.KeyLen()])
	if err != nil {
		return Flow{}, false
	}
	var cause Cause
	var dst netip.Addr
	if b.Dropped {
		cause = causeOf(binary.LittleEndian.Uint32(buf[causeAt:]))
		dst, _ = netip.AddrFromSlice(buf[s.KeyLen():][:s.MaxBits()/8])
	}
	if b.hash(k, cause) != h {
		return Flow{}, false
	}
	f := Flow{
		Key: k, Hash: h, Cause: cause, Dst: dst,
		Before:  uint64(atomic.LoadUint32(&in.before[slot])),
		Packets: atomic.LoadUint64(&e.packets),
		Bytes:   atomic.LoadUint64(&e.bytes),
	}
	return f, in.hash(slot) == h
}

// Estimate returns the number of units of a flow, by its Key and Hash. It is never too
// small, except for a flow that was denied 2³²−1 units or more.
func (b *Bank) Estimate(flow Flow) uint64 {
	// In this order: a flow is added to the sketch before it leaves the memory.
	if f, ok := b.Lookup(flow.Hash); ok {
		return f.Estimate(b.Unit)
	}
	var buf [MaxRows]int
	least := uint32(math.MaxUint32)
	for _, i := range b.sketch.at(flow.Hash, &buf) {
		least = min(least, atomic.LoadUint32(&b.sketch.counters[i]))
	}
	return uint64(least) + uint64(b.coldUnits(b.coldAt(flow.Key)))
}

// Keep enters a flow, with a count of zero, into a bank that contains only kept
// flows: it will be counted exactly from its first packet on. It reports false
// if there is no room, and the flow has to pass the sketch again.
func (b *Bank) Keep(f Flow) bool {
	in, slot, found := b.search(f.Hash)
	if !found && slot < slots {
		b.insert(in, slot, f, 0)
		found = true
	}
	if c := b.coldAt(f.Key); found && c != nil {
		*c = coldFull
	}
	return found
}

// Reset empties the bank for the next interval. The settings of Admit, SetSpare and SetStep
// stay.
func (b *Bank) Reset() {
	*b.head = head{
		admit: b.head.admit, share: b.head.share, skip: b.head.skip, most: b.head.most, spare: b.head.spare, step: b.head.step,
	}
	b.sketch.Reset()
	clear(b.cold)
	clear(b.buckets)
}
