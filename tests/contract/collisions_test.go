package contract

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
	"testing"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/long"
)

// Entries made to collide with other addresses get none of these dropped. Under
// XXH64 each would collide with one seed in 2¹⁵: the second words of both keys
// differ so that one bit of the state does, and their last words so that the step
// for the rest mostly flips it back. With WEIR_LONG=1 there are 524,288 pairs.
func TestCraftedEntriesBlockNoOther(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	const tails = 1024
	words := long.Or(192, 512)
	type pair struct{ listed, victim netip.Addr }
	var pairs []pair
	var entries list.Entries
	for range words {
		first, second := r.Uint32()&^0xe0|0x20, r.Uint64() // 2000::/3
		for range tails {
			tail := r.Uint32()
			p := pair{address6(first, flipped(second, 31-27), tail^1<<31), address6(first, second, tail)}
			pairs = append(pairs, p)
			entries.V6 = append(entries.V6, netip.PrefixFrom(p.listed, 128))
		}
		// Another entry in the victims' /48 marks it.
		entries.V6 = append(entries.V6, netip.PrefixFrom(address6(first, second, r.Uint32()), 128))
	}
	_, k := engines(t, []engine.List{{Name: "crafted", Contents: entries.Set()}}, engine.Config{})
	to := netip.MustParseAddr("2001:db8::1")
	reason := func(from netip.Addr) verdict.Reason {
		o, err := k.Decide(packet.Frame(key.Tuple{Src: from, Dst: to, Proto: 17, HasPorts: true, SrcPort: 53, DstPort: 53}))
		if err != nil {
			t.Fatal(err)
		}
		return o.Reason
	}
	dropped := 0
	for i, p := range pairs {
		if reason(p.victim) == verdict.Blocked {
			dropped++
		}
		if i%tails == 0 && reason(p.listed) != verdict.Blocked {
			t.Fatalf("%v is listed, and passes", p.listed)
		}
	}
	if dropped != 0 {
		t.Errorf("%d of %d unlisted addresses are dropped", dropped, len(pairs))
	}
}

// address6 returns the address whose key has these little-endian words behind the
// shape.
func address6(first uint32, second uint64, tail uint32) netip.Addr {
	var b [16]byte
	binary.LittleEndian.PutUint32(b[:], first)
	binary.LittleEndian.PutUint64(b[4:], second)
	binary.LittleEndian.PutUint32(b[12:], tail)
	return netip.AddrFrom16(b)
}

// flipped returns the word whose round in XXH64 differs from w's in one bit.
func flipped(w uint64, bit int) uint64 {
	const prime1, prime2 = 0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f
	round := bits.RotateLeft64(w*prime2, 31) * prime1
	return bits.RotateLeft64((round^1<<bit)*inverse(prime1), -31) * inverse(prime2)
}

// inverse returns the inverse of an odd number modulo 2⁶⁴.
func inverse(a uint64) uint64 {
	x := a
	for range 6 {
		x *= 2 - a*x
	}
	return x
}

// In exact mode, the table refutes what the filter takes for listed, and the program counts
// how often: the rate is the predicted one. In approximate mode, nothing is refuted.
func TestRefutedAreCounted(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	const listed, packets = 30_000, 100_000
	address := func(network byte) netip.Addr {
		a := [16]byte{0x20, 1, 0xd, 0xb8, network}
		binary.BigEndian.PutUint64(a[8:], r.Uint64())
		return netip.AddrFrom16(a)
	}
	dst := netip.MustParseAddr("2001:db9::1")
	frame := func(src netip.Addr) []byte {
		return packet.Frame(key.Tuple{Src: src, Dst: dst, Proto: 17, HasPorts: true, SrcPort: 4000, DstPort: 53})
	}
	var e list.Entries
	for range listed { // addresses of IPv4 are in a table without false positives
		e.V6 = append(e.V6, netip.PrefixFrom(address(1), 128))
	}
	for _, mode := range []membership.Mode{membership.Exact, membership.Approximate} {
		t.Run(mode.String(), func(t *testing.T) {
			g := built(t, []engine.List{{Name: "block", Contents: e.Set()}}, engine.Config{Mode: mode})
			stats := newStats(t, 1)
			p := load(t, g, stats)
			drops := func(src netip.Addr) bool {
				action, err := p.Test(frame(src))
				if err != nil {
					t.Fatal(err)
				}
				return action == loader.ActionDrop
			}
			for _, p := range e.V6[:1000] {
				if !drops(p.Addr()) {
					t.Fatalf("%v passes", p)
				}
			}
			if n := stats.Refuted(); n != 0 {
				t.Errorf("%d listed packets are refuted", n)
			}
			dropped := 0
			n := packets
			if mode == membership.Approximate {
				n /= 10 // only that there are none
			}
			for range n {
				if drops(address(2)) {
					dropped++
				}
			}
			rate := g.Block.FalsePositiveRate(listed)
			// Within six deviations of the binomial distribution, and what a filter of this
			// size may be off.
			want := float64(n) * rate
			off := 6*math.Sqrt(want) + 0.1*want
			refuted := float64(stats.Refuted())
			t.Logf("%.0f refuted and %d dropped of %d packets, predicted %.1f", refuted, dropped, n, want)
			switch {
			case mode == membership.Approximate && refuted != 0:
				t.Error("without a table, packets are refuted")
			case mode == membership.Exact && (dropped > 0 || math.Abs(refuted-want) > off || want-off < 1):
				t.Errorf("want within %.1f, and none dropped", off)
			}
		})
	}
}
