package hub

import (
	"crypto/ed25519"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/fleet/store"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/control/quantity"
)

// course is a rollout under a clock of its own, with nodes that report.
type course struct {
	t     *testing.T
	now   time.Time
	up    time.Duration
	nodes map[string]*observed
	rollout
	gate
}

const testAge = time.Minute

var from, to = wire.Place{Epoch: 7, Version: 3}, wire.Place{Epoch: 7, Version: 4}

// newCourse returns a rollout to canary-1 … 3, then to paris-1 … 20, then to all. The
// canaries rehearse first.
func newCourse(t *testing.T) *course {
	c := &course{t: t, now: time.Date(2026, 1, 1, 3, 0, 0, 0, time.UTC), up: time.Hour, nodes: make(map[string]*observed)}
	add := func(label string, n int) {
		for i := range n {
			name := fmt.Sprintf("%s-%d", label, i+1)
			c.nodes[name] = &observed{name: name, labels: []string{label}, seen: c.now, list: wire.ListStatus{Active: from, Wanted: from}}
		}
	}
	add("canary", 3)
	add("paris", 20)
	add("rome", 5)
	d := quantity.Duration(10 * time.Minute)
	c.rollout = *newRollout(&config.Rollout{Limit: 0.001, MaxConversed: config.AnyNumber, Packets: 1000, Confirm: 0.95, Waves: []config.Wave{
		{Labels: []string{"canary"}, Mode: config.Rehearse, For: d},
		{Labels: []string{"canary"}, Mode: config.Enforce, For: d},
		{Labels: []string{"paris"}, Mode: config.Enforce, For: d},
	}}, config.Block, from, to, c.now)
	return c
}

// after lets time pass, in which the nodes that are not silent report.
func (c *course) after(d time.Duration, silent ...string) {
	tick := max(time.Second, d/600)
	for end := c.now.Add(d); c.now.Before(end); {
		c.now, c.up = c.now.Add(tick), c.up+tick
		var all []observed
		for name, n := range c.nodes {
			quiet := false
			for _, s := range silent {
				quiet = quiet || strings.HasPrefix(name, s)
			}
			if !quiet {
				n.seen = c.now
			}
			all = append(all, *n)
		}
		c.rollout, c.gate = c.step(c.now, c.up, testAge, all)
	}
}

func (c *course) each(prefix string, fn func(*observed)) {
	for name, n := range c.nodes {
		if strings.HasPrefix(name, prefix) {
			fn(n)
		}
	}
}

func (c *course) rehearse(prefix string, looked, wouldDrop uint64) {
	c.each(prefix, func(n *observed) {
		n.list.Rehearsal = &wire.Rehearsal{Place: to, Looked: looked, Passed: looked, WouldDrop: wouldDrop,
			Top: []wire.Affected{{Source: "192.0.2.1", Entry: "192.0.0.0/8", Packets: wouldDrop}}}
	})
}

func (c *course) enforce(prefix string) {
	c.each(prefix, func(n *observed) { n.list = wire.ListStatus{Active: to, Wanted: to} })
}

func (c *course) want(state string, wave int, waits string) {
	c.t.Helper()
	if c.State != state || c.Wave != wave || !strings.Contains(c.waits, waits) {
		c.t.Fatalf("at %v: %s (%s), wave %d, waits for %q; want %s, %d, %q", c.now, c.State, c.Reason, c.Wave, c.waits, state, wave, waits)
	}
}

