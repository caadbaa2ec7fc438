package netns

import (
	"bytes"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"weir/control/config"
	"weir/control/stage/loop"
	"weir/control/stage/multicast"
	"weir/loader/hooks"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/wait"
)

// multicastRing is four routers in a circle that copy groups to both neighbours, with a
// host that sends at the first, and one that receives at the third.
type multicastRing struct {
	sender, receiver     lab.End
	entry, exit          lab.End // the routers' ends of the hosts' wires
	forwards, backwards  [4]lab.End
	routers              [4]lab.Host
	nodes                []*filter
	groups               []multicast.Group
	firstGroup, v6Groups netip.Addr
}

func newMulticastRing(t *testing.T) *multicastRing {
	t.Helper()
	r := &multicastRing{firstGroup: group("239.1.2.3"), v6Groups: group("ff0e::1234")}
	r.groups = []multicast.Group{multicast.Group(r.firstGroup), multicast.Group(r.v6Groups)}
	from, to := lab.NewHost(t, "from"), lab.NewHost(t, "to")
	for i := range r.routers {
		r.routers[i] = lab.NewHost(t, fmt.Sprint("r", i+1))
	}
	r.sender, r.entry = lab.Join(t, 8, 1500, from, "up", r.routers[0], "edge")
	r.receiver, r.exit = lab.Join(t, 9, 1500, to, "up", r.routers[2], "edge")
	for i := range r.routers {
		next := (i + 1) % len(r.routers)
		r.forwards[i], r.backwards[next] = lab.Join(t, byte(i+1), 1600, r.routers[i], "out", r.routers[next], "in")
	}
	r.receiver.ReceiveRedirected(t)
	return r
}

// start starts the routers, as nodes of a domain if that detects loops.
func (r *multicastRing) start(t *testing.T, detects bool) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key")
	must.Write(t, file, fmt.Appendf(nil, "%x", domainKey))
	for i := range r.routers {
		c := configuration(t)
		ends := []lab.End{r.backwards[i], r.forwards[i]}
		c.Multicast.SetDefaults()
		for _, name := range []string{"in", "out"} {
			c.Multicast.Interfaces = append(c.Multicast.Interfaces, multicast.Interface{Name: name, Groups: r.groups})
		}
		switch i {
		case 0:
			ends = append(ends, r.entry)
		case 2:
			ends = append(ends, r.exit)
			c.Multicast.Interfaces = append(c.Multicast.Interfaces, multicast.Interface{Name: "edge", Groups: r.groups})
		}
		for _, e := range ends {
			c.Interfaces = append(c.Interfaces, config.Interface{Name: e.Iface, Netns: e.Netns, XDP: hooks.Native, Required: true})
		}
		if detects {
			c.Loop = loop.Spec{
				Node: i + 1, Domain: 7, KeyFile: config.Path(file), Size: 128, K: 12, Confirm: 1, Action: loop.Drop,
			}
			if i%2 == 0 {
				c.Loop.Edges = []string{"edge"}
			}
		}
		r.nodes = append(r.nodes, serve(t, c))
	}
}

// hops is the number of packets that the routers have received from each other.
func (r *multicastRing) hops() (n uint64) {
	for _, f := range r.nodes {
		for _, i := range f.Metrics().Interfaces {
			if i.Iface == "edge" {
				continue
			}
			for _, c := range i.Counts {
				n += c.Packets
			}
		}
	}
	return n
}

// send sends packets to a group with a TTL of 64, and returns how many hops each takes on
// the ring, all its copies together.
func (r *multicastRing) send(t *testing.T, to netip.Addr, packets int, frame []byte) float64 {
	t.Helper()
	tx := r.sender.Sender(t)
	before := r.hops()
	for range packets {
		if err := tx.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	last, quiet := r.hops(), 0
	for deadline := wait.Deadline(); quiet < 20 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		if now := r.hops(); now != last || now == before {
			last, quiet = now, 0
		} else {
			quiet++
		}
	}
	return float64(last-before) / float64(packets)
}

// Routers that copy a group in a circle copy it until its TTL runs out. As nodes of a
// domain, they stop each copy at the first router that it comes to again, and receivers
// outside get packets without a filter.
func TestMulticastRing(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	lab.Root(t)
	const packets = 20
	for _, detects := range []bool{false, true} {
		t.Run(fmt.Sprint("detection ", detects), func(t *testing.T) {
			r := newMulticastRing(t)
			r.start(t, detects)
			rx := r.receiver.Receiver(t)
			for _, to := range []netip.Addr{r.firstGroup, r.v6Groups} {
				src := r.sender.IPv4
				if to.Is6() {
					src = netip.MustParseAddr("2001:db8::1")
				}
				frame := lab.Numbered(toGroup(src.String(), to), 5)
				copy(frame[6:], r.sender.MAC)
				got := r.send(t, to, packets, frame)
				t.Logf("%v: %.1f hops", to, got)
				if detects && got != 8 || !detects && got < 100 {
					t.Errorf("%v: a packet takes %.1f hops on the ring: want 8, or without detection 126", to, got)
				}
				// A copy has come each way round: clockwise over two routers, with a TTL of 62 there.
				copied, err := rx.Receive(wait.Patience)
				for err == nil && !bytes.Equal(copied[:6], frame[:6]) {
					copied, err = rx.Receive(wait.Patience)
				}
				if err != nil {
					t.Fatal(err)
				}
				at := 22 // TTL
				want := bytes.Clone(frame)
				copy(want[6:], r.exit.MAC)
				if to.Is6() {
					at = 21
				}
				want[at] -= 3
				if to.Is4() {
					rehash(want)
				}
				if len(copied) < len(want) || !bytes.Equal(copied[:len(want)], want) {
					t.Errorf("%v: the receiver gets\n% x, want\n% x", to, copied, want)
				}
			}
			if !detects {
				return
			}
			for i, f := range r.nodes {
				got := outcomes(f)
				t.Logf("router %d: %v", i+1, got)
				want := map[string]uint64{"visited": 4 * packets}
				if i == 0 {
					want = map[string]uint64{"inserted": 2 * packets, "looped": 4 * packets}
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("router %d counts %v, want %v", i+1, got, want)
				}
			}
		})
	}
}
