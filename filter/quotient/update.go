package quotient

import (
	"math/bits"
	"sync/atomic"
)

// place is where an image may be.
type place struct {
	p             uint64
	first, second int // words
}

func (s *Set) locate(p uint64) place {
	first, second := s.candidates(p)
	return place{p, int(first), int(second)}
}

// lane is one lane of a word.
type lane struct {
	word  int
	shift uint // of its lowest bit
}

// nth returns a lane of a word, counted from the lowest bits.
func (s *Set) nth(word, n int) lane { return lane{word, uint(n) * s.shift[0]} }

// Add adds a key, or changes the list number of a present one. The error is
// ErrFull or ErrList.
func (s *Set) Add(k uint64, list uint16) error {
	if list == 0 || list > s.layout.MaxList() {
		return ErrList
	}
	at := s.locate(s.permute(k))
	if in, ok := s.find(at); ok {
		s.set(in, s.entry(at, in, list))
		return nil
	}
	if s.inSpill > 0 {
		if i := s.findSpill(at.p); i >= 0 {
			atomic.StoreUint64(&s.spill[i], slot(at.p, list))
			return nil
		}
	}
	return s.add(at, list)
}

// Remove removes a key and reports whether it was present.
func (s *Set) Remove(k uint64) bool {
	at := s.locate(s.permute(k))
	if in, ok := s.find(at); ok {
		s.set(in, 0)
		s.len--
		return true
	}
	if i := s.findSpill(at.p); i >= 0 {
		s.spillRemove(i, at)
		s.len--
		return true
	}
	return false
}

// evictionDepth is the maximum length of a chain of evictions. Longer chains
// find little more: a line has only eight words.
const evictionDepth = 3

// add adds an image that is not present.
func (s *Set) add(at place, list uint16) error {
	s.setFront(at.p)
	if in, ok := s.room(at); ok {
		s.set(in, s.entry(at, in, list))
	} else if !s.overflow(at, list) {
		return ErrFull
	}
	s.len++
	return nil
}

// overflow adds an image whose words are full to the spill, or if its buckets are full
// too, adds another one, which is in its first word, and takes its lane.
func (s *Set) overflow(at place, list uint16) bool {
	if s.spillAdd(at, list) {
		return true
	}
	// Those of at.first have the same buckets.
	for n := range s.lanes {
		in := s.nth(at.second, n)
		value := s.get(in)
		if value&s.inSecond == 0 && s.spillAdd(s.locate(s.image(in.word, value)), uint16(value>>s.listBit)) {
			s.set(in, s.entry(at, in, list))
			return true
		}
	}
	return false
}

// room returns a lane for a new image: an empty one, or one whose key has been
// copied to its second word.
func (s *Set) room(at place) (lane, bool) {
	in, ok := s.free(at.first)
	if !ok {
		in, ok = s.free(at.second)
	}
	for depth := 1; !ok && depth <= evictionDepth; depth++ {
		if in, ok = s.evict(at.first, depth, 0); !ok {
			in, ok = s.evict(at.second, depth, 0)
		}
	}
	return in, ok
}

// evict copies a key of a full word to its second word and returns the lane of
// the original, to be overwritten. busy are the words further up the chain, a bit
// for each, in which nothing may move.
func (s *Set) evict(word, depth int, busy uint8) (lane, bool) {
	busy |= 1 << (word % lineWords)
	for n := range s.lanes {
		in := s.nth(word, n)
		value := s.get(in)
		if value&s.inSecond != 0 {
			continue // its second word is this one, which it does not leave
		}
		second := word ^ int(apart(value&s.remMask))
		if busy>>(second%lineWords)&1 != 0 {
			continue
		}
		to, ok := s.free(second)
		if !ok && depth > 1 {
			to, ok = s.evict(second, depth-1, busy)
		}
		if ok {
			s.set(to, value|s.inSecond)
			return in, true
		}
	}
	return lane{}, false
}

// entry returns the value of a lane, one of the first or the second word.
func (s *Set) entry(at place, in lane, list uint16) uint64 {
	value := uint64(list)<<s.listBit | at.p&s.remMask
	if in.word == at.second {
		value |= s.inSecond
	}
	return value
}

// find returns the lane that contains an image.
func (s *Set) find(at place) (lane, bool) {
	want := at.p & s.remMask
	for _, word := range [2]int{at.first, at.second} {
		for n := range s.lanes {
			in := s.nth(word, n)
			if v := s.get(in); v != 0 && v&(s.remMask|s.inSecond) == want {
				return in, true
			}
		}
		want |= s.inSecond
	}
	return lane{}, false
}

// free returns an empty lane of a word.
func (s *Set) free(word int) (lane, bool) {
	w := s.lines[word]
	// No carry leaves a lane.
	empty := ^((w&s.lows + s.lows) | w) & s.highs
	return lane{word, uint(bits.TrailingZeros64(empty)) + 1 - s.shift[0]}, empty != 0
}

func (s *Set) get(l lane) uint64 {
	return s.lines[l.word] >> (l.shift & 63) & s.laneMask
}

// set changes a lane with one store of its word.
func (s *Set) set(l lane, value uint64) {
	shift := l.shift & 63
	atomic.StoreUint64(&s.lines[l.word], s.lines[l.word]&^(s.laneMask<<shift)|value<<shift)
}
