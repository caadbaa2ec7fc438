package daemon

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/wait"
)

const (
	ourAddress    = "10.77.0.1"
	openedPeer    = "10.77.0.2" // this host opens a connection to it
	acceptedPeer  = "10.77.0.3" // it opens one to this host
	spoofedPeer   = "10.77.0.4" // it refuses a connection, and others send with its address
	datagramPeer  = "10.77.0.5" // this host asks it by UDP
	secondPeer    = "10.77.0.6" // as openedPeer
	untouchedPeer = "10.77.0.7"
	around4Peer   = "10.78.0.18" // as openedPeer, whose neighbours are listed
	around6Peer   = "2001:db8:78::18"
)

// talk has one end connect to another, from an address, and both sides say something. It keeps the
// connection.
func talk(t *testing.T, network string, client, server lab.End, from, to string) {
	t.Helper()
	fail := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatalf("%s from %s to %s: %v", network, from, to, err)
		}
	}
	end := wait.Deadline()
	b := make([]byte, 1)
	if network == "udp" {
		var listener net.PacketConn
		fail(server.Do(func() (err error) { listener, err = net.ListenPacket("udp", to); return err }))
		t.Cleanup(func() { listener.Close() })
		listener.SetDeadline(end)
		go func() {
			if _, from, err := listener.ReadFrom(b); err == nil {
				listener.WriteTo(b, from)
			}
		}()
	} else {
		var listener net.Listener
		fail(server.Do(func() (err error) { listener, err = net.Listen("tcp", to); return err }))
		t.Cleanup(func() { listener.Close() })
		go func() {
			if c, err := listener.Accept(); err == nil {
				io.Copy(c, c)
			}
		}()
	}
	var c net.Conn
	fail(client.Do(func() (err error) {
		d := net.Dialer{Deadline: end}
		if network == "tcp" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		c, err = d.Dial(network, to)
		return err
	}))
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(end)
	_, err := c.Write([]byte("x"))
	fail(err)
	_, err = io.ReadFull(c, make([]byte, 1))
	fail(err)
}

