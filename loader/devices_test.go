package loader

import (
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weir/bpf"
	"weir/loader/netif"
	"weir/tests/lab"
)

// knowing is a part whose programs know sets of devices.
type knowing map[string]Devices

func (knowing) Constants(netif.Target, Seed) map[string]any { return make(map[string]any) }
func (k knowing) Devices(netif.Target) map[string]Devices   { return k }
func (knowing) General(netif.Target) string                 { return "" }
func keysOf(t *testing.T, s *Stats, name string) (got []uint32) {
	t.Helper()
	var key, value uint32
	all := s.maps[name].m.Iterate()
	for all.Next(&key, &value) {
		got = append(got, key)
	}
	if err := all.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	return got
}

// A set of interfaces follows what it is set to, and what is over its number is refused.
func TestSetKeys(t *testing.T) {
	lab.Root(t)
	s, err := NewStats(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	edges := s.maps[bpf.WeirMapLoopEdges].m
	for _, want := range [][]uint32{{1, 2, 3}, {3, 4}, nil} {
		if err := setKeys(edges, want); err != nil {
			t.Fatal(err)
		}
		if got := keysOf(t, s, bpf.WeirMapLoopEdges); !slices.Equal(got, want) {
			t.Errorf("edges %v, want %v", got, want)
		}
	}
	var many []uint32
	for i := range uint32(5000) {
		many = append(many, i+1)
	}
	if err := setKeys(edges, many); err == nil || !strings.Contains(err.Error(), "5000 interfaces, where there is room for 4096") {
		t.Errorf("5000 edges: %v", err)
	}
}

// Programs know the devices that exist, and whether their own interface is one, by the name that is
// asked about. What cannot be found keeps nothing else from being written, and stays as it was.
func TestFollowDevices(t *testing.T) {
	l := lab.New(t)
	var wire uint32
	l.B.In(t, func() {
		i, err := netlink.LinkByName(l.B.Iface)
		if err != nil {
			t.Fatal(err)
		}
		wire = uint32(i.Attrs().Index)
	})
	const lo = 1 // in each namespace
	insides := knowing{bpf.WeirMapReplyInsides: {Names: []string{"lo"}}}
	edges := func(names ...string) Part {
		return knowing{bpf.WeirMapLoopEdges: {Names: names, Own: bpf.WeirVarLoopEdge}}
	}
	s, err := NewStats(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, step := range []struct {
		does  string
		part  Part // beside insides
		netns string
		iface string
		fails bool
		is    bool
		edges []uint32
	}{
		{"none", edges(), l.B.Netns, "lo", false, false, nil},
		{"two", edges("l?", l.B.Iface), l.B.Netns, "lo", false, true, []uint32{lo, wire}},
		{"by the name of a third", edges("lo", l.B.Iface), l.B.Netns, "other", false, false, []uint32{lo, wire}},
		{"by its name alone", edges(l.B.Iface, "other"), l.B.Netns, "other", false, true, []uint32{wire}},
		{"a bad pattern", edges("eth["), l.B.Netns, "other", true, true, []uint32{wire}},
		{"no namespace", edges("lo"), "weir-no-such", "other", false, true, []uint32{wire}},
		{"none any more", edges(), l.B.Netns, "other", false, false, nil},
		{"one", edges("lo"), l.B.Netns, "lo", false, true, []uint32{lo}},
		{"without the part", knowing{}, l.B.Netns, "lo", false, false, []uint32{lo}}, // which no program reads
	} {
		for _, parts := range [][]Part{{step.part, insides}, {insides, step.part}} {
			if err := setKeys(s.maps[bpf.WeirMapReplyInsides].m, nil); err != nil {
				t.Fatal(err)
			}
			g := &Generation{config: Config{Parts: parts}}
			err := g.Follow(netif.Target{Netns: step.netns, Iface: step.iface}, s)
			if (err != nil) != step.fails || err != nil && !strings.Contains(err.Error(), "set the interfaces of loop_edges: ") {
				t.Errorf("%s: %v", step.does, err)
			}
			if is := s.IsDevice(); is != step.is || is != (s.devices().constants()[bpf.WeirVarLoopEdge] == Flag(true)) {
				t.Errorf("%s: on a device: %t, constants %v", step.does, is, s.devices().constants())
			}
			if got := keysOf(t, s, bpf.WeirMapLoopEdges); !slices.Equal(got, step.edges) {
				t.Errorf("%s: edges %v, want %v", step.does, got, step.edges)
			}
			if got := keysOf(t, s, bpf.WeirMapReplyInsides); len(got) != 1 && step.netns == l.B.Netns {
				t.Errorf("%s: insides %v", step.does, got)
			}
		}
	}
}
