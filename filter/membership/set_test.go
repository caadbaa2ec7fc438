package membership

import (
	"errors"
	"slices"
	"testing"

	"weir/filter/key"
	"weir/tests/long"
)

// matches returns the lists of all keys that match a packet, by trying every
// shape.
func matches(keys map[key.Key]uint16, t key.Tuple) map[key.Key]uint16 {
	found := make(map[key.Key]uint16)
	for _, s := range shapes {
		if k, ok := s.Of(t); ok {
			if list, ok := keys[k]; ok {
				found[k] = list
			}
		}
	}
	return found
}

// attributed reports whether a match may be attributed to a list, given all
// matching keys: addresses come before flows, more bits before fewer.
func attributed(found map[key.Key]uint16, list uint16) bool {
	rank := func(k key.Key) int {
		if bits := int(k.SrcBits) + int(k.DstBits); !k.Tuple() {
			return 1000 + bits
		} else {
			return bits
		}
	}
	best := -1
	for k := range found {
		best = max(best, rank(k))
	}
	for k, l := range found {
		if l == list && rank(k) == best {
			return true
		}
	}
	return false
}

// checkSet compares the set with the keys that it should contain, for each of
// them and for random packets.
func checkSet(t *testing.T, s *Set, keys map[key.Key]uint16, r random) {
	t.Helper()
	if s.Len() != len(keys) {
		t.Fatalf("%d keys, want %d", s.Len(), len(keys))
	}
	for k, list := range keys {
		got, ok := s.Lookup(k)
		if !ok || s.Mode == Exact && got != int(list) || s.Mode == Approximate && got != 0 {
			t.Fatalf("%v: list %d %t, want %d", k, got, ok, list)
		}
		// A packet with exactly these addresses must pass the markers.
		packet := key.Tuple{Src: k.Src, Dst: k.Dst, Proto: k.Proto, HasPorts: true, SrcPort: k.SrcPort, DstPort: k.DstPort}
		if _, ok := s.Match(packet); !ok {
			t.Fatalf("%v: the packet %+v does not match", k, packet)
		}
	}
	for range 2000 {
		packet := r.tuple()
		found := matches(keys, packet)
		list, ok := s.Match(packet)
		switch {
		case !ok && len(found) > 0:
			t.Fatalf("%+v does not match, but is listed by %v", packet, found)
		case s.Mode == Approximate:
		case ok && len(found) == 0:
			t.Fatalf("%+v matches list %d, but is not listed", packet, list)
		case ok && !attributed(found, uint16(list)):
			t.Fatalf("%+v is attributed to list %d, but matches %v", packet, list, found)
		}
	}
}

func TestSetAgainstMap(t *testing.T) {
	for _, mode := range []Mode{Exact, Approximate} {
		t.Run(mode.String(), func(t *testing.T) {
			r := newRandom(t)
			for range 20 {
				testSetAgainstMap(t, mode, r)
			}
		})
	}
}

func testSetAgainstMap(t *testing.T, mode Mode, r random) {
	keys := make(map[key.Key]uint16)
	var listed []key.Key
	list := func(k key.Key) {
		keys[k] = uint16(1 + r.IntN(5))
		listed = append(listed, k)
	}
	for _, s := range shapes { // all are in use, whatever comes and goes
		for {
			tuple := r.tuple()
			tuple.HasPorts = true
			if k, ok := s.Of(tuple); ok {
				list(k)
				break
			}
		}
	}
	for range 500 {
		if k := r.key(); keys[k] == 0 {
			list(k)
		}
	}
	s := newSet(t, census(keys), mode, 12, r.Uint64())
	if err := s.Fill(columns(keys)); err != nil {
		t.Fatal(err)
	}
	checkSet(t, s, keys, r)

	for range 3000 {
		switch i := r.IntN(len(listed)); r.IntN(4) {
		case 0, 1:
			k := r.key()
			if keys[k] != 0 {
				continue
			}
			if err := s.Add(k, 1); err == nil {
				list(k)
				s.SetList(k, keys[k])
			} else if !errors.Is(err, ErrNoRoom) || s.hashed() < s.Capacity {
				t.Fatal(err)
			}
		case 2:
			if !s.Remove(listed[i]) {
				t.Fatalf("%v cannot be removed", listed[i])
			}
			delete(keys, listed[i])
			listed = slices.Delete(listed, i, i+1)
			if k := r.key(); mode == Exact && keys[k] == 0 && s.Remove(k) {
				t.Fatalf("%v could be removed, but was not listed", k)
			}
		case 3:
			keys[listed[i]] = uint16(1 + r.IntN(5))
			s.SetList(listed[i], keys[listed[i]])
		}
	}
	checkSet(t, s, keys, r)
	for _, k := range listed {
		s.Remove(k)
	}
	if slices.ContainsFunc(slices.Concat(s.memory.Lines, s.memory.Buckets), func(w uint64) bool { return w != 0 }) && s.cascade.Saturated() == 0 {
		t.Error("removing all keys leaves bits or slots in use")
	}
	if cascade, table := s.Load(); cascade != 0 || table != 0 {
		t.Errorf("the empty set is loaded to %v and %v", cascade, table)
	}
}

