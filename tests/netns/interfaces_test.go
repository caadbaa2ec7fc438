package netns

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir/control/engine"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/pins"
	"weir/tests/wait"
)

// A stacked device of a host, above0, that gets its packets from the interface veth0 below.
type stacked struct {
	name   string
	driver string // what the kernel needs for it
	device func(at lab.End, parent int) netlink.Link
	port   bool // veth0 is a port of the device
	below  seen
	above  seen
	frame  func(b lab.End, ip []byte) []byte // that reaches above0, where not an ordinary one
	other  func(b lab.End, ip []byte) []byte // that only veth0 receives
}

// seen is a program's view of a packet to above0.
type seen struct {
	unmatched bool // not the packet's own addresses
	network   int  // offset of its IP header
}

// Addresses of the packets that the tests of devices send.
const (
	listedSource = "192.0.2.66"
	cleanSource  = "192.0.2.67"
	aboveAddress = "10.1.0.2"
	abovePort    = 7777
)

// tunnelEnd is the other end of tunnels without a key.
var tunnelEnd = net.IP{198, 51, 100, 9}

var aboveMAC = net.HardwareAddr{2, 0, 0, 0, 9, 0x77}

func aboveAttrs(parent int) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name, a.ParentIndex = "above0", parent
	return a
}

func ethernet(to net.HardwareAddr, etherType []byte, ip []byte) []byte {
	return slices.Concat(to, net.HardwareAddr{2, 0, 0, 0, 9, 1}, etherType, ip)
}

func devices() []stacked {
	var (
		ipv4     = []byte{8, 0}
		plain    = func(b lab.End, ip []byte) []byte { return ethernet(b.MAC, ipv4, ip) }
		unknown  = func(_ lab.End, ip []byte) []byte { return ethernet(net.HardwareAddr{2, 0, 0, 0, 9, 0x99}, ipv4, ip) }
		ordinary = seen{network: 14}
		bond     = netlink.NewLinkBond(aboveAttrs(0))
	)
	bond.Mode = netlink.BOND_MODE_ACTIVE_BACKUP
	return []stacked{
		{
			name: "bond", driver: "bonding", port: true, below: ordinary, above: ordinary,
			device: func(lab.End, int) netlink.Link { return bond },
		},
		{
			name: "team", driver: "team", port: true, below: ordinary, above: ordinary,
			device: func(lab.End, int) netlink.Link {
				return &netlink.GenericLink{LinkAttrs: aboveAttrs(0), LinkType: "team"}
			},
		},
		{ // which forwards what is not for the host
			name: "bridge", driver: "bridge", port: true, below: ordinary, above: ordinary, other: unknown,
			device: func(lab.End, int) netlink.Link { return &netlink.Bridge{LinkAttrs: aboveAttrs(0)} },
		},
		{
			name: "VLAN", driver: "8021q", below: seen{network: 18}, above: ordinary, other: plain,
			device: func(_ lab.End, parent int) netlink.Link {
				return &netlink.Vlan{LinkAttrs: aboveAttrs(parent), VlanId: 5}
			},
			frame: func(b lab.End, ip []byte) []byte { return ethernet(b.MAC, []byte{0x81, 0, 0, 5, 8, 0}, ip) },
		},
		{
			name: "macvlan", driver: "macvlan", below: ordinary, above: ordinary, other: plain,
			device: func(_ lab.End, parent int) netlink.Link {
				a := aboveAttrs(parent)
				a.HardwareAddr = aboveMAC
				return &netlink.Macvlan{LinkAttrs: a, Mode: netlink.MACVLAN_MODE_BRIDGE}
			},
			frame: func(_ lab.End, ip []byte) []byte { return ethernet(aboveMAC, ipv4, ip) },
		},
		{ // in UDP between the addresses of veth0
			name: "WireGuard", driver: "wireguard", below: seen{unmatched: true}, above: ordinary,
			device: func(lab.End, int) netlink.Link { return &netlink.Wireguard{LinkAttrs: aboveAttrs(0)} },
		},
		{
			name: "IP in IP", driver: "ipip", below: seen{unmatched: true}, above: ordinary,
			device: func(at lab.End, _ int) netlink.Link {
				return &netlink.Iptun{LinkAttrs: aboveAttrs(0), Local: at.IPv4.AsSlice(), Remote: tunnelEnd}
			},
			frame: func(b lab.End, ip []byte) []byte { return plain(b, tunnelled(b, unix.IPPROTO_IPIP, ip)) },
		},
		{ // which leaves its header in front of the packet
			name: "GRE", driver: "ip_gre", below: seen{unmatched: true}, above: ordinary,
			device: func(at lab.End, _ int) netlink.Link {
				return &netlink.Gretun{LinkAttrs: aboveAttrs(0), Local: at.IPv4.AsSlice(), Remote: tunnelEnd}
			},
			frame: func(b lab.End, ip []byte) []byte {
				return plain(b, tunnelled(b, unix.IPPROTO_GRE, append([]byte{0, 0, 8, 0}, ip...)))
			},
		},
	}
}

