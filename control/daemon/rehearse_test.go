package daemon

import (
	"io"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/timed"
	"weir/tests/wait"
)

func general(t *testing.T, d *Daemon) (why []string) {
	t.Helper()
	if err := d.loop.Do(t.Context(), func() error { why = d.active.engine.General(); return nil }); err != nil {
		t.Fatal(err)
	}
	return why
}

// A rehearsal counts what passes that a version would drop in addition, and drops none
// of it.
func TestRehearsal(t *testing.T) {
	t.Parallel() // it waits a lot
	l := lab.New(t)
	allowed := feedFile(t, "allowed.txt", "198.51.100.7\n")
	d := startLists(t, l, io.Discard, "track_drops: false\nlists: {drop: {sources: [{file: "+feedFile(t, "own.txt", "192.0.2.0/25\n")+"}]}, trial: {entries: [198.51.100.1], enforce: false}, "+
		"fleet.ours: {action: allow, sources: [{file: "+allowed+"}]}}")
	if why := general(t, d); len(why) != 0 {
		t.Fatalf("before it, packets take the general path: %q", why)
	}
	candidate := &node.Candidate{Settings: wire.Settings{Action: "block", Direction: "src"}, Contents: setOf(t, "192.0.2.0/25", "192.0.2.200", "198.51.100.0/24", "tcp 10.9.9.9:* > *:25")}
	if err := d.fleet.rehearsals.Rehearse(t.Context(), "bad", candidate); err != nil {
		t.Fatal(err)
	}
	traffic := func() {
		t.Helper()
		send(t, l, 50, "198.51.100.1")
		send(t, l, 20, "192.0.2.200")
		send(t, l, 30, "10.1.2.3")     // of no list
		send(t, l, 40, "192.0.2.1")    // dropped already
		send(t, l, 10, "198.51.100.7") // allowed
	}
	traffic()
	await(t, "packets that would be dropped", 70, func() uint64 { return d.fleet.rehearsals.Rehearsed("bad").WouldDrop })
	const others = 10 // packets of the kernel
	passed := func(want uint64) {
		t.Helper()
		for end := wait.Deadline(); d.fleet.rehearsals.Rehearsed("bad").Passed < want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%+v, want %d packets that pass", d.fleet.rehearsals.Rehearsed("bad"), want)
			}
		}
	}
	passed(110)
	r := d.fleet.rehearsals.Rehearsed("bad")
	if r.Looked != r.Passed || r.Passed > 110+others || len(r.Top) != 2 || r.Since.IsZero() {
		t.Errorf("%+v", r)
	}
	if top := r.Top[0]; top.Source != "198.51.100.1" || top.Entry != "198.51.100.0/24" || top.Packets != 50 || !strings.HasPrefix(top.Packet, "udp 198.51.100.1:1 > ") {
		t.Errorf("%+v", top)
	}
	if got := verdictOf(t, d, "198.51.100.1"); got != verdict.Pass {
		t.Errorf("a rehearsed entry: %v", got)
	}
	if why := general(t, d); len(why) != 1 || !strings.Contains(why[0], "rehearsal") {
		t.Errorf("%q", why)
	}
	// It outlasts the next engine. What another list allows meanwhile would not be dropped.
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Allow, Entries: []string{"198.51.100.1"}, UID: api.NoUID}); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the rehearsal to know the entry", func() bool {
		before := d.fleet.rehearsals.Rehearsed("bad")
		send(t, l, 2*others, "198.51.100.1")
		passed(before.Passed + 2*others)
		r = d.fleet.rehearsals.Rehearsed("bad")
		return r.WouldDrop == before.WouldDrop
	})
	before := r
	traffic()
	passed(before.Passed + 110)
	if r := d.fleet.rehearsals.Rehearsed("bad"); r.WouldDrop != before.WouldDrop+20 || r.Passed > before.Passed+110+2*others {
		t.Errorf("%+v", r)
	}

	// An allow list that would lose an entry.
	if err := d.fleet.rehearsals.Rehearse(t.Context(), "bad", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, Entries: []string{"198.51.100.0/24"}, UID: api.NoUID}); err != nil {
		t.Fatal(err)
	}
	if err := d.fleet.rehearsals.Rehearse(t.Context(), "ours", &node.Candidate{Settings: wire.Settings{Action: "allow", Direction: "src"}, Contents: setOf(t, "203.0.113.99")}); err != nil {
		t.Fatal(err)
	}
	traffic()
	await(t, "packets that would no longer be allowed", 10, func() uint64 { return d.fleet.rehearsals.Rehearsed("ours").WouldDrop })
	if r := d.fleet.rehearsals.Rehearsed("ours"); len(r.Top) != 1 || r.Top[0].Entry != "198.51.100.7" {
		t.Errorf("%+v", r)
	}
	// Another list allows it from now on.
	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Allow, Entries: []string{"198.51.100.7"}, UID: api.NoUID}); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the rehearsal to know that another list allows it", func() bool {
		before := d.fleet.rehearsals.Rehearsed("ours")
		send(t, l, 2*others, "198.51.100.7")
		await(t, "packets that pass", before.Passed+2*others, func() uint64 { return min(before.Passed+2*others, d.fleet.rehearsals.Rehearsed("ours").Passed) })
		return d.fleet.rehearsals.Rehearsed("ours").WouldDrop == before.WouldDrop
	})
	if err := d.fleet.rehearsals.Rehearse(t.Context(), "ours", nil); err != nil {
		t.Fatal(err)
	}
	if why := general(t, d); len(why) != 0 {
		t.Errorf("after it, packets take the general path: %q", why)
	}
	if r := d.fleet.rehearsals.Rehearsed("ours"); r.Passed != 0 {
		t.Errorf("after its end: %+v", r)
	}
	candidate.Contents = setOf(t, "0.0.0.0/1")
	if err := d.fleet.rehearsals.Rehearse(t.Context(), "bad", candidate); err == nil || !strings.Contains(err.Error(), "refused: ") {
		t.Errorf("what is too wide: %v", err)
	}
	if why := general(t, d); len(why) != 0 {
		t.Errorf("%q", why)
	}
}

