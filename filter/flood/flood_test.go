package flood

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

var web = netip.MustParseAddr("203.0.113.10").As16()

func randomAddress(r *rand.Rand) [16]byte {
	return netip.AddrFrom4([4]byte{byte(11 + r.IntN(90)), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}).As16()
}

func packetTo(r *rand.Rand, protocol uint8, sport, dport int) Record {
	return Record{Src: randomAddress(r), Dst: web, IPv4: true, Protocol: protocol, SrcPort: uint16(sport), DstPort: uint16(dport), TTL: uint8(40 + r.IntN(20)), ID: uint16(r.Uint32()), Conversing: Stranger}
}

func syn(r *rand.Rand) Record {
	p := packetTo(r, protoTCP, 1024+r.IntN(60000), 443)
	p.Flags, p.Length, p.HeaderLength, p.Window = 2, 60, 10, 64240
	return p
}

// web returns conversations of clients with a web server, and questions to a name server.
func usual(r *rand.Rand, packets int) (all []Record) {
	for len(all) < packets {
		if r.IntN(4) == 0 {
			q := packetTo(r, protoUDP, 1024+r.IntN(60000), 53)
			q.Length, q.Dst = uint16(56+r.IntN(40)), netip.MustParseAddr("203.0.113.53").As16()
			all = append(all, q)
			continue
		}
		p := syn(r)
		all = append(all, p)
		p.Conversing = Conversant
		for range 2 + r.IntN(8) {
			p.Flags, p.HeaderLength, p.Length, p.ID = 0x10, 8, uint16(52+r.IntN(2)*r.IntN(1400)), uint16(r.Uint32())
			all = append(all, p)
		}
	}
	return all
}

// quiet returns a detector that has seen usual seconds.
func quiet(r *rand.Rand) *Detector {
	d := new(Detector)
	for range 12 {
		s := usual(r, 800)
		d.Second(s, uint64(len(s)))
	}
	return d
}

func many(n int, next func() Record) (all []Record) {
	for range n {
		all = append(all, next())
	}
	return all
}

func dropped(d *Detector, records []Record) float64 {
	n := 0
	for i := range records {
		if slices.ContainsFunc(d.Rules(), func(u Rule) bool { return u.Matches(&records[i]) }) {
			n++
		}
	}
	return share(n, len(records))
}

// TestFloods finds floods among usual traffic: the rules match at least 95 % of the flood and at most
// 1 % of other packets, or there is the sentence why there is none.
func TestFloods(t *testing.T) {
	for seed := range uint64(2) {
		r := rand.New(rand.NewPCG(seed, 58))
		client := syn(r)
		client.Conversing, client.Flags, client.HeaderLength, client.Length = Conversant, 0x10, 8, 1500
		bots := many(200, func() Record { return syn(r) })
		for name, c := range map[string]struct {
			next func() Record
			want Kind
		}{
			"reflection": {func() Record {
				p := packetTo(r, protoUDP, 53, 1024+r.IntN(60000))
				p.Length, p.Payload = uint16(1100+r.IntN(400)), [4]byte{0x33, 0x12, 0x81, 0x80}
				return p
			}, Ruled},
			"forged SYNs": {func() Record { p := syn(r); p.HeaderLength, p.Length = 5, 40; return p }, Ruled},
			"fragments": {func() Record {
				p := packetTo(r, protoUDP, 0, 0)
				p.Fragment, p.Length = LaterFragment, uint16(28+r.IntN(1400))
				return p
			}, Ruled},
			"ports and lengths at random": {func() Record {
				p := packetTo(r, protoUDP, r.IntN(65536), r.IntN(65536))
				p.Length = uint16(100 + r.IntN(900))
				return p
			}, Ruled},
			"SYNs of 200 sources":     {func() Record { return bots[r.IntN(len(bots))] }, Ruled},
			"SYNs as users send them": {func() Record { return syn(r) }, NothingInIt},
			"one large transfer":      {func() Record { client.ID++; return client }, AsUsers},
			"crowd":                   {nil, AsUsers},
		} {
			d := quiet(r)
			var f *Finding
			var flood, others []Record
			for second := range 3 {
				others = usual(r, 800)
				if flood = usual(r, 6000); c.next != nil {
					flood = many(6000, c.next)
				}
				all := slices.Concat(others, flood)
				r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				if g := d.Second(pick(all, 4096), uint64(len(all))); second == 0 {
					f = g
				}
			}
			if f == nil || f.Kind != c.want {
				t.Errorf("seed %d, %s: %+v, want kind %q", seed, name, f, c.want)
				continue
			}
			if of := dropped(d, others); of > 0.01 || c.want != Ruled && (of > 0 || dropped(d, flood) > 0) {
				t.Errorf("seed %d, %s: %v match %.1f %% of usual packets", seed, name, d.Rules(), 100*of)
			}
			// 2.5 % of a uniform range may be beyond what a sample of it has shown.
			if of := dropped(d, flood); c.want == Ruled && of < 0.95 {
				t.Errorf("seed %d, %s: %v match %.1f %% of the flood", seed, name, d.Rules(), 100*of)
			}
		}
	}
}

