package quotient

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/tests/long"
	"weir/tests/seed"
)

// fixed returns a generator with a fixed seed, for statistical bounds.
func fixed(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

func randomSecret(r *rand.Rand) Secret {
	return Secret{r.Uint64(), [3]uint64{r.Uint64() | 1, r.Uint64() | 1, r.Uint64() | 1}}
}

// randomEntries returns n sorted entries of 32 bits with lists 1 … highest.
func randomEntries(r *rand.Rand, n int, highest uint16) []Entry {
	return randomEntriesOf(32, r, n, highest)
}

func randomEntriesOf(keyBits int, r *rand.Rand, n int, highest uint16) []Entry {
	entries := make([]Entry, 0, n+n/16)
	for len(entries) < n {
		for range n - len(entries) + n/64 {
			entries = append(entries, Entry{r.Uint64() >> (64 - keyBits), 1 + uint16(r.UintN(uint(highest)))})
		}
		slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Key, b.Key) })
		entries = slices.CompactFunc(entries, func(a, b Entry) bool { return a.Key == b.Key })
	}
	// Not those at the end alone.
	for len(entries) > n {
		i := r.IntN(len(entries))
		entries = slices.Delete(entries, i, min(i+len(entries)-n, len(entries)))
	}
	return entries
}

func newSet(t testing.TB, l Layout, secret Secret) *Set {
	t.Helper()
	s, err := New(l, secret)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// read looks an image up as the package comment describes it, lane by lane.
func read(l Layout, lines, spill, front []uint64, p uint64) uint16 {
	if l.Front > 0 {
		w, t := front[p*uint64(l.Front)>>l.KeyBits], uint32(p)*0x85ebca6b
		if w>>(t>>26)&1 == 0 || w>>(t>>20%64)&1 == 0 || w>>(t>>14%64)&1 == 0 {
			return 0
		}
	}
	numWords, numBuckets := uint64(l.Lines)*8, uint64(l.Buckets)
	lanes := map[int]int{63: 1, 31: 2, 21: 3, 15: 4, 12: 5}[l.LaneBits]
	r := 0
	for uint64(1)<<r*numWords < 1<<l.KeyBits {
		r++
	}
	remainder := p & (1<<r - 1)
	first := p * numWords >> l.KeyBits
	second := first ^ uint64(uint32(remainder)*0x9e3779b1>>26&7|1)
	for i, word := range []uint64{first, second} {
		for n := range lanes {
			lane := lines[word] >> (n * l.LaneBits) & (1<<l.LaneBits - 1)
			if lane>>(r+1) != 0 && lane&(1<<(r+1)-1) == uint64(i)<<r|remainder {
				return uint16(lane >> (r + 1))
			}
		}
	}
	if lines[first]>>63 == 0 {
		return 0
	}
	n := uint32(first)
	bucket1 := uint64(n*0x9e3779b1) * numBuckets >> 32
	bucket2 := (bucket1 + 1 + uint64(n*0x85ebca6b)*(numBuckets-1)>>32) % numBuckets
	for _, b := range []uint64{bucket1, bucket2} {
		for _, slot := range spill[b*8 : b*8+8] {
			if slot>>48 != 0 && slot&(1<<48-1) == p {
				return uint16(slot >> 48)
			}
		}
	}
	return 0
}

// check compares the set with its expected contents and tests its invariants.
func check(t testing.TB, s *Set, want map[uint64]uint16) {
	t.Helper()
	got := make(map[uint64]uint16)
	for e := range s.All() {
		if _, twice := got[e.Key]; twice {
			t.Fatalf("key %#x is present twice", e.Key)
		}
		got[e.Key] = e.List
	}
	if !maps.Equal(got, want) {
		t.Fatalf("All returned %d entries that are not the %d expected", len(got), len(want))
	}
	if s.Len() != len(want) {
		t.Fatalf("Len %d, want %d", s.Len(), len(want))
	}
	for addr, list := range want {
		if got, ok := s.Lookup(addr); !ok || got != list {
			t.Fatalf("address %#x: list %d %t, want %d", addr, got, ok, list)
		}
		if got := read(s.layout, s.lines, s.spill, s.front, s.permute(addr)); got != list {
			t.Fatalf("address %#x: list %d in memory, want %d", addr, got, list)
		}
	}
	spilledWords := make(map[int]bool)
	inSpill := 0
	for _, slot := range s.spill {
		if slot != 0 {
			inSpill++
			spilledWords[s.locate(slot&imageMask).first] = true
		}
	}
	if inSpill != s.InSpill() {
		t.Fatalf("InSpill %d, but %d slots are in use", s.InSpill(), inSpill)
	}
	for i, w := range s.lines {
		if w>>63 != 0 != spilledWords[i] {
			t.Fatalf("word %d: bit 63 is %d, but entries in the spill: %t", i, w>>63, spilledWords[i])
		}
		if w&^spilled>>min(s.lanes*s.layout.LaneBits, 63) != 0 {
			t.Fatalf("word %d: %#x has bits above the lanes", i, w)
		}
	}
}

// layouts has small ones of each width, with powers of two and others.
func layouts() []Layout {
	return []Layout{
		{32, 31, 1, 2, 0}, {33, 31, 3, 3, 1}, {34, 31, 1000, 9, 500}, {33, 63, 1, 2, 3}, {34, 63, 6, 3, 0},
		{32, 21, 1 << 10, 2, 0}, {33, 21, 4<<10 + 3, 5, 99},
		{32, 15, 1 << 16, 2, 0}, {34, 15, 5<<16 - 1, 4, 0},
		{32, 12, 1 << 19, 2, 0}, {32, 12, 1<<19 + 7, 6, 0},
	}
}

func (l Layout) String() string {
	return fmt.Sprintf("%d bits, lanes of %d, %d lines, %d buckets", l.KeyBits, l.LaneBits, l.Lines, l.Buckets)
}

// images returns those that crowd into few places of a set.
func images(r *rand.Rand, s *Set) []uint64 {
	var all []uint64
	line := func(line uint64, keep func(p uint64) bool, n int) {
		start := s.start(8 * line)
		end := (8*line + 8) << s.keyBits / s.numWords
		for tries := 0; n > 0 && tries < 1<<14; tries++ {
			if p := start + r.Uint64N(end-start); keep(p) {
				all = append(all, p)
				n--
			}
		}
	}
	every := func(uint64) bool { return true }
	last := s.numWords/8 - 1
	random := r.Uint64N(s.numWords / 8)
	line(0, every, 90)
	line(last, every, 90)
	line(random, every, 60)
	line(random, func(p uint64) bool { f, _ := s.candidates(p); return f%8 == 3 }, 12)
	line(random, func(p uint64) bool { f, s := s.candidates(p); return f%8 == 5 && s%8 == 2 }, 12)
	for range 20 { // remainder 0, the lowest and the highest image of a line
		p := r.Uint64() & s.keyMask &^ s.remMask
		start := s.start(p * s.numWords >> s.keyBits)
		all = append(all, p, start, (start-1)&s.keyMask)
	}
	all = append(all, 0, s.keyMask)
	slices.Sort(all)
	return slices.Compact(all)
}

func TestAgainstMap(t *testing.T) {
	r := seed.Secrets(t)
	for _, l := range layouts() {
		t.Run(l.String(), func(t *testing.T) {
			s := newSet(t, l, randomSecret(r))
			universe := images(r, s)
			want := make(map[uint64]uint16)
			full := 0
			for op := range 40_000 {
				addr := s.KeyOf(universe[r.IntN(len(universe))])
				list := 1 + uint16(r.UintN(uint(l.MaxList())))
				// Phases of growth and of decline.
				if grow := op/8000%2 == 0; r.IntN(8) < 3 != grow {
					switch err := s.Add(addr, list); {
					case err == nil:
						want[addr] = list
					case !errors.Is(err, ErrFull):
						t.Fatal(err)
					case want[addr] != 0:
						t.Fatalf("no room for the new list of a present address")
					default:
						full++
					}
				} else {
					_, present := want[addr]
					if s.Remove(addr) != present {
						t.Fatalf("Delete of %#x returned %t", addr, !present)
					}
					delete(want, addr)
				}
				if got, ok := s.Lookup(addr); got != want[addr] || ok != (want[addr] != 0) {
					t.Fatalf("address %#x: list %d %t, want %d", addr, got, ok, want[addr])
				}
				if op%500 == 0 {
					for _, p := range universe {
						addr := s.KeyOf(p)
						got, _ := s.Lookup(addr)
						if got != want[addr] {
							t.Fatalf("address %#x: list %d, want %d", addr, got, want[addr])
						}
					}
				}
				if op%8000 == 7999 {
					check(t, s, want)
				}
			}
			if full == 0 && l.Buckets == 2 {
				t.Error("the set was never full")
			}
			for addr := range maps.Clone(want) {
				s.Remove(addr)
			}
			check(t, s, nil)
			if s.InSpill() != 0 || slices.ContainsFunc(s.lines, func(w uint64) bool { return w != 0 }) {
				t.Error("the empty set is not zero")
			}
		})
	}
}

// TestMoves checks that entries move from their first word to the second or to
// the spill, and not otherwise: a reader could miss others.
func TestMoves(t *testing.T) {
	r := seed.Secrets(t)
	for _, l := range []Layout{{32, 31, 5, 3, 0}, {33, 21, 1 << 11, 3, 0}, {32, 15, 1 << 16, 3, 0}} {
		s := newSet(t, l, randomSecret(r))
		universe := make([]uint64, 6*8*s.lanes) // in two lines
		for i := range universe {
			universe[i] = r.Uint64N(16<<s.keyBits/s.numWords - 1)
		}
		const first, second, spill = 1, 2, 3
		where := func(p uint64) int {
			at := s.locate(p)
			switch in, ok := s.find(at); {
			case ok && in.word == at.first:
				return first
			case ok:
				return second
			case s.findSpill(p) >= 0:
				return spill
			}
			return 0
		}
		moves := make(map[[2]int]int)
		places := make([]int, len(universe))
		for range 20_000 {
			i := r.IntN(len(universe))
			if r.IntN(4) == 0 {
				s.Remove(s.KeyOf(universe[i]))
			} else if err := s.Add(s.KeyOf(universe[i]), 1); err != nil && !errors.Is(err, ErrFull) {
				t.Fatal(err)
			}
			for j, p := range universe {
				old, now := places[j], where(p)
				places[j] = now
				if old == now || p == universe[i] {
					continue
				}
				moves[[2]int{old, now}]++
				if old != first || now == 0 {
					t.Fatalf("%v: image %#x moved from %d to %d", l, p, old, now)
				}
			}
		}
		if moves[[2]int{first, second}] == 0 || moves[[2]int{first, spill}] == 0 {
			t.Errorf("%v: moves %v: want some of each kind", l, moves)
		}
	}
}

// TestFull fills one word until its two buckets are full too, then shows that
// the set is unchanged by the refusal, and that a deletion makes room.
func TestFull(t *testing.T) {
	r := seed.Secrets(t)
	for _, l := range layouts() {
		s := newSet(t, l, randomSecret(r))
		want := make(map[uint64]uint16)
		var refused uint64
		for p := s.start(6); ; p++ {
			if f, second := s.candidates(p); f != 6 || second != 1 {
				continue
			}
			addr := s.KeyOf(p)
			if err := s.Add(addr, 1); err != nil {
				if !errors.Is(err, ErrFull) {
					t.Fatal(err)
				}
				refused = addr
				break
			}
			want[addr] = 1
		}
		if n := 2*s.lanes + 2*bucketSlots; len(want) != n {
			t.Errorf("%v: %d entries in two words and two buckets, want %d", l, len(want), n)
		}
		check(t, s, want)
		for addr := range want { // any one
			s.Remove(addr)
			delete(want, addr)
			break
		}
		if err := s.Add(refused, 1); err != nil {
			t.Fatal(err)
		}
		want[refused] = 1
		check(t, s, want)
	}
}

func TestInvert(t *testing.T) {
	r := seed.Secrets(t)
	for i := range 100 {
		s := newSet(t, Layout{MinKeyBits + i%3, 31, 64, 2, 0}, randomSecret(r))
		for _, k := range []uint64{0, 1, s.keyMask, 1 << (s.keyBits - 1), r.Uint64() & s.keyMask, r.Uint64() & s.keyMask} {
			p := s.permute(k)
			if got := s.KeyOf(p); got != k || p > s.keyMask {
				t.Fatalf("secret %v, %d bits: %#x became %#x", s.secret, s.keyBits, k, got)
			}
			if got := s.permute(s.KeyOf(k)); got != k {
				t.Fatalf("secret %v, %d bits: image %#x became %#x", s.secret, s.keyBits, k, got)
			}
		}
	}
	if a, b := NewSecret(), NewSecret(); a == b || !a.valid() || !b.valid() {
		t.Errorf("random secrets %v and %v", a, b)
	}
	if k := secretFrom([32]byte{}); k != (Secret{0, [3]uint64{1, 1, 1}}) {
		t.Errorf("secret of zeros: %v", k)
	}
}

// TestPermuteVectors are the values that bpf must compute.
func TestPermuteVectors(t *testing.T) {
	s := newSet(t, Layout{32, 31, 4, 2, 0}, Secret{0x12345678, [3]uint64{0x9e3779b1, 0x85ebca6b, 0xc2b2ae35}})
	for k, want := range vectors {
		if got := s.permute(k); got != want {
			t.Errorf("%#x: %#x, want %#x", k, got, want)
		}
	}
}

// Computed by the formula of the package comment in another language.
var vectors = map[uint64]uint64{
	0x00000000: 0xfc5db935,
	0x00000001: 0xd48827e6,
	0x12345678: 0x00000000,
	0x7f000001: 0x17d25727,
	0xc0000201: 0xa756be27,
	0xffffffff: 0xfba083f0,
}

// TestEveryAddress looks up each key of 32 bits there is, with WEIR_EXHAUSTIVE=1,
// otherwise a million of them at each width and size or more, and the listed ones.
func TestEveryAddress(t *testing.T) {
	long.Seconds(t)
	exhaustive := os.Getenv("WEIR_EXHAUSTIVE") == "1"
	r := seed.Secrets(t)
	for _, w := range widths {
		if w.bits == 63 {
			continue // at these sizes, not narrower than those of 31 bits but longer
		}
		for _, n := range []int{10_000, 100_000, 1_000_000} {
			t.Run(fmt.Sprintf("%d bits, %d entries", w.bits, n), func(t *testing.T) {
				entries := randomEntries(r, n, 1)
				s, err := Build(w.plan(32, n, 1), entries)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range entries {
					if list, ok := s.Lookup(e.Key); !ok || list != e.List {
						t.Fatalf("address %#x: list %d %t, want %d", e.Key, list, ok, e.List)
					}
				}
				count := long.Or[uint64](1<<20, 1<<22)
				if exhaustive {
					count = 1 << 32
				}
				step := r.Uint32() | 1 // so that each address is met once
				var hits atomic.Int64
				var all sync.WaitGroup
				workers := uint64(runtime.GOMAXPROCS(0))
				for c := range workers {
					all.Go(func() {
						for i := c * count / workers; i < (c+1)*count/workers; i++ {
							addr := uint64(uint32(i) * step)
							if list, ok := s.Lookup(addr); ok {
								hits.Add(1)
								i, listed := slices.BinarySearchFunc(entries, addr, func(e Entry, a uint64) int { return cmp.Compare(e.Key, a) })
								if !listed || entries[i].List != list {
									t.Errorf("address %#x: list %d, but listed is %t", addr, list, listed)
								}
							}
						}
					})
				}
				all.Wait()
				if exhaustive && hits.Load() != int64(n) {
					t.Errorf("%d hits, want %d", hits.Load(), n)
				}
			})
		}
	}
}

// TestConcurrent looks up entries while one writer adds, moves, spills, changes
// and removes others and them. A reader asserts only what was true from before the
// lookup until after it.
func TestConcurrent(t *testing.T) {
	const (
		absent, adding, present, deleting = 0, 1, 2, 3 // phases, modulo 4

		readers = 3
	)
	total := long.Or[int64](3_000_000, 30_000_000)
	random := seed.Secrets(t)
	compacted := 0
	// NeedsCompaction lines, with list numbers of two bits.
	for _, l := range []Layout{{34, 31, 1 << 8, 40, 60}, {32, 21, 1 << 13, 40, 0}, {33, 15, 1 << 20, 40, 0}, {32, 12, 1 << 22, 40, 0}, {34, 63, 16, 40, 0}} {
		s := newSet(t, l, randomSecret(random))
		// Few addresses, so that readers meet each move, and two lines, which three
		// quarters of them fill beyond their lanes.
		addrs := make([]uint64, 3*8*s.lanes)
		phases := make([]atomic.Uint32, len(addrs))
		for i := range addrs {
			addrs[i] = s.KeyOf(s.start(8*uint64(i&1)) + random.Uint64N(8<<s.keyBits/s.numWords-1))
		}
		slices.Sort(addrs)
		addrs = slices.Compact(addrs)
		random.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })

		var stop atomic.Bool
		var writer, all sync.WaitGroup
		seed := random.Uint64()
		var writes, inSpill atomic.Int64
		// Lookups of each reader that began and ended: odd during one.
		var lookups [readers]struct {
			atomic.Int64
			_ [56]byte
		}
		wait := func() {
			for i := range lookups {
				for at := lookups[i].Load(); at&1 != 0 && lookups[i].Load() == at; {
					runtime.Gosched()
				}
			}
		}
		writer.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for !stop.Load() {
				i := r.IntN(len(addrs))
				writes.Add(1)
				switch phase := phases[i].Load() % 4; {
				case phase == absent:
					phases[i].Add(1)
					if err := s.Add(addrs[i], 1+uint16(i&1)); errors.Is(err, ErrFull) {
						phases[i].Add(3)
						continue
					}
					phases[i].Add(1)
				case r.IntN(3) > 0:
					if err := s.Add(addrs[i], 1+uint16(r.UintN(2))); err != nil {
						t.Errorf("change of %#x: %v", addrs[i], err)
					}
				default:
					phases[i].Add(1)
					s.Remove(addrs[i])
					phases[i].Add(1)
				}
				inSpill.Store(max(inSpill.Load(), int64(s.InSpill())))
				if writes.Load()%512 == 0 {
					compacted += s.Compact(wait)
				}
			}
		})
		var asserted [readers]struct{ found, absent int64 }
		least := (total/500 + readers - 1) / readers
		deadline := time.Now().Add(time.Minute)
		for n := range readers {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(n), 2))
				a := &asserted[n]
				// On a busy machine the writer may get its turn late: readers go on
				// until there was something to find.
				few := func() bool { return a.found < least || a.absent < least || inSpill.Load() == 0 || writes.Load() < 512 }
				for done := int64(0); done < total/5/readers || few() && time.Now().Before(deadline); done++ {
					i := int(r.Uint32() % uint32(len(addrs)))
					before := phases[i].Load()
					lookups[n].Add(1)
					list, ok := s.Lookup(addrs[i])
					lookups[n].Add(1)
					if phases[i].Load() != before {
						continue
					}
					switch before % 4 {
					case present:
						if !ok {
							t.Errorf("%v: missed the listed %#x", l, addrs[i])
							return
						}
						a.found++
					case absent:
						if ok {
							t.Errorf("%v: found the unlisted %#x", l, addrs[i])
							return
						}
						a.absent++
					}
					if ok && list != 1 && list != 2 { // 3 is both, mixed
						t.Errorf("%v: list %d of %#x", l, list, addrs[i])
						return
					}
				}
			})
		}
		all.Wait()
		stop.Store(true)
		writer.Wait()
		found, none := int64(0), int64(0)
		for _, a := range asserted {
			found, none = found+a.found, none+a.absent
		}
		t.Logf("%v: %d listed and %d unlisted found so, beside %d writes; up to %d in the spill", l, found, none, writes.Load(), inSpill.Load())
		if !t.Failed() && (found < total/500 || none < total/500 || inSpill.Load() == 0) {
			t.Error("too few of a kind")
		}
	}
	if t.Logf("%d compacted", compacted); compacted == 0 {
		t.Error("none was compacted")
	}
}

