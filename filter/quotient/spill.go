package quotient

import "sync/atomic"

// buckets returns the two buckets of the spill that may contain p. They differ.
// They follow from p's first word, so that two buckets contain all that the
// word's bit stands for.
func (s *Set) buckets(p uint32) (first, second uint64) {
	word, _ := candidates(p)
	n := uint32(uint64(p)*s.numLines>>32)*lineWords + word
	first = uint64(n*0x9e3779b1) * s.numBuckets >> 32
	second = first + 1 + uint64(n*0x85ebca6b)*(s.numBuckets-1)>>32
	if second >= s.numBuckets {
		second -= s.numBuckets
	}
	return first, second
}

func (s *Set) lookupSpill(p uint32) uint16 {
	first, second := s.buckets(p)
	for _, b := range [2]uint64{first, second} {
		slots := s.spill[b*bucketSlots:][:bucketSlots]
		for i := range slots {
			// The slot of image 0 differs from an empty one by its list.
			if v := atomic.LoadUint64(&slots[i]); uint32(v) == p && v != 0 {
				return uint16(v >> 32)
			}
		}
	}
	return 0
}

// findSpill returns the index of p's slot, or -1.
func (s *Set) findSpill(p uint32) int {
	first, second := s.buckets(p)
	for _, b := range [2]uint64{first, second} {
		for i := b * bucketSlots; i < (b+1)*bucketSlots; i++ {
			if v := s.spill[i]; uint32(v) == p && v != 0 {
				return int(i)
			}
		}
	}
	return -1
}

// exile stores p in the emptier of its buckets, and then sets the bit of its
// first word. It reports whether a slot was free.
func (s *Set) exile(at place, list uint16) bool {
	first, second := s.buckets(at.p)
	slot, most := -1, 0
	for _, b := range [2]uint64{first, second} {
		free, last := 0, -1
		for i := b * bucketSlots; i < (b+1)*bucketSlots; i++ {
			if s.spill[i] == 0 {
				free, last = free+1, int(i)
			}
		}
		if free > most {
			slot, most = last, free
		}
	}
	if slot < 0 {
		return false
	}
	atomic.StoreUint64(&s.spill[slot], uint64(list)<<32|uint64(at.p))
	if w := s.lines[at.first]; w&spilled == 0 {
		atomic.StoreUint64(&s.lines[at.first], w|spilled)
	}
	s.exiled++
	return true
}

// pardon clears the slot, and the bit of its key's first word if no other key
// in the spill needs it.
func (s *Set) pardon(slot int, at place) {
	atomic.StoreUint64(&s.spill[slot], 0)
	s.exiled--
	first, second := s.buckets(at.p)
	for _, b := range [2]uint64{first, second} {
		for _, v := range s.spill[b*bucketSlots:][:bucketSlots] {
			if v != 0 && s.locate(uint32(v)).first == at.first {
				return
			}
		}
	}
	atomic.StoreUint64(&s.lines[at.first], s.lines[at.first]&^spilled)
}
