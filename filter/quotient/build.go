package quotient

import (
	"errors"
	"iter"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// attempts is the number of secrets that Build tries.
	attempts = 8
	// partLines is the size of a partition of Fill: its lines stay in the near
	// cache while it is filled.
	partLines = 2048
	// chunkEntries is the least number of entries worth a goroutine.
	chunkEntries = 1 << 14
)

// Build returns a set of distinct entries, in memory of its own and under a random
// secret. It draws another secret when one leaves no room. The error is ErrFull or
// ErrList, or describes the layout.
func Build(l Layout, entries []Entry) (*Set, error) {
	for range attempts {
		s, err := New(l, NewSecret())
		if err != nil {
			return nil, err
		}
		if err := s.Fill(chunks(entries)...); !errors.Is(err, ErrFull) {
			if err != nil {
				return nil, err
			}
			return s, nil
		}
	}
	return nil, ErrFull
}

// chunks divides entries for Fill.
func chunks(entries []Entry) []iter.Seq[Entry] {
	n := min(runtime.GOMAXPROCS(0), 1+len(entries)/chunkEntries)
	chunks := make([]iter.Seq[Entry], n)
	for i := range chunks {
		chunks[i] = slices.Values(entries[i*len(entries)/n : (i+1)*len(entries)/n])
	}
	return chunks
}

// Fill adds entries to an empty set, each chunk on a CPU of its own. The keys must
// be distinct, and the chunks the same each time they are iterated over. After an
// error the memory must be cleared or discarded. The error is ErrFull or ErrList.
//
// Added one after another, each entry would cost a cache miss. Fill first sorts
// the images by ranges of lines, so that it fills one range after another within
// the cache.
func (s *Set) Fill(chunks ...iter.Seq[Entry]) error {
	if s.len != 0 {
		return errors.New("quotient: Fill of a set that is not empty")
	}
	parts := (s.layout.Lines + partLines - 1) / partLines
	f := &filler{Set: s, chunks: chunks, parts: parts, inSpill: make([]int, parts)}
	if err := f.partition(); err != nil {
		return err
	}
	f.place()
	for part := range f.parts {
		slots := f.sorted[f.starts[part]:][:f.inSpill[part]]
		for _, v := range slots {
			at, list := s.locate(v&imageMask), uint16(v>>listShift)
			if !s.overflow(at, list) && !(s.spillMove(at.p) && s.spillAdd(at, list)) {
				return ErrFull
			}
		}
	}
	s.len = len(f.sorted)
	return nil
}

// filler is the work of one Fill.
type filler struct {
	*Set
	chunks  []iter.Seq[Entry]
	parts   int
	sorted  []uint64 // the entries as slots of the spill, by partition
	starts  []int    // of each partition in sorted
	inSpill []int    // of each partition: its first slots are left for the spill
}

// each calls do for each chunk, at the same time.
func (f *filler) each(do func(chunk int, entries iter.Seq[Entry])) {
	var all sync.WaitGroup
	for c, entries := range f.chunks {
		all.Go(func() { do(c, entries) })
	}
	all.Wait()
}

func (f *filler) part(p uint64) int {
	return int(p * f.numWords >> (f.keyBits & 63) / (partLines * lineWords))
}

// partition is one pass of a radix sort: it counts, then moves.
func (f *filler) partition() error {
	highest := f.layout.MaxList()
	next := make([][]int, len(f.chunks))
	var failed atomic.Bool
	f.each(func(chunk int, entries iter.Seq[Entry]) {
		count := make([]int, f.parts)
		for e := range entries {
			if e.List == 0 || e.List > highest {
				failed.Store(true)
				return
			}
			count[f.part(f.permute(e.Key))]++
		}
		next[chunk] = count
	})
	if failed.Load() {
		return ErrList
	}
	f.starts = make([]int, f.parts)
	sum := 0
	for part := range f.parts {
		f.starts[part] = sum
		for _, count := range next {
			count[part], sum = sum, sum+count[part]
		}
	}
	f.sorted = make([]uint64, sum)
	f.each(func(chunk int, entries iter.Seq[Entry]) {
		next := next[chunk]
		for e := range entries {
			p := f.permute(e.Key)
			part := f.part(p)
			f.sorted[next[part]] = slot(p, e.List)
			next[part]++
		}
	})
	return nil
}

// place fills the lines, one partition at a time on each CPU, and leaves what
// does not fit at the front of the partition.
func (f *filler) place() {
	var next atomic.Int64
	var all sync.WaitGroup
	for range len(f.chunks) {
		all.Go(func() {
			for {
				part := int(next.Add(1)) - 1
				if part >= f.parts {
					return
				}
				f.inSpill[part] = f.placePart(part)
			}
		})
	}
	all.Wait()
}

func (f *filler) placePart(part int) (inSpill int) {
	end := len(f.sorted)
	if part+1 < f.parts {
		end = f.starts[part+1]
	}
	slots := f.sorted[f.starts[part]:end]
	for _, v := range slots {
		at := f.locate(v & imageMask)
		f.setFront(at.p)
		list := uint16(v >> listShift)
		in, ok := f.free(at.first)
		if !ok {
			in, ok = f.free(at.second)
		}
		if ok {
			f.lines[in.word] |= f.entry(at, in, list) << (in.shift & 63) // no program reads it yet
			continue
		}
		if in, ok = f.room(at); ok {
			f.set(in, f.entry(at, in, list))
			continue
		}
		slots[inSpill] = v
		inSpill++
	}
	return inSpill
}