func TestFill(t *testing.T) {
	r := seed.Secrets(t)
	for _, n := range []int{0, 1, 2, 1000, 70_000} {
		for _, w := range widths {
			keyBits := MinKeyBits + r.IntN(3)
			l := w.plan(keyBits, n, 1)
			if r.IntN(2) == 0 {
				l = l.WithFront(n)
			}
			entries := randomEntriesOf(keyBits, r, n, l.MaxList())
			s := newSet(t, l, randomSecret(r))
			if err := s.Fill(chunks(entries)...); err != nil {
				t.Fatal(err)
			}
			want := make(map[uint64]uint16)
			for _, e := range entries {
				want[e.Key] = e.List
			}
			check(t, s, want)
			if n > 0 && s.Fill(chunks(entries)...) == nil {
				t.Error("filled twice")
			}
		}
	}
	l := Plan(32, 100, 3)
	for _, c := range []struct {
		entries []Entry
		want    error
	}{
		{[]Entry{{1, 0}}, ErrList},
		{[]Entry{{1, l.MaxList()}, {2, l.MaxList() + 1}}, ErrList},
		{randomEntries(r, 5000, 3), ErrFull},
	} {
		if s, err := Build(l, c.entries); !errors.Is(err, c.want) || s != nil {
			t.Errorf("%d entries: error %v, want %v", len(c.entries), err, c.want)
		}
	}
	s := newSet(t, l, NewSecret())
	for _, list := range []uint16{0, l.MaxList() + 1} {
		if err := s.Add(1, list); !errors.Is(err, ErrList) {
			t.Errorf("list %d: %v", list, err)
		}
	}
	if _, err := Build(Layout{}, nil); err == nil {
		t.Error("built with no layout")
	}
}

