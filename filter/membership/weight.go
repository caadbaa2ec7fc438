package membership

import (
	"errors"
	"fmt"
	"iter"

	"weir/filter/key"
)

// ErrHotFull says that an element gets no weight: its bucket of the hot table
// is full of others with at least as many extra bits, or the layout has no hot
// table. It costs rate, nothing else.
var ErrHotFull = errors.New("membership: no room in the hot table")

// SetWeight gives an element so many extra bits, 0 … MaxExtra; 0 takes it out of
// the hot table. A hotter element may overwrite a cooler one that shares its
// bucket. It fails with ErrHotFull, and in approximate mode without Listed, and
// then changes nothing.
//
// No listed key ever tests negative: the bits of a key that gets more are set
// before the table says so, and those of a key that gets fewer stay set until
// Settle.
func (s *Set) SetWeight(k key.Key, extra int) error {
	h := k.Hash(s.Seed)
	if extra == 0 {
		s.Cool(h)
		return nil
	}
	if extra < 0 || extra > MaxExtra {
		return fmt.Errorf("membership: %d extra bits for %v, the limit is %d", extra, k, MaxExtra)
	}
	slot, ok := s.hot.slot(h, extra)
	if !ok {
		return ErrHotFull
	}
	// Whether the key is listed is asked here and now, of the one who knows,
	// rather than taken from a caller who may have known it a moment ago.
	if s.raised[h] < extra {
		if s.Listed == nil {
			return fmt.Errorf("membership: weight of %v: an approximate set cannot tell whether it is listed: Listed is not set", k)
		}
		if s.Listed(k) {
			s.raise(h, extra)
		}
	}
	s.hot.put(slot, h, extra)
	return nil
}

// Cool takes the element with hash h out of the hot table, if it is there.
func (s *Set) Cool(h uint64) {
	if slot, ok := s.hot.find(h); ok {
		s.hot.put(slot, h, 0)
	}
}

// Weight is the number of extra bits of the element with hash h.
func (s *Set) Weight(h uint64) (extra int) { return s.hot.Find(h) }

// Weights gives the hash and the number of extra bits of each hot element.
func (s *Set) Weights() iter.Seq2[uint64, int] { return s.hot.All() }

// Unsettled reports whether bits of listed keys are set that the hot table no
// longer asks for.
func (s *Set) Unsettled() bool {
	for h, set := range s.raised {
		if set > s.hot.Find(h) {
			return true
		}
	}
	return false
}

// Settle clears those bits. No program may still run that began before the last
// call of SetWeight or Cool: it may have read the larger number, and would find
// bits of a listed key missing.
func (s *Set) Settle() {
	for h := range s.raised {
		s.lower(h, s.hot.Find(h))
	}
}

// raise sets the extra bits of a listed key up to so many.
func (s *Set) raise(h uint64, extra int) {
	if set := s.raised[h]; set < extra {
		s.cascade.AddExtra(h, set, extra)
		s.raised[h] = extra
	}
}

// lower clears the extra bits of a listed key down to so many.
func (s *Set) lower(h uint64, extra int) {
	if set := s.raised[h]; set > extra {
		s.cascade.RemoveExtra(h, extra, set)
		s.raised[h] = extra
	}
	if extra == 0 {
		delete(s.raised, h)
	}
}
