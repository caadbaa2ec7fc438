package netns

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"weir/control/engine"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/tests/lab"
	"weir/tests/pins"
)

// The list: for each family a network, an address in an allowed network, and a
// flow.
var (
	block = []key.Key{source("192.0.2.0/24"), source("2001:db8::/32"), service("203.0.113.1", 53), service("2001:db9::1", 53)}
	allow = []key.Key{source("192.0.2.64/26"), source("2001:db8:64::/48")}
)

func source(s string) key.Key { return key.Source(netip.MustParsePrefix(s)) }

// service is the flow of any source to a UDP port.
func service(dst string, port uint16) key.Key {
	t := udp(dst, dst, port)
	s := key.Shape{DstBits: uint8(t.Dst.BitLen()), Fields: key.FieldProto | key.FieldDstPort}
	if t.Dst.Is6() {
		s.Fields |= key.FieldV6
	}
	k, _ := s.Of(t)
	return k
}

func udp(src, dst string, port uint16) key.Tuple {
	return key.Tuple{
		Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst),
		Proto: 17, HasPorts: true, SrcPort: 4000, DstPort: port,
	}
}

func insert(f []byte, at int, b ...byte) []byte { return slices.Insert(slices.Clone(f), at, b...) }

func set(f []byte, at int, b ...byte) []byte {
	f = slices.Clone(f)
	copy(f[at:], b)
	return f
}

// extend inserts an extension header into an IPv6 packet.
func extend(f []byte, kind uint8, b ...byte) []byte {
	f = insert(f, 54, append([]byte{f[20]}, b...)...)
	f[20] = kind
	binary.BigEndian.PutUint16(f[18:], uint16(len(f)-54))
	return f
}

// forms are the encapsulations of a packet on the wire. A later fragment has no
// ports.
var forms4 = map[string]func([]byte) []byte{
	"plain":   func(f []byte) []byte { return f },
	"VLAN":    func(f []byte) []byte { return insert(f, 12, 0x81, 0, 0, 7) },
	"QinQ":    func(f []byte) []byte { return insert(f, 12, 0x88, 0xa8, 0, 7, 0x81, 0, 0, 8) },
	"options": func(f []byte) []byte { return set(insert(f, 34, 1, 1, 1, 0), 14, 0x46, 0, 0, byte(len(f)-14+4)) },
	"first":   func(f []byte) []byte { return set(f, 20, 0x20, 0) },
	"later":   func(f []byte) []byte { return set(f, 20, 0, 10) },
}

var forms6 = map[string]func([]byte) []byte{
	"plain":              forms4["plain"],
	"VLAN":               forms4["VLAN"],
	"QinQ":               forms4["QinQ"],
	"hop-by-hop":         func(f []byte) []byte { return extend(f, 0, make([]byte, 7)...) },
	"first":              func(f []byte) []byte { return extend(f, 44, 0, 0, 1, 0, 0, 0, 9) },
	"later":              func(f []byte) []byte { return extend(f, 44, 0, 0, 80, 0, 0, 0, 9) },
	"six headers":        sixHeaders,
	"six headers, VLAN":  func(f []byte) []byte { return insert(sixHeaders(f), 12, 0x81, 0, 0, 7) },
	"a long header":      func(f []byte) []byte { return extend(f, 60, append([]byte{127}, make([]byte, 1022)...)...) },
	"behind a first one": func(f []byte) []byte { return extend(extend(f, 60, make([]byte, 7)...), 44, 0, 0, 1, 0, 0, 0, 9) },
}

func sixHeaders(f []byte) []byte {
	none := make([]byte, 7)
	f = extend(extend(f, 140, none...), 139, none...)
	f = extend(extend(f, 51, append([]byte{1}, make([]byte, 10)...)...), 60, none...)
	return extend(extend(f, 43, none...), 0, none...)
}

// sample is a frame and its expected outcome.
type sample struct {
	name  string
	frame []byte
	want  verdict.Reason
}

