package quotient

import (
	"slices"
	"sync/atomic"
)

// buckets returns the two buckets of the spill that may contain p. They differ.
// They follow from p's first word, so that two buckets contain all that the
// word's bit stands for.
func (s *Set) buckets(p uint64) (first, second uint64) {
	word, _ := s.candidates(p)
	n := uint32(word)
	first = uint64(n*0x9e3779b1) * s.numBuckets >> 32
	second = first + 1 + uint64(n*0x85ebca6b)*(s.numBuckets-1)>>32
	if second >= s.numBuckets {
		second -= s.numBuckets
	}
	return first, second
}

func (s *Set) lookupSpill(p uint64) uint16 {
	first, second := s.buckets(p)
	for _, b := range [2]uint64{first, second} {
		slots := s.spill[b*bucketSlots:][:bucketSlots]
		for i := range slots {
			// The slot of image 0 differs from an empty one by its list.
			if v := atomic.LoadUint64(&slots[i]); v&imageMask == p && v != 0 {
				return uint16(v >> listShift)
			}
		}
	}
	return 0
}

// findSpill returns the index of p's slot, or -1.
func (s *Set) findSpill(p uint64) int {
	first, second := s.buckets(p)
	for _, b := range [2]uint64{first, second} {
		for i := b * bucketSlots; i < (b+1)*bucketSlots; i++ {
			if v := s.spill[i]; v&imageMask == p && v != 0 {
				return int(i)
			}
		}
	}
	return -1
}

// spillAdd stores p in the emptier of its buckets, and then sets the bit of its
// first word. It reports whether a slot was free.
func (s *Set) spillAdd(at place, list uint16) bool {
	first, second := s.buckets(at.p)
	into, most := -1, 0
	for _, b := range [2]uint64{first, second} {
		free, last := 0, -1
		for i := b * bucketSlots; i < (b+1)*bucketSlots; i++ {
			if s.spill[i] == 0 {
				free, last = free+1, int(i)
			}
		}
		if free > most {
			into, most = last, free
		}
	}
	if into < 0 {
		return false
	}
	atomic.StoreUint64(&s.spill[into], slot(at.p, list))
	if w := s.lines[at.first]; w&spilled == 0 {
		atomic.StoreUint64(&s.lines[at.first], w|spilled)
	}
	s.inSpill++
	return true
}

// spillMove moves one of the slots of p's buckets to its other bucket, and reports
// whether it could. It must not run beside lookups, which may have read the other
// bucket when the slot comes to it.
func (s *Set) spillMove(p uint64) bool {
	first, second := s.buckets(p)
	for _, b := range [2]uint64{first, second} {
		for i := b * bucketSlots; i < (b+1)*bucketSlots; i++ {
			v := s.spill[i]
			c, d := s.buckets(v & imageMask)
			other := c ^ d ^ b
			slots := s.spill[other*bucketSlots:][:bucketSlots]
			if free := slices.Index(slots, 0); free >= 0 {
				slots[free], s.spill[i] = v, 0
				return true
			}
		}
	}
	return false
}

// compactionShare is the share of slots in use from which a set needs compaction: below that at
// which buckets become full, above that which Plan expects.
const compactionShare = 0.75

// NeedsCompaction reports whether a Compact is due. As entries are replaced by others, more
// and more of them go to the spill, though lanes become free.
func (s *Set) NeedsCompaction() bool {
	return float64(s.inSpill) > compactionShare*float64(len(s.spill))
}

// Compact moves entries of the spill to lanes that have become free, and returns
// their number. In their lines, it first moves entries from their second word back
// to the first: from there they can make room.
//
// wait, which is called twice, must return when every lookup has ended that began
// before: it may have read a word before the copy came, and will look for the entry
// where it was.
func (s *Set) Compact(wait func()) int {
	var crowdedLines []int
	for _, v := range s.spill {
		if v != 0 {
			crowdedLines = append(crowdedLines, s.locate(v&imageMask).first/lineWords)
		}
	}
	slices.Sort(crowdedLines)
	var originals []lane
	for _, line := range slices.Compact(crowdedLines) {
		originals = s.copyBack(line, originals)
	}
	if len(originals) > 0 {
		wait()
		for _, l := range originals {
			s.set(l, 0)
		}
	}
	var copied []int
	for i, v := range s.spill {
		if v == 0 {
			continue
		}
		at := s.locate(v & imageMask)
		if in, ok := s.room(at); ok {
			s.set(in, s.entry(at, in, uint16(v>>listShift)))
			copied = append(copied, i)
		}
	}
	if len(copied) > 0 {
		wait()
		for _, i := range copied {
			s.spillRemove(i, s.locate(s.spill[i]&imageMask))
		}
	}
	return len(copied)
}

// copyBack copies entries of a line that are in their second word to the first, and
// appends the originals.
func (s *Set) copyBack(line int, originals []lane) []lane {
	for word := line * lineWords; word < (line+1)*lineWords; word++ {
		for n := range s.lanes {
			in := s.nth(word, n)
			value := s.get(in)
			if value&s.inSecond == 0 {
				continue
			}
			if to, ok := s.free(word ^ int(apart(value&s.remMask))); ok {
				s.set(to, value&^s.inSecond)
				originals = append(originals, in)
			}
		}
	}
	return originals
}

// spillRemove clears slot i, and the bit of its key's first word if no other key
// in the spill needs it.
func (s *Set) spillRemove(i int, at place) {
	atomic.StoreUint64(&s.spill[i], 0)
	s.inSpill--
	first, second := s.buckets(at.p)
	for _, b := range [2]uint64{first, second} {
		for _, v := range s.spill[b*bucketSlots:][:bucketSlots] {
			if v != 0 && s.locate(v&imageMask).first == at.first {
				return
			}
		}
	}
	atomic.StoreUint64(&s.lines[at.first], s.lines[at.first]&^spilled)
}
