package flood

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/filter/penalty"
)

// A pattern is read as it is written, in any order and case of spaces, and has the name of its packets.
func TestParseRule(t *testing.T) {
	for text, name := range map[string]string{
		"udp length 468 sport 123 dst 203.0.113.2/32": "NTP answers",
		"tcp flags S dport 400-500 src 2001:db8::/32": "SYNs",
		"tcp flags SA":                    "answers to SYNs",
		"udp fragment later":              "later fragments",
		"icmp sport 8 dst 203.0.113.0/24": "pings",
		"gre src 192.0.2.0/24":            "",
		"protocol 4 ttl 50-60":            "",
		"protocol 50-255 ttl 60":          "",
		"tcp flags none id 0 doff 5 window 1024 payload 47455420": "",
		"udp stranger dst 203.0.113.2/32":                         "",
		"tcp flags S per src":                                     "SYNs",
		"udp per src/24":                                          "",
		"udp per dst":                                             "",
		"udp per flow":                                            "",
	} {
		u, err := ParseRule(text)
		if err != nil || u.String() != text || u.Name() != name {
			t.Errorf("%q: %q, %q, %v", text, u.String(), u.Name(), err)
		}
	}
	u, err := ParseRule("dst 203.0.113.2  sport 123 udp")
	if want := "udp sport 123 dst 203.0.113.2/32"; err != nil || u.String() != want {
		t.Errorf("%q, %v, want %q", u.String(), err, want)
	}
}

// What is not understood is refused.
func TestParseRuleRefused(t *testing.T) {
	for text, want := range map[string]string{
		"udp sprot 123":                 `"sprot" is no field`,
		"udp sport":                     "sport takes a value",
		"udp sport 99999":               "up to 65535",
		"udp length 500-400":            "from the least to the greatest",
		"udp length -1":                 "want a number",
		"udp tcp":                       "two conditions of protocol",
		"udp per":                       `"per" is no field`,
		"udp per src/33":                "want src, src/N with N from 8 to 32, dst or flow",
		"udp per src/024":               "want src, src/N",
		"udp per all":                   "want src, src/N",
		"udp per dst per src":           `"per" is no field`,
		"tcp flags SS":                  "each once",
		"tcp flags X":                   "letters of FSRPAUEC",
		"udp payload 1234":              "first four bytes",
		"udp payload 00000000":          "not all zero",
		"udp fragment middle":           "first or later",
		"src 192.0.2.1/24":              "host bits",
		"src web":                       "an address or a prefix",
		"src ::ffff:192.0.2.0/120":      "an address or a prefix",
		"src 192.0.2.1 dst 2001:db8::1": "different families",
		"ttl 300":                       "up to 255",
		"doff 16":                       "up to 15",
		"udp sport 1 sport 2":           "two conditions of sport",
		"udp sport 123 dst 203.0.113.2 or tcp 80": `"or" is no field`,
	} {
		if u, err := ParseRule(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want %q", text, u, err, want)
		}
	}
}

// Rules of floods at random are read as they are written, and are narrow enough for programs.
func TestRulesAreRead(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, f := range []struct {
		protocol     uint8
		sport, dport int
	}{{17, 123, 443}, {6, 5000, 80}, {1, 8, 0}, {47, 0, 0}, {17, 53, 53}} {
		d := quiet(r)
		found := d.Second(append(usual(r, 300), many(2700, func() Record {
			p := packetTo(r, f.protocol, f.sport, f.dport)
			p.Length = 468
			return p
		})...), 3000)
		if found == nil || len(found.Rules) == 0 {
			t.Fatalf("%+v: %+v", f, found)
		}
		for i := range found.Rules {
			u := &found.Rules[i].Rule
			again, err := ParseRule(u.String())
			if err != nil || !slices.Equal(again.Conditions, u.Conditions) || again.Narrow() != nil {
				t.Errorf("%v: %v, %v, %v", u, &again, err, again.Narrow())
			}
		}
	}
}

