package attach

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weir/control/engine"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/wait"
)

// served is a manager whose loop runs until the test ends.
type served struct {
	*Manager
	t  *testing.T
	do chan func()
}

func serve(t *testing.T, c Config, targets []Target) *served {
	t.Helper()
	c.Log = slog.New(slog.DiscardHandler) // a test reads the other one meanwhile
	m := begin(t, c, targets)
	s := &served{m, t, make(chan func())}
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		tick := time.NewTicker(FollowInterval)
		defer tick.Stop()
		var err error
		for err == nil {
			err = m.Follow()
			select {
			case <-stop:
				done <- err
				return
			case fn := <-s.do:
				fn()
			case <-m.Changed():
			case <-tick.C:
			}
		}
		<-stop
		done <- err
	}()
	t.Cleanup(func() {
		close(stop)
		if err := errors.Join(<-done, m.Stop(false)); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Do calls fn in the manager's loop.
func (s *served) Do(fn func() error) error {
	done := make(chan error)
	s.do <- func() { done <- fn() }
	return <-done
}

// busy keeps the manager's loop busy until done is called, which waits for fn.
func (s *served) busy(fn func() error) (done func()) {
	began, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.Do(func() error { close(began); <-goOn; return fn() })
	}()
	<-began
	end := sync.OnceFunc(func() {
		close(goOn)
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(end) // where the test ends before
	return end
}

// until waits until so returns true in the manager's loop.
func (s *served) until(what string, so func() bool) {
	s.t.Helper()
	wait.For(s.t, what, func() (is bool) {
		if err := s.Do(func() error { is = so(); return nil }); err != nil {
			s.t.Fatal(err)
		}
		return is
	})
}

// filtering reports whether these interfaces are filtered, and no others.
func (s *served) filtering(names ...string) func() bool {
	return func() bool {
		there := []string{}
		for _, h := range s.interfaces {
			if h.filtered() {
				there = append(there, h.Target.Iface)
			}
		}
		slices.Sort(there)
		return slices.Equal(there, names)
	}
}

// ready reports whether n programs of the current engine are preloaded.
func (s *served) ready(n int) func() bool {
	return func() bool {
		s.hotplug.mu.Lock()
		defer s.hotplug.mu.Unlock()
		return len(s.hotplug.preloaded) == n &&
			!slices.ContainsFunc(s.hotplug.preloaded, func(p *preloaded) bool { return p.engine != s.engine })
	}
}

// at calls fn in the end's namespace.
func at(t *testing.T, e lab.End, fn func() error) {
	t.Helper()
	var err error
	e.In(t, func() { err = fn() })
	if err != nil {
		t.Fatal(err)
	}
}

func addVeth(name string) func() error {
	return func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "peer-" + name})
	}
}

func with(name string, fn func(netlink.Link) error) func() error {
	return func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return fn(l)
	}
}

func pinned(t *testing.T, c Config) (names []string) {
	t.Helper()
	all, err := ReadStatus(c.Pins)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		names = append(names, i.Name)
	}
	slices.Sort(names)
	return names
}

// What only a pattern names is filtered while it is there, and leaves nothing
// behind, neither when it ends nor when it moves to another namespace.
func TestPattern(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	c, targets := options(t, &log, l.B)
	targets[0].Iface = "wan*"
	f := serve(t, c, targets)
	f.until("programs wait", f.ready(maxPreloaded))
	for _, name := range []string{"wan1", "wan2", "lan1", "wan3"} { // more than programs wait
		at(t, l.B, addVeth(name))
	}
	f.until("all are filtered", f.filtering("wan1", "wan2", "wan3"))
	f.until("the next programs wait", f.ready(maxPreloaded))
	for _, i := range states(t, c.Pins) {
		if i.Entries != 1 || i.PID != os.Getpid() || i.Severed {
			t.Errorf("described as %+v", i)
		}
	}

	other := []Target{{Target: targets[0].Target, XDP: hooks.Generic}}
	err := f.Do(func() error { return f.reconfigure(t, other) })
	if err == nil || !strings.Contains(err.Error(), "from native to generic") {
		t.Errorf("another mode for interfaces that are filtered: %v", err)
	}

	var before []State
	if err := f.Do(func() error { before = f.Interfaces(); return nil }); err != nil {
		t.Fatal(err)
	}
	at(t, l.B, with("wan1", netlink.LinkDel))
	at(t, l.B, with("wan2", moveTo(l.A)))
	f.until("those are given up", f.filtering("wan3"))
	for _, s := range before {
		if now, is := s.Now(); is != (s.Iface == "wan3") {
			t.Errorf("after wan1 and wan2 have gone: %s is %+v", s.Iface, now)
		}
	}
	at(t, l.A, with("wan2", func(i netlink.Link) error {
		if xdp := i.Attrs().Xdp; xdp != nil && xdp.Attached {
			t.Error("filtered where nothing is to be filtered")
		}
		return nil
	}))
	if got := pinned(t, c); !slices.Equal(got, []string{"wan1", "wan3"}) {
		t.Errorf("pinned: %v", got)
	}
	f.until("what is gone is forgotten", func() bool {
		for _, h := range f.interfaces {
			h.gone = h.gone.Add(-goneFor)
		}
		return len(f.interfaces) == 1
	})
	if got := pinned(t, c); !slices.Equal(got, []string{"wan3"}) {
		t.Errorf("pinned when it is forgotten: %v", got)
	}
}

