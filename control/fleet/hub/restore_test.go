package hub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/filter/snapshot"
	"weir/tests/long"
	"weir/tests/wait"
)

// copyOf copies a directory of the fleet to a new place.
func (f *fleet) copyOf(name, to string) {
	f.t.Helper()
	var err error
	for range 10 { // files come and go while the hub runs
		if err = os.RemoveAll(filepath.Join(f.dir, to)); err == nil {
			err = os.CopyFS(filepath.Join(f.dir, to), os.DirFS(filepath.Join(f.dir, name)))
		}
		if err == nil {
			return
		}
	}
	f.t.Fatal(err)
}

// truth returns what the hub has, by list.
func (f *fleet) truth() map[string]*list.Set {
	f.t.Helper()
	all := make(map[string]*list.Set)
	if err := f.hub.Do(f.t.Context(), func() error {
		for _, l := range f.hub.lists.all {
			all[l.Name] = l.history.Contents()
		}
		return nil
	}); err != nil {
		f.t.Fatal(err)
	}
	return all
}

// differs says in what a host differs from the hub, "" for nothing.
func (h *host) differs(truth map[string]*list.Set) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, want := range truth {
		have := h.sets[name]
		if have == nil {
			return fmt.Sprintf("%s has no list %s", h.name, name)
		}
		if d := want.Diff(have); d.Len() > 0 {
			return fmt.Sprintf("%s: list %s has %d entries, the hub %d: %d are missing, %d too many", h.name, name, have.Len(), want.Len(), d.Add.Len(), d.Remove.Len())
		}
	}
	return ""
}

// converged waits until all hosts have the contents of the hub and the hub says so.
func (f *fleet) converged(hosts []*host) {
	f.t.Helper()
	wait.Until(f.t, func() error {
		wrong := ""
		truth := f.truth()
		for _, h := range hosts {
			if d := h.differs(truth); d != "" {
				wrong = d
			}
		}
		if wrong == "" {
			s, err := f.hub.Fleet(f.t.Context())
			if err != nil {
				f.t.Fatal(err)
			}
			for _, n := range s.Nodes {
				if n.State != api.NodeCurrent {
					wrong = fmt.Sprintf("%s is %s: %+v", n.Name, n.State, n.Report)
				}
			}
		}
		if wrong == "" {
			return nil
		}
		s, err := f.hub.Fleet(f.t.Context())
		return errors.Join(fmt.Errorf("%s\nproblems of the hub: %q", wrong, s.Problems), err)
	})
}

