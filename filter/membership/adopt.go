package membership

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"weir/filter/invertible"
)

// ErrDifferent means that memory cannot be adopted, since it contains too many other
// keys than the set is to have. The next generation must be built.
var ErrDifferent = errors.New("membership: the memory contains other keys")

// Adopt returns an approximate set over the memory of one that another process has
// filled and changed, and that may have been killed at any moment: what it left half
// done is finished. The set has the keys of the columns, which are distinct, and no
// others: where it differs in up to some ten thousand, these are added, then removed;
// changed is their number. No key that it had and is to have ever tests negative
// meanwhile. grace waits until all programs that read the set now have ended.
//
// The other process must have ended, or at least write to the memory no more. If Adopt
// fails, with ErrDifferent, ErrNoRoom or because the memory is damaged, the memory still
// is one that can be adopted. All weights are 0 again. The bits that they have added to
// listed keys stay, which costs false positives.
func Adopt(l Layout, m Memory, columns []Column, grace func()) (s *Set, changed int, err error) {
	if l.Mode != Approximate || l.Lines == 0 {
		return nil, 0, errors.New("membership: only approximate sets can be adopted")
	}
	if s, err = NewSet(l, m); err != nil {
		return nil, 0, err
	}
	for _, c := range columns {
		if _, ok := s.gate(c.Shape); !ok {
			return nil, 0, ErrNoRoom
		}
		s.keys[c.Shape] += len(c.Lists)
		s.len += len(c.Lists)
	}
	if s.len > s.Capacity {
		return nil, 0, ErrNoRoom
	}
	if err := s.record.finish(); err != nil {
		return nil, 0, err
	}
	missing, surplus, ok := s.tabulate(columns).Minus(s.record.keys).List()
	if !ok {
		return nil, 0, ErrDifferent
	}
	for _, h := range surplus {
		if !s.cascade.Contains(h) {
			return nil, 0, fmt.Errorf("membership: a key of the record is not in the cascade")
		}
	}
	s.hot.clear()
	s.addMissing(columns, missing)
	if len(missing) > 0 && len(surplus) > 0 {
		grace()
	}
	for _, h := range surplus {
		s.record.change(removing, h)
	}
	return s, len(missing) + len(surplus), nil
}

// tabulate returns the table of the columns' keys.
func (s *Set) tabulate(columns []Column) *invertible.Table {
	workers := runtime.GOMAXPROCS(0)
	tables := make([]*invertible.Table, workers)
	var all sync.WaitGroup
	for w := range workers {
		tables[w], _ = invertible.New(make([]uint64, recordWords-recordHead))
		all.Go(func() {
			for _, c := range columns {
				size, n := c.Shape.KeyLen(), len(c.Lists)
				for i := n * w / workers; i < n*(w+1)/workers; i++ {
					tables[w].Insert(s.Secret.Sum(c.Keys[i*size : (i+1)*size]))
				}
			}
		})
	}
	all.Wait()
	for _, t := range tables[1:] {
		tables[0].Add(t)
	}
	return tables[0]
}

// addMissing adds the keys of the columns that have these hashes.
func (s *Set) addMissing(columns []Column, hashes []uint64) {
	if len(hashes) == 0 {
		return
	}
	missing := make(map[uint64]bool, len(hashes))
	for _, h := range hashes {
		missing[h] = true
	}
	for _, c := range columns {
		gate, _ := s.gate(c.Shape)
		size := c.Shape.KeyLen()
		for ; len(c.Keys) > 0; c.Keys = c.Keys[size:] {
			serialised := c.Keys[:size]
			if h := s.Secret.Sum(serialised); missing[h] {
				s.mark(serialised, gate)
				s.record.change(adding, h)
			}
		}
	}
}