// A packet to a device is matched below it, and at the device itself by hook: tc, which is
// in each case what docs/interfaces.md says is seen there. Programs at both count it twice.
func TestInterfaces(t *testing.T) {
	t.Parallel()
	lab.Root(t)
	for _, d := range devices() {
		t.Run(d.name, func(t *testing.T) { testStacked(t, d) })
	}
}

func testStacked(t *testing.T, d stacked) {
	a, b := lab.Join(t, 9, 1500, anySource(t, "a"), "veth0", anySource(t, "b"), "veth0")
	if err := b.Do(func() error { return stack(b, d) }); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("this kernel lacks the driver %s", d.driver)
	} else if err != nil {
		t.Fatal(err)
	}
	var socket net.PacketConn
	var err error
	b.In(t, func() {
		socket, err = net.ListenPacket("udp4", netip.AddrPortFrom(netip.MustParseAddr(aboveAddress), abovePort).String())
	})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()

	var send func(source string, number byte)
	if d.name == "WireGuard" {
		wireguard(t, a, b)
		send = func(source string, number byte) { sendUDP(t, a, source, number) }
	} else {
		if d.frame == nil {
			d.frame = func(b lab.End, ip []byte) []byte { return ethernet(b.MAC, []byte{8, 0}, ip) }
		}
		raw := a.Sender(t)
		send = func(source string, number byte) {
			if err := raw.Send(d.frame(b, datagram(source, aboveAddress, abovePort, number))); err != nil {
				t.Fatal(err)
			}
		}
	}
	// exchange sends a listed packet, then one that is not, and returns whether the former
	// came through as well.
	exchange := func(listedToo bool) {
		t.Helper()
		send(listedSource, 1)
		send(cleanSource, 2)
		await := map[byte]bool{2: true}
		if listedToo {
			await[1] = true
		}
		for buf := make([]byte, 100); len(await) > 0; {
			if err := socket.SetReadDeadline(wait.Deadline()); err != nil {
				t.Fatal(err)
			}
			n, from, err := socket.ReadFrom(buf)
			if err != nil {
				t.Fatalf("waiting for %v: %v", await, err)
			}
			if buf[n-1] == 0 { // from before the device was up
				continue
			}
			if !await[buf[n-1]] {
				t.Errorf("number %d of %v came through", buf[n-1], from)
			}
			delete(await, buf[n-1])
		}
	}
	untilUp(t, socket, func() { send(cleanSource, 0) })
	exchange(true)

	listed := lists([]key.Key{source(listedSource + "/32")}, nil)
	drop := build(t, listed, engine.Config{TC: true})
	below, above := target(b), netif.Target{Netns: b.Netns, Iface: "above0"}
	at := func(to netif.Target, hook hooks.Hook, g *engine.Generation) (l *loader.Attachment, detach func()) {
		t.Helper()
		l, err := pins.Attach(pins.New(t), to, hook, nil, g.Load)
		if err != nil {
			t.Fatal(err)
		}
		now := loader.Sampling{Frames: true, Until: loader.Monotonic() + time.Minute}
		now.OneIn[verdict.Blocked], now.OneIn[verdict.WouldBlock] = 1, 1
		l.Stats().Sample(now)
		return l, func() {
			if err := errors.Join(l.Detach(), l.Close()); err != nil {
				t.Error(err)
			}
		}
	}
	blocked := func(l *loader.Attachment, where string, want uint64, as seen) {
		t.Helper()
		if is := matches(l); is != want {
			t.Errorf("%s: %d blocked, want %d", where, is, want)
		}
		events := uint64(0)
		if err := l.Stats().Events(func(e *loader.Event) {
			events++
			p, _ := packet.Parse(e.Frame)
			if p.Src.String() != listedSource || p.Network != as.network {
				t.Errorf("%s: %v at %d, want %d", where, p.Src, p.Network, as.network)
			}
		}); err != nil || events != want {
			t.Errorf("%s: %d events, %v", where, events, err)
		}
	}
	matched := func(s seen) uint64 {
		if s.unmatched {
			return 0
		}
		return 1
	}

	// Below, natively.
	l, detach := at(below, hooks.Native, drop)
	exchange(d.below.unmatched)
	blocked(l, "below", matched(d.below), d.below)
	detach()

	// At the device, by TC.
	l, detach = at(above, hooks.TC, drop)
	exchange(false)
	blocked(l, "above", 1, d.above)
	detach()

	// At both, while what is listed passes.
	monitor := build(t, listed, engine.Config{TC: true, Policy: verdict.Policy{Monitor: true}})
	l, detach = at(below, hooks.Native, monitor)
	defer detach()
	u, detachAbove := at(above, hooks.TC, monitor)
	defer detachAbove()
	exchange(true)
	blocked(l, "below, of both", matched(d.below), d.below)
	blocked(u, "above, of both", 1, d.above)

	if d.other == nil {
		return
	}
	before := matches(u)
	if err := a.Sender(t).Send(d.other(b, datagram(listedSource, "10.1.0.9", abovePort, 3))); err != nil {
		t.Fatal(err)
	}
	for deadline := wait.Deadline(); matches(l) < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("below: a packet that is not for the device is not seen")
		}
	}
	exchange(true) // behind it
	if is := matches(u); is != before+1 {
		t.Errorf("above: %d blocked, want %d: one is not for the device", is, before+1)
	}
}

