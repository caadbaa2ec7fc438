package hub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/fleet/enrollment"
	fleetnode "weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/tests/long"
	"weir/tests/seed"
	"weir/tests/wait"
)

// host is a host of the fleet without a kernel: the node's code, and what it would
// filter by.
type host struct {
	*fleetnode.Node
	t    *testing.T
	name string
	stop func()

	enrollment enrollment.Node
	dir        string

	mu   sync.Mutex
	sets map[string]*list.Set
	kept key.Key  // an entry of list block that is never to be missing; the zero Key: none
	gone string   // when it was missing, "" for never
	seen []string // the first entry of each version of list drop that was ever active

	candidate *list.Set
	traffic   []string // sources
	partners  []string // with whom it has conversed; nil: that is not recorded
}

func (f *fleet) host(name string, labels ...string) *host {
	f.t.Helper()
	e, err := f.authority.Enroll(name, labels, []string{"tls://" + f.listen})
	if err != nil {
		f.t.Fatal(err)
	}
	h := &host{t: f.t, name: name, sets: make(map[string]*list.Set), enrollment: e, dir: f.t.TempDir()}
	f.follow(h)
	return h
}

// again returns a host that was stopped, and starts with what it has saved.
func (f *fleet) again(h *host) *host {
	f.t.Helper()
	next := &host{t: f.t, name: h.name, sets: make(map[string]*list.Set), enrollment: h.enrollment, dir: h.dir, kept: h.kept, gone: h.gone}
	f.follow(next)
	return next
}

// follow has a host follow the hub.
func (f *fleet) follow(h *host) {
	f.t.Helper()
	var err error
	if h.Node, err = fleetnode.Open(fleetnode.Config{Enrollment: h.enrollment, Directory: h.dir, Log: testLog()}); err != nil {
		f.t.Fatal(err)
	}
	if len(h.Lists()) > 0 {
		if err := h.TakeLists(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := h.Run(ctx, h); err != nil {
			f.t.Error(err)
		}
	})
	h.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	f.t.Cleanup(h.stop)
}

// keep has an entry of list block be there from now on.
func (h *host) keep(entry string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = key.Source(netip.PrefixFrom(netip.MustParseAddr(entry), 32))
	h.look("at first")
}

// look notes whether the entry that is to be there is. h.mu is held.
func (h *host) look(when string) {
	if s := h.sets["block"]; h.kept != (key.Key{}) && h.gone == "" && (s == nil || !s.Has(h.kept)) {
		h.gone = when
	}
}

// lost returns when the entry that is to be there was missing, "" for never.
func (h *host) lost() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gone
}

// TakeContents implements [fleetnode.Daemon].
func (h *host) TakeContents(_ context.Context, l *fleetnode.List) error {
	version := l.Version()
	h.mu.Lock()
	if !slices.Contains(h.Lists(), l) { // it is gone
		h.mu.Unlock()
		return nil
	}
	h.take(l)
	h.look("in " + l.Status().Sources[0].Version + " and later")
	h.mu.Unlock()
	return l.Keep(version)
}

// TakeLists implements [fleetnode.Daemon].
func (h *host) TakeLists(context.Context) error {
	var errs []error
	h.mu.Lock()
	clear(h.sets)
	all := h.Lists()
	versions := make([]uint64, len(all))
	for i, l := range all {
		versions[i] = l.Version()
		h.take(l)
	}
	h.look("when the lists changed")
	h.mu.Unlock()
	for i, l := range all {
		errs = append(errs, l.Keep(versions[i]))
	}
	return errors.Join(errs...)
}

// take makes a list active. h.mu is held.
func (h *host) take(l *fleetnode.List) {
	h.sets[l.Name()] = l.Contents()
	if l.Name() == "drop" {
		h.seen = append(h.seen, firstOf(l.Contents()))
	}
}

func firstOf(s *list.Set) string {
	for k := range s.All() {
		return k.String()
	}
	return ""
}

// Rehearse implements [fleetnode.Daemon].
func (*host) TakePatterns(context.Context, []wire.Pattern, time.Time) error { return nil }

