package membership

import (
	"iter"
	"sync/atomic"
)

// Geometry of the hot table, the same as in bpf/hot.h. A slot stores the upper
// hotHashBits bits of a hash; with at least MinHotBuckets buckets the bucket
// determines the others.
const (
	hotHashBits  = 59
	hotHashMask  = 1<<hotHashBits - 1
	hotLowerBits = 64 - hotHashBits
	// MinHotBuckets is the minimum number of buckets.
	MinHotBuckets = 1 << hotLowerBits
	// MaxExtra is the maximum number of extra bits: an element has 24 in all,
	// at least one of them in the first line.
	MaxExtra = 23
)

// Hot is the table of hot elements, of which more bits are tested than of all
// others, so that they are hardly ever false positives. It is consulted only if
// all regular bits are set. bpf/hot.h is its twin.
//
//	slot bits 63 … 59   number of extra bits, 1 …; an empty slot is 0
//	slot bits 58 …  0   the upper 59 bits of the element's hash
//
// An element has one bucket of eight slots, selected by the lower bits of its
// hash. Bucket and slot together determine the whole hash, so elements are
// confused only if their hashes, and hence their bits, are equal. An element
// whose bucket is full gets no weight. The upper bits select the line: if they
// selected the bucket, too, that of a line with more bits set than others, which
// passes more elements, would be full while others have room.
//
// Its slots may be kernel memory. Calls that write must be serialised.
type Hot struct {
	slots []uint64
	len   int
}

// NewHot returns a table over slots, which must be zero and BucketSlots for
// each bucket; the number of buckets must be a power of two and at least
// MinHotBuckets. A table without slots is full.
func NewHot(slots []uint64) *Hot { return &Hot{slots: slots} }

func (t *Hot) buckets() uint32 { return uint32(len(t.slots) / BucketSlots) }

// Find returns the number of extra bits of the element with hash h, 0 if it is
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
		if s != 0 && s&hotHashMask == h>>hotLowerBits {
			return base + i, true
		}
	}
	return 0, false
}

// bucket returns the first slot of the bucket of h.
func (t *Hot) bucket(h uint64) int { return int(uint32(h)&(max(t.buckets(), 1)-1)) * BucketSlots }

// slot returns the slot for an element with hash h and the given number of
// extra bits: its own, else an empty one, else that of the element with the
// fewest, if it has fewer.
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

// put stores the element with hash h in a slot; 0 extra bits empty it.
func (t *Hot) put(slot int, h uint64, extra int) {
	var s uint64
	if extra > 0 {
		s = uint64(extra)<<hotHashBits | h>>hotLowerBits
	}
	t.len += min(int(s>>hotHashBits), 1) - min(int(t.slots[slot]>>hotHashBits), 1)
	atomic.StoreUint64(&t.slots[slot], s)
}

// clear removes all elements, also those that another process has put there.
func (t *Hot) clear() {
	for i := range t.slots {
		atomic.StoreUint64(&t.slots[i], 0)
	}
	t.len = 0
}

// All yields the hash and the number of extra bits of each element.
func (t *Hot) All() iter.Seq2[uint64, int] {
	return func(yield func(uint64, int) bool) {
		for i, s := range t.slots {
			if s != 0 && !yield(s<<hotLowerBits|uint64(i/BucketSlots)%MinHotBuckets, int(s>>hotHashBits)) {
				return
			}
		}
	}
}
