package ruleset

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/lists"
	"weir/control/quantity"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/loader"
)

// sources returns addresses that are sources of packets.
func sources(addresses ...string) *list.Set {
	var keys []key.Key
	for _, text := range addresses {
		a := netip.MustParseAddr(text)
		keys = append(keys, key.Source(netip.PrefixFrom(a, a.BitLen())))
	}
	return list.SetOf(keys...)
}

// derivationCase has all that the derived prefixes of a list depend on.
type derivationCase struct {
	what           string
	list           config.List
	of             config.Config
	source, manual *list.Set
	peers          []Peer
}

// read returns a rule set of the list, after another one.
func (c *derivationCase) read(j *journal.Journal, last *Ruleset) *Ruleset {
	p := &Ruleset{Config: &c.of, Journal: j, Peers: c.peers, ByName: make(map[string]*List)}
	l := &List{List: c.list}
	if c.source != nil {
		l.SourceNumber = p.add(l, "", c.source)
	}
	l.ManualNumber = p.add(l, api.ManualSuffix, c.manual)
	if derivation(l.List).On() {
		l.DerivedNumber = p.add(l, api.DerivedSuffix, nil)
	}
	p.Lists, p.ByName[l.Name] = []*List{l}, l
	p.deriveAll(last)
	return p
}

func (p *Ruleset) derivedOfFirst() (all []string) {
	l := p.Lists[0]
	if l.DerivedNumber == 0 {
		return nil
	}
	for k := range p.Contents(l.DerivedNumber).All() {
		all = append(all, k.String())
	}
	slices.Sort(all)
	return append(all, l.derivedWarnings(p.Derived[l.DerivedNumber])...)
}

