package netns

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/attach"
	"weir/control/capture"
	"weir/control/config"
	"weir/control/quantity"
	"weir/control/stage/digest"
	"weir/filter/packet"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// recorder is a filter that records digests.
type recorder struct {
	*filter
	client *client.Client
}

// startRecorder runs one on some interfaces until the test ends.
func startRecorder(t *testing.T, d digest.Spec, on ...netif.Target) *recorder {
	t.Helper()
	r := newRecorder(t, d, on...)
	t.Cleanup(r.start(t, r))
	return r
}

// newRecorder returns one with a list that matches no packet.
func newRecorder(t *testing.T, d digest.Spec, on ...netif.Target) *recorder {
	t.Helper()
	c := configuration(t, on...)
	c.Digest = d
	c.Monitor = true // there is nothing to drop
	addList(t, c, config.Block, "none.txt", "203.0.113.255\n")
	return &recorder{&filter{config: c, log: &logBuffer{}}, client.Dial(string(c.API.Socket))}
}

// digestsOf returns the specification of digests for a packet rate.
func digestsOf(packets float64, slice time.Duration, fpr quantity.Share, keep time.Duration) digest.Spec {
	return digest.Spec{
		Rate:  quantity.Rate{Value: packets, Unit: quantity.Packets},
		Slice: quantity.Duration(slice), FPR: fpr, Keep: quantity.Duration(keep),
	}
}

// network is namespaces with wires between them.
type network struct {
	t     *testing.T
	name  string
	links int
}

// newNetwork makes namespaces, all of which forward packets.
func newNetwork(t *testing.T, nodes ...string) *network {
	t.Helper()
	lab.Root(t)
	lab.Installed(t, "ip")
	n := &network{t: t, name: fmt.Sprintf("weir-%x", time.Now().UnixNano()&0xffffffff)}
	for _, node := range nodes {
		n.ip("netns", "add", n.netns(node))
		t.Cleanup(func() { exec.Command("ip", "netns", "delete", n.netns(node)).Run() })
		n.in(node, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0",
			"net.ipv4.conf.all.send_redirects=0", "net.ipv4.conf.default.send_redirects=0",
			"net.ipv4.icmp_ratelimit=0", "net.ipv6.conf.default.disable_ipv6=1")
	}
	return n
}

func (n *network) netns(node string) string { return n.name + "-" + node }

func (n *network) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func (n *network) in(node string, command ...string) {
	n.t.Helper()
	n.ip(append([]string{"netns", "exec", n.netns(node)}, command...)...)
}

// wire lays a wire between two nodes: network 10.0.N.0/24, in which the first has
// address 1 and the second 2. Interfaces are called after the other end.
func (n *network) wire(a, b string) {
	n.t.Helper()
	n.links++
	n.ip("link", "add", "to-"+b, "netns", n.netns(a), "type", "veth", "peer", "name", "to-"+a, "netns", n.netns(b))
	for i, end := range [][2]string{{a, b}, {b, a}} {
		n.in(end[0], "ip", "address", "add", fmt.Sprintf("10.0.%d.%d/24", n.links, i+1), "dev", "to-"+end[1])
		n.in(end[0], "ip", "link", "set", "to-"+end[1], "up")
	}
}

// route adds a route to a network via an address.
func (n *network) route(node, to, via string) {
	n.t.Helper()
	n.in(node, "ip", "route", "add", to, "via", via)
}

// at returns the interface on which a node receives from another one.
func (n *network) at(node, from string) netif.Target {
	return netif.Target{Netns: n.netns(node), Iface: "to-" + from}
}

// end is an interface as the lab has it.
func (n *network) end(node, to string) lab.End {
	return lab.End{Netns: n.netns(node), Iface: "to-" + to}
}

// socket returns a UDP socket at an end, connected to an address.
func (n *network) socket(e lab.End, to string) net.Conn {
	n.t.Helper()
	var c net.Conn
	var err error
	e.In(n.t, func() { c, err = net.Dial("udp4", to) })
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	return c
}

