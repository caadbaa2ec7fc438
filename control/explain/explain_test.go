package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/penalty"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/long"
	"weir/tests/world"
)

// oracle has the entries of lists, and looks at each of them.
type oracle struct {
	lists   []engine.List
	entries []map[key.Key]bool // by list
}

// rules returns the lists with their entries.
func (o *oracle) rules() []engine.List {
	lists := slices.Clone(o.lists)
	for i := range lists {
		lists[i].Contents = list.SetOf(slices.Collect(maps.Keys(o.entries[i]))...)
	}
	return lists
}

func reference(t *testing.T, lists []engine.List) *engine.Generation {
	t.Helper()
	g, err := engine.Reference(lists, engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// An overlap has the entries that a look at each entry finds, before and after changes.
func TestOverlap(t *testing.T) {
	long.Seconds(t)
	r := world.New(t)
	lists := []engine.List{{Name: "a"}, {Name: "b", Direction: engine.Both}, {Name: "c", Direction: engine.Destination}, {Name: "allow", Allow: true}}
	o := &oracle{lists: lists}
	for range lists {
		o.entries = append(o.entries, make(map[key.Key]bool))
	}
	for range 600 {
		l := r.IntN(len(lists))
		for _, k := range lists[l].Keys(r.Prefix()) {
			o.entries[l][k] = true
		}
		if r.IntN(3) == 0 {
			o.entries[l][r.Flow()] = true
		}
	}
	lists = o.rules()
	g := reference(t, lists)
	seen := map[string]int{}
	check := func() {
		t.Helper()
		for range 300 {
			k := r.Tuple().Key()
			s := key.Shape{Fields: k.Fields & (key.FieldV6 | key.Fields(r.IntN(8)<<1))}
			bits := []uint8{0, 22, 24, 28, uint8(k.MaxBits())}
			s.SrcBits, s.DstBits = bits[r.IntN(5)], bits[r.IntN(5)]
			if s.Ports() && !k.Ports() {
				continue
			}
			k, _ = s.Of(key.Tuple{Src: k.Src, Dst: k.Dst, Proto: k.Proto, HasPorts: k.Ports(), SrcPort: k.SrcPort, DstPort: k.DstPort})
			for _, allow := range []bool{false, true} {
				o.overlap(t, k, allow, (&side{g, g.Lists()}).overlap(k, allow), seen)
			}
		}
	}
	check()
	for range 4 {
		for l := range lists {
			var added, removed []key.Key
			for range 5 {
				k := r.Flow()
				if r.IntN(2) == 0 {
					k = lists[l].Keys(r.Prefix())[0]
				}
				if o.entries[l][k] {
					removed = append(removed, k)
				} else {
					added = append(added, k)
				}
			}
			lists[l].Contents, _ = lists[l].Contents.Apply(list.Delta{Add: list.SetOf(added...), Remove: list.SetOf(removed...)})
			for _, k := range removed {
				delete(o.entries[l], k)
			}
			for _, k := range added {
				o.entries[l][k] = true
			}
		}
		g = reference(t, lists)
		check()
	}
	for _, what := range []string{"covering", "inside", "flows", "sides", "more"} {
		if seen[what] == 0 {
			t.Errorf("no question with %s: the test is too narrow", what)
		}
	}
}

// overlap checks what was found of a question.
func (o *oracle) overlap(t *testing.T, k key.Key, allow bool, got overlap, seen map[string]int) {
	t.Helper()
	var covering, inside, flows []engine.Found
	var sides []open
	for i, l := range o.lists {
		for e := range o.entries[i] {
			switch f := (engine.Found{List: uint16(i + 1), Key: e}); {
			case l.Allow != allow:
			case e.Covers(k):
				covering = append(covering, f)
			case !e.Overlaps(k):
			case e.Tuple():
				flows = append(flows, f)
			case e.SrcBits > 0 && k.SrcBits > 0 || e.DstBits > 0 && k.DstBits > 0:
				inside = append(inside, f)
			default:
				if s := (open{f.List, e.SrcBits > 0}); !slices.Contains(sides, s) {
					sides = append(sides, s)
				}
			}
		}
	}
	same(t, k, "covering", got.covering, covering, len(covering))
	same(t, k, "inside", got.inside, inside, got.within)
	same(t, k, "flows", got.flows, flows, got.flowing)
	for _, s := range sides {
		if !slices.Contains(got.open, s) {
			t.Fatalf("%v: side %+v is not in %+v", k, s, got.open)
		}
	}
	for what, n := range map[string]int{"covering": len(covering), "inside": len(inside), "flows": len(flows), "sides": len(sides), "more": got.within - len(got.inside)} {
		seen[what] += n
	}
}

// same compares what was found with what there is, and its number.
func same(t *testing.T, k key.Key, what string, got, want []engine.Found, n int) {
	t.Helper()
	if n != len(want) || len(got) > n || len(got) < min(n, maxNamed) {
		t.Fatalf("%v: %d %s, of which %d are named, want %d", k, n, what, len(got), len(want))
	}
	order := func(a, b engine.Found) int {
		return cmp.Or(cmp.Compare(a.List, b.List), cmp.Compare(a.Key.String(), b.Key.String()))
	}
	slices.SortFunc(want, order)
	got = slices.SortedFunc(slices.Values(got), order)
	for i, f := range got {
		if _, ok := slices.BinarySearchFunc(want, f, order); !ok || i > 0 && got[i-1] == f {
			t.Fatalf("%v: %s %v, want of %v", k, what, got, want)
		}
	}
}

func TestParseQuestion(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"192.0.2.1", "from 192.0.2.1; to 192.0.2.1"},
		{"2001:db8::1", "from 2001:db8::1; to 2001:db8::1"},
		{"::ffff:192.0.2.1", "from 192.0.2.1; to 192.0.2.1"},
		{"192.0.2.0/24", "from 192.0.2.0/24; to 192.0.2.0/24"},
		{"0.0.0.0/0", "from 0.0.0.0/0"},
		{"> 192.0.2.1", "to 192.0.2.1"},
		{"> 192.0.2.0/24", "to 192.0.2.0/24"},
		{"tcp 192.0.2.1:1 > 192.0.2.2:2", "tcp 192.0.2.1:1 > 192.0.2.2:2"},
		{"tcp 192.0.2.1:* > *:25", "tcp 192.0.2.1:* > 0.0.0.0/0:25"},
		{"udp *:* > *:53", "udp 0.0.0.0/0:* > 0.0.0.0/0:53; udp [::/0]:* > [::/0]:53"},
		{"icmp6 [fe80::1]:* > [fe80::2]:*", "icmp6 [fe80::1]:* > [fe80::2]:*"},
	} {
		asked, err := ParseQuestion(c.text)
		var got []string
		for _, q := range asked {
			got = append(got, q.String())
		}
		if strings.Join(got, "; ") != c.want || err != nil {
			t.Errorf("%q asks %q (%v), want %q", c.text, got, err, c.want)
		}
	}
	for text, mend := range map[string]string{
		"": "want an address", "what": "want an address", "fe80::1%eth0": "want an address",
		"192.0.2.1\n192.0.2.2": "want an address", "192.0.2.1-192.0.2.9": "beginning with 192.0.2.1/32",
		"tcp 192.0.2.1:* > *:80-85": "as in tcp 192.0.2.1:* > 0.0.0.0/0:80",
		"192.0.2.1/24":              "ask for 192.0.2.1 or for 192.0.2.0/24", "any 192.0.2.1:1 > [::1]:2": "want an address", strings.Repeat("1", 2000): "want an address",
	} {
		if asked, err := ParseQuestion(text); err == nil || !strings.Contains(err.Error(), mend) {
			t.Errorf("%q asks %v, %v, want an error with %q", text, asked, err, mend)
		}
	}
}

