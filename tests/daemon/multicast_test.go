package daemon

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// stream sends multicast to a router continuously, and records what each host
// behind it receives.
type stream struct {
	*lab.Router
	t      testing.TB
	frames [][]byte // by group, in turns
	sent   atomic.Uint64
	done   atomic.Bool
	sender sync.WaitGroup

	receivers sync.WaitGroup
	over      atomic.Bool
	came      []map[uint64]bool // by port; to be read when it is over
	reached   atomic.Uint64     // the last packet that came to the first port
}

const (
	// Packets a second: enough to be there at every change.
	multicastRate = 4000
	// A number that does not fill a wire's queue.
	multicastInQueue = 128
)

func startStream(t testing.TB, r *lab.Router, groups ...netip.Addr) *stream {
	t.Helper()
	s := &stream{Router: r, t: t, came: make([]map[uint64]bool, len(r.Ports))}
	for _, g := range groups {
		src, mac := netip.MustParseAddr("198.51.100.1"), []byte{1, 0, 0x5e, 1, 1, 1}
		if g.Is6() {
			src, mac = netip.MustParseAddr("2001:db8::1"), []byte{0x33, 0x33, 0, 0, 0, 1}
		}
		f := packet.Frame(key.Tuple{Src: src, Dst: g, Proto: 17, HasPorts: true, SrcPort: 1, DstPort: 2})
		s.frames = append(s.frames, lab.Numbered(slices.Concat(mac, r.A.MAC, f[12:]), uint64(cleanKind)<<56))
	}
	for i, p := range r.Ports {
		s.came[i] = make(map[uint64]bool)
		rx := p.Host.Receiver(t)
		s.receivers.Go(func() { s.receive(rx, i) })
	}
	t.Cleanup(func() { s.end() })
	tx := r.A.Sender(t)
	s.sender.Go(func() { s.send(tx) })
	return s
}

func (s *stream) send(tx *lab.Sender) {
	began := time.Now()
	for !s.done.Load() {
		due := min(uint64(time.Since(began).Seconds()*multicastRate), s.reached.Load()+multicastInQueue)
		for range min(16, due-min(due, s.sent.Load())) {
			n := s.sent.Add(1)
			f := s.frames[n%uint64(len(s.frames))]
			renumber(f, n)
			if err := tx.Send(f); err != nil {
				s.t.Errorf("send: %v", err)
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
}

func (s *stream) receive(rx *lab.Receiver, port int) {
	for {
		f, err := rx.Receive(50 * time.Millisecond)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if s.over.Load() {
				return
			}
			continue
		}
		if err != nil {
			s.t.Errorf("receive: %v", err)
			return
		}
		if kind, n := numberOf(f); kind == cleanKind {
			s.came[port][n] = true
			if port == 0 {
				s.reached.Store(n)
			}
		}
	}
}

// mark returns the number of the last packet sent, once it has passed: a later
// one has reached the first port, which lists the first group.
func (s *stream) mark() uint64 {
	s.t.Helper()
	time.Sleep(100 * time.Millisecond)
	n := s.sent.Load()
	for deadline := wait.Deadline(); s.reached.Load() <= n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("nothing comes to the first port behind packet %d", n)
		}
	}
	return n
}

func (s *stream) end() {
	s.done.Store(true)
	s.sender.Wait()
	s.over.Store(true)
	s.receivers.Wait()
}

// spans are numbers of packets, from one up to another.
type span struct{ from, to uint64 }

// check fails for packets of a group that have wrongly reached or missed a
// port, given the spans in which it must or must not receive them.
func (s *stream) check(what string, group, port int, want bool, spans ...span) {
	s.t.Helper()
	checked, wrong := 0, 0
	for _, span := range spans {
		for n := span.from; n < span.to; n++ {
			if n%uint64(len(s.frames)) != uint64(group) {
				continue
			}
			if checked++; s.came[port][n] != want {
				if wrong++; wrong == 1 {
					s.t.Errorf("%s, packet %d: came to port %d: %t", what, n, port+1, !want)
				}
			}
		}
	}
	if wrong > 0 || checked == 0 {
		s.t.Errorf("%s, port %d: %d of %d packets are wrong", what, port+1, wrong, checked)
	}
}

func (h *host) groups(iface string, remove bool, groups ...string) {
	h.t.Helper()
	c, err := h.api.ChangeMulticast(h.t.Context(), api.MulticastChange{Remove: remove, Interface: iface, Groups: groups})
	if err != nil {
		h.t.Fatal(err)
	}
	if c.Added+c.Removed != len(groups) || remove == (c.Added > 0) {
		h.t.Errorf("%d groups changed (removed: %t) as %+v", len(groups), remove, c)
	}
}

