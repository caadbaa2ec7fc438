package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"weir/control/engine"
	forwarding "weir/control/stage/multicast"
	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/multicast"
	"weir/loader"
	"weir/loader/hooks"
	"weir/tests/lab"
	"weir/tests/pins"
	"weir/tests/wait"
)

// router is a router that forwards multicast, and all that can be seen of it.
type router struct {
	*lab.Router
	tx    *lab.Sender
	stack *lab.Receiver // what the router itself receives
	rx    []*lab.Receiver
	next  uint64
}

func newRouter(t *testing.T, ports int) *router {
	t.Helper()
	lab.Root(t)
	if !lab.KernelAtLeast(t, 5, 14) {
		t.Skip("needs Linux 5.14, which copies packets")
	}
	r := &router{Router: lab.NewRouter(t, ports)}
	r.tx, r.stack = r.A.Sender(t), r.B.Receiver(t)
	for _, p := range r.Ports {
		r.rx = append(r.rx, p.Host.Receiver(t))
	}
	return r
}

// multicast returns a generation's forwarding: groups by port.
func (r *router) multicast(max int, groups ...[]netip.Addr) *forwarding.Part {
	m := &forwarding.Part{MaxGroups: max}
	for i, g := range groups {
		m.Ports = append(m.Ports, forwarding.Port{Target: target(r.Ports[i].Port), Groups: g})
	}
	return m
}

// forward attaches a generation that forwards multicast until the test ends.
func (r *router) forward(t *testing.T, m *forwarding.Part) (*engine.Generation, *loader.Attachment) {
	t.Helper()
	g := build(t, lists(block, allow), engine.Config{Parts: []engine.Part{m}})
	r.connect(t, g)
	return g, attachGeneration(t, r.Lab, hooks.Native, g)
}

func (r *router) connect(t *testing.T, g *engine.Generation) {
	t.Helper()
	there, err := forwarding.Of(g).Connect(g.Kernel())
	if err != nil || slices.Contains(there, false) {
		t.Fatalf("ports connected: %v, %v", there, err)
	}
}

func group(s string) netip.Addr { return netip.MustParseAddr(s) }

// toGroup returns a packet to a group, as received from a wire.
func toGroup(src string, to netip.Addr) []byte {
	f := frameOf(key.Tuple{Src: netip.MustParseAddr(src), Dst: to, Proto: 17, HasPorts: true, SrcPort: 1, DstPort: 2})
	b := to.AsSlice()
	if to.Is4() {
		copy(f, []byte{1, 0, 0x5e, b[1] & 0x7f, b[2], b[3]})
		rehash(f)
	} else {
		copy(f, []byte{0x33, 0x33, b[12], b[13], b[14], b[15]})
	}
	return f
}

// rehash sets the checksum of an IPv4 header without options.
func rehash(f []byte) []byte {
	copy(f[24:], []byte{0, 0})
	var sum uint32
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(f[24:], ^uint16(sum))
	return f
}

// withChecksum sets the identification with which a packet's checksum has the
// given value.
func withChecksum(t *testing.T, f []byte, want uint16) []byte {
	t.Helper()
	for id := range 1 << 16 {
		if f := rehash(set(f, 18, byte(id>>8), byte(id))); binary.BigEndian.Uint16(f[24:]) == want {
			return f
		}
	}
	t.Fatalf("no identification results in checksum %#x", want)
	return nil
}

// send sends a frame to its own destination, and returns its number.
func (r *router) send(t *testing.T, frame []byte) uint64 {
	t.Helper()
	r.next++
	f := slices.Concat(frame[:6], r.A.MAC, frame[12:])
	if err := r.tx.Send(lab.Numbered(f, r.next)); err != nil {
		t.Fatal(err)
	}
	return r.next
}

// receive returns the frames of the test that arrive at a receiver, up to the
// one with the last number, by number.
func receive(t *testing.T, rx *lab.Receiver, last uint64) map[uint64][]byte {
	t.Helper()
	got := make(map[uint64][]byte)
	for deadline := wait.Deadline(); got[last] == nil; {
		f, err := rx.Receive(time.Until(deadline))
		if err != nil {
			t.Fatalf("wait for frame %d: %v", last, err)
		}
		if n, ok := lab.NumberOf(f); ok {
			if got[n] != nil {
				t.Errorf("frame %d comes twice", n)
			}
			got[n] = slices.Clone(f)
		}
	}
	return got
}