// A version of a fleet's list halts in its rehearsal, or in the wave that enforces it, where a node
// has conversed with what it adds, before any list had that; and a list stays on trial over it.
func TestFleetCollateral(t *testing.T) {
	long.Seconds(t)
	t.Parallel() // it waits a lot
	h := newFleetHub(t)
	rehearsed, straight := feedFile(t, "rehearsed.txt", "192.0.2.1\n"), feedFile(t, "straight.txt", "192.0.2.1\n")
	around := feedFile(t, "around.txt", "192.0.2.1\n10.78.0.17\n")
	const wave = "labels: [canary], for: 2s"
	h.start(fmt.Sprintf(`max_age: 2s
rollout:
  waves: [{mode: rehearse, %[1]s}]
  first: at_once
  limit: 100%%
  packets: 0
  max_conversed: 0
  lists:
    straight: {waves: [{%[1]s}], first: at_once, max_conversed: 1}
    around: {waves: [{%[1]s}], first: at_once, max_conversed: 0}
lists:
  rehearsed: {sources: [{file: %[2]s}], interval: 1s}
  straight: {sources: [{file: %[3]s}], interval: 1s}
  around: {sources: [{file: %[6]s}], interval: 1s, aggregate: {ipv4: 30, ipv6: 64, at: 2}}
  quiet: {entries: [%[4]s, %[5]s], enforce: false}
`, wave, rehearsed, straight, acceptedPeer, spoofedPeer, around))
	l := lab.New(t)
	ip := func(end lab.End, args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", slices.Concat([]string{"-n", end.Netns}, args, []string{"dev", end.Iface})...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for a, end := range map[string]lab.End{
		ourAddress: l.B, openedPeer: l.A, acceptedPeer: l.A, spoofedPeer: l.A, datagramPeer: l.A, secondPeer: l.A,
	} {
		ip(end, "addr", "add", a+"/24")
	}
	ip(l.A, "addr", "add", around4Peer+"/32")
	ip(l.B, "route", "add", around4Peer)
	ip(l.A, "addr", "add", around6Peer+"/128", "nodad")
	ip(l.B, "addr", "add", "2001:db8:77::1/128", "nodad")
	ip(l.A, "route", "add", "2001:db8:77::1")
	ip(l.B, "route", "add", around6Peer)
	d := startLists(t, l, io.Discard, "collateral: 2048\nfleet: {enroll: "+h.enroll("edge-1", "canary")+"}")
	has := func(list string) {
		t.Helper()
		for end := wait.Deadline(); listNamed(d, "fleet."+list) == nil || listNamed(d, "fleet."+list).Entries == 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("list %s: %+v", list, listNamed(d, "fleet."+list))
			}
		}
	}
	for _, list := range []string{"rehearsed", "straight", "around", "quiet"} {
		has(list)
	}
	talk(t, "tcp", l.B, l.A, "", openedPeer+":7")
	talk(t, "tcp", l.B, l.A, "", secondPeer+":7")
	talk(t, "tcp", l.A, l.B, acceptedPeer, ourAddress+":7")
	talk(t, "tcp", l.B, l.A, "", around4Peer+":7")
	talk(t, "tcp", l.B, l.A, "", "["+around6Peer+"]:7")
	talk(t, "udp", l.B, l.A, "", datagramPeer+":7")
	if err := l.B.Do(func() error { _, err := net.Dial("tcp", spoofedPeer+":9"); return err }); err == nil {
		t.Error("a closed port answers")
	}
	for _, flags := range []byte{0x02, 0x10, 0x18} {
		f := packet.Frame(key.Tuple{Src: netip.MustParseAddr(spoofedPeer), Dst: netip.MustParseAddr(ourAddress), Proto: 6, HasPorts: true, SrcPort: 9, DstPort: 7})
		tcp := f[len(f)-20:]
		tcp[12], tcp[13] = 5<<4, flags
		copy(f, l.B.MAC)
		sendFrame(t, l, 3, f)
	}
	listOf := func(name string) api.FleetList {
		t.Helper()
		s, err := h.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Lists[slices.IndexFunc(s.Lists, func(l api.FleetList) bool { return l.Name == name })]
	}
	rolls := func(name, state string, parts ...string) *api.FleetRollout {
		t.Helper()
		var r *api.FleetRollout
		for end := wait.Deadline(); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if r = listOf(name).Rollout; r != nil && r.State == state {
				for _, part := range parts {
					if !strings.Contains(r.Reason, part) {
						t.Errorf("list %s: %q does not say %q", name, r.Reason, part)
					}
				}
				return r
			}
		}
		t.Fatalf("list %s: %+v, want a rollout that is %s: %+v", name, r, state, listOf(name))
		return nil
	}
	feed := func(path string, entries ...string) {
		t.Helper()
		must.Write(t, path+".new", strings.Join(entries, "\n")+"\n")
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}

	// In a rehearsal: TCP of both sides, and nothing that was spoofed.
	feed(rehearsed, "192.0.2.1", openedPeer, acceptedPeer, spoofedPeer, untouchedPeer)
	r := rolls("rehearsed", api.RolloutHalted, "node edge-1 has conversed", "max_conversed, 0: 2: ")
	if c := r.Collateral; c.Measured != 1 || c.Conversed != 1 || c.Most[0].Addresses != 2 || !slices.Contains(c.Most[0].Latest, openedPeer) || !slices.Contains(c.Most[0].Latest, acceptedPeer) {
		t.Errorf("%+v", c)
	}
	if l := listNamed(d, "fleet.rehearsed"); l.Entries != 1 {
		t.Errorf("the node filters by it: %+v", l)
	}
	feed(rehearsed, "192.0.2.1", spoofedPeer, untouchedPeer)
	rolls("rehearsed", api.RolloutDone)

	// Enforced: one of them may be dropped, and two may not. What the list had before does not count.
	feed(straight, "192.0.2.1", openedPeer)
	rolls("straight", api.RolloutDone)
	both := netip.PrefixFrom(netip.MustParseAddr(openedPeer), 31).String() // and acceptedPeer
	feed(straight, "192.0.2.1", both, secondPeer)
	rolls("straight", api.RolloutHalted, "max_conversed, 1: 2: ")

	// By the prefixes around what is added, each of them once.
	measure(t, d)
	feed(around, "192.0.2.1", "10.78.0.17", "10.78.0.19", "2001:db8:78::1", "2001:db8:78::2")
	r = rolls("around", api.RolloutHalted, "max_conversed, 0: 2: ")
	if c := r.Collateral; c.Most[0].Addresses != 2 || !slices.Contains(c.Most[0].Latest, around4Peer) || !slices.Contains(c.Most[0].Latest, around6Peer) {
		t.Errorf("%+v", c)
	}

	// On trial: its packets were matched.
	if _, err := d.observers.collateral.Collateral(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	for end := wait.Deadline(); listOf("quiet").Collateral.Measured == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", listOf("quiet"))
		}
	}
	if _, err := h.Enforce(t.Context(), "quiet", api.EnforceChange{}); err == nil || !strings.Contains(err.Error(), "nodes have conversed") || !strings.Contains(err.Error(), "edge-1 with 1: "+acceptedPeer) {
		t.Errorf("%v; %+v", err, listOf("quiet").Collateral)
	}
	conversations(t, d)
	if done, err := h.Enforce(t.Context(), "quiet", api.EnforceChange{Force: true}); err != nil || !done.Changed {
		t.Fatalf("%+v, %v", done, err)
	}
}

