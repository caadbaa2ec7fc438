package cuckoo

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/tests/long"
	"weir/tests/seed"
)

// checkTable compares the table with its expected contents.
func checkTable(t *testing.T, table *Table, want map[uint64]uint16) {
	t.Helper()
	if table.Len() != len(want) {
		t.Fatalf("%d keys, want %d", table.Len(), len(want))
	}
	inUse := 0
	for i, slot := range table.slots {
		if slot != 0 {
			inUse++
		} else if table.isMoved(i) {
			t.Fatalf("the empty slot %d counts as moved", i)
		}
	}
	if inUse != len(want) {
		t.Fatalf("%d slots in use for %d keys", inUse, len(want))
	}
	for h, list := range want {
		if got, ok := table.Lookup(h); !ok || got != list {
			t.Fatalf("key %#x: list %d %t, want %d", h, got, ok, list)
		}
	}
}

func TestTableAgainstMap(t *testing.T) {
	r := seed.Secrets(t)
	for _, buckets := range []int{1, 2, 3, 64, 1000} {
		table := Over(make([]uint64, buckets*BucketSlots))
		want := make(map[uint64]uint16)
		var present []uint64
		take := func() uint64 { // one that is present, no longer among those
			i := r.IntN(len(present))
			h := present[i]
			present[i] = present[len(present)-1]
			present = present[:len(present)-1]
			return h
		}
		for range 20 * table.Cap() {
			switch op := r.IntN(8); {
			case op < 4 || len(present) == 0:
				h, list := r.Uint64(), uint16(1+r.IntN(MaxList))
				switch err := table.Add(h, list); {
				case err == nil:
					want[h] = list
					present = append(present, h)
				case !errors.Is(err, ErrFull):
					t.Fatal(err)
				}
			case op < 6:
				h := take()
				if !table.Remove(h) {
					t.Fatalf("key %#x cannot be deleted", h)
				}
				delete(want, h)
			case op == 6:
				h, list := present[r.IntN(len(present))], uint16(1+r.IntN(MaxList))
				if !table.SetList(h, list) {
					t.Fatalf("list of key %#x cannot be set", h)
				}
				want[h] = list
			default: // what is absent; two random keys of 2^48 do not meet
				h := r.Uint64()
				if _, ok := table.Lookup(h); ok || table.Remove(h) || table.SetList(h, 1) {
					t.Fatalf("key %#x was never inserted", h)
				}
			}
		}
		checkTable(t, table, want)
		for len(present) > 0 {
			table.Remove(take())
		}
		if slices.ContainsFunc(table.slots, func(s uint64) bool { return s != 0 }) {
			t.Error("deleting all keys leaves slots in use")
		}
	}
}

func TestTableWithoutSlots(t *testing.T) {
	table := Over(nil)
	if err := table.Add(1, 1); !errors.Is(err, ErrFull) {
		t.Errorf("insert: %v", err)
	}
	if _, ok := table.Lookup(1); ok || table.Remove(1) {
		t.Error("the table without slots contains a key")
	}
}

// Only the list number distinguishes a slot with fingerprint zero from an empty
// one.
func TestTableZeroFingerprint(t *testing.T) {
	table := Over(make([]uint64, 4*BucketSlots))
	const h = 3 << 62
	if _, ok := table.Lookup(h); ok {
		t.Fatal("found in the empty table")
	}
	if err := table.Add(h, 7); err != nil {
		t.Fatal(err)
	}
	if list, ok := table.Lookup(h); !ok || list != 7 {
		t.Errorf("list %d %t, want 7", list, ok)
	}
}

// colliding returns hashes that no reader could distinguish from h: those with its
// fingerprint, whose first bucket is one of its two. 48 … 63 are the bits that
// differ. The first buckets of some are the second one of h.
func colliding(table *Table, h uint64) (others []uint64) {
	fp := h & fingerprintMask
	first := hash.Reduce(h, table.buckets)
	second := table.second(first, fp)
	for top := range uint64(1 << 10) {
		other := top<<54 | fp
		if b := hash.Reduce(other, table.buckets); other != h && (b == first || b == second) {
			others = append(others, other)
		}
	}
	return others
}

