package netns

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weir/control/engine"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/hooks"
	"weir/tests/lab"
	"weir/tests/wait"
)

// attachOut attaches the part of a generation for outgoing packets at the lab's end A until
// the test ends.
func attachOut(t *testing.T, l *lab.Lab, listed ...key.Key) *loader.Attachment {
	t.Helper()
	all := lists(listed, nil)
	all[0].Direction = engine.Out
	g := build(t, all, engine.Config{Outgoing: true})
	to := target(l.A)
	to.Out = true
	return untilEnd(t, to, hooks.TC, g.Out().Load)
}

// pushTags attaches a program in front of others that gives outgoing packets a VLAN tag, as
// a VLAN device does: it lies beside the frame.
func pushTags(t *testing.T, e lab.End, id int32) (l link.Link) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R2, 0x0081), // 802.1Q in network order
		asm.Mov.Imm(asm.R3, id),
		asm.FnSkbVlanPush.Call(),
		asm.Mov.Imm(asm.R0, -1), // TC_ACT_UNSPEC
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	e.In(t, func() {
		i, err := net.InterfaceByName(e.Iface)
		if err != nil {
			t.Fatal(err)
		}
		if l, err = link.AttachTCX(link.TCXOptions{Interface: i.Index, Program: p, Attach: ebpf.AttachTCXEgress, Anchor: link.Head()}); err != nil {
			t.Fatal(err)
		}
	})
	return l
}

// What goes to a listed destination does not leave the host.
func TestOutgoingIsDropped(t *testing.T) {
	const listed, clean = 4, 6 // versions of IP, which datagrams contain
	eachTC(t, func(t *testing.T) {
		l := new(lab.Lab)
		l.A, l.B = lab.Join(t, 7, 1500, lab.NewHost(t, "a"), "veth0", lab.NewHost(t, "b"), "veth0")
		// Not connected, which would keep a source from before IPv6 has one.
		var from, to net.PacketConn
		var err error
		l.A.In(t, func() { from, err = net.ListenPacket("udp", ":0") })
		if err != nil {
			t.Fatal(err)
		}
		defer from.Close()
		l.B.In(t, func() { to, err = net.ListenPacket("udp", ":7777") })
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		address := map[byte]netip.Addr{listed: l.B.IPv4, clean: l.B.IPv6}
		send := func(version, content byte) {
			t.Helper()
			at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(address[version], 7777))
			if _, err := from.WriteTo([]byte{content}, at); err != nil && !errors.Is(err, unix.ENOBUFS) {
				t.Fatal(err)
			}
		}
		for version := range address {
			untilUp(t, to, func() { send(version, 0) })
		}
		receive := func(want byte) {
			t.Helper()
			if err := to.SetReadDeadline(wait.Deadline()); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 1)
			for b[0] == 0 { // from before the device was up
				if _, _, err := to.ReadFrom(b); err != nil {
					t.Fatal(err)
				}
			}
			if b[0] != want {
				t.Fatalf("IPv%d comes, want IPv%d", b[0], want)
			}
		}
		a := attachOut(t, l, key.Destination(netip.PrefixFrom(l.B.IPv4, 32)))
		for _, version := range []byte{listed, listed, clean} {
			send(version, version)
		}
		receive(clean)
		if n := a.Stats().Reasons(nil)[verdict.Blocked].Packets; n != 2 {
			t.Errorf("%d packets blocked, want 2", n)
		}
		if err := a.Detach(); err != nil {
			t.Fatal(err)
		}
		send(listed, listed)
		receive(listed)
	})
}

// A VLAN tag that the device of the wire is left to insert is a part of the packet, of its
// length and of its event. What a socket sends in one piece for the device to cut (GSO), and
// without a checksum, is matched as what it becomes.
func TestOutgoing(t *testing.T) {
	l := lab.New(t)
	in := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", append([]string{"-n", l.A.Netns}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	in("addr", "add", "192.0.2.1/24", "dev", l.A.Iface)
	for _, host := range []string{"192.0.2.77", "192.0.2.78"} {
		in("neigh", "add", host, "lladdr", "02:00:00:00:00:77", "dev", l.A.Iface)
	}
	a := attachOut(t, l, key.Destination(netip.MustParsePrefix("192.0.2.77/32")))
	now := loader.Sampling{Frames: true, Until: loader.Monotonic() + time.Minute}
	now.OneIn[verdict.Blocked] = 1
	a.Stats().Sample(now)
	tagging := pushTags(t, l.A, 7)
	const size = 300
	l.A.In(t, func() {
		for _, host := range []string{"192.0.2.77", "192.0.2.78"} {
			c, err := net.Dial("udp4", host+":9")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
		}
	})
	counted := a.Stats().Reasons(nil)
	if counted[verdict.Blocked].Packets != 1 || counted[verdict.Clean].Packets == 0 {
		t.Fatalf("counted %+v", counted)
	}
	if got := counted[verdict.Blocked].Bytes; got != 14+4+20+8+size {
		t.Errorf("%d bytes, want those of the packet on the wire", got)
	}
	events := 0
	if err := a.Stats().Events(func(e *loader.Event) {
		events++
		p, _ := packet.Parse(e.Frame)
		if e.Frame[12] != 0x81 || e.Frame[13] != 0 || e.Frame[15] != 7 || e.Packet.Network != 18 || p.Dst.String() != "192.0.2.77" {
			t.Errorf("event %+v", e)
		}
	}); err != nil || events != 1 {
		t.Errorf("%d events, %v", events, err)
	}

	if err := tagging.Close(); err != nil {
		t.Fatal(err)
	}

	// TCP hands down segments beyond the MTU, whose data lie in pages.
	l.B.In(t, func() {
		exec.Command("ip", "addr", "add", "198.51.100.2/24", "dev", l.B.Iface).Run()
	})
	in("addr", "add", "198.51.100.1/24", "dev", l.A.Iface)
	var listener net.Listener
	l.B.In(t, func() {
		var err error
		if listener, err = net.Listen("tcp4", "198.51.100.2:7"); err != nil {
			t.Fatal(err)
		}
	})
	defer listener.Close()
	got := make(chan int, 1)
	go func() {
		n := 0
		defer func() { got <- n }()
		c, err := listener.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for b := make([]byte, 1<<16); ; {
			some, err := c.Read(b)
			if n += some; err != nil {
				return
			}
		}
	}()
	before := a.Stats().Reasons(nil)[verdict.Clean]
	const stream = 4 << 20
	l.A.In(t, func() {
		c, err := net.DialTimeout("tcp4", "198.51.100.2:7", wait.Patience)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write(make([]byte, stream)); err != nil {
			t.Fatal(err)
		}
	})
	if n := <-got; n != stream {
		t.Fatalf("%d of %d bytes have come", n, stream)
	}
	after := a.Stats().Reasons(nil)
	packets, bytes := after[verdict.Clean].Packets-before.Packets, after[verdict.Clean].Bytes-before.Bytes
	if packets == 0 || bytes < stream || bytes/packets < 3000 {
		t.Errorf("%d packets of %d bytes: no larger than the MTU, so the test says nothing", packets, bytes)
	}
	for r, c := range after {
		if r := verdict.Reason(r); c.Packets > 0 && (r == verdict.Truncated || r == verdict.Malformed || r == verdict.Unparsed) {
			t.Errorf("%d packets are %v", c.Packets, r)
		}
	}
}