func TestWaves(t *testing.T) {
	c := newCourse(t)
	c.after(time.Hour)
	c.want(api.RolloutRunning, 0, "nodes with label canary to confirm: 0 of 3 have, 3 are needed")
	c.rehearse("canary", 200, 0)
	c.after(9 * time.Minute)
	c.want(api.RolloutRunning, 0, "the end of the wave, in 1m")
	c.after(time.Hour)
	c.want(api.RolloutRunning, 0, "packets: 600 were looked at, 1000 are needed")
	c.rehearse("canary", 2000, 2) // 0.1 %: the limit
	c.after(time.Second)
	c.want(api.RolloutRunning, 1, "")
	c.after(time.Hour)
	c.want(api.RolloutRunning, 1, "to confirm")
	c.enforce("canary")
	c.after(10*time.Minute + time.Second)
	c.want(api.RolloutRunning, 2, "")
	c.enforce("paris-1") // 11 of them
	c.after(time.Hour)
	c.want(api.RolloutRunning, 2, "11 of 20 have, 19 are needed")
	for i := range 18 {
		c.enforce(fmt.Sprintf("paris-%d", i+2))
	}
	c.after(10*time.Minute + time.Second)
	c.want(api.RolloutDone, 3, "")
}

// Nodes that have the version and drop nothing, as in monitor mode, confirm a rehearsal, and no wave that enforces.
func TestIdleNodesConfirmNothing(t *testing.T) {
	c := newCourse(t)
	c.each("canary", func(n *observed) { n.idle = true })
	c.rehearse("canary", 2000, 0)
	c.after(10*time.Minute + time.Second)
	c.want(api.RolloutRunning, 1, "")
	c.each("canary", func(n *observed) { n.list = wire.ListStatus{Active: to, Wanted: to} })
	c.after(time.Hour)
	c.want(api.RolloutRunning, 1, "0 of 3 have, 3 are needed; these have it, and drop nothing: canary-1, canary-2, canary-3")
	c.each("canary", func(n *observed) { n.idle = false })
	c.after(10*time.Minute + time.Second)
	c.want(api.RolloutRunning, 2, "")
}

func TestHalt(t *testing.T) {
	c := newCourse(t)
	c.rehearse("canary", 2000, 0)
	c.after(time.Minute)
	c.rehearse("canary-2", leastLooked-1, 50)
	c.after(time.Minute)
	c.want(api.RolloutRunning, 0, "the end of the wave")
	c.rehearse("canary-2", 1000, 500)
	c.after(time.Second)
	c.want(api.RolloutHalted, 0, "")
	for _, part := range []string{"canary-2", "50% of the packets", "limit of 0.1%", "500 of 1000, by 1000 looked at", "from 192.0.2.1 by 192.0.0.0/8"} {
		if !strings.Contains(c.Reason, part) {
			t.Errorf("%q does not say %q", c.Reason, part)
		}
	}
	c.after(24 * time.Hour)
	c.want(api.RolloutHalted, 0, "")
	// Somebody wants it nevertheless.
	c.State, c.Accepted = api.RolloutRunning, true
	c.after(10*time.Minute + time.Second)
	c.want(api.RolloutRunning, 1, "")
	if c.Accepted {
		t.Error("the next wave has no limit")
	}
	// Nodes refuse it.
	c.each("canary-3", func(n *observed) {
		n.list = wire.ListStatus{Active: from, Wanted: to, Refused: true, Error: "it covers a failsafe prefix"}
	})
	c.after(time.Second)
	c.want(api.RolloutHalted, 1, "")
	if !strings.Contains(c.Reason, "1 of 3 nodes refuse it: canary-3: it covers a failsafe prefix") {
		t.Error(c.Reason)
	}
}

