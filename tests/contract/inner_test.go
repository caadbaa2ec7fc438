package contract

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/explain"
	"weir/control/list"
	"weir/control/stages"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/lab"
)

// The Go names of tunnels are the kernel's.
func TestTunnels(t *testing.T) {
	for tunnel, number := range map[packet.Tunnel]bpf.WeirTunnel{
		packet.NoTunnel: bpf.WeirTunnelTUNNEL_NONE, packet.IPInIP: bpf.WeirTunnelTUNNEL_IP,
		packet.GRE: bpf.WeirTunnelTUNNEL_GRE, packet.VXLAN: bpf.WeirTunnelTUNNEL_VXLAN,
		packet.GTPU: bpf.WeirTunnelTUNNEL_GTPU, packet.NumTunnels: bpf.WeirTunnelTUNNEL_COUNT,
	} {
		if int(tunnel) != int(number) {
			t.Errorf("%v is %d in Go and %d in C", tunnel, tunnel, number)
		}
	}
}

// carry returns the packet of a frame in a packet with the tuple t, with the
// tunnel's protocol, behind the tunnel's header.
func carry(t key.Tuple, f []byte, tunnel ...byte) []byte {
	outer := packet.Frame(key.Tuple{Src: t.Src, Dst: t.Dst, Proto: 59})
	header := 14 + 40
	if t.Src.Is4() {
		header = 14 + 20
	}
	if t.HasPorts {
		udp := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, t.SrcPort), t.DstPort)
		tunnel = slices.Concat(udp, []byte{0, 0, 0, 0}, tunnel)
	}
	outer = slices.Concat(outer[:header], tunnel, f)
	if t.Src.Is4() {
		outer[23] = t.Proto
		binary.BigEndian.PutUint16(outer[16:], uint16(len(outer)-14))
	} else {
		outer[20] = t.Proto
		binary.BigEndian.PutUint16(outer[18:], uint16(len(outer)-header))
	}
	return outer
}

// tunnel puts a packet into tunnels, one in the other, up to one too many. Most of their
// headers are as they should be.
func (r random) tunnel(f []byte) []byte {
	for range r.pick(1, 1, 1, 2, 2, 3, packet.MaxInner, packet.MaxInner+1) {
		if len(f) < 15 {
			return f
		}
		t := r.tuple()
		etherType, ip := f[12:14:14], f[14:]
		odd := func() bool { return r.IntN(12) == 0 }
		if odd() { // at times more tags than are followed
			tags := bytes.Repeat([]byte{0x81, 0, 0, 7}, r.pick(1, 2, packet.MaxVLANTags, packet.MaxVLANTags+1))
			f = slices.Concat(f[:12], tags, f[12:])
		}
		switch r.IntN(4) {
		case 0:
			t.HasPorts, t.Proto = false, uint8(r.pick(4, 41))
			if !odd() {
				t.Proto = map[byte]uint8{8: 4, 0x86: 41}[etherType[0]]
			}
			f = carry(t, ip)
		case 1:
			t.HasPorts, t.Proto = false, 47
			flags := byte(r.pick(0, 0, 0x20, 0x80, 0xb0, 0x10))
			if odd() {
				flags = byte(r.IntN(256))
			}
			gre, inside := []byte{flags, 0}, ip
			if odd() {
				gre[1] = byte(r.IntN(256))
			}
			switch {
			case r.IntN(2) == 0:
				gre, inside = append(gre, 0x65, 0x58), f
			case odd():
				gre = append(gre, 0x88, 0x3e)
				if r.IntN(2) == 0 {
					gre = append(gre, byte(r.IntN(256)), 0, 0, 0)
				}
			default:
				gre = append(gre, etherType...)
			}
			for _, bit := range []byte{0x80, 0x20, 0x10} {
				if flags&bit != 0 {
					gre = append(gre, make([]byte, 4)...)
				}
			}
			f = carry(t, inside, gre...)
		case 2:
			t.HasPorts, t.Proto, t.DstPort = true, 17, 4789
			vxlan := []byte{8, 0, 0, 0, 0, 0, 7, 0}
			if odd() {
				vxlan[0] = byte(r.IntN(256))
			}
			if odd() {
				t.SrcPort, t.DstPort = 4789, 9
			}
			f = carry(t, f, vxlan...)
		case 3:
			t.HasPorts, t.Proto, t.DstPort = true, 17, 2152
			gtp := []byte{0x30, 0xff, 0, 0, 0, 0, 0, 1}
			if r.IntN(2) == 0 {
				gtp[0] |= byte(r.IntN(8))
			}
			if gtp[0]&7 != 0 {
				extensions := r.pick(0, 1, 1, 2, 4, 5)
				if gtp[0]&4 == 0 {
					extensions = 0
				}
				gtp = append(gtp, 0, 0, 0, byte(min(extensions, 1)*0x85))
				for i := range extensions {
					size := r.pick(1, 1, 2, 8)
					e := make([]byte, size*4)
					e[0] = byte(size)
					if i < extensions-1 {
						e[size*4-1] = 0x85
					}
					if odd() {
						e[0] = byte(r.pick(0, 100, 255))
					}
					gtp = append(gtp, e...)
				}
			}
			if odd() {
				gtp[r.IntN(2)] = byte(r.IntN(256))
			}
			f = carry(t, ip, gtp...)
		}
		if odd() { // a fragment, or a truncated or padded frame
			switch {
			case r.IntN(3) == 0:
				f = f[:r.IntN(len(f)+1)]
			case f[12] == 8 && r.IntN(2) == 0: // a short first one, padded by what follows it
				f[20] = 0x20
				binary.BigEndian.PutUint16(f[16:], uint16(20+8*r.IntN(8)))
			case f[12] == 8:
				f[20], f[21] = byte(r.pick(0x20, 0)), byte(r.pick(0, 1))
			default:
				f = r.extend(f)
			}
		}
	}
	return f
}