// No program waits for an interface that is filtered, or is not to be any more.
func TestPreloaded(t *testing.T) {
	named, pattern := Target{Target: netif.Target{Iface: "wan1"}}, Target{Target: netif.Target{Iface: "wan*"}}
	for _, c := range []struct {
		targets    []Target
		lost       []netif.Target
		interfaces []*managedInterface
		want       int
	}{
		{[]Target{named}, nil, nil, 1},
		{[]Target{named}, nil, []*managedInterface{{Target: named.Target}}, 1},
		{[]Target{named}, nil, []*managedInterface{{Target: named.Target, Attachment: &loader.Attachment{}}}, 0},
		{[]Target{named}, []netif.Target{named.Target}, nil, 0},
		{[]Target{pattern}, []netif.Target{named.Target}, nil, maxPreloaded},
	} {
		s := newHotplug(Config{})
		s.setTargets(nil, c.targets, c.lost, c.interfaces)
		if n, _ := s.wanted(); n[kind{}] != c.want {
			t.Errorf("%v, lost %v, %d held: %d programs wait, want %d", c.targets, c.lost, len(c.interfaces), n[kind{}], c.want)
		}
	}
}

// leave ends a manager as if its process had ended, and leaves its programs filtering.
func (m *Manager) leave(t *testing.T) {
	t.Helper()
	for _, h := range m.interfaces {
		d, err := MetadataOf(h.Attachment)
		if err != nil {
			t.Fatal(err)
		}
		d.PID = 1 << 30
		about, err := d.Encode()
		if err == nil {
			err = h.SetMetadata(about)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Stop(true); err != nil {
		t.Fatal(err)
	}
}

// What went while no weir ran is tidied up, where only a pattern names it.
func TestTidy(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	c, targets := options(t, &log, l.B)
	at(t, l.B, addVeth("wan1"))
	targets = append(targets, Target{Target: netif.Target{Netns: l.B.Netns, Iface: "wan1"}})
	f := begin(t, c, targets)
	f.leave(t)
	at(t, l.B, with("wan1", netlink.LinkDel))
	for _, step := range []struct {
		second string
		want   []string
	}{{"wan1", []string{l.B.Iface, "wan1"}}, {"lan*", []string{l.B.Iface, "wan1"}}, {"wan*", []string{l.B.Iface}}} {
		targets[1].Iface = step.second
		if err := begin(t, c, targets).Stop(true); err != nil {
			t.Fatal(err)
		}
		if got := pinned(t, c); !slices.Equal(got, step.want) {
			t.Errorf("%s: pinned %v, want %v", step.second, got, step.want)
		}
	}
}

// An interface that is made while the filter is busy, building a generation, is
// filtered all the same, by the active lists, and by the next ones with
// all others.
func TestBusy(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	c, targets := options(t, &log, l.B)
	targets = append(targets, Target{Target: netif.Target{Netns: l.B.Netns, Iface: "wan*"}})
	f := serve(t, c, targets)
	f.until("programs wait", f.ready(maxPreloaded))
	filtered := func(name string) (program uint32) {
		t.Helper()
		for deadline := wait.Deadline(); ; time.Sleep(time.Millisecond) {
			at(t, l.B, with(name, func(i netlink.Link) error {
				if xdp := i.Attrs().Xdp; xdp != nil {
					program = xdp.ProgId
				}
				return nil
			}))
			if program != 0 {
				return program
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s is not filtered", name)
			}
		}
	}
	done := f.busy(func() error {
		return f.reload(t, "10.0.0.1\n10.0.0.2\n") // which knows nothing of it
	})
	at(t, l.B, addVeth("wan1"))
	first := filtered("wan1")
	done()
	f.until("it is taken in", f.filtering(l.B.Iface, "wan1"))
	f.until("the next programs wait", f.ready(maxPreloaded))
	last := filtered("wan1")
	if last == first {
		t.Error("it is filtered by the lists of before")
	}
	// One that comes back while the filter is busy has its program again, too.
	done = f.busy(func() error { return nil })
	at(t, l.B, with("wan1", netlink.LinkDel))
	at(t, l.B, addVeth("wan1"))
	if got := filtered("wan1"); got != last {
		t.Errorf("filtered by program %d when it is back, not by %d", got, last)
	}
	done()
	f.until("it is filtered for good", f.filtering(l.B.Iface, "wan1"))
	all, err := ReadStatus(c.Pins)
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, i := range all {
		if i.Entries != 2 || i.Severed {
			t.Errorf("described as %+v", i)
		}
	}
}

// A namespace that is made later is looked at as any other, and one that is deleted
// is not kept alive.
func TestNamespaceComesLater(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	c, targets := options(t, &log, l.B)
	f := serve(t, c, targets)
	posted := func(n int) func() bool { return func() bool { return len(f.hotplug.watches) == n } }
	f.until("the namespace is looked at", posted(1))

	later := lab.New(t).B
	next := append(slices.Clone(targets), Target{Target: netif.Target{Netns: later.Netns, Iface: "wan1"}},
		Target{Target: netif.Target{Netns: "weir-no-such", Iface: "wan1"}})
	if err := f.Do(func() error { return f.reconfigure(t, next) }); err != nil {
		t.Fatal(err)
	}
	f.until("the namespace of the new configuration is looked at", posted(2))
	f.until("programs wait", f.ready(maxPreloaded))
	at(t, later, addVeth("wan1"))
	f.until("it is filtered", f.filtering(l.B.Iface, "wan1"))

	if err := netns.DeleteNamed(later.Netns); err != nil {
		t.Fatal(err)
	}
	f.until("the namespace is left", posted(1))
	a, err := c.Pins.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range a {
		defer a.Close()
	}
	for deadline := wait.Deadline(); !slices.ContainsFunc(a, (*loader.Attachment).Severed); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the interface of a namespace that was deleted lives on")
		}
	}
	// The next namespace of that name is another.
	at(t, l.A, func() error { // on a thread that comes back
		ns, err := netns.NewNamed(later.Netns)
		if err != nil {
			return err
		}
		defer ns.Close()
		return addVeth("wan1")()
	})
	f.until("it is filtered again", f.filtering(l.B.Iface, "wan1"))
}

