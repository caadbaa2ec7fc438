package membership

import (
	"errors"
	"fmt"
	"iter"

	"weir/filter/key"
)

// ErrHotFull means that an element gets no weight: its bucket of the hot table
// is full of others with at least as many extra bits, or the layout has no hot
// table, or its shape is not in the cascade. It only costs false positives.
var ErrHotFull = errors.New("membership: no room in the hot table")

// SetWeight sets the number of extra bits of an element, 0 … MaxExtra; 0
// removes it from the hot table. A hotter element may replace a cooler one in
// its bucket. SetWeight returns ErrHotFull, and fails in approximate mode if
// Listed is not set; it then changes nothing.
//
// No listed key ever tests negative: a key's additional bits are set before the
// table asks for them, and bits that it no longer asks for stay set until
// Settle.
func (s *Set) SetWeight(k key.Key, extra int) error {
	if extra > 0 && !s.Hashed(k.Shape) {
		return ErrHotFull
	}
	h := s.Hash(k)
	if extra == 0 {
		s.Cool(h)
		return nil
	}
	if extra < 0 || extra > MaxExtra {
		return fmt.Errorf("membership: %d extra bits for %v, the limit is %d", extra, k, MaxExtra)
	}
	if extra <= s.Classes.Extra(h) {
		return ErrHotFull // its class has as many
	}
	slot, ok := s.hot.slot(h, extra)
	if !ok {
		return ErrHotFull
	}
	// Listed is called here, rather than passed as an argument, because the
	// answer may have changed since the caller asked.
	if s.raised[h] < extra {
		if s.Listed == nil {
			return fmt.Errorf("membership: weight of %v: approximate set without Listed", k)
		}
		if s.Listed(k) {
			s.raise(h, extra)
		}
	}
	s.hot.put(slot, h, extra)
	return nil
}

// Cool removes the element with hash h from the hot table, if it is there.
func (s *Set) Cool(h uint64) {
	if slot, ok := s.hot.find(h); ok {
		s.hot.put(slot, h, 0)
	}
}

// Weight returns the number of extra bits of the element with hash h.
func (s *Set) Weight(h uint64) (extra int) { return s.hot.Find(h) }

// WeightBucket returns the bucket of the hot table for the element with hash h, which has
// room for BucketSlots elements.
func (s *Set) WeightBucket(h uint64) int { return s.hot.bucket(h) }

// Weights yields the hash and the number of extra bits of each hot element.
func (s *Set) Weights() iter.Seq2[uint64, int] { return s.hot.All() }

// Unsettled reports whether listed keys have bits set that the hot table no
// longer asks for.
func (s *Set) Unsettled() bool {
	for h, set := range s.raised {
		if set > s.hot.Find(h) {
			return true
		}
	}
	return false
}

// Settle clears those bits. Every program that started before the last call of
// SetWeight or Cool must have ended: it may have read the larger number, and
// would miss bits of a listed key.
func (s *Set) Settle() {
	for h := range s.raised {
		s.lower(h, s.hot.Find(h))
	}
}

// raise sets the extra bits of a listed key up to the given number.
func (s *Set) raise(h uint64, extra int) {
	if set := max(s.raised[h], s.Classes.Extra(h)); set < extra {
		s.cascade.AddExtra(h, set, extra)
		s.raised[h] = extra
	}
}

// lower clears the extra bits of a listed key down to the given number, or its class's.
func (s *Set) lower(h uint64, extra int) {
	of := s.Classes.Extra(h)
	extra = max(extra, of)
	if set := s.raised[h]; set > extra {
		s.cascade.RemoveExtra(h, extra, set)
		s.raised[h] = extra
	}
	if extra == of {
		delete(s.raised, h)
	}
}