// TestCostlyRule floods with two kinds of packets that one rule matches, which costs 2 % of usual
// conversations: the two rules that cost nothing are found in its place.
func TestCostlyRule(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 58))
	question := func() Record {
		p := packetTo(r, protoUDP, 1024+r.IntN(60000), 1024+r.IntN(60000))
		p.Length, p.Payload = uint16(40+r.IntN(1400)), [4]byte{1, byte(r.Uint32()), byte(r.Uint32())}
		return p
	}
	d := new(Detector)
	for range 12 {
		s := append(usual(r, 800), many(6, question)...)
		d.Second(s, uint64(len(s)))
	}
	flood := slices.Concat(many(2200, func() Record {
		p := question()
		p.SrcPort, p.Payload = 53, [4]byte{0x33, 0x12, 0x81, 0x80}
		return p
	}), many(1000, func() Record {
		p := question()
		p.SrcPort, p.DstPort, p.Fragment, p.Payload = 0, 0, LaterFragment, [4]byte{}
		return p
	}))
	all := append(usual(r, 800), flood...)
	f := d.Second(all, uint64(len(all)))
	if f == nil || f.Kind != Ruled || len(f.Rules) != 2 || dropped(d, flood) < 0.95 {
		t.Errorf("%+v", f)
	}
}

// TestOtherChanges lets other traffic change while a flood lasts, when the baseline stands still:
// that is proposed, never active, and nothing is learned.
func TestOtherChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	d := quiet(r)
	flood := func() Record { p := syn(r); p.HeaderLength, p.Length = 5, 40; return p }
	elsewhere := func() Record {
		p := packetTo(r, protoUDP, 443, 5000)
		p.Dst, p.Length = netip.MustParseAddr("198.51.100.7").As16(), 1228
		return p
	}
	for second := range 8 {
		all := slices.Concat(usual(r, 800), many(3000, flood))
		if second >= 5 {
			all = append(all, many(2000, elsewhere)...)
		}
		f := d.Second(all, uint64(len(all)))
		if second >= 5 && (f == nil || !f.Proposed || len(f.Rules) == 0) {
			t.Errorf("second %d: %+v, want a proposal", second, f)
		}
	}
	if other := elsewhere(); len(d.Rules()) != 1 || d.Rules()[0].Matches(&other) {
		t.Errorf("active: %v", d.Rules())
	}
}

// TestChance floods with source ports and windows at random: no rule has an interval of them.
func TestChance(t *testing.T) {
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 2))
		d := quiet(r)
		for range 4 {
			all := slices.Concat(usual(r, 800), many(3000, func() Record { p := syn(r); p.Window = uint16(r.Uint32()); return p }))
			if f := d.Second(all, uint64(len(all))); f != nil {
				for _, u := range f.Rules {
					for _, c := range u.Conditions {
						if slices.Contains([]Field{SourcePort, Window, TTL, ID}, c.Field) && c.Lo != c.Hi {
							t.Errorf("seed %d: %v", seed, u.String())
						}
					}
				}
			}
		}
	}
}

// TestOutwards finds a length interval in a few records, which then has all of the flood.
func TestOutwards(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	d := quiet(r)
	all := slices.Concat(usual(r, 800), many(2000, func() Record {
		p := packetTo(r, protoUDP, r.IntN(65536), 53) // to where questions go, too
		p.Dst, p.Length = netip.MustParseAddr("203.0.113.53").As16(), uint16(300+r.IntN(1000))
		return p
	}))
	f := d.Second(pick(all, 400), uint64(len(all)))
	if f == nil || len(f.Rules) != 1 {
		t.Fatalf("%+v, want a rule", f)
	}
	if c := f.Rules[0].has(Length); c == nil || (c.Lo > 300 || c.Hi < 1299) {
		t.Errorf("%v does not have the lengths 300 to 1299", f.Rules[0].String())
	}
}

// TestShortBaseline proposes only, after too few quiet seconds.
func TestShortBaseline(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	d := new(Detector)
	for range MinQuiet - 1 {
		s := usual(r, 800)
		d.Second(s, uint64(len(s)))
	}
	all := slices.Concat(usual(r, 800), many(3000, func() Record { p := syn(r); p.HeaderLength, p.Length = 5, 40; return p }))
	if f := d.Second(all, uint64(len(all))); f == nil || !f.Proposed || len(f.Rules) == 0 || len(d.Rules()) > 0 {
		t.Errorf("%+v, active %v", f, d.Rules())
	}
}

// No rule has source ports or prefixes alone, or neither a destination nor a protocol.
func TestEvidence(t *testing.T) {
	u := Rule{}.with(Condition{Field: SourcePort, Lo: 53, Hi: 53})
	if isEvidence(&u) {
		t.Errorf("%v has neither destination nor protocol", u.String())
	}
	if u = u.with(Condition{Field: Protocol, Lo: protoUDP, Hi: protoUDP}); !isEvidence(&u) || !strings.HasPrefix(u.String(), "udp ") {
		t.Errorf("%v is refused", u.String())
	}
}

func BenchmarkSearch(b *testing.B) {
	r := rand.New(rand.NewPCG(5, 5))
	all := slices.Concat(usual(r, 800), many(6000, func() Record { p := syn(r); p.HeaderLength, p.Length = 5, 40; return p }))
	d := quiet(r)
	sample := pick(all, 4096)
	b.ReportAllocs()
	for b.Loop() {
		d.Forget()
		if f := d.Second(sample, uint64(len(all))); f == nil || f.Kind != Ruled {
			b.Fatal(f)
		}
	}
}