// TestInSpill measures the share of entries in the spill, for random and for
// regular sets, under many keys, and that Plan leaves room for them.
func TestInSpill(t *testing.T) {
	r := fixed(1)
	const n = 200_000
	regular := func(next func(i uint32) uint32) []Entry {
		entries := make([]Entry, n)
		for i := range entries {
			entries[i] = Entry{uint64(next(uint32(i))), 1}
		}
		return entries
	}
	base := r.Uint32()
	sets := []struct {
		name    string
		entries []Entry
	}{
		{"random", randomEntries(r, n, 1)},
		{"consecutive", regular(func(i uint32) uint32 { return base + i })},
		{"every 16th", regular(func(i uint32) uint32 { return base + i<<4 })},
		{"every 4096th", regular(func(i uint32) uint32 { return base + i<<12 })},
		{"every 21474th", regular(func(i uint32) uint32 { return base + i*21474 })},
		{"dense /24s", regular(func(i uint32) uint32 { return i>>8*0x9e3779b1<<8 | i&255 })},
	}
	for _, w := range widths {
		if w.bits < 21 {
			continue // with so few entries the lines are all but empty
		}
		for _, set := range sets {
			var most, sum float64
			full := 0
			secrets := long.Or(3, 12)
			for i := range secrets {
				// Keys are longer for prefixes and for two sides: each with some secret.
				extra := i % 3
				scaled := slices.Clone(set.entries)
				for j := range scaled {
					scaled[j].Key = scaled[j].Key<<(extra&1) | uint64(extra&1) | uint64(extra>>1*j&1)<<33
				}
				s := newSet(t, w.plan(32+extra, n, 1), randomSecret(r))
				if err := s.Fill(chunks(scaled)...); err != nil {
					full++
					continue
				}
				share := float64(s.InSpill()) / n
				most, sum = max(most, share), sum+share
			}
			t.Logf("%d bits, %s: %.4f in the spill, at most %.4f; %d of %d secrets left no room", w.bits, set.name, sum/float64(secrets-full), most, full, secrets)
			if full > 0 {
				t.Errorf("%d bits, %s: %d of %d secrets left no room", w.bits, set.name, full, secrets)
			}
		}
	}
}

