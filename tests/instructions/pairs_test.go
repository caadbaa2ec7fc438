package instructions

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/list"
	"weir/control/stage"
	digests "weir/control/stage/digest"
	"weir/control/stage/first"
	"weir/control/stage/police"
	"weir/control/stage/tracker"
	"weir/filter/blocked"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/sfb"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
)

// The page with the table of pairs, and the line behind which it begins.
const (
	page   = "../../docs/costs.md"
	marker = "## Instructions\n"
)

// option adds one thing to a configuration, or to its packet.
type option struct {
	name string
	add  func(*configuration)
	tag  bool // the packet has a VLAN tag
}

func tracked(t tracker.Counting) func(*configuration) {
	return func(c *configuration) {
		c.config.Parts, c.config.Seed = slices.Clone(c.config.Parts), hash.Seed{1}
		for i, p := range c.config.Parts {
			if of, is := p.(*tracker.Part); is {
				c.config.Parts[i] = &tracker.Part{In: append(slices.Clone(of.In), t)}
				return
			}
		}
		c.config.Parts = append(c.config.Parts, &tracker.Part{In: []tracker.Counting{t}})
	}
}

func withPart(p engine.Part) func(*configuration) {
	return func(c *configuration) { c.config.Parts = append(slices.Clone(c.config.Parts), p) }
}

func options(t *testing.T) []option {
	t.Helper()
	recorded, err := blocked.For(100_000, 0.01)
	if err != nil {
		t.Fatal(err)
	}
	limits := &police.Limits{}
	if limits.Limits, err = sfb.Plan(sfb.Fair, sfb.MaxPacketRate, true, 20*time.Millisecond, time.Minute); err != nil {
		t.Fatal(err)
	}
	limits.V4, limits.V6 = stage.Key("flow").Shapes()
	flows := first.Part{Lines: 2048, Events: 100}
	flows.V4, flows.V6 = stage.Key("flow").Shapes()
	return []option{
		{name: "failsafe port", add: func(c *configuration) {
			c.config.Policy.FailsafePorts = []verdict.FailsafePort{{Proto: 6, Port: 22}}
		}},
		{name: "allow list", add: func(c *configuration) { c.allow = true }},
		{name: "list with ports", add: func(c *configuration) {
			c.rule = &verdict.Rule{Ports: []verdict.PortRange{{Proto: 6, First: 443, Last: 443}}}
		}},
		{name: "60 lists", add: func(c *configuration) { c.lists60 = true }},
		{name: "17 prefix lengths", add: func(c *configuration) {
			for bits := 16; bits < 32; bits++ {
				c.beside.V4 = append(c.beside.V4, list.V4(uint32(bits)<<19, bits))
			}
		}},
		{name: "listed flow", add: func(c *configuration) {
			c.beside.Flows = append(c.beside.Flows, key.Tuple{
				Src: netip.MustParseAddr("192.0.2.20"), Dst: netip.MustParseAddr("192.0.2.21"),
				Proto: 17, HasPorts: true, SrcPort: 53, DstPort: 5353,
			}.Key())
		}},
		{name: "VLAN tag", tag: true},
		{name: "monitor mode", add: func(c *configuration) { c.config.Policy.Monitor = true }},
		{name: "tracker of sources", add: tracked(tracker.DefaultSpec("src").Counting())},
		{name: "tracker of destinations", add: tracked(tracker.DefaultSpec("dst").Counting())},
		{name: "detector of scans", add: tracked(tracker.DefaultScan("src").Spec().Counting())},
		{name: "policer", add: withPart(&police.Part{Interfaces: []stage.At[*police.Limits]{{Is: limits}}})},
		{name: "digests", add: withPart(&digests.Part{Filter: recorded})},
		{name: "first-seen flows", add: withPart(&flows)},
		{name: "approximate mode", add: func(c *configuration) { c.config.Mode = membership.Approximate }},
	}
}

// cost counts the instructions for the second clean UDP packet of a flow over IPv4 with some options, and reports
// whether they can be configured together.
func cost(t *testing.T, chosen ...option) (executed int, ok bool) {
	t.Helper()
	var c configuration
	p := packets()[1].frame
	for _, o := range chosen {
		if o.tag {
			p = slices.Insert(slices.Clone(p), 12, 0x81, 0, 0, 7)
			continue
		}
		o.add(&c)
	}
	if c.rule != nil && c.config.Mode == membership.Approximate {
		return 0, false
	}
	g, stats := c.build(t)
	spec, maps := c.bind(t, g, stats)
	m, err := newMachine(spec, bpf.WeirProgWeir, maps)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first finds nothing of its flow, and may begin an interval
		if _, executed, err = m.run(p); err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
	}
	return executed, true
}

// TestPairs compares the instructions of each option alone, and of all pairs, with the table in
// docs/costs.md.
func TestPairs(t *testing.T) {
	lab.Root(t)
	if !*update {
		long.Only(t, "a minute")
	}
	plain, _ := cost(t)
	all := options(t)
	var b bytes.Buffer
	fmt.Fprintf(&b, "\nA clean UDP packet over IPv4, the second of its flow, takes %d instructions with none of the options.\n\n", plain)
	heading := []string{"", "", "alone"}
	for i := range all {
		heading = append(heading, fmt.Sprint(i+1))
	}
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(heading, " | "), strings.Repeat("---|", len(heading)))
	alone := make([]int, len(all))
	for i, o := range all {
		executed, _ := cost(t, o)
		alone[i] = executed - plain
	}
	for i, o := range all {
		cells := []string{fmt.Sprint(i + 1), o.name, fmt.Sprint(alone[i])}
		for j, other := range all {
			cell := ""
			if j < i {
				cell = "–"
				if executed, ok := cost(t, other, o); ok {
					cell = fmt.Sprint(executed - plain - alone[i] - alone[j])
				}
			}
			cells = append(cells, cell)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	text := must.Read(t, page)
	head, committed, ok := strings.Cut(string(text), marker)
	if !ok {
		t.Fatalf("%s has no heading %q", page, marker)
	}
	if *update {
		if err := os.WriteFile(page, []byte(head+marker+b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !near(committed, b.String()) {
		t.Errorf("%s has other figures: go test ./tests/instructions -run TestPairs -update\n%s", page, b.String())
	}
}

// near reports whether two texts differ by numbers alone, each by little: keys that are drawn
// anew make other constants, and what a pair adds is computed of four figures.
func near(a, b string) bool {
	words, others := strings.Fields(a), strings.Fields(b)
	return slices.EqualFunc(words, others, func(x, y string) bool {
		m, err := strconv.Atoi(x)
		n, other := strconv.Atoi(y)
		return x == y || err == nil && other == nil && max(m-n, n-m) <= 2*slack
	})
}

// A figure that has grown by twenty instructions is noticed.
func TestNear(t *testing.T) {
	for b, want := range map[string]bool{"takes 139 |": true, "takes 129 |": true, "takes 159 |": false, "takes 119 |": false, "has 139 |": false, "takes 139": false} {
		if near("takes 139 |", b) != want {
			t.Errorf("%q: want near: %t", b, want)
		}
	}
}
