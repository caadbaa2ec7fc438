package instructions

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/cilium/ebpf"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/list"
	"weir/control/stage"
	digests "weir/control/stage/digest"
	"weir/control/stage/first"
	"weir/control/stage/police"
	"weir/control/stage/sampler"
	"weir/control/stage/tracker"
	"weir/filter/blocked"
	"weir/filter/flood"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	framing "weir/filter/packet"
	"weir/filter/recent"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/fold"
	"weir/tests/lab"
	"weir/tests/must"
)

var update = flag.Bool("update", false, "write the figures of today to "+file)

const file = "testdata/instructions.txt"

// slack is by how much a figure may differ from the committed one: a small change of the
// program need not change the file.
const slack = 8

// configurations returns those that operators have, and one for each other option.
func configurations(t *testing.T) []configuration {
	t.Helper()
	failsafe := verdict.Policy{FailsafePorts: []verdict.FailsafePort{{Proto: 6, Port: 22}}}
	sources := []engine.Part{&tracker.Part{In: []tracker.Counting{tracker.DefaultSpec("src").Counting()}}}
	scans := []engine.Part{&tracker.Part{In: []tracker.Counting{tracker.DefaultScan("src").Spec().Counting()}}}
	var recorded digests.Part
	flows := first.Part{Lines: 2048, Events: 100}
	flows.V4, flows.V6 = stage.Key("flow").Shapes()
	cells := flows
	cells.Filter, cells.BySize = recent.IBFMC, true
	var err error
	if recorded.Filter, err = blocked.For(100_000, 0.01); err != nil {
		t.Fatal(err)
	}
	return []configuration{
		{name: "exact"},
		{name: "monitor", config: engine.Config{Policy: verdict.Policy{Monitor: true}}},
		{name: "failsafe, allow list", config: engine.Config{Policy: failsafe}, allow: true},
		{name: "failsafe, allow list nearby", config: engine.Config{Policy: failsafe}, allow: true, nearby: true},
		{name: "tracker", config: engine.Config{Parts: sources, Seed: hash.Seed{1}}},
		{name: "failsafe, allow list, tracker", config: engine.Config{Policy: failsafe, Parts: sources, Seed: hash.Seed{1}}, allow: true},
		{name: "five prefix lengths", prefixes: true},
		{name: "list with ports", rule: &verdict.Rule{Ports: []verdict.PortRange{{Proto: 6, First: 443, Last: 443}}}},
		{name: "general path", config: engine.Config{NoLean: true}},
		{name: "scans", config: engine.Config{Parts: scans, Seed: hash.Seed{1}}},
		{name: "digests", config: engine.Config{Parts: []engine.Part{&recorded}}},
		{name: "first-seen flows", config: engine.Config{Parts: []engine.Part{&flows}}},
		{name: "first-seen flows, ibf-mc", config: engine.Config{Parts: []engine.Part{&cells}}},
		{name: "approximate", config: engine.Config{Mode: membership.Approximate}},
		{name: "not sampled, one in many", config: engine.Config{Parts: []engine.Part{new(sampler.Part)}}, gap: 1000},
		{name: "not sampled, general path", config: engine.Config{Parts: []engine.Part{new(sampler.Part)}, NoLean: true}, gap: 1000},
		{name: "pattern of other addresses", config: engine.Config{Parts: patterns("tcp length 9000 dst 203.0.113.1")}},
		{name: "pattern of other fields", config: engine.Config{Parts: patterns("tcp length 9000", "udp length 9000")}},
		{name: "pattern on trial", config: engine.Config{Parts: patterns("tcp ttl 64", "udp ttl 64")}},
		{name: "sampled", config: engine.Config{Parts: []engine.Part{new(sampler.Part)}}},
	}
}

// patterns are on trial.
func patterns(texts ...string) []engine.Part {
	var all []police.Pattern
	for _, text := range texts {
		u, err := flood.ParseRule(text)
		if err != nil {
			panic(err) // it is a constant
		}
		all = append(all, police.Pattern{Rule: u, Trial: true})
	}
	return []engine.Part{police.NewPatterns(all)}
}

type configuration struct {
	name     string
	config   engine.Config
	allow    bool
	nearby   bool // what is allowed is in the networks of packets
	prefixes bool
	rule     *verdict.Rule // of the block list
	lists60  bool
	gap      uint32       // packets until the next that is sampled
	beside   list.Entries // in a list of their own
}