func (h *host) Rehearse(_ context.Context, name string, c *fleetnode.Candidate) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.candidate = nil
	if c != nil {
		h.candidate = c.Contents
	}
	return nil
}

// Rehearsed implements [fleetnode.Daemon]: of the host's traffic, ten packets of each
// source pass.
func (h *host) Rehearsed(name string) (r wire.Rehearsal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.Conversed = h.conversed(h.candidate, h.sets[name])
	for _, from := range h.traffic {
		if hasSource(h.sets[name], from) {
			continue
		}
		r.Looked, r.Passed = r.Looked+10, r.Passed+10
		if hasSource(h.candidate, from) {
			r.WouldDrop += 10
			r.Top = append(r.Top, wire.Affected{Source: from, Entry: firstOf(h.candidate), Packets: 10})
		}
	}
	return r
}

func hasSource(s *list.Set, from string) bool {
	f := engine.NewFinder([]engine.List{{Contents: s}}, false)
	return s != nil && len(f.Covering(key.Source(netip.PrefixFrom(netip.MustParseAddr(from), 32)))) > 0
}

// conversed returns the partners of the host that contents have and others have not. h.mu is held.
func (h *host) conversed(contents, before *list.Set) *wire.Conversed {
	if h.partners == nil {
		return nil
	}
	c := &wire.Conversed{}
	for _, p := range h.partners {
		if hasSource(contents, p) && !hasSource(before, p) {
			c.Addresses++
			c.Latest = append(c.Latest, p)
		}
	}
	return c
}

// Measure implements [fleetnode.Daemon].
func (h *host) Measure(_ context.Context, _ string, c *fleetnode.Candidate, before *list.Set) *wire.Conversed {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conversed(c.Contents, before)
}

// Conversed implements [fleetnode.Daemon].
func (h *host) Conversed(name string) *wire.Conversed {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conversed(h.sets[name], nil)
}

// Counted implements [fleetnode.Daemon].
func (h *host) DescribeNode(s *wire.Status) { s.Interfaces, s.Filtered = 1, 1 }

func (h *host) Answer(ctx context.Context, what string, question []byte) (any, error) {
	return sink{}.Answer(ctx, what, question)
}

// entry returns the first entry that is active of a list.
func (h *host) entry(name string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return firstOf(h.sets[name])
}

func (h *host) had(entry string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.seen, entry)
}

func (h *host) becomes(name, entry string) {
	h.t.Helper()
	wait.For(h.t, fmt.Sprintf("%s has %q of %s", h.name, entry, name), func() bool { return h.entry(name) == entry })
}

// inWaves is the configuration of a list of a feed whose changes reach canaries first.
func inWaves(feed, waves string) string {
	return fmt.Sprintf("max_age: 2s\nrollout: {waves: [%s]}\nlists: {drop: {sources: [{file: %s}], interval: 1s}}", waves, feed)
}

func (f *fleet) feed(entries ...string) string {
	f.t.Helper()
	path := filepath.Join(f.dir, "feed")
	if err := os.WriteFile(path+".new", []byte(strings.Join(entries, "\n")+"\n"), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		f.t.Fatal(err)
	}
	return path
}