func TestNarrow(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "a protocol, or a destination",
		"length 100":                  "a protocol, or a destination",
		"src 192.0.2.0/24":            "a protocol, or a destination",
		"udp src 64.0.0.0/7":          "too wide",
		"udp sport 1000-2000":         "one more condition",
		"dst 0.0.0.0/0":               "a protocol, or a destination",
		"dst ::/0 ttl 3":              "a protocol, or a destination",
		"protocol 0-255 ttl 3":        "a protocol, or a destination",
		"udp dst 0.0.0.0/0":           "",
		"udp sport 53":                "",
		"udp sport 1000-2000 ttl 60":  "",
		"dst 203.0.113.2":             "",
		"tcp flags S src 192.0.0.0/8": "",
	} {
		u, err := ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := u.Narrow(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Of flags behind a slash, a packet has just those before it, whatever others it has; flags without a
// slash are all that it has.
func TestComparedFlags(t *testing.T) {
	for text, want := range map[string][]uint8{"tcp flags S/SA": {2, 0x42, 0xc2, 7}, "tcp flags none/SFR": {0, 0x10, 0x18}, "tcp flags SA/SA": {0x12, 0x52}, "tcp flags S": {2}, "tcp flags S/FSRPAUEC": {2}} {
		u, err := ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseRule(u.String()); err != nil || !slices.Equal(again.Conditions, u.Conditions) {
			t.Errorf("%s: %v, %v", text, &again, err)
		}
		for _, flags := range []uint8{0, 2, 0x12, 0x10, 0x18, 0x42, 0x52, 0xc2, 7} {
			r := Record{IPv4: true, Protocol: protoTCP, HeaderLength: 5, Flags: flags}
			if got := u.Matches(&r); got != slices.Contains(want, flags) {
				t.Errorf("%s: of flags %#x: %v", text, flags, got)
			}
		}
		if r := (Record{IPv4: true, Protocol: protoUDP}); u.Matches(&r) {
			t.Errorf("%s matches what has no flags", text)
		}
	}
	for _, text := range []string{"tcp flags S/", "tcp flags S/A", "tcp flags /S", "tcp flags S/none", "tcp flags S/SS", "tcp flags S/S/S"} {
		if u, err := ParseRule(text); err == nil {
			t.Errorf("%s is taken as %v", text, &u)
		}
	}
}

// The first pattern whose rate a packet exceeds drops it; one on trial only counts, and one that has
// ended does neither.
func TestPatterns(t *testing.T) {
	now := time.Minute
	ps := Patterns{Now: func() time.Duration { return now }}
	add := func(text string, rate float64, trial bool, until time.Duration) {
		u, err := ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		ps.Add(Pattern{Rule: u, Trial: trial, Limit: penalty.Limit{Penalty: penalty.Penalty{Until: until, Rate: rate, Burst: 2}}})
	}
	add("udp", 0, true, time.Hour)
	add("udp sport 123", 0, false, time.Minute)
	add("udp sport 123", 1e-3, false, time.Hour)
	add("udp dport 443", 0, false, time.Hour)
	r := rand.New(rand.NewPCG(1, 2))
	for i, want := range []int{4, 4, 3, 3} { // two are within the rate, and go on to the next pattern
		p := packetTo(r, protoUDP, 123, 443)
		if got := ps.Drops(&p, 100); got != want {
			t.Errorf("packet %d: dropped by %d, want %d", i, got, want)
		}
	}
	p := packetTo(r, protoTCP, 123, 443)
	if got := ps.Drops(&p, 100); got != 0 || !slices.Equal(ps.Matched, []uint64{4, 0, 4, 2}) {
		t.Errorf("%d, matched %v", got, ps.Matched)
	}
	if p, ok := (&Rule{Conditions: []Condition{{Field: SourcePrefix, Prefix: netip.MustParsePrefix("192.0.2.0/24")}}}).Side(SourcePrefix); !ok || p.Bits() != 24 {
		t.Error(p, ok)
	}
}
