package listfile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/snapshot"
	"weir/tests/seed"
)

// Plain prefixes are found by the keys of both sides, a prefix of no bits by
// its only key.
func TestHasPlain(t *testing.T) {
	e, err := ParseEntry("192.0.2.0-192.0.2.2")
	if err != nil {
		t.Fatal(err)
	}
	e.V4 = append(e.V4, list.V4(0, 0))
	s := e.Set()
	for text, want := range map[string]bool{"192.0.2.0/31": true, "192.0.2.2/32": true, "192.0.2.0/32": false, "0.0.0.0/0": true} {
		p := netip.MustParsePrefix(text)
		if s.Has(key.Source(p)) != want || s.Has(key.Destination(p)) != want {
			t.Errorf("%s: want %t", text, want)
		}
	}
	if n := len(s.V4.Side(false, true)); n != 1 {
		t.Errorf("%d sets of destinations", n)
	}
	for p := range s.V4.Side(false, true)[0].All() {
		if p.Bits() == 0 {
			t.Error("a prefix of no bits counts as a destination")
		}
	}
}

// TestGroups encodes sets of all kinds of entries, and decodes them.
func TestGroups(t *testing.T) {
	var text strings.Builder
	for _, l := range good {
		if !strings.Contains(l.line, "\r") {
			text.WriteString(l.line + "\n")
		}
	}
	e, _, err := Parse("good", strings.NewReader(text.String()), Options{MaxBad: 1})
	if err != nil {
		t.Fatal(err)
	}
	r := seed.New(t)
	for range 10_000 {
		e.V4 = append(e.V4, list.V4(r.Uint32()&^(1<<8-1), 24), list.V4(r.Uint32(), 32))
	}
	var lines strings.Builder
	for range 5000 {
		fmt.Fprintf(&lines, "%v/%d\n> %v/%d\nudp [%v/%d]:%d > *:*\ntcp %v:* > %v/%d:443\n", randomV6(r), r.IntN(129), randomV6(r), r.IntN(129),
			randomV6(r), 32+r.IntN(3), r.IntN(65536), randomV4(r), randomV4(r), 8*r.IntN(5))
	}
	mixed, _, err := Parse("mixed", strings.NewReader(lines.String()), Options{Lenient: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*list.Set{nil, e.Set(), mixed.Set(), list.SetOf(key.Source(netip.MustParsePrefix("192.0.2.1/32")))} {
		groups := s.Groups()
		b, err := snapshot.Append(nil, groups)
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := snapshot.Decode(b, s.Len())
		if err != nil {
			t.Fatal(err)
		}
		got, err := list.SetOfGroups(decoded)
		if err != nil || !slices.Equal(slices.Collect(got.All()), slices.Collect(s.All())) || got.Diff(s).Len() != 0 {
			t.Fatalf("%d entries, want %d: %v", got.Len(), s.Len(), err)
		}
		if snapshot.Of(got.Groups()) != snapshot.Of(groups) {
			t.Error("another checksum")
		}
	}
}

func TestHasSources(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "192.0.2.1": false, "0.0.0.0/0": false, "> 192.0.2.1": false, "tcp 192.0.2.1:* > *:*": false,
		"any 192.0.2.1:* > *:*": true, "any [2001:db8::/32]:* > *:*": true,
	} {
		if got := parsed(t, text).HasSources(); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
