package netns

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/attach"
	"weir/control/config"
	"weir/control/stage/loop"
	"weir/filter/icarus"
	"weir/filter/key"
	"weir/loader/hooks"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/pins"
	"weir/tests/wait"
)

var domainKey = icarus.Key([]byte("0123456789abcdef"))

// startNode makes a host a node of the domain, on these of its interfaces, until
// the test ends.
func startNode(t *testing.T, id int, g icarus.Geometry, drop bool, mode hooks.Hook, edges []string, ends ...lab.End) *filter {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key")
	must.Write(t, file, fmt.Appendf(nil, "%x", domainKey))
	c := configuration(t)
	c.Loop = loop.Spec{
		Node: id, Domain: 7, KeyFile: config.Path(file), Edges: edges, Size: g.Size, K: g.K, Confirm: g.Confirm,
	}
	if drop {
		c.Loop.Action = loop.Drop
	}
	for _, e := range ends {
		c.Interfaces = append(c.Interfaces, config.Interface{Name: e.Iface, Netns: e.Netns, XDP: mode, Required: true})
	}
	return serve(t, c)
}

// outcomes adds up the counters of a filter's interfaces.
func outcomes(f *filter) map[string]uint64 {
	sum := make(map[string]uint64)
	for _, i := range f.Metrics().Interfaces {
		for _, c := range i.Stages {
			if c.Name == "weir_loop_packets_total" && c.Value > 0 {
				sum[c.Of] += uint64(c.Value)
			}
		}
	}
	return sum
}

// ring is four routers in a circle, and a host at the first of them. Each
// forwards 203.0.113.0/24 and 2001:db8::/32 to the next. A host with offloads leaves checksums to
// its interface, which is none that fills them in; the first router's next one does.
type ring struct {
	host    lab.End
	gateway lab.End    // the first router's, to the host
	out, in [4]lab.End // of each router, to the next and from the last
	routers [4]lab.Host
}

func newRing(t *testing.T, offloads bool) *ring {
	t.Helper()
	r := &ring{}
	host := lab.NewHost(t, "host")
	for i := range r.routers {
		r.routers[i] = lab.NewHost(t, fmt.Sprint("r", i+1))
	}
	r.host, r.gateway = lab.Join(t, 9, 1500, host, "up", r.routers[0], "edge")
	leaveChecksums(t, r.host, offloads)
	r.host.Route(t, "203.0.113.0/24", r.gateway.IPv4)
	r.host.Route(t, "2001:db8::/32", r.gateway.IPv6)
	for i := range r.routers {
		next := (i + 1) % len(r.routers)
		r.out[i], r.in[next] = lab.Join(t, byte(i+1), 1600, r.routers[i], "out", r.routers[next], "in")
		leaveChecksums(t, r.out[i], false)
		r.out[i].Route(t, "203.0.113.0/24", r.in[next].IPv4)
		r.out[i].Route(t, "2001:db8::/32", r.in[next].IPv6)
	}
	return r
}

// load is the number of packets on the ring's wires.
func (r *ring) load(t *testing.T) (n uint64) {
	for _, e := range r.out {
		n += e.Sent(t)
	}
	return n
}

// circle sends packets of a family and a protocol with a TTL of 64 into the circle, and
// returns the load on its wires per packet.
func (r *ring) circle(t *testing.T, v6 bool, proto uint8, packets int) float64 {
	t.Helper()
	to := "203.0.113.7"
	if v6 {
		to = "2001:db8::7"
	}
	before := r.load(t)
	speak(t, r.host, netip.MustParseAddr(to), proto, packets)
	last, quiet := r.load(t), 0
	for deadline := wait.Deadline(); quiet < 20 && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
		if now := r.load(t); now != last {
			last, quiet = now, 0
		} else {
			quiet++
		}
	}
	return float64(last-before) / float64(packets)
}