// An interface of the same name and index as one that is filtered, which lives on elsewhere, is
// filtered in its place: in the next namespace of that name while something keeps the first, and
// where the first interface has left the namespace.
func TestSameIndexElsewhere(t *testing.T) {
	for _, hook := range []hooks.Hook{hooks.Native, hooks.TC} {
		for _, how := range []string{"namespace replaced", "interface moved"} {
			t.Run(hook.String()+", "+how, func(t *testing.T) {
				l := lab.New(t)
				c, targets := options(t, new(bytes.Buffer), l.B)
				targets[0].Iface, targets[0].XDP = "wan1", hook
				const index = 77 // which is free elsewhere
				add := func(peer string) error {
					return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wan1", Index: index}, PeerName: peer})
				}
				at(t, l.B, func() error { return add("peer1") })
				s := serve(t, c, targets)
				s.until("it is filtered", s.filtering("wan1"))
				s.until("all is as it is to be", s.isUnchanged)
				if how == "interface moved" {
					at(t, l.B, with("wan1", func(i netlink.Link) error {
						return errors.Join(moveTo(l.A)(i), add("peer2"))
					}))
				} else {
					var kept netns.NsHandle
					at(t, l.B, func() (err error) { kept, err = netns.Get(); return err })
					defer kept.Close()
					if err := netns.DeleteNamed(l.B.Netns); err != nil {
						t.Fatal(err)
					}
					at(t, l.A, func() error { // on a thread that comes back
						ns, err := netns.NewNamed(l.B.Netns)
						if err != nil {
							return err
						}
						defer ns.Close()
						return add("peer2")
					})
				}
				wait.For(t, "the next one is filtered", func() bool { return hasProgram(t, l.B, "wan1") })
				s.until("it is taken in", s.filtering("wan1"))
				s.until("all is as it is to be again", s.isUnchanged)
			})
		}
	}
}