// The share of entries in the spill is as planned, for as many entries as fill the lines so far.
func TestPlannedSpill(t *testing.T) {
	r := fixed(1)
	for _, w := range widths {
		n := 200_000
		if w.bits < 21 {
			n = int(float64(w.plan(MinKeyBits, 0, 1).Lines*lineWords*w.lanes)*w.fill) + 50_000 // the lines are enough for fewer
		}
		if w.bits < long.Or(15, 12) {
			continue // some 16 million entries
		}
		s := newSet(t, w.plan(MinKeyBits, n, 1), randomSecret(r))
		if err := s.Fill(chunks(randomEntries(r, n, 1))...); err != nil {
			t.Errorf("%d bits: %v", w.bits, err)
			continue
		}
		if share := float64(s.InSpill()) / float64(n); share < 0.9*w.inSpill || share > 1.1*w.inSpill {
			t.Errorf("%d bits: %.4f of %d entries are in the spill, planned are %.4f", w.bits, share, n, w.inSpill)
		}
	}
}

// A spill of fewer buckets than planned is filled, too: chance leaves an entry of some
// millions without room in its own buckets of a planned one.
func TestSpillMove(t *testing.T) {
	r := fixed(2)
	const n = 100_000
	entries := randomEntries(r, n, 1)
	want := make(map[uint64]uint16, n)
	for _, e := range entries {
		want[e.Key] = e.List
	}
	for range 4 {
		l := widths[1].plan(32, n, 1)
		l.Buckets -= l.Buckets * 3 / 10
		s := newSet(t, l, randomSecret(r))
		if err := s.Fill(chunks(entries)...); err != nil {
			t.Fatalf("%d of %d entries, in a spill of %d buckets: %v", s.InSpill(), n, l.Buckets, err)
		}
		check(t, s, want)
	}
}

