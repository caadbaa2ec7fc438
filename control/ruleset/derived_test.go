package ruleset

import (
	"net/netip"
	"testing"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/tests/seed"
)

// Prefixes are left out that cover an allowed address, whether there are more of them or of
// allowed addresses.
func TestNotWidened(t *testing.T) {
	r := seed.New(t)
	few, many, left := 0, 0, 0
	for range 300 {
		address := func() netip.Prefix {
			return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0x20, 7: byte(r.IntN(30)), 15: byte(r.IntN(3))}), 128)
		}
		var listed, allowed list.Entries
		for range r.IntN(20) {
			listed.V6 = append(listed.V6, address())
		}
		for range r.IntN(20) {
			p, _ := address().Addr().Prefix([]int{128, 128, 100, 64, 48}[r.IntN(5)])
			allowed.V6 = append(allowed.V6, p)
		}
		d := derived{of: list.Derivation{Prefix6: 64, V6: 48, At: 2, Src: true}}
		set := listed.Set()
		d.all = d.of.Prefixes(list.Members{All: []*list.Set{set}, Widened: []*list.Set{set}})
		allow := engine.List{Name: "friends", Allow: true, Contents: allowed.Set()}
		got := make(map[key.Key]covered)
		new(List).notWidened(&d, allow, got)
		n := 0
		for k := range d.all.All() {
			p, _ := list.PrefixOf(k)
			want := false
			for _, a := range allowed.V6 {
				want = want || p.Bits() == 64 && a.Bits() >= 64 && p.Contains(a.Addr())
			}
			c, found := got[k]
			if found != want || found && (!p.Overlaps(c.prefix) || c.allowed != "friends") {
				t.Fatalf("%v of %v is left out: %t, %v; allowed: %v", k, listed.V6, found, c, allowed.V6)
			}
			if want {
				n++
			}
		}
		if len(got) != n {
			t.Fatalf("%v of %d", got, n)
		}
		if left += n; allow.Contents.Len() > d.all.Len() {
			many++
		} else {
			few++
		}
	}
	if few < 30 || many < 30 || left < 30 {
		t.Errorf("%d, %d, %d: the test is too narrow", few, many, left)
	}
}