// measure checks which of these conversations count for versions by their prefixes: of the list
// around, and of one that the node does not have yet.
func measure(t *testing.T, d *Daemon) {
	t.Helper()
	aggregate := wire.Settings{Action: "block", Direction: "src", Aggregate: wire.Aggregate{IPv4: 30, IPv6: 64, At: 2}}
	prefix6 := wire.Settings{Action: "block", Direction: "src", Prefix6: 64}
	for _, c := range []struct {
		what, list string
		wire.Settings
		before, now *list.Set
		want        []string
	}{
		{"IPv4", "around", aggregate, setOf(t, "10.78.0.17"), setOf(t, "10.78.0.17", "10.78.0.16"), []string{around4Peer}},
		{"both, and an address itself", "around", aggregate, setOf(t), setOf(t, "10.78.0.17", around4Peer, "2001:db8:78::1", "2001:db8:78::2"), []string{around4Peer, around6Peer}},
		{"as before", "around", aggregate, setOf(t, "10.78.0.17", "10.78.0.19", "2001:db8:78::1", "2001:db8:78::2"), setOf(t, "10.78.0.16", "10.78.0.17", around4Peer, "2001:db8:78::1", "2001:db8:78::3"), nil},
		{"too few", "around", aggregate, setOf(t), setOf(t, "10.78.0.17", "2001:db8:78::1"), nil},
		{"prefix6", "new", prefix6, setOf(t), setOf(t, "2001:db8:78::1"), []string{around6Peer}},
		{"prefix6, as before", "new", prefix6, setOf(t, "2001:db8:78::1"), setOf(t, "2001:db8:78::2"), nil},
	} {
		got := d.fleet.rehearsals.Measure(t.Context(), c.list, &node.Candidate{Settings: c.Settings, Contents: c.now}, c.before)
		if got == nil || got.Addresses != len(c.want) || slices.ContainsFunc(c.want, func(a string) bool { return !slices.Contains(got.Latest, a) }) {
			t.Errorf("%s: %+v, want %q", c.what, got, c.want)
		}
	}
}

// conversations checks which of the conversations of TestFleetCollateral entries would drop.
func conversations(t *testing.T, d *Daemon) {
	t.Helper()
	ports := func(all ...verdict.PortRange) *verdict.Rule { return &verdict.Rule{Ports: all} }
	tcp7 := verdict.PortRange{Proto: 6, First: 7, Last: 7}
	all := setOf(t, "10.77.0.0/24")
	for _, c := range []struct {
		what            string
		more            engine.List
		allowed, before *list.Set
		heard           bool
		want            []string
	}{
		{"", engine.List{Contents: all}, nil, nil, false, []string{openedPeer, acceptedPeer, secondPeer}},
		{"a datagram was heard", engine.List{Contents: all}, nil, nil, true, []string{openedPeer, acceptedPeer, datagramPeer, secondPeer}},
		{"some are allowed", engine.List{Contents: all}, setOf(t, openedPeer), nil, false, []string{acceptedPeer, secondPeer}},
		{"some were dropped before", engine.List{Contents: all}, nil, setOf(t, "10.77.0.0/29"), true, nil},
		{"others", engine.List{Contents: setOf(t, spoofedPeer, untouchedPeer)}, nil, nil, true, nil},
		{"what leaves", engine.List{Contents: all, Direction: engine.Out}, nil, nil, true, []string{openedPeer, acceptedPeer, secondPeer}},
		{"a port of this host", engine.List{Contents: all, Rule: ports(tcp7)}, nil, nil, false, []string{acceptedPeer}},
		{"a port of others", engine.List{Contents: all, Direction: engine.Out, Rule: ports(tcp7)}, nil, nil, false, []string{openedPeer, secondPeer}},
		{"another port", engine.List{Contents: all, Rule: ports(verdict.PortRange{Proto: 6, First: 22, Last: 22})}, nil, nil, false, nil},
		{"a VLAN", engine.List{Contents: all, Rule: &verdict.Rule{VLANs: []uint16{9}}}, nil, nil, false, []string{openedPeer, acceptedPeer, secondPeer}},
		{"a trial", engine.List{Contents: all, Rule: &verdict.Rule{Trial: true}}, nil, nil, true, nil},
	} {
		out := c.more.Direction == engine.Out
		with := engine.AdditionsOf(c.more, engine.NewFinder([]engine.List{{Allow: true, Contents: c.allowed}}, out), engine.NewFinder([]engine.List{{Contents: c.before}}, out))
		got := d.observers.collateral.ConversedWith(t.Context(), with, func(netip.Addr) bool { return c.heard })
		if got == nil || got.Addresses != len(c.want) || len(got.Latest) != min(len(c.want), api.MaxConversed) || slices.ContainsFunc(got.Latest, func(a string) bool { return !slices.Contains(c.want, a) }) {
			t.Errorf("%s: %+v, want %q", c.what, got, c.want)
		}
	}
}