// A router with three ports. Groups are added and removed manually, lists and
// configuration are reloaded, the daemon is killed: a group that a port wants
// all the time loses no packet, one that it does not want never reaches it, and
// a manual change is active when the command returns and survives the daemon.
func TestMulticast(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	const steady, steady6, changing, unwanted = 0, 1, 2, 3
	r := lab.NewRouter(t, 3)
	h := hostAt(t, r.Lab)
	configure := func(more string) {
		h.configure(h.B.Iface, "lists: {always: {%s}}\nmulticast: {max_groups: 64, interfaces: [{name: out1, groups: [239.1.1.1, \"ff0e::1\"]}, out2, %s]}\n",
			h.feed(1000), more)
	}
	configure("out3")
	d := h.start(releases[0])
	s := startStream(t, r, netip.MustParseAddr("239.1.1.1"), netip.MustParseAddr("ff0e::1"), netip.MustParseAddr("239.2.2.2"), netip.MustParseAddr("239.3.3.3"))
	begin := s.mark() + 1

	var wanted, not []span
	toggle := func() {
		t.Helper()
		before := s.mark()
		if len(not) > 0 {
			not[len(not)-1].to = before
		}
		h.groups("out2", false, "239.2.2.2", "ff0e::2")
		wanted = append(wanted, span{from: s.sent.Load() + 1})
		wanted[len(wanted)-1].to = s.mark()
		h.groups("out2", true, "239.2.2.2", "ff0e::2")
		not = append(not, span{from: s.sent.Load() + 1})
	}
	for range long.Rounds(3, 20, 60) {
		toggle()
	}
	// Others, with shared bits, are added and removed meanwhile.
	var others []string
	for i := range 32 {
		others = append(others, netip.AddrFrom4([4]byte{232, 1, 1, byte(i)}).String())
	}
	h.groups("out1", false, others...)
	h.groups("out1", true, others...)
	h.feed(2000)
	h.refresh("always", 2000)
	toggle()
	// Kept by the journal, of which the filter in the kernel needs nothing.
	not[len(not)-1].to = s.mark()
	h.groups("out2", false, "239.2.2.2")
	kept := span{from: s.sent.Load() + 1}
	d.complain()
	d.kill()
	kept.to = s.mark()
	d = h.start(releases[1])
	kept.to = s.mark()
	h.shows("out2", api.MulticastGroup{Group: "239.2.2.2"})
	// The next configuration, with one group more. The counters go on.
	configure("{name: out3, groups: [239.4.4.4]}")
	before := h.multicast()
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := h.multicast()
	if before.Copied == 0 || after.Copied < before.Copied || after.Left < before.Left || after.Interfaces[0].Sent < before.Interfaces[0].Sent {
		t.Errorf("after a reload %+v, before it %+v", after, before)
	}
	kept.to = s.mark()
	h.shows("out3", api.MulticastGroup{Group: "239.4.4.4", Configured: true})
	d.complain()
	// A port that disappears and returns has its groups again.
	renamed := r.Ports[1].Port.Rename(t, "gone")
	d.await(0, "multicast cannot be forwarded")
	gone := span{from: s.sent.Load() + 1}
	gone.to = s.mark()
	line := d.logged()
	renamed.Rename(t, "out2")
	d.await(line, "multicast is forwarded")
	back := span{from: s.sent.Load() + 1}
	back.to = s.mark()
	// So fast that it may not be noticed: the kernel has let go of it all the same.
	r.Ports[1].LeaveAndReturn(t)
	time.Sleep(3 * time.Second)
	again := span{from: s.sent.Load() + 1}
	again.to = s.mark()

	all := span{begin, s.mark()}
	m := h.multicast()
	t.Logf("%d packets; %+v", all.to-all.from, m)
	if m.Copied == 0 || m.Left == 0 || m.Interfaces[0].Sent == 0 || m.Interfaces[2].Sent != 0 || m.Interfaces[2].Dropped == 0 ||
		m.Groups != 4 || m.MaxGroups != 64 || m.Planned > 1e-6 || m.Interfaces[0].FalsePositiveRate > m.Planned {
		t.Errorf("reported: %+v", m)
	}
	s.end()
	s.check("always wanted", steady, 0, true, all)
	s.check("always wanted, IPv6", steady6, 0, true, all)
	s.check("wanted", changing, 1, true, append(wanted, kept, back, again)...)
	s.check("no longer wanted", changing, 1, false, append(not, gone)...)
	for port := range r.Ports {
		s.check("never wanted", unwanted, port, false, all)
		if port > 0 {
			s.check("wanted elsewhere", steady, port, false, all)
			s.check("wanted elsewhere, IPv6", steady6, port, false, all)
		}
	}
	s.check("wanted elsewhere", changing, 0, false, all)
	s.check("wanted elsewhere", changing, 2, false, all)
}