// Each port gets the packets of its groups, with one hop less and its own
// source address, and the network stack gets those that no port lists.
func TestMulticast(t *testing.T) {
	r := newRouter(t, 3)
	one, two, all, none := group("239.1.1.1"), group("232.0.0.2"), group("224.0.1.3"), group("239.9.9.9")
	one6, two6, all6, none6 := group("ff0e::1"), group("ff15::2"), group("ff08::3"), group("ff0e::99")
	// The last one, to all ports, shows that all earlier ones have arrived.
	last := group("239.255.255.255")
	m := r.multicast(64,
		[]netip.Addr{one, all, one6, all6, last}, []netip.Addr{two, all, two6, all6, last}, []netip.Addr{two, all, two6, all6, last})
	// The port of origin wants them, too, but has them already.
	m.Ports = append(m.Ports, forwarding.Port{Target: target(r.B), Groups: []netip.Addr{one, two, all, one6, two6, all6, last}})
	g, a := r.forward(t, m)

	const src4, src6 = "198.51.100.1", "2001:dba::1"
	type packet struct {
		name  string
		frame []byte
		ports []int
		drop  bool
	}
	var packets []packet
	for _, p := range []struct {
		to    netip.Addr
		ports []int
	}{
		{one, []int{0}}, {two, []int{1, 2}}, {all, []int{0, 1, 2}}, {none, nil},
		{one6, []int{0}}, {two6, []int{1, 2}}, {all6, []int{0, 1, 2}}, {none6, nil},
	} {
		src := src4
		if p.to.Is6() {
			src = src6
		}
		for i := range 3 {
			packets = append(packets, packet{fmt.Sprintf("%v, packet %d", p.to, i), toGroup(src, p.to), p.ports, false})
		}
	}
	plain, plain6 := toGroup(src4, all), toGroup(src6, all6)
	packets = append(packets,
		packet{"the last hop", rehash(set(plain, 22, 1)), nil, false},
		packet{"the last hop of IPv6", set(plain6, 21, 1), nil, false},
		packet{"a group of the link", toGroup(src4, group("224.0.0.251")), nil, false},
		packet{"an IPv6 group of the link", toGroup(src6, group("ff02::fb")), nil, false},
		packet{"a source of the link", toGroup("169.254.0.1", all), nil, false},
		packet{"an IPv6 source of the link", toGroup("fe80::1", all6), nil, false},
		packet{"IGMP", rehash(set(plain, 23, 2)), nil, false},
		packet{"MLD's header", extend(plain6, 0, make([]byte, 7)...), nil, false},
		packet{"options", forms4["options"](plain), nil, false},
		packet{"VLAN", forms4["VLAN"](plain), nil, false},
		packet{"sent to the router", set(plain, 0, r.B.MAC...), nil, false},
		packet{"an extension header", extend(plain6, 60, make([]byte, 7)...), []int{0, 1, 2}, false},
		packet{"a checksum that overflows", withChecksum(t, plain, 0xfeff), []int{0, 1, 2}, false},
		packet{"a checksum that just does not", withChecksum(t, plain, 0xfefe), []int{0, 1, 2}, false},
		packet{"a listed source", toGroup("192.0.2.1", all), nil, true},
		packet{"a listed IPv6 source", toGroup("2001:db8::1", all6), nil, true},
		packet{"an allowed source", toGroup("192.0.2.65", all), []int{0, 1, 2}, false},
	)
	numbers := make([]uint64, len(packets))
	for i, p := range packets {
		numbers[i] = r.send(t, p.frame)
	}
	stack := receive(t, r.stack, r.send(t, append(make([]byte, 12), 8, 6)))
	end := r.send(t, toGroup(src4, last))
	got := make([]map[uint64][]byte, len(r.rx))
	for i, rx := range r.rx {
		got[i] = receive(t, rx, end)
	}
	for i, p := range packets {
		for port := range r.rx {
			f, want := got[port][numbers[i]], slices.Contains(p.ports, port)
			if (f != nil) != want {
				t.Errorf("%s: came to port %d: %t, want %t", p.name, port+1, f != nil, want)
				continue
			}
			if f != nil {
				checkForwarded(t, p.name, p.frame, f, r.Ports[port].Port.MAC)
			}
		}
		if f, want := stack[numbers[i]], p.ports == nil && !p.drop; (f != nil) != want {
			t.Errorf("%s: came to the router's stack: %t, want %t", p.name, f != nil, want)
		}
	}

	var listed uint64
	perPort := make([]uint64, len(r.rx)+1)
	if c := m.Copies(g.Kernel())[len(m.Ports)]; c != (forwarding.Copies{}) {
		t.Errorf("where packets come from has copies of them: %+v", c)
	}
	for _, p := range append(packets, packet{ports: []int{0, 1, 2}}) {
		if p.ports != nil {
			listed++
		}
		for _, port := range p.ports {
			perPort[port+1]++
		}
	}
	copies := m.Copies(g.Kernel())
	// The kernel's own reports may be among the unlisted ones.
	if c := copies[0]; c.Listed.Packets != listed || c.Unlisted.Packets < 6 {
		t.Errorf("%+v copied, want %d packets, and 6 or more left alone", c, listed)
	}
	for i := 1; i < len(perPort); i++ {
		if c := copies[i]; c.Listed.Packets != perPort[i] || c.Unlisted.Packets != listed-perPort[i] {
			t.Errorf("port %d: %+v, want %d listed and %d unlisted", i, c, perPort[i], listed-perPort[i])
		}
	}
	if a.Stats().Reasons(nil)[8].Packets != 2 {
		t.Error("listed sources are not counted as such")
	}
}