func (c configuration) lists() []engine.List {
	contents := func(entries ...string) *list.Set {
		var e list.Entries
		for _, text := range entries {
			p := netip.MustParsePrefix(text)
			if p.Addr().Is4() {
				a := p.Addr().As4()
				e.V4 = append(e.V4, list.V4(binary.BigEndian.Uint32(a[:]), p.Bits()))
			} else {
				e.V6 = append(e.V6, p)
			}
		}
		return e.Set()
	}
	blocked := []string{"192.0.2.1/32", "2001:db8::1/128"}
	if c.prefixes {
		blocked = append(blocked, "198.51.100.0/24", "10.0.0.0/8", "172.16.0.0/12", "203.0.113.16/28")
	}
	all := []engine.List{{Name: "blocked", Contents: contents(blocked...), Rule: c.rule}}
	if c.allow {
		allowed := []string{"198.51.100.2/32", "2001:db9::2/128"}
		if c.nearby {
			allowed = []string{"192.0.2.2/32", "2001:db8::2/128"}
		}
		all = append(all, engine.List{Name: "allowed", Allow: true, Contents: contents(allowed...)})
	}
	if c.beside.Len() > 0 {
		all = append(all, engine.List{Name: "beside", Contents: c.beside.Set()})
	}
	for c.lists60 && len(all) < 60 {
		all = append(all, engine.List{Name: fmt.Sprintf("empty-%d", len(all)), Contents: contents()})
	}
	return all
}

// packets are of the sorts that most traffic has. What is listed is looked up under the
// longest prefix, so that it is found first.
func packets() []packetOf {
	frame := func(src, dst string, proto uint8) []byte {
		f := framing.Frame(key.Tuple{
			Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst),
			Proto: proto, HasPorts: true, SrcPort: 40000, DstPort: 443,
		})
		return append(f, make([]byte, 64)...)
	}
	tagged := frame("192.0.2.9", "192.0.2.10", 6)
	tagged = slices.Insert(tagged, 12, 0x81, 0, 0, 7)
	return []packetOf{
		{"clean TCP", frame("192.0.2.9", "192.0.2.10", 6)},
		{"clean UDP", frame("192.0.2.9", "192.0.2.10", 17)},
		{"listed TCP", frame("192.0.2.1", "192.0.2.10", 6)},
		{"clean TCP in a VLAN", tagged},
		{"clean TCP over IPv6", frame("2001:db8::9", "2001:db8::10", 6)},
		{"listed TCP over IPv6", frame("2001:db8::1", "2001:db8::10", 6)},
	}
}

type packetOf struct {
	name  string
	frame []byte
}

// figure is the number of instructions for a packet under a configuration.
type figure struct {
	configuration, packet string
	executed              int
}

