package contract

import (
	"net/netip"
	"testing"

	"weir/control/engine"
	forwarding "weir/control/stage/multicast"
	"weir/filter/key"
	"weir/filter/multicast"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
	"weir/tests/lab"
)

// toGroup returns a random frame to a group or another address, sometimes
// corrupted.
func (r random) toGroup() []byte {
	t := r.tuple()
	b := t.Dst.AsSlice()
	if t.Src.Is4() {
		b[0] = byte(r.pick(224, 224, 232, 239, 240, 223))
		b[1], b[2] = byte(r.pick(0, 0, 1)), byte(r.pick(0, 0, 1))
		if r.IntN(8) == 0 {
			t.Src = netip.AddrFrom4([4]byte{byte(r.pick(0, 1, 126, 127, 128, 169, 223, 224, 240, 255)), byte(r.pick(0, 254)), 0, byte(r.pick(0, 1))})
		}
	} else {
		b[0], b[1], b[5], b[7] = byte(r.pick(0xff, 0xff, 0xff, 0xfe)), byte(r.IntN(32)), 0, 0
		if r.IntN(8) == 0 {
			t.Src = netip.AddrFrom16([16]byte{0: byte(r.pick(0, 0xfe, 0xff)), 1: byte(r.pick(0, 0x0e, 0x80, 0xbf, 0xc0)), 7: byte(r.pick(0, 1)), 8: byte(r.pick(0, 1)), 15: byte(r.pick(0, 1))})
		}
	}
	t.Dst, _ = netip.AddrFromSlice(b)
	f := packet.Frame(t)
	f[0] = byte(r.pick(1, 0x33, 0x33, 2))
	switch hops, next := 22, 23; r.IntN(8) {
	case 0:
		if t.Src.Is6() {
			hops = 21
		}
		f[hops] = byte(r.pick(0, 1, 2, 255))
	case 1:
		if t.Src.Is6() {
			next = 20
		}
		f[next] = byte(r.pick(0, 2, 58))
	case 2:
		if t.Src.Is4() {
			f[14] = byte(r.pick(0x44, 0x46, 0x55, 0x65))
		}
	case 3:
		return r.mutate(f)
	}
	return f
}

// oneBuffer is a length at which a frame is sure to be in one buffer, of which alone
// the kernel makes copies.
const oneBuffer = 2048

// The kernel copies just the frames that its twin says are to be forwarded, to
// groups that the twin of its filters lists.
func TestMulticast(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	l := lab.NewRouter(t, 2)
	m := &forwarding.Part{MaxGroups: 4096}
	for i, p := range l.Ports {
		m.Ports = append(m.Ports, forwarding.Port{Target: netif.Target{Netns: p.Port.Netns, Iface: p.Port.Iface}})
		for range 1000 {
			// Includes groups that no one may list: the filters do not check
			// that.
			if p, _ := packet.Parse(r.toGroup()); p.HasAddresses {
				m.Ports[i].Groups = append(m.Ports[i].Groups, p.Dst)
			}
		}
	}
	g := built(t, nil, engine.Config{Parts: []engine.Part{m}})
	stats := newStats(t, 0)
	p := load(t, g, stats)
	agree := func(frame []byte) bool {
		t.Helper()
		action, err := p.Test(frame)
		if err != nil {
			t.Fatal(err)
		}
		group, ok := multicast.Group(frame)
		want := uint32(loader.ActionPass)
		switch {
		case g.Decide(frame).Action == verdict.Drop: // too many tags
			want = loader.ActionDrop
		case ok && m.Table.Copies(group):
			want = loader.ActionRedirect
		}
		if action != want {
			t.Fatalf("XDP action %d, want %d (group %v, %t): % x", action, want, group, ok, frame)
		}
		return want == loader.ActionRedirect
	}
	var copied, left int
	for range 100_000 {
		frame := r.toGroup()
		if len(frame) < 14 || len(frame) > oneBuffer {
			continue
		}
		if agree(frame) {
			copied++
		} else {
			left++
		}
	}
	t.Logf("%d copied, %d left to the stack, %d groups", copied, left, m.Table.Len())
	if copied < 1000 || left < 1000 {
		t.Error("the test is too narrow")
	}
	// A group is added and removed at once.
	for _, a := range []string{"239.99.99.99", "ff3e::99"} {
		group := netip.MustParseAddr(a)
		src := netip.MustParseAddr("198.51.100.1")
		if group.Is6() {
			src = netip.MustParseAddr("2001:db8::1")
		}
		frame := packet.Frame(key.Tuple{Src: src, Dst: group, Proto: 17, HasPorts: true})
		frame[0] = 1
		if agree(frame) {
			t.Errorf("%v is copied before it was added", group)
		}
		if _, err := m.Table.Add(2, group); err != nil {
			t.Fatal(err)
		}
		if !agree(frame) {
			t.Errorf("%v is not copied", group)
		}
		m.Table.Remove(2, group)
		if agree(frame) {
			t.Errorf("%v is copied after it was removed", group)
		}
	}
}