// A reload derives of a list what a start would, whatever one thing of it has changed.
func TestDerivedAfterReload(t *testing.T) {
	j, err := journal.Open("", nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	left := sources("2001:db8:3::1")
	for k := range left.All() {
		e := journal.Entry{List: "feed", Key: k, Added: time.Now(), Reason: lists.ReasonLeft, UID: api.NoUID}
		if err := j.Apply([]journal.Change{{Entry: e}}); err != nil {
			t.Fatal(err)
		}
	}
	base := derivationCase{
		list: config.List{Name: "feed", Action: config.Block, Prefix6: 64, TTL: quantity.Duration(time.Hour), Aggregate: config.Aggregate{IPv4: 24, IPv6: 48, At: 2}},
		source: list.Union(
			sources("192.0.2.1", "192.0.2.2", "192.0.2.130", "203.0.113.1", "2001:db8:1:1::1", "2001:db8:1:2::1", "2001:db8:1:3::1", "2001:db8:2::1", "2001:db8:2::2"),
			list.SetOf(key.Destination(netip.MustParsePrefix("198.51.100.1/32"))),
			(&list.Entries{V4: []list.V4Prefix{list.V4Of(netip.MustParsePrefix("203.0.113.2/32")), list.V4Of(netip.MustParsePrefix("198.51.100.2/32"))}}).Set(), // of the list's side
		),
		manual: list.Union(left, sources("192.0.2.9", "192.0.2.10", "2001:db8:4::1")),
	}
	base.of.MaxCoverage = 1
	cases := []derivationCase{base}
	for what, change := range map[string]func(*derivationCase){
		"prefix6 is for sources, too":  func(c *derivationCase) { c.list.Format.Kind = feed.CrowdSec },
		"another prefix6":              func(c *derivationCase) { c.list.Prefix6 = 56 },
		"no prefix6":                   func(c *derivationCase) { c.list.Prefix6 = 0 },
		"another length for IPv4":      func(c *derivationCase) { c.list.Aggregate.IPv4 = 25 },
		"another length for IPv6":      func(c *derivationCase) { c.list.Aggregate.IPv6 = 40 },
		"another number of addresses":  func(c *derivationCase) { c.list.Aggregate.At = 3 },
		"no aggregate":                 func(c *derivationCase) { c.list.Aggregate = config.Aggregate{} },
		"no derivation":                func(c *derivationCase) { c.list.Aggregate, c.list.Prefix6 = config.Aggregate{}, 0 },
		"both sides":                   func(c *derivationCase) { c.list.Direction = engine.Both },
		"the other side":               func(c *derivationCase) { c.list.Direction = engine.Destination },
		"entries that have left widen": func(c *derivationCase) { c.list.TTL = 0 },
		"no sources":                   func(c *derivationCase) { c.source = nil },
		"other contents of sources":    func(c *derivationCase) { c.source = sources("192.0.2.1", "198.18.0.1", "198.18.0.2") },
		"other manual entries":         func(c *derivationCase) { c.manual = left },
		"a lower max_coverage":         func(c *derivationCase) { c.of.MaxCoverage = 1e-9 },
		"no max_coverage":              func(c *derivationCase) { c.of.MaxCoverage = 0 },
		"a failsafe prefix":            func(c *derivationCase) { c.of.Failsafe.Prefixes = failsafeEntry("192.0.2.200/32") },
		"another failsafe prefix":      func(c *derivationCase) { c.of.Failsafe.Prefixes = failsafeEntry("2001:db8:4::/64") },
		"a peer that must not be cut off": func(c *derivationCase) {
			c.peers = []Peer{{What: "the gateway", Key: key.Source(netip.MustParsePrefix("2001:db8:1::7/128"))}}
		},
	} {
		c := base
		c.what = what
		change(&c)
		cases = append(cases, c)
	}
	different := make(map[string]string)
	for _, c := range cases {
		want := fmt.Sprint(c.read(j, nil).derivedOfFirst())
		if _, twice := different[want]; twice && c.what != "no max_coverage" {
			t.Errorf("%q derives what %q does: the test is too narrow: %v", c.what, different[want], want)
		}
		different[want] = c.what
		for _, before := range cases {
			last := before.read(j, nil)
			if got := fmt.Sprint(c.read(j, last).derivedOfFirst()); got != want {
				t.Errorf("%q after %q: derives %v, a start %v", c.what, before.what, got, want)
			}
		}
	}
}

func failsafeEntry(text string) (all []verdict.FailsafePrefix) {
	return []verdict.FailsafePrefix{{Prefix: netip.MustParsePrefix(text)}}
}

// Some of the prefixes that are left out are named, and the others counted.
func TestDerivedWarnings(t *testing.T) {
	l := &List{List: config.List{Name: "feed"}}
	for _, c := range []struct {
		left, more, lines int
		last              string
	}{
		{0, 0, 0, ""},
		{maxBadLines, 0, maxBadLines, "covers the gateway"},
		{maxBadLines + 1, 0, maxBadLines + 1, "left out: 1 more prefixes"},
		{maxLeftDerived, 7, maxBadLines + 1, fmt.Sprintf("left out: %d more prefixes", maxLeftDerived+7-maxBadLines)},
	} {
		d := derived{more: c.more, left: slices.Repeat([]notDerived{{over: covered{peer: "the gateway"}}}, c.left)}
		got := l.derivedWarnings(d)
		if len(got) != c.lines || c.lines > 0 && !strings.Contains(got[c.lines-1], c.last) {
			t.Errorf("%d left out and %d more: %q", c.left, c.more, got)
		}
	}
}

// A list has matched what its sources, its manual entries and its derived prefixes have matched together.
func TestCaught(t *testing.T) {
	c := derivationCase{
		list:   config.List{Name: "feed", Action: config.Block, Prefix6: 64},
		source: sources("192.0.2.1"), manual: sources("2001:db8::1"),
	}
	p := c.read(nil, nil)
	p.Lists[0].From = quiet{}
	hits := map[string]loader.Counter{"feed": {Packets: 1}, "feed" + api.ManualSuffix: {Packets: 10}, "feed" + api.DerivedSuffix: {Packets: 100}, "other": {Packets: 1000}}
	if l := p.Describe(hits, nil)[0]; l.Packets == nil || *l.Packets != 111 || l.Entries != 2 || l.Manual != 1 || l.Derived != 1 {
		t.Errorf("%+v", l)
	}
	p.Lists[0].Action = config.Allow
	if l := p.Describe(hits, nil)[0]; l.Packets != nil {
		t.Errorf("of an allow list: %d packets", *l.Packets)
	}
}

// quiet is a source with nothing to say.
type quiet struct{ Source }

func (quiet) Status() (s feed.Status) { return s }