// untilUp sends packets until one comes through: the ports of a bridge, for one, forward
// when the kernel has noticed that they are up.
func untilUp(t *testing.T, socket net.PacketConn, send func()) {
	t.Helper()
	for deadline := wait.Deadline(); ; {
		send()
		if err := socket.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, _, err := socket.ReadFrom(make([]byte, 100))
		if err == nil {
			return
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(deadline) {
			t.Fatalf("nothing comes through without a filter: %v", err)
		}
	}
}

// matches returns how many packets have matched the list, dropped or not.
func matches(l *loader.Attachment) uint64 {
	all := l.Stats().Reasons(nil)
	return all[verdict.Blocked].Packets + all[verdict.WouldBlock].Packets
}

// anySource makes a host that takes packets from sources to which it has no route.
func anySource(t *testing.T, name string) lab.Host {
	t.Helper()
	h := lab.NewHost(t, name)
	h.In(t, func() {
		for _, of := range []string{"all", "default"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+of+"/rp_filter", []byte("0"), 0); err != nil {
				t.Fatal(err)
			}
		}
	})
	return h
}

// tunnelled returns the IPv4 packet of a tunnel to an end.
func tunnelled(to lab.End, proto byte, payload []byte) []byte {
	p := datagram(tunnelEnd.String(), to.IPv4.String(), 0, 0)[:20]
	binary.BigEndian.PutUint16(p[2:], uint16(20+len(payload)))
	p[9], p[10], p[11] = proto, 0, 0
	p[10], p[11] = checksum(p)
	return append(p, payload...)
}

// stack makes the device above an interface in the namespace, with its address.
func stack(end lab.End, d stacked) error {
	lower, err := netlink.LinkByName(end.Iface)
	if err != nil {
		return err
	}
	above := d.device(end, lower.Attrs().Index)
	if err := netlink.LinkAdd(above); err != nil {
		return err
	}
	if d.port { // bonds and teams take no port that is up
		if err := errors.Join(netlink.LinkSetDown(lower), netlink.LinkSetMaster(lower, above), netlink.LinkSetUp(lower)); err != nil {
			return err
		}
	}
	address, err := netlink.ParseAddr(aboveAddress + "/24")
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(above), netlink.AddrAdd(above, address))
}

// sendUDP sends a datagram from one of the addresses of an end.
func sendUDP(t *testing.T, e lab.End, source string, number byte) {
	t.Helper()
	e.In(t, func() {
		c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(source)}, &net.UDPAddr{IP: net.ParseIP(aboveAddress), Port: abovePort})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte{number}); err != nil {
			t.Fatal(err)
		}
	})
}