// At TC, an interface that comes back with Ethernet headers, or without, takes another program
// than before, and gets it.
func TestOtherFrames(t *testing.T) {
	bare := func() error {
		return netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN})
	}
	ethernet := addVeth("tun0")
	for _, c := range []struct {
		name        string
		first, next func() error
	}{{"tun, then veth", bare, ethernet}, {"veth, then tun", ethernet, bare}} {
		t.Run(c.name, func(t *testing.T) {
			l := lab.New(t)
			config, targets := options(t, new(bytes.Buffer), l.B)
			targets[0].Iface, targets[0].XDP = "tun0", hooks.TC
			at(t, l.B, c.first)
			s := serve(t, config, targets)
			s.until("it is filtered", s.filtering("tun0"))
			at(t, l.B, with("tun0", netlink.LinkDel))
			s.until("it is gone", s.filtering())
			at(t, l.B, c.next)
			s.until("the next one is filtered", s.filtering("tun0"))
			if !hasProgram(t, l.B, "tun0") {
				t.Error("no program is there")
			}
		})
	}
}

// moveTo moves an interface to the namespace of an end.
func moveTo(e lab.End) func(netlink.Link) error {
	return func(i netlink.Link) error {
		there, err := netns.GetFromName(e.Netns)
		if err != nil {
			return err
		}
		defer there.Close()
		return netlink.LinkSetNsFd(i, int(there))
	}
}

// An interface that gets the name of one that is filtered is filtered in its
// place; two that exchange their names stay filtered.
func TestNamesMove(t *testing.T) {
	l := lab.New(t)
	rename := func(from, to string) {
		t.Helper()
		at(t, l.B, with(from, func(i netlink.Link) error {
			return errors.Join(netlink.LinkSetDown(i), netlink.LinkSetName(i, to), netlink.LinkSetUp(i))
		}))
	}
	number := func(name string) (n int) {
		t.Helper()
		at(t, l.B, with(name, func(i netlink.Link) error { n = i.Attrs().Index; return nil }))
		return n
	}
	c, targets := options(t, new(bytes.Buffer), l.B)
	at(t, l.B, addVeth("other"))
	s := serve(t, c, targets)
	name := l.B.Iface
	filters := func(name string, n int) func() bool {
		return func() bool {
			return slices.ContainsFunc(s.interfaces, func(h *managedInterface) bool {
				if h.Target.Iface != name || !h.filtered() {
					return false
				}
				index, err := h.Index()
				return err == nil && index == n
			})
		}
	}
	other := number("other")
	rename(name, "was")
	rename("other", name)
	s.until("what has the name is filtered", filters(name, other))

	targets = append(slices.Clone(targets), Target{Target: netif.Target{Netns: l.B.Netns, Iface: "was"}})
	if err := s.Do(func() error { return s.reconfigure(t, targets) }); err != nil {
		t.Fatal(err)
	}
	was := number("was")
	s.until("both are filtered", filters("was", was))
	before := make(map[*managedInterface]uint32)
	for _, h := range s.interfaces {
		before[h] = h.ProgramID()
	}
	rename(name, "third")
	rename("was", name)
	rename("third", "was")
	time.Sleep(3 * FollowInterval)
	s.until("both stay filtered", func() bool {
		for _, h := range s.interfaces {
			if !h.filtered() || before[h] != h.ProgramID() {
				return false
			}
		}
		return len(s.interfaces) == 2
	})
}