// checkForwarded compares the received frames of a port with the sent ones.
func checkForwarded(t *testing.T, name string, sent, got []byte, port []byte) {
	t.Helper()
	want := slices.Concat(sent[:6], port, sent[12:])
	if want[12] == 0x08 {
		want[22]--
		rehash(want)
	} else {
		want[21]--
	}
	if !slices.Equal(got[:len(want)], want) {
		t.Errorf("%s: came as\n% x, want\n% x", name, got[:len(want)], want)
	}
}

// window is how many frames are under way at most: the wire loses none of them.
const window = 32

// Groups are added and removed under traffic, and generations are exchanged. A
// group that a port lists all the time loses nothing, a port without groups
// gets nothing, and a change is active when the call returns.
func TestMulticastChanges(t *testing.T) {
	t.Parallel()
	r := newRouter(t, 3)
	steady, steady6, changing := group("239.1.1.1"), group("ff0e::1"), group("239.2.2.2")
	// Enough others that the filters' bits are shared.
	var others []netip.Addr
	for i := range 200 {
		others = append(others, netip.AddrFrom4([4]byte{232, 1, byte(i >> 8), byte(i)}))
	}
	m := r.multicast(256, []netip.Addr{steady, steady6}, nil, nil)
	_, a := r.forward(t, m)
	frames := [][]byte{toGroup("198.51.100.1", steady), toGroup("2001:dba::1", steady6), toGroup("198.51.100.1", changing)}

	wanted := false // whether port 2 lists the changing group
	var sent, changes int
	pass := func() {
		t.Helper()
		last := uint64(0)
		var forTwo []uint64
		first := r.next + 1
		for i := range window {
			// The last one is always listed: when it has arrived, so have all
			// others.
			kind := (i + 1) % len(frames)
			n := r.send(t, frames[kind])
			if kind == 2 {
				forTwo = append(forTwo, n)
			} else {
				last = n
			}
			sent++
		}
		got := receive(t, r.rx[0], last)
		for n := first; n < r.next+1; n++ {
			if (got[n] != nil) == slices.Contains(forTwo, n) {
				t.Fatalf("frame %d, of %d changes: came to port 1: %t", n, changes, got[n] != nil)
			}
		}
		if wanted {
			got = receive(t, r.rx[1], forTwo[len(forTwo)-1])
			if len(got) != len(forTwo) {
				t.Fatalf("%d of the %d frames of the group that port 2 lists came there", len(got), len(forTwo))
			}
		}
		empty(t, r.rx[2])
		if !wanted {
			empty(t, r.rx[1])
		}
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); changes++ {
		pass()
		// The change itself meets packets, too.
		during := make(chan error, 1)
		go func() {
			table := m.Table
			for _, o := range others {
				if _, err := table.Add(2, o); err != nil {
					during <- err
					return
				}
			}
			if _, err := table.Add(1, others[0]); err != nil {
				during <- err
				return
			}
			table.Remove(1, others[0])
			for _, o := range others {
				table.Remove(2, o)
			}
			during <- nil
		}()
		pass()
		if err := <-during; err != nil {
			t.Fatal(err)
		}
		if wanted = !wanted; wanted {
			if _, err := m.Table.Add(2, changing); err != nil {
				t.Fatal(err)
			}
		} else {
			m.Table.Remove(2, changing)
		}
		if changes%8 == 7 { // the next generation inherits the groups
			next := &forwarding.Part{Ports: slices.Clone(m.Ports), MaxGroups: m.MaxGroups}
			for i := range next.Ports {
				next.Ports[i].Groups = m.Table.Groups(i + 1)
			}
			m = next
			g := build(t, lists(block, allow), engine.Config{Parts: []engine.Part{m}})
			r.connect(t, g)
			p, err := g.Load(a.Stats())
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Replace(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d frames, %d changes", sent, changes)
	if set, all := m.Table.FalsePositiveRate(3), m.Table.Len(); set != 0 || all > 3 {
		t.Errorf("the port that lists nothing has a rate of %g; %d groups are left", set, all)
	}
}

// empty checks that a receiver has no frame of the test.
func empty(t *testing.T, rx *lab.Receiver) {
	t.Helper()
	for {
		f, err := rx.Receive(0)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := lab.NumberOf(f); ok {
			t.Fatalf("frame %d has come", n)
		}
	}
}

// Filters that are far too small pass the same groups as their twins in Go, at
// the predicted rate and at the one measured in their memory.
func TestMulticastFalsePositives(t *testing.T) {
	r := newRouter(t, 2)
	l := multicast.Layout{Ports: 2, MaxGroups: 300, Lines: 4, First: 2, Rest: 1}
	const seed, probes = 0x5eed, 4096
	secret := hash.NewSecret(hash.Seed{1})
	m := r.multicast(l.MaxGroups, nil, nil)
	m.Layout = l
	maps, err := m.Maps(false)
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := loader.NewGeneration(loader.Config{
		Secret: loader.Secret{Pairs: secret.Pairs, Offsets: secret.Offsets}, Maps: maps, Parts: []loader.Part{m},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	if err := m.Fill(kernel, secret); err != nil {
		t.Fatal(err)
	}
	table := m.Table
	random := rand.New(rand.NewPCG(seed, 0))
	draw := func(first byte) netip.Addr {
		return netip.AddrFrom4([4]byte{first, byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32())})
	}
	for table.Len() < l.MaxGroups {
		if _, err := table.Add(1+table.Len()%2, draw(232)); err != nil {
			t.Fatal(err)
		}
	}
	end := netip.AddrFrom4([4]byte{239, 255, 255, 255})
	for port := range l.Ports {
		table.Remove(port+1, table.Groups(port + 1)[0])
	}
	for port := range l.Ports {
		if _, err := table.Add(port+1, end); err != nil {
			t.Fatal(err)
		}
	}
	if there, err := m.Connect(kernel); err != nil || slices.Contains(there, false) {
		t.Fatal(there, err)
	}
	a, err := pins.Attach(pins.New(t), target(r.B), hooks.Native, nil, kernel.Load)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer a.Detach()

	passed := make([]int, l.Ports)
	for range probes / window {
		groups := make(map[uint64]netip.Addr)
		for range window {
			g := draw(233)
			groups[r.send(t, toGroup("198.51.100.1", g))] = g
		}
		last := r.send(t, toGroup("198.51.100.1", end))
		for i, rx := range r.rx {
			got := receive(t, rx, last)
			for n, g := range groups {
				if want := table.Passes(i+1, g); (got[n] != nil) != want {
					t.Fatalf("group %v: came to port %d: %t, want %t", g, i+1, got[n] != nil, want)
				}
			}
			passed[i] += len(got) - 1
		}
	}
	for i := range l.Ports {
		n := len(table.Groups(i + 1))
		rate, memory := float64(passed[i])/probes, table.FalsePositiveRate(i+1)
		predicted := fpr.CascadeLayout{Lines: l.Lines, First: l.First, Rest: l.Rest}.Rate(n)
		t.Logf("port %d, %d groups: %.4f of the packets, %.4f by its memory, %.4f predicted", i+1, n, rate, memory, predicted)
		// Five standard deviations of the sample; the memory is one of many that
		// such groups could have made.
		if math.Abs(rate-memory) > 5*math.Sqrt(memory*(1-memory)/probes) {
			t.Errorf("port %d: %.4f of unlisted packets came there, where its memory has %.4f", i+1, rate, memory)
		}
		if memory < predicted/1.5 || memory > predicted*1.5 {
			t.Errorf("port %d: a rate of %.4f by its memory, predicted %.4f", i+1, memory, predicted)
		}
	}
}

// A port that has left the router's namespace and returned has its groups
// again, although it is the same interface with the same index.
func TestMulticastPortReturns(t *testing.T) {
	r := newRouter(t, 1)
	g1 := group("239.1.1.1")
	g, _ := r.forward(t, r.multicast(16, []netip.Addr{g1}))
	frame := toGroup("198.51.100.1", g1)
	receive(t, r.rx[0], r.send(t, frame))
	r.Ports[0].LeaveAndReturn(t)
	r.connect(t, g)
	receive(t, r.rx[0], r.send(t, frame))

	renamed := r.Ports[0].Port.Rename(t, "other")
	if there, err := forwarding.Of(g).Connect(g.Kernel()); err != nil || there[0] {
		t.Fatalf("connected: %v, %v", there, err)
	}
	lost := r.send(t, frame)
	renamed.Rename(t, "out1")
	r.connect(t, g)
	if got := receive(t, r.rx[0], r.send(t, frame)); got[lost] != nil {
		t.Error("another interface than the port has got a packet")
	}
}