// A set in which entries are replaced for ever has room, if it is tidied.
func TestRecall(t *testing.T) {
	r := seed.Secrets(t)
	for _, keyBits := range []int{32, 34} { // three lanes, and two
		const n = 100_000
		entries := randomEntriesOf(keyBits, r, n, 1)
		s, err := Build(Plan(keyBits, n*103/100, 1), entries)
		if err != nil {
			t.Fatal(err)
		}
		want := make(map[uint64]uint16)
		for _, e := range entries {
			want[e.Key] = e.List
		}
		recalls, full := 0, 0
		for range 3 * n {
			i := r.IntN(n)
			s.Remove(entries[i].Key)
			delete(want, entries[i].Key)
			for want[entries[i].Key] == 0 {
				k := r.Uint64() >> (64 - keyBits)
				if _, ok := s.Lookup(k); ok {
					continue
				}
				if err := s.Add(k, 1); err != nil {
					full++
					if s.Compact(func() {}) == 0 {
						t.Fatalf("%v: %d recalls, %d in %d slots: %v", s.Layout(), recalls, s.InSpill(), len(s.spill), err)
					}
					continue
				}
				entries[i].Key, want[k] = k, 1
			}
			if s.NeedsCompaction() {
				recalls++
				s.Compact(func() {})
			}
		}
		t.Logf("%v: %d recalls, %d times full before", s.Layout(), recalls, full)
		if recalls == 0 || recalls > 60 {
			t.Errorf("%d recalls: want a few", recalls)
		}
		check(t, s, want)
	}
}

