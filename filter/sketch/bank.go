package sketch

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"sync/atomic"
	"unsafe"

	"weir/filter/hash"
	"weir/filter/key"
)

// Bank counts what one CPU sees of a Tracker's flows in an interval: Estan and
// Varghese's parallel multistage filter with conservative update, flow memory
// and shielding (sections 3.2 and 3.3 of their paper). A flow whose estimate
// reaches the limit enters the flow memory, is counted exactly there and no
// longer raises the sketch. Only what it had before can be overestimated, by
// less than the limit if it entered as soon as it reached it.
//
// A flow that has the limit or more when one of its packets arrives is in the
// memory from then on, unless a larger one takes its place; it then goes on in
// the sketch, and so does one that finds only larger ones in its bucket. Denied
// tells of both. The memory holds lighter flows too.
//
// Its memory may be the kernel's own, in which the program counts: everything
// but Count, CountKey, Keep and Reset may be called meanwhile.
type Bank struct {
	Tracker
	head    *head
	sketch  *Sketch[uint32]
	buckets []bucket
}

// head is the first line of a bank.
type head struct {
	packets, bytes uint64 // all that were counted
	denied         uint64 // packets for which a flow of the limit had no place in the memory
	admit          uint64 // the limit's floor, in units
	share          uint64 // the limit as a share of the units counted so far, times 2³²: at most 2³¹
	_              [3]uint64
}

// bucket is a bucket of the flow memory. Its slots are filled in order, and none
// is empty before one that is not.
type bucket struct {
	hashes [slots]uint64 // 0 is an empty slot
	flows  [slots]entry
}

type entry struct {
	packets, bytes, before uint64
	key                    [keyWords]uint64 // serialised, read in little-endian order
}

// maxLimit bounds the limit, so that counters of 32 bits reach it at any rate:
// they saturate above.
const maxLimit = 1 << 31

// NewBank makes a bank over memory of the geometry's sizes: lines for the head
// and the sketch, flows for the flow memory. It must be zero, or that of a bank
// of the same tracker.
func NewBank(t Tracker, lines, flows []uint64) (*Bank, error) {
	if err := t.validate(); err != nil {
		return nil, err
	}
	if len(lines) != t.LineWords() || len(flows) != t.FlowWords() {
		return nil, fmt.Errorf("sketch: memory of %d and %d words, a bank of %d lines and %d buckets has %d and %d",
			len(lines), len(flows), t.Lines, t.Buckets, t.LineWords(), t.FlowWords())
	}
	counters := unsafe.Slice((*uint32)(unsafe.Pointer(&lines[lineWords])), 2*(len(lines)-lineWords))
	s, err := Over(TwoLines, sketchRows, counters)
	if err != nil {
		return nil, err
	}
	return &Bank{
		Tracker: t,
		head:    (*head)(unsafe.Pointer(&lines[0])),
		sketch:  s,
		buckets: unsafe.Slice((*bucket)(unsafe.Pointer(&flows[0])), t.Buckets),
	}, nil
}

// Count counts one packet of the given length in bytes.
func (b *Bank) Count(p key.Tuple, length uint64) {
	k := b.Key(p)
	b.CountKey(k, b.Hash(k), length)
}

// CountKey is Count for a packet with key k, whose Hash is h.
func (b *Bank) CountKey(k key.Key, h, length uint64) {
	b.head.packets++
	b.head.bytes += length
	in, slot, found := b.search(h)
	if !found {
		var buf [MaxRows]int
		at := b.sketch.at(h, &buf)
		before := b.sketch.least(at)
		after, limit := plus(before, b.Unit.of(1, length)), b.limit()
		if uint64(after) < limit {
			b.sketch.raise(at, after)
			return
		}
		if slot == slots {
			var least uint64
			slot, least = b.evict(in, uint64(after))
			if least >= limit {
				b.head.denied++
			}
			if slot == slots {
				b.sketch.raise(at, after)
				return
			}
		}
		// The packet that brings a flow into the memory is counted there
		// alone: the sketch, which others share, need not rise for it.
		in.insert(slot, k, h, uint64(before))
	}
	f := &in.flows[slot]
	f.packets++
	f.bytes += length
}

// limit is the estimate with which a flow enters the memory. A product beyond
// 64 bits, from 2 TB in an interval on, wraps to a lower limit, which is safe.
func (b *Bank) limit() uint64 {
	return min(max(b.head.admit, (b.Total()>>8)*b.head.share>>24), maxLimit)
}

// search finds the slot of the flow with hash h. Without an entry, it is the
// slot that the flow would take: slots if there is none. A flow lies in its
// second bucket only if the first was full; that it is not full at this instant
// says nothing where the program may be exchanging a flow.
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
	for i := range b.hashes {
		switch atomic.LoadUint64(&b.hashes[i]) {
		case h:
			return i, true
		case 0:
			slot = min(slot, i)
		}
	}
	return slot, false
}

