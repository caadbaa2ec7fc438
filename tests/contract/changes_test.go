package contract

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/replay"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
)

// Changes are made in memory that a program reads concurrently: entries that
// stay listed are found at every instant; added ones are found at once, and
// removed ones no longer.
func TestLookupsBesideChanges(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	for _, mode := range []membership.Mode{membership.Exact, membership.Approximate} {
		t.Run(mode.String(), func(t *testing.T) { testLookupsBesideChanges(t, mode) })
	}
}

// source is the i-th of different addresses without a pattern, and from is a
// packet of it.
func source(i int) key.Key {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(i)*0x9e3779b1)
	return key.Source(netip.PrefixFrom(netip.AddrFrom4(b), 32))
}

func from(k key.Key) []byte {
	return packet.Frame(key.Tuple{Src: k.Src, Dst: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Proto: 6, HasPorts: true, DstPort: 443})
}

func testLookupsBesideChanges(t *testing.T, mode membership.Mode) {
	const (
		staying = 5000
		coming  = 55_000 // fills the table as the layout plans
		batch   = 800
	)
	rounds := long.Or(50, 150)
	r := newRandom(t)
	var listed []key.Key
	for i := range staying + coming {
		listed = append(listed, source(i))
	}
	g, kernel := engines(t, []engine.List{{Name: "block", Contents: list.SetOf(listed...)}}, engine.Config{Mode: mode})
	beside, err := replay.NewKernel(g, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer beside.Close()

	var (
		done    atomic.Bool
		lookups atomic.Int64
		wg      sync.WaitGroup
	)
	defer wg.Wait()
	defer done.Store(true)
	wg.Go(func() {
		var frames [][]byte
		for i := range staying {
			frames = append(frames, from(source(i)))
		}
		for !done.Load() {
			for i, f := range frames {
				o, err := beside.Decide(f)
				if err != nil || o.Action != verdict.Drop {
					t.Errorf("%v stays listed, but leaves with %+v (%v)", source(i), o, err)
					return
				}
			}
			lookups.Add(staying)
		}
	})

	check := func(k key.Key, want verdict.Reason) {
		t.Helper()
		o, err := kernel.Decide(from(k))
		if err != nil {
			t.Fatal(err)
		}
		if o.Reason != want && (mode == membership.Exact || want == verdict.Blocked) {
			t.Errorf("%v: %+v, want %v", k, o, want)
		}
	}
	next, refused := staying+coming, 0
	changes := func(removed int) {
		var gone, come []key.Key
		before := slices.Clone(listed)
		for range removed {
			i := staying + r.IntN(len(listed)-staying)
			gone = append(gone, listed[i])
			listed[i] = listed[len(listed)-1]
			listed = listed[:len(listed)-1]
		}
		for range batch {
			come = append(come, source(next))
			listed = append(listed, source(next))
			next++
		}
		n, err := g.Apply([]engine.Change{{List: 1, Delta: list.Delta{Add: list.SetOf(come...), Remove: list.SetOf(gone...)}}})
		if removed > 0 && errors.Is(err, membership.ErrFull) { // it is as full as planned, and some secrets place keys badly
			listed = before
			refused++
			check(gone[0], verdict.Blocked)
			check(come[0], verdict.Clean)
			return
		}
		if err != nil || n != len(come)+len(gone) {
			t.Fatalf("%d changes: %v", n, err)
		}
		check(come[batch-1], verdict.Blocked)
		check(come[0], verdict.Blocked)
		if removed > 0 {
			check(gone[0], verdict.Clean)
			check(gone[removed-1], verdict.Clean)
		}
	}
	for g.Block.Len()+2*batch <= g.Block.Planned() && !t.Failed() {
		changes(0)
	}
	few := func() bool { return lookups.Load() < 10*staying }
	made, deadline := 0, time.Now().Add(time.Minute)
	for ; (made < rounds || few() && time.Now().Before(deadline)) && !t.Failed(); made++ {
		changes(batch)
	}
	if refused > made/10 {
		t.Errorf("the set refused %d of %d batches", refused, made)
	}
	cascade, table := g.Block.Load()
	t.Logf("%d lookups beside %d batches of %d changes; filled to %.3f and %.3f", lookups.Load(), made, 2*batch, cascade, table)
	if t.Failed() {
		return // the reader has ended
	}
	if few() {
		t.Error("too few lookups for the test to say anything")
	}
	for _, k := range listed[:min(len(listed), 20_000)] {
		check(k, verdict.Blocked)
	}
}
