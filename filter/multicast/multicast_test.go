package multicast

import (
	"errors"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"weir/filter/cascade"
	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/seed"
)

func newTable(t testing.TB, l Layout) *Table {
	t.Helper()
	table, err := NewTable(l, hash.NewSecret(hash.Seed{1}), make([]uint64, l.Words()))
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// group returns the i-th of distinct groups of both families.
func group(i int) netip.Addr {
	if i%2 == 0 {
		return netip.AddrFrom4([4]byte{239, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 0x0e, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
}

// Filters keep to their planned rate and are as small as possible.
func TestPlan(t *testing.T) {
	for _, groups := range []int{1, 10, 100, 1024, 1 << 16, 1 << 20} {
		l := Plan(3, groups)
		if rate := l.Rate(); rate > maxRate {
			t.Errorf("%d groups: a rate of %g", groups, rate)
		}
		smaller := l
		smaller.Lines -= smaller.Lines/16 + 1
		if smaller.Lines > 0 && smaller.Lines > uint32(groups/16)+1 {
			best := fpr.BestCascade(groups, smaller.Lines, 1)
			if smaller.First, smaller.Rest = best.First, best.Rest; smaller.Rate() <= maxRate {
				t.Errorf("%d groups: %d lines would do, not %d", groups, smaller.Lines, l.Lines)
			}
		}
		if l.First < 1 || l.First > cascade.MaxLineBits || l.Rest > cascade.MaxLineBits {
			t.Errorf("%d groups: %+v exceeds the bits of a line", groups, l)
		}
	}
}

// A table answers like a set of groups for each port, except for false
// positives of its filters, through any additions and removals.
func TestTable(t *testing.T) {
	r := seed.Secrets(t)
	const ports, groups, world = 3, 64, 128
	table := newTable(t, Plan(ports, groups))
	naive := make([]map[netip.Addr]bool, ports+1)
	for i := range naive {
		naive[i] = make(map[netip.Addr]bool)
	}
	wanted := func() map[netip.Addr]bool {
		all := make(map[netip.Addr]bool)
		for _, p := range naive {
			for g := range p {
				all[g] = true
			}
		}
		return all
	}
	full := 0
	for range 20_000 {
		port, g := 1+r.IntN(ports), group(r.IntN(world))
		if r.IntN(2) == 0 {
			if got := table.Remove(port, g); got != naive[port][g] {
				t.Fatalf("remove %v from port %d: %t", g, port, got)
			}
			delete(naive[port], g)
		} else {
			all := wanted()
			fits := all[g] || len(all) < groups
			added, err := table.Add(port, g)
			if fits != (err == nil) || err != nil && !errors.Is(err, ErrFull) || added != (fits && !naive[port][g]) {
				t.Fatalf("add %v to port %d: %t, %v, with %d groups", g, port, added, err, len(all))
			}
			if fits {
				naive[port][g] = true
			} else {
				full++
			}
		}
		g = group(r.IntN(world))
		all := wanted()
		if table.Len() != len(all) || table.Wanted(g) != all[g] || all[g] && !table.Copies(g) {
			t.Fatalf("%v: wanted %t, copied %t, of %d groups: want %t, of %d", g, table.Wanted(g), table.Copies(g), table.Len(), all[g], len(all))
		}
		for port := 1; port <= ports; port++ {
			want := naive[port][g]
			if table.Wants(port, g) != want || want && !table.Passes(port, g) || table.Passes(port, g) && !table.Copies(g) {
				t.Fatalf("%v, port %d: wanted %t, passed %t, copied %t: want %t", g, port, table.Wants(port, g), table.Passes(port, g), table.Copies(g), want)
			}
		}
	}
	if full == 0 {
		t.Error("the table was never full: the test is too narrow")
	}
	for port := 1; port <= ports; port++ {
		got := table.Groups(port)
		if len(got) != len(naive[port]) || table.Count(port) != len(got) || !slices.IsSortedFunc(got, netip.Addr.Compare) {
			t.Errorf("port %d: groups %v, want %v", port, got, naive[port])
		}
		for _, g := range got {
			table.Remove(port, g)
		}
	}
	if i := slices.IndexFunc(table.words, func(w uint64) bool { return w != 0 }); i >= 0 {
		t.Errorf("without a group, word %d is %#x", i, table.words[i])
	}
}

// The rate computed from the bits is the measured one, and close to the
// prediction.
func TestFalsePositiveRate(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const probes = 1 << 20
	for _, l := range []Layout{
		{Ports: 2, MaxGroups: 1000, Lines: 16, First: 3},
		{Ports: 2, MaxGroups: 1000, Lines: 16, First: 2, Rest: 2},
	} {
		table := newTable(t, l)
		if rate := table.FalsePositiveRate(1); rate != 0 {
			t.Errorf("an empty filter has a rate of %g", rate)
		}
		for i := range l.MaxGroups {
			if _, err := table.Add(2, group(i)); err != nil {
				t.Fatal(err)
			}
		}
		passed := 0
		for range probes {
			if table.Passes(2, group(1<<20+r.IntN(1<<23))) {
				passed++
			}
		}
		rate, memory, predicted := float64(passed)/probes, table.FalsePositiveRate(2), l.Rate()
		t.Logf("%+v: %.5f measured, %.5f by the bits, %.5f predicted", l, rate, memory, predicted)
		if math.Abs(rate-memory) > 6*math.Sqrt(memory*(1-memory)/probes) {
			t.Errorf("measured rate %.5f, by the bits %.5f", rate, memory)
		}
		if math.Abs(memory-predicted) > 0.1*predicted {
			t.Errorf("rate %.5f by the bits, predicted %.5f", memory, predicted)
		}
		if other := table.FalsePositiveRate(1); other != 0 {
			t.Errorf("the other port has a rate of %g", other)
		}
	}
}

func TestNewTableRejects(t *testing.T) {
	l := Plan(2, 10)
	for _, c := range []struct {
		l     Layout
		words int
	}{{l, l.Words() - 1}, {l, 0}, {Layout{}, 0}} {
		if _, err := NewTable(c.l, hash.NewSecret(hash.Seed{1}), make([]uint64, c.words)); err == nil {
			t.Errorf("%+v over %d words is accepted", c.l, c.words)
		}
	}
}

func TestCheck(t *testing.T) {
	for a, want := range map[string]error{
		"224.0.1.0":        nil,
		"239.255.255.255":  nil,
		"232.1.2.3":        nil,
		"ff0e::1":          nil,
		"ff05::1:3":        nil,
		"ff33::1":          nil,
		"223.255.255.255":  errNoGroup,
		"240.0.0.0":        errNoGroup,
		"192.0.2.1":        errNoGroup,
		"fe80::1":          errNoGroup,
		"::ffff:239.1.2.3": errNoGroup,
		"ff0e::1%eth0":     errNoGroup,
		"224.0.0.0":        errLinkOnly,
		"224.0.0.255":      errLinkOnly,
		"ff02::1":          errLinkOnly,
		"ff01::1":          errLinkOnly,
		"ff32::1":          errLinkOnly,
		"ff00::1":          errLinkOnly,
	} {
		if err := Check(netip.MustParseAddr(a)); err != want {
			t.Errorf("%s: error %v, want %v", a, err, want)
		}
	}
}

// Packets from a source that no router forwards go to the network stack.
func TestSources(t *testing.T) {
	for source, want := range map[string]bool{
		"192.0.2.1": true, "1.0.0.1": true, "126.0.0.1": true, "128.0.0.1": true, "223.255.255.255": true, "10.0.0.1": true,
		"0.0.0.0": false, "0.0.0.1": false, "127.0.0.1": false, "127.255.255.255": false, "169.254.0.1": false,
		"224.0.0.1": false, "239.1.2.3": false, "240.0.0.1": false, "255.255.255.255": false,
		"2001:db8::1": true, "fd00::1": true, "fec0::1": true, "64:ff9b::1": true, "0:0:0:1::1": true,
		"::": false, "::1": false, "::ffff:192.0.2.1": false, "fe80::1": false, "febf::1": false, "ff02::1": false, "ff0e::1": false,
	} {
		tuple := key.Tuple{Src: netip.MustParseAddr(source), Dst: netip.MustParseAddr("239.1.2.3"), Proto: 17, HasPorts: true}
		if tuple.Src.Is6() {
			tuple.Dst = netip.MustParseAddr("ff0e::1")
		}
		frame := packet.Frame(tuple)
		frame[0] = 1
		if group, ok := Group(frame); ok != want || group != tuple.Dst {
			t.Errorf("from %s: forwarded to %v is %t, want %t", source, group, ok, want)
		}
	}
}
