package verdict

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/penalty"
	"weir/filter/sketch"
)

// set returns a set of the keys, the i-th of them under list i+1.
func set(t *testing.T, mode membership.Mode, keys ...key.Key) *membership.Set {
	t.Helper()
	c := membership.Census{Keys: make(map[key.Shape]int)}
	for _, k := range keys {
		c.Keys[k.Shape]++
	}
	l, err := membership.PlanLayout(c, mode, 16, hash.NewSecret(hash.Seed{1}))
	if err != nil {
		t.Fatal(err)
	}
	s, err := membership.NewSet(l, l.Alloc())
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range keys {
		if err := s.Add(k, uint16(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func source(s string) key.Key { return key.Source(netip.MustParsePrefix(s)) }

// tuple returns the tuple of a UDP packet.
func tuple(src, dst string, srcPort, dstPort uint16) key.Tuple {
	return key.Tuple{
		Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst),
		Proto: 17, HasPorts: true, SrcPort: srcPort, DstPort: dstPort,
	}
}

// A program without lists blocks nothing.
func TestDecideWithoutSets(t *testing.T) {
	var p Program
	if got := p.Decide(packet.Frame(tuple("192.0.2.1", "192.0.2.2", 1, 2))); got != (Outcome{}) {
		t.Errorf("%+v", got)
	}
}

// On the wire, an IPv4-mapped IPv6 address is IPv6.
func TestFailsafeMapped(t *testing.T) {
	p := Policy{FailsafePrefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	pkt := packet.Packet{Tuple: tuple("::ffff:192.0.2.1", "::1", 1, 2), HasAddresses: true}
	if p.failsafe(pkt) {
		t.Error("an IPv4 prefix covers an IPv6 packet")
	}
	p.FailsafePrefixes[0] = netip.MustParsePrefix("::ffff:192.0.2.0/120")
	if !p.failsafe(pkt) {
		t.Error("a mapped prefix does not cover a mapped address")
	}
}

func TestNames(t *testing.T) {
	var names []string
	for r := range NumReasons {
		names = append(names, r.String())
	}
	if slices.Contains(names, "") || len(slices.Compact(slices.Sorted(slices.Values(names)))) != int(NumReasons) {
		t.Errorf("reasons are named %q", names)
	}
	for r := range NumReasons {
		text, _ := r.MarshalText()
		var again Reason
		if err := again.UnmarshalText(text); err != nil || again != r {
			t.Errorf("%s is read as %v, %v", text, again, err)
		}
	}
	for s := range numStages {
		text, _ := s.MarshalText()
		var again Stage
		if err := again.UnmarshalText(text); err != nil || again != s {
			t.Errorf("%s is read as %v, %v", text, again, err)
		}
	}
	if err := new(Stage).UnmarshalText([]byte("blok")); err == nil {
		t.Error("blok is a stage")
	}
	if s := NumReasons.String(); !strings.HasPrefix(s, "reason-") {
		t.Errorf("an invalid reason is named %q", s)
	}
	if Pass.String() != "pass" || Drop.String() != "drop" {
		t.Errorf("actions are named %v and %v", Pass, Drop)
	}
}

// Packets of an allowed source pass, whatever would drop them.
func TestMalformedButAllowed(t *testing.T) {
	p := &Program{Policy: Policy{DropMalformed: true}, Allow: set(t, membership.Exact, source("192.0.2.7/32"))}
	truncated := func(src string) []byte { return packet.Frame(tuple(src, "203.0.113.9", 1, 2))[:14+20+4] }
	if got, want := p.Decide(truncated("192.0.2.7")), (Outcome{Pass, Allowed, 0}); got != want {
		t.Errorf("an allowed source: %+v, want %+v", got, want)
	}
	if got, want := p.Decide(truncated("192.0.2.8")), (Outcome{Drop, Truncated, 0}); got != want {
		t.Errorf("another source: %+v, want %+v", got, want)
	}
}

func TestAction(t *testing.T) {
	drops := func(p Policy) (names []string) {
		for r := range NumReasons {
			if p.Action(r) == Drop {
				names = append(names, r.String())
			}
		}
		return names
	}
	for _, c := range []struct {
		policy Policy
		want   string
	}{
		{Policy{}, "blocked rate-limited heavy overtagged policed pattern"},
		{Policy{DropMalformed: true}, "blocked truncated malformed unparsed rate-limited heavy overtagged policed pattern"},
		{Policy{DropNotIP: true}, "not-ip blocked rate-limited heavy overtagged policed pattern"},
		{Policy{DropNotIP: true, Monitor: true}, "blocked rate-limited heavy policed pattern"},
		{Policy{DropLooped: true}, "blocked rate-limited heavy looped overtagged policed pattern"},
		{Policy{DropMalformed: true, DropLooped: true, Monitor: true}, "blocked rate-limited heavy policed pattern"}, // which do not occur then
	} {
		if got := strings.Join(drops(c.policy), " "); got != c.want {
			t.Errorf("%+v drops %s, want %s", c.policy, got, c.want)
		}
	}
}

// What is exempt is counted, but has no penalties; what is dropped is counted by its
// cause, also in monitor mode.
func TestCounting(t *testing.T) {
	bank := func(dropped bool) *sketch.Bank {
		tr := sketch.Tracker{
			V4: key.Shape{SrcBits: 32}, V6: key.Shape{Fields: key.FieldV6, SrcBits: 128},
			Secret: hash.NewSecret(hash.Seed{1}), Geometry: sketch.Geometry{Lines: 2, Buckets: 4}, Dropped: dropped,
		}
		b, err := sketch.NewBank(tr, make([]uint64, tr.LineWords()), make([]uint64, tr.FlowWords()))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	const blocked, flooder, dropsOnly = "192.0.2.1", "192.0.2.2", "192.0.2.3"
	for _, monitor := range []bool{false, true} {
		all, unexempt, drops := bank(false), bank(false), bank(true)
		penalties, err := penalty.NewTable(make([]uint64, 16*penalty.BucketWords))
		if err != nil {
			t.Fatal(err)
		}
		p := Program{
			Policy: Policy{Monitor: monitor, DropMalformed: true, FailsafePorts: []FailsafePort{{Proto: 17, Port: 22}}},
			Tracked: &Trackers{
				Banks: []*sketch.Bank{all, unexempt}, Penalties: []*penalty.Table{penalties, nil}, Unexempt: []bool{false, true},
				Now: func() time.Duration { return time.Second }, Drops: drops,
			},
			Block: set(t, membership.Exact, source(blocked+"/32")),
		}
		penalties.Set(all.Hash(source(flooder+"/32")), penalty.Penalty{Until: time.Hour})
		send := func(src string, dstPort uint16) Reason {
			return p.Decide(packet.Frame(tuple(src, "203.0.113.9", 1, dstPort))).Reason
		}
		for range 3 {
			if r := send(flooder, 22); r != Failsafe {
				t.Errorf("a flooder's failsafe packet: %v", r)
			}
		}
		send(flooder, 80)
		send(blocked, 80)
		send(blocked, 80)
		p.Decide(packet.Frame(tuple(dropsOnly, "203.0.113.9", 1, 80))[:14+20+4])
		flood := source(flooder + "/32")
		if n := all.Estimate(sketch.Flow{Key: flood, Hash: all.Hash(flood)}); all.Packets() != 7 || n != 4 {
			t.Errorf("%d packets, %d of the flooder: want 7 and 4", all.Packets(), n)
		}
		if unexempt.Packets() != 4 {
			t.Errorf("%d packets that are not exempt, want 4", unexempt.Packets())
		}
		got := map[string]uint64{}
		for f := range drops.Flows() {
			got[strings.TrimSuffix(f.Key.String(), "/32")+" "+Reason(f.Cause.Reason).String()+" "+strconv.Itoa(int(f.Cause.List))+" "+f.Dst.String()] = f.Packets
		}
		want := map[string]uint64{
			flooder + " heavy 0 203.0.113.9": 1, blocked + " blocked 1 203.0.113.9": 2, dropsOnly + " truncated 0 203.0.113.9": 1,
		}
		if !maps.Equal(got, want) {
			t.Errorf("monitor %t: dropped %v, want %v", monitor, got, want)
		}
	}
}

// Rules are the same only where all that they say is. Those that say nothing are the same as none.
func TestRuleEqual(t *testing.T) {
	all := []*Rule{
		nil, {Trial: true}, {Protocols: []uint8{6}}, {Protocols: []uint8{17}}, {Ports: []PortRange{{6, 22, 22}}}, {Ports: []PortRange{{6, 22, 23}}}, {Ports: []PortRange{{6, 21, 22}}},
		{Ports: []PortRange{{17, 22, 22}}}, {Interfaces: []string{"eth0"}}, {Interfaces: []string{"eth*"}}, {VLANs: []uint16{7}}, {VLANs: []uint16{0}}, {VLANs: []uint16{7, 8}}, {Trial: true, VLANs: []uint16{7}},
	}
	for i, r := range all {
		for j, o := range all {
			if r.Equal(o) != (i == j) {
				t.Errorf("%+v and %+v: %t", r, o, r.Equal(o))
			}
		}
	}
	if none := (*Rule)(nil); !none.Equal(&Rule{}) || !new(Rule).Equal(none) {
		t.Error("a rule that says nothing differs from none")
	}
}
