package hub

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/fleet/wire"
	"weir/filter/key"
	"weir/tests/wait"
)

// contestedConfig has nodes of a silent hub look for another one soon.
const contestedConfig = "max_age: 5s\n"

// twins returns two fleets on copies of one state and its keys, which do not run, and their addresses.
func twins(t *testing.T) (a, b *fleet, servers []string) {
	t.Helper()
	a = newFleet(t)
	b = &fleet{t: t, dir: t.TempDir(), authority: a.authority, listen: "127.0.0.2:0"}
	for _, f := range []*fleet{a, b} { // the ports
		f.start(contestedConfig, "tls://127.0.0.1:1")
		f.change(block("203.0.113.1"))
		f.stop()
		servers = append(servers, "tls://"+f.listen)
	}
	if err := os.RemoveAll(b.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(b.dir, os.DirFS(a.dir)); err != nil {
		t.Fatal(err)
	}
	return a, b, servers
}

// of enrolls a host that connects to some servers.
func (f *fleet) of(name string, servers ...string) *host {
	f.t.Helper()
	h := f.host(name)
	h.stop()
	h.enrollment.Servers = servers
	return f.again(h)
}

// refused waits until a hub refuses commands, and returns why.
func (f *fleet) refused() string {
	f.t.Helper()
	why := ""
	wait.For(f.t, "commands are refused", func() bool {
		_, err := f.hub.Change(f.t.Context(), block("198.51.100.99"))
		if err != nil {
			why = err.Error()
		}
		return err != nil
	})
	return why
}

// gets waits until a host has an entry of list block.
func (h *host) gets(entry string) {
	h.t.Helper()
	k := key.Source(netip.PrefixFrom(netip.MustParseAddr(entry), 32))
	wait.For(h.t, h.name+" has "+entry, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		s := h.sets["block"]
		return s != nil && s.Has(k)
	})
}

// says reports whether the status has a problem.
func (f *fleet) says(problem string) bool {
	return slices.ContainsFunc(f.problems(), func(p string) bool { return strings.Contains(p, problem) })
}

// A hub without connected nodes acknowledges no commands while another hub rules them.
func TestSecondHubWithoutNodes(t *testing.T) {
	t.Parallel() // it waits
	a, b, servers := twins(t)
	a.start(contestedConfig, servers...)
	h := a.of("rome-1", servers[0])
	a.change(block("198.51.100.1"))
	h.gets("198.51.100.1")
	b.start(contestedConfig, servers...)
	if c, err := b.hub.Change(t.Context(), block("198.51.100.2")); err == nil && c.Published {
		t.Errorf("the second hub acknowledges its first command: %+v", c)
	}
	for f, want := range map[*fleet]string{b: servers[0], a: servers[1]} {
		want = strings.TrimPrefix(want, "tls://")
		if why := f.refused(); !strings.Contains(why, "another hub") || !strings.Contains(why, "weir fleet take-over") {
			t.Errorf("a command is refused: %q, want %q", why, want)
		}
		wait.For(t, "the address is known where the other hub was visited", func() bool { return f.says("another hub with the same keys is alive at " + want) })
		if f.says("older copy") || f.says("make them again") {
			t.Errorf("problems %q", f.problems())
		}
		if !f.hub.Metrics().Contested {
			t.Error("the metric says nothing")
		}
	}
	if !b.says("rome-1") {
		t.Errorf("the hub does not say which nodes obey the other one: %q", b.problems())
	}
	done, err := a.hub.TakeOver(t.Context())
	if err != nil || !done.Published || !strings.Contains(done.From, "127.0.0.2") {
		t.Fatalf("%+v, %v", done, err)
	}
	if c := a.change(block("198.51.100.3")); !c.Published {
		t.Errorf("%+v", c)
	}
	h.gets("198.51.100.3")
	wait.For(t, "the other hub stops", func() bool { return strings.Contains(b.refused(), "has taken over") })
	if !a.says("has taken over: stop the other one") {
		t.Errorf("problems %q", a.problems())
	}
	a.stop() // it has the claim after a restart, too
	a.start(contestedConfig, servers...)
	if c := a.change(block("198.51.100.4")); !c.Published {
		t.Errorf("%+v", c)
	}
}