func (f *fleet) rollout(name string) *api.FleetRollout {
	f.t.Helper()
	s, err := f.hub.Fleet(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	for _, l := range s.Lists {
		if l.Name == name && l.Rollout != nil {
			return l.Rollout
		}
	}
	return &api.FleetRollout{}
}

func (f *fleet) reaches(state string) {
	f.t.Helper()
	wait.For(f.t, "the rollout is "+state, func() bool { return f.rollout("drop").State == state })
}

// waveEnds has the wave of an hour end, once its nodes have confirmed.
func (f *fleet) waveEnds() {
	f.t.Helper()
	wait.For(f.t, "the nodes of the wave confirm", func() (confirmed bool) {
		if err := f.hub.Do(f.t.Context(), func() error {
			l := f.hub.lists.get("drop")
			if l.released == nil || l.released.Rollout == nil || l.released.Rollout.Confirmed.IsZero() {
				return nil
			}
			x, r := *l.released, *l.released.Rollout
			r.Confirmed = r.Confirmed.Add(-time.Hour)
			x.Rollout, l.released, confirmed = &r, &x, true
			return nil
		}); err != nil {
			f.t.Fatal(err)
		}
		return confirmed
	})
}

func (f *fleet) roll(do string) {
	f.t.Helper()
	if r, err := f.hub.Roll(f.t.Context(), api.FleetRoll{Do: do, List: "drop"}); err != nil || !r.Published {
		f.t.Fatalf("%s: %+v, %v", do, r, err)
	}
}

// The first contents of a list reach all nodes at once where the configuration says so, and
// what follows goes in waves.
func TestFirstAtOnce(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start(strings.Replace(inWaves(f.feed("192.0.2.1"), "{labels: [canary], for: 1h}"), "rollout: {", "rollout: {first: at_once, ", 1))
	canary, other := f.host("canary-1", "canary"), f.host("rome-1")
	canary.becomes("drop", "192.0.2.1")
	other.becomes("drop", "192.0.2.1")
	f.feed("192.0.2.2")
	canary.becomes("drop", "192.0.2.2")
	if r := f.rollout("drop"); r.State != api.RolloutRunning || other.had("192.0.2.2") {
		t.Errorf("%+v", r)
	}
}

// TestRollouts takes changes of a feed through a canary to all nodes: paused and resumed,
// by a hub that stops in between.
func TestRollouts(t *testing.T) {
	long.Seconds(t)
	t.Parallel() // it waits a lot
	f := newFleet(t)
	lists := inWaves(f.feed("192.0.2.1"), "{labels: [canary], for: 1h}")
	f.start(lists)
	canary, other := f.host("canary-1", "canary"), f.host("rome-1")
	canary.becomes("drop", "192.0.2.1")
	if other.had("192.0.2.1") {
		t.Error("all nodes have the first version at once")
	}
	shares := func() (wanted, have []api.FleetShare) {
		t.Helper()
		s, err := f.hub.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Lists[0].Wanted, s.Lists[0].Have
	}
	first := f.has("drop").Active
	half := []api.FleetShare{{Version: first, Nodes: 1}, {Nodes: 1}}
	wait.For(t, "one of two nodes is to have the version", func() bool { w, h := shares(); return slices.Equal(w, half) && slices.Equal(h, half) })
	f.waveEnds()
	f.reaches(api.RolloutDone)
	other.becomes("drop", "192.0.2.1")
	all := []api.FleetShare{{Version: first, Nodes: 2}}
	wait.For(t, "both nodes have the version", func() bool { w, h := shares(); return slices.Equal(w, all) && slices.Equal(h, all) })

	// Paused, it stays where it is. Commands are urgent.
	f.feed("192.0.2.2")
	canary.becomes("drop", "192.0.2.2")
	f.roll(api.RollPause)
	f.change(block("203.0.113.1"))
	canary.becomes("block", "203.0.113.1")
	other.becomes("block", "203.0.113.1")
	f.feed("192.0.2.3") // comes after it
	f.stop()
	f.start(lists)
	if r := f.rollout("drop"); r.State != api.RolloutPaused || other.had("192.0.2.2") {
		t.Fatalf("%+v, %v", r, other.seen)
	}
	if s, err := f.hub.Fleet(t.Context()); err != nil || !slices.ContainsFunc(s.Nodes, func(n api.FleetNode) bool { return n.Name == "rome-1" }) {
		t.Fatalf("%+v, %v", s.Nodes, err)
	}
	f.roll(api.RollResume)
	f.waveEnds()
	other.becomes("drop", "192.0.2.2")
	canary.becomes("drop", "192.0.2.3")
	f.waveEnds()
	f.reaches(api.RolloutDone)
	other.becomes("drop", "192.0.2.3")

	for do, want := range map[string]string{
		api.RollPause: "no rollout is running", api.RollResume: "no rollout is paused",
	} {
		if _, err := f.hub.Roll(t.Context(), api.FleetRoll{Do: do}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", do, err)
		}
	}
	if _, err := f.hub.Roll(t.Context(), api.FleetRoll{Do: api.RollPause, List: "block"}); err == nil || !strings.Contains(err.Error(), "at once") {
		t.Error(err)
	}
	if _, err := f.hub.Roll(t.Context(), api.FleetRoll{Do: api.RollPause, List: "none"}); !errors.Is(err, api.ErrNoList) {
		t.Error(err)
	}
	c := block("203.0.113.2")
	c.List = "drop"
	if _, err := f.hub.Change(t.Context(), c); err == nil || !strings.Contains(err.Error(), "name no list") {
		t.Errorf("an urgent change of a list that has waves: %v", err)
	}
}

// TestRollback rolls a change back before it has reached all nodes, and after, by a hub
// that stops in between.
func TestRollback(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	lists := inWaves(f.feed("192.0.2.3"), "{labels: [canary], for: 1h}")
	f.start(lists)
	canary, other := f.host("canary-1", "canary"), f.host("rome-1")
	canary.becomes("drop", "192.0.2.3")
	f.roll(api.RollForward)
	other.becomes("drop", "192.0.2.3")

	f.feed("192.0.2.4")
	canary.becomes("drop", "192.0.2.4")
	f.roll(api.RollRollback)
	canary.becomes("drop", "192.0.2.3")
	f.stop()
	f.start(lists)
	time.Sleep(2 * time.Second)
	if r := f.rollout("drop"); r.State != api.RolloutRolledBack || other.had("192.0.2.4") || canary.entry("drop") != "192.0.2.3" {
		t.Fatalf("%+v", r)
	}
	f.feed("192.0.2.5")
	canary.becomes("drop", "192.0.2.5")
	f.roll(api.RollForward)
	other.becomes("drop", "192.0.2.5")
	f.roll(api.RollRollback)
	other.becomes("drop", "192.0.2.3")
	canary.becomes("drop", "192.0.2.3")

	// What was rolled back is tried again only when somebody says so.
	f.roll(api.RollResume)
	canary.becomes("drop", "192.0.2.5")
	f.waveEnds()
	other.becomes("drop", "192.0.2.5")
	f.reaches(api.RolloutDone)

	// Or that all nodes are to have it at once.
	f.feed("192.0.2.6")
	canary.becomes("drop", "192.0.2.6")
	f.roll(api.RollRollback)
	canary.becomes("drop", "192.0.2.5")
	f.roll(api.RollForward)
	other.becomes("drop", "192.0.2.6")
	canary.becomes("drop", "192.0.2.6")
	f.reaches(api.RolloutDone)
}

// A change too long for a message keeps the version before it known: nodes that are to
// have that can still join.
func TestLongChange(t *testing.T) {
	long.Unraced(t)
	long.Seconds(t)
	t.Parallel() // it waits a lot
	f := newFleet(t)
	lists := inWaves(f.feed("192.0.2.1"), "{labels: [canary], for: 1h}")
	f.start(lists)
	canary := f.host("canary-1", "canary")
	canary.becomes("drop", "192.0.2.1")
	f.roll(api.RollForward)
	var many []string
	for r := rand.New(rand.NewPCG(1, 2)); len(many) < 1_000_000; {
		many = append(many, netip.AddrFrom4([4]byte{16 + byte(r.UintN(64)), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}).String())
	}
	f.feed(many...)
	wait.For(t, "the canary has a million", func() bool {
		canary.mu.Lock()
		defer canary.mu.Unlock()
		return canary.sets["drop"].Len() > 900_000
	})
	rome := f.host("rome-1")
	rome.becomes("drop", "192.0.2.1")
	// A slow machine publishes it after the command has answered.
	if _, err := f.hub.Roll(t.Context(), api.FleetRoll{Do: api.RollRollback, List: "drop"}); err != nil {
		t.Fatal(err)
	}
	canary.becomes("drop", "192.0.2.1")
	rome.becomes("drop", "192.0.2.1")
	if r := f.rollout("drop"); r.To.Version-r.From.Version < 3 {
		t.Errorf("from version %v to %v and back: the change fits a message", r.From, r.To)
	}
	for _, h := range []*host{rome, canary} {
		h.mu.Lock()
		if n := h.sets["drop"].Len(); n != 1 {
			t.Errorf("%s: %d entries", h.name, n)
		}
		h.mu.Unlock()
	}
}

// When the hub's store is lost, nodes keep what they have until a wave reaches them.
func TestRolloutStoreLost(t *testing.T) {
	long.Unraced(t)
	t.Parallel() // it waits a lot
	f := newFleet(t)
	lists := inWaves(f.feed("192.0.2.1"), "{labels: [canary], for: 1h}")
	f.start(lists)
	canary, other := f.host("canary-1", "canary"), f.host("rome-1")
	f.waveEnds()
	other.becomes("drop", "192.0.2.1")
	f.stop()
	if err := os.RemoveAll(filepath.Join(f.dir, "hub")); err != nil {
		t.Fatal(err)
	}
	f.feed("192.0.2.2")
	f.start(lists)
	canary.becomes("drop", "192.0.2.2")
	if got := other.entry("drop"); got != "192.0.2.1" {
		t.Errorf("another node has %q", got)
	}
	f.waveEnds()
	other.becomes("drop", "192.0.2.2")
	for _, h := range []*host{canary, other} {
		if h.had("") {
			t.Errorf("%s: %q", h.name, h.seen)
		}
	}
}

// TestRolloutKilled kills a hub at random moments of rollouts: they go on, no node goes
// back, and none has a version before the canary has it.
func TestRolloutKilled(t *testing.T) {
	long.Unraced(t)
	long.Seconds(t)
	t.Parallel() // it waits a lot
	kills := long.Rounds(3, 4, 30)
	f := newFleet(t)
	f.reserve()
	random := seed.New(t)
	entry := func(i int) string { return netip.AddrFrom4([4]byte{192, 0, byte(2 + i/200), byte(i % 200)}).String() }
	lists := inWaves(f.feed(entry(0)), "{labels: [canary], for: 2s}")
	hub := f.process(lists)
	defer func() { _ = hub.Process.Kill(); _ = hub.Wait() }()
	f.ready()
	canary, other := f.host("canary-1", "canary"), f.host("rome-1")
	other.becomes("drop", entry(0))
	for i := range kills {
		f.feed(entry(2*i + 1))
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		_ = hub.Process.Kill()
		_ = hub.Wait()
		f.feed(entry(2*i + 2))
		hub = f.process(lists)
		f.ready()
		time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
		// What is acknowledged is durable.
		_, err := f.client().Roll(t.Context(), api.FleetRoll{Do: api.RollPause})
		_ = hub.Process.Kill()
		_ = hub.Wait()
		hub = f.process(lists)
		f.ready()
		if err != nil {
			continue // no rollout was running
		}
		s, err := f.client().Fleet(t.Context())
		if err != nil || s.Lists[0].Rollout.State != api.RolloutPaused {
			t.Fatalf("an acknowledged command is lost: %+v, %v", s, err)
		}
		if _, err := f.client().Roll(t.Context(), api.FleetRoll{Do: api.RollResume}); err != nil {
			t.Fatal(err)
		}
	}
	canary.becomes("drop", entry(2*kills))
	other.becomes("drop", entry(2*kills))
	for _, h := range []*host{canary, other} {
		h.mu.Lock()
		for i, e := range h.seen[1:] {
			if netip.MustParseAddr(e).Less(netip.MustParseAddr(h.seen[i])) {
				t.Errorf("%s went back: %q", h.name, h.seen)
			}
		}
		h.mu.Unlock()
	}
	for _, e := range other.seen {
		if !canary.had(e) {
			t.Errorf("the canary did not have %s", e)
		}
	}
}

// rehearsing starts a hub of a list that canaries are to rehearse first, and hosts with
// traffic that have it.
func rehearsing(t *testing.T) (f *fleet, lists string, hosts []*host) {
	t.Helper()
	f = newFleet(t)
	lists = strings.Replace(inWaves(f.feed("192.0.2.1"), "{labels: [canary], mode: rehearse, for: 2s}, {labels: [canary], for: 2s}"), "{waves", "{packets: 100, waves", 1)
	f.start(lists)
	hosts = []*host{f.host("canary-1", "canary"), f.host("canary-2", "canary"), f.host("rome-1")}
	for _, h := range hosts {
		h.mu.Lock()
		for i := range 20 {
			h.traffic = append(h.traffic, fmt.Sprintf("10.0.0.%d", i))
		}
		h.mu.Unlock()
	}
	wait.For(t, "the first rollout begins", func() bool { return f.rollout("drop").State != "" })
	// On a slow machine it may be done.
	if _, err := f.hub.Roll(t.Context(), api.FleetRoll{Do: api.RollForward, List: "drop"}); err != nil && f.rollout("drop").State != api.RolloutDone {
		t.Fatal(err)
	}
	for _, h := range hosts {
		h.becomes("drop", "192.0.2.1")
	}
	return f, lists, hosts
}

// TestRehearsal has canaries rehearse a bad list, of which no other node hears, and then a
// good one.
func TestRehearsal(t *testing.T) {
	long.Unraced(t)
	t.Parallel() // it waits a lot
	f, lists, hosts := rehearsing(t)
	f.feed("10.0.0.0/8", "192.0.2.1") // covers live traffic
	f.reaches(api.RolloutHalted)
	r := f.rollout("drop")
	if r.Wave != 1 || !strings.Contains(r.Reason, "100% of the packets that pass") || r.WouldDrop == 0 || len(r.Top) == 0 || !strings.HasPrefix(r.Top[0].Node, "canary") {
		t.Errorf("%+v", r)
	}
	if s, err := f.hub.Fleet(t.Context()); err != nil || !slices.ContainsFunc(s.Problems, func(p string) bool { return strings.Contains(p, "halted") }) {
		t.Errorf("%+v, %v", s.Problems, err)
	}
	f.stop()
	f.start(lists)
	time.Sleep(3 * time.Second)
	if r := f.rollout("drop"); r.State != api.RolloutHalted {
		t.Errorf("%+v", r)
	}
	for _, h := range hosts {
		if h.had("10.0.0.0/8") {
			t.Errorf("%s has it", h.name)
		}
	}

	// The feed is mended.
	f.feed("10.200.0.0/16", "192.0.2.1")
	for _, h := range hosts {
		h.becomes("drop", "10.200.0.0/16")
	}
	f.reaches(api.RolloutDone)
}

// TestRehearsalOverruled has a list that a rehearsal has halted reach all nodes, since an
// operator wants it.
func TestRehearsalOverruled(t *testing.T) {
	t.Parallel() // it waits a lot
	f, _, hosts := rehearsing(t)
	f.feed("10.0.0.0/8")
	f.reaches(api.RolloutHalted)
	halted := f.rollout("drop")
	f.roll(api.RollResume)
	if r := f.rollout("drop"); r.Wave != halted.Wave || !r.Entered.After(halted.Entered) || r.Reason != "" || r.State != api.RolloutRunning {
		t.Errorf("resumed: %+v, halted: %+v", r, halted)
	}
	for _, h := range hosts {
		h.becomes("drop", "10.0.0.0/8")
	}
}

// A version that is halted, or rolled back, goes no further where its list leaves hub.yaml and comes
// back, by a reload or with a start.
func TestListComesBack(t *testing.T) {
	t.Parallel() // it waits a lot
	f, lists, hosts := rehearsing(t)
	without, _, _ := strings.Cut(lists, "lists: ")
	head := strings.TrimSuffix(f.text, lists)
	reload := func(lists string) {
		t.Helper()
		f.text = head + lists
		if _, err := f.hub.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	gone := func() {
		t.Helper()
		for _, h := range hosts {
			wait.For(t, h.name+" has no list drop", func() bool { return h.entry("drop") == "" })
		}
	}
	// back checks that nodes have what they had before the version.
	back := func(how, state string) {
		t.Helper()
		if r := f.rollout("drop"); r.State != state {
			t.Fatalf("%s: the rollout is %q, want %s", how, r.State, state)
		}
		for _, h := range hosts {
			wait.For(t, h.name+" has a version again", func() bool { return h.entry("drop") != "" })
			if h.had("10.0.0.0/8") {
				t.Fatalf("%s: %s has it", how, h.name)
			}
		}
	}
	f.feed("10.0.0.0/8", "192.0.2.1")
	f.reaches(api.RolloutHalted)
	comes := func(state string) {
		t.Helper()
		reload(without)
		gone()
		reload(lists)
		back("by a reload", state)
		f.stop()
		f.start(without)
		gone()
		f.stop()
		f.start(lists)
		back("with a start", state)
	}
	comes(api.RolloutHalted)
	f.roll(api.RollRollback)
	comes(api.RolloutRolledBack)
	// Other contents begin a rollout, as ever.
	f.feed("10.200.0.0/16", "192.0.2.1")
	for _, h := range hosts {
		h.becomes("drop", "10.200.0.0/16")
	}

	// Where the history was removed meanwhile, what was released of it is not known.
	reload(without)
	gone()
	if err := os.RemoveAll(filepath.Join(f.dir, "hub", storeDir, "lists", "drop")); err != nil {
		t.Fatal(err)
	}
	reload(lists)
	if r := f.rollout("drop"); r.State != api.RolloutRunning || r.From != (wire.Place{}) {
		t.Errorf("%+v", r)
	}
}

// Where max_conversed has halted a wave that enforces, contents that add some of the same addresses do
// not begin a rollout: its nodes drop them already, and would report nothing.
func TestConversedStaysHalted(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	lists := strings.Replace(inWaves(f.feed("192.0.2.5"), "{labels: [canary], for: 3s}"), "{waves", "{max_conversed: 0, waves", 1)
	f.start(lists)
	canary, other := f.host("canary-1", "canary"), f.host("rome-1")
	canary.mu.Lock()
	canary.partners = []string{"192.0.2.1"}
	canary.mu.Unlock()
	other.becomes("drop", "192.0.2.5")
	f.reaches(api.RolloutDone)

	f.feed("192.0.2.1", "192.0.2.5")
	f.reaches(api.RolloutHalted)
	// halted checks that the rollout stays halted once the hub has read the feed.
	halted := func(when string, first string) {
		t.Helper()
		wait.For(t, when+" the hub has read the feed", func() bool {
			var has string
			if err := f.hub.Do(t.Context(), func() error { has = firstOf(f.hub.lists.get("drop").source); return nil }); err != nil {
				t.Fatal(err)
			}
			return has == first
		})
		wait.For(t, when+" new contents wait, or do not", func() bool { r := f.rollout("drop"); return r.Newer || r.State == api.RolloutDone })
		if r := f.rollout("drop"); r.State != api.RolloutHalted || !strings.Contains(r.Reason, "max_conversed") {
			t.Fatalf("%s: %+v", when, r)
		}
	}
	f.feed("192.0.2.0", "192.0.2.1", "192.0.2.5")
	halted("with another entry", "192.0.2.0")
	f.feed("192.0.2.0/30", "192.0.2.5")
	halted("with a prefix", "192.0.2.0/30")
	f.stop()
	f.start(lists)
	halted("after a restart", "192.0.2.0/30")
	// From what it had before, the canary measures them.
	f.roll(api.RollRollback)
	canary.becomes("drop", "192.0.2.5")
	f.roll(api.RollResume)
	f.reaches(api.RolloutHalted)
	if canary.entry("drop") != "192.0.2.0/30" || f.rollout("drop").Newer || other.entry("drop") != "192.0.2.5" {
		t.Errorf("%q, %+v, %q", canary.entry("drop"), f.rollout("drop"), other.entry("drop"))
	}
	// Without that, they begin a rollout.
	f.feed("192.0.2.4", "192.0.2.5")
	other.becomes("drop", "192.0.2.4")
	f.reaches(api.RolloutDone)
	for _, e := range []string{"192.0.2.1", "192.0.2.0/30"} {
		if other.had(e) {
			t.Errorf("another node had %s", e)
		}
	}
	if r := f.rollout("drop"); r.Newer {
		t.Errorf("%+v", r)
	}
}

// Sets meet where entries have addresses in common.
func TestMeet(t *testing.T) {
	set := func(text string) *list.Set {
		t.Helper()
		var all []*list.Set
		for entry := range strings.FieldsSeq(text) {
			e, err := listfile.ParseEntry(strings.ReplaceAll(entry, "_", " "))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, e.Set())
		}
		return list.Union(all...)
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"192.0.2.1", "", false},
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1 192.0.2.9", "192.0.2.2 192.0.2.8", false},
		{"192.0.2.0/24", "192.0.2.7", true},
		{"10.0.0.0/8 10.1.0.0/16 192.0.2.1", "10.200.0.0/16", true},
		{"10.0.0.0/8 10.1.0.0/16 192.0.2.1", "11.0.0.0/8 192.0.2.2", false},
		{"2001:db8::/32", "2001:db8:1::1 192.0.2.1", true},
		{"2001:db8::/32", "2001:db9::1 192.0.2.1", false},
		{"192.0.2.1", "tcp_198.51.100.1:*_>_*:22", true},
	} {
		if meet(set(c.a), set(c.b)) != c.want || meet(set(c.b), set(c.a)) != c.want {
			t.Errorf("%q and %q: want %v", c.a, c.b, c.want)
		}
	}
}

