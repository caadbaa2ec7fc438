package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/tests/wait"
)

func (r *run) rehearses() *list.Set {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rehearsed[name]
}

// A version that is rehearsed does not become active; one that was is not fetched again.
func TestRehearsal(t *testing.T) {
	dir := t.TempDir()
	h, n := follow(t, dir)
	first := h.at
	h.change(set(t, "192.0.2.1", "198.51.100.0/24"))
	h.change(set(t, "192.0.2.0/24"))
	state := wire.ListState{Name: name, Settings: block, Releases: []wire.Release{
		{Place: first}, {Groups: []string{"others"}, Place: h.at}, {Groups: []string{"canary"}, Place: h.at, Rehearse: true},
	}}
	h.publish(state)
	rehearsed := func(n *run, what string) {
		t.Helper()
		wait.For(t, what, func() bool {
			r := n.active().Rehearsal
			return r != nil && r.Place == h.at && r.Looked == 10 && r.WouldDrop == 3 && r.Error == "" && equal(n.rehearses(), h.truth[h.at])
		})
		if n.active().Active != first || !equal(n.has(name), h.truth[first]) {
			t.Fatalf("%+v", n.active())
		}
	}
	rehearsed(n, "the rehearsal")
	n.stop()
	if n.rehearses() != nil {
		t.Error("it goes on after the end")
	}
	n = h.start(dir)
	rehearsed(n, "the rehearsal after a restart")
	h.change(set(t, "192.0.2.0/25", "203.0.113.1"))
	state.Releases[2].Place = h.at
	h.publish(state)
	rehearsed(n, "another version")

	// Enforced, without the stream.
	if err := h.js.PurgeStream(wire.Stream); err != nil {
		t.Fatal(err)
	}
	state.Releases[2].Rehearse = false
	h.publish(state)
	n.reaches(h)
	added := h.truth[h.at].Diff(h.truth[first]).Add.Len()
	wait.For(t, "with whom the host has conversed", func() bool {
		s := n.active()
		return s.Added != nil && s.Added.Addresses == added && s.Conversed != nil && s.Conversed.Addresses == h.truth[h.at].Len()
	})
	wait.For(t, "the end of the rehearsal", func() bool { return n.active().Rehearsal == nil && n.rehearses() == nil })
	n.stop()
	n = h.start(dir)
	n.reaches(h)

	// Refused, as it would be.
	n.mu.Lock()
	n.failing = errors.New("too wide")
	n.mu.Unlock()
	first = h.at
	h.change(set(t, "0.0.0.0/1"))
	state.Releases[2] = wire.Release{Place: h.at, Rehearse: true}
	state.Releases[0].Place = first
	h.publish(state)
	wait.For(t, "the refusal", func() bool {
		r := n.active().Rehearsal
		return r != nil && r.Place == h.at && strings.Contains(r.Error, "too wide")
	})
	if s := n.active(); s.Active != first || s.Error != "" {
		t.Errorf("%+v", s)
	}
	state.Releases = state.Releases[:1]
	h.publish(state)
	wait.For(t, "no rehearsal", func() bool { return n.active().Rehearsal == nil })
	n.mu.Lock()
	n.failing = nil
	n.mu.Unlock()
	h.change(set(t, "192.0.2.7"))
	state.Releases[0].Place = h.at
	h.publish(state)
	wait.For(t, "a version that all nodes have", func() bool { return n.active().Active == h.at })
	n.stop()
	if s := n.active(); s.Added != nil {
		t.Errorf("a version that all nodes have is measured: %+v", s.Added)
	}
}

// What a version adds is measured against what filtered before: without entries that had expired.
func TestMeasureExpired(t *testing.T) {
	n := &Node{daemon: new(run), reports: make(chan struct{}, 1)}
	n.clock.local = time.Now
	expires := func(in time.Duration) (all []timed) {
		e, err := parseExpiry(wire.Expiry{Entry: "192.0.2.1", At: time.Now().Add(in)})
		if err != nil {
			t.Fatal(err)
		}
		return []timed{e}
	}
	now := &state{Place: wire.Place{Epoch: 1, Version: 2}, entries: set(t, "192.0.2.1", "192.0.2.2")}
	f := &follower{n: n, active: now, contents: now.entries}
	for _, c := range []struct {
		in   time.Duration
		want int
	}{{-time.Second, 2}, {time.Hour, 1}} {
		f.measuring = measuring{&state{entries: set(t, "192.0.2.1"), timed: expires(c.in)}, now}
		f.measure(t.Context())
		if got := f.measured.conversed; got == nil || got.Addresses != c.want {
			t.Errorf("an entry that expires in %v: %+v, want %d", c.in, got, c.want)
		}
	}
}

// What a version of a wave adds is measured once it is active: the first contents of a list, and a
// version that could not become active at first.
func TestMeasureWhenActive(t *testing.T) {
	h := newHub(t)
	h.change(set(t, "192.0.2.1", "192.0.2.2"))
	h.snapshot()
	state := wire.ListState{Name: name, Settings: block, Releases: []wire.Release{{}, {Groups: []string{"canary"}, Place: h.at}}}
	h.publish(state)
	n := h.start(t.TempDir())
	added := func(what string, want int) {
		t.Helper()
		wait.For(t, what, func() bool {
			s := n.active()
			return s.Active == h.at && s.Added != nil && s.Added.Addresses == want
		})
	}
	added("the first contents are measured", 2)

	fails := func(err error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.failing = err
	}
	fails(errors.New("no memory"))
	h.change(set(t, "192.0.2.1", "192.0.2.2", "192.0.2.3"))
	state.Releases[1].Place = h.at
	h.publish(state)
	wait.For(t, "the version cannot become active", func() bool { s := n.active(); return s.Refused && s.Wanted == h.at })
	fails(nil)
	if err := n.TakeLists(t.Context()); err != nil {
		t.Fatal(err)
	}
	added("what became active late is measured", 1)
	n.stop()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.measures != 2 {
		t.Errorf("two versions were measured %d times", n.measures)
	}
}
