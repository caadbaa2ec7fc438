package membership

import (
	"iter"
	"sync"

	"weir/filter/cascade"
	"weir/filter/internal/parallel"
	"weir/filter/key"
)

// Column contains many keys of one shape: their concatenated serialisations and
// the list number of each.
type Column struct {
	Shape key.Shape
	Keys  []byte
	Lists []uint16
}

// Touch4 marks the /24 networks that the column's IPv4 keys cover, by source
// or, if sources are not matched, by destination. A [Census] counts these
// marks.
func (c Column) Touch4(src, dst Marks4) {
	gate := widestGate(c.Shape)
	if c.Shape.V6() || gate == GateAlways {
		return
	}
	s := Set{marks4: [2]Marks4{src, dst}}
	s.markColumn(c, gate)
}

// Fill adds the keys of all columns, and the prefixes of all chunks, to an empty set without weights that no
// program uses yet. The keys must be distinct. It takes seconds where Add, key
// by key, would take minutes: hashes are sorted by the memory that they touch,
// and cascade and table are filled concurrently. It fails as Add does; the set
// must then be discarded.
func (s *Set) Fill(columns []Column, prefixes ...iter.Seq[Prefix]) error {
	var hashed []Column
	for _, c := range columns {
		if s.Hashed(c.Shape) {
			hashed = append(hashed, c)
		} else {
			prefixes = append(prefixes, c.prefixes())
		}
	}
	if s.len != 0 || s.hot.len != 0 {
		return ErrNoRoom
	}
	if err := s.fillPrefixes(prefixes); err != nil {
		return err
	}
	return s.fillHashed(hashed)
}

func (s *Set) fillHashed(columns []Column) error {
	if err := s.admit(columns); err != nil {
		return err
	}
	if err := s.count(columns); err != nil {
		return err
	}
	s.cascade.SetCounted()
	return nil
}

// admit marks the networks of all keys of the columns and counts the keys, if there is room
// for them in an empty set.
func (s *Set) admit(columns []Column) error {
	n := 0
	for _, c := range columns {
		if _, ok := s.gate(c.Shape); !ok {
			return ErrNoRoom
		}
		n += len(c.Lists)
	}
	if n > s.Capacity {
		return ErrNoRoom
	}
	for _, c := range columns {
		gate, _ := s.gate(c.Shape)
		s.markColumn(c, gate)
		s.keys[c.Shape] += len(c.Lists)
	}
	s.len += n
	return nil
}

// countAtOnce bounds the memory of hashes: three words each.
const countAtOnce = 1 << 24

// count adds the keys of the columns to the cascade's counters, and to the table of an exact
// set.
func (s *Set) count(columns []Column) error {
	for _, c := range columns {
		size := c.Shape.KeyLen()
		for len(c.Lists) > 0 {
			n := min(countAtOnce, len(c.Lists))
			hashes := make([]uint64, n)
			s.sum(hashes, Column{Shape: c.Shape, Keys: c.Keys[:n*size]})
			hashes, lists := cascade.Partition(hashes, c.Lists[:n])
			c.Keys, c.Lists = c.Keys[n*size:], c.Lists[n:]
			var (
				wg  sync.WaitGroup
				err error
			)
			if s.Mode == Exact {
				wg.Go(func() {
					for i, h := range hashes {
						if err = s.table.Add(h, lists[i]); err != nil {
							return
						}
					}
				})
			}
			s.cascade.Count(hashes)
			s.countClasses(hashes)
			wg.Wait()
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// countClasses adds the extra bits of the keys' classes to the cascade's counters.
func (s *Set) countClasses(hashes []uint64) {
	if s.Classes == nil {
		return
	}
	var with [MaxExtra + 1][]uint64
	for _, h := range hashes {
		if extra := s.Classes.Extra(h); extra > 0 {
			with[extra] = append(with[extra], h)
		}
	}
	for extra, hashes := range with {
		s.cascade.CountBehind(hashes, s.Rest, s.Rest+extra)
	}
}

// sum hashes the keys of a column on all cores.
func (s *Set) sum(dst []uint64, c Column) {
	size := c.Shape.KeyLen()
	parallel.Ranges(len(dst), func(from, to int) {
		for i := from; i < to; i++ {
			dst[i] = s.hash(c.Keys[i*size : (i+1)*size])
		}
	})
}

func (s *Set) markColumn(c Column, g Gate) {
	if g == GateAlways && s.reach == nil {
		return
	}
	size := c.Shape.KeyLen()
	for i := 0; i < len(c.Keys); i += size {
		s.mark(c.Keys[i:i+size], g)
	}
}
