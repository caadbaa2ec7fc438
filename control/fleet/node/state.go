package node

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/filter/snapshot"
)

// state is a version of a list. It is immutable.
type state struct {
	wire.Place
	id, seal string    // as the hub says them; "": unknown
	entries  *list.Set // of the version, with those that have expired since
	sum      snapshot.Sum
	timed    []timed
	seq      uint64 // in the stream, of the delta that led here; 0: unknown
}

// timed is an entry that expires.
type timed struct {
	wire.Expiry
	entry list.Entries // Expiry.Entry, parsed
}

func parseExpiry(e wire.Expiry) (timed, error) {
	entry, err := listfile.ParseEntry(e.Entry)
	if err != nil {
		return timed{}, fmt.Errorf("expiry: %w", err)
	}
	return timed{e, entry}, nil
}

// stateOf returns the state that a snapshot describes.
func stateOf(h wire.Head, whole []byte) (*state, error) {
	set, expires, err := wire.OpenSnapshot(h, whole)
	if err != nil {
		return nil, err
	}
	s := &state{Place: h.Place, id: h.ID, seal: h.Seal, entries: set}
	if s.sum, err = snapshot.ParseSum(h.Sum); err != nil {
		return nil, err
	}
	for _, e := range expires {
		t, err := parseExpiry(e)
		if err != nil {
			return nil, err
		}
		s.timed = append(s.timed, t)
	}
	return s, nil
}

// differ reports whether two IDs are of different versions.
func differ(a, b string) bool { return a != "" && b != "" && a != b }

// errBroken means that a delta does not lead from the version that it names to the
// one that it promises.
var errBroken = errors.New("the delta does not match the version before it")

// apply returns the state after a delta that begins at s.
func (s *state) apply(d wire.Delta, seq uint64) (*state, error) {
	fail := func(err error) (*state, error) {
		return nil, fmt.Errorf("list %q, from version %v to %d: %w", d.List, s.Place, d.To, errors.Join(errBroken, err))
	}
	if d.Epoch != s.Epoch || d.From != s.Version || differ(d.FromID, s.id) {
		return fail(nil)
	}
	change, err := d.Set()
	if err != nil {
		return fail(err)
	}
	next := &state{Place: wire.Place{Epoch: d.Epoch, Version: d.To}, id: d.ID, seal: d.Seal, sum: s.sum, timed: s.timed, seq: seq}
	var n int
	if next.entries, n = s.entries.Apply(change); n != change.Len() || next.entries.Len() != d.Entries {
		return fail(nil)
	}
	next.sum.Add(d.Add)
	next.sum.Remove(d.Remove)
	if next.sum.String() != d.Sum {
		return fail(nil)
	}
	if err := next.expire(d); err != nil {
		return fail(err)
	}
	return next, nil
}

// expire takes in what a delta that led to s says of expiries, which replaces what
// was said of the same entries before.
func (s *state) expire(d wire.Delta) error {
	if len(d.Expires) == 0 && len(d.Remove) == 0 {
		return nil
	}
	said := make(map[string]timed)
	for _, e := range d.Expires {
		t, err := parseExpiry(e)
		if err != nil {
			return err
		}
		said[e.Entry] = t
	}
	var left []timed
	keep := func(t timed) {
		if !t.At.IsZero() && s.has(t.entry) {
			left = append(left, t)
		}
	}
	for _, t := range s.timed {
		if _, again := said[t.Entry]; !again {
			keep(t)
		}
	}
	for _, t := range said {
		keep(t)
	}
	s.timed = left
	return nil
}

func (s *state) has(e list.Entries) bool {
	for _, p := range e.V4 {
		if !s.entries.Has(p.Key(true)) {
			return false
		}
	}
	for _, p := range e.V6 {
		if !s.entries.Has(list.V6Of(p).Key(true)) {
			return false
		}
	}
	return !slices.ContainsFunc(e.Flows, func(k key.Key) bool { return !s.entries.Has(k) })
}

// expired returns the number of entries that have expired at a time, and when the
// next one does.
func (s *state) expired(now time.Time) (n int, next time.Time) {
	for _, t := range s.timed {
		switch {
		case !t.At.After(now):
			n++
		case next.IsZero() || t.At.Before(next):
			next = t.At
		}
	}
	return n, next
}

// active returns the entries that have not expired.
func (s *state) active(now time.Time) *list.Set {
	var over list.Entries
	for _, t := range s.timed {
		if !t.At.After(now) {
			over.V4, over.V6, over.Flows = append(over.V4, t.entry.V4...), append(over.V6, t.entry.V6...), append(over.Flows, t.entry.Flows...)
		}
	}
	left, _ := s.entries.Apply(list.Delta{Remove: over.Set()})
	return left
}

// expiries returns what expires, for a snapshot.
func (s *state) expiries() []wire.Expiry {
	all := make([]wire.Expiry, len(s.timed))
	for i, t := range s.timed {
		all[i] = t.Expiry
	}
	return all
}