// sum sets an IPv4 header's checksum.
func sum(header []byte) {
	header[10], header[11] = 0, 0
	var n uint32
	for i := 0; i < len(header); i += 2 {
		n += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	n = n&0xffff + n>>16
	binary.BigEndian.PutUint16(header[10:], ^uint16(n&0xffff+n>>16))
}

// A wrong route makes packets loop until their TTL expires. With a node on each
// router they are stopped at the first revisit, of whatever protocol they are, and whether or
// not their sender has filled in checksums.
func TestRing(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	lab.Root(t)
	const packets = 50
	g := icarus.Geometry{Size: 128, K: 12, Confirm: 1}
	type kind struct {
		mode     hooks.Hook
		offloads bool
	}
	some := []kind{{hooks.Native, true}, {hooks.Generic, false}}
	for _, c := range long.Or(some, append(some, kind{hooks.Native, false}, kind{hooks.Generic, true})) {
		t.Run(fmt.Sprintf("%v/offloads=%t", c.mode, c.offloads), func(t *testing.T) {
			t.Parallel()
			r := newRing(t, c.offloads)
			each := func(fn func(name string, v6 bool, proto uint8)) {
				for _, k := range kindsOfTraffic {
					for _, v6 := range []bool{false, true} {
						fn(fmt.Sprintf("%s, IPv6 %t", k.name, v6), v6, k.proto(v6))
					}
				}
			}
			each(func(name string, v6 bool, proto uint8) {
				if got := r.circle(t, v6, proto, packets); got < 60 || got > 64 {
					t.Errorf("%s, without weir: a packet takes %.1f hops on the ring, want 60 to 64", name, got)
				}
			})
			var nodes []*filter
			for i := range r.routers {
				var edges []string
				ends := []lab.End{r.in[i], r.out[i]}
				if i == 0 {
					edges, ends = []string{"edge"}, append(ends, r.gateway)
				}
				nodes = append(nodes, startNode(t, i+1, g, true, c.mode, edges, ends...))
			}
			time.Sleep(100 * time.Millisecond)
			sent := 0
			each(func(name string, v6 bool, proto uint8) {
				began := time.Now()
				got := r.circle(t, v6, proto, packets)
				sent += packets
				t.Logf("%s: %.2f hops of a packet on the ring", name, got)
				if got != 4 {
					t.Errorf("%s: a packet takes %.2f hops on the ring, want 4", name, got)
				}
				if proto == unix.IPPROTO_UDP { // later loops of the same addresses are not reported at once
					dst := map[bool]string{false: "203.0.113.7", true: "2001:db8::7"}[v6]
					nodes[0].log.await(t, began, wait.Patience, "a packet runs in a loop: it has come here again", "dst="+dst, "dropped=true")
				}
			})
			for i, f := range nodes {
				got := outcomes(f)
				t.Logf("router %d: %v", i+1, got)
				want := map[string]int{"visited": sent}
				if i == 0 {
					want = map[string]int{"inserted": sent, "looped": sent}
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("router %d counts %v, want %v", i+1, got, want)
				}
			}
		})
	}
}

// newLine makes routers in a row between two hosts, and returns the ends of each wire: those of
// the host before it and of the host behind it.
func newLine(t *testing.T, routers, mtu int) (up, down []lab.End) {
	t.Helper()
	hosts := []lab.Host{lab.NewHost(t, "from")}
	for i := range routers {
		hosts = append(hosts, lab.NewHost(t, fmt.Sprint("r", i+1)))
	}
	hosts = append(hosts, lab.NewHost(t, "to"))
	wires := len(hosts) - 1
	up, down = make([]lab.End, wires), make([]lab.End, wires)
	for i := range wires {
		wireMTU := mtu
		if i == 0 || i == wires-1 {
			wireMTU = 1500
		}
		up[i], down[i] = lab.Join(t, byte(i+1), wireMTU, hosts[i], "down", hosts[i+1], "up")
	}
	for i := range wires { // to what is beyond the next host, and before this one
		for j := range wires {
			prefix4, prefix6 := fmt.Sprintf("10.0.%d.0/24", j+1), fmt.Sprintf("fd00:%x::/64", j+1)
			if j > i {
				up[i].Route(t, prefix4, down[i].IPv4)
				up[i].Route(t, prefix6, down[i].IPv6)
			}
			if j < i {
				down[i].Route(t, prefix4, up[i].IPv4)
				down[i].Route(t, prefix6, up[i].IPv6)
			}
		}
	}
	return up, down
}

// path is a line of routers between two hosts; every one is a node of the
// domain, the first and the last with an edge.
type path struct {
	from, to lab.End
	nodes    []*filter
}

func newPath(t *testing.T, routers, mtu int, g icarus.Geometry) *path {
	t.Helper()
	up, down := newLine(t, routers, mtu)
	p := &path{from: up[0], to: down[routers]}
	for i := range routers {
		var edges []string
		switch i {
		case 0:
			edges = []string{"up"}
		case routers - 1:
			edges = []string{"d*"}
		}
		p.nodes = append(p.nodes, startNode(t, i+1, g, true, hooks.Native, edges, down[i], up[i+1]))
	}
	return p
}

// copy sends bytes by TCP from one end of the path to the other, which must get
// just these.
func (p *path) copy(t *testing.T, v6 bool, size int) {
	t.Helper()
	a := p.to.IPv4
	if v6 {
		a = p.to.IPv6
	}
	var l net.Listener
	var c net.Conn
	var err error
	p.to.In(t, func() { l, err = net.Listen("tcp", netip.AddrPortFrom(a, 0).String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan [32]byte, 1)
	go func() {
		h := sha256.New()
		if c, err := l.Accept(); err == nil {
			c.SetDeadline(time.Now().Add(time.Minute))
			io.Copy(h, c)
			c.Close()
		}
		got <- [32]byte(h.Sum(nil))
	}()
	p.from.In(t, func() { c, err = net.DialTimeout("tcp", l.Addr().String(), wait.Patience) })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	began := time.Now()
	c.SetDeadline(began.Add(time.Minute))
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(c, h), io.LimitReader(rand.NewChaCha8([32]byte{}), int64(size))); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if <-got != [32]byte(h.Sum(nil)) {
		t.Errorf("IPv6 %t: other bytes arrive than were sent", v6)
	}
	t.Logf("IPv6 %t: %d bytes in %v", v6, size, time.Since(began).Round(time.Millisecond))
}

// A large file passes a domain unharmed, with a filter in every packet on the
// way; where the MTU leaves no room for one, without.
func TestCopyThroughDomain(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	for _, c := range []struct {
		name      string
		mtu, size int
	}{{"room", 1600, 100 << 20}, {"no room", 1500, 5 << 20}} {
		t.Run(c.name, func(t *testing.T) {
			p := newPath(t, 3, c.mtu, icarus.Geometry{Size: 256, K: 12, Confirm: 1})
			for _, v6 := range []bool{false, true} {
				p.copy(t, v6, c.size)
			}
			var all []map[string]uint64
			for i, f := range p.nodes {
				all = append(all, outcomes(f))
				t.Logf("router %d: %v", i+1, all[i])
			}
			first, middle, last := all[0], all[1], all[2]
			inserted, removed := first["inserted"]+last["inserted"], first["removed"]+last["removed"]
			// TCP sends as fast as queues allow, and slows down when they drop.
			const mostLost = 0.01
			if inserted < middle["visited"] || middle["visited"] < removed || float64(inserted-removed) > mostLost*float64(inserted) {
				t.Error("not every filter that was inserted was visited and removed")
			}
			if first["visited"]+last["visited"] > 0 {
				t.Error("a filter has left the domain")
			}
			if first["inserted"] == 0 || last["inserted"] == 0 {
				t.Error("one way there are no filters")
			}
			packets := uint64(2 * c.size / 1500)
			if room := c.mtu > 1500; room && (first["inserted"] < packets || first["too-large"] > 0) ||
				!room && first["too-large"] < packets {
				t.Errorf("%d packets at least, with room for a filter: %t", packets, room)
			}
		})
	}
}

// An edge that appears after weir has started counts: packets arriving there
// get a filter.
func TestEdgeComesLater(t *testing.T) {
	a, router, b := lab.NewHost(t, "a"), lab.NewHost(t, "router"), lab.NewHost(t, "b")
	core, to := lab.Join(t, 2, 1600, router, "core0", b, "down")
	edges := lab.End{Netns: router.Netns, Iface: "edge*"}
	f := startNode(t, 1, icarus.Geometry{Size: 64, K: 6, Confirm: 1}, true, hooks.Native, []string{edges.Iface}, core, edges)
	time.Sleep(300 * time.Millisecond) // until a program waits
	began := time.Now()
	from, edge := lab.Join(t, 1, 1500, a, "up", router, "edge0")
	f.log.await(t, began, wait.Patience, "the interface is there, filtering", edge.Iface)
	rx, tx := to.Receiver(t), from.Sender(t)
	frame := frameOf(key.Tuple{Src: from.IPv4, Dst: to.IPv4, Proto: 17, HasPorts: true, SrcPort: 7, DstPort: 8})
	copy(frame, edge.MAC)
	copy(frame[6:], from.MAC)
	sum(frame[14:34])
	// The program that waited is replaced as soon as weir has looked.
	for deadline := wait.Deadline(); outcomes(f)["inserted"] == 0; {
		if time.Now().After(deadline) {
			t.Fatalf("no filter is inserted: %v", outcomes(f))
		}
		if err := tx.Send(frame); err != nil {
			t.Fatal(err)
		}
		if _, err := rx.Receive(wait.Patience); err != nil {
			t.Fatal(err)
		}
	}
}

// A host becomes a node by its configuration. An invalid or world-readable key
// is rejected, and the active configuration stays.
func TestConfiguredNode(t *testing.T) {
	a, router, b := lab.NewHost(t, "a"), lab.NewHost(t, "router"), lab.NewHost(t, "b")
	from, edge := lab.Join(t, 1, 1500, a, "up", router, "edge0")
	_, to := lab.Join(t, 2, 1600, router, "core0", b, "down")
	dir, dirOfPins := t.TempDir(), pins.New(t)
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	keyFile := write("key", fmt.Sprintf("%x\n", domainKey), 0o600)
	file := write("weir.yaml", fmt.Sprintf(`
interfaces: [{name: "*0", netns: %s}]
loop: {node: 3, domain: 7, key_file: %s, edges: ["edge*"], action: drop}
state_dir: %s/state
pins: %s
api: {socket: %s/sock}
`, router.Netns, keyFile, dir, dirOfPins, dir), 0o600)
	d := &filter{log: &logBuffer{}}
	stop := d.start(t, config.File(file))
	defer func() {
		stop()
		if _, err := attach.DetachAll(dirOfPins); err != nil {
			t.Error(err)
		}
	}()
	rx, tx := to.Receiver(t), from.Sender(t)
	f := frameOf(key.Tuple{Src: from.IPv4, Dst: to.IPv4, Proto: 17, HasPorts: true, SrcPort: 7, DstPort: 8})
	copy(f, edge.MAC)
	copy(f[6:], from.MAC)
	sum(f[14:34])
	if err := tx.Send(f); err != nil {
		t.Fatal(err)
	}
	got, err := rx.Receive(wait.Patience)
	if err != nil {
		t.Fatal(err)
	}
	g := icarus.Geometry{Size: 256, K: 12, Confirm: 1}
	n, err := icarus.NewNode(3, 7, domainKey, g)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := n.Insert(f[14:], 1600)
	want[8]-- // hops to live
	sum(want[:60])
	if !bytes.Equal(got[14:], want) {
		t.Errorf("% x arrives, want % x", got[14:], want)
	}
	for text, says := range map[string]string{"0123": "32 hexadecimal digits", fmt.Sprintf("%x", domainKey): "lets everybody at it"} {
		write("key", text, 0o644)
		if text == "0123" {
			write("key", text, 0o600)
		}
		if _, err := d.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("key %q: %v, want %q", text, err, says)
		}
	}
}
