package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/fleet/wire"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/timed"
	"weir/tests/wait"
)

// patternsFleet is a hub with nodes that filter, each at a wire of its own.
type patternsFleet struct {
	*fleetHub
	names []string
	reads []*configured
	nodes []*running
	labs  []*lab.Lab
}

func newPatternsFleet(t *testing.T, nodes int) *patternsFleet {
	t.Helper()
	f := &patternsFleet{fleetHub: newFleetHub(t)}
	f.start("")
	for i := range nodes {
		l := lab.New(t)
		r := configure(t, l.B)
		name := fmt.Sprintf("edge-%d", i+1)
		r.c.StateDir, r.c.Fleet.Enroll = config.Path(t.TempDir()), config.Path(f.enroll(name, map[bool]string{true: "canary", false: "rest"}[i == 0]))
		r.c.Failsafe.Prefixes = []verdict.FailsafePrefix{{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(16 * i)}), 28)}}
		f.names, f.reads, f.labs, f.nodes = append(f.names, name), append(f.reads, r), append(f.labs, l), append(f.nodes, begin(t, r))
	}
	wait.For(t, "that all nodes answer", func() bool {
		now, err := f.Floods(t.Context(), nil)
		return err == nil && len(now.Nodes) == nodes && !slices.ContainsFunc(now.Nodes, func(n api.NodeFloods) bool { return n.Floods == nil })
	})
	return f
}

// change changes patterns, and returns the first of them once all nodes have said what they do with each: the
// answer waits for them, but not for long.
func (f *patternsFleet) change(c api.FleetFloodsChange) api.FleetPattern {
	f.t.Helper()
	done, err := f.ChangeFloods(f.t.Context(), c)
	if err != nil || !done.Published || len(done.Patterns) == 0 {
		f.t.Fatalf("%+v, %v", done, err)
	}
	for i := range done.Patterns {
		p := &done.Patterns[i]
		wait.For(f.t, "that all nodes have "+p.Pattern, func() bool {
			if !slices.ContainsFunc(p.Nodes, func(n api.NodePattern) bool {
				return n.State == api.PatternAwaited && n.Why == "" || p.Ended && (n.State == api.PatternEnforced || n.State == api.PatternOnTrial)
			}) {
				return true
			}
			now, err := f.Floods(f.t.Context(), nil)
			if at := slices.IndexFunc(now.Patterns, func(o api.FleetPattern) bool { return o.ID == p.ID }); err == nil && at >= 0 {
				*p = now.Patterns[at]
			}
			return false
		})
	}
	return done.Patterns[0]
}

// has returns what a node's daemon has of patterns, by its own status.
func (f *patternsFleet) has(node int) []api.PoliceOverride {
	return f.nodes[node].readings.Status().Policed
}

// Patterns that the hub publishes are enforced at all nodes at once, but where a node's own guards refuse
// them, which the answer names. They end everywhere by one command, and outlast the hub.
func TestFleetPatterns(t *testing.T) {
	f := newPatternsFleet(t, 8)
	flood := f.labs[0].A.StartFlood(t, 0.1, func(src netip.Addr) []byte {
		frame := append(make([]byte, 12), 8, 0,
			0x45, 0, 0, 28, 0, 1, 0, 0, 60, 17, 0, 0, 0, 0, 0, 0, 203, 0, 113, 1, // IPv4
			0, 123, 0, 9, 0, 8, 0, 0) // UDP
		copy(frame[26:30], src.AsSlice())
		return frame
	})
	defer flood.Stop()
	for _, c := range []api.FleetFloodsChange{
		{Patterns: []string{"udp dport 9 sport 123"}, For: 3600, Reason: "test"},
		{Patterns: []string{"udp dport 10 sport 123"}, For: 3600}, // programs have patterns already
	} {
		if p := f.change(c); p.In(api.PatternEnforced) != 8 || len(p.Nodes) != 8 || p.Pattern == c.Patterns[0] { // it is in order
			t.Fatalf("%+v", p)
		}
	}
	wait.For(t, "that a node drops packets", func() bool { return f.has(0)[0].Held > 0 })

	refused := f.change(api.FleetFloodsChange{Patterns: []string{"udp sport 53 src 203.0.113.32/28"}, For: 3600})
	for i, n := range refused.Nodes {
		if bad := i == 2; (n.State == api.PatternRefused) != bad || bad && !strings.Contains(n.Why, "would hold back the failsafe prefix 203.0.113.32/28") {
			t.Errorf("%+v", n)
		}
	}
	counted := f.change(api.FleetFloodsChange{Patterns: []string{"udp dport 9"}, For: 60, Trial: 60})
	if counted.In(api.PatternOnTrial) != 8 {
		t.Errorf("%+v", counted)
	}
	canary := f.change(api.FleetFloodsChange{Patterns: []string{"udp dport 11 sport 123"}, For: 60, Labels: []string{"canary"}})
	if len(canary.Nodes) != 1 || canary.In(api.PatternEnforced) != 1 || len(f.has(1)) != 4 || len(f.has(0)) != 5 {
		t.Errorf("%+v, %+v", canary, f.has(1))
	}
	f.stop()
	f.start("")
	wait.For(t, "that all nodes are there again", func() bool {
		now, err := f.Floods(t.Context(), nil)
		return err == nil && len(now.Patterns) == 5 && now.Patterns[0].In(api.PatternEnforced) == 8 && now.Patterns[2].In(api.PatternEnforced) == 7
	})
	f.change(api.FleetFloodsChange{Off: true})
	for i := range f.nodes {
		if left := f.has(i); len(left) > 0 {
			t.Errorf("%s: %+v", f.names[i], left)
		}
	}
}