func TestSetWithoutKeys(t *testing.T) {
	r := newRandom(t)
	var none *Set
	for _, s := range []*Set{none, newSet(t, Census{}, Exact, 0, 1), newSet(t, Census{}, Approximate, 16, 1)} {
		if s.Len() != 0 {
			t.Error("the empty set has a length")
		}
		if _, ok := s.Match(r.tuple()); ok {
			t.Error("the empty set matches")
		}
	}
	if err := newSet(t, Census{}, Exact, 0, 1).Add(r.key(), 1); !errors.Is(err, ErrNoRoom) {
		t.Errorf("adding to the set without shapes: %v", err)
	}
}

// A key that does not fit is rejected, and the set is unchanged.
func TestSetNoRoom(t *testing.T) {
	for _, mode := range []Mode{Exact, Approximate} {
		shape := key.Shape{SrcBits: 32, DstBits: 32}
		s := newSet(t, Census{Keys: map[key.Shape]int{shape: 10}}, mode, 16, 1)
		c := numbered(shape, 0, s.Capacity+1, 0)
		if err := s.Fill([]Column{c}); !errors.Is(err, ErrNoRoom) {
			t.Fatalf("more keys than the capacity: %v", err)
		}
		if err := s.Fill([]Column{numbered(key.Shape{SrcBits: 24, DstBits: 32}, 0, 1, 0)}); !errors.Is(err, ErrNoRoom) {
			t.Fatalf("a shape that is not in use: %v", err)
		}
		if err := s.Fill([]Column{numbered(shape, 0, s.Capacity, 0)}); err != nil {
			t.Fatal(err)
		}
		k, err := key.Parse(c.Keys[s.Capacity*shape.KeyLen():])
		if err != nil {
			t.Fatal(err)
		}
		before := slices.Concat(s.memory.Lines, s.memory.Buckets)
		if err := s.Add(k, 1); !errors.Is(err, ErrNoRoom) {
			t.Fatalf("a key beyond the capacity: %v", err)
		}
		if !slices.Equal(slices.Concat(s.memory.Lines, s.memory.Buckets), before) || s.Len() != s.Capacity {
			t.Error("a rejected key has changed the set")
		}
		if !s.Remove(mustParse(t, c.Keys[:shape.KeyLen()])) {
			t.Fatal("a listed key cannot be removed")
		}
		if err := s.Add(k, 1); err != nil {
			t.Errorf("no room after a removal: %v", err)
		}
	}
}

