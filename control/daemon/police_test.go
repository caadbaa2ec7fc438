package daemon

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/filter/penalty"
	"weir/filter/verdict"
	"weir/tests/lab"
)

// limiting returns functions that have a daemon set a limit with a change: one that must be refused for a
// reason, and one that must be set as asked for, and that ends it again.
func limiting(t *testing.T, d *running, limit api.PoliceChange) (refused func(what, want string, change func(*api.PoliceChange)), accepted func(what string, change func(*api.PoliceChange))) {
	refused = func(what, want string, change func(*api.PoliceChange)) {
		t.Helper()
		c := limit
		change(&c)
		var bad *api.BadRequest
		if p, err := d.policing.SetPolice(t.Context(), c); !errors.As(err, &bad) || !strings.Contains(err.Error(), want) || p.Override != nil || p.Changed {
			t.Errorf("%s: %+v, %v", what, p, err)
		}
		if s := d.readings.Status(); len(s.Policed) > 0 {
			t.Errorf("%s: the status has %+v", what, s.Policed)
		}
	}
	accepted = func(what string, change func(*api.PoliceChange)) {
		t.Helper()
		c := limit
		change(&c)
		p, err := d.policing.SetPolice(t.Context(), c)
		if err != nil || p.Override == nil || p.Override.Rate != c.Rate || p.Unsaved != "" {
			t.Fatalf("%s: %+v, %v", what, p, err)
		}
		off := api.PoliceChange{Interface: c.Interface, Netns: c.Netns, Source: c.Source, Off: true}
		if p, err := d.policing.SetPolice(t.Context(), off); err != nil || !p.Changed || p.Override != nil {
			t.Errorf("%s, then off: %+v, %v", what, p, err)
		}
	}
	return refused, accepted
}

// A limit that must not be, or cannot be, changes nothing, and the error says why.
func TestPoliceRefused(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	r := configure(t, l.B)
	d := begin(t, r)
	ssh := "192.0.2.9 50000 " + l.B.IPv4.String() + " 22"
	limit := api.PoliceChange{Interface: l.B.Iface, Netns: l.B.Netns, Rate: "1kpps", SSH: ssh}
	refused, accepted := limiting(t, d, limit)
	refused("another interface", "other is not filtered", func(c *api.PoliceChange) { c.Interface, c.Netns = "other", "" })
	refused("too slow", "not between 100pps", func(c *api.PoliceChange) { c.Rate = "10pps" })
	refused("no unit", "want bits, bytes or packets", func(c *api.PoliceChange) { c.Rate = "1k/s" })
	refused("no rate", "invalid rate", func(c *api.PoliceChange) { c.Rate = "much" })
	refused("the caller's session", "your SSH session from 192.0.2.9 would share 1kpps", func(*api.PoliceChange) {})

	accepted("with an end", func(c *api.PoliceChange) { c.For = 600 })
	accepted("by force", func(c *api.PoliceChange) { c.Force = true })
	if _, err := d.changes.Change(t.Context(), api.Change{Action: api.Allow, Entries: []string{"192.0.2.9"}}); err != nil {
		t.Fatal(err)
	}
	accepted("the session is allowed", func(*api.PoliceChange) {})

	if _, err := d.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	refused("until the configuration is confirmed", "weir confirm", func(*api.PoliceChange) {})
	if err := d.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	accepted("confirmed", func(*api.PoliceChange) {})
}