// wireguard makes the other end of a tunnel at a, with the addresses of sent packets, and
// introduces both to one another.
func wireguard(t *testing.T, a, b lab.End) {
	t.Helper()
	a.In(t, func() {
		device := &netlink.Wireguard{LinkAttrs: aboveAttrs(0)}
		if err := errors.Join(netlink.LinkAdd(device), netlink.LinkSetUp(device)); err != nil {
			t.Fatal(err)
		}
		for _, address := range []string{"10.1.0.1/24", listedSource + "/32", cleanSource + "/32"} {
			addr, err := netlink.ParseAddr(address)
			if err == nil {
				err = netlink.AddrAdd(device, addr)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	})
	keys := make([]*ecdh.PrivateKey, 2)
	for i := range keys {
		var err error
		if keys[i], err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	for i, e := range []lab.End{a, b} {
		peer := []lab.End{b, a}[i]
		if err := e.Do(func() error { return introduce(keys[i], keys[1-i].PublicKey(), peer.IPv4) }); err != nil {
			t.Fatalf("set up WireGuard: %v", err)
		}
	}
}

// introduce gives above0 its key, and a peer from which any source may come. Numbers are
// from linux/wireguard.h.
func introduce(private *ecdh.PrivateKey, peer *ecdh.PublicKey, at netip.Addr) error {
	const (
		setDevice = 1

		deviceName, devicePrivateKey, devicePort, devicePeers = 2, 3, 6, 8
		peerPublicKey, peerEndpoint, peerAllowed              = 1, 4, 9
		allowedFamily, allowedAddress, allowedBits            = 1, 2, 3

		port = 51820
	)
	family, err := netlink.GenlFamilyGet("wireguard")
	if err != nil {
		return err
	}
	endpoint := binary.NativeEndian.AppendUint16(nil, unix.AF_INET)
	endpoint = binary.BigEndian.AppendUint16(endpoint, port)
	endpoint = append(append(endpoint, at.AsSlice()...), make([]byte, 8)...)

	peers := nl.NewRtAttr(devicePeers|unix.NLA_F_NESTED, nil)
	one := peers.AddRtAttr(unix.NLA_F_NESTED, nil)
	one.AddRtAttr(peerPublicKey, peer.Bytes())
	one.AddRtAttr(peerEndpoint, endpoint)
	every := one.AddRtAttr(peerAllowed|unix.NLA_F_NESTED, nil).AddRtAttr(unix.NLA_F_NESTED, nil)
	every.AddRtAttr(allowedFamily, nl.Uint16Attr(unix.AF_INET))
	every.AddRtAttr(allowedAddress, make([]byte, 4))
	every.AddRtAttr(allowedBits, []byte{0})

	request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	request.AddRawData(slices.Concat(
		[]byte{setDevice, 1, 0, 0}, // not nl.Genlmsg, which leaves the last two to chance
		nl.NewRtAttr(deviceName, nl.ZeroTerminated("above0")).Serialize(),
		nl.NewRtAttr(devicePrivateKey, private.Bytes()).Serialize(),
		nl.NewRtAttr(devicePort, nl.Uint16Attr(port)).Serialize(),
		peers.Serialize(),
	))
	_, err = request.Execute(unix.NETLINK_GENERIC, 0)
	return err
}

// Either end of a container's pair sees what the other one sends: the host's end what the
// container sends, and the container's what it receives.
func TestContainer(t *testing.T) {
	container, host := lab.Join(t, 9, 1500, anySource(t, "container"), "eth0", anySource(t, "host"), "veth1")
	listed := lists([]key.Key{source(listedSource + "/32")}, nil)
	ends := []lab.End{container, host}
	for _, hook := range []hooks.Hook{hooks.Native, hooks.TC} {
		g := build(t, listed, engine.Config{TC: true})
		var attached []*loader.Attachment
		for _, e := range ends {
			l, err := pins.Attach(pins.New(t), target(e), hook, nil, g.Load)
			if err != nil {
				t.Fatal(err)
			}
			attached = append(attached, l)
		}
		for i, e := range ends {
			peer := ends[1-i]
			f := ethernet(peer.MAC, []byte{8, 0}, datagram(listedSource, peer.IPv4.String(), abovePort, 1))
			if err := e.Sender(t).Send(f); err != nil {
				t.Fatal(err)
			}
			for deadline := wait.Deadline(); ; time.Sleep(time.Millisecond) {
				here, there := matches(attached[i]), matches(attached[1-i])
				if there == 1 {
					if here != uint64(i) {
						t.Errorf("%v: %s sees what it sends", hook, e.Iface)
					}
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%v: %s does not see what %s sends", hook, peer.Iface, e.Iface)
				}
			}
		}
		for _, l := range attached {
			if err := errors.Join(l.Detach(), l.Close()); err != nil {
				t.Error(err)
			}
		}
	}
}
