package quotient

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
)

const (
	// attempts is the number of keys that Build tries.
	attempts = 8
	// partLines is the size of a partition of Fill: its lines stay in the near
	// cache while it is filled.
	partLines = 2048
	// chunkEntries is the least number of entries worth a goroutine.
	chunkEntries = 1 << 14
)

// Build returns a set of the entries, sorted by address and distinct, in memory of
// its own and under a random key. It draws another key when one leaves no room. The
// error is ErrFull, ErrList or ErrOrder, or describes the layout.
func Build(l Layout, entries []Entry) (*Set, error) {
	for range attempts {
		s, err := New(l, NewKey())
		if err != nil {
			return nil, err
		}
		if err := s.Fill(entries); !errors.Is(err, ErrFull) {
			if err != nil {
				return nil, err
			}
			return s, nil
		}
	}
	return nil, ErrFull
}

// Fill adds entries, sorted by address and distinct, to an empty set, on all
// CPUs. After an error the memory must be cleared or discarded. The error is
// ErrFull, ErrList or ErrOrder.
//
// Added one after another, each entry would cost a cache miss. Fill first sorts
// the images by ranges of lines, so that it fills one range after another within
// the cache.
func (s *Set) Fill(entries []Entry) error {
	if s.len != 0 {
		return errors.New("quotient: Fill of a set that is not empty")
	}
	f := newFiller(s, entries)
	if err := f.check(); err != nil {
		return err
	}
	f.partition()
	f.place()
	for part := range f.parts {
		slots := f.sorted[f.starts[part]:][:f.exiled[part]]
		for _, v := range slots {
			if !s.overflow(s.locate(uint32(v)), uint16(v>>32)) {
				return ErrFull
			}
		}
	}
	s.len = len(entries)
	return nil
}

// filler is the work of one Fill.
type filler struct {
	*Set
	entries []Entry
	chunks  int // of entries, one for each goroutine
	parts   int
	sorted  []uint64 // the entries as slots of the spill, by partition
	starts  []int    // of each partition in sorted
	exiled  []int    // of each partition: its first slots are left for the spill
}

func newFiller(s *Set, entries []Entry) *filler {
	parts := (s.layout.Lines + partLines - 1) / partLines
	return &filler{
		Set:     s,
		entries: entries,
		chunks:  min(runtime.GOMAXPROCS(0), 1+len(entries)/chunkEntries),
		parts:   parts,
		sorted:  make([]uint64, len(entries)),
		exiled:  make([]int, parts),
	}
}

// check tests order and list numbers.
func (f *filler) check() error {
	highest := f.layout.MaxList()
	for i, e := range f.entries {
		if e.List == 0 || e.List > highest {
			return ErrList
		}
		if i > 0 && e.Addr <= f.entries[i-1].Addr {
			return ErrOrder
		}
	}
	return nil
}

// each calls do for each chunk of entries, at the same time.
func (f *filler) each(do func(chunk int, entries []Entry)) {
	var all sync.WaitGroup
	for c := range f.chunks {
		all.Go(func() {
			do(c, f.entries[c*len(f.entries)/f.chunks:(c+1)*len(f.entries)/f.chunks])
		})
	}
	all.Wait()
}

func (f *filler) part(p uint32) int {
	return int(uint64(p) * f.numLines >> 32 / partLines)
}

// partition is one pass of a radix sort: it counts, then moves.
func (f *filler) partition() {
	next := make([][]int, f.chunks)
	f.each(func(chunk int, entries []Entry) {
		count := make([]int, f.parts)
		for _, e := range entries {
			count[f.part(f.key.Permute(e.Addr))]++
		}
		next[chunk] = count
	})
	f.starts = make([]int, f.parts)
	sum := 0
	for part := range f.parts {
		f.starts[part] = sum
		for _, count := range next {
			count[part], sum = sum, sum+count[part]
		}
	}
	f.each(func(chunk int, entries []Entry) {
		next := next[chunk]
		for _, e := range entries {
			p := f.key.Permute(e.Addr)
			part := f.part(p)
			f.sorted[next[part]] = uint64(e.List)<<32 | uint64(p)
			next[part]++
		}
	})
}

// place fills the lines, one partition at a time on each CPU, and leaves what
// does not fit at the front of the partition.
func (f *filler) place() {
	var next atomic.Int64
	var all sync.WaitGroup
	for range f.chunks {
		all.Go(func() {
			for {
				part := int(next.Add(1)) - 1
				if part >= f.parts {
					return
				}
				f.exiled[part] = f.placePart(part)
			}
		})
	}
	all.Wait()
}

func (f *filler) placePart(part int) (exiled int) {
	end := len(f.sorted)
	if part+1 < f.parts {
		end = f.starts[part+1]
	}
	slots := f.sorted[f.starts[part]:end]
	for _, v := range slots {
		at := f.locate(uint32(v))
		in, ok := f.room(at)
		if !ok {
			slots[exiled] = v
			exiled++
			continue
		}
		f.set(in, f.entry(at.p, uint16(v>>32)))
	}
	return exiled
}
