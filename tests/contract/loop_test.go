package contract

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/stage/loop"
	"weir/filter/icarus"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/long"
)

// role is the position of a node in the domain.
type role uint8

const (
	inner role = iota // no edges: packets arrive from a node
	entry             // packets arrive from outside and stay inside
	exit              // packets arrive from a node and leave at an edge
)

var domainKey = icarus.Key([]byte("0123456789abcdef"))

func mustNode(t testing.TB, id uint64, g icarus.Geometry) *icarus.Node {
	t.Helper()
	n, err := icarus.NewNode(id, 7, domainKey, g)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// loopNode is a node in the kernel beside its twin in Go.
type loopNode struct {
	*icarus.Node
	generation *engine.Generation
	stats      *loader.Stats
	program    *loader.Program
	role       role
	mtu        int
	seen       [icarus.NumOutcomes]uint64
}

// newLoopNode returns a node whose packets leave by an interface.
func newLoopNode(t testing.TB, n *icarus.Node, r role, out lab.End, policy verdict.Policy) *loopNode {
	t.Helper()
	in := netif.Target{Netns: out.Netns, Iface: "in"}
	part := &loop.Part{Node: n}
	switch r {
	case entry:
		part.Edges = []string{in.Iface}
	case exit:
		part.Edges = []string{out.Iface}
	}
	g := built(t, nil, engine.Config{Policy: policy, Parts: []engine.Part{part}})
	stats := newStats(t, 0)
	if err := g.Follow(in, stats); err != nil {
		t.Fatal(err)
	}
	program := load(t, g, stats)
	return &loopNode{Node: n, generation: g, stats: stats, program: program, role: r, mtu: 1500}
}

// want returns a frame as the node must forward it, and what it must count.
func (n *loopNode) want(frame []byte) (action verdict.Action, passed []byte, counted []icarus.Outcome) {
	o := n.generation.Decide(frame)
	p, _ := packet.Parse(frame)
	if !p.HasAddresses || p.Encapsulated || o.Reason == verdict.ND || o.Reason == verdict.DHCP {
		return o.Action, frame, nil
	}
	pkt := slices.Clone(frame[p.Network:])
	var did icarus.Outcome
	whole := func(pkt []byte) []byte { return slices.Concat(frame[:p.Network], pkt) }
	count := func(o icarus.Outcome) {
		if o != icarus.Untouched {
			counted = append(counted, o)
		}
	}
	safe := o.Reason == verdict.Failsafe
	if n.role == entry {
		if safe || !forwarded(p.Src, p.Dst) {
			return o.Action, frame, nil
		}
		pkt, did = n.Insert(pkt, n.mtu)
		count(did)
		return o.Action, whole(pkt), counted
	}
	found := icarus.Untouched
	if !safe {
		if found = n.Check(pkt); found != icarus.Visited {
			count(found)
		}
	}
	if o.Action == verdict.Drop {
		return o.Action, frame, counted
	}
	ours := found == icarus.Visited || found == icarus.Suspected || found == icarus.Looped
	if n.role == exit && (ours || safe || found == icarus.Fragment) {
		if pkt, did = n.Remove(pkt); did == icarus.Removed {
			count(did)
			return o.Action, whole(pkt), counted
		}
	}
	if ours {
		if n.Visit(pkt); found == icarus.Visited {
			count(found)
		}
	}
	return o.Action, whole(pkt), counted
}

// forwarded reports whether the lab's router would forward a packet.
func forwarded(src, dst netip.Addr) bool {
	switch {
	case dst.IsLoopback() && !dst.Is4In6():
		return false
	case dst.Is6():
		for _, a := range []netip.Addr{src, dst} {
			if a.IsMulticast() || a.IsLinkLocalUnicast() {
				return false
			}
		}
		return dst != netip.MustParseAddr("fd00::2")
	}
	b := dst.As4()
	return !(b[0] == 198 && b[1] == 18 && b[2] == 0 && (b[3] == 0 || b[3] == 2 || b[3] == 255))
}

// pass runs a frame through the kernel's program, and fails where it answers
// otherwise than its twin.
func (n *loopNode) pass(frame []byte) ([]byte, error) {
	action, want, counted := n.want(frame)
	got, passed, err := n.program.Pass(frame)
	if err != nil {
		return nil, err
	}
	outcomes := n.grown()
	slices.Sort(counted) // as the others are
	switch {
	case got == loader.ActionDrop != (action == verdict.Drop):
		err = fmt.Errorf("action %d, want %v", got, action)
	case !bytes.Equal(passed, want):
		err = fmt.Errorf("passed % x,\nwant % x", passed, want)
	case !slices.Equal(outcomes, counted):
		err = fmt.Errorf("counted %v, want %v", outcomes, counted)
	}
	return passed, err
}

// grown returns the outcomes counted since the last call.
func (n *loopNode) grown() (outcomes []icarus.Outcome) {
	now := loop.Read(n.stats)
	for i := range now {
		for range now[i] - n.seen[i] {
			outcomes = append(outcomes, icarus.Outcome(i))
		}
	}
	n.seen = now
	return outcomes
}

// route makes the lab's end B a router whose packets all leave by its only interface.
func route(t testing.TB, l *lab.Lab) {
	t.Helper()
	l.B.In(t, func() {
		for _, knob := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+knob, []byte("1"), 0); err != nil {
				t.Fatal(err)
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		out, err := netlink.LinkByName(l.B.Iface)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			t.Fatal(err)
		}
		for _, gateway := range []netip.Addr{l.A.IPv4, l.A.IPv6} {
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: out.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

var loopGeometries = []icarus.Geometry{{Size: 64, K: 6, Confirm: 1}, {Size: 128, K: 7, Confirm: 2}, {Size: 256, K: 12, Confirm: 1}}

// Every packet of every capture, into a domain, through it, around a loop, and
// out again: kernel and Go agree on every bit, checksums stay right, and
// packets leave as they entered.
func TestLoopFiltersOverCaptures(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	traffic := frames(t)
	l := lab.New(t)
	route(t, l)
	policy := verdict.Policy{FailsafePorts: []verdict.FailsafePort{{Proto: 6, Port: 22}}}
	var domains [][]*loopNode
	for _, g := range loopGeometries {
		domains = append(domains, []*loopNode{
			newLoopNode(t, mustNode(t, 1, g), entry, l.B, policy),
			newLoopNode(t, mustNode(t, 2, g), inner, l.B, policy),
			newLoopNode(t, mustNode(t, 3, g), inner, l.B, policy),
			newLoopNode(t, mustNode(t, 4, g), exit, l.B, policy),
		})
	}
	step := long.Or(8, 2)
	first, sent := newRandom(t).IntN(step), 0
	inserted, checked := 0, 0
	l.B.In(t, func() {
		for i, f := range traffic {
			if i%step != first || len(f.data) < 14 || len(f.data) > 60_000 {
				continue
			}
			nodes := domains[sent%len(domains)]
			sent++
			at := slices.Clone(f.data)
			for hop, n := range []*loopNode{nodes[0], nodes[1], nodes[2], nodes[1], nodes[3]} {
				passed, err := n.pass(at)
				if err != nil {
					t.Errorf("%s, packet %d, hop %d: %v: % x", f.capture, f.number, hop, err, at[:min(len(at), 200)])
					return
				}
				if hop == 0 {
					if len(passed) == len(at) {
						break // it stays without a filter
					}
					inserted++
				}
				if ok, known := checksumOf(at); ok && known {
					if ok, _ := checksumOf(passed); !ok {
						t.Errorf("%s, packet %d, hop %d: wrong checksum", f.capture, f.number, hop)
						return
					}
					checked++
				}
				at = passed
			}
			if len(at) == len(f.data) && !bytes.Equal(at, f.data) && !negativeZero(f.data) {
				t.Errorf("%s, packet %d: came out as % x, was % x", f.capture, f.number, at, f.data)
				return
			}
			if len(at) != len(f.data) {
				t.Errorf("%s, packet %d: %d bytes, were %d", f.capture, f.number, len(at), len(f.data))
				return
			}
		}
	})
	sum := map[string]uint64{}
	for _, d := range domains {
		for _, n := range d {
			for o, c := range n.seen {
				if c > 0 {
					sum[icarus.Outcome(o).String()] += c
				}
			}
		}
	}
	t.Logf("%d packets with a filter, %d checksums: %v", inserted, checked, sum)
	if inserted < sent/2 || checked < inserted {
		t.Errorf("only %d of %d packets got a filter, %d checksums were compared", inserted, sent, checked)
	}
	for _, o := range []icarus.Outcome{icarus.Suspected, icarus.Looped, icarus.Removed, icarus.TooLarge, icarus.Fragment, icarus.OptionsPresent} {
		if sum[o.String()] == 0 {
			t.Errorf("no packet was %v: the captures are too narrow", o)
		}
	}
}

// checksumOf reports whether an IPv4 header has the checksum that gopacket
// computes, and whether there is one.
func checksumOf(frame []byte) (ok, known bool) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true, Lazy: true})
	ip, found := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	if !found {
		return false, false
	}
	had := ip.Checksum
	again := gopacket.NewSerializeBuffer()
	if err := ip.SerializeTo(again, gopacket.SerializeOptions{ComputeChecksums: true}); err != nil {
		return false, false
	}
	return ip.Checksum == had, true
}

// negativeZero reports whether an IPv4 header has the checksum 0xffff, which no
// sum has, and which is updated to 0.
func negativeZero(frame []byte) bool {
	p, _ := packet.Parse(frame)
	return p.HasAddresses && p.Src.Is4() && frame[p.Network+10] == 0xff && frame[p.Network+11] == 0xff
}

// routable sets addresses of a frame for which the twin knows the routing
// table's answer, wherever an IP header may have them.
func routable(frame []byte) []byte {
	p, _ := packet.Parse(frame)
	if !p.HasAddresses {
		return frame
	}
	frame = slices.Clone(frame)
	if ip := frame[p.Network:]; p.Src.Is4() {
		copy(ip[12:], []byte{192, 0, 2, 1, 198, 51, 100, 1})
	} else {
		src, dst := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
		copy(ip[8:], slices.Concat(src.AsSlice(), dst.AsSlice()))
	}
	return frame
}

// mangle corrupts the fields of a frame with a filter that a node reads, or
// replaces headers.
func (r random) mangle(f []byte) []byte {
	f = slices.Clone(f)
	headers := min(len(f), 14+40+16+32)
	switch r.IntN(6) {
	case 0: // anything among the headers
		for range 1 + r.IntN(3) {
			f[14+r.IntN(headers-14)] = byte(r.pick(0, 1, 4, 7, 0x3e, 0x9e, 255, r.IntN(256)))
		}
	case 1: // cut off
		f = f[:r.IntN(len(f)+1)]
	case 2: // lengths
		f[r.pick(14, 16, 17, 18, 19, 20, 35, 55, 63)] += byte(r.pick(1, 8, 255, 248))
	case 3: // hop-by-hop headers, before or after the filter's
		if f[12] == 0x86 {
			return r.extend(f)
		}
	case 4: // bits of the filter
		for range 1 + r.IntN(20) {
			f[headers-1-r.IntN(32)] |= byte(r.IntN(256))
		}
	case 5:
		return r.mutate(f)
	}
	return f
}

// onePage is the maximum frame of a test run on kernels without multi-buffer
// XDP.
const onePage = 3000

// loopSeeds are frames with filters of several domains and sizes, and without.
func loopSeeds(t testing.TB, g icarus.Geometry) (seeds [][]byte) {
	for i := range 6 {
		src, dst := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")
		if i%2 == 1 {
			src, dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
		}
		plain := slices.Concat(packet.Frame(key.Tuple{Src: src, Dst: dst, Proto: 17, HasPorts: true, SrcPort: 9, DstPort: 9}), make([]byte, 40))
		seeds = append(seeds, plain)
		n := mustNode(t, uint64(1+i/2), g)
		pkt, _ := n.Insert(plain[14:], 1500)
		seeds = append(seeds, slices.Concat(plain[:14], pkt))
		tagged := slices.Concat(plain[:12], bytes.Repeat([]byte{0x81, 0, 0, 7}, []int{1, 2, packet.MaxVLANTags}[i/2]))
		seeds = append(seeds, slices.Concat(tagged, plain[12:]), slices.Concat(tagged, plain[12:14], pkt))
		other := mustNode(t, 1, icarus.Geometry{Size: 384 - g.Size, K: 5, Confirm: 1})
		pkt, _ = other.Insert(plain[14:], 1500)
		seeds = append(seeds, slices.Concat(plain[:14], pkt), fragmented(plain, n))
	}
	return seeds
}

// fragmented returns the second half of a frame's packet, if that is IPv4, as a
// router inside has fragmented it after a node has inserted a filter.
func fragmented(plain []byte, n *icarus.Node) []byte {
	pkt, _ := n.Insert(plain[14:], 1500)
	if pkt[0]>>4 != 4 {
		return slices.Concat(plain[:14], pkt)
	}
	header := int(pkt[0]&0xf) * 4
	pkt = slices.Concat(pkt[:header], pkt[header+24:])
	binary.BigEndian.PutUint16(pkt[2:], uint16(len(pkt)))
	pkt[6], pkt[7] = 0, 3 // an offset of 24 bytes
	return slices.Concat(plain[:14], pkt)
}

// A router inside may fragment a packet; all fragments then have its filter.
// Their tag is wrong without forgery: they are not in a loop, and lose the
// filter when they leave.
func TestFragmentsFromInside(t *testing.T) {
	l := lab.New(t)
	g := icarus.Geometry{Size: 64, K: 6, Confirm: 1}
	plain := slices.Concat(packet.Frame(key.Tuple{
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("198.51.100.1"), Proto: 17, HasPorts: true, SrcPort: 9, DstPort: 9,
	}), make([]byte, 40))
	n := mustNode(t, 1, g)
	frame := fragmented(plain, n)
	route(t, l)
	l.B.In(t, func() {
		for _, c := range []struct {
			role
			counted []icarus.Outcome
			length  int
		}{
			{inner, []icarus.Outcome{icarus.Fragment}, len(frame)},
			{exit, []icarus.Outcome{icarus.Removed, icarus.Fragment}, len(frame) - 16},
		} {
			k := newLoopNode(t, n, c.role, l.B, verdict.Policy{})
			_, passed, err := k.program.Pass(frame)
			if err != nil {
				t.Fatal(err)
			}
			if counted := k.grown(); !slices.Equal(counted, c.counted) || len(passed) != c.length {
				t.Errorf("role %d: counted %v, want %v; %d bytes, want %d", c.role, counted, c.counted, len(passed), c.length)
			}
		}
	})
}

// loopNodes are one node of each role.
func loopNodes(t testing.TB, l *lab.Lab, g icarus.Geometry) (nodes []*loopNode) {
	route(t, l)
	for i, r := range []role{inner, entry, exit} {
		nodes = append(nodes, newLoopNode(t, mustNode(t, uint64(i+1), g), r, l.B, verdict.Policy{DropMalformed: i == 0}))
	}
	return nodes
}

// Whatever is done to options and headers, kernel and Go agree.
func TestMangledLoopFilters(t *testing.T) {
	l := lab.New(t)
	r := newRandom(t)
	seen := map[icarus.Outcome]uint64{}
	for _, g := range []icarus.Geometry{{Size: 128, K: 7, Confirm: 2}, {Size: 256, K: 12, Confirm: 1}} {
		l := l
		if g.Size != 128 {
			l = lab.New(t)
		}
		nodes, seeds := loopNodes(t, l, g), loopSeeds(t, g)
		l.B.In(t, func() {
			for range 4_000 {
				frame := seeds[r.IntN(len(seeds))]
				for range r.IntN(3) {
					if len(frame) > 110 {
						frame = r.mangle(frame)
					}
				}
				if frame = routable(frame); len(frame) < 14 || len(frame) > onePage {
					continue
				}
				for _, n := range nodes {
					if _, err := n.pass(frame); err != nil {
						t.Fatalf("role %d: %v: % x", n.role, err, frame)
					}
				}
			}
		})
		for _, n := range nodes {
			for o, c := range n.seen {
				seen[icarus.Outcome(o)] += c
			}
		}
	}
	t.Log(seen)
	for o := icarus.Inserted; o < icarus.NumOutcomes; o++ {
		if o != icarus.NoRoom && seen[o] == 0 {
			t.Errorf("nothing was %v: the test is too narrow", o)
		}
	}
}

// FuzzLoop does the same for arbitrary frames.
func FuzzLoop(f *testing.F) {
	l := lab.New(f)
	g := icarus.Geometry{Size: 128, K: 7, Confirm: 2}
	nodes := loopNodes(f, l, g)
	r := random{rand.New(rand.NewPCG(5, 6))}
	for _, s := range loopSeeds(f, g) {
		f.Add(s)
		for range 20 {
			f.Add(r.mangle(s))
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if frame = routable(frame); len(frame) < 14 || len(frame) > onePage {
			return
		}
		l.B.In(t, func() {
			for _, n := range nodes {
				if _, err := n.pass(frame); err != nil {
					t.Errorf("role %d: %v: % x", n.role, err, frame)
				}
			}
		})
	})
}

// Paths without a loop: the kernel raises false alarms at the rate of the exact
// formula. Each path has its own nodes, which one program represents: before
// each, the filter's bits are permuted so that the node's mask becomes the
// program's, and afterwards they are permuted back.
func TestFalseAlarms(t *testing.T) {
	long.Seconds(t)
	l := lab.New(t)
	r := newRandom(t)
	for _, c := range []struct {
		icarus.Geometry
		hops, paths int
	}{
		{icarus.Geometry{Size: 64, K: 6, Confirm: 1}, 8, long.Or(8_000, 20_000)},
		{icarus.Geometry{Size: 128, K: 7, Confirm: 1}, 16, long.Or(2_400, 6_000)},
		{icarus.Geometry{Size: 256, K: 7, Confirm: 1}, 32, long.Or(1_200, 3_000)},
	} {
		t.Run(fmt.Sprintf("%d hops, %d bits", c.hops, c.Size), func(t *testing.T) {
			want, err := icarus.FalseAlarm(c.Size, c.K, c.hops, 1)
			if err != nil {
				t.Fatal(err)
			}
			n := newLoopNode(t, mustNode(t, 1, c.Geometry), inner, l.B, verdict.Policy{})
			plain := packet.Frame(key.Tuple{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("198.51.100.1"), Proto: 1})
			pkt, _ := n.Insert(plain[14:], 1500)
			frame := slices.Concat(plain[:14], pkt)
			filter := frame[14+20+8:][:c.Size/8]
			own := places(r, n.Mask, c.Size)
			alarms := 0
			l.B.In(t, func() {
				for range c.paths {
					clear(filter)
					domain := r.Uint64()
					for id := range uint64(c.hops) {
						mask, err := icarus.Mask(domain, id, c.Size, c.K)
						if err != nil {
							t.Fatal(err)
						}
						theirs := places(r, mask, c.Size)
						exchange(filter, theirs, own)
						_, passed, err := n.program.Pass(frame)
						if err != nil {
							t.Fatal(err)
						}
						if slices.Contains(n.grown(), icarus.Looped) {
							alarms++
							break
						}
						copy(filter, passed[14+20+8:])
						exchange(filter, own, theirs)
					}
				}
			})
			got := float64(alarms) / float64(c.paths)
			bound := 4.5 * math.Sqrt(want*(1-want)/float64(c.paths))
			t.Logf("%d of %d paths: %.4f, predicted %.4f", alarms, c.paths, got, want)
			if math.Abs(got-want) > bound {
				t.Errorf("false alarms on %.4f of the paths, predicted %.4f, within %.4f", got, want, bound)
			}
		})
	}
}

// places are a mask's bits, then the others, each in a random order.
func places(r random, mask icarus.Filter, size int) (all []int) {
	var set, unset []int
	for i := range size {
		if mask[i/64]>>(i%64)&1 != 0 {
			set = append(set, i)
		} else {
			unset = append(unset, i)
		}
	}
	for _, bits := range [][]int{set, unset} {
		r.Shuffle(len(bits), func(i, j int) { bits[i], bits[j] = bits[j], bits[i] })
	}
	return append(set, unset...)
}

// exchange moves a filter's bits from some places to others.
func exchange(filter []byte, from, to []int) {
	before := slices.Clone(filter)
	clear(filter)
	for i, at := range from {
		if before[at/8]>>(at%8)&1 != 0 {
			filter[to[i]/8] |= 1 << (to[i] % 8)
		}
	}
}

// A packet in a loop is dropped only if configured, and not if an allow list
// matches; no other list is consulted before.
func TestLoopVerdicts(t *testing.T) {
	lab.Root(t)
	from := func(source string) *list.Set { return list.SetOf(key.Source(netip.MustParsePrefix(source))) }
	lists := []engine.List{{Name: "block", Contents: from("192.0.2.3/32")}, {Name: "allow", Allow: true, Contents: from("192.0.2.2/32")}}
	for _, c := range []struct {
		drop, monitor bool
		want          [4]string // of the sources 192.0.2.1 to 192.0.2.4: clean, allowed, blocked, failsafe
	}{
		{false, false, [4]string{"looped/pass", "looped/pass", "blocked/drop", "failsafe/pass"}},
		{true, false, [4]string{"looped/drop", "allowed/pass", "looped/drop", "failsafe/pass"}},
		{true, true, [4]string{"looped/pass", "looped/pass", "would-block/pass", "failsafe/pass"}},
	} {
		n := mustNode(t, 1, icarus.Geometry{Size: 64, K: 6, Confirm: 1})
		g, k := engines(t, lists, engine.Config{
			Policy: verdict.Policy{Monitor: c.monitor, FailsafePrefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.4/32")}},
			Parts:  []engine.Part{&loop.Part{Node: n, Drop: c.drop}},
		})
		for i, want := range c.want {
			plain := packet.Frame(key.Tuple{
				Src: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), Dst: netip.MustParseAddr("198.51.100.1"), Proto: 1,
			})
			pkt, _ := n.Insert(plain[14:], 1500)
			o, err := agree(g, k, slices.Concat(plain[:14], pkt))
			if err != nil {
				t.Fatal(err)
			}
			if got := o.Reason.String() + "/" + o.Action.String(); got != want {
				t.Errorf("drop %t, monitor %t, 192.0.2.%d: %s, want %s", c.drop, c.monitor, i+1, got, want)
			}
		}
	}
}
