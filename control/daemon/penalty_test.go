package daemon

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir/control/api"
	"weir/control/config"
	"weir/control/quantity"
	"weir/control/ruleset"
	"weir/control/stage/tracker"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// scan sends packets of a source to ports, which are a scan and a flood.
func scan(t *testing.T, l *lab.Lab, source string, ports int) {
	t.Helper()
	for port := range ports {
		sendFrame(t, l, 1, packet.Frame(key.Tuple{
			Src: netip.MustParseAddr(source), Dst: l.B.IPv4, Proto: 17, HasPorts: true, SrcPort: 53, DstPort: uint16(port + 1),
		}))
	}
}

// Forged scans and floods in the name of addresses that the host must not be cut off from have nothing
// blocked: no gateway, resolver, failsafe source or own address. What becomes a gateway is
// released, and anti_lockout: false blocks all the same.
func TestForgedScansCutOffNothing(t *testing.T) {
	long.Unraced(t)
	long.Seconds(t)
	t.Parallel() // it waits a lot
	l := lab.New(t)
	const scanner, resolver, safe = "192.0.2.77", "198.18.0.53", "198.51.100.7"
	gateway, own := l.A.IPv4.String(), l.B.IPv4.String()
	next := l.A.IPv4.Next().Next().Next().String() // a neighbour, for now
	route := func(via string) {
		t.Helper()
		if err := l.B.Do(func() error {
			link, err := netlink.LinkByName(l.B.Iface)
			if err != nil {
				return err
			}
			return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(via)})
		}); err != nil {
			t.Fatal(err)
		}
	}
	route(gateway)
	r := configure(t, l.B)
	r.change(func(c *config.Config) {
		c.Failsafe.Prefixes = []verdict.FailsafePrefix{{Prefix: netip.MustParsePrefix("198.51.100.0/24")}}
		g := tracker.DefaultScan("src")
		g.Action, g.Duration = tracker.Block, 3600e9
		spec, err := tracker.Parse("key=src,threshold=100pps,action=block,duration=1h")
		if err != nil {
			t.Fatal(err)
		}
		c.Scans, c.Trackers = []tracker.Scan{g}, []tracker.Spec{spec}
	})
	d := begin(t, r)
	look := func() { // again, whom the host must not be cut off from
		t.Helper()
		if err := d.loop.doAlone(t.Context(), func() error {
			d.antiLockout.lookAgain = time.Time{}
			d.followPeers(time.Now())
			d.antiLockout.lookAgain = time.Now().Add(time.Hour)
			// The host's resolvers are not those of a namespace.
			d.active.prepared.Peers = append(d.active.prepared.Peers, ruleset.Peer{What: "the resolver", Key: key.Source(netip.PrefixFrom(netip.MustParseAddr(resolver), 32))})
			d.observers.protect(d.active.prepared)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	look()
	// punish scans until a source is blocked.
	punish := func(source string, others ...string) {
		t.Helper()
		for deadline := wait.Deadline(); verdictOf(t, d.Daemon, source) != verdict.Drop; time.Sleep(200 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s is not blocked", source)
			}
			for _, s := range append(others, source) {
				scan(t, l, s, 200)
			}
		}
	}
	// dropped returns how many of ten packets of a source are dropped.
	dropped := func(source string) uint64 {
		t.Helper()
		count := func() (packets, dropped uint64) {
			for _, i := range d.readings.Metrics().Interfaces {
				for _, c := range i.Counts {
					packets += c.Packets
				}
			}
			return packets, left(d.Daemon, "heavy", true)
		}
		packets, before := count()
		send(t, l, 10, source)
		for deadline := wait.Deadline(); ; time.Sleep(time.Millisecond) {
			if now, after := count(); now >= packets+10 {
				return after - before
			} else if time.Now().After(deadline) {
				t.Fatalf("%d packets arrived, want 10", now-packets)
			}
		}
	}
	protected := []string{gateway, own, resolver, safe}
	for range 3 {
		for _, s := range protected {
			scan(t, l, s, 300)
		}
	}
	punish(scanner, protected...)
	punish(next)
	for _, s := range []string{scanner, next} {
		if n := dropped(s); n != 10 {
			t.Errorf("%d of 10 packets of the scanner %s are dropped", n, s)
		}
	}
	for _, s := range protected {
		if n := dropped(s); n != 0 {
			t.Errorf("%d of 10 packets of %s are dropped", n, s)
		}
	}

	e, err := d.api.Explainer.Explain(t.Context(), gateway, true)
	want := gateway + " would be blocked (tracker src), but that would cut off the gateway " + gateway
	if err != nil || len(e.Answers[0].Spared) == 0 || e.Answers[0].Spared[0] != want || e.Answers[0].Verdict != api.VerdictPass {
		t.Errorf("explained by %+v, %v; want %q", e, err, want)
	}
	if err := d.loop.Do(t.Context(), func() error { d.noteStatus(); return nil }); err != nil {
		t.Fatal(err)
	}
	if s := d.readings.Status().Spared; !slices.ContainsFunc(s, func(x api.Spared) bool { return x.String() == want }) || len(s) < len(protected) {
		t.Errorf("status: %+v, want %q among them", s, want)
	}
	if s := d.readings.Status(); len(s.Spared) < api.MaxSpared && s.SparedMore != 0 {
		t.Errorf("status: %d are spared, and %d more", len(s.Spared), s.SparedMore)
	}

	route(next)
	look()
	for deadline := wait.Deadline(); dropped(next) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("the next gateway is still blocked")
		}
	}
	if n := dropped(scanner); n != 10 {
		t.Errorf("%d of 10 packets of the scanner are dropped after the route has changed", n)
	}

	r.change(func(c *config.Config) { c.Scans[0].AntiLockout, c.Trackers[0].AntiLockout = false, false })
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	look()
	punish(next)
	if n := dropped(next); n != 10 {
		t.Errorf("with anti_lockout: false, %d of 10 packets of the gateway are dropped", n)
	}
}