func mustParse(t *testing.T, b []byte) key.Key {
	t.Helper()
	k, err := key.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// A key that finds no room in the table leaves the cascade unchanged.
func TestSetRejectsWithTable(t *testing.T) {
	r := newRandom(t)
	shape := key.Shape{SrcBits: 32, DstBits: 32}
	s := newSet(t, Census{Keys: map[key.Shape]int{shape: 10}}, Exact, 0, r.Uint64())
	k := mustParse(t, numbered(shape, 0, 1, 0).Keys)
	if err := s.Add(k, 1); err != nil {
		t.Fatal(err)
	}
	for s.table.Add(r.Uint64(), 1) == nil {
	}
	before := slices.Clone(s.memory.Lines)
	// One key may find room where others did not.
	full := 0
	for _, h := range numbered(shape, 1, 1000, 0).hashes(s.Secret) {
		if s.table.Add(h, 1) != nil {
			full++
		}
	}
	rejected := numbered(shape, 1001, 100, 0)
	for i := range rejected.Lists {
		k := mustParse(t, rejected.Keys[i*shape.KeyLen():(i+1)*shape.KeyLen()])
		if err := s.Add(k, 1); err == nil {
			s.Remove(k)
		} else if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
	}
	if full == 0 || !slices.Equal(s.memory.Lines, before) {
		t.Error("a key that found no room has changed the cascade")
	}
}

// Two keys whose hashes are equal are both found until both are removed, whether
// they have weights or not. The same key twice stands for such a pair.
func TestSetCollision(t *testing.T) {
	r := newRandom(t)
	shape := key.Shape{SrcBits: 32, DstBits: 32}
	c := Census{Keys: map[key.Shape]int{shape: 10}}
	pair := numbered(shape, 0, 1, 0)
	k := mustParse(t, pair.Keys)
	for _, filled := range []bool{false, true} {
		l, err := PlanLayout(c, Exact, 0, secretOf(r.Uint64()))
		if err != nil {
			t.Fatal(err)
		}
		l.PlanHot(10)
		s, err := NewSet(l, l.Alloc())
		if err != nil {
			t.Fatal(err)
		}
		h := k.Hash(s.Secret)
		if filled {
			err = s.Fill([]Column{{Shape: shape, Keys: slices.Concat(pair.Keys, pair.Keys), Lists: []uint16{1, 2}}})
		} else {
			err = errors.Join(s.Add(k, 1), s.Add(k, 2))
		}
		if err := errors.Join(err, s.SetWeight(k, 3)); err != nil {
			t.Fatal(err)
		}
		for left := 2; left > 0; left-- {
			if _, ok := s.lookup(h); !ok || s.Len() != left {
				t.Errorf("%d keys with one hash: found %t, %d keys", left, ok, s.Len())
			}
			if !s.Remove(k) {
				t.Errorf("the last but %d cannot be removed", left-1)
			}
		}
		if _, ok := s.lookup(h); ok || s.Remove(k) || s.Len() != 0 {
			t.Error("one is left")
		}
		if i := slices.IndexFunc(s.memory.Lines, func(w uint64) bool { return w != 0 }); i >= 0 {
			t.Error("bits are left")
		}
	}
}

// lookup looks key i of a column up, which has hash h.
func lookup(s *Set, c Column, i int, h uint64) (list int, ok bool) {
	if s.Hashed(c.Shape) {
		return s.lookup(h)
	}
	size := c.Shape.KeyLen()
	k, err := key.Parse(c.Keys[i*size : (i+1)*size])
	if err != nil {
		panic(err)
	}
	return s.Lookup(k)
}

// No listed key is missed: a million random keys of all kinds, with WEIR_LONG=1 four, and
// those that remain after others are removed.
func TestNoFalseNegative(t *testing.T) {
	long.Seconds(t)
	n := long.Or(1_000_000, 4_000_000)
	v6 := key.FieldV6
	flow := key.FieldProto | key.FieldSrcPort | key.FieldDstPort
	for _, mode := range []Mode{Exact, Approximate} {
		t.Run(mode.String(), func(t *testing.T) {
			r := newRandom(t)
			var columns []Column
			c := Census{Keys: make(map[key.Shape]int), Highest: 3}
			for _, shape := range []key.Shape{
				{SrcBits: 32}, {Fields: v6, SrcBits: 128}, {Fields: flow, SrcBits: 32, DstBits: 32}, {Fields: v6 | flow, SrcBits: 128, DstBits: 128},
			} {
				columns = append(columns, numbered(shape, 0, n/4, r.Uint64()))
				c.Keys[shape] = n / 4
			}
			s := newSet(t, c, mode, 16, r.Uint64())
			if err := s.Fill(columns); err != nil {
				t.Fatal(err)
			}
			check := func(column, every int) {
				for i, h := range columns[column].hashes(s.Secret) {
					if i%every != 0 {
						continue
					}
					if list, ok := lookup(s, columns[column], i, h); !ok || mode == Exact && list != int(columns[column].Lists[i]) {
						t.Fatalf("key %d of column %d: list %d %t, want %d", i, column, list, ok, columns[column].Lists[i])
					}
				}
			}
			for i := range columns {
				check(i, 1)
			}
			// Remove every other key of the columns, in random order.
			for _, c := range columns[:2] {
				size := c.Shape.KeyLen()
				for i := 1; i < len(c.Lists); i += 2 {
					if !s.Remove(mustParse(t, c.Keys[i*size:(i+1)*size])) {
						t.Fatalf("key %d cannot be removed", i)
					}
				}
			}
			check(0, 2)
			check(1, 2)
			check(2, 1)
			check(3, 1)
		})
	}
}