// Compact waits before it clears a lane or a slot whose entry it has copied: a lookup that has
// read words from before the copy looks for the entry there.
func TestCompactWaits(t *testing.T) {
	r := seed.New(t)
	for _, keyBits := range []int{32, 34} {
		const n = 2000
		entries := randomEntriesOf(keyBits, r, n, 3)
		s, err := Build(Plan(keyBits, n*103/100, 3), entries)
		if err != nil {
			t.Fatal(err)
		}
		waits := map[int]int{} // how often they were so many
		for range 30 {
			for range n / 10 {
				e := &entries[r.IntN(n)]
				s.Remove(e.Key)
				for {
					e.Key = r.Uint64() >> (64 - keyBits)
					if _, ok := s.Lookup(e.Key); !ok && s.Add(e.Key, e.List) == nil {
						break
					}
				}
			}
			// Lookups that have read one word, or both, and end here.
			before := slices.Clone(s.lines)
			end := func() {
				t.Helper()
				now := slices.Clone(s.lines)
				for _, e := range entries {
					p := s.permute(e.Key)
					at := s.locate(p)
					for loaded, word := range []int{at.first, at.second} {
						now[word] = before[word]
						if list := read(s.layout, now, s.spill, s.front, p); list != e.List {
							t.Fatalf("a lookup that stops after word %d of %#x finds list %d, want %d", loaded+1, e.Key, list, e.List)
						}
					}
					now[at.first], now[at.second] = s.lines[at.first], s.lines[at.second]
				}
			}
			calls := 0
			s.Compact(func() {
				calls++
				end()
				copy(before, s.lines) // and others begin
			})
			end()
			waits[calls]++
		}
		t.Logf("%v: waits %v", s.Layout(), waits)
		if waits[2] == 0 {
			t.Error("no recall has moved both in lines and from the spill: the test is too narrow")
		}
	}
}

