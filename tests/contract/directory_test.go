package contract

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/bench/probe"
	"weir/tests/lab"
)

// prefixesOf returns n prefixes of lengths.
func (r random) prefixesOf(n int, lengths ...int) (e list.Entries) {
	for range n {
		bits := r.pick(lengths...)
		e.V4 = append(e.V4, list.V4(r.Uint32()&^uint32(1<<(32-bits)-1), bits))
	}
	return e
}

// near returns an address within one of some prefixes, or just outside.
func (r random) near(prefixes []list.V4Prefix) netip.Addr {
	p := prefixes[r.IntN(len(prefixes))]
	hosts := uint32(1<<(32-p.Bits()) - 1)
	addr := p.Addr() | r.Uint32()&hosts
	switch r.IntN(6) {
	case 0:
		addr = p.Addr() - 1
	case 1:
		addr = p.Addr() + hosts + 1
	case 2:
		addr = r.Uint32()
	}
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], addr)
	return netip.AddrFrom4(b)
}

// A word in which an address's part is not set ends the lookup: the directory's bits
// are those that the kernel's program reads.
func TestDirectoryIsRead(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	src := r.prefixesOf(8000, 14, 18, 20, 22, 24, 32)
	g, kernel := engines(t, []engine.List{{Name: "from", Contents: src.Set()}}, engine.Config{Mode: membership.Exact, NearCache: loader.GuessedCache})
	words, parts := g.Kernel().Block().Directory, uint64(1)<<g.Block.Directory.Parts()-1
	full := slices.Clone(words)
	for without, bits := range map[string]uint64{"parts": ^parts, "lengths": parts, "bits": 0} {
		for i, w := range full {
			words[i] = w & bits
		}
		for range 100 {
			o, err := kernel.Decide(packet.Frame(key.Tuple{Src: r.near(src.V4), Dst: r.near(src.V4), Proto: 17}))
			if err != nil || o.Reason != verdict.Clean {
				t.Fatalf("%+v, %v, though the words are without %s", o, err, without)
			}
		}
	}
}

// With as many lengths as a set can have, each has a bit of its own in the directory's words,
// and the kernel's program reads the one that the reference does.
func TestDirectoryOfAllLengths(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	census := membership.Census{Keys: make(map[key.Shape]int), Highest: 3}
	for bits := uint8(1); bits <= membership.MaxShapes; bits++ {
		census.Keys[key.Shape{SrcBits: bits}] = 100
	}
	layout, err := membership.PlanLayout(census, membership.Exact, 0, hash.NewSecret(hash.NewSeed()))
	if err != nil {
		t.Fatal(err)
	}
	layout = layout.WithDirectory(16)
	block := loader.KeySet{
		Directory: engine.Directory(layout.Directory), N_prefixes: membership.MaxShapes,
		Quotient: engine.Quotient(layout.Prefixes.Layout, layout.Prefixes.Secret), PrefixShift: uint32(layout.Prefixes.Shift),
	}
	for i, s := range layout.V4 {
		mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-s.SrcBits))
		block.Prefixes[i].SrcMask = binary.NativeEndian.Uint32(mask)
		block.Prefixes[i].Tail = layout.Prefixes.Tail(s.SrcBits, false)
	}
	set, programs, keys := setOf(t, layout, block)
	at := func(addr uint32, bits int) key.Key {
		return key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, addr))), bits))
	}
	var addrs []uint32
	// One of each length but the shortest, for which there is no room, in networks of its
	// own: only its own bit finds it.
	for bits := 2; bits <= membership.MaxShapes; bits++ {
		addr := ^uint32(0) << (33 - bits)
		if bits > layout.Directory.Bits {
			addr = (uint32(bits)<<16 | 0x5555) & (^uint32(0) << (32 - bits))
		}
		if err := set.Add(at(addr, bits), 1); err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, addr, addr-1, addr+uint32(1<<(32-bits)-1), addr+uint32(1<<(32-bits)))
	}
	addrs = append(addrs, 0, ^uint32(0))
	asked := make([]uint32, 0, probe.KeysLen)
	if err := keys.Set(func() [4]byte {
		asked = append(asked, addrs[r.IntN(len(addrs))])
		return [4]byte(binary.BigEndian.AppendUint32(nil, asked[len(asked)-1]))
	}); err != nil {
		t.Fatal(err)
	}
	for n := 0; n < probe.KeysLen; {
		if _, err := programs.Loop("ask", 1); err != nil {
			t.Fatal(err)
		}
		_, lookups, err := programs.Hits()
		if err != nil {
			t.Fatal(err)
		}
		n += lookups
	}
	listed, err := keys.Listed()
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[bool]int)
	for i, addr := range asked {
		src := at(addr, 32)
		_, want := set.Match(key.Tuple{Src: src.Src, Dst: src.Dst, Proto: 17})
		if listed[i] != want {
			t.Fatalf("%v is listed: %t, in the kernel %t", src, want, listed[i])
		}
		seen[want]++
	}
	if min(seen[true], seen[false]) < probe.KeysLen/20 {
		t.Errorf("%v: the test is too narrow", seen)
	}
}