// Both entries and the reference agree on headers in tunnels, and count as many.
func TestInner(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	reasons, dropped, deepest := map[verdict.Reason]int{}, map[packet.Tunnel]int{}, 0
	complete := func() bool {
		return deepest == packet.MaxInner && reasons[verdict.Allowed] > 0 && len(dropped) == int(packet.NumTunnels)-1
	}
	for i := 0; i < 20 && !(i > 2 && complete()); i++ {
		var lists []engine.List
		for i := range 4 {
			lists = append(lists, engine.List{
				Name: fmt.Sprint(i), Allow: i == 3, Direction: engine.Direction(r.IntN(3)), Contents: r.entries(r.pick(0, 5, 20, 60)).Set(),
			})
		}
		c := r.config(i)
		c.Inner = true
		round := newRound(t)
		g, all := kernels(round, lists, c)
		for range 600 {
			f := packet.Frame(r.tuple())
			if r.IntN(4) == 0 {
				f = r.mutate(f)
			}
			f = r.tunnel(f)
			f = f[:min(len(f), tcPage)]
			for name, k := range all {
				before := stages.ReadTunnels(k.Stats())
				o, err := agree(g, k, f)
				if err != nil {
					t.Fatalf("%s: %v: % x", name, err, f)
				}
				reasons[o.Reason]++
				p, result := packet.Parse(f)
				if result != packet.OK || o.Reason != verdict.Blocked && o.Reason != verdict.WouldBlock {
					continue
				}
				if _, listed := g.Block.Match(p.Tuple); listed {
					continue
				}
				carried := g.Carried(f, p)
				tunnel, after := carried.Tunnel, stages.ReadTunnels(k.Stats())
				if carried.Reason != verdict.Blocked || after[tunnel].Listed != before[tunnel].Listed+1 {
					t.Fatalf("%s: a header in %v leads to %+v, and is counted as %v: % x", name, tunnel, o, after, f)
				}
				dropped[tunnel]++
				depth := uint64(0)
				for i := range after {
					depth += after[i].Headers - before[i].Headers
				}
				deepest = max(deepest, int(depth))
			}
		}
		round.end()
	}
	t.Log(reasons, dropped, deepest)
	if !complete() {
		t.Error("the test is too narrow")
	}
}

