package list

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir/filter/key"
	"weir/filter/snapshot"
	"weir/tests/seed"
)

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
		e.V4 = append(e.V4, V4(r.Uint32()&^(1<<8-1), 24), V4(r.Uint32(), 32))
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
	for _, s := range []*Set{nil, e.Set(), mixed.Set(), SetOf(key.Source(netip.MustParsePrefix("192.0.2.1/32")))} {
		groups := s.Groups()
		b, err := snapshot.Append(nil, groups)
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := snapshot.Decode(b, s.Len())
		if err != nil {
			t.Fatal(err)
		}
		got, err := SetOfGroups(decoded)
		if err != nil || !slices.Equal(slices.Collect(got.All()), slices.Collect(s.All())) || got.Diff(s).Len() != 0 {
			t.Fatalf("%d entries, want %d: %v", got.Len(), s.Len(), err)
		}
		if snapshot.Of(got.Groups()) != snapshot.Of(groups) {
			t.Error("another checksum")
		}
	}
}

// TestNoGroups decodes groups that are of no set.
func TestNoGroups(t *testing.T) {
	for _, g := range []snapshot.Group{
		{Tag: groupV4<<groupShift | 33, Bits: 33},
		{Tag: groupV4<<groupShift | 24, Bits: 32},
		{Tag: groupV6<<groupShift | 129, Bits: 129},
		{Tag: groupFlows << groupShift, Bits: 8 * 13},
		{Tag: groupFlows<<groupShift | 1<<20, Bits: 8 * 13},
		{Tag: groupFlows<<groupShift | 32<<8 | 32, Bits: 8 * 13, Keys: make([]byte, 12)[:0:0]},
		{Tag: groupFlows<<groupShift | 24<<8 | 32, Bits: 8 * 13, Keys: []byte{0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0}},
		{Tag: 7 << groupShift, Bits: 0},
	} {
		if s, err := SetOfGroups([]snapshot.Group{g}); err == nil && s.Len() > 0 || err == nil && len(g.Keys) > 0 {
			t.Errorf("%+v: %d entries", g, s.Len())
		}
	}
}
