package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"weir/control/list"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/papers/curve"
)

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("report.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("report.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func validate(t *testing.T, r any) error {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return schema(t).Validate(value)
}

// The schema describes the fields of the types, no more and no less.
func TestSchemaFields(t *testing.T) {
	type object struct {
		Properties map[string]json.RawMessage
		Items      struct{ Properties map[string]json.RawMessage }
	}
	var doc struct{ Properties map[string]object }
	if err := json.Unmarshal(Schema, &doc); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		schema map[string]json.RawMessage
		of     reflect.Type
	}{
		{"machine", doc.Properties["machine"].Properties, reflect.TypeFor[Machine]()},
		{"results", doc.Properties["results"].Items.Properties, reflect.TypeFor[Result]()},
		{"bars", doc.Properties["bars"].Items.Properties, reflect.TypeFor[Bar]()},
	} {
		var fields, described []string
		for field := range c.of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			fields = append(fields, name)
		}
		for name := range c.schema {
			described = append(described, name)
		}
		slices.Sort(fields)
		slices.Sort(described)
		if !slices.Equal(fields, described) {
			t.Errorf("%s: the schema describes %v, the type has %v", c.name, described, fields)
		}
	}
	if err := validate(t, map[string]any{"machine": 1}); err == nil {
		t.Error("the schema takes anything")
	}
}