// Keys that no reader could distinguish share a slot, wherever the first one is,
// and each is found until it is deleted.
func TestTableCollision(t *testing.T) {
	r := seed.Secrets(t)
	table := Over(make([]uint64, 64*BucketSlots))
	want := make(map[uint64]uint16)
	for len(want) < 64*BucketSlots*9/10 { // full enough that keys are in second buckets
		h := r.Uint64()
		if err := table.Add(h, 1); err != nil {
			t.Fatal(err)
		}
		want[h] = 1
	}
	inUse := func() (n int) {
		for _, s := range table.slots {
			if s != 0 {
				n++
			}
		}
		return n
	}
	slots, shared := inUse(), 0
	for h := range want {
		keys := append(colliding(table, h), h)
		for _, other := range keys[:len(keys)-1] {
			if err := table.Add(other, 2); err != nil {
				t.Fatalf("%#x after %#x: %v", other, h, err)
			}
		}
		if list, ok := table.Lookup(h); !ok || len(keys) > 1 && list != 2 || inUse() != slots || table.Len() != len(want)+len(keys)-1 {
			t.Fatalf("%d keys that collide: list %d %t, %d slots instead of %d", len(keys), list, ok, inUse(), slots)
		}
		r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		for i := range keys[1:] {
			if !table.Remove(keys[i]) {
				t.Fatalf("%#x cannot be deleted", keys[i])
			}
			for _, left := range keys[i+1:] {
				if _, ok := table.Lookup(left); !ok {
					t.Fatalf("%#x is missing once %#x is deleted", left, keys[i])
				}
			}
			shared++
		}
		// Any of them, as the one that is left, can be deleted as h.
		table.SetList(h, 1)
		if shared > 1000 {
			break
		}
	}
	checkTable(t, table, want)
	for h := range want {
		if !table.Remove(h) {
			t.Fatalf("%#x cannot be deleted", h)
		}
	}
	if inUse() != 0 || len(table.sharing) != 0 {
		t.Error("deleting all keys leaves slots in use")
	}
}

// A key that finds no room leaves the table unchanged.
func TestTableFull(t *testing.T) {
	r := seed.Secrets(t)
	table := Over(make([]uint64, 512*BucketSlots))
	want := make(map[uint64]uint16)
	for failed := 0; failed < 100; {
		h := r.Uint64()
		slots, moved := slices.Clone(table.slots), slices.Clone(table.moved)
		err := table.Add(h, 5)
		if err == nil {
			want[h] = 5
			continue
		}
		if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		failed++
		if !slices.Equal(table.slots, slots) || !slices.Equal(table.moved, moved) {
			t.Fatal("a key that found no room has changed the table")
		}
		if fill := float64(table.Len()) / float64(table.Cap()); fill < 0.95 {
			t.Fatalf("full at %.3f", fill)
		}
	}
	checkTable(t, table, want)
}

// Plans leave a margin: tables reach 95 % before they are full.
func TestTableFillFactor(t *testing.T) {
	r := seed.Secrets(t)
	table := Over(make([]uint64, 1<<14*BucketSlots))
	moved := 0
	for table.Add(r.Uint64(), 1) == nil {
	}
	for i := range table.slots {
		if table.isMoved(i) {
			moved++
		}
	}
	fill := float64(table.Len()) / float64(table.Cap())
	t.Logf("full at %.4f, %.3f of the keys in their second buckets", fill, float64(moved)/float64(table.Len()))
	if fill < 0.95 {
		t.Errorf("full at %.4f, want 0.95 at least", fill)
	}
}

// findLikeC performs the loads of bpf/table.h in their order, for readers
// concurrent with a writer, which Find does not support.
func findLikeC(slots []uint64, buckets uint32, h uint64) bool {
	fp := h & fingerprintMask
	inBucket := func(b uint32) (found uint64) {
		for i := range BucketSlots {
			slot := atomic.LoadUint64(&slots[int(b)*BucketSlots+i])
			if slot&fingerprintMask == fp {
				found |= slot
			}
		}
		return found
	}
	first := hash.Reduce(h, buckets)
	if inBucket(first) != 0 {
		return true
	}
	second := int64(hash.Reduce(hash.Nth(fp, 0), buckets)) - int64(first)
	if second < 0 {
		second += int64(buckets)
	}
	return inBucket(uint32(second)) != 0
}

// The data plane relies on this: a reader concurrent with the writer finds each
// present key while the table fills up and others come and go, so that keys are
// evicted all the time.
//
// A key is evicted at most once, so the same readers run over many tables, one
// after the other. In small ones, a lookup is likeliest to hit a gap of a few
// nanoseconds; in large ones, eviction chains are longer.
func TestTableReadersBesideWriter(t *testing.T) {
	long.Seconds(t)
	for _, c := range []struct{ buckets, tables int }{{4, long.Or(10_000, 60_000)}, {512, long.Or(50, 200)}} {
		t.Run(fmt.Sprintf("%d buckets", c.buckets), func(t *testing.T) {
			testTableReadersBesideWriter(t, c.buckets, c.tables)
		})
	}
}

