package daemon

import (
	"log/slog"
	"math"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/maxmind/mmdbwriter/mmdbtype"

	"weir/control/api"
	"weir/control/config"
	"weir/control/observe"
	"weir/control/quantity"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/mmdb"
	"weir/tests/must"
	"weir/tests/wait"
)

// Drops are added up by autonomous system; without a database, or with a broken one,
// there is a clear error, and a reload changes nothing.
func TestDropsByASN(t *testing.T) {
	l := lab.New(t)
	r := configure(t, l.B)
	path := filepath.Join(t.TempDir(), "asn.mmdb")
	must.Write(t, path, mmdb.New(t, map[string]mmdbtype.Map{"192.0.2.0/24": {
		"autonomous_system_number": mmdbtype.Uint32(64496), "autonomous_system_organization": mmdbtype.String("Example"),
	}}))
	r.c.Geo.ASN = quantity.Path(path)
	d := begin(t, r)
	now := time.Now()
	d.observers.drops.Hour.Add(observe.DropInterval{
		Begin: now.Add(-time.Second), End: now, Packets: 10, Bytes: 600, Flows: map[observe.DroppedFlow]observe.DropCount{
			{Remote: netip.MustParseAddr("192.0.2.1"), Reason: verdict.Blocked, List: "feed"}:    {Packets: 4, Least: 4},
			{Remote: netip.MustParseAddr("192.0.2.2"), Reason: verdict.RateLimited}:              {Packets: 2, Least: 1},
			{Remote: netip.MustParseAddr("198.51.100.1"), Reason: verdict.Blocked, List: "feed"}: {Packets: 1, Least: 1},
		},
	})
	got, err := d.observers.drops.Drops(t.Context(), api.DropsQuestion{By: api.ByASN, Last: time.Minute, Limit: 9})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Drops) != 2 || got.Other != 3 || got.Packets != 10 {
		t.Fatalf("%+v", got)
	}
	if n := got.Drops[0]; n.Key != "AS64496" || n.Name != "Example" || n.Packets != 6 || n.Least != 5 || n.Sources != 2 || strings.Join(n.Reasons, " ") != "blocked rate-limited" {
		t.Errorf("%+v", n)
	}
	if n := got.Drops[1]; n.Key != "" || n.Packets != 1 {
		t.Errorf("%+v", n)
	}
	if _, err := d.observers.drops.Drops(t.Context(), api.DropsQuestion{By: api.ByCountry, Last: time.Minute, Limit: 9}); err == nil || !strings.Contains(err.Error(), "geo.country") {
		t.Errorf("without a database: %v", err)
	}
	must.Write(t, path, "broken")
	if _, err := d.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "geo.asn: "+path) {
		t.Errorf("a reload with a broken database: %v", err)
	}
	if got, err := d.observers.drops.Drops(t.Context(), api.DropsQuestion{By: api.ByASN, Last: time.Minute, Limit: 9}); err != nil || len(got.Drops) != 2 {
		t.Errorf("after the database broke: %+v, %v", got, err)
	}
	// What must be activated does not wait for it: a rollback, decisions about trials, a start.
	if err := d.loop.doAlone(t.Context(), d.reassemble); err != nil {
		t.Errorf("the configuration again: %v", err)
	}
	if got, err := d.observers.drops.Drops(t.Context(), api.DropsQuestion{By: api.ByASN, Last: time.Minute, Limit: 9}); err != nil || len(got.Drops) != 2 {
		t.Errorf("with the configuration again: %+v, %v", got, err)
	}
	if _, err := Prepare(t.Context(), &r.c, slog.New(slog.DiscardHandler), nil); err == nil || !strings.Contains(err.Error(), "geo.asn: "+path) {
		t.Errorf("weir check: %v", err)
	}
	d.stop()
	d = begin(t, r)
	if _, err := d.observers.drops.Drops(t.Context(), api.DropsQuestion{By: api.ByASN, Last: time.Minute, Limit: 9}); err == nil || !strings.Contains(err.Error(), "geo.asn: "+path) {
		t.Errorf("after a start: %v", err)
	}
}

// Packets that passed in monitor mode are not reported as dropped after it, nor dropped ones as passed
// when it is on again.
func TestDropsAndMonitorMode(t *testing.T) {
	l := lab.New(t)
	r := configure(t, l.B)
	d := begin(t, r)
	ask := func(by string) (got api.Drops) {
		t.Helper()
		got, err := d.observers.drops.Drops(t.Context(), api.DropsQuestion{By: by, Last: time.Minute, Limit: 9})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	var sent, monitored uint64
	for _, monitor := range []bool{true, false, true} {
		setMonitor(t, d, monitor, 0)
		for range 2 { // until an interval of this mode has begun
			before := d.readings.top.Load()
			wait.For(t, "the end of an interval", func() bool { return d.readings.top.Load() != before })
		}
		send(t, l, 6, firstSource)
		if sent += 6; monitor {
			monitored += 6
		}
		for deadline := wait.Deadline(); ask(api.BySource).Packets < sent; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%+v", ask(api.BySource))
			}
		}
		for _, by := range []string{api.BySource, api.ByList, api.ByReason} {
			if got := ask(by); got.Monitor != monitor || got.Packets != sent || got.MonitorPackets != monitored || got.TrialPackets != 0 ||
				len(got.Drops) != 1 || got.Drops[0].Packets != sent || got.Drops[0].MonitorPackets != monitored {
				t.Errorf("by %s, with %d packets, %d in monitor mode: %+v", by, sent, monitored, got)
			}
		}
		e, err := d.api.Explainer.Explain(t.Context(), firstSource, false)
		if err != nil {
			t.Fatal(err)
		}
		if x := e.Answers[0].LastDrop; x == nil || x.Packets != sent || x.MonitorPackets != monitored || x.Reason != "blocked" || x.List != "feed" {
			t.Errorf("last dropped: %+v", x)
		}
	}
}