// What lets a header pass lets pass what it carries, and nothing else does.
func TestInnerPrecedence(t *testing.T) {
	lab.Root(t)
	flow := func(src string, proto uint8, port uint16) key.Tuple {
		return key.Tuple{
			Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr("203.0.113.1"),
			Proto: proto, HasPorts: port != 0, SrcPort: 5000, DstPort: port,
		}
	}
	contents := func(addresses ...string) *list.Set {
		all := make(map[netip.Addr]bool)
		for _, a := range addresses {
			all[netip.MustParseAddr(a)] = true
		}
		return addressEntries(all).Set()
	}
	const listed, both, allowed, managed, free = "198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4", "198.51.100.5"
	lists := []engine.List{
		{Name: "block", Contents: contents(listed, both, managed)},
		{Name: "allow", Allow: true, Contents: contents(both, allowed)},
	}
	matched := stages.Inner(true)
	part, err := matched.Part()
	if err != nil {
		t.Fatal(err)
	}
	c := engine.Config{Parts: []engine.Part{part}, Policy: verdict.Policy{
		FailsafePorts:    []verdict.FailsafePort{{Proto: 6, Port: 22}},
		FailsafePrefixes: []netip.Prefix{netip.MustParsePrefix(managed + "/32")},
	}}
	in := func(outer string, f []byte) []byte { return carry(flow(outer, 47, 0), f[14:], 0, 0, 8, 0) }
	web, ssh := packet.Frame(flow(listed, 6, 80)), packet.Frame(flow(listed, 6, 22))
	// first makes it a first fragment with 8 bytes of payload, padded by what follows them.
	first := func(f []byte) []byte {
		f = bytes.Clone(f)
		f[17], f[20] = 28, 0x20
		return f
	}
	tagged := func(outer string) []byte {
		tags := bytes.Repeat([]byte{0x81, 0, 0, 7}, packet.MaxVLANTags+1)
		return carry(flow(outer, 17, 4789), slices.Concat(web[:12], tags, web[12:]), 8, 0, 0, 0, 0, 0, 7, 0)
	}
	deep := in(free, packet.Frame(flow(free, 6, 80)))
	for range packet.MaxInner {
		deep = in(free, deep)
	}
	off := c
	off.Parts = nil
	g, on := kernels(t, lists, c)
	without, offKernels := kernels(t, lists, off)
	for name, test := range map[string]struct {
		frame []byte
		want  verdict.Reason
		off   verdict.Reason
	}{
		"a listed header":                        {in(free, web), verdict.Blocked, verdict.Clean},
		"a listed one in another tunnel":         {in(free, in(free, web)), verdict.Blocked, verdict.Clean},
		"a listed tunnel":                        {in(listed, packet.Frame(flow(free, 6, 80))), verdict.Blocked, verdict.Blocked},
		"nothing listed":                         {in(free, packet.Frame(flow(free, 6, 80))), verdict.Clean, verdict.Clean},
		"a listed header that is allowed, too":   {in(free, packet.Frame(flow(both, 6, 80))), verdict.Allowed, verdict.Clean},
		"a listed header in an allowed tunnel":   {in(allowed, web), verdict.Clean, verdict.Clean},
		"an allowed header in a listed tunnel":   {in(listed, packet.Frame(flow(allowed, 6, 80))), verdict.Blocked, verdict.Blocked},
		"a listed header in an allowed one":      {in(free, in(allowed, web)), verdict.Clean, verdict.Clean},
		"a listed header to a failsafe port":     {in(free, ssh), verdict.Clean, verdict.Clean},
		"a failsafe port in a listed tunnel":     {in(listed, ssh), verdict.Blocked, verdict.Blocked},
		"a listed header from a failsafe prefix": {in(free, packet.Frame(flow(managed, 6, 80))), verdict.Clean, verdict.Clean},
		"a listed header in a failsafe tunnel":   {in(managed, web), verdict.Failsafe, verdict.Failsafe},
		"a fragment without the listed header":   {first(in(free, web)), verdict.Truncated, verdict.Clean},
		"such a fragment of an allowed tunnel":   {first(in(allowed, web)), verdict.Clean, verdict.Clean},
		"such a fragment of a listed tunnel":     {first(in(listed, web)), verdict.Blocked, verdict.Blocked},
		"a listed header behind too many tags":   {tagged(free), verdict.Overtagged, verdict.Clean},
		"such a header in an allowed tunnel":     {tagged(allowed), verdict.Clean, verdict.Clean},
		"one more header than are followed":      {deep, verdict.Unparsed, verdict.Clean},
	} {
		for entry, k := range on {
			if o, err := agree(g, k, test.frame); err != nil || o.Reason != test.want {
				t.Errorf("%s: %s: %+v, %v, want %v", entry, name, o, err, test.want)
			}
		}
		for entry, k := range offKernels {
			if o, err := agree(without, k, test.frame); err != nil || o.Reason != test.off {
				t.Errorf("%s: %s: %+v, %v without inner, want %v", entry, name, o, err, test.off)
			}
		}
		if a := explain.Answers(g, explain.Question{Frame: test.frame}, nil)[0]; a.Reason != test.want {
			t.Errorf("%s: explained as %+v", name, a)
		}
	}
	for entry, k := range offKernels {
		for tunnel, n := range stages.ReadTunnels(k.Stats()) {
			if n.Headers != 0 {
				t.Errorf("%s: headers in %v are looked up without inner", entry, packet.Tunnel(tunnel))
			}
		}
	}
	if a := explain.Answers(g, explain.Question{Frame: tagged(free)}, nil)[0]; a.Verdict != explain.Drop || a.Stages[len(a.Stages)-2].By != "overtagged in VXLAN" {
		t.Errorf("too many tags in a tunnel: %+v", a)
	}
	a := explain.Answers(g, explain.Question{Frame: in(free, web)}, nil)[0]
	if len(a.Matches) != 1 || a.Matches[0].Entry != listed || a.List != "block" {
		t.Errorf("the entry that matches a header in a tunnel is not named: %+v", a)
	}
	if by := a.Stages[len(a.Stages)-2].By; by != "list block: "+listed+" > 203.0.113.1 in GRE" {
		t.Errorf("the header is described as %q", by)
	}
	q, err := explain.ParseQuestion("udp " + free + ":* > *:4789")
	if err != nil {
		t.Fatal(err)
	}
	if a := explain.Answers(g, q[0], nil)[0]; len(a.Depends) == 0 || a.Depends[0].Packets != "packets with a listed header in VXLAN" {
		t.Errorf("what depends on the packet in a tunnel: %+v", a)
	}
	if a := explain.Answers(without, q[0], nil)[0]; len(a.Depends) != 0 {
		t.Errorf("without inner: %+v", a)
	}
}