// TestFleetRehearsal has a node of a fleet refuse a list that would drop its traffic,
// through the hub.
func TestFleetRehearsal(t *testing.T) {
	t.Parallel() // it waits a lot
	h := newFleetHub(t)
	feed := feedFile(t, "feed", "192.0.2.1\n")
	h.start("max_age: 2s\nrollout: {limit: 1%, packets: 100, waves: [{labels: [canary], mode: rehearse, for: 2s}]}\nlists: {drop: {sources: [{file: " + feed + "}], interval: 1s}}")
	l := lab.New(t)
	d := startLists(t, l, io.Discard, "fleet: {enroll: "+h.enroll("edge-1", "canary")+"}")
	wait.For(t, "the first version, to which a hundred packets were compared", func() bool {
		send(t, l, 5, "10.1.2.3")
		return verdictOf(t, d, "192.0.2.1") == verdict.Drop
	})
	write(t, feed, "192.0.2.1\n198.51.100.0/24\n")
	state := func() (r *api.FleetRollout) {
		t.Helper()
		f, err := h.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range f.Lists {
			if l.Name == "drop" {
				r = l.Rollout
			}
		}
		return r
	}
	for end := wait.Deadline(); state() == nil || state().State != api.RolloutHalted; time.Sleep(20 * time.Millisecond) {
		send(t, l, 5, "198.51.100.1")
		send(t, l, 5, "10.1.2.3")
		if time.Now().After(end) {
			t.Fatalf("%+v", state())
		}
	}
	if r := state(); !strings.Contains(r.Reason, "node edge-1 would drop") || !strings.Contains(r.Reason, "from 198.51.100.1 by 198.51.100.0/24") {
		t.Errorf("%+v", r)
	}
	if got := verdictOf(t, d, "198.51.100.1"); got != verdict.Pass {
		t.Error(got)
	}
}

func setOf(t *testing.T, entries ...string) *list.Set {
	t.Helper()
	e, _, err := listfile.Parse("test", strings.NewReader(strings.Join(entries, "\n")), listfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e.Set()
}

// While a version of millions of entries is compared with what is active, the loop goes on.
func TestRehearsalLeavesTheLoop(t *testing.T) {
	timed.Alone(t)
	const entries = 5_000_000
	d := startLists(t, lab.New(t), io.Discard, "")
	var e list.Entries
	for i := range uint32(entries) {
		e.V4 = append(e.V4, list.V4(45<<24+i*4, 32))
	}
	candidate := &node.Candidate{Settings: wire.Settings{Action: "block", Direction: "src"}, Contents: e.Set()}
	done := make(chan error)
	began := time.Now()
	go func() { done <- d.fleet.rehearsals.Rehearse(t.Context(), "large", candidate) }()
	var worst, took time.Duration
	for took == 0 {
		asked := time.Now()
		if err := d.loop.Do(t.Context(), func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(asked))
		select {
		case err := <-done:
			if took = time.Since(began); err != nil {
				t.Fatal(err)
			}
		case <-time.After(time.Millisecond):
		}
	}
	t.Logf("the rehearsal begins after %v, in which a turn took %v at most", took, worst)
	if worst > took/2 {
		t.Errorf("the loop was held up for %v of %v", worst, took)
	}
}