// TestInstructions compares the instructions that packets take with those committed. It
// also compares what the machine decides with what the kernel does.
func TestInstructions(t *testing.T) {
	lab.Root(t)
	var figures []figure
	for _, c := range configurations(t) {
		figures = append(figures, c.count(t)...)
	}
	if *update {
		if err := os.WriteFile(file, write(figures), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	committed := must.Read(t, file)
	if complaints := compare(string(committed), figures); len(complaints) > 0 {
		t.Errorf("%s\n\nA packet takes more instructions than before, or fewer. If that is meant: "+
			"go test ./tests/instructions -update, and say in the commit what it buys.", strings.Join(complaints, "\n"))
	}
}

// build returns the generation of a configuration, and counters for its programs.
func (c configuration) build(t *testing.T) (*engine.Generation, *loader.Stats) {
	t.Helper()
	g, err := engine.Build(c.lists(), c.config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	stats, err := loader.NewStats(2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stats.Close() })
	return g, stats
}

// bind returns the program of a generation with its constants folded, and its maps.
func (c configuration) bind(t *testing.T, g *engine.Generation, stats *loader.Stats) (*ebpf.CollectionSpec, map[string]*ebpf.Map) {
	t.Helper()
	spec, err := bpf.LoadWeir()
	if err != nil {
		t.Fatal(err)
	}
	code := spec.Programs[bpf.WeirProgWeir].Instructions
	compiled := slices.Clone(code)
	maps, err := g.Kernel().Bind(spec, stats)
	if err != nil {
		t.Fatal(err)
	}
	if len(tracker.Of(g)) > 0 {
		admit(t, g, stats)
	}
	stats.Read(func(k loader.Kept) {
		for i, rows := 0, loader.Entries[bpf.WeirCpuRow](k, bpf.WeirMapReasonStats); i < len(rows); i++ {
			rows[i].Sampler.Left = c.gap
		}
	})
	// As on any recent kernel: the program asks for one flag whether a frame is paged.
	for i, ins := range compiled {
		if ins.IsKfuncCall() {
			code[i] = ins
		}
	}
	for name, value := range map[string]any{
		bpf.WeirVarFrags: uint8(1), bpf.WeirVarBufferFlags: uint32(64), bpf.WeirVarReordersLoads: uint8(0),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			t.Fatal(err)
		}
	}
	if err := fold.Constants(spec); err != nil {
		t.Fatal(err)
	}
	return spec, maps
}

// count runs all packets under a configuration.
func (c configuration) count(t *testing.T) (figures []figure) {
	t.Helper()
	g, stats := c.build(t)
	spec, maps := c.bind(t, g, stats)
	program, err := g.Load(stats)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	for _, p := range packets() {
		m, err := newMachine(spec, "weir", maps)
		if err != nil {
			t.Fatal(err)
		}
		before := stats.Reasons(nil)
		of := func(reason int) uint64 {
			return binary.LittleEndian.Uint64(m.maps[bpf.WeirMapReasonStats].entries.bytes[16*reason:])
		}
		var counts []uint64
		for i := range before {
			counts = append(counts, of(i))
		}
		action, executed, err := m.run(p.frame)
		if err != nil {
			t.Fatalf("%s, %s: %v", c.name, p.name, err)
		}
		want, err := program.Test(p.frame)
		if err != nil {
			t.Fatal(err)
		}
		if action != want {
			t.Errorf("%s, %s: the machine's action is %d, the kernel's %d", c.name, p.name, action, want)
		}
		for i, now := range stats.Reasons(nil) {
			if of(i)-counts[i] != now.Packets-before[i].Packets {
				t.Errorf("%s, %s: the machine counts %d packets as %v, the kernel %d",
					c.name, p.name, of(i)-counts[i], verdict.Reason(i), now.Packets-before[i].Packets)
			}
		}
		figures = append(figures, figure{c.name, p.name, executed})
	}
	return figures
}

// admit sets a limit that no flow here reaches.
func admit(t *testing.T, g *engine.Generation, stats *loader.Stats) {
	t.Helper()
	n, err := tracker.Open(g, stats)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for i := range tracker.Of(g) {
		for _, b := range n.Banks(i, n.Active(i)) {
			b.Reset()
			b.Admit(sketch.Threshold{Units: 1000}.Admission(0, 1))
		}
	}
}

// write returns figures as a table.
func write(figures []figure) []byte {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, f := range figures {
		fmt.Fprintf(w, "%s:\t%s:\t%d\n", f.configuration, f.packet, f.executed)
	}
	w.Flush()
	return b.Bytes()
}

// compare returns how figures differ from a table, by more than slack.
func compare(table string, figures []figure) (complaints []string) {
	committed := make(map[[2]string]int)
	for line := range strings.Lines(table) {
		parts := strings.Split(line, ":")
		if len(parts) != 3 {
			return []string{fmt.Sprintf("%s: %q is no figure", file, line)}
		}
		var n int
		fmt.Sscan(parts[2], &n)
		committed[[2]string{strings.TrimSpace(parts[0]), strings.TrimSpace(parts[1])}] = n
	}
	for _, f := range figures {
		k := [2]string{f.configuration, f.packet}
		was, ok := committed[k]
		delete(committed, k)
		switch {
		case !ok:
			complaints = append(complaints, fmt.Sprintf("%s, %s: %d instructions, and no figure in %s", f.configuration, f.packet, f.executed, file))
		case max(f.executed-was, was-f.executed) > slack:
			complaints = append(complaints, fmt.Sprintf("%s, %s: %d instructions, %+d", f.configuration, f.packet, f.executed, f.executed-was))
		}
	}
	for k := range committed {
		complaints = append(complaints, fmt.Sprintf("%s, %s: in %s, and no longer counted", k[0], k[1], file))
	}
	return complaints
}

// Twenty instructions more are noticed, and so are twenty fewer.
func TestCompare(t *testing.T) {
	at := func(n int) []figure { return []figure{{"exact", "clean", n}} }
	table := string(write(at(100)))
	for n, want := range map[int]string{100: "", 108: "", 92: "", 120: "exact, clean: 120 instructions, +20", 80: "-20"} {
		got := strings.Join(compare(table, at(n)), "\n")
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%d instructions: %q, want %q", n, got, want)
		}
	}
	if len(compare(table, nil)) != 1 || len(compare("", at(1))) != 1 || len(compare("no table\n", nil)) != 1 {
		t.Error("a table that does not match is accepted")
	}
}