// Drops by list leave out packets that lists have matched before dropped packets are tracked.
func TestDropsTrackedLater(t *testing.T) {
	l := lab.New(t)
	r := configure(t, l.B)
	r.c.TrackDrops = false
	d := begin(t, r)
	caught := func() uint64 { return d.observers.meter.Hits()["feed"].Packets }
	for range 2 {
		send(t, l, 50, firstSource)
		before := caught()
		if before < 50 {
			t.Fatalf("%d packets of list feed", before)
		}
		r.change(func(c *config.Config) { c.TrackDrops = true })
		if _, err := d.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		send(t, l, 3, firstSource)
		for deadline := wait.Deadline(); ; time.Sleep(10 * time.Millisecond) {
			got, err := d.observers.drops.Drops(t.Context(), api.DropsQuestion{By: api.ByList, Last: time.Minute, Limit: 9})
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Drops) > 0 {
				if n := got.Drops[0]; n.Key != "feed" || n.Packets > caught()-before {
					t.Errorf("%+v, of %d packets that are tracked", n, caught()-before)
				}
				break
			} else if time.Now().After(deadline) {
				t.Fatalf("%+v", got)
			}
		}
		r.change(func(c *config.Config) { c.TrackDrops = false })
		if _, err := d.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.observers.drops.Hour = observe.DropHistory{} // to which nothing is added now
	}
}

// Drops by list are those that the lists have counted, and their shares add up.
func TestDropsByList(t *testing.T) {
	r := configure(t, lab.New(t).B)
	d := begin(t, r)
	now := time.Now()
	blocked := func(last byte, list string, out bool) observe.DroppedFlow {
		return observe.DroppedFlow{Remote: netip.AddrFrom4([4]byte{192, 0, 2, last}), Reason: verdict.Blocked, List: list, Out: out}
	}
	d.observers.drops.Hour.Add(observe.DropInterval{
		Begin: now.Add(-9 * time.Second), End: now.Add(-8 * time.Second), Packets: 1000, Bytes: 60_000,
		Flows: map[observe.DroppedFlow]observe.DropCount{
			blocked(1, "feed", false): {Packets: 700, Least: 600}, // an estimate
			blocked(2, "feed", false): {Packets: 90, Least: 90},
			blocked(3, "both", false): {Packets: 100, Least: 90},
			blocked(4, "both", true):  {Packets: 30, Least: 25},
			{Remote: netip.AddrFrom4([4]byte{192, 0, 2, 5}), Reason: verdict.RateLimited}:               {Packets: 10, Least: 10},
			{Remote: netip.AddrFrom4([4]byte{192, 0, 2, 6}), Reason: verdict.WouldBlock, List: "small"}: {Packets: 95, Bytes: 5700, Least: 95},
			{Remote: netip.AddrFrom4([4]byte{192, 0, 2, 7}), Reason: verdict.Blocked, Renumbered: true}: {Packets: 60, Least: 60}, // of list feed
		},
		Trial: observe.Total{Packets: 95, Bytes: 5700},
		Lists: map[string]uint64{"feed": 780, "small": 95, "both": 120},
	})
	got, err := d.observers.drops.Drops(t.Context(), api.DropsQuestion{By: api.ByList, Last: time.Minute, Limit: 9})
	if err != nil {
		t.Fatal(err)
	}
	rows, share := make(map[string]api.Drop), 0.0
	for _, n := range got.Drops {
		rows[n.Key+" "+n.Direction] = n
		share += n.Share
	}
	if got.TrialPackets != 95 || got.TrialBytes != 5700 {
		t.Errorf("%d packets of %d bytes by lists on trial", got.TrialPackets, got.TrialBytes)
	}
	if n, seconds := rows["feed in"], got.Until.Sub(got.Since).Seconds(); math.Abs(n.Rate*seconds-780) > 1e-6 {
		t.Errorf("%v packets a second in %v s", n.Rate, seconds)
	}
	for key, want := range map[string][2]uint64{
		"feed in": {780, 780}, "small in": {95, 95}, "both in": {90, 90}, "both out": {30, 25}, " in": {10, 10},
	} {
		if n := rows[key]; n.Packets != want[0] || n.Least != want[1] {
			t.Errorf("%q: %+v", key, n)
		}
	}
	if sum := uint64(780 + 95 + 120 + 10); got.Packets != sum || got.Other != 0 || share > 1+1e-9 || share < 1-1e-9 || len(rows) != 5 {
		t.Errorf("%+v: shares of %v", got, share)
	}
}