// What is configured for some interfaces holds for those that have their names now: for one that
// is renamed, and for one that appears where a glob before its name covers it, too.
func TestNamesHaveRules(t *testing.T) {
	for _, c := range []struct {
		name    string
		targets []string // beside those of the end's first name
		now     string
	}{
		{"renamed", []string{"now*"}, "now0"},
		{"appears", []string{"no*", "now0"}, "now0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := lab.New(t)
			conf, targets := options(t, new(bytes.Buffer), l.B)
			if c.name == "appears" {
				targets = nil
			}
			for _, name := range c.targets {
				targets = append(targets, Target{Target: netif.Target{Netns: l.B.Netns, Iface: name}})
			}
			conf.Log = slog.New(slog.DiscardHandler)
			rules := []engine.List{{Name: "here", Contents: parse(t, "192.0.2.1\n"), Rule: &verdict.Rule{Interfaces: []string{c.now}}}}
			g, err := engine.Build(rules, engine.Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { g.Close() })
			d := Describe(g, engine.Config{}, []List{{Name: "here", Entries: 1}})
			m := NewManager(conf)
			if err := m.Start(g, d, targets); err != nil {
				t.Fatal(err)
			}
			defer m.Stop(false)
			follow := func() bool {
				if err := m.Follow(); err != nil {
					t.Fatal(err)
				}
				return slices.ContainsFunc(m.interfaces, func(i *managedInterface) bool {
					return i.Target.Iface == c.now && i.filtered() && i.engine == nil
				})
			}
			at(t, l.B, with(l.B.Iface, func(i netlink.Link) error {
				return errors.Join(netlink.LinkSetDown(i), netlink.LinkSetName(i, c.now), netlink.LinkSetUp(i))
			}))
			l.B.Iface = c.now
			wait.For(t, "it is filtered by its name", follow)
			f := append(make([]byte, 12), 8, 0,
				0x45, 0, 0, 28, 0, 1, 0, 0, 60, 17, 0, 0, 192, 0, 2, 1, 203, 0, 113, 1, // IPv4
				0, 5, 0, 9, 0, 8, 0, 0) // UDP
			if through := lab.NewProbe(t, l).Pass(t, f); through[0] != nil {
				t.Error("a packet passes that a list for this name has")
			}
		})
	}
}

// An interface whose outgoing packets hotplug begins to filter while that is being switched off.
func TestAppearsAtTheEndOfEgress(t *testing.T) {
	l := lab.New(t)
	conf, _ := options(t, new(bytes.Buffer), l.B)
	conf.Log = slog.New(slog.DiscardHandler)
	in := Target{Target: netif.Target{Netns: l.B.Netns, Iface: "wan*"}}
	out := in
	out.Out, out.XDP = true, hooks.TC
	both := engine.Config{Outgoing: true}
	g, d := buildKernel(t, "10.0.0.1\n", both, 1)
	m := NewManager(conf)
	if err := m.Start(g, d, []Target{in, out}); err != nil {
		t.Fatal(err)
	}
	defer m.Stop(false)
	if err := m.Follow(); err != nil {
		t.Fatal(err)
	}
	next, d := buildKernel(t, "10.0.0.1\n", engine.Config{}, 1)
	r, err := m.Prepare(next, d, []Target{in})
	if err != nil {
		t.Fatal(err)
	}
	at(t, l.B, addVeth("wan1"))
	wait.For(t, "hotplug has attached", func() bool {
		m.hotplug.mu.Lock()
		defer m.hotplug.mu.Unlock()
		return len(m.hotplug.arrived) == 2
	})
	if err := r.Commit(); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "only what comes in is filtered", func() bool {
		if err := m.Follow(); err != nil {
			t.Fatal(err)
		}
		return len(m.interfaces) == 1 && m.interfaces[0].filtered() && m.interfaces[0].engine == nil
	})
	if got := pinned(t, conf); !slices.Equal(got, []string{"wan1"}) {
		t.Errorf("pinned: %v", got)
	}
}