// generation makes one of lists, each the text of a file.
func generation(t *testing.T, c engine.Config, lists map[engine.List]string) *engine.Generation {
	t.Helper()
	var all []engine.List
	for _, l := range slices.SortedFunc(func(yield func(engine.List) bool) {
		for l := range lists {
			if !yield(l) {
				return
			}
		}
	}, func(a, b engine.List) int { return cmp.Compare(a.Name, b.Name) }) {
		e, _, err := listfile.Parse(l.Name, strings.NewReader(lists[l]), listfile.Options{MaxBad: -1})
		if err != nil {
			t.Fatal(err)
		}
		l.Contents = e.Set()
		all = append(all, l)
	}
	g, err := engine.Reference(all, c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestExplain(t *testing.T) {
	block := engine.List{Name: "block"}
	allow := engine.List{Name: "let", Allow: true}
	out := engine.List{Name: "out", Direction: engine.Destination}
	policy := func(p verdict.Policy) engine.Config { return engine.Config{Policy: p} }
	safe := verdict.Policy{
		FailsafePorts:    []verdict.FailsafePort{{Proto: 6, Port: 22}},
		FailsafePrefixes: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")},
	}
	main := map[engine.List]string{
		block: "10.0.0.0/8\n10.1.0.0/16\n10.1.2.3\ntcp 192.0.2.0/24:* > 198.51.100.7:443\nany 192.0.2.1:* > *:*\n2001:db8::-2001:db8::ff\n",
		allow: "10.1.2.0/24\nudp 10.0.0.5:* > *:53\n",
		out:   "203.0.113.9\n",
	}
	for _, c := range []struct {
		name     string
		config   engine.Config
		lists    map[engine.List]string
		question string
		want     []string // verdict, reason, list, matches and what it depends on, of each answer
	}{
		{"listed", policy(verdict.Policy{}), main, "10.1.9.9", []string{
			"drop blocked block: 10.1.0.0/16 10.0.0.0/8 | exempt DHCP pass", "pass clean : | block from addresses of list block drop",
		}},
		{"listed, and some allowed", policy(verdict.Policy{}), main, "10.0.0.5", []string{
			"drop blocked block: 10.0.0.0/8 | exempt DHCP pass, allow udp 10.0.0.5:* > 0.0.0.0/0:53 pass", "",
		}},
		{"allowed", policy(verdict.Policy{}), main, "10.1.2.3", []string{"pass allowed : 10.1.2.3 10.1.0.0/16 10.0.0.0/8 10.1.2.0/24 |", ""}},
		{"in part", policy(verdict.Policy{}), main, "192.0.2.2", []string{
			"pass clean : | block to addresses of list out drop, block tcp 192.0.2.0/24:* > 198.51.100.7:443 drop", "",
		}},
		{"a destination", policy(verdict.Policy{}), main, "> 203.0.113.9", []string{"drop blocked out: > 203.0.113.9 | exempt DHCP pass, allow from addresses of list let pass, allow udp 10.0.0.5:* > 0.0.0.0/0:53 pass"}},
		{"a flow", policy(verdict.Policy{}), main, "tcp 192.0.2.9:1 > 198.51.100.7:443", []string{"drop blocked block: tcp 192.0.2.0/24:* > 198.51.100.7:443 |"}},
		{"another flow", policy(verdict.Policy{}), main, "tcp 192.0.2.9:1 > 198.51.100.7:80", []string{"pass clean : |"}},
		{"ports left open", policy(verdict.Policy{}), main, "tcp 192.0.2.9:* > 198.51.100.7:*", []string{"pass clean : | block tcp 192.0.2.0/24:* > 198.51.100.7:443 drop"}},
		{"IPv6", policy(verdict.Policy{}), main, "2001:db8::7f", []string{"drop blocked block: 2001:db8::/120 | exempt neighbor discovery pass, exempt DHCP pass", ""}},
		{"IPv4-mapped", policy(verdict.Policy{}), main, "tcp [::ffff:10.0.0.1]:1 > [::ffff:10.0.0.2]:2", []string{"drop blocked block: 10.0.0.0/8 |"}},

		{"0.0.0.0/8 lists no other address", policy(verdict.Policy{}), map[engine.List]string{block: "0.0.0.0/8\n"}, "8.8.8.8", []string{
			"pass clean : |", "pass clean : | block from addresses of list block drop",
		}},
		{"a failsafe prefix", policy(safe), main, "10.9.0.1", []string{"pass failsafe : 10.0.0.0/8 |", ""}},
		{"a failsafe port", policy(safe), main, "tcp 10.0.0.1:1 > 192.0.2.1:22", []string{"pass failsafe : 10.0.0.0/8 |"}},
		{"perhaps a failsafe port", policy(safe), main, "10.0.0.1", []string{
			"drop blocked block: 10.0.0.0/8 | exempt DHCP pass, failsafe tcp/22 pass", "",
		}},
		{"DHCP", policy(verdict.Policy{}), main, "udp 10.0.0.1:67 > 203.0.113.9:68", []string{"pass dhcp : 10.0.0.0/8 > 203.0.113.9 |"}},
		{"monitor", policy(verdict.Policy{Monitor: true}), main, "10.0.0.1", []string{"pass would-block block: 10.0.0.0/8 | exempt DHCP pass", ""}},
		{"malformed", policy(verdict.Policy{DropMalformed: true}), main, "8.8.8.8", []string{
			"pass clean : | block to addresses of list out drop, malformed malformed packets drop", "",
		}},
		{"both halves", policy(verdict.Policy{}), map[engine.List]string{block: "10.0.0.0/9\n10.128.0.0/9\n"}, "10.0.0.0/8", []string{
			"pass clean : | block 10.0.0.0/9 drop, block 10.128.0.0/9 drop", "",
		}},
		{"nothing", policy(verdict.Policy{}), nil, "192.0.2.1", []string{"pass clean : |", "pass clean : |"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := generation(t, c.config, c.lists)
			asked, err := ParseQuestion(c.question)
			if err != nil || len(asked) != len(c.want) {
				t.Fatalf("%v, %v", asked, err)
			}
			for i, q := range asked {
				if got := summary(Answers(g, q, nil)[0]); c.want[i] != "" && got != c.want[i] {
					t.Errorf("%v: %s\nwant %s", q, got, c.want[i])
				}
			}
		})
	}
}

func summary(a Answer) string {
	parts := []string{a.Verdict.String(), a.Reason.String(), a.List + ":"}
	for _, m := range a.Matches {
		parts = append(parts, m.Entry)
	}
	var depends []string
	for _, d := range a.Depends {
		depends = append(depends, d.Stage.String()+" "+d.Packets+" "+d.Verdict.String())
	}
	return strings.TrimRight(strings.Join(parts, " ")+" | "+strings.Join(depends, ", "), " ")
}

func TestExplainPenalties(t *testing.T) {
	g := generation(t, engine.Config{}, nil)
	until := loader.Monotonic() + time.Minute
	source := func(a string, rate float64) verdict.Penalty {
		return verdict.Penalty{Flow: key.Source(netip.MustParsePrefix(a)), Penalty: penalty.Penalty{Until: until, Rate: rate, Burst: 1}}
	}
	penalties := []verdict.Penalty{source("192.0.2.1/32", 0), source("192.0.2.2/32", 1000)}
	explain := func(q string) Answer { return Answers(g, mustAsk(t, q)[0], penalties)[0] }
	if a := explain("192.0.2.1"); summary(a) != "drop heavy : | exempt DHCP pass" || a.Stages[3].By != "192.0.2.1" ||
		time.Until(*a.Stages[3].Until).Round(10*time.Second) != time.Minute {
		t.Errorf("%+v", a)
	}
	if a := explain("192.0.2.2"); summary(a) != "limited clean : | penalty 192.0.2.2 above its rate drop" || a.Depends[0].Reason != verdict.RateLimited {
		t.Errorf("%+v", a)
	}
	if a := explain("192.0.2.0/24"); summary(a) != "pass clean : | penalty 192.0.2.1 drop, penalty 192.0.2.2 above its rate drop" {
		t.Errorf("%+v", a)
	}
	if a := explain("192.0.2.3"); summary(a) != "pass clean : |" {
		t.Errorf("%+v", a)
	}
}

func mustAsk(t *testing.T, text string) []Question {
	t.Helper()
	q, err := ParseQuestion(text)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// A question for a prefix is answered with what is inside, up to a bound.
func TestExplainInside(t *testing.T) {
	g := generation(t, engine.Config{}, map[engine.List]string{{Name: "b"}: "10.0.0.0-10.0.0.254\n192.0.2.0/25\n192.0.2.128\n", {Name: "l", Allow: true}: "192.0.2.7\n"})
	a := Answers(g, mustAsk(t, "192.0.2.0/24")[0], nil)[0]
	if a.Inside == nil || a.Inside.Entries != 3 || len(a.Inside.First) != 3 {
		t.Errorf("%+v", a.Inside)
	}
	if a := Answers(g, mustAsk(t, "10.0.0.0/24")[0], nil)[0]; a.Inside.Entries != 8 || len(a.Matches) != 0 {
		t.Errorf("%+v", a)
	}
	var many strings.Builder
	for i := range 50 {
		many.WriteString(netip.AddrFrom4([4]byte{10, 0, 0, byte(2 * i)}).String() + "\n")
	}
	g = generation(t, engine.Config{}, map[engine.List]string{{Name: "b"}: many.String()})
	if a := Answers(g, mustAsk(t, "10.0.0.0/24")[0], nil)[0]; a.Inside.Entries != 50 || len(a.Inside.First) != maxNamed ||
		len(a.Depends) != maxNamed || a.DependsMore != 50-maxNamed {
		t.Errorf("%d inside, %d named; depends on %d and %d more", a.Inside.Entries, len(a.Inside.First), len(a.Depends), a.DependsMore)
	}
}

// In approximate mode the filter may block what no entry matches, and the answer
// says so, also where monitor mode lets it pass.
func TestExplainFalsePositive(t *testing.T) {
	r := world.New(t)
	var text strings.Builder
	for range 20_000 {
		text.WriteString(netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}).String() + "\n")
	}
	for _, monitor := range []bool{false, true} {
		dropped := verdict.Blocked
		if monitor {
			dropped = verdict.WouldBlock
		}
		c := engine.Config{Mode: membership.Approximate, BitsPerKey: 1, Policy: verdict.Policy{Monitor: monitor}}
		g := generation(t, c, map[engine.List]string{{Name: "b"}: text.String()})
		found := 0
		for i := range 40 { // at one bit an entry, most are found listed
			source := key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i), 1}), 32))
			a := Answers(g, Question{Known: source}, nil)[0]
			if a.FalsePositive != (a.Reason == dropped && len(a.Matches) == 0) {
				t.Fatalf("monitor %t: %+v", monitor, a)
			}
			if a.FalsePositive {
				found++
			}
		}
		if found == 0 {
			t.Errorf("monitor %t: no false positive at one bit an entry", monitor)
		}
		// What a penalty drops is none. There are no entries of IPv6.
		source := key.Source(netip.MustParsePrefix("2001:db8::1/128"))
		penalties := []verdict.Penalty{{Flow: source, Penalty: penalty.Penalty{Until: loader.Monotonic() + time.Hour}}}
		if a := Answers(g, Question{Known: source}, penalties)[0]; a.FalsePositive || a.Reason != verdict.Heavy && a.Reason != verdict.WouldBlock {
			t.Errorf("monitor %t, with a penalty: %+v", monitor, a)
		}
	}
}

