package daemon

import (
	"testing"

	"weir/control/config"
	"weir/control/fleet/wire"
)

// A node reads the settings of a list as its hub writes them, and refuses unknown ones; a node of
// an earlier version refuses a limited list.
func TestFleetSettings(t *testing.T) {
	c, err := listOf("x", wire.Settings{Action: "allow-limited", Direction: "dst", Ports: "tcp/22,udp/5000-5010", Protocols: "tcp,icmp,47,udp", VLANs: "0,10"})
	if err != nil || c.Action != config.Allow || c.Rule().String() != "tcp/22, udp/5000-5010, icmp, 47, of VLAN 0 or 10" || !c.Enforce {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = listOf("x", wire.Settings{Action: "block-limited", Direction: "src", Protocols: "tcp", Trial: true, Priority: 7, Prefix6: 64})
	if err != nil || c.Enforce || c.Priority != 7 || c.Prefix6 != 64 || !c.WidensSources() {
		t.Errorf("%+v, %v", c, err)
	}
	if err := new(config.Action).UnmarshalText([]byte("block" + wire.Limited)); err == nil {
		t.Error("versions that know no rules take the list for all packets")
	}
	for _, s := range []wire.Settings{
		{Action: "block-limited", Direction: "src", Ports: "tcp/22-20"},
		{Action: "block-limited", Direction: "src", Protocols: "xyz"},
		{Action: "block-limited", Direction: "src", VLANs: "5000"},
		{Action: "block-limited-limited", Direction: "src"},
		{Action: "block", Direction: "src", Prefix6: 129},
		{Action: "block", Direction: "src", Prefix6: -1},
		{Action: "allow", Direction: "src", Prefix6: 64},
		{Action: "block", Direction: "src", Aggregate: wire.Aggregate{IPv4: 8, At: 8}},
		{Action: "block", Direction: "src", Aggregate: wire.Aggregate{IPv4: 24}},
	} {
		if c, err := listOf("x", s); err == nil {
			t.Errorf("%+v: %+v", s, c)
		}
	}
}