// honest looks until the end of the test whether the hub calls a node current that has
// other entries than the hub.
func (f *fleet) honest() (end func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	hub := f.hub
	running.Go(func() {
		for ctx.Err() == nil {
			sums := func() map[string]string {
				all := make(map[string]string)
				_ = hub.Do(ctx, func() error {
					for _, l := range hub.lists.all {
						all[l.Name] = snapshot.Of(l.history.Contents().Groups()).String()
					}
					return nil
				})
				return all
			}
			before := sums()
			s, err := hub.Fleet(ctx)
			after := sums()
			if err != nil || ctx.Err() != nil { // the hub was not asked
				continue
			}
			for _, n := range s.Nodes {
				if n.State != api.NodeCurrent {
					continue
				}
				for _, l := range n.Report.Lists {
					if before[l.Name] == after[l.Name] && l.Sum != after[l.Name] && l.Active != (wire.Place{}) {
						f.t.Errorf("%s is current, with the sum %s of list %s in version %v: the hub's is %s", n.Name, l.Sum, l.Name, l.Active, after[l.Name])
						return
					}
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	return func() { cancel(); running.Wait() }
}

// A hub that goes on from an older copy of its state, with the broker's stream or without,
// brings all nodes to its contents soon, and reports what has happened.
func TestRestored(t *testing.T) {
	long.Seconds(t)
	t.Parallel() // it waits a lot
	for _, c := range []struct {
		name    string
		broker  bool          // is restored, too: a copy of the machine
		between int           // changes since the copy
		after   int           // changes at once after the start
		old     time.Duration // the age of the copy
		clock   time.Duration // by how much the restored hub's clock is wrong
	}{
		{"state, an hour old", false, 12, 0, time.Hour, 0},
		{"state, a day old, more changes", false, 12, 20, 24 * time.Hour, 0},
		{"machine, an hour old", true, 12, 0, time.Hour, 0},
		{"machine, a day old, fewer changes", true, 12, 3, 24 * time.Hour, 0},
		{"machine, a day old, as many changes", true, 12, 12, 24 * time.Hour, 0},
		{"machine, a day old, more changes", true, 12, 20, 24 * time.Hour, 0},
		{"machine, its clock restored, too", true, 12, 3, 24 * time.Hour, -24 * time.Hour},
		{"machine, nothing had changed", true, 0, 3, time.Hour, 0},
		{"machine, nothing had changed, its clock restored, too", true, 0, 0, time.Hour, -time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			f.reserve()
			f.start("")
			var hosts []*host
			for i := range 3 {
				hosts = append(hosts, f.host(fmt.Sprintf("edge-%d", i)))
			}
			for i := range 5 {
				f.change(block(fmt.Sprintf("192.0.2.%d", i)))
			}
			f.converged(hosts)
			f.stop()
			f.copyOf("hub", "backup/hub")
			f.copyOf("broker", "backup/broker")

			copied := f.hub.store.Used()
			f.clock = c.old
			f.start("")
			for i := range c.between {
				f.change(block(fmt.Sprintf("198.51.100.%d", i)))
			}
			f.converged(hosts)
			// Without a change, they had all lists before this hub has published anything.
			wait.For(t, "nodes have a later catalog than the copy", func() bool {
				return !slices.ContainsFunc(hosts, func(h *host) bool { return !copied.Before(h.Catalog()) })
			})
			f.stop()

			f.copyOf("backup/hub", "hub")
			if c.broker {
				f.copyOf("backup/broker", "broker")
			} else if err := os.RemoveAll(filepath.Join(f.dir, "broker")); err != nil {
				t.Fatal(err)
			}
			f.clock += time.Minute + c.clock
			began := time.Now()
			f.start("")
			defer f.honest()()
			for i := range c.after {
				f.change(block(fmt.Sprintf("203.0.113.%d", i)))
			}
			f.converged(hosts)
			t.Logf("converged %v after the start", time.Since(began).Round(time.Millisecond))

			// Nodes that have all lists may still have a catalog that the hub has forgotten.
			lost := c.between > 0 || c.clock < 0
			wait.Until(t, func() error {
				s, err := f.hub.Fleet(t.Context())
				if err == nil && strings.Contains(strings.Join(s.Problems, "\n"), "older copy") != lost {
					err = fmt.Errorf("problems %q, where an older copy is one: %t", s.Problems, lost)
				}
				return err
			})
			if got := slices.ContainsFunc(f.hub.Audit(api.MaxAudit), func(r api.AuditRecord) bool { return r.Change == audit.NewEpoch }); got != lost {
				t.Errorf("audit %+v", f.hub.Audit(api.MaxAudit))
			}
		})
	}
}

// A node that makes up what it has, without the hub's signature, has no epoch begin, whatever it
// says. It is never called current.
func TestClaims(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	honest := f.host("edge-1")
	_, liar := f.enroll("edge-2")
	f.change(block("192.0.2.1"))
	f.converged1(honest)
	before := f.hub.store.Used().Epoch
	true1 := f.has(config.FleetBlock)
	var seal string
	wait.For(t, "edge-1 reports a seal", func() bool {
		s, err := f.hub.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range s.Nodes {
			if n.Name == "edge-1" && n.Report != nil {
				for _, l := range n.Report.Lists {
					if l.ID == true1.ID {
						seal = l.Seal
					}
				}
			}
		}
		return seal != ""
	})
	claims := []wire.Status{
		{Catalog: wire.Place{Epoch: 1 << 62, Version: 1}, Seal: seal},
		{Catalog: wire.Place{Epoch: before, Version: 1<<64 - 1}, Seal: seal},
	}
	for _, change := range []func(*wire.ListStatus){
		func(s *wire.ListStatus) { s.Active.Version++ },
		func(s *wire.ListStatus) { s.Active.Epoch += 1000 },
		func(s *wire.ListStatus) { s.ID = wire.NewID() },
		func(s *wire.ListStatus) { s.ID, s.Sum = "", "00" },
		func(s *wire.ListStatus) { s.Sum = "00" },
	} {
		l := true1
		l.Seal = seal
		change(&l)
		claims = append(claims, wire.Status{Lists: []wire.ListStatus{l, f.has(config.FleetAllow)}}) // it lacks nothing
	}
	for range 3 {
		for i, c := range claims {
			c.Version = fmt.Sprint(i)
			wait.For(t, "the hub takes a claim", func() bool { // it ignores what comes too often
				if err := liar.Publish(wire.StatusSubject("edge-2"), status(t, c)); err != nil {
					t.Fatal(err)
				}
				if err := liar.Flush(); err != nil {
					t.Fatal(err)
				}
				s, err := f.hub.Fleet(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range s.Nodes {
					if n.Name == "edge-2" && n.Report != nil && n.Report.Version == c.Version {
						if n.State == api.NodeCurrent {
							t.Errorf("current with %+v", n.Report.Lists)
						}
						return true
					}
				}
				return false
			})
		}
	}
	c := f.change(block("192.0.2.2"))
	f.converged1(honest)
	epochs := 0
	for _, r := range f.hub.Audit(api.MaxAudit) {
		if r.Change == audit.NewEpoch {
			epochs++
		}
	}
	if epochs != 0 || c.Version.Epoch > uint64(time.Now().Unix())+10 || !c.Published {
		t.Errorf("%d epochs began, the last is %d, before %d", epochs, c.Version.Epoch, before)
	}
}

// converged1 waits until a host has the contents of the hub.
func (f *fleet) converged1(h *host) {
	f.t.Helper()
	wait.For(f.t, h.name+" has the contents of the hub", func() bool { return h.differs(f.truth()) == "" })
}

// Where a list cannot enter a new epoch, as on a full disk, the others do, and nodes get them. The
// list follows when it can.
func TestEpochHalfway(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	lists := inWaves(f.feed("192.0.2.1"), "{labels: [canary], for: 2s}")
	lists = strings.Replace(lists, "{waves", "{lists: {plain: {waves: []}}, waves", 1)
	f.start(strings.Replace(lists, "lists: {drop", "lists: {plain: {entries: [203.0.113.1]}, drop", 1))
	canary, other := f.host("canary-1", "canary"), f.host("rome-1")
	other.becomes("drop", "192.0.2.1")
	f.reaches(api.RolloutDone)
	other.becomes("plain", "203.0.113.1")
	before := f.has("block").Active.Epoch
	obstacle := func(name string) string { return filepath.Join(f.dir, "hub", storeDir, "lists", name, "base-1.new") }
	for _, name := range []string{"drop", "plain"} {
		if err := os.Mkdir(obstacle(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f.hub.publisher.history(&lost{what: "a test", epoch: before, of: before})
	wait.For(t, "list block has the new epoch", func() bool { return f.has("block").Active.Epoch > before })
	c := f.change(block("198.51.100.1"))
	if !c.Published {
		t.Error("nothing is published")
	}
	for _, h := range []*host{canary, other} {
		h.becomes("block", "198.51.100.1")
		if h.entry("drop") != "192.0.2.1" || h.entry("plain") != "203.0.113.1" {
			t.Errorf("%s has %q and %q", h.name, h.entry("drop"), h.entry("plain"))
		}
	}
	problems := func() string {
		t.Helper()
		s, err := f.hub.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(s.Problems, "\n")
	}
	for _, name := range []string{"drop", "plain"} {
		if text := problems(); strings.Count(text, "list "+name+": version") != 1 {
			t.Errorf("list %s is not among the problems, once: %s", name, text)
		}
	}
	f.feed("192.0.2.2") // which waits
	for _, name := range []string{"drop", "plain"} {
		if err := os.Remove(obstacle(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"drop", "plain"} {
		wait.For(t, "list "+name+" has the new epoch", func() bool { return f.has(name).Active.Epoch == c.Version.Epoch })
	}
	other.becomes("drop", "192.0.2.2")
	f.reaches(api.RolloutDone)
	f.converged([]*host{canary, other})
	if text := problems(); strings.Contains(text, "version") {
		t.Errorf("%s", text)
	}
	epochs := 0
	for _, r := range f.hub.Audit(api.MaxAudit) {
		if r.Change == audit.NewEpoch {
			epochs++
		}
	}
	if epochs != 1 || f.has("block").Active.Epoch != c.Version.Epoch {
		t.Errorf("%d epochs began, and list block is at %v", epochs, f.has("block").Active)
	}
}