// A list with labels is for the nodes that have one of them: others filter by nothing of it, and are not waited for.
func TestListOfLabels(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("lists: {ours: {labels: [web, mail]}}")
	web, mail, other := f.host("web-1", "web"), f.host("mail-1", "mail", "canary"), f.host("db-1", "db")
	current := func() bool {
		s, err := f.hub.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(f.hub.noted.Load().members) == 3 && !slices.ContainsFunc(s.Nodes, func(n api.FleetNode) bool { return n.State != api.NodeCurrent })
	}
	wait.For(t, "all nodes to be current", current)
	changed := f.change(api.Change{List: "ours", Action: api.Block, Entries: []string{"192.0.2.1"}, Await: true})
	if changed.Nodes != 2 || changed.Enforcing != 2 {
		t.Errorf("in effect on %d of %d nodes, want 2 of 2", changed.Enforcing, changed.Nodes)
	}
	web.becomes("ours", "192.0.2.1")
	mail.becomes("ours", "192.0.2.1")
	if changed := f.change(api.Change{Action: api.Block, Entries: []string{"192.0.2.2"}, Await: true}); changed.Nodes != 3 || changed.Enforcing != 3 {
		t.Errorf("a list of all nodes: in effect on %d of %d, want 3 of 3", changed.Enforcing, changed.Nodes)
	}
	other.becomes("block", "192.0.2.2")
	if got := other.entry("ours"); got != "" {
		t.Errorf("a node without the labels has %s", got)
	}
	wait.For(t, "all nodes to be current again, also the one without the list", current)
	s, err := f.hub.Fleet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range s.Lists {
		if want := map[string]int{"ours": 2}[l.Name]; want > 0 && (len(l.Wanted) != 1 || l.Wanted[0].Nodes != want) {
			t.Errorf("list %s is wanted by %+v", l.Name, l.Wanted)
		}
	}
	// By another label in the configuration, the one loses the list, and the other has it.
	f.text = strings.Replace(f.text, "[web, mail]", "[web, db]", 1)
	if _, err := f.hub.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	other.becomes("ours", "192.0.2.1")
	mail.becomes("ours", "")
	web.becomes("ours", "192.0.2.1")
}
