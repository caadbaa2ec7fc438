package daemon

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"weir/control/config"
	"weir/control/engine"
	"weir/control/fleet/wire"
	"weir/control/observe/events"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
)

// What passes since its list is on trial may be dropped by a version, and what passes in monitor
// mode would be dropped already.
func TestRehearsalWouldBlock(t *testing.T) {
	for monitor, want := range map[bool]int{false: 1, true: 0} {
		r := &rehearsal{monitor: monitor, from: make(map[netip.Addr]*wire.Affected)}
		r.added = engine.NewFinder([]engine.List{{Name: "x", Contents: setOf(t, "198.51.100.1")}}, false)
		r.allowed = engine.NewFinder(nil, false)
		r.see(&events.Event{Tuple: key.Tuple{Src: netip.MustParseAddr("198.51.100.1"), Dst: netip.MustParseAddr("10.0.0.1")}, OneIn: 1, Reason: verdict.WouldBlock})
		if int(r.sum.WouldDrop) != want || int(r.sum.Passed) != want {
			t.Errorf("monitor %t: %+v", monitor, r.sum)
		}
	}
}

// oneConversation is with one address, whatever is dropped.
type oneConversation struct{}

func (oneConversation) Records() bool { return true }
func (oneConversation) ConversedWith(context.Context, engine.Additions, func(netip.Addr) bool) *wire.Conversed {
	return &wire.Conversed{Addresses: 1}
}

// Of an allow list it is unknown with which addresses the host converses that it would drop.
func TestRehearsalConversed(t *testing.T) {
	over, end := context.WithCancel(t.Context())
	end()
	for _, allow := range []bool{false, true} {
		r := &rehearsal{allow: allow}
		(&rehearsals{collateral: oneConversation{}}).count(over, r, config.List{}, nil)
		if known := r.sum.Conversed != nil; known == allow {
			t.Errorf("allow list %t: known %t", allow, known)
		}
	}
}

// A version of a list for certain packets would drop these alone, one on trial none, and an allow
// list lets pass the packets that it is for.
func TestRehearsalLimited(t *testing.T) {
	ssh := &verdict.Rule{Ports: []verdict.PortRange{{Proto: 6, First: 22, Last: 22}}, VLANs: []uint16{10}}
	for _, c := range []struct {
		rule, allows *verdict.Rule
		port, vlan   uint16
		want         int
	}{
		{nil, nil, 22, 10, 1}, {ssh, nil, 22, 10, 1}, {ssh, nil, 22, 11, 0}, {ssh, nil, 23, 10, 0},
		{&verdict.Rule{Trial: true}, nil, 22, 10, 0}, {ssh, ssh, 22, 10, 0}, {nil, ssh, 22, 10, 0}, {nil, ssh, 23, 10, 1},
	} {
		r := &rehearsal{from: make(map[netip.Addr]*wire.Affected)}
		one := setOf(t, "198.51.100.1")
		r.added = engine.NewFinder([]engine.List{{Name: "x", Contents: one, Rule: c.rule}}, false)
		r.allowed = engine.NewFinder(nil, false)
		if c.allows != nil {
			r.allowed = engine.NewFinder([]engine.List{{Name: "y", Allow: true, Contents: one, Rule: c.allows}}, false)
		}
		tuple := key.Tuple{Src: netip.MustParseAddr("198.51.100.1"), Dst: netip.MustParseAddr("10.0.0.1"), Proto: 6, HasPorts: true, SrcPort: 1, DstPort: c.port}
		frame := packet.Frame(tuple)
		frame = slices.Concat(frame[:12], []byte{0x81, 0, 0, byte(c.vlan)}, frame[12:])
		r.see(&events.Event{Tuple: tuple, OneIn: 1, Reason: verdict.Clean, Frame: frame})
		if int(r.sum.WouldDrop) != c.want || r.sum.Passed != 1 {
			t.Errorf("%+v: %+v", c, r.sum)
		}
	}
}