// Nodes that were silent before a wave are not waited for; nodes that the wave silences
// are.
func TestSilentNodes(t *testing.T) {
	c := newCourse(t)
	c.nodes["canary-1"].seen = c.now.Add(-time.Hour)
	c.nodes["canary-2"].seen = time.Time{}
	c.rehearse("canary-3", 2000, 0)
	c.after(settle-time.Second, "canary-1", "canary-2")
	c.want(api.RolloutRunning, 0, "1 of 3 have, 3 are needed")
	c.after(time.Minute, "canary-1", "canary-2")
	if c.want(api.RolloutRunning, 0, "the end of the wave"); c.absent != 2 || c.needed != 1 {
		t.Errorf("%+v", c.gate)
	}
	c.after(time.Second, "canary-2") // one is back
	c.want(api.RolloutRunning, 0, "1 of 2 have, 2 are needed")
	c.rehearse("canary-1", 2000, 0)
	c.after(10*time.Minute+time.Second, "canary-2")
	c.want(api.RolloutRunning, 1, "")

	// The version cuts off the canaries that enforce it.
	c.enforce("canary")
	c.after(time.Second, "canary-2")
	c.want(api.RolloutRunning, 1, "2 of 3 have") // canary-2 is silent, and the wave is new
	c.after(settle, "canary-2")
	c.want(api.RolloutRunning, 1, "the end of the wave")
	c.after(24*time.Hour, "canary")
	c.want(api.RolloutRunning, 1, "0 of 2 have, 2 are needed")

	// Of a wave without nodes nothing follows.
	c = newCourse(t)
	c.each("canary", func(n *observed) { n.labels = []string{"canaries"} })
	c.after(24 * time.Hour)
	c.want(api.RolloutRunning, 0, "a node with label canary: none reports")
}

// A rollout that waits for what does not come by itself says so: at once where no node with the label is
// there, and otherwise when it takes too long.
func TestStuck(t *testing.T) {
	c := newCourse(t)
	stuck := func(want string) {
		t.Helper()
		if (c.gate.stuck == "") != (want == "") || !strings.HasPrefix(c.gate.stuck, want) {
			t.Errorf("stuck: %q, want %q", c.gate.stuck, want)
		}
	}
	c.after(10*time.Minute + patient*testAge)
	stuck("")
	c.after(10 * time.Second)
	stuck("wave 1 has waited for 13m")
	c.rehearse("canary", 2000, 0)
	c.after(11 * time.Minute)
	c.want(api.RolloutRunning, 1, "")
	stuck("")
	c.after(testAge+time.Second, "canary")
	stuck("none of 3 nodes with label canary reports")
	for name := range c.nodes {
		if strings.HasPrefix(name, "canary") {
			delete(c.nodes, name) // revoked
		}
	}
	c.after(time.Second)
	stuck("no node with label canary is enrolled")
	if m := c.metrics(c.gate); m.Waiting < testAge.Seconds() {
		t.Errorf("waiting for %vs", m.Waiting)
	}
}

// A hub that has just started knows nothing of nodes that are there.
func TestStepAfterStart(t *testing.T) {
	c := newCourse(t)
	c.rehearse("canary", 2000, 0)
	c.after(9 * time.Minute)
	before := c.rollout
	c.up = 0
	for _, n := range c.nodes {
		n.seen = time.Time{}
	}
	c.after(settle-2*time.Second, "canary")
	if !reflect.DeepEqual(c.rollout, before) {
		t.Errorf("%+v, was %+v", c.rollout, before)
	}
	c.after(time.Minute)
	c.want(api.RolloutRunning, 1, "to confirm")
}

func TestPaused(t *testing.T) {
	c := newCourse(t)
	c.rehearse("canary", 2000, 0)
	c.State = api.RolloutPaused
	c.after(time.Hour)
	if c.want(api.RolloutPaused, 0, ""); c.looked != 6000 {
		t.Errorf("%+v", c.gate)
	}
}