// One absent key in ten passes the front.
func TestFront(t *testing.T) {
	r := fixed(5)
	const n, asked = 200_000, 200_000
	s, err := Build(Plan(32, n, 1).WithFront(n), randomEntries(r, n, 1))
	if err != nil {
		t.Fatal(err)
	}
	passed := 0
	for range asked {
		word, bits := s.inFront(r.Uint64() >> 32)
		if s.front[word]&bits == bits {
			passed++
		}
	}
	if share := float64(passed) / asked; share < 0.08 || share > 0.13 {
		t.Errorf("%.3f of absent keys pass", share)
	}
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		entries  int
		highest  uint16
		laneBits int
		most     float64 // bytes an entry
	}{
		{10_000, 1, 31, 6.2}, {10_000, 15, 31, 6.2}, {10_000, 255, 31, 6.2},
		{100_000, 1, 21, 3.9}, {100_000, 15, 21, 5.5}, {100_000, 255, 31, 6},
		{1_000_000, 1, 21, 3.9}, {1_000_000, 63, 21, 3.8}, {1_000_000, 255, 31, 6},
		{10_000_000, 1, 15, 2.9}, {10_000_000, 15, 15, 3.5}, {10_000_000, 255, 21, 3.8},
		{100_000_000, 1, 12, 2.2}, {100_000_000, 15, 15, 2.7},
		{1, 1, 63, 448}, {0, 0, 63, 0}, {1000, MaxList, 63, 17},
	} {
		l := Plan(32, c.entries, c.highest)
		if l.LaneBits != c.laneBits {
			t.Errorf("%d entries, list %d: %v, want %d bits", c.entries, c.highest, l, c.laneBits)
		}
		if perEntry := float64(l.Bytes()) / float64(c.entries); c.entries > 0 && perEntry > c.most {
			t.Errorf("%d entries, list %d: %v: %.2f bytes an entry, want at most %.2f", c.entries, c.highest, l, perEntry, c.most)
		}
		if err := l.validate(); err != nil || l.MaxList() < c.highest {
			t.Errorf("%d entries, list %d: %v: %v, highest list %d", c.entries, c.highest, l, err, l.MaxList())
		}
	}
	r := seed.New(t)
	for range 1000 {
		entries, highest := r.IntN(1<<r.IntN(31)+1), uint16(r.UintN(1<<r.UintN(17)))
		if l := Plan(MinKeyBits+r.IntN(3), entries, highest); l.validate() != nil || l.MaxList() < highest {
			t.Fatalf("%d entries, list %d: %v: %v, highest list %d", entries, highest, l, l.validate(), l.MaxList())
		}
	}
}

func TestRefusedLayouts(t *testing.T) {
	good := Layout{32, 31, 4, 2, 0}
	odd := Secret{0, [3]uint64{1, 1, 1}}
	for _, l := range []Layout{
		{}, {32, 30, 4, 2, 0}, {32, 31, 0, 2, 0}, {32, 31, -1, 2, 0}, {33, 31, 1, 2, 0}, {34, 31, 3, 2, 0},
		{32, 31, 4, 1, 0}, {32, 31, 4, -1, 0}, {31, 31, 64, 2, 0}, {35, 31, 64, 2, 0},
		{32, 21, 1<<10 - 1, 2, 0}, {32, 15, 1<<16 - 1, 2, 0}, {32, 12, 1<<19 - 1, 2, 0}, {34, 21, 1 << 11, 2, 0},
		{32, 31, maxLines + 1, 2, 0}, {32, 31, 4, maxLines + 1, 0},
	} {
		if _, err := New(l, odd); err == nil {
			t.Errorf("accepted %v", l)
		}
	}
	if _, err := New(good, Secret{0, [3]uint64{1, 2, 1}}); err == nil {
		t.Error("accepted an even multiplier")
	}
	for _, words := range [][3]int{{31, 16, 0}, {33, 16, 0}, {32, 15, 0}, {32, 17, 0}, {32, 16, 1}} {
		if _, err := NewAt(good, odd, make([]uint64, words[0]), make([]uint64, words[1]), make([]uint64, words[2])); err == nil {
			t.Errorf("accepted memory of %v words", words)
		}
	}
}