// A limit lasts while the configuration has its interface: a reload says that it is forgotten. What
// cannot be saved is limited all the same, and the answer says so.
func TestPoliceFollowsConfiguration(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	r := configure(t, l.A, l.B)
	r.c.StateDir = config.Path(t.TempDir())
	d := begin(t, r)
	if err := os.Mkdir(statePath(&r.c, policeFile)+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	limit := api.PoliceChange{Interface: l.B.Iface, Netns: l.B.Netns, Rate: "2Mbit/s"}
	if p, err := d.policing.SetPolice(t.Context(), limit); err != nil || p.Override == nil || p.Unsaved == "" {
		t.Errorf("%+v, %v", p, err)
	}
	limits := func() (names []string) {
		for _, i := range d.active.attach.Attached() {
			if a := d.active.prepared.Stages.About(i.Target()).Police; a != nil {
				names = append(names, i.Target().Iface+" "+a.Limit)
			}
		}
		return names
	}
	if err := os.Remove(statePath(&r.c, policeFile) + ".new"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.policing.SetPolice(t.Context(), limit); err != nil {
		t.Fatal(err)
	}
	var got []string
	read := func() {
		if err := d.loop.Do(t.Context(), func() error { got = limits(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if read(); strings.Join(got, ",") != l.B.Iface+" 2Mbit/s by flow" {
		t.Errorf("limited are %v", got)
	}
	r.change(func(c *config.Config) { c.Interfaces = c.Interfaces[:1] })
	re, err := d.Reload(t.Context())
	if err != nil || !strings.Contains(strings.Join(re.Changes, "\n"), "no longer counts") {
		t.Errorf("%v, %v", re.Changes, err)
	}
	if s := d.readings.Status(); len(s.Policed) != 0 {
		t.Errorf("%+v", s.Policed)
	}
	if _, err := os.Stat(statePath(&r.c, policeFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the limit would come back: %v", err)
	}
}

// A source is limited unless that would hold back what must not be cut off, or the caller without an
// end, and as long as there is room.
func TestLimitRefused(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	r := configure(t, l.B)
	r.c.Failsafe.Prefixes = []verdict.FailsafePrefix{{Prefix: netip.MustParsePrefix("203.0.113.0/28")}}
	d := begin(t, r)
	limit := api.PoliceChange{Source: "192.0.2.0/24", Rate: "100pps", SSH: "192.0.2.9 50000 " + l.B.IPv4.String() + " 22"}
	refused, accepted := limiting(t, d, limit)
	refused("host bits", "want 192.0.2.1 or 192.0.2.0/24", func(c *api.PoliceChange) { c.Source = "192.0.2.1/24" })
	refused("no source", "want an address or a prefix", func(c *api.PoliceChange) { c.Source = "eth0" })
	refused("no address of a host", "want an address or a prefix", func(c *api.PoliceChange) { c.Source = "fe80::1%eth0" })
	refused("no unit", "want bits, bytes or packets", func(c *api.PoliceChange) { c.Rate = "1k/s" })
	refused("too slow", "not between 8kbit/s", func(c *api.PoliceChange) { c.Rate = "7kbit/s" })
	refused("the caller's session", "your SSH session from 192.0.2.9 would share 100pps with all else from 192.0.2.0/24, without an end: set one by --ttl", func(*api.PoliceChange) {})
	refused("a failsafe prefix", "would hold back the failsafe prefix 203.0.113.0/28", func(c *api.PoliceChange) { c.Source, c.For = "203.0.113.0/29", 60 })

	accepted("with an end", func(c *api.PoliceChange) { c.For = 600 })
	accepted("by force", func(c *api.PoliceChange) { c.Force = true })
	accepted("others than the caller", func(c *api.PoliceChange) { c.Source = "192.0.2.128/25" })
	accepted("fast enough for a failsafe prefix", func(c *api.PoliceChange) { c.Source, c.Rate = "203.0.113.0/29", "1kpps" })

	if err := d.loop.doAlone(t.Context(), func() error {
		for n := range penalty.MaxLimits {
			d.policing.set = append(d.policing.set, api.PoliceOverride{Source: netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}).String(), Rate: "1kpps"})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.policing.SetPolice(t.Context(), api.PoliceChange{Source: "192.0.2.1", Rate: "1kpps"}); err == nil || !strings.Contains(err.Error(), "as many as there can be") {
		t.Errorf("one too many: %v", err)
	}
}

// While a reload is to be confirmed, a limit of a source ends all the same, and the status says so.
func TestLimitEndsUnconfirmed(t *testing.T) {
	t.Parallel()
	d := begin(t, configure(t, lab.New(t).B))
	for _, source := range []string{"192.0.2.0/24", "198.51.100.1"} {
		if _, err := d.policing.SetPolice(t.Context(), api.PoliceChange{Source: source, Rate: "1kpps", For: 3600}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	shown := func(what string, want ...string) {
		t.Helper()
		var sources []string
		for _, o := range d.readings.Status().Policed {
			sources = append(sources, o.Source)
		}
		if !slices.Equal(sources, want) {
			t.Errorf("%s: status has the limits of %q, want %q", what, sources, want)
		}
	}
	shown("unconfirmed", "192.0.2.0/24", "198.51.100.1")
	if err := d.loop.doAlone(t.Context(), func() error {
		all := slices.Clone(d.policing.set)
		all[0].Until = new(time.Now())
		d.policing.set, d.policing.enforced = all, all
		d.note()
		return d.policing.end(time.Now())
	}); err != nil {
		t.Fatal(err)
	}
	shown("after the end of one", "198.51.100.1")
}

// The trial of a pattern begins when programs count its packets, however long they took to build, and anew when the
// next daemon's do.
func TestTrialBegins(t *testing.T) {
	t.Parallel()
	r := configure(t, lab.New(t).B)
	r.change(func(c *config.Config) { c.StateDir = config.Path(t.TempDir()) })
	const trial = time.Minute
	began := func(what string, asked time.Time, ends *time.Time, d *running) {
		t.Helper()
		took := time.Since(asked)
		if ends == nil || time.Until(*ends) < trial-took/2 || time.Until(*ends) > trial {
			t.Errorf("%s: after %v, its trial of %v ends at %v", what, took, trial, ends)
		}
		if s := d.readings.Status().Policed; len(s) != 1 || s[0].Trial == nil || !s[0].Trial.Equal(*ends) {
			t.Errorf("%s: the status has %+v, want %v", what, s, ends)
		}
	}
	d := begin(t, r)
	asked := time.Now()
	p, err := d.policing.SetPolice(t.Context(), api.PoliceChange{Pattern: "udp length 9000 dst 192.0.2.1", Rate: "0pps", For: 3600, Trial: trial.Seconds()})
	if err != nil || p.Override == nil {
		t.Fatalf("%+v, %v", p, err)
	}
	began("by a command", asked, p.Override.Trial, d)
	for range 2 { // which makes it no longer
		d.stop()
		asked = time.Now()
		d = begin(t, r)
		began("after a restart", asked, d.policing.set[0].Trial, d)
	}
}

// A pattern that was enforced after a trial, and has expired since, is enforced at once where it is set again within an
// hour. One that has matched next to nothing, or conversations, or has not been enforced, is tried again.
func TestTrialStood(t *testing.T) {
	t.Parallel()
	d := begin(t, configure(t, lab.New(t).B))
	pattern, ended := "udp dport 9999 dst 192.0.2.1/32", time.Now()
	tried := func(during float64) bool {
		t.Helper()
		p, err := d.policing.SetPolice(t.Context(), api.PoliceChange{Pattern: pattern, Rate: "0pps", For: during, Trial: 60})
		if err != nil || p.Override == nil || p.Override.TrialFor != 60 {
			t.Fatalf("%+v, %v", p, err)
		}
		return p.Override.Trial != nil
	}
	for _, c := range []struct {
		packets uint64
		trial   *time.Time
		expired bool
		ago     time.Duration
		during  float64
		tried   bool
	}{
		{leastMatched, nil, true, 0, 3600, false},
		{leastMatched, nil, true, stoodFor - time.Minute, 3600, false},
		{leastMatched, nil, true, stoodFor, 3600, true},
		{leastMatched, nil, true, 0, 60, true}, // which is to count only
		{leastMatched - 1, nil, true, 0, 3600, true},
		{leastMatched, nil, false, 0, 3600, true},
		{leastMatched, &ended, true, 0, 3600, true},
	} {
		if err := d.loop.doAlone(t.Context(), func() error {
			d.policing.stood[pattern] = time.Now() // of an earlier one
			d.policing.remember(api.PoliceOverride{
				Pattern: pattern, TrialFor: 60, Trial: c.trial, Hits: &api.PatternPackets{Packets: c.packets},
			}, c.expired, time.Now().Add(-c.ago))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if tried(c.during) != c.tried {
			t.Errorf("%+v: tried again: %t", c, !c.tried)
		}
	}
}

// Packets of conversations end a pattern that is enforced: too large a share of a hundred or more, five of
// fewer.
func TestTried(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		matched, conversing, unknown uint64
		ends                         bool
	}{
		{0, 0, 0, false},
		{4, 4, 0, false}, // chance
		{5, 5, 0, true},
		{99, 4, 0, false},
		{100, 0, 0, false},
		{100, 1, 0, true},
		{1000, 8, 0, false},
		{1000, 9, 0, true},
		{100_000, 100, 0, false},
	} {
		p := new(policing)
		o := api.PoliceOverride{Pattern: "udp", TrialFor: 60, Hits: &api.PatternPackets{Packets: c.matched, Conversing: c.conversing, Unknown: c.unknown}}
		if _, ends := p.tried(o, time.Now()); ends != c.ends {
			t.Errorf("%+v: it ends: %v", c, ends)
		}
		o.Trial = new(time.Now().Add(-time.Second))
		if next, _ := p.tried(o, time.Now()); (next.Trial != nil) != (c.matched == 0) {
			t.Errorf("%+v: on trial until %v, after its time", c, next.Trial)
		}
	}
}