func testTableReadersBesideWriter(t *testing.T, buckets, tables int) {
	type round struct {
		table   *Table
		staying []uint64
	}
	newRound := func(r *rand.Rand) *round {
		n := &round{table: Over(make([]uint64, buckets*BucketSlots))}
		for i := range buckets * BucketSlots / 2 {
			keys := []uint64{r.Uint64()}
			if i%8 == 0 { // with one that shares its slot
				keys = append(keys, colliding(n.table, keys[0])[:1]...)
			}
			for _, h := range keys {
				if n.table.Add(h, 1) == nil {
					n.staying = append(n.staying, h)
				}
			}
		}
		return n
	}
	r := seed.Secrets(t)
	var (
		now     atomic.Pointer[round]
		done    atomic.Bool
		lookups atomic.Int64
		wg      sync.WaitGroup
	)
	now.Store(newRound(r))
	for range 2 {
		wg.Go(func() {
			for !done.Load() {
				n := now.Load()
				for _, h := range n.staying {
					if !findLikeC(n.table.slots, n.table.buckets, h) {
						t.Errorf("key %#x was briefly missing", h)
						return
					}
				}
				lookups.Add(int64(len(n.staying)))
			}
		})
	}
	evicted := 0
	for range tables {
		n := newRound(r)
		now.Store(n)
		var coming []uint64
		for range n.table.Cap() {
			if n.table.Len() > n.table.Cap()*95/100 {
				i := r.IntN(len(coming))
				n.table.Remove(coming[i])
				coming[i] = coming[len(coming)-1]
				coming = coming[:len(coming)-1]
			}
			if h := r.Uint64(); n.table.Add(h, 1) == nil {
				coming = append(coming, h)
			}
		}
		for _, h := range n.staying {
			if i, _ := n.table.find(h); n.table.isMoved(i) {
				evicted++
			}
		}
	}
	done.Store(true)
	wg.Wait()
	t.Logf("%d lookups beside %d tables, in which %d keys were evicted at last", lookups.Load(), tables, evicted)
	if evicted < 10*tables/4 || lookups.Load() < int64(tables) {
		t.Error("too little happened to test anything")
	}
}

// The bound of fpr.Fingerprint: of the hashes that share a present one's
// fingerprint, at most that fraction leads to its bucket.
func TestTableConfirmsByChance(t *testing.T) {
	const trials = 2_000_000
	r := rand.New(rand.NewPCG(4, 0))
	for _, buckets := range []int{1, 3, 100, 5000} {
		n := buckets * BucketSlots / 2
		table := Over(make([]uint64, buckets*BucketSlots))
		hashes := make([]uint64, n)
		for i := range hashes {
			hashes[i] = r.Uint64()
			if err := table.Add(hashes[i], 1); err != nil {
				t.Fatal(err)
			}
		}
		confirmed := 0
		for range trials {
			h := hashes[r.IntN(n)]
			if _, ok := table.Lookup(h&fingerprintMask | r.Uint64()&^fingerprintMask); ok {
				confirmed++
			}
		}
		// Given that one of n fingerprints agrees, which has probability n·2⁻⁴⁸.
		bound := fpr.Fingerprint(n, uint32(buckets)) / (float64(n) * math.Exp2(-48))
		got := float64(confirmed) / trials
		sigma := math.Sqrt(bound / trials)
		if got > min(1, bound)+5*sigma || got < bound/4 {
			t.Errorf("%d buckets: a share of %g is confirmed, the bound is %g", buckets, got, bound)
		}
	}
}

func BenchmarkTable(b *testing.B) {
	const n = 1 << 20
	slots := float64(n) / 0.88
	t := Over(make([]uint64, int(slots)/BucketSlots*BucketSlots))
	for i := range uint64(n) {
		if err := t.Add(hash.Nth(1, i), 1); err != nil {
			b.Fatal(err)
		}
	}
	perHash(b, "op=add+remove", func(i uint64) {
		if err := t.Add(hash.Nth(2, i%n), 1); err != nil {
			b.Fatal(err)
		}
		t.Remove(hash.Nth(2, i%n))
	})
	perHash(b, "op=query-hit", func(i uint64) { t.Lookup(hash.Nth(1, i%n)) })
	perHash(b, "op=query-miss", func(i uint64) { t.Lookup(hash.Nth(2, i%n)) })
}

func perHash(b *testing.B, name string, do func(i uint64)) {
	b.Run(name, func(b *testing.B) {
		for i := range uint64(b.N) {
			do(i)
		}
	})
}