func FuzzSet(f *testing.F) {
	f.Add(uint8(0), []byte("\x00\x01\x02\x03\x04\x05\x06\x07"))
	f.Add(uint8(3), []byte("\x10\x81\x10\x82\x10\x83\xff\xff"))
	f.Fuzz(func(t *testing.T, which uint8, ops []byte) {
		// Two bytes an operation: what, and on which of 512 images in two lines.
		l := layouts()[int(which)%7] // those that are cheap to allocate
		s := newSet(t, l, Secret{1, [3]uint64{0x9e3779b1, 0x85ebca6b, 0xc2b2ae35}})
		want := make(map[uint64]uint16)
		for ; len(ops) >= 2; ops = ops[2:] {
			image := uint64(ops[1])
			if ops[0]&1 != 0 {
				image ^= s.keyMask
			}
			addr := s.KeyOf(image)
			if ops[0]&6 == 0 {
				if s.Remove(addr) != (want[addr] != 0) {
					t.Fatalf("Delete of %#x, which has list %d", addr, want[addr])
				}
				delete(want, addr)
			} else {
				list := 1 + uint16(ops[0]>>3)%l.MaxList()
				if err := s.Add(addr, list); err == nil {
					want[addr] = list
				} else if !errors.Is(err, ErrFull) || want[addr] != 0 {
					t.Fatal(err)
				}
			}
		}
		check(t, s, want)
		for i := range uint64(512) {
			addr := s.KeyOf((i - 256) & s.keyMask)
			if got, _ := s.Lookup(addr); got != want[addr] {
				t.Fatalf("address %#x: list %d, want %d", addr, got, want[addr])
			}
		}
	})
}

// benchmarkSizes are the numbers of entries and lists that are measured.
func benchmarkSizes(b *testing.B, run func(b *testing.B, entries []Entry, highest uint16)) {
	for _, n := range []int{10_000, 100_000, 1_000_000, 10_000_000} {
		entries := randomEntries(fixed(uint64(n)), n, 1)
		for _, highest := range []uint16{1, 15, 255} {
			for i := range entries {
				entries[i].List = 1 + uint16(i)%highest
			}
			b.Run(fmt.Sprintf("entries=%d/lists=%d", n, highest), func(b *testing.B) { run(b, entries, highest) })
		}
	}
}

func build(b *testing.B, entries []Entry, highest uint16) *Set {
	s, err := Build(Plan(32, len(entries), highest), entries)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func BenchmarkBuild(b *testing.B) {
	benchmarkSizes(b, func(b *testing.B, entries []Entry, highest uint16) {
		start := time.Now()
		var s *Set
		for b.Loop() {
			s = build(b, entries, highest)
		}
		b.ReportMetric(float64(time.Since(start))/float64(b.N)/float64(len(entries)), "ns/entry")
		b.ReportMetric(float64(s.Bytes())/float64(len(entries)), "B/entry")
		b.ReportMetric(float64(s.InSpill())/float64(len(entries)), "spilled/entry")
	})
}

func BenchmarkLookup(b *testing.B) {
	benchmarkSizes(b, func(b *testing.B, entries []Entry, highest uint16) {
		s := build(b, entries, highest)
		r := fixed(2)
		hits := make([]uint64, 1<<20)
		for i := range hits {
			hits[i] = entries[r.IntN(len(entries))].Key
		}
		misses := make([]uint64, 1<<20)
		for i := range misses {
			misses[i] = uint64(r.Uint32()) // few of them are listed
		}
		for _, c := range []struct {
			name  string
			addrs []uint64
		}{{"hit", hits}, {"miss", misses}} {
			b.Run(c.name, func(b *testing.B) {
				i, n := 0, 0
				for b.Loop() {
					if _, ok := s.Lookup(c.addrs[i&(1<<20-1)]); ok {
						n++
					}
					i++
				}
				if c.name == "hit" && n != i {
					b.Fatalf("%d hits of %d", n, i)
				}
			})
		}
	})
}

// BenchmarkUpdate replaces one entry by another, in a set with a quarter more
// room: at the planned fill, replacements fill the spill more than Fill does.
func BenchmarkUpdate(b *testing.B) {
	entries := randomEntries(fixed(3), 1_000_000, 1)
	s, err := Build(Plan(32, len(entries)*5/4, 1), entries)
	if err != nil {
		b.Fatal(err)
	}
	r := fixed(4)
	for b.Loop() {
		i := r.IntN(len(entries))
		if !s.Remove(entries[i].Key) {
			b.Fatal("an entry is missing")
		}
		for {
			addr := uint64(r.Uint32())
			if _, ok := s.Lookup(addr); ok {
				continue
			}
			if err := s.Add(addr, 1); err != nil {
				b.Fatal(err)
			}
			entries[i].Key = addr
			break
		}
	}
	b.ReportMetric(float64(s.InSpill())/float64(s.Len()), "spilled/entry")
}