// Of each packet of captures, the headers in tunnels are those that gopacket finds.
func TestInnerOfCaptures(t *testing.T) {
	found := make(map[packet.Tunnel]int)
	for _, f := range frames(t) {
		p, r := packet.Parse(f.data)
		if r != packet.OK || p.Tunnel() == packet.NoTunnel {
			continue
		}
		want := addressesIn(f.data)
		for depth := 1; depth <= packet.MaxInner && depth < len(want); depth++ {
			in, _ := p.Inner(f.data)
			if !in.HasAddresses || !want[depth].Src.IsValid() {
				break // gopacket follows other tunnels, too, and stops at truncated headers
			}
			if in.Src != want[depth].Src || in.Dst != want[depth].Dst {
				t.Fatalf("%s, packet %d, header %d: %v > %v, gopacket finds %v", f.capture, f.number, depth, in.Src, in.Dst, want)
			}
			found[p.Tunnel()]++
			p = in
		}
	}
	t.Log(found)
	for tunnel, least := range map[packet.Tunnel]int{packet.IPInIP: 200, packet.GRE: 20, packet.VXLAN: 100, packet.GTPU: 200} {
		if found[tunnel] < least {
			t.Errorf("%d headers in %v, expected %d", found[tunnel], tunnel, least)
		}
	}
}

// addressesIn returns the addresses of all IP headers of a frame, as gopacket finds them.
func addressesIn(frame []byte) (all []key.Tuple) {
	p := gopacket.NewPacket(bytes.Clone(frame), layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
	for _, l := range p.Layers() {
		var src, dst []byte
		switch l := l.(type) {
		case *layers.IPv4:
			src, dst = l.SrcIP, l.DstIP
		case *layers.IPv6:
			src, dst = l.SrcIP, l.DstIP
		default:
			continue
		}
		a, _ := netip.AddrFromSlice(src)
		b, _ := netip.AddrFromSlice(dst)
		all = append(all, key.Tuple{Src: a, Dst: b})
	}
	return all
}