// A pattern is enforced on eight nodes of one machine within two seconds, but for the first, which has all of
// them build their programs anew at once.
func TestFleetPatternsInTime(t *testing.T) {
	timed.Alone(t)
	f := newPatternsFleet(t, 8)
	for i := range 4 {
		began := time.Now()
		p := f.change(api.FleetFloodsChange{Patterns: []string{fmt.Sprintf("udp dport %d sport 123", 9+i)}, For: 3600})
		took := time.Since(began)
		t.Logf("pattern %d is enforced on %d nodes after %v", i+1, p.In(api.PatternEnforced), took.Round(time.Millisecond))
		if i > 0 && took > 2*time.Second {
			t.Errorf("a pattern is enforced after %v, want at most 2s", took)
		}
	}
}

// A node that was away gets what is published for the time that is left, and nothing that is over or was
// ended. What it has ended itself does not come back, also after restarts.
func TestFleetPatternsAway(t *testing.T) {
	f := newPatternsFleet(t, 2)
	f.nodes[1].stop()
	const ended, stays, short = "udp sport 1", "udp sport 2", "udp sport 3"
	until := time.Now().Add(time.Hour)
	for text, seconds := range map[string]float64{ended: 3600, stays: 3600, short: 1.5} {
		if done, err := f.ChangeFloods(t.Context(), api.FleetFloodsChange{Patterns: []string{text}, For: seconds}); err != nil || !done.Published {
			t.Fatalf("%+v, %v", done, err)
		}
	}
	f.change(api.FleetFloodsChange{Patterns: []string{ended}, Off: true})
	f.stop()
	f.start("")
	wait.For(t, "that a pattern is over", func() bool { return len(f.has(0)) == 1 })
	f.nodes[1] = begin(t, f.reads[1])
	wait.For(t, "the pattern at the node that was away", func() bool { return len(f.has(1)) > 0 })
	for i := range f.nodes {
		if is := f.has(i); len(is) != 1 || is[0].Pattern != stays || is[0].Fleet == "" || is[0].Until.Sub(until).Abs() > 30*time.Second {
			t.Errorf("%s has %+v", f.names[i], is)
		}
	}
	if _, err := f.nodes[1].policing.SetPolice(t.Context(), api.PoliceChange{Pattern: stays, Off: true}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		f.change(api.FleetFloodsChange{Patterns: []string{short}, For: 3600}) // which has all nodes read a catalog
		if is := f.has(1); len(is) != 1 || is[0].Pattern != short {
			t.Errorf("a pattern that a command has ended at the node is back: %+v", is)
		}
		f.nodes[1].stop()
		if _, err := os.Stat(filepath.Join(string(f.reads[1].c.StateDir), policeFile)); err != nil {
			t.Fatal(err)
		}
		f.nodes[1] = begin(t, f.reads[1])
		wait.For(t, "the node", func() bool { return len(f.has(1)) > 0 })
	}
	wait.For(t, "that the node says so", func() bool {
		now, err := f.Floods(t.Context(), nil)
		at := slices.IndexFunc(now.Patterns, func(p api.FleetPattern) bool { return p.Pattern == stays })
		return err == nil && at >= 0 && now.Patterns[at].In(api.PatternEnforced) == 1 && strings.Contains(now.Patterns[at].Nodes[1].Why, "a command has ended it, by ")
	})
}

// A pattern of the hub leaves a limit of the host itself for the same packets alone, follows that where it ends
// first, and does not come back once it was ended. One that is over, or cannot be, is not set.
func TestTakePatterns(t *testing.T) {
	t.Parallel()
	d := begin(t, configure(t, lab.New(t).B))
	now := time.Now()
	const text = "udp sport 123"
	take := func(what, want string, all ...wire.Pattern) {
		t.Helper()
		if err := d.policing.TakePatterns(t.Context(), all, now); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, o := range d.readings.Status().Policed {
			got += o.Pattern + " " + o.Fleet + "; "
		}
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	limit := func(c api.PoliceChange) {
		t.Helper()
		c.Pattern = text
		if _, err := d.policing.SetPolice(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	hub := func(id string, left time.Duration) wire.Pattern {
		return wire.Pattern{ID: id, Pattern: text, Rate: "0pps", Until: now.Add(left)}
	}
	off := hub("2", time.Hour)
	off.Off = true
	limit(api.PoliceChange{Rate: "0pps", For: 600})
	take("with a limit of the host", text+" ; ", hub("1", time.Hour))
	take("to end", text+" ; ", off)
	limit(api.PoliceChange{Off: true})
	take("without it", text+" 1; ", hub("1", time.Hour))
	take("anew", text+" 2; ", hub("2", time.Hour))
	take("not named", text+" 2; ")
	take("ended", "", off)
	take("by an older copy", "", hub("2", time.Hour))
	take("over", "", hub("3", -time.Second))
	wide := hub("4", time.Hour)
	wide.Pattern = "ttl 3"
	take("too wide", text+" 5; ", wide, hub("5", time.Hour))
	if all := d.API().Patterns(); len(all) != 2 || all[0].State != api.PatternRefused || !strings.Contains(all[0].Why, "a protocol, or a destination") || all[1].State != api.PatternEnforced {
		t.Errorf("%+v", all)
	}
}
