package contract

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"weir/control/engine"
	"weir/control/stage/loop"
	forwarding "weir/control/stage/multicast"
	"weir/filter/icarus"
	"weir/filter/multicast"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
	"weir/tests/lab"
)

// A packet to a group that is forwarded gets, at an edge of a domain, the filter that the
// twin of the node inserts; inside, the node visits it; and where it has been before, it is
// dropped.
func TestMulticastFilters(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	const mtu = 1500
	l := lab.NewRouter(t, 1)
	m := &forwarding.Part{MaxGroups: 4096, Ports: []forwarding.Port{{Target: netif.Target{Netns: l.Ports[0].Port.Netns, Iface: l.Ports[0].Port.Iface}}}}
	for range 2000 {
		if p, _ := packet.Parse(r.toGroup()); p.HasAddresses {
			m.Ports[0].Groups = append(m.Ports[0].Groups, p.Dst)
		}
	}
	geometry := icarus.Geometry{Size: 128, K: 12, Confirm: 1}
	node, other := mustNode(t, 1, geometry), mustNode(t, 2, geometry)
	c := engine.Config{Parts: []engine.Part{m, &loop.Part{Node: node, Edges: []string{"edge"}, Drop: true}}}
	g := built(t, nil, c)
	if there, err := m.Connect(g.Kernel()); err != nil || !there[0] {
		t.Fatalf("%v, %v", there, err)
	}
	program := func(iface string) *loader.Program {
		stats := newStats(t, 0)
		if err := g.Follow(netif.Target{Netns: l.Ports[0].Port.Netns, Iface: iface}, stats); err != nil {
			t.Fatal(err)
		}
		p := load(t, g, stats)
		return p
	}
	edge, inside := program("edge"), program("inside")
	check := func(p *loader.Program, frame, ip []byte, action uint32) {
		t.Helper()
		got, out, err := p.Pass(frame)
		if err != nil {
			t.Fatal(err)
		}
		want := slices.Concat(frame[:14], ip)
		if action == loader.ActionRedirect {
			hopped(want[14:])
		}
		if got != action || action != loader.ActionDrop && !bytes.Equal(out, want) {
			t.Fatalf("action %d, want %d\n% x becomes\n% x, want\n% x", got, action, frame, out, want)
		}
	}
	seen := make(map[icarus.Outcome]int)
	for range 20_000 {
		frame := r.toGroup()
		if r.IntN(4) == 0 && len(frame) > 50 { // too large for the filter
			frame = grow(frame, mtu+14-r.IntN(60)-len(frame))
		}
		if len(frame) < 60 || len(frame) > oneBuffer {
			continue
		}
		to, ok := multicast.Group(frame)
		if p, _ := packet.Parse(frame); !ok || !m.Table.Copies(to) || !p.HasAddresses || p.Dst != to || g.Decide(frame).Reason != verdict.Clean {
			continue
		}
		ip, o := node.InsertForwarded(frame[14:], mtu)
		seen[o]++
		check(edge, frame, ip, loader.ActionRedirect)
		if o != icarus.Inserted {
			continue
		}
		check(inside, slices.Concat(frame[:14], ip), ip, loader.ActionDrop)
		elsewhere, _ := other.InsertForwarded(frame[14:], mtu)
		visited := bytes.Clone(elsewhere)
		if o := node.Visit(visited); o != icarus.Visited {
			continue // a false alarm
		}
		check(inside, slices.Concat(frame[:14], elsewhere), visited, loader.ActionRedirect)
	}
	t.Log(seen)
	if seen[icarus.Inserted] < 100 || seen[icarus.TooLarge] == 0 {
		t.Error("the test is too narrow")
	}
}

// grow adds n bytes to a frame's packet, by its header too.
func grow(frame []byte, n int) []byte {
	frame = append(bytes.Clone(frame), make([]byte, max(n, 0))...)
	if ip := frame[14:]; ip[0]>>4 == 4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	} else if len(ip) > 40 {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
	}
	return frame
}

// hopped decrements the TTL of a packet, and updates the checksum.
func hopped(ip []byte) {
	if ip[0]>>4 == 6 {
		ip[7]--
		return
	}
	ip[8]--
	n := uint32(binary.BigEndian.Uint16(ip[10:])) + 0x100
	if n >= 0xffff { // as in hop4: of the two zeros, a header has 0
		n++
	}
	binary.BigEndian.PutUint16(ip[10:], uint16(n))
}