func TestReleases(t *testing.T) {
	c := newCourse(t)
	x := &released{Stable: from, Rollout: &c.rollout}
	for wave, want := range map[int]map[string][2]wire.Place{
		0: {"canary": {from, to}, "paris": {from}, "rome": {from}},
		1: {"canary": {to}, "paris": {from}, "rome": {from}},
		2: {"canary": {to}, "paris": {to}, "rome": {from}},
	} {
		c.Wave = wave
		for _, state := range []string{api.RolloutRunning, api.RolloutPaused, api.RolloutHalted} {
			c.State = state
			for label, want := range want {
				active, rehearse, ok := wire.ListState{Releases: x.releases()}.For([]string{label})
				if !ok || active != want[0] || rehearse != want[1] {
					t.Errorf("wave %d, %s, %s: %v, %v; want %v", wave, state, label, active, rehearse, want)
				}
			}
		}
	}
	// What was rolled back goes to all, unless nothing else is known.
	c.State, c.To = api.RolloutRolledBack, wire.Place{Epoch: 7, Version: 5}
	x.Stable = c.To
	if all := x.releases(); len(all) != 1 || all[0].Place != c.To {
		t.Errorf("%+v", all)
	}
	c.Wave, x.Stable = 1, wire.Place{}
	for label, want := range map[string]wire.Place{"canary": c.To, "rome": {}} {
		if active, rehearse, _ := (wire.ListState{Releases: x.releases()}).For([]string{label}); active != want || rehearse != (wire.Place{}) {
			t.Errorf("%s: %v, %v; want %v", label, active, rehearse, want)
		}
	}
}

// A rollout halts where a node has conversed with more of the addresses than it may. What a node does
// not say is not 0.
func TestMaxConversed(t *testing.T) {
	conversed := func(c *course, prefix string, n int) {
		c.each(prefix, func(o *observed) {
			of := &wire.Conversed{Addresses: n, Latest: []string{"192.0.2.7"}}
			if o.list.Rehearsal != nil {
				o.list.Rehearsal.Conversed = of
			} else {
				o.list.Added = of
			}
		})
	}
	begin := func(most int) *course {
		c := newCourse(t)
		c.MaxConversed = &most
		c.rehearse("canary", 2000, 0)
		return c
	}
	// No node reports it.
	c := begin(0)
	c.after(time.Hour)
	c.want(api.RolloutRunning, 0, "a node with label canary that says with whom it has conversed")
	if text := c.collateral.String(); text != "not measured" {
		t.Errorf("%q", text)
	}
	// One does, and the others are of an earlier version.
	conversed(c, "canary-2", 0)
	c.after(time.Second)
	c.want(api.RolloutRunning, 1, "")
	// The version is enforced.
	c.enforce("canary")
	c.after(time.Minute)
	c.want(api.RolloutRunning, 1, "the end of the wave")
	if c.collateral.Measured != 0 || c.collateral.Unmeasured != 3 {
		t.Errorf("%+v", c.collateral)
	}
	conversed(c, "canary-3", 1)
	c.after(time.Second)
	c.want(api.RolloutHalted, 1, "")
	for _, part := range []string{"node canary-3 has conversed", "max_conversed, 0", "1: 192.0.2.7"} {
		if !strings.Contains(c.Reason, part) {
			t.Errorf("%q does not say %q", c.Reason, part)
		}
	}
	if text := c.collateral.String(); text != "canary-3 with 1: 192.0.2.7 (not measured by 2 of 3 nodes)" {
		t.Errorf("%q", text)
	}
	c.State, c.Accepted = api.RolloutRunning, true // as by weir fleet resume
	c.after(11 * time.Minute)
	c.want(api.RolloutRunning, 2, "to confirm")
	conversed(c, "canary-3", 9) // of a wave that is over
	c.enforce("paris")
	conversed(c, "paris", 0)
	c.after(time.Minute)
	c.want(api.RolloutRunning, 2, "the end of the wave")

	// The bound itself is allowed.
	c = begin(2)
	conversed(c, "canary", 2)
	c.after(time.Minute)
	c.want(api.RolloutRunning, 0, "the end of the wave")
	conversed(c, "canary-1", 3)
	c.after(time.Second)
	c.want(api.RolloutHalted, 0, "")
	// Without a bound it is reported alone.
	c = begin(0)
	c.MaxConversed = nil
	conversed(c, "canary", 400)
	c.after(11 * time.Minute)
	c.want(api.RolloutRunning, 1, "")
	// What an allow list drops depends on others.
	if r := newRollout(&config.Rollout{}, config.Allow, from, to, c.now); r.MaxConversed != nil {
		t.Errorf("an allow list: %d", *r.MaxConversed)
	}
	if r := newRollout(&config.Rollout{}, config.Block, from, to, c.now); r.MaxConversed == nil || *r.MaxConversed != 0 {
		t.Errorf("a block list: %v", r.MaxConversed)
	}
}