// say sends n distinct datagrams, not too fast for the short queues, even if
// their CPUs are busy for a while.
func say(t *testing.T, c net.Conn, n int) {
	t.Helper()
	for i := range n {
		if _, err := c.Write(binary.BigEndian.AppendUint32([]byte("weir"), uint32(i))); err != nil {
			t.Fatal(err)
		}
		if i%8 == 7 {
			time.Sleep(time.Millisecond)
		}
	}
}

// counted waits until the interfaces together have recorded a number of
// packets.
func counted(t *testing.T, r *recorder, want uint64) {
	t.Helper()
	var n uint64
	for deadline := wait.Deadline(); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if n = total(r, "weir_digest_packets_total"); n >= want {
			return
		}
	}
	t.Fatalf("%d packets are recorded, want %d", n, want)
}

// Packets go from a source by a, b and c to their destination, others from
// there by a and b to d. Asked for packets that arrived after c, the nodes
// return their path; and d is on it as often as its filter's false-positive
// rate.
//
//	source - a - b - c - destination
//	             |
//	             d - elsewhere
func TestTraceback(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "s", "a", "b", "c", "d", "e")
	n.wire("s", "a") // 10.0.1
	n.wire("a", "b") // 10.0.2
	n.wire("b", "c") // 10.0.3
	n.wire("c", "e") // 10.0.4
	n.wire("b", "d") // 10.0.5
	for node, via := range map[string]string{"s": "10.0.1.2", "a": "10.0.2.2"} {
		n.route(node, "10.0.4.0/24", via)
		n.route(node, "10.0.5.0/24", via)
	}
	n.route("b", "10.0.4.0/24", "10.0.3.2")
	// A path that is long enough for chance to be seen on it, with few packets.
	c := digestsOf(10, time.Minute, 0.1, time.Hour)
	question := digest.Question{
		From: "c", Window: time.Minute, Links: []digest.Link{{A: "a", B: "b"}, {A: "c", B: "b"}, {A: "b", B: "d"}},
	}
	nodes := make(map[string]*recorder)
	for node, from := range map[string]string{"a": "s", "b": "a", "c": "b", "d": "b"} {
		r := startRecorder(t, c, n.at(node, from))
		nodes[node] = r
		question.Nodes = append(question.Nodes, digest.Node{Name: node, Ask: r.client.Trace})
	}
	const packets, noise = 400, 1000
	arrived := n.end("e", "c").Receiver(t)
	say(t, n.socket(n.end("s", "a"), "10.0.4.2:9"), packets)
	say(t, n.socket(n.end("s", "a"), "10.0.5.2:9"), noise)
	counted(t, nodes["c"], packets)
	counted(t, nodes["d"], noise)

	var captured bytes.Buffer
	w, err := capture.NewWriter(&captured, "test")
	if err != nil {
		t.Fatal(err)
	}
	for got := 0; got < packets; {
		frame, err := arrived.Receive(wait.Patience)
		if err != nil {
			t.Fatalf("%d packets have arrived, then %v", got, err)
		}
		if p, _ := packet.Parse(frame); p.HasPorts && p.DstPort == 9 {
			got++
			if err := w.Write(capture.Packet{Time: time.Now(), Data: frame, Length: len(frame)}, capture.Note{Interface: "to-c"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	r, err := capture.NewReader("arrived", &captured)
	if err != nil {
		t.Fatal(err)
	}
	asked, untraced, err := digest.Read(t.Context(), r, 0)
	if err != nil || untraced != 0 || len(asked) != packets {
		t.Fatalf("%d packets, %d untraced, %v", len(asked), untraced, err)
	}
	if err := question.Check(); err != nil {
		t.Fatal(err)
	}
	traces, err := question.Ask(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	extra, expected := 0, 0.
	for _, trace := range traces {
		path := trace.Path
		if path.Node != "c" || len(path.From) != 1 || path.From[0].Node != "b" {
			t.Fatalf("packet %d: path %+v", trace.Number, path)
		}
		seen := make(map[string]float64)
		for _, hop := range path.From[0].From {
			seen[hop.Node] = hop.Chance
		}
		if _, ok := seen["a"]; !ok {
			t.Fatalf("packet %d: path %+v ends before a", trace.Number, path)
		}
		if chance, ok := seen["d"]; ok {
			extra++
			expected += chance
		} else {
			expected += trace.Extra
		}
	}
	spread := math.Sqrt(expected * (1 - expected/packets))
	t.Logf("%d of %d paths have a branch to d, %.1f ± %.1f expected", extra, packets, expected, spread)
	if expected < 40 || math.Abs(float64(extra)-expected) > 6*spread {
		t.Errorf("%d branches to d, %.1f ± %.1f expected", extra, expected, spread)
	}
}

// While slices end every tenth of a second, packets arrive as fast as possible,
// and each is found afterwards.
func TestNoDigestIsLost(t *testing.T) {
	long.Seconds(t)
	l := lab.New(t)
	const slice = 100 * time.Millisecond
	c := digestsOf(1e6, slice, 1e-5, time.Minute)
	r := startRecorder(t, c, target(l.B))
	tx, rx := l.A.Sender(t), l.B.Receiver(t)
	frame := l.Numbered(frameOf(udp("192.0.2.1", "198.51.100.1", 9)), 0)
	// The wire may lose packets that are sent faster than they are received.
	const window = 64
	taken := func() {
		t.Helper()
		for n := 0; n < window; {
			f, err := rx.Receive(wait.Patience)
			if err != nil {
				t.Fatalf("%d packets of %d come, then %v", n, window, err)
			}
			if _, ok := lab.NumberOf(f); ok {
				n++
			}
		}
	}
	began := time.Now()
	var question api.TraceQuestion
	packets := 0
	for ; packets < 100_000 || time.Since(began) < 5*slice; packets++ {
		f := bytes.Clone(frame)
		binary.BigEndian.PutUint16(f[18:], uint16(packets))     // the identification
		binary.BigEndian.PutUint16(f[38:], uint16(packets>>16)) // and the UDP length
		if err := tx.Send(f); err != nil {
			t.Fatal(err)
		}
		if packets%window == window-1 {
			taken()
		}
		if packets%10 == 0 {
			question.Packets = append(question.Packets, api.TraceAbout{Data: f[14:], From: began, To: began.Add(time.Minute)})
		}
	}
	took := time.Since(began)
	lost := 0
	for batch := 0; batch < len(question.Packets); batch += api.MaxTraced {
		answer, err := r.client.Trace(t.Context(), api.TraceQuestion{Packets: question.Packets[batch:min(batch+api.MaxTraced, len(question.Packets))]})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range answer.Interfaces[0].Packets {
			if len(p.Slices) == 0 {
				lost++
			}
		}
	}
	t.Logf("%d packets in %v; %d of %d lost", packets, took, lost, len(question.Packets))
	if lost > 0 {
		t.Errorf("%d of %d packets are not found", lost, len(question.Packets))
	}
}

// Packets that pass while the daemon is not running, or while its configuration
// changes, are found afterwards, even from disk alone.
func TestDigestsOutlastTheDaemon(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	c := digestsOf(1000, 200*time.Millisecond, 1e-5, time.Minute)
	c.Archive = digest.ArchiveSpec{Keep: quantity.Duration(time.Hour), Size: 1 << 20}
	r := newRecorder(t, c, target(l.B))
	r.config.Keep, r.config.StateDir = true, config.Path(t.TempDir())
	t.Cleanup(func() {
		if err := attach.Detach(r.config.Pins, target(l.B)); err != nil {
			t.Error(err)
		}
	})
	w := lab.NewProbe(t, l)
	began := time.Now()
	var sent []api.TraceAbout
	pass := func() {
		t.Helper()
		var frames [][]byte
		for range 10 {
			f := frameOf(udp("192.0.2.1", "198.51.100.1", 9))
			binary.BigEndian.PutUint16(f[18:], uint16(len(sent))) // the identification
			frames = append(frames, f)
			sent = append(sent, api.TraceAbout{Data: f[14:], From: began.Add(-time.Minute), To: began.Add(time.Minute)})
		}
		w.Pass(t, frames...)
	}
	// found waits until all that was sent is found; it takes until the end of a slice.
	found := func(when string) {
		t.Helper()
		missing := len(sent)
		for deadline := wait.Deadline(); missing > 0; time.Sleep(20 * time.Millisecond) {
			answer, err := r.client.Trace(t.Context(), api.TraceQuestion{Packets: sent})
			if err != nil {
				t.Fatal(err)
			}
			missing = len(sent)
			for _, i := range answer.Interfaces {
				for _, p := range i.Packets {
					if len(p.Slices) > 0 {
						missing--
					}
					for _, s := range p.Slices {
						// The first slice begins before the program is built and loaded.
						if s.Start.Before(began.Add(-5*time.Second)) || s.Length > 5+time.Since(began).Seconds() {
							t.Fatalf("%s: found in %g s from %v on", when, s.Length, s.Start)
						}
					}
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d of %d packets are not found", when, missing, len(sent))
			}
		}
	}
	reconfigure := func(d digest.Spec, meanwhile func()) {
		t.Helper()
		next := *r.config // the other one is active
		next.Digest = d
		r.config, r.reading = &next, meanwhile
		if _, err := r.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.reading = nil
	}
	stop := r.start(t, r)
	pass()
	found("at first")
	stop()
	pass() // while there is no reader
	stop = r.start(t, r)
	pass()
	found("after a restart")

	time.Sleep(2 * time.Duration(c.Slice))
	larger := c
	larger.Rate.Value *= 10
	reconfigure(larger, pass)
	pass()
	found("with larger slices")
	reconfigure(digest.Spec{}, nil)
	w.Pass(t, frameOf(udp("192.0.2.1", "198.51.100.1", 9)))
	if _, err := r.client.Trace(t.Context(), api.TraceQuestion{Packets: sent}); err == nil || err.Error() != api.ErrNoDigests.Error() {
		t.Errorf("while nothing is recorded: %v", err)
	}
	reconfigure(c, nil)
	pass()
	found("when it is recorded again")
	longer := c
	longer.Rate.Value, longer.Slice = c.Rate.Value/2, 2*c.Slice
	reconfigure(longer, pass)
	pass()
	found("with longer slices of the same size")
	stop()
}

// The first slice of an interface that is created while weir runs begins then.
// Its last records are found when it is gone.
func TestDigestsOfAnInterfaceThatComesAndGoes(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, "s", "a")
	at := n.at("a", "s")
	at.Iface = "to-*"
	r := newRecorder(t, digestsOf(1000, 200*time.Millisecond, 1e-5, time.Minute), at)
	r.config.Interfaces[0].Required = false
	t.Cleanup(r.start(t, r))
	time.Sleep(1500 * time.Millisecond) // more than it may take until an interface is known
	made := time.Now()
	n.wire("s", "a")
	for deadline := wait.Deadline(); !strings.Contains(r.log.String(), "the interface is there, filtering"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the interface is not filtered")
		}
	}
	tx := n.end("s", "a").Sender(t)
	var sent []api.TraceAbout
	send := func() {
		t.Helper()
		f := frameOf(udp("192.0.2.1", "198.51.100.1", 9))
		binary.BigEndian.PutUint16(f[18:], uint16(len(sent))) // the identification
		if err := tx.Send(f); err != nil {
			t.Fatal(err)
		}
		sent = append(sent, api.TraceAbout{Data: f[14:], From: made, To: made.Add(time.Minute)})
	}
	send()
	counted(t, r, 1)
	send()
	n.in("a", "ip", "link", "delete", "to-s")
	for deadline := wait.Deadline(); !strings.Contains(r.log.String(), "the interface is gone"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is not known that the interface is gone")
		}
	}
	answer, err := r.client.Trace(t.Context(), api.TraceQuestion{Packets: sent})
	if err != nil || len(answer.Interfaces) != 1 {
		t.Fatalf("%+v, %v", answer, err)
	}
	for i, p := range answer.Interfaces[0].Packets {
		if len(p.Slices) != 1 {
			t.Errorf("packet %d: slices %+v", i+1, p.Slices)
		} else if begins := made.Sub(p.Slices[0].Start); begins > 1300*time.Millisecond {
			t.Errorf("packet %d: its slice begins %v before the interface was made", i+1, begins)
		}
	}
}

// Two routers send a packet to and fro until its TTL is over. Each of them says so,
// and neither does of a packet that only passes.
func TestLoopOnTheWire(t *testing.T) {
	n := newNetwork(t, "s", "a", "b")
	n.wire("s", "a") // 10.0.1
	n.wire("a", "b") // 10.0.2
	n.route("s", "10.9.0.0/16", "10.0.1.2")
	n.route("s", "10.0.2.0/24", "10.0.1.2")
	n.route("a", "10.9.0.0/16", "10.0.2.2")
	n.route("b", "10.9.0.0/16", "10.0.2.1")
	c := digestsOf(1000, 10*time.Second, 0.01, time.Minute)
	a := startRecorder(t, c, n.at("a", "s"), n.at("a", "b"))
	b := startRecorder(t, c, n.at("b", "a"))
	say(t, n.socket(n.end("s", "a"), "10.0.2.2:9"), 200)
	counted(t, b, 200)
	if n := loops(a) + loops(b); n != 0 {
		t.Fatalf("%d loops before there is one", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
	defer cancel()
	stream, err := b.client.Events(ctx, api.Events{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	say(t, n.socket(n.end("s", "a"), "10.9.0.1:9"), 5)
	for e, err := range stream {
		if err != nil {
			t.Fatalf("no event: %v", err)
		}
		if e.Dst != "10.9.0.1" || e.Interface != "to-a" || e.Reason != "looped" || e.Drops() || e.FirstTTL < e.TTL+4 {
			t.Errorf("event %+v", e)
		}
		break
	}
	for name, r := range map[string]*recorder{"a": a, "b": b} {
		for deadline := wait.Deadline(); !strings.Contains(r.log.String(), "10.9.0.1"); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d loops, and the log has none:\n%s", name, loops(r), r.log)
			}
		}
		n := loops(r)
		for deadline := wait.Deadline(); n < 4 && time.Now().Before(deadline); n = loops(r) {
			time.Sleep(50 * time.Millisecond) // they are counted once a second
		}
		if n < 4 || n > 5 { // the last may still be gathered
			t.Errorf("%s: %d loops of 5 packets", name, n)
		}
		if n := strings.Count(r.log.String(), "10.9.0.1"); n != 1 {
			t.Errorf("%s: the log has it %d times", name, n)
		}
	}
	for _, of := range a.Metrics().Stages {
		if of.Name == suspected && of.At.Iface == "to-s" && of.Value != 0 {
			t.Errorf("%v loops where the packets came in", of.Value)
		}
	}
}

const suspected = "weir_digest_loops_suspected_total"

func loops(r *recorder) uint64 { return total(r, suspected) }

// total returns a counter of all interfaces together.
func total(r *recorder, name string) (n uint64) {
	for _, of := range r.Metrics().Stages {
		if of.Name == name {
			n += uint64(of.Value)
		}
	}
	return n
}
