package demo

import (
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"

	"weir/control/daemon"
	"weir/control/engine"
	"weir/filter/packet"
	"weir/filter/verdict"
)

// build builds the engine of the lists, and returns the number of their entries.
func build(t *testing.T, l *lists) (*engine.Generation, int) {
	t.Helper()
	c, err := l.config()
	if err != nil {
		t.Fatal(err)
	}
	p, err := daemon.Prepare(t.Context(), c, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := p.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g, p.Entries()
}

// The demo's expectations agree with weir's reference, so that a failure of the
// demo is one of the kernel's program.
func TestExpectations(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	l, err := makeLists(t.TempDir(), Options{Entries: 5000}, random)
	if err != nil {
		t.Fatal(err)
	}
	traffic, err := makeTraffic(l, random)
	if err != nil {
		t.Fatal(err)
	}
	g, entries := build(t, l)
	for _, f := range traffic.frames {
		want := [numKinds]verdict.Reason{unlisted: verdict.Clean, listed: verdict.Blocked, allowedToo: verdict.Allowed}[f.kind]
		got := g.Decide(f.data).Reason
		if got == verdict.DHCP && f.kind == unlisted {
			continue
		}
		if got != want {
			p, _ := packet.Parse(f.data)
			t.Fatalf("%+v: %v, want %v", p, got, want)
		}
	}
	for k, n := range traffic.counts {
		if n < trafficFrames/100 {
			t.Errorf("%d packets of kind %d", n, k)
		}
	}

	// The entries added later change nothing.
	if err := l.grow(traffic, random); err != nil {
		t.Fatal(err)
	}
	next, more := build(t, l)
	if more != entries+later {
		t.Errorf("%d entries, then %d", entries, more)
	}
	for _, f := range traffic.frames {
		if a, b := g.Decide(f.data), next.Decide(f.data); a.Action != b.Action {
			t.Fatalf("% x: %v, then %v", f.data, a, b)
		}
	}
}

// No list covers a host of the demo.
func TestRandomAddresses(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	hosts := netip.MustParsePrefix("198.18.0.0/15")
	for range 1_000_000 { // of 30 there
		if a := random4(r); hosts.Contains(a) {
			t.Fatalf("%v is drawn", a)
		}
	}
}