// A source that is limited says so, and by how much it exceeds the limit. Of thousands of
// penalties, an answer names those that the packets meet, and ten of others.
func TestExplainPenalties(t *testing.T) {
	l := lab.New(t)
	r := configure(t, l.B)
	spec, err := tracker.Parse("key=src,threshold=100pps,action=limit,limit=10pps,duration=1h")
	if err != nil {
		t.Fatal(err)
	}
	r.c.Trackers = []tracker.Spec{spec}
	d := begin(t, r)
	answer := func(question string) api.Answer {
		t.Helper()
		e, err := d.api.Explainer.Explain(t.Context(), question, true)
		if err != nil {
			t.Fatal(err)
		}
		return e.Answers[0]
	}
	const flooder = "192.0.2.1"
	for deadline := wait.Deadline(); ; time.Sleep(100 * time.Millisecond) {
		send(t, l, 400, flooder)
		a := answer(flooder)
		if a.Limit != nil && a.Limit.Offered != nil && *a.Limit.Offered > 100 {
			if x := a.Limit; a.Verdict != api.VerdictLimited || x.Flow != flooder || x.Rate != 10 || x.Tracker != "src" || x.Unit != "packets" || x.Until == nil {
				t.Errorf("%v: %+v", a.Verdict, x)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, %+v", a, a.Limit)
		}
	}
	const listed = firstSource
	send(t, l, 5, listed)
	for deadline := wait.Deadline(); ; time.Sleep(10 * time.Millisecond) {
		if x := answer(listed).LastDrop; x != nil && x.Packets == 5 {
			if x.Reason != "blocked" || x.List != "feed" || time.Since(x.Time) > time.Minute {
				t.Errorf("%+v", x)
			}
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("last dropped: %+v", x)
		}
	}
	if x := answer(cleanSource).LastDrop; x != nil {
		t.Errorf("what was not dropped was last dropped: %+v", x)
	}
	if a := answer("192.0.2.2"); a.Verdict != api.VerdictPass || a.Limit != nil || a.PenaltiesMore != 0 {
		t.Errorf("another source: %+v", a)
	}
}

// On real packets, scanners that come after 12,000 forged ones are blocked.
func TestForgedScansLeaveRoom(t *testing.T) {
	long.Only(t, "a minute, for 1.7 million packets")
	l := lab.New(t)
	r := configure(t, l.B)
	g := tracker.DefaultScan("src")
	g.Action, g.Duration, g.Memory = tracker.Block, quantity.Duration(time.Hour), 8<<20
	r.c.Scans = []tracker.Scan{g}
	d := begin(t, r)
	tx := l.A.Sender(t)
	scan := func(src netip.Addr, ports int) {
		t.Helper()
		for port := range ports {
			if err := tx.Send(packet.Frame(key.Tuple{Src: src, Dst: l.B.IPv4, Proto: 17, HasPorts: true, SrcPort: 1, DstPort: uint16(port + 1)})); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 12_000 {
		scan(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 120)
	}
	status := func() (s api.Status) {
		t.Helper()
		if err := d.loop.Do(t.Context(), func() error { d.note(); return nil }); err != nil {
			t.Fatal(err)
		}
		return d.readings.Status()
	}
	s := status()
	t.Logf("after the forged ones: %d penalties of %d, %d refused", *s.Interfaces[0].Penalties, s.Interfaces[0].MaxPenalties, s.PenaltiesRefused)
	missed := 0
	for i := range 40 {
		src := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		for range 3 { // windows may end in between
			scan(src, 2000)
			time.Sleep(2 * tracker.Tick)
		}
		blocked := func() bool { return verdictOf(t, d.Daemon, src.String()) == verdict.Drop }
		for late := time.Now().Add(time.Second); !blocked() && time.Now().Before(late); { // ticks may come late
			time.Sleep(tracker.Tick)
		}
		if !blocked() {
			missed++
		}
	}
	s = status()
	t.Logf("then: %d penalties of %d, %d refused, %d replaced", *s.Interfaces[0].Penalties, s.Interfaces[0].MaxPenalties, s.PenaltiesRefused, s.PenaltiesReplaced)
	if missed > 0 {
		t.Errorf("%d of 40 scanners are not blocked", missed)
	}
}
