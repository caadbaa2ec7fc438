package membership

import (
	"iter"
	"math/bits"
	"sync/atomic"

	"weir/filter/hash"
)

// Geometry of the hot table, the same as in bpf/hot.h. A slot holds the lower
// hotHashBits bits of a hash, and with MinHotBuckets its bucket tells the
// others.
const (
	hotHashBits = 59
	hotHashMask = 1<<hotHashBits - 1
	// MinHotBuckets is the least number of buckets.
	MinHotBuckets = 1 << (64 - hotHashBits)
	// MaxExtra is the highest number of extra bits: an element has 24 in all,
	// and one at least is in the first line.
	MaxExtra = 23
)

// Hot is the table of hot elements: those of which more bits are tested than of
// all others, so that hardly one of them is taken for a listed one. It is asked
// only when all bits that every key has are set. bpf/hot.h is its twin.
//
//	slot bits 63 … 59   number of extra bits, 1 …; an empty slot is 0
//	slot bits 58 …  0   the lower 59 bits of the element's hash
//
// An element has one bucket of eight slots, that of the upper bits of its hash.
// Bucket and slot together are the whole hash: an element is mistaken for
// another only if their bits are the same, too. What finds its bucket full goes
// without a weight.
//
// Its slots may be the kernel's own memory. There must be one writer at a time.
type Hot struct {
	slots []uint64
	len   int
}

// NewHot makes a table over slots, which must be zero and BucketSlots for each
// bucket; the buckets are a power of two, MinHotBuckets at least. A table
// without slots is full.
func NewHot(slots []uint64) *Hot { return &Hot{slots: slots} }

func (t *Hot) buckets() uint32 { return uint32(len(t.slots) / BucketSlots) }

// Find gives the number of extra bits of the element with hash h: 0 if it is
// not hot.
func (t *Hot) Find(h uint64) (extra int) {
	if i, ok := t.find(h); ok {
		return int(t.slots[i] >> hotHashBits)
	}
	return 0
}

func (t *Hot) find(h uint64) (slot int, ok bool) {
	base := t.bucket(h)
	for i, s := range t.slots[base:min(base+BucketSlots, len(t.slots))] {
		if s != 0 && s&hotHashMask == h&hotHashMask {
			return base + i, true
		}
	}
	return 0, false
}

// bucket is the first slot of the bucket of h.
func (t *Hot) bucket(h uint64) int { return int(hash.Reduce(h, t.buckets())) * BucketSlots }

// slot gives the slot for an element with hash h that is to have so many extra
// bits: its own, else an empty one, else that of the element with the fewest,
// if it has fewer.
func (t *Hot) slot(h uint64, extra int) (slot int, ok bool) {
	if i, ok := t.find(h); ok {
		return i, true
	}
	fewest := uint64(extra)
	base := t.bucket(h)
	for i := base; i < min(base+BucketSlots, len(t.slots)); i++ {
		if e := t.slots[i] >> hotHashBits; e < fewest {
			slot, fewest, ok = i, e, true
		}
	}
	return slot, ok
}

// put gives a slot to the element with hash h; 0 extra bits empty it.
func (t *Hot) put(slot int, h uint64, extra int) {
	var s uint64
	if extra > 0 {
		s = uint64(extra)<<hotHashBits | h&hotHashMask
	}
	t.len += min(int(s>>hotHashBits), 1) - min(int(t.slots[slot]>>hotHashBits), 1)
	atomic.StoreUint64(&t.slots[slot], s)
}

// All gives the hash and the number of extra bits of each element.
func (t *Hot) All() iter.Seq2[uint64, int] {
	return func(yield func(uint64, int) bool) {
		shift := 64 - bits.TrailingZeros32(t.buckets())
		for i, s := range t.slots {
			if s != 0 && !yield(uint64(i/BucketSlots)<<shift|s&hotHashMask, int(s>>hotHashBits)) {
				return
			}
		}
	}
}