func samples() []sample {
	var all []sample
	add := func(family, form string, change func([]byte) []byte, t key.Tuple, want verdict.Reason) {
		all = append(all, sample{
			fmt.Sprintf("%s, %s, %v > %v:%d", family, form, t.Src, t.Dst, t.DstPort),
			change(frameOf(t)), want,
		})
	}
	for _, family := range []struct {
		name                          string
		forms                         map[string]func([]byte) []byte
		listed, allowed, clean, other string // sources, and a destination
		dns                           string
	}{
		{"IPv4", forms4, "192.0.2.1", "192.0.2.65", "198.51.100.1", "203.0.113.2", "203.0.113.1"},
		{"IPv6", forms6, "2001:db8::1", "2001:db8:64::1", "2001:dba::1", "2001:db9::2", "2001:db9::1"},
	} {
		for form, change := range family.forms {
			add(family.name, form, change, udp(family.listed, family.other, 80), verdict.Blocked)
			add(family.name, form, change, udp(family.allowed, family.other, 80), verdict.Allowed)
			add(family.name, form, change, udp(family.clean, family.other, 53), verdict.Clean)
			flow := verdict.Blocked
			if form == "later" { // which has no ports to match
				flow = verdict.Clean
			}
			add(family.name, form, change, udp(family.clean, family.dns, 53), flow)
			add(family.name, form, change, udp(family.clean, family.dns, 54), verdict.Clean)
		}
	}
	listed := frameOf(udp("192.0.2.1", "203.0.113.2", 80))
	all = append(all,
		sample{"ARP", set(listed, 12, 8, 6), verdict.ARP},
		sample{"a backbone bridge", set(listed, 12, 0x88, 0xe7), verdict.NotIP},
		sample{"DHCP", set(frameOf(udp("192.0.2.1", "203.0.113.2", 68)), 34, 0, 67), verdict.DHCP},
		sample{"three tags", forms4["VLAN"](forms4["QinQ"](listed)), verdict.Blocked},
		sample{"nine tags", insert(listed, 12, bytes.Repeat([]byte{0x81, 0, 0, 7}, packet.MaxVLANTags+1)...), verdict.Overtagged},
		sample{"malformed", set(frameOf(udp("198.51.100.1", "203.0.113.2", 80)), 14, 0x41), verdict.Malformed},
	)
	return all
}

// Frames of all kinds, through each mode and policy, and when all is over.
func TestTraffic(t *testing.T) {
	all := samples()
	var frames [][]byte
	counts := make(map[verdict.Reason]uint64)
	for _, s := range all {
		frames = append(frames, s.frame)
		counts[s.want]++
	}
	counts[verdict.ARP]++ // the last one that Pass sends
	for _, mode := range []hooks.Hook{hooks.Native, hooks.Generic} {
		for _, c := range []engine.Config{
			{},
			{Mode: membership.Approximate},
			{Policy: verdict.Policy{Monitor: true}},
			{Policy: verdict.Policy{DropMalformed: true}},
		} {
			name := fmt.Sprintf("%v/%v/monitor %t/drop malformed %t", mode, c.Mode, c.Monitor, c.DropMalformed)
			t.Run(name, func(t *testing.T) {
				w := lab.NewProbe(t, lab.New(t))
				for i, f := range w.Pass(t, frames...) {
					if f == nil {
						t.Fatalf("%s does not come through without a filter", all[i].name)
					}
				}
				a, err := pins.Attach(pins.New(t), target(w.B), mode, nil, build(t, lists(block, allow), c).Load)
				if err != nil {
					t.Fatal(err)
				}
				for i, f := range w.Pass(t, frames...) {
					want := true
					switch all[i].want {
					case verdict.Blocked, verdict.Overtagged:
						want = c.Monitor
					case verdict.Malformed, verdict.Unparsed:
						want = !c.DropMalformed
					}
					if (f != nil) != want {
						t.Errorf("%s: came through %t, want %t", all[i].name, f != nil, want)
					}
					if f != nil && !bytes.HasPrefix(f[12:], frames[i][12:]) {
						t.Errorf("%s came through as % x, want % x", all[i].name, f, frames[i])
					}
				}
				checkCounts(t, a, counts, c.Monitor)
				if err := errors.Join(a.Detach(), a.Close()); err != nil {
					t.Fatal(err)
				}
				for i, f := range w.Pass(t, frames...) {
					if f == nil {
						t.Errorf("%s does not come through after detaching", all[i].name)
					}
				}
			})
		}
	}
}

// checkCounts compares the counters with the number of frames by reason. The
// kernel's own packets, such as multicast reports, are clean.
func checkCounts(t *testing.T, a *loader.Attachment, want map[verdict.Reason]uint64, monitor bool) {
	t.Helper()
	for i, c := range a.Stats().Reasons(nil) {
		r := verdict.Reason(i)
		n := want[r]
		switch {
		case monitor && r == verdict.Blocked:
			n = 0
		case monitor && r == verdict.WouldBlock:
			n = want[verdict.Blocked]
		}
		if c.Packets != n && (r != verdict.Clean && r != verdict.ND || c.Packets < n) {
			t.Errorf("%d packets are counted as %v, want %d", c.Packets, r, n)
		}
	}
}