// Where nodes obey each of two hubs, and one takes over, all obey that one.
func TestSecondHubWithNodes(t *testing.T) {
	t.Parallel() // it waits
	a, b, servers := twins(t)
	a.start(contestedConfig, servers...)
	one, other := a.of("rome-1", servers...), a.of("oslo-1", servers[1], servers[0])
	b.start(contestedConfig, servers...)
	a.refused()
	b.refused()
	if _, err := b.authority.Label("oslo-1", []string{"late"}, nil); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2500 * time.Millisecond) // two looks of a hub that may assign
	for _, f := range []*fleet{a, b} {
		if s := f.nodeStatus("oslo-1"); s != nil && slices.Contains(s.Settings.Labels, "late") {
			t.Error("a hub that may not rule the nodes has assigned a label")
		}
	}
	if _, err := b.hub.TakeOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.labelled("oslo-1", "late")
	wait.For(t, "the other hub stops", func() bool { return strings.Contains(a.refused(), "has taken over") })
	if c := b.change(block("198.51.100.5")); !c.Published {
		t.Errorf("%+v", c)
	}
	for _, h := range []*host{one, other} {
		h.gets("198.51.100.5")
	}
	for _, f := range []*fleet{a, b} {
		if f.says("older copy") || f.says("make them again") {
			t.Errorf("problems %q", f.problems())
		}
	}
}

// Hubs that cannot reach each other notice each other by the reports of nodes.
func TestSecondHubByReports(t *testing.T) {
	t.Parallel() // it waits
	a, b, servers := twins(t)
	const elsewhere = "tls://127.0.0.3:1" // which they visit
	a.start(contestedConfig, elsewhere)
	h := a.of("rome-1", servers[0])
	h.gets("203.0.113.1")
	b.start(contestedConfig, elsewhere)
	if c, err := b.hub.Change(t.Context(), block("198.51.100.2")); err != nil || !c.Published {
		t.Errorf("%+v, %v", c, err)
	}
	began := b.hub.publisher.contest.term().Issued
	wait.For(t, "the node has a catalog that was made meanwhile", func() bool {
		a.hub.nodes.mu.Lock()
		defer a.hub.nodes.mu.Unlock()
		return a.hub.nodes.all["rome-1"].status.Term.Issued.After(began)
	})
	h.stop()
	h.enrollment.Servers = servers[1:]
	b.again(h)
	if why := b.refused(); !strings.Contains(why, "as node rome-1 reports") {
		t.Errorf("a command is refused: %q", why)
	}
	if b.says("older copy") || b.says("make them again") {
		t.Errorf("problems %q", b.problems())
	}
}

// What a visit has found says more than a question or a report that comes later, and a hub acknowledges while it has
// looked for others, and has met none with a claim that is not smaller.
func TestContest(t *testing.T) {
	c := newContest(0)
	if c.settled() {
		t.Error("settled before other hubs were looked for")
	}
	close(c.looked)
	if !c.settled() {
		t.Error("not settled though no other hub was met")
	}
	for _, step := range []struct {
		from  evidence
		hub   wire.Hub
		where string // from then on
		news  bool
	}{
		{byReport, wire.Hub{Instance: "a"}, "0", true},
		{byQuestion, wire.Hub{Instance: "a"}, "1", false},
		{byVisit, wire.Hub{Instance: "a"}, "2", false},
		{byQuestion, wire.Hub{Instance: "a", Claim: 1}, "2", true},
		{byReport, wire.Hub{Instance: "a"}, "2", false}, // of before
		{byVisit, wire.Hub{Instance: "b"}, "2", false},
		{byReport, wire.Hub{Instance: "b", Claim: 2}, "0", false},
	} {
		news := c.meet(rival{Hub: step.hub, from: step.from, where: fmt.Sprint(int(step.from)), seen: time.Now()})
		if c.rival.where != step.where || news != step.news || c.settled() {
			t.Errorf("%+v: the other hub is %+v, news %t, settled %t", step, c.rival, news, c.settled())
		}
	}
	if !c.overruled() {
		t.Error("a larger claim does not overrule")
	}
}

// A command after the start changes nothing before other hubs were looked for.
func TestCommandsWaitForVisits(t *testing.T) {
	t.Parallel() // it waits
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	f := newFleet(t)
	f.start(contestedConfig, "tls://127.0.0.1:1")
	f.change(block("203.0.113.1"))
	f.stop()
	f.start(contestedConfig, "tls://"+silent.Addr().String())
	visitor, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer visitor.Close()
	done := make(chan error, 1)
	go func() {
		_, err := f.hub.Change(t.Context(), block("198.51.100.1"))
		done <- err
	}()
	wait.For(t, "catalogs", func() bool { return f.hub.Metrics().Published.Catalogs >= 3 })
	select {
	case err := <-done:
		t.Errorf("the command has ended: %v", err)
	default:
	}
	if n := f.truth()["block"].Len(); n != 1 {
		t.Errorf("%d entries, want the one before", n)
	}
	visitor.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := f.truth()["block"].Len(); n != 2 {
		t.Errorf("%d entries, want two", n)
	}
}
