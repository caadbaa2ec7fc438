package contract

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/fpr"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/tests/forgers"
	"weir/tests/lab"
	"weir/tests/long"
)

// attacked is a host whose classes of networks somebody tries to turn against those who are honest.
type attacked struct {
	*forgers.World
	entries map[uint32]bool
	lists   []engine.List
}

// newAttacked returns a host with n entries.
func newAttacked(r *rand.Rand, n int, exponent float64) *attacked {
	a := &attacked{World: forgers.New(r, exponent), entries: make(map[uint32]bool)}
	for len(a.entries) < n {
		a.entries[a.Listed()] = true
	}
	return a
}

// list makes the entries lists.
func (a *attacked) list() {
	var all []list.V4Prefix
	for addr := range a.entries {
		all = append(all, list.V4(addr, 32))
	}
	slices.Sort(all)
	a.lists = []engine.List{{Name: "block", Contents: list.Entries{V4: all}.Set()}}
}

// found returns what is learned, with the sources of a forger, if any.
func (a *attacked) found(honest int, f *forgers.Forger) *membership.Sightings {
	s := membership.Sightings{Periods: make([]membership.Period, membership.MaxPeriods)}
	a.Found(honest, f, func(period int, source uint32) {
		s.Periods[period].Exposed = 1
		s.Periods[period].Add(sourceAt(source))
	})
	return &s
}

func sourceAt(addr uint32) key.Key {
	return key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, addr))), 32))
}

// counted builds a filter by what was found, and returns the share of unlisted sources that the kernel drops, their
// number, and the prediction with the same number of bits for all.
func (a *attacked) counted(
	t *testing.T, bits float64, found *membership.Sightings, asked int, next func() uint32,
) (rate, equal float64, mistakes int, classed bool) {
	t.Helper()
	g, err := engine.Build(a.lists, engine.Config{
		Mode: membership.Approximate, BitsPerKey: bits, Demand: membership.Demand{Sightings: found},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	b, keys := newBench(t, g)
	var batch []uint32
	dropped := askKeys(t, b, keys, func() [4]byte {
		batch = append(batch, next())
		return [4]byte(binary.BigEndian.AppendUint32(nil, batch[len(batch)-1]))
	})
	counted := make(map[uint32]bool, asked) // each once
	for i, addr := range batch[:asked] {
		switch {
		case a.entries[addr] && !dropped[i]:
			t.Fatalf("%#x is listed, and passes", addr)
		case !a.entries[addr] && !counted[addr]:
			if counted[addr] = true; dropped[i] {
				mistakes++
			}
		}
	}
	n := len(counted)
	equal = fpr.BestCascade(len(a.entries), g.Block.Lines, fpr.MaxFurther).Rate(len(a.entries))
	return float64(mistakes) / float64(n), equal, mistakes, g.Block.Classes != nil
}

// Whatever is forged, the kernel drops honest sources at most 1.05 times as often as without classes.
func TestForgedSources(t *testing.T) {
	lab.Root(t)
	entries, asked := long.Or(20_000, 100_000), long.Or(1<<17, 1<<20)
	r := newRandom(t).Rand
	all := forgers.All()
	if !long.Enabled {
		all = all[6:7] // from the 100 most listed
	}
	for _, exponent := range long.Or([]float64{0.5}, []float64{0.5, 1.1}) {
		a := newAttacked(r, entries, exponent)
		a.list()
		for _, f := range all {
			rate, equal, mistakes, classed := a.counted(t, 8, a.found(4000, &f), asked, a.Honest)
			t.Logf("exponent %v, %s: classes %t, honest sources %.4g, %.3f of %.4g without", exponent, f.Name, classed, rate, rate/equal, equal)
			if rate > equal*(1.05+4/math.Sqrt(float64(mistakes))) {
				t.Errorf("exponent %v, %s: %.3f times as many honest sources are dropped", exponent, f.Name, rate/equal)
			}
		}
	}
}

// Where senders change to the networks in which most is listed, no network loses more than the bound, two.
func TestDrift(t *testing.T) {
	long.Only(t, "a million queries, of full lists")
	lab.Root(t)
	r := newRandom(t).Rand
	for _, exponent := range []float64{0.5, 1.1} {
		a := newAttacked(r, 100_000, exponent)
		a.list()
		found := a.found(24_000, nil)
		before, equal, _, classed := a.counted(t, 10, found, 1<<20, a.Honest)
		after, _, mistakes, _ := a.counted(t, 10, found, 1<<20, a.Listed)
		t.Logf("exponent %v: classes %t; before %.3f of %.4g without, after %.3f", exponent, classed, before/equal, equal, after/equal)
		if after > equal*(2.02+4/math.Sqrt(float64(mistakes))) {
			t.Errorf("exponent %v: %.3f times as many are dropped as without classes", exponent, after/equal)
		}
	}
}

// Who writes entries into the networks that shared a victim's class under a known factor does not raise its rate.
func TestCollidingNetworks(t *testing.T) {
	long.Only(t, "a million queries, of full lists")
	lab.Root(t)
	r := newRandom(t).Rand
	const known = 0x9E3779B1
	class := func(network uint32) uint32 { // in memory, little endian
		return binary.LittleEndian.Uint32(binary.BigEndian.AppendUint32(nil, network<<16)) * known >> 21
	}
	a := newAttacked(r, 100_000, 0.5)
	victim := uint32(0x2d00)
	var colliding []uint32
	for network := range uint32(1 << 16) {
		if network != victim && class(network) == class(victim) && len(colliding) < 26 {
			colliding = append(colliding, network)
		}
	}
	for range 10_000 {
		a.entries[colliding[r.IntN(len(colliding))]<<16|uint32(r.IntN(1<<16))] = true
	}
	a.list()
	found := a.found(24_000, nil)
	for i := range found.Periods {
		for range 30 { // some of the victim's are known
			found.Periods[i].Add(sourceAt(victim<<16 | uint32(r.IntN(1<<16))))
		}
	}
	rate, equal, mistakes, classed := a.counted(t, 10, found, 1<<20, func() uint32 { return victim<<16 | uint32(r.IntN(1<<16)) })
	t.Logf("%d networks, classes %t: the victim's rate is %.4g, %.3f of %.4g without", len(colliding), classed, rate, rate/equal, equal)
	if len(colliding) < 20 || rate > equal*(1.05+4/math.Sqrt(float64(max(mistakes, 1)))) {
		t.Errorf("the victim is dropped %.3f times as often", rate/equal)
	}
}
