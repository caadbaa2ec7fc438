package membership

import "errors"

// Adopt returns an approximate set over the memory of one that another process has
// filled and changed, and that may have been killed at any moment. The set has the keys
// of the columns, which are distinct, and no others, whatever the memory contains: the
// bits that they need are computed on the heap, with their counters. Those that are not
// set are set, then others are cleared. changed is the number of both. No key that the
// memory had and the set is to have ever tests negative meanwhile, nor if this process is
// killed as well. grace waits until all programs that read the set now have ended.
//
// The other process must have ended, or at least write to the memory no more. If Adopt
// fails, with ErrNoRoom or because the sizes differ, the memory is as it was. All weights
// are 0 again.
func Adopt(l Layout, m Memory, columns []Column, grace func()) (s *Set, changed int, err error) {
	if l.Mode != Approximate || l.Lines == 0 {
		return nil, 0, errors.New("membership: only approximate sets can be adopted")
	}
	if s, err = NewSet(l, m); err != nil {
		return nil, 0, err
	}
	if err := s.admit(columns); err != nil {
		return nil, 0, err
	}
	if err := s.count(columns); err != nil {
		return nil, 0, err
	}
	missing, surplus := s.cascade.SetCounted()
	s.hot.clear()
	if surplus > 0 {
		// A program that runs may have missed what was set now, and would miss what is
		// cleared: a key of the same packet that was listed instead of another, or the
		// extra bits of a hot element.
		grace()
		s.cascade.ClearUncounted()
	}
	return s, missing + surplus, nil
}