// What the hotplug has met with an earlier generation is described as soon as that
// can be done.
func TestBringUp(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	c, targets := options(t, &log, l.B)
	f := begin(t, c, targets)
	defer f.Stop(false)
	h := f.interfaces[0]
	h.engine = &engine.Generation{} // an earlier one
	for _, step := range []struct {
		about  string
		logged int
	}{{`"damaged"`, 1}, {`"damaged"`, 1}, {`{"entries": 7}`, 1}} {
		if err := h.SetMetadata([]byte(step.about)); err != nil {
			t.Fatal(err)
		}
		if err := f.Follow(); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(log.String(), "weir status shows the previous lists"); n != step.logged {
			t.Errorf("%s: logged %d times, want %d:\n%s", step.about, n, step.logged, &log)
		}
	}
	if n := states(t, c.Pins)[l.B.Netns].Entries; n != 1 || h.engine != nil {
		t.Errorf("%d entries are described, want 1", n)
	}
}

// However long another process holds the lock on the pins, as one that was stopped
// may, interfaces that come are filtered, and pinned when it is free.
func TestLockHeld(t *testing.T) {
	l := lab.New(t)
	c, targets := options(t, new(bytes.Buffer), l.B)
	targets = append(targets, Target{Target: netif.Target{Netns: l.B.Netns, Iface: "wan*"}})
	f := serve(t, c, targets)
	f.until("programs wait", f.ready(maxPreloaded))
	at(t, l.B, addVeth("wan0"))
	f.until("it is filtered", f.filtering(l.B.Iface, "wan0"))
	f.until("programs wait again", f.ready(maxPreloaded))

	unlock := lockPins(t, c.Pins)
	at(t, l.B, with("wan0", netlink.LinkDel))
	for _, name := range []string{"wan1", "wan0", "wan2"} {
		at(t, l.B, addVeth(name))
	}
	for deadline := wait.Deadline(); ; time.Sleep(time.Millisecond) {
		filtered := 0
		for _, name := range []string{"wan0", "wan1", "wan2"} {
			if hasProgram(t, l.B, name) {
				filtered++
			}
		}
		if filtered == 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("while the lock is held, %d of 3 interfaces are filtered", filtered)
			break
		}
	}
	unlock()
	f.until("all are taken in", f.filtering(l.B.Iface, "wan0", "wan1", "wan2"))
	if got := pinned(t, c); !slices.Equal(got, []string{l.B.Iface, "wan0", "wan1", "wan2"}) {
		t.Errorf("pinned: %v", got)
	}
}

// hasProgram reports whether an interface in the namespace of an end has a program of XDP or TC.
func hasProgram(t *testing.T, e lab.End, name string) (has bool) {
	t.Helper()
	at(t, e, with(name, func(i netlink.Link) error {
		has = i.Attrs().Xdp != nil && i.Attrs().Xdp.Attached
		tc, err := link.QueryPrograms(link.QueryOptions{Target: i.Attrs().Index, Attach: ebpf.AttachTCXIngress})
		has = has || err == nil && len(tc.Programs) > 0
		return nil
	}))
	return has
}

// An interface that comes while the hotplug waits for the lock, because of the previous
// interface of that name, is filtered when the lock is free.
func TestComesAgainWhileLocked(t *testing.T) {
	l := lab.New(t)
	c, targets := options(t, new(bytes.Buffer), l.B)
	targets = append(targets, Target{Target: netif.Target{Netns: l.B.Netns, Iface: "wan*"}})
	f := serve(t, c, targets)
	f.until("programs wait", f.ready(maxPreloaded))
	filtered := func() bool { return hasProgram(t, l.B, "wan1") }
	done := f.busy(func() error { return nil })
	unlock := lockPins(t, c.Pins)
	at(t, l.B, addVeth("wan1"))
	wait.For(t, "it is filtered", filtered)
	at(t, l.B, with("wan1", netlink.LinkDel))
	at(t, l.B, addVeth("wan1"))
	time.Sleep(100 * time.Millisecond) // for the hotplug to hear of it
	unlock()
	wait.For(t, "it is filtered again", filtered)
	done()
	f.until("it is taken in", f.filtering(l.B.Iface, "wan1"))
}

// lockPins locks the pins as another process would, until unlock is called or the
// test ends.
func lockPins(t *testing.T, pins loader.Pins) (unlock func()) {
	t.Helper()
	dir, err := os.Open(string(pins))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	unlock = sync.OnceFunc(func() { dir.Close() })
	t.Cleanup(unlock)
	return unlock
}
