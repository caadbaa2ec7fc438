package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api/client"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/quantity"
	"weir/control/stage/connections"
	"weir/filter/conntrack"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/hooks"
	"weir/tests/lab"
	"weir/tests/wait"
)

// remembering returns a generation whose programs remember the connections that a host opens, and these.
func remembering(t *testing.T) (connections.Known, *engine.Generation) {
	t.Helper()
	known, err := connections.NewKnown(1 << 10)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { known.Close() })
	return known, build(t, nil, engine.Config{Outgoing: true, Shared: known.Shared, Parts: []engine.Part{&connections.RepliesPart{Replies: &conntrack.Replies{
		Opening: time.Minute, Established: time.Hour, UDP: time.Minute, Ephemeral: 32768,
	}}}})
}

// What a host forwards opens no connection of it, as what it sends itself does.
func TestForwardedOpensNothing(t *testing.T) {
	client, router, server := lab.NewHost(t, "client"), lab.NewHost(t, "router"), lab.NewHost(t, "server")
	c, _ := lab.Join(t, 1, 1500, client, "up", router, "down")
	out, s := lab.Join(t, 2, 1500, router, "up", server, "down")
	c.Route(t, "10.0.2.0/24", c.IPv4.Next())
	s.Route(t, "10.0.1.0/24", out.IPv4)
	var listener net.Listener
	var err error
	s.In(t, func() { listener, err = net.Listen("tcp4", "10.0.2.2:7") })
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()

	known, g := remembering(t)
	to := target(out)
	to.Out = true
	a := untilEnd(t, to, hooks.TC, func(s *loader.Stats) (*loader.Program, error) {
		s.For(to)
		return g.Out().Load(s)
	})
	connect := func(from lab.End) {
		t.Helper()
		var conn net.Conn
		from.In(t, func() { conn, err = net.DialTimeout("tcp4", "10.0.2.2:7", wait.Patience) })
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	count := func() (scopes []uint64) {
		t.Helper()
		if err := known.All(func(c connections.Connection, _ connections.State) error {
			scopes = append(scopes, c.Scope)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return scopes
	}
	connect(c)
	if n := a.Stats().Reasons(nil)[verdict.Clean].Packets; n < 3 {
		t.Fatalf("%d packets are forwarded by the interface: the test says nothing", n)
	}
	if all := count(); len(all) != 0 {
		t.Errorf("what is forwarded has opened %d connections", len(all))
	}
	connect(out)
	all := count()
	if len(all) != 1 {
		t.Fatalf("what the host has opened are %d connections, want 1", len(all))
	}
	if all[0] == 0 {
		t.Error("the connection belongs to any namespace")
	}
}

// A tunnel's packets keep the socket of the inner packet. It is not the tunnel's own, which
// may serve a peer from a port that hosts connect from, as WireGuard does at 51820.
func TestTunnelIsNotConnected(t *testing.T) {
	l := lab.New(t)
	known, g := remembering(t)
	local, remote := l.B.IPv4, l.A.IPv4
	for _, args := range []string{
		fmt.Sprintf("link add vx0 type vxlan id 7 local %v remote %v dstport 4789 srcport 51820 51821 dev %s", local, remote, l.B.Iface),
		"addr add 192.0.2.1/24 dev vx0",
		"link set vx0 up",
		"neigh replace 192.0.2.2 lladdr 02:00:00:00:00:02 dev vx0 nud permanent",
	} {
		if out, err := exec.Command("ip", append([]string{"-n", l.B.Netns}, strings.Fields(args)...)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	to := target(l.B)
	to.Out = true
	untilEnd(t, to, hooks.TC, g.Out().Load)
	// until returns when the connection expires whose ports these are.
	until := func(ports string) (at uint64) {
		t.Helper()
		if err := known.All(func(c connections.Connection, s connections.State) error {
			b := binary.NativeEndian.AppendUint32(nil, c.Ports)
			if ports == fmt.Sprintf("%d>%d", binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])) {
				at = s.Until
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return at
	}
	for _, test := range []struct {
		to, ports string
		prolongs  bool
	}{
		{"192.0.2.2:9", "51820>4789", false},
		{remote.String() + ":9", "", true},
	} {
		var socket net.Conn
		var err error
		l.B.In(t, func() { socket, err = net.Dial("udp4", test.to) })
		if err != nil {
			t.Fatal(err)
		}
		defer socket.Close()
		ports := test.ports
		if ports == "" {
			ports = fmt.Sprintf("%d>9", socket.LocalAddr().(*net.UDPAddr).Port)
		}
		var last uint64
		for range 3 {
			_, err := socket.Write([]byte{1})
			if errors.Is(err, unix.ECONNREFUSED) { // what was sent before is
				_, err = socket.Write([]byte{1})
			}
			if err != nil {
				t.Fatal(err)
			}
			now := until(ports)
			if now == 0 {
				t.Fatalf("%s: no connection is known", ports)
			}
			if last != 0 && (now > last) != test.prolongs {
				t.Errorf("%s: prolonged by %v", ports, time.Duration(now-last))
			}
			last = now
		}
	}
}

// Which ports are connected from is a setting of the interface's namespace, not of this one.
func TestPortsOfNamespace(t *testing.T) {
	l := lab.New(t)
	l.B.In(t, func() {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("20000 30000\n"), 0); err != nil {
			t.Fatal(err)
		}
	})
	known, g := remembering(t)
	to := target(l.B)
	to.Out = true
	untilEnd(t, to, hooks.TC, func(s *loader.Stats) (*loader.Program, error) {
		s.For(to)
		return g.Out().Load(s)
	})
	for _, from := range []int{19999, 25000} {
		var err error
		l.B.In(t, func() {
			var c net.Conn
			if c, err = net.DialUDP("udp4", &net.UDPAddr{Port: from}, &net.UDPAddr{IP: l.A.IPv4.AsSlice(), Port: 9}); err == nil {
				_, err = c.Write([]byte{1})
				c.Close()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var ports []uint16
	wait.For(t, "a connection is known", func() bool { // packets wait until the neighbour has answered
		ports = nil
		if err := known.All(func(c connections.Connection, _ connections.State) error {
			ports = append(ports, binary.BigEndian.Uint16(binary.NativeEndian.AppendUint32(nil, c.Ports)))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return len(ports) > 0
	})
	if len(ports) != 1 || ports[0] != 25000 {
		t.Errorf("connections from the ports %v, want 25000", ports)
	}
}

// Containers behind an interface of `inside` get replies of listed addresses like the host's
// own programs, also where it is created later; hosts behind others do not, and nothing that
// comes in opens a connection.
func TestInside(t *testing.T) {
	t.Parallel()
	nft := lab.Tool(t, "nft")
	container, host, server, neighbour := lab.NewHost(t, "c"), lab.NewHost(t, "h"), lab.NewHost(t, "s"), lab.NewHost(t, "n")
	in, inner := lab.Join(t, 1, 1500, container, "eth0", host, "vc")
	up, out := lab.Join(t, 2, 1500, host, "up", server, "eth0")
	aside, side := lab.Join(t, 3, 1500, neighbour, "eth0", host, "lan")
	in.Route(t, "10.0.2.0/24", inner.IPv4)
	aside.Route(t, "10.0.2.0/24", side.IPv4)
	command := func(name string, args ...string) {
		t.Helper()
		host.In(t, func() {
			if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
				t.Fatalf("%s %q: %v: %s", name, args, err, out)
			}
		})
	}
	command(nft, "add table ip nat; add chain ip nat out { type nat hook postrouting priority 100; }; add rule ip nat out oifname up masquerade")
	for _, network := range []string{"tcp4", "udp4"} {
		serveEcho(t, out, network, "10.0.2.2:7")
	}

	c := configuration(t, target(up))
	addList(t, c, config.Block, "listed.txt", "10.0.2.2\n")
	c.Lists[0].AntiLockout = false // it is a neighbour
	c.Replies.SetDefaults()
	c.Replies.Action, c.Replies.Inside = verdict.Pass, []string{"br-*"}
	c.Replies.UDPTimeout = quantity.Duration(2 * time.Second)
	f := serve(t, c)
	answered := func(e lab.End, network string, patience time.Duration) bool {
		t.Helper()
		for deadline := time.Now().Add(patience); ; {
			var conn net.Conn
			var err error
			e.In(t, func() { conn, err = net.DialTimeout(network, "10.0.2.2:7", time.Second) })
			if err == nil {
				conn.SetDeadline(time.Now().Add(time.Second))
				if _, err = conn.Write([]byte("?")); err == nil {
					_, err = conn.Read(make([]byte, 1))
				}
				conn.Close()
			}
			if err == nil || time.Now().After(deadline) {
				return err == nil
			}
		}
	}
	if !answered(up, "tcp4", wait.Patience) || answered(in, "tcp4", 0) || answered(aside, "tcp4", 0) {
		t.Fatal("the host itself is to get replies, and no other one")
	}
	for _, args := range []string{
		"addr flush dev vc", "link add br-1 type bridge", "link set vc master br-1", "addr add 10.0.1.2/24 dev br-1", "link set br-1 address 02:00:00:00:01:02 up",
	} {
		command("ip", strings.Fields(args)...)
	}
	for _, network := range []string{"tcp4", "udp4"} {
		if !answered(in, network, wait.Patience) {
			t.Errorf("%s: the container gets no reply", network)
		}
		if answered(aside, network, 0) {
			t.Errorf("%s: a host behind another interface gets replies", network)
		}
	}
	// Whose socket it is cannot be known: a server's would hold who it served when that was
	// listed. So what one socket exchanges ends in time; another one goes on at once.
	var conn net.Conn
	var err error
	in.In(t, func() { conn, err = net.Dial("udp4", "10.0.2.2:7") })
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	first, last := time.Now(), time.Time{}
	for time.Since(first) < 2*time.Duration(c.Replies.UDPTimeout) {
		conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := conn.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			last = time.Now()
		}
	}
	if took := last.Sub(first); took < time.Duration(c.Replies.UDPTimeout)/2 || took > time.Duration(c.Replies.UDPTimeout)*3/2 {
		t.Errorf("a conversation of a container's socket ended after %v, want %v", took, time.Duration(c.Replies.UDPTimeout))
	}
	if !answered(in, "udp4", 0) {
		t.Error("another socket of the container gets no reply")
	}
	// The server cannot begin a connection.
	out.Route(t, "10.0.1.0/24", up.IPv4)
	serveEcho(t, in, "tcp4", "10.0.1.1:7")
	out.In(t, func() { _, err = net.DialTimeout("tcp4", "10.0.1.1:7", time.Second) })
	if err == nil {
		t.Error("a listed address connects to the container")
	}

	// Once it is inside no more, its connections are not remembered.
	next := *c
	next.Replies.Inside = []string{"none"}
	f.config = &next
	if _, err := client.Dial(string(c.API.Socket)).Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if answered(in, "tcp4", 0) {
		t.Error("the container gets replies though it is no longer inside")
	}
}

// serveEcho answers each connection and each datagram at an address with a byte.
func serveEcho(t *testing.T, at lab.End, network, address string) {
	t.Helper()
	var err error
	if network == "udp4" {
		var socket net.PacketConn
		at.In(t, func() { socket, err = net.ListenPacket(network, address) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { socket.Close() })
		go func() {
			for b := make([]byte, 1500); ; {
				_, from, err := socket.ReadFrom(b)
				if err != nil {
					return
				}
				socket.WriteTo([]byte("!"), from)
			}
		}()
		return
	}
	var listener net.Listener
	at.In(t, func() { listener, err = net.Listen(network, address) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("!"))
			c.Close()
		}
	}()
}