// A rollout that begins anew, in a new epoch, does so with its gates: what an operator has accepted
// of the wave that it was in does not count.
func TestNewEpochGates(t *testing.T) {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.TempDir(), private)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := newCourse(t)
	l := &managed{}
	if l.history, _, err = s.List("drop"); err != nil {
		t.Fatal(err)
	}
	commit := func(entry string) {
		t.Helper()
		e, err := listfile.ParseEntry(entry)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.history.Commit(store.Change{Contents: e.Set()}); err != nil {
			t.Fatal(err)
		}
	}
	commit("192.0.2.1")
	r := c.rollout
	r.From = l.history.Place()
	l.released = &released{Stable: r.From}
	commit("192.0.0.0/8")
	r.To, r.Wave, r.Accepted = l.history.Place(), 1, true
	l.released.Rollout = &r
	if err := s.NewEpoch(0); err != nil {
		t.Fatal(err)
	}
	l.rebased()
	c.rollout = *l.released.Rollout
	if c.To != l.history.Place() || c.Wave != 0 || c.State != api.RolloutRunning {
		t.Fatalf("%+v", c.rollout)
	}
	c.each("canary", func(n *observed) {
		n.list.Rehearsal = &wire.Rehearsal{Place: c.To, Looked: 1000, Passed: 1000, WouldDrop: 500}
	})
	c.after(time.Second)
	c.want(api.RolloutHalted, 0, "")
}

// A rollout that max_conversed has halted in a wave that enforces stays so in a new epoch, also where
// the feed has other contents: what its nodes drop of those, they do not measure.
func TestNewEpochConversed(t *testing.T) {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.TempDir(), private)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	set := func(entries ...string) *list.Set {
		t.Helper()
		var all list.Entries
		for _, text := range entries {
			e, err := listfile.ParseEntry(text)
			if err != nil {
				t.Fatal(err)
			}
			all.Append(e)
		}
		return all.Set()
	}
	l := &managed{List: config.List{Name: "drop"}, plan: &config.Rollout{MaxConversed: 0}}
	if l.history, _, err = s.List("drop"); err != nil {
		t.Fatal(err)
	}
	commit := func(entries ...string) wire.Place {
		t.Helper()
		if _, err := l.history.Commit(store.Change{Contents: set(entries...)}); err != nil {
			t.Fatal(err)
		}
		return l.history.Place()
	}
	r := newCourse(t).rollout
	r.From = commit("192.0.2.5")
	l.released = &released{Stable: r.From, Rollout: &r}
	r.To = commit("192.0.2.1", "192.0.2.5")
	r.State, r.Reason, r.Wave, r.Conversed = api.RolloutHalted, "max_conversed", 1, true
	check := func(when string, entries []string, want bool) {
		t.Helper()
		if l.unmeasured(set(entries...)) != want {
			t.Errorf("%s: contents %q are measured: %v", when, entries, want)
		}
	}
	check("before", []string{"192.0.2.1", "192.0.2.9"}, true)
	check("before", []string{"192.0.2.5", "192.0.2.9"}, false)
	if err := s.NewEpoch(0); err != nil {
		t.Fatal(err)
	}
	l.rebased()
	if x := l.released.Rollout; x.State != api.RolloutHalted || x.To != l.history.Place() || x.Wave != 0 {
		t.Fatalf("%+v", x)
	}
	check("in a new epoch", []string{"192.0.2.1", "192.0.2.9"}, true)
	check("in a new epoch", []string{"192.0.2.0/30"}, true)
	check("in a new epoch", []string{"192.0.2.9"}, false)
	err = (&releases{}).rollBack(l, *l.released, fmt.Errorf)
	if want := "are not known: have weir fleet allow let pass what must, and then resume"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("rolled back: %v, want %q", err, want)
	}
}
