package attach

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weir/bpf" //nolint:depguard // the places of constants, for a test only
	"weir/control/engine"
	"weir/control/stage/loop"
	"weir/filter/icarus"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// edgesAt returns whether the program that is attached takes its interface for an edge of its loop
// domain, and the indexes of those that it takes for edges.
func edgesAt(t *testing.T, i *managedInterface) (own bool, edges []uint32) {
	t.Helper()
	spec, err := bpf.LoadWeir()
	if err != nil {
		t.Fatal(err)
	}
	own = constants(t, i)[spec.Variables[bpf.WeirVarLoopEdge].Offset] != 0
	m := mapOf(t, i, bpf.WeirMapLoopEdges)
	defer m.Close()
	var key, value uint32
	for all := m.Iterate(); all.Next(&key, &value); {
		edges = append(edges, key)
	}
	slices.Sort(edges)
	return own, edges
}

// buildNode returns an engine with these edges of a loop domain.
func buildNode(t *testing.T, edges ...string) (*engine.Generation, Metadata) {
	t.Helper()
	n, err := icarus.NewNode(1, 0, icarus.Key{}, icarus.Geometry{Size: 64, K: 5, Confirm: 1})
	if err != nil {
		t.Fatal(err)
	}
	return buildKernel(t, "10.0.0.1\n", engine.Config{Parts: []engine.Part{&loop.Part{Node: n, Edges: edges}}}, 1)
}

// Programs know the edges of a loop domain, and whether they are at one, from the first packet on where
// the interface is there when they are attached, and as soon as Follow has looked at one that appears.
// A rollout of other edges brings these, one that is given up leaves none, and a restart keeps them.
func TestEdges(t *testing.T) {
	long.Seconds(t)
	l := lab.New(t)
	conf, targets := options(t, new(bytes.Buffer), l.B)
	conf.Log = slog.New(slog.DiscardHandler)
	targets = append(targets, Target{Target: netif.Target{Netns: l.B.Netns, Iface: "wan*"}})
	g, d := buildNode(t, l.B.Iface, "wan[12]")
	m := NewManager(conf)
	if err := m.Start(g, d, targets); err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			m.Stop(false)
		}
	}()
	follow := func() {
		t.Helper()
		if err := m.Follow(); err != nil {
			t.Fatal(err)
		}
		m.FollowDevices()
	}
	indexes := make(map[string]uint32)
	check := func(when string, edges ...string) {
		t.Helper()
		var want []uint32
		for _, name := range edges {
			want = append(want, indexes[name])
		}
		slices.Sort(want)
		for _, i := range m.interfaces {
			own, got := edgesAt(t, i)
			if own != slices.Contains(edges, i.Target.Iface) || !slices.Equal(got, want) {
				t.Errorf("%s: %s is an edge: %t, edges %v, want %v", when, i.Target.Iface, own, got, want)
			}
		}
	}
	follow() // which watches
	indexes[l.B.Iface] = uint32(m.interfaces[0].index)
	check("at the start", l.B.Iface)

	for _, name := range []string{"wan1", "wan3"} {
		at(t, l.B, addVeth(name))
		wait.For(t, "hotplug has attached", func() bool {
			m.hotplug.mu.Lock()
			defer m.hotplug.mu.Unlock()
			return slices.ContainsFunc(m.hotplug.arrived, func(i *managedInterface) bool { return i.Target.Iface == name })
		})
		m.hotplug.mu.Lock()
		i := m.hotplug.arrived[0]
		m.hotplug.mu.Unlock()
		if own, edges := edgesAt(t, i); own || len(edges) > 0 {
			t.Errorf("a preloaded program is at an edge: %t, and knows %v", own, edges)
		}
		before := i.ProgramID()
		follow()
		i = m.interfaces[len(m.interfaces)-1]
		if i.Target.Iface != name || i.engine != nil || (i.ProgramID() != before) != (name == "wan1") {
			t.Errorf("%s has another program: %t", i.Target.Iface, i.ProgramID() != before)
		}
		indexes[name] = uint32(i.index)
	}
	check("when others have appeared", l.B.Iface, "wan1")

	next, d := buildNode(t, "wan[123]")
	r, err := m.Prepare(next, d, targets)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	check("when others are given up", l.B.Iface, "wan1")
	if err := m.roll(t, next, d, targets); err != nil {
		t.Fatal(err)
	}
	check("with others", "wan1", "wan3")

	last, d := buildNode(t, "wan[123]")
	if err := m.roll(t, last, d, nil); err != nil { // other lists
		t.Fatal(err)
	}
	check("with other lists", "wan1", "wan3")

	if err := m.Stop(true); err != nil {
		t.Fatal(err)
	}
	stopped = true
	m = NewManager(conf)
	if err := m.Start(last, d, targets); err != nil {
		t.Fatal(err)
	}
	defer m.Stop(false)
	check("after a restart", "wan1", "wan3")

	bad, d := buildNode(t, "wan[")
	if _, err := m.Prepare(bad, d, targets); err == nil || !strings.Contains(err.Error(), "syntax error in pattern") {
		t.Fatalf("a bad pattern: %v", err)
	}
	check("when others cannot be set", "wan1", "wan3")
}

// An interface that is renamed to or from an edge's name gets the program for the name.
func TestEdgeRenamed(t *testing.T) {
	l := lab.New(t)
	conf, targets := options(t, new(bytes.Buffer), l.B)
	conf.Log = slog.New(slog.DiscardHandler)
	targets = append(targets, Target{Target: netif.Target{Netns: l.B.Netns, Iface: "wan*"}})
	g, d := buildNode(t, "wan1")
	m := NewManager(conf)
	if err := m.Start(g, d, targets); err != nil {
		t.Fatal(err)
	}
	defer m.Stop(false)
	for _, name := range []string{"wan1", "wan2", "wan1"} {
		at(t, l.B, with(l.B.Iface, func(i netlink.Link) error {
			return errors.Join(netlink.LinkSetDown(i), netlink.LinkSetName(i, name), netlink.LinkSetUp(i))
		}))
		l.B.Iface = name
		wait.For(t, "it is filtered by its name", func() bool {
			if err := m.Follow(); err != nil {
				t.Fatal(err)
			}
			m.FollowDevices()
			return slices.ContainsFunc(m.interfaces, func(i *managedInterface) bool {
				return i.Target.Iface == name && i.filtered() && i.engine == nil
			})
		})
		at := slices.IndexFunc(m.interfaces, func(i *managedInterface) bool { return i.Target.Iface == name })
		if own, edges := edgesAt(t, m.interfaces[at]); own != (name == "wan1") || len(edges) > 0 != own {
			t.Errorf("%s is an edge: %t, edges %v", name, own, edges)
		}
	}
}
