package worth

import (
	"net/netip"
	"testing"

	"weir/control/api"
	"weir/control/observe/drops"
	"weir/filter/verdict"
	"weir/tests/rules"
)

// A list is credited for each address that was dropped and that it has, and alone for those that no other
// list would have dropped.
func TestCredit(t *testing.T) {
	p := rules.Read(t)
	flows := make(map[drops.Flow]drops.Count)
	for text, n := range map[string]uint64{"192.0.2.9": 3, "192.0.2.8": 5, "198.51.100.1": 7, "203.0.113.1": 11} {
		flows[drops.Flow{Remote: netip.MustParseAddr(text), Reason: verdict.Blocked}] = drops.Count{Packets: n}
	}
	flows[drops.Flow{Remote: netip.MustParseAddr("192.0.2.9"), Reason: verdict.Malformed}] = drops.Count{Packets: 100}
	lists := make([]api.ListWorth, len(p.Lists))
	for i, l := range p.Lists {
		lists[i].Name = l.Name
	}
	credit(p, lists, flows)
	for _, got := range lists {
		want := map[string]api.ListWorth{
			"a": {Addresses: 3, AddressPackets: 15, Alone: 2, AlonePackets: 12, Seen: 2},
			"b": {Addresses: 1, AddressPackets: 3, Seen: 1},
		}[got.Name]
		if got.Addresses != want.Addresses || got.AddressPackets != want.AddressPackets || got.Alone != want.Alone || got.AlonePackets != want.AlonePackets || got.Seen != want.Seen {
			t.Errorf("%s: %+v, want %+v", got.Name, got, want)
		}
	}
}