// multicast returns the daemon's report on forwarding.
func (h *host) multicast() *api.Multicast {
	h.t.Helper()
	m, err := h.api.Multicast(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return m
}

// shows checks that a group is reported for an interface, with its origin.
func (h *host) shows(iface string, want api.MulticastGroup) {
	h.t.Helper()
	m := h.multicast()
	for _, i := range m.Interfaces {
		for _, g := range i.Groups {
			if i.Name == iface && g.Group == want.Group && g.Configured == want.Configured && (g.Added == nil) == want.Configured {
				return
			}
		}
	}
	h.t.Errorf("no group %+v of %s: %+v", want, iface, m)
}

// Impossible changes are rejected, and change nothing.
func TestMulticastRefused(t *testing.T) {
	t.Parallel()
	r := lab.NewRouter(t, 1)
	h := hostAt(t, r.Lab)
	h.configure(h.B.Iface, "lists: {always: {%s}}\n", h.feed(10))
	h.start(releases[0])
	change := func(c api.MulticastChange, want string) {
		t.Helper()
		if _, err := h.api.ChangeMulticast(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", c, err, want)
		}
	}
	change(api.MulticastChange{Interface: "out1", Groups: []string{"239.1.1.1"}}, "forwards no multicast")
	if _, err := h.api.Multicast(t.Context()); err == nil {
		t.Error("multicast is reported where there is none")
	}
	h.configure(h.B.Iface, "lists: {always: {%s}}\nmulticast: {max_groups: 3, interfaces: [{name: out1, groups: [239.1.1.1]}]}\n", h.feed(10))
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	change(api.MulticastChange{Interface: "out9", Groups: []string{"239.1.1.1"}}, "out9")
	change(api.MulticastChange{Interface: "out1", Groups: []string{"239.1.1.1"}, Remove: true}, "configuration")
	change(api.MulticastChange{Interface: "out1", Groups: []string{"239.1.1.2", "224.0.0.1"}}, "no router forwards")
	change(api.MulticastChange{Interface: "out1", Groups: []string{"239.1.1.2", "239.1.1.3", "239.1.1.4"}}, "max_groups")
	if m := h.multicast(); m.Groups != 1 {
		t.Errorf("%+v", m)
	}
	h.groups("out1", false, "239.1.1.2", "239.1.1.3")
	// One that is there already takes no room.
	if c, err := h.api.ChangeMulticast(t.Context(), api.MulticastChange{Interface: "out1", Groups: []string{"239.1.1.2", "239.1.1.1"}}); err != nil || c.Unchanged != 2 {
		t.Errorf("%+v, %v", c, err)
	}
}

// Groups that were added to an interface which the configuration no longer
// names are reported, can be removed, and return with the interface.
func TestGroupsOfNoInterface(t *testing.T) {
	t.Parallel()
	r := lab.NewRouter(t, 1)
	h := hostAt(t, r.Lab)
	reload := func(multicast string) {
		t.Helper()
		h.configure(h.B.Iface, "lists: {always: {%s}}\n%s\n", h.feed(10), multicast)
		if _, err := h.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	shows := func(want ...api.MulticastInterface) {
		t.Helper()
		m := h.multicast()
		for i := range m.Interfaces {
			if i >= len(want) {
				break
			}
			got, want := m.Interfaces[i], want[i]
			if got.Name != want.Name || got.Configured != want.Configured || len(got.Groups) != len(want.Groups) {
				t.Errorf("%+v, want %+v", got, want)
				continue
			}
			for k, g := range got.Groups {
				if g.Group != want.Groups[k].Group || g.Added == nil {
					t.Errorf("%s: group %+v, want %+v", got.Name, g, want.Groups[k])
				}
			}
		}
		if len(m.Interfaces) != len(want) {
			t.Errorf("%+v, want %+v", m.Interfaces, want)
		}
	}
	h.configure(h.B.Iface, "lists: {always: {%s}}\nmulticast: {interfaces: [out1]}\n", h.feed(10))
	h.start(releases[0])
	h.groups("out1", false, "239.1.1.3", "239.1.1.1", "ff0e::2")
	group := func(s string) api.MulticastGroup { return api.MulticastGroup{Group: s} }
	all := []api.MulticastGroup{group("239.1.1.1"), group("239.1.1.3"), group("ff0e::2")}
	reload("multicast: {interfaces: [out2]}")
	shows(api.MulticastInterface{Name: "out2", Configured: true}, api.MulticastInterface{Name: "out1", Groups: all})
	if _, err := h.api.ChangeMulticast(t.Context(), api.MulticastChange{Interface: "out1", Groups: []string{"239.1.1.2"}}); err == nil {
		t.Error("a group was added to an interface that is not configured")
	}
	h.groups("out1", true, "239.1.1.1")
	reload("")
	shows(api.MulticastInterface{Name: "out1", Groups: all[1:]})
	c, err := h.api.ChangeMulticast(t.Context(), api.MulticastChange{Interface: "out1", Remove: true, Groups: []string{"239.1.1.3", "239.1.1.3", "239.1.1.1"}})
	if err != nil || c.Removed != 1 || c.Unchanged != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	reload("multicast: {interfaces: [out1]}")
	shows(api.MulticastInterface{Name: "out1", Configured: true, Groups: all[2:]})
	h.groups("out1", true, "ff0e::2")
	reload("")
	if _, err := h.api.Multicast(t.Context()); err == nil {
		t.Error("multicast is reported where there is none")
	}
}