// Frames beyond a page reach the program in several buffers.
func TestJumboFrames(t *testing.T) {
	const mtu = 9000
	for _, mode := range []hooks.Hook{hooks.Native, hooks.Generic} {
		t.Run(mode.String(), func(t *testing.T) {
			l := lab.New(t)
			for _, e := range []lab.End{l.A, l.B} {
				var err error
				e.In(t, func() {
					var iface netlink.Link
					if iface, err = netlink.LinkByName(e.Iface); err == nil {
						err = netlink.LinkSetMTU(iface, mtu)
					}
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			a := attachGeneration(t, l, mode, build(t, lists(block, allow), engine.Config{}))
			jumbo := func(t key.Tuple) []byte {
				f := append(frameOf(t), make([]byte, 8000)...)
				if t.Src.Is4() {
					binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
				} else {
					binary.BigEndian.PutUint16(f[18:], uint16(len(f)-54))
				}
				return f
			}
			frames := [][]byte{
				jumbo(udp("192.0.2.1", "203.0.113.2", 80)), jumbo(udp("198.51.100.1", "203.0.113.2", 80)),
				sixHeaders(jumbo(udp("2001:db8::1", "2001:db9::2", 80))), sixHeaders(jumbo(udp("2001:dba::1", "2001:db9::2", 80))),
			}
			for i, f := range lab.NewProbe(t, l).Pass(t, frames...) {
				if (f != nil) != (i%2 == 1) {
					t.Errorf("frame %d: came through %t", i, f != nil)
				}
				if f != nil && !bytes.HasPrefix(f[12:], frames[i][12:]) {
					t.Errorf("frame %d has changed", i)
				}
			}
			want := uint64(0)
			for _, i := range []int{0, 2} {
				want += uint64(len(l.Numbered(frames[i], 0)))
			}
			if c := a.Stats().Reasons(nil)[verdict.Blocked]; c != (loader.Counter{Packets: 2, Bytes: want}) {
				t.Errorf("%+v blocked, want 2 packets of %d bytes", c, want)
			}
		})
	}
}

// An interface that has another's program is left alone.
func TestForeignProgram(t *testing.T) {
	for _, mode := range []hooks.Hook{hooks.Native, hooks.Generic} {
		t.Run(mode.String(), func(t *testing.T) {
			l := lab.New(t)
			w := lab.NewProbe(t, l)
			drop, err := ebpf.NewProgram(&ebpf.ProgramSpec{
				Name: "foreign", Type: ebpf.XDP, License: "GPL",
				Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, loader.ActionDrop), asm.Return()},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer drop.Close()
			var foreign link.Link
			l.B.In(t, func() {
				var iface netlink.Link
				if iface, err = netlink.LinkByName(l.B.Iface); err == nil {
					foreign, err = link.AttachXDP(link.XDPOptions{Program: drop, Interface: iface.Attrs().Index, Flags: map[hooks.Hook]link.XDPAttachFlags{
						hooks.Native: link.XDPDriverMode, hooks.Generic: link.XDPGenericMode,
					}[mode]})
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			defer foreign.Close()
			g := build(t, lists(block, nil), engine.Config{})
			p := pins.New(t)
			for range 2 {
				if a, err := pins.Attach(p, target(l.B), mode, nil, g.Load); !errors.Is(err, kernelerr.ErrForeign) {
					t.Fatalf("attached %v, error %v", a, err)
				}
			}
			if err := w.Send(l.Numbered(frameOf(udp("198.51.100.1", "203.0.113.2", 80)), 1)); err != nil {
				t.Fatal(err)
			}
			info, err := foreign.Info()
			if err != nil {
				t.Fatal(err)
			}
			id, ok := programOf(t, l.B)
			if !ok || id != uint32(info.Program) {
				t.Errorf("the interface has program %d, want the foreign %d", id, info.Program)
			}
			if err := foreign.Close(); err != nil {
				t.Fatal(err)
			}
			if _, ok := programOf(t, l.B); ok {
				t.Error("a program is left")
			}
			for _, f := range w.Pass(t, frameOf(udp("192.0.2.1", "203.0.113.2", 80))) {
				if f == nil {
					t.Error("still filtered")
				}
			}
		})
	}
}

// programOf is the number of the program on an interface.
func programOf(t *testing.T, e lab.End) (id uint32, ok bool) {
	t.Helper()
	var iface netlink.Link
	var err error
	e.In(t, func() { iface, err = netlink.LinkByName(e.Iface) })
	if err != nil {
		t.Fatal(err)
	}
	x := iface.Attrs().Xdp
	if x == nil || !x.Attached {
		return 0, false
	}
	return x.ProgId, true
}