// An answer has one form in JSON, and can be read again.
func TestAnswerJSON(t *testing.T) {
	g := generation(t, engine.Config{}, map[engine.List]string{{Name: "b"}: "192.0.2.0/24\n"})
	a := Answers(g, mustAsk(t, "192.0.2.1")[0], nil)[0]
	text, err := json.Marshal(a.API())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"packet":"from 192.0.2.1","verdict":"drop","reason":"blocked","list":"b",` +
		`"stages":[{"stage":"exempt","met":false},{"stage":"failsafe","met":false},{"stage":"loop","met":false},{"stage":"penalty","met":false},` +
		`{"stage":"block","met":true,"by":"list b"},{"stage":"allow","met":false}],` +
		`"matches":[{"list":"b","action":"block","entry":"192.0.2.0/24"}],` +
		`"depends":[{"stage":"exempt","packets":"DHCP","verdict":"pass","reason":"dhcp"}],"false_positive":false}`
	if string(text) != want {
		t.Errorf("%s\nwant %s", text, want)
	}
	var again api.Answer
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if round, _ := json.Marshal(again); string(round) != want {
		t.Errorf("read again: %s", round)
	}
}

// Packets of a flow that is rate-limited have a verdict of their own, unless they are dropped,
// or spared, anyway; what exceeds the limit is still a dependency.
func TestExplainLimited(t *testing.T) {
	lists := map[engine.List]string{{Name: "block"}: "10.0.0.0/8\n", {Name: "let", Allow: true}: "203.0.113.0/24\n"}
	for _, c := range []struct {
		flow, question string
		rate           float64
		monitor        bool
		want           Verdict
	}{
		{"192.0.2.1", "192.0.2.1", 100, false, Limited},
		{"192.0.2.1", "tcp 192.0.2.1:1 > 198.51.100.7:443", 100, false, Limited},
		{"192.0.2.0/24", "192.0.2.1", 100, false, Limited},
		{"192.0.2.1", "192.0.2.0/24", 100, false, Pass}, // others are in it, too
		{"192.0.2.1", "192.0.2.2", 100, false, Pass},
		{"192.0.2.1", "> 192.0.2.1", 100, false, Pass},
		{"192.0.2.1", "192.0.2.1", 0, false, Drop}, // blocked
		{"192.0.2.1", "192.0.2.1", 100, true, Pass},
		{"10.0.0.1", "10.0.0.1", 100, false, Drop},
		{"203.0.113.1", "203.0.113.1", 100, false, Pass},
	} {
		g := generation(t, engine.Config{Policy: verdict.Policy{Monitor: c.monitor}}, lists)
		asked, err := ParseQuestion(c.question)
		if err != nil {
			t.Fatal(err)
		}
		flow, err := ParseQuestion(c.flow)
		if err != nil {
			t.Fatal(err)
		}
		p := verdict.Penalty{Flow: flow[0].Known, Penalty: penalty.Penalty{Until: loader.Monotonic() + time.Minute, Rate: c.rate, Burst: 1}}
		a := Answers(g, asked[0], []verdict.Penalty{p})[0]
		if a.Verdict != c.want || (a.Limit != nil) != (c.want == Limited) {
			t.Errorf("%s, of which %s is limited: %v, %+v, want %v", c.question, c.flow, a.Verdict, a.Limit, c.want)
		}
		if a.Limit != nil && (a.Limit.Key != flow[0].Known || a.Limit.Rate != c.rate || a.Limit.Until == nil) {
			t.Errorf("%s: %+v", c.question, a.Limit)
		}
		excess := slices.ContainsFunc(a.Depends, func(d Dependency) bool { return d.Reason == verdict.RateLimited })
		if a.Limit != nil && !excess {
			t.Errorf("%s depends on %+v: what exceeds the limit is missing", c.question, a.Depends)
		}
	}
}

// What depends on whether an address is on any of many lists is one line; few are named.
func TestCondense(t *testing.T) {
	for _, n := range []int{2, 3, 4, 145} {
		lists := make(map[engine.List]string)
		for i := range n {
			lists[engine.List{Name: fmt.Sprintf("block%d", i)}] = "10.0.0.0/8\n192.0.2.1\n"
			lists[engine.List{Name: fmt.Sprintf("to%d", i), Direction: engine.Destination}] = "10.0.0.0/8\n"
		}
		g := generation(t, engine.Config{}, lists)
		asked, err := ParseQuestion("> 99.3.0.9")
		if err != nil {
			t.Fatal(err)
		}
		a := Answers(g, asked[0], nil)[0]
		if len(a.Depends) != n {
			t.Fatalf("%d lists: %d dependencies", n, len(a.Depends))
		}
		a.Condense()
		want := "pass clean : | block from addresses of any of " + fmt.Sprint(n) + " block lists drop"
		if n < 4 {
			want = ""
			if len(a.Depends) != n {
				t.Errorf("%d lists: %+v", n, a.Depends)
			}
		}
		if want != "" && (summary(a) != want || a.Depends[0].Lists != n) {
			t.Errorf("%d lists: %s, want %s", n, summary(a), want)
		}
	}
}
