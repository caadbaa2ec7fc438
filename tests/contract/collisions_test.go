package contract

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"testing"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
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
