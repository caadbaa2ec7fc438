package sketch

import (
	"slices"
	"testing"
)

func TestLasts(t *testing.T) {
	const heavy = 10
	for _, c := range []struct {
		flow Flow
		unit Unit
		want bool
	}{
		{Flow{Packets: 10}, Packets, true},
		{Flow{Packets: 9}, Packets, false},             // light in a whole interval
		{Flow{Before: 1, Packets: 5}, Packets, true},   // may have begun late
		{Flow{Before: 50, Packets: 4}, Packets, false}, // collisions alone do not preserve an entry
		{Flow{Packets: 10, Bytes: 9}, Bytes, false},
		{Flow{Packets: 1, Bytes: 10}, Bytes, true},
	} {
		if got := c.flow.Lasts(c.unit, heavy); got != c.want {
			t.Errorf("%+v by %v lasts: %t", c.flow, c.unit, got)
		}
	}
}

func TestMerge(t *testing.T) {
	tracker := sources.of(Packets, 4096, 8)
	banks := []*Bank{mustNewBank(t, tracker), mustNewBank(t, tracker), mustNewBank(t, tracker)}
	for _, b := range banks {
		b.Admit(10, 0)
	}
	banks[0].send(1, 30) // in two memories and a sketch
	banks[1].send(1, 7)
	banks[2].send(1, 12)
	banks[1].send(2, 9) // in sketches alone
	banks[2].send(2, 9)
	banks[2].Keep(Flow{Key: source(3), Hash: banks[2].Hash(source(3))}) // exact, and unknown elsewhere
	banks[2].send(3, 4)

	merged := Merge(banks...)
	slices.SortFunc(merged, func(a, b Flow) int { return a.Key.Src.Compare(b.Key.Src) })
	want := []Flow{
		{Key: source(1), Hash: tracker.Hash(source(1)), Before: 9 + 7 + 9, Packets: 21 + 3, Bytes: 2400},
		{Key: source(3), Hash: tracker.Hash(source(3)), Packets: 4, Bytes: 400},
	}
	if !slices.Equal(merged, want) {
		t.Errorf("merged %+v, want %+v", merged, want)
	}
	if f := merged[0]; f.Exact(Packets) != 24 || f.Estimate(Packets) != 49 || f.Exact(Bytes) != 2400 {
		t.Errorf("%+v: exact %d, at most %d packets", f, f.Exact(Packets), f.Estimate(Packets))
	}
	if f := Merge(); len(f) != 0 {
		t.Errorf("flows %v in no banks", f)
	}
}