// evict makes room in a full bucket: the smallest of its flows goes back into
// the sketch, if it has had fewer than so many units, those of the flow that
// wants to enter. It gives the free slot, slots if all flows of the bucket stay,
// and the units of the one of them all that has no place.
func (b *Bank) evict(in *bucket, units uint64) (victim int, least uint64) {
	victim, least = slots, units
	for i := range in.flows {
		if n := in.flows[i].units(b.Unit); n < least {
			victim, least = i, n
		}
	}
	if victim < slots {
		// Its estimate there is never below what it had here.
		var buf [MaxRows]int
		b.sketch.raise(b.sketch.at(in.hashes[victim], &buf), uint32(least))
		atomic.StoreUint64(&in.hashes[victim], 0)
	}
	return victim, least
}

// units is the upper bound of what the flow had.
func (e *entry) units(u Unit) uint64 { return e.before + u.of(e.packets, e.bytes) }

func (b *bucket) insert(slot int, k key.Key, h, before uint64) {
	f := &b.flows[slot]
	*f = entry{before: before}
	var buf [key.MaxLen]byte
	k.Append(buf[:0])
	for i := range f.key {
		f.key[i] = binary.LittleEndian.Uint64(buf[8*i:])
	}
	// The hash comes last: from then on others may look.
	atomic.StoreUint64(&b.hashes[slot], h)
}

// Admit sets the limit with which a flow enters the memory: so many units, or
// this share of the units that the bank has counted so far, whichever is more.
// Threshold.Admission gives both. The share is at most a half, and the limit
// 2³¹ units however large the floor.
func (b *Bank) Admit(floor uint64, share float64) {
	atomic.StoreUint64(&b.head.admit, floor)
	atomic.StoreUint64(&b.head.share, uint64(math.Ldexp(min(max(share, 0), 0.5), 32)))
}

// Packets is the number of packets that were counted.
func (b *Bank) Packets() uint64 { return atomic.LoadUint64(&b.head.packets) }

// Bytes is the number of bytes that were counted.
func (b *Bank) Bytes() uint64 { return atomic.LoadUint64(&b.head.bytes) }

// Total is Packets or Bytes, by the tracker's unit.
func (b *Bank) Total() uint64 { return b.Unit.of(b.Packets(), b.Bytes()) }

// Denied is the number of packets for which a flow that had the limit or more was
// left to the sketch: the packet's own, or the smallest of its bucket, which made
// room. No more flows than that are missing from the memory.
func (b *Bank) Denied() uint64 { return atomic.LoadUint64(&b.head.denied) }

// Flows gives the entries of the flow memory, in no useful order. Those that
// were kept may have counted nothing yet. Of a bank in which the program counts,
// a flow's packets may be one ahead of its bytes, or the other way round.
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

// Find gives the entry of the flow with hash h in the flow memory.
func (b *Bank) Find(h uint64) (Flow, bool) {
	in, slot, found := b.search(h)
	if !found {
		return Flow{}, false
	}
	return b.read(in, slot)
}

// read gives the entry in a slot. What is just being written is told from an
// entry by its key, which must have the hash of the slot, before and after.
func (b *Bank) read(in *bucket, slot int) (Flow, bool) {
	h := atomic.LoadUint64(&in.hashes[slot])
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
	if err != nil || b.Hash(k) != h {
		return Flow{}, false
	}
	f := Flow{
		Key: k, Hash: h,
		Before:  atomic.LoadUint64(&e.before),
		Packets: atomic.LoadUint64(&e.packets),
		Bytes:   atomic.LoadUint64(&e.bytes),
	}
	return f, atomic.LoadUint64(&in.hashes[slot]) == h
}

// Estimate is the number of units of the flow with hash h. It is never below
// the truth, except for a flow that was denied 2³²−1 units or more.
func (b *Bank) Estimate(h uint64) uint64 {
	// In this order: a flow that leaves the memory is in the sketch before.
	if f, ok := b.Find(h); ok {
		return f.Estimate(b.Unit)
	}
	var buf [MaxRows]int
	least := uint32(math.MaxUint32)
	for _, i := range b.sketch.at(h, &buf) {
		least = min(least, atomic.LoadUint32(&b.sketch.counters[i]))
	}
	return uint64(least)
}

// Keep enters a flow, at zero, into a bank that is empty but for such flows: it
// will be counted exactly from its first packet on. It reports false where
// there is no room, and the flow has to pass the sketch again.
func (b *Bank) Keep(k key.Key, h uint64) bool {
	in, slot, found := b.search(h)
	if !found && slot < slots {
		in.insert(slot, k, h, 0)
		found = true
	}
	return found
}

// Reset empties the bank for the next interval. What Admit has set stays.
func (b *Bank) Reset() {
	*b.head = head{admit: b.head.admit, share: b.head.share}
	b.sketch.Reset()
	clear(b.buckets)
}
