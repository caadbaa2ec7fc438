package contract

import (
	"net/netip"
	"testing"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/fpr"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/loader"
	"weir/tests/lab"
)

// For each number of further lines, the program finds the same keys as the set in a
// cascade of random bits, most of them set, so that lookups end at every line.
func TestFurtherLines(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	for bits, further := range map[float64]int{16: 1, 30: 3, 24: 2, 46: 3} {
		prefixes := make([]list.V4Prefix, 20_000)
		for i := range prefixes {
			prefixes[i] = list.V4(uint32(i)<<8, 32)
		}
		lists := []engine.List{{Name: "block", Contents: list.Entries{V4: prefixes}.Set()}}
		g := built(t, lists, engine.Config{Mode: membership.Approximate, BitsPerKey: bits})
		if got := (g.Block.Rest + fpr.MaxRest - 1) / fpr.MaxRest; got != further {
			t.Errorf("%v bits a key: %d further lines with %d bits, want %d", bits, got, g.Block.Rest, further)
		}
		stats := newStats(t, 1)
		p := load(t, g, stats)
		lines := g.Kernel().Block().Lines
		for i := range lines {
			lines[i] = r.Uint64() | r.Uint64() | r.Uint64()
		}
		found := 0
		const packets = 20_000
		for range packets {
			tuple := key.Tuple{Src: netip.AddrFrom4([4]byte{byte(r.IntN(223)), byte(r.IntN(256)), byte(r.IntN(256)), byte(r.IntN(256))}), Dst: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Proto: 17, HasPorts: true, SrcPort: 4000, DstPort: 9}
			_, want := g.Block.Match(tuple)
			action, err := p.Test(packet.Frame(tuple))
			if err != nil {
				t.Fatal(err)
			}
			if got := action == loader.ActionDrop; got != want {
				t.Fatalf("%v bits a key, %v: found by the program %t, by the set %t", bits, tuple.Src, got, want)
			}
			if want {
				found++
			}
		}
		t.Logf("%v bits a key, %d+%d: %d of %d found", bits, g.Block.First, g.Block.Rest, found, packets)
		if found == 0 || found == packets {
			t.Error("all or none are found")
		}
	}
}