// TestRun measures a little with all installed contenders, and checks the report
// against the schema and for completeness. The feed has prefixes, too. With WEIR_LONG=1
// they are generated as well, and options, hooks, cores and IPv6 are measured.
func TestRun(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	feed := filepath.Join(t.TempDir(), "feed.txt")
	if err := os.WriteFile(feed, []byte("192.0.2.0/24\n198.51.100.7\n2001:db8::/32\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	o := Options{Entries: []int{100}, Rounds: 1, Feeds: []string{feed}, Peers: true, Version: "test", Log: &log}
	little := effort{lookups: 1 << 14, runs: 1000, frames: 1 << 14, prefixes: long.Or(0, 1000), usual: 1000, wide: 1000, wrong: 100}
	names := []string{"lookup", "load", "update", "wire"}
	if long.Enabled {
		names = append(names, "options", "hooks", "cores", "ipv6")
	}
	r, err := run(context.Background(), o, little, names)
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	if err := validate(t, r); err != nil {
		t.Error(err)
	}
	session := &session{Options: o}
	for _, k := range session.kinds() {
		if k.blind {
			continue
		}
		for _, benchmark := range []string{"load", "wire"} {
			if k.wireOnly && benchmark == "load" {
				continue
			}
			x, ok := r.find(benchmark, setRandom, 100, 0, k.name)
			if benchmark == "wire" {
				x, ok = r.find(benchmark, setRandom, 100, 1, k.name)
			}
			if !ok || benchmark == "load" && x.Seconds <= 0 || benchmark == "wire" && (x.Mpps <= 0 || x.Ratio <= 0) {
				t.Errorf("%s of %s: %+v", benchmark, k.name, x)
			}
		}
		if _, ok := r.find("update", setRandom, 100, 0, k.name); ok == (k.fixed || k.wireOnly) {
			t.Errorf("update of %s is measured: %t", k.name, ok)
		}
		_, ok := r.find("wire", "feed", 2, 1, k.name)
		if ok != (k.prefixes > 0) {
			t.Errorf("%s is measured with prefixes: %t", k.name, ok)
		}
	}
	if long.Enabled {
		checkOptional(t, r, log.String())
	}
	var text bytes.Buffer
	if err := r.Print(&text); err != nil || !strings.Contains(text.String(), weirExact) {
		t.Errorf("printed, with error %v:\n%s", err, text.String())
	}
}

// checkOptional looks for what is measured of each option, and beside the rest.
func checkOptional(t *testing.T, r *Report, log string) {
	t.Helper()
	kinds, err := optional()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds {
		x, ok := r.find("options", setRandom, 1000, 1, k.name)
		if !ok || x.Mpps <= 0 || x.Ratio <= 0 {
			t.Errorf("options: %s: %+v", k.name, x)
		}
		x, ok = r.find("cores", setRandom, 1000, 1, k.name)
		if runtime.NumCPU() > 1 && !slices.Contains(notOnCores, k.name) && (!ok || x.Scaling <= 0) {
			t.Errorf("cores: %s: %+v", k.name, x)
		}
	}
	for _, name := range []string{weirExact, lookupKeyed, lookupXXH64} {
		if x, ok := r.find("ipv6", setRandom, 1000, 1, name); !ok || x.Ratio <= 0 {
			t.Errorf("ipv6: %s: %+v", name, x)
		}
	}
	for _, name := range []string{weirGenericXDP, weirTC, genericXDPDrop, tcDrop} {
		for _, listed := range []float64{0, 1} {
			x, ok := r.find("hooks", setRandom, 1000, listed, name)
			if left := strings.Contains(log, "left out: "+tcDrop); !left && (!ok || x.Ratio <= 0) {
				t.Errorf("hooks: %s: %+v", name, x)
			}
		}
	}
}

// A cancelled run returns the reason, and leaves no namespace behind.
func TestCancelled(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, Options{Entries: []int{100}, Rounds: 1}, []string{"wire"}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// A contender with too many or too few hits is an error.
func TestCheckShare(t *testing.T) {
	for _, c := range []struct {
		hits   uint64
		listed float64
		ok     bool
	}{
		{0, 0, true}, {60, 0, true}, {80, 0, false},
		{1000, 1, true}, {999, 1, false},
		{500, 0.5, true}, {470, 0.5, false}, {600, 0.5, false},
	} {
		if err := checkShare(c.hits, 1000, c.listed); (err == nil) != c.ok {
			t.Errorf("%d hits of 1000, a share of %g listed: %v", c.hits, c.listed, err)
		}
	}
}

// The interval contains the true median in at least 95 % of the cases, whatever the
// distribution.
func TestSpread(t *testing.T) {
	for n, want := range map[int]int{1: 0, 5: 0, 6: 0, 8: 0, 9: 1, 12: 2, 15: 3, 21: 5} {
		if got := outside(n); got != want {
			t.Errorf("outside(%d) = %d, want %d", n, got, want)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	const trials, n = 4000, 15
	contained := 0
	for range trials {
		v := make([]float64, n)
		for i := range v {
			v[i] = random.ExpFloat64()
		}
		slices.Sort(v)
		out := outside(n)
		if v[out] <= math.Ln2 && math.Ln2 <= v[n-1-out] {
			contained++
		}
	}
	// Five standard deviations below 95 %.
	if low := trials*0.95 - 5*math.Sqrt(trials*0.95*0.05); float64(contained) < low {
		t.Errorf("the interval contains the median in %d of %d cases", contained, trials)
	}
	if got := spread([]float64{90, 100, 110}); math.Abs(got-0.1) > 1e-9 {
		t.Errorf("spread %g, want 0.1", got)
	}
}

func TestLists(t *testing.T) {
	l := lists{dir: t.TempDir()}
	for _, set := range []string{setRandom, setPrefixes, setMixed} {
		b, err := l.make(set, 300)
		if err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewPCG(1, 2))
		listed := func(a uint32) bool {
			return slices.ContainsFunc(b.entries, func(p list.V4Prefix) bool { return a>>(32-p.Bits()) == p.Addr()>>(32-p.Bits()) })
		}
		for i := range 300 {
			if a := b.inside(i, random); !listed(a) {
				t.Fatalf("%s: %08x is not in entry %d", set, a, i)
			}
		}
		for _, a := range b.unlisted(300) {
			if listed(a) {
				t.Fatalf("%s: %08x is listed", set, a)
			}
		}
		n := 0
		draw := b.draw(0.5, 0)
		for range 2000 {
			k := draw()
			if listed(hostOrder(k)) {
				n++
			}
		}
		if n < 900 || n > 1100 {
			t.Errorf("%s: %d of 2000 keys are listed, want half", set, n)
		}
	}
	if address(0) == 0 {
		t.Error("0.0.0.0 is listed")
	}
}

// Bars are computed from the results, and left out without them. One is undecided where its
// limit is within the interval of the figure.
func TestReachedBars(t *testing.T) {
	at := func(benchmark string, entries int, listed float64, contender string, set func(*Result)) Result {
		x := Result{Benchmark: benchmark, Set: setRandom, Entries: entries, ListedShare: listed, Contender: contender}
		set(&x)
		return x
	}
	times := func(ns, width float64) func(*Result) {
		return func(r *Result) { r.Times = []float64{ns - width, ns, ns + width} }
	}
	// Two figures that vary in opposite ways.
	against := func(ns, width float64) func(*Result) { return times(ns, -width) }
	scaling := func(of, spread float64) func(*Result) {
		return func(r *Result) { r.Scaling, r.Spread = of, spread }
	}
	r := Report{Results: []Result{
		at("wire", tenThousand, 0, bare, times(100, 0)),
		at("wire", tenThousand, 0, weirExact, times(110, 0.5)),
		at("wire", tenThousand, 0, oneBucket, times(104, 0.5)), // 10 - 1.3 * 4 = 4.8
		at("wire", million, 0, bare, times(100, 0)),
		at("wire", million, 0, weirExact, times(144, 2)),
		at("wire", million, 0, oneBucket, against(140, 2)), // 1.1
		at("wire", million, 0, weirUsual, times(190, 4)),
		at("wire", million, 1, bare, times(100, 0)),
		at("wire", million, 1, weirExact, func(r *Result) { times(158, 1)(r); r.BeyondNS, r.BeyondWidth = 58, 1 }),
		at("wire", million, 1, kernelHash, times(480, 1)),
		at("wire", million, 1, nftables, times(600, 1)),
		at("ipv6", million, 1, weirExact, func(r *Result) { r.BeyondNS, r.BeyondWidth = 100, 1 }),
		{Benchmark: "load", Contender: weirExact, Set: bitwire, Entries: 213_288, KernelEntry: 5},
		{Benchmark: "load", Contender: weirExact, Set: setRandom, Entries: hundredMillion, Seconds: 41, Peak: 2_900_000_000},
		at("options", hundredThousand, 0, weirExact, times(111, 0)),
		at("options", hundredThousand, 1, weirExact, times(111, 0)),
		at("options", hundredThousand, 0, weirTracker, times(120, 1)),
		at("options", hundredThousand, 0, weirTrackers, against(150, 1)),
		at("options", hundredThousand, 0, weirVLAN, times(115, 3)),
		at("options", hundredThousand, 1, weirVLAN, times(111, 0)),
		at("options", hundredThousand, 0, weirFlow, times(123, 3)),
		at("cores", hundredThousand, 0, weirScans, scaling(1.97, 0.001)),
		at("cores", hundredThousand, 0, xdpDrop, scaling(1.5, 0.01)),
		{Benchmark: "heavy", Contender: "sketch", Set: "flows", Entries: million, Zipf: 1.1, F1: 0.9951},
		at("lookup", million, 1, weirExact, func(r *Result) { r.Cold, r.NetNS = true, 1 }),
		at("lookup", million, 1, kernelHash, func(r *Result) { r.NetNS = 10 }),
	}}
	r.Judge()
	want := map[string]string{
		"wire, 10k, clean, beyond bare, less 1.3 of one line, ns":          "reached",
		"wire, 10k, clean, of bare, with a driver of 42 ns":                "reached",
		"wire, 1M, clean, beyond bare, of one line of equal memory":        "undecided",
		"wire, 1M, clean, usual configuration, of exact, beyond bare":      "missed",
		"wire, 1M, listed, of kernel hash":                                 "reached",
		"wire, 1M, listed, of kernel hash, with a driver of 42 ns":         "reached",
		"wire, 1M, listed, of nftables":                                    "missed",
		"IPv6, 1M, listed, beyond bare, of IPv4's":                         "missed",
		"kernel memory, exact, bitwire's prefixes, bytes an entry":         "reached",
		"100M addresses to enforcing, seconds":                             "missed",
		"100M addresses to enforcing, memory of the process meanwhile, GB": "reached",
		"tracker on the wire, ns a packet":                                 "missed",
		"second tracker on the wire, beyond the first, ns a packet":        "missed",
		"VLAN tag on the wire, clean, ns a packet":                         "undecided",
		"VLAN tag on the wire, listed, ns a packet":                        "reached",
		"a flow among the entries on the wire, ns a packet":                "missed",
		"two cores against one, worst configuration":                       "reached",
		"F1 of heavy hitters, 1M flows, 256 KB, Zipf 1.1":                  "reached",
	}
	for _, b := range r.Bars {
		verdict, ok := want[b.Name]
		if !ok || b.Verdict() != verdict {
			t.Errorf("%s: %+v, want %s", b.Verdict(), b, verdict)
		}
		delete(want, b.Name)
	}
	for name := range want {
		t.Errorf("no bar %q", name)
	}
	if err := validate(t, map[string]any{"machine": Machine{
		CPU: "a processor", Cores: 2, Kernel: "6.18", Arch: "amd64", LatencyNS: [3]float64{1, 1, 1}, Versions: map[string]string{"weir": "", "go": ""}, Command: []string{"bench"},
	}, "results": r.Results, "bars": r.Bars}); err != nil {
		t.Error(err)
	}
}

// Results are compared with those of an earlier report measured under the same
// conditions.
func TestCompare(t *testing.T) {
	at := func(entries int, share float64) Result {
		return Result{Benchmark: "wire", Contender: weirExact, Set: setRandom, Entries: entries, ListedShare: share}
	}
	r, earlier := new(Report), new(Report)
	for i, ratio := range []float64{0.9, 0.8, 0.7} {
		x := at(1000, float64(i)/2)
		x.Ratio, x.NS = ratio, 200
		r.Results = append(r.Results, x)
		x.Ratio, x.NS = 0.8, 100
		earlier.Results = append(earlier.Results, x)
	}
	timed := at(10, 0)
	timed.Seconds = 2
	r.Results = append(r.Results, timed, at(10, 0))
	timed.Seconds = 1
	earlier.Results = append(earlier.Results, timed)
	file := filepath.Join(t.TempDir(), "report.json")
	text, err := json.Marshal(earlier)
	if err != nil {
		t.Fatal(err)
	}
	must.Write(t, file, text)
	if earlier, err = ReadReport(file); err != nil {
		t.Fatal(err)
	}
	r.Compare(earlier)
	for i, want := range []float64{0.125, 0, -0.125, 1, 0} {
		if got := r.Results[i].Change; math.Abs(got-want) > 1e-9 {
			t.Errorf("%+v: want a change of %g", r.Results[i], want)
		}
	}
	if _, err := ReadReport(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing report was read")
	}
}

func TestPlot(t *testing.T) {
	r := Report{Results: []Result{
		{Benchmark: "wire", Contender: weirExact, Set: setRandom, Entries: 1000, Ratio: 0.9},
		{Benchmark: "wire", Contender: weirExact, Set: setRandom, Entries: 100_000, Ratio: 0.8},
		{Benchmark: "load", Contender: weirExact, Set: setRandom, Entries: 1000, Seconds: 0.9}, // one size is no curve
	}}
	dir := filepath.Join(t.TempDir(), "figures")
	drawn, err := r.Plot(dir)
	if err != nil || len(drawn) != 1 {
		t.Fatalf("%v, %v", drawn, err)
	}
	svg, err := os.ReadFile(filepath.Join(dir, drawn[0].File))
	if err != nil || !bytes.Contains(svg, []byte(weirExact)) {
		t.Errorf("error %v; the figure does not name its contender", err)
	}
}

// Every contender has a colour, and no two look alike.
func TestStyles(t *testing.T) {
	seen := make(map[curve.Style]string)
	for _, k := range kinds {
		s := *styleOf(k)
		if s.Color == nil {
			t.Errorf("%s has no colour", k.name)
		}
		if other, ok := seen[s]; ok {
			t.Errorf("%s looks like %s", k.name, other)
		}
		seen[s] = k.name
	}
}

// Rounds in which the base took much longer than in most do not count.
func TestSteady(t *testing.T) {
	s := series{"base": {10, 10, 5, 11, 9, 13}, "other": {20, 21, 9, 22, 18, 27}}
	got := s.steady("base")
	if want := (series{"base": {10, 10, 11, 9}, "other": {20, 21, 22, 18}}); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestMitigations(t *testing.T) {
	dir := t.TempDir()
	for name, says := range map[string]string{"a": "Not affected\n", "b": "Mitigation: Retpolines; more\n", "c": "Vulnerable\n"} {
		must.Write(t, filepath.Join(dir, name), []byte(says))
	}
	if got, want := mitigations(dir), (map[string]string{"b": "Retpolines; more", "c": "Vulnerable"}); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := mitigations(filepath.Join(dir, "none")); len(got) > 0 {
		t.Errorf("%v without a directory", got)
	}
}
