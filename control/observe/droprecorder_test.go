package observe

import (
	"context"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/ruleset"
	"weir/filter/key"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/clock"
)

// What lists match from the start on is counted, also beside reports without packets.
func TestListsFromTheStart(t *testing.T) {
	var d DropRecorder
	hits := func(n uint64) Tally { return Tally{Lists: map[string]loader.Counter{"feed": {Packets: n}}} }
	now := time.Now()
	d.Follow(Phase{Begin: now}, true, func() Tally { return hits(100) }) // of the daemon before
	for _, next := range []struct {
		packets, hits uint64
		out           bool
	}{{30, 130, false}, {0, 150, true}, {0, 150, false}, {20, 170, false}} {
		now = now.Add(time.Second)
		d.Report(now, &DropReport{Interval: time.Second, Packets: next.packets}, next.out, hits(next.hits))
	}
	if got := d.Hour.Since(now.Add(-time.Hour), now).Lists["feed"]; got != 70 {
		t.Errorf("%d packets of 70", got)
	}
}

// Flows have the number of a list. Where that becomes another list's, an interval of before is not
// credited to it.
func TestDropsOfRenumberedLists(t *testing.T) {
	for _, inherits := range []bool{false, true} {
		d := &DropRecorder{Inherits: inherits}
		now := time.Now()
		at := now.Add
		none := func() (c Tally) { return c }
		report := func(end time.Duration, number uint16) {
			f := sketch.Flow{Packets: 7, Cause: sketch.Cause{Reason: uint8(verdict.Blocked), List: number}}
			f.Key = key.Source(netip.MustParsePrefix("192.0.2.1/32"))
			d.Report(at(end), &DropReport{Interval: time.Second, Packets: 7, Flows: []sketch.Flow{f}}, false, Tally{})
		}
		listed := func(want DroppedFlow) {
			t.Helper()
			want.Remote, want.Reason = netip.MustParseAddr("192.0.2.1"), verdict.Blocked
			if n := d.last.Flows[want]; n.Packets != 7 {
				t.Errorf("%+v, want %+v", d.last.Flows, want)
			}
		}
		d.Follow(Phase{Begin: at(0), Lists: []string{"first", "second"}}, true, none)
		report(900*time.Millisecond, 2) // it began before
		if inherits {
			listed(DroppedFlow{Renumbered: true})
		} else {
			listed(DroppedFlow{List: "second"})
		}
		report(1900*time.Millisecond, 2)
		listed(DroppedFlow{List: "second"})
		d.Follow(Phase{Begin: at(1950 * time.Millisecond), Lists: []string{"first", "other", "second"}}, true, none)
		d.Follow(Phase{Begin: at(1950 * time.Millisecond), Lists: []string{"first", "other", "second"}}, true, none)
		report(2960*time.Millisecond, 2) // it is added late
		listed(DroppedFlow{Renumbered: true})
		report(3900*time.Millisecond, 2)
		listed(DroppedFlow{List: "other"})
		d.Follow(Phase{Begin: at(4 * time.Second), Lists: []string{"first"}}, true, none)
		report(4900*time.Millisecond, 1) // the same list in all the time
		listed(DroppedFlow{List: "first"})
		report(5900*time.Millisecond, 3) // there is none
		listed(DroppedFlow{Renumbered: true})
		report(6900*time.Millisecond, 0)
		listed(DroppedFlow{})
	}
}

// idle is a host that has nothing to lend.
type idle struct{}

func (idle) Lend(context.Context, func(ruleset.Active) error) error { return nil }

// A clock that is set does not change over how long packets were dropped.
func TestDropsWhileTheClockIsSet(t *testing.T) {
	for _, ahead := range []time.Duration{-24 * time.Hour, 0, 24 * time.Hour} {
		d := NewDropRecorder(idle{}, slog.New(slog.DiscardHandler))
		begin := clock.Set(t, time.Now().Add(-10*time.Second), ahead)
		d.Hour.Add(second(begin, 2))
		got, err := d.Drops(t.Context(), api.DropsQuestion{By: api.BySource, Last: time.Minute, Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		if span := got.Until.Round(0).Sub(got.Since.Round(0)).Round(time.Second); got.Packets != 10 || span != 10*time.Second {
			t.Errorf("clock %v ahead before: %d packets in %v", ahead, got.Packets, span)
		}
	}
}

// An interval has the mode of most of its time.
func TestModeOfInterval(t *testing.T) {
	var d DropRecorder
	now := time.Now()
	none := func() (c Tally) { return c }
	d.Follow(Phase{Begin: now}, true, none)
	d.Follow(Phase{Begin: now.Add(1400 * time.Millisecond), Monitor: true}, true, none)
	d.Follow(Phase{Begin: now.Add(3600 * time.Millisecond)}, true, none)
	for n, want := range []uint64{0, 7, 7, 7, 0} {
		d.Report(now.Add(time.Duration(n+1)*time.Second), &DropReport{Interval: time.Second, Packets: 7}, false, Tally{})
		if got := d.last.Monitored.Packets; got != want {
			t.Errorf("second %d: %d packets in monitor mode, want %d", n, got, want)
		}
	}
}

// Packets that pass by a list on trial are not reported as dropped, though most sources are unknown.
func TestDropsOnTrial(t *testing.T) {
	type reasons = map[verdict.Reason]uint64
	for name, c := range map[string]struct {
		policy  verdict.Policy
		packets []uint64 // of the tracker, each second
		counted []reasons
		want    uint64
	}{
		"nothing else":             {packets: []uint64{1000, 1000}, counted: []reasons{{verdict.WouldBlock: 1000}, {verdict.WouldBlock: 1000}}, want: 2000},
		"counted a little later":   {packets: []uint64{1000, 1000}, counted: []reasons{{verdict.WouldBlock: 1010}, {verdict.WouldBlock: 980}}, want: 2000},
		"counted after the report": {packets: []uint64{0, 1000}, counted: []reasons{{verdict.WouldBlock: 990}, {verdict.WouldBlock: 10}}, want: 1000},
		"no list on trial":         {packets: []uint64{1000}, counted: []reasons{{verdict.Blocked: 900, verdict.RateLimited: 90}}, want: 0},
		"both":                     {packets: []uint64{1000, 0, 400}, counted: []reasons{{verdict.WouldBlock: 700, verdict.Blocked: 300}, {}, {verdict.WouldBlock: 100, verdict.Heavy: 300}}, want: 800},
		"malformed ones pass":      {packets: []uint64{1000}, counted: []reasons{{verdict.WouldBlock: 990, verdict.Malformed: 500}}, want: 1000},
		"malformed ones are dropped, some without addresses": {
			policy: verdict.Policy{DropMalformed: true}, packets: []uint64{1000}, counted: []reasons{{verdict.WouldBlock: 600, verdict.Malformed: 500}}, want: 600,
		},
	} {
		for _, out := range []bool{false, true} {
			var d DropRecorder
			var all Tally
			now := time.Now()
			d.Follow(Phase{Begin: now, Policy: &c.policy}, true, func() Tally { return all })
			for n, packets := range c.packets {
				for r, grown := range c.counted[n] {
					all.of(out)[r].Packets += grown
					all.of(out)[r].Bytes += 100 * grown
				}
				now = now.Add(time.Second)
				d.Report(now, &DropReport{Interval: time.Second, Packets: packets, Bytes: 100 * packets}, out, all)
			}
			if got := d.Hour.Since(now.Add(-time.Hour), now); got.Trial != (Total{Packets: c.want, Bytes: 100 * c.want}) {
				t.Errorf("%s: %+v on trial, want %d packets", name, got.Trial, c.want)
			}
		}
	}
}

// In monitor mode, what a list on trial matches is on trial, in packets and in bytes, and is not monitored.
func TestTrialInMonitorMode(t *testing.T) {
	d := NewDropRecorder(nothingListed{}, slog.New(slog.DiscardHandler))
	now := time.Now()
	d.Follow(Phase{Begin: now.Add(-time.Minute), Lists: []string{"tried", "enforced"}, Monitor: true, Trial: map[string]bool{"tried": true}}, true, func() (c Tally) { return c })
	flow := func(addr string, reason verdict.Reason, list uint16, packets, bytes uint64) sketch.Flow {
		f := sketch.Flow{Packets: packets, Bytes: bytes, Cause: sketch.Cause{Reason: uint8(reason), List: list}}
		f.Key = key.Source(netip.MustParsePrefix(addr + "/32"))
		return f
	}
	d.Report(now, &DropReport{Interval: time.Second, Packets: 15, Bytes: 1700, Flows: []sketch.Flow{
		flow("192.0.2.1", verdict.WouldBlock, 1, 3, 500), flow("192.0.2.2", verdict.Blocked, 2, 12, 1200),
	}}, false, Tally{Lists: map[string]loader.Counter{"tried": {Packets: 3}, "enforced": {Packets: 12}}})
	i := d.Hour.Since(now.Add(-time.Minute), now)
	if i.Trial != (Total{3, 500}) || i.Monitored != (Total{12, 1200}) {
		t.Errorf("on trial %+v, monitored %+v", i.Trial, i.Monitored)
	}
	for by, want := range map[string]map[string][2]uint64{ // packets, and those in monitor mode
		api.ByList:   {"tried": {3, 0}, "enforced": {12, 12}},
		api.BySource: {"192.0.2.1": {3, 0}, "192.0.2.2": {12, 12}},
	} {
		got, err := d.Drops(t.Context(), api.DropsQuestion{By: by, Last: time.Minute, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Drops) != len(want) || got.MonitorPackets != 12 || got.MonitorBytes != 1200 || got.TrialPackets != 3 || got.TrialBytes != 500 || got.Other != 0 {
			t.Errorf("by %s: %+v", by, got)
		}
		for _, r := range got.Drops {
			if of := [2]uint64{r.Packets, r.MonitorPackets}; of != want[r.Key] {
				t.Errorf("by %s: %s has %v, want %v", by, r.Key, of, want[r.Key])
			}
		}
	}
}

// nothingListed is a host whose engine has no lists.
type nothingListed struct{}

func (nothingListed) Lend(_ context.Context, fn func(ruleset.Active) error) error {
	g, err := engine.Build(nil, engine.Config{})
	if err != nil {
		return err
	}
	return fn(ruleset.Active{Ruleset: new(ruleset.Ruleset), Engine: g})
}

// A phase goes on until its lists, their numbers, its mode or its trials change.
func TestPhases(t *testing.T) {
	for what, c := range map[string]struct {
		next Phase
		same bool
	}{
		"the same":       {Phase{Lists: []string{"a", "b"}, Trial: map[string]bool{"a": true}, Begin: time.Now()}, true},
		"other numbers":  {Phase{Lists: []string{"b", "a"}, Trial: map[string]bool{"a": true}}, false},
		"a list fewer":   {Phase{Lists: []string{"a"}, Trial: map[string]bool{"a": true}}, false},
		"monitor mode":   {Phase{Lists: []string{"a", "b"}, Trial: map[string]bool{"a": true}, Monitor: true}, false},
		"no trial":       {Phase{Lists: []string{"a", "b"}}, false},
		"another trial":  {Phase{Lists: []string{"a", "b"}, Trial: map[string]bool{"b": true}}, false},
		"a second trial": {Phase{Lists: []string{"a", "b"}, Trial: map[string]bool{"a": true, "b": true}}, false},
	} {
		var d DropRecorder
		none := func() (c Tally) { return c }
		d.Follow(Phase{Lists: []string{"a", "b"}, Trial: map[string]bool{"a": true}}, true, none)
		if d.Follow(c.next, true, none); (len(d.phases) == 1) != c.same {
			t.Errorf("%s: %d phases", what, len(d.phases))
		}
	}
	var d DropRecorder
	for n := range maxPhases + 3 {
		d.Follow(Phase{Lists: []string{"a"}, Monitor: n%2 == 0, Begin: time.Unix(int64(n), 0)}, true, func() (c Tally) { return c })
	}
	if n := len(d.phases); n != maxPhases || d.phases[n-1].Begin.Unix() != maxPhases+2 || d.phases[0].Begin.Unix() != 3 {
		t.Errorf("%d phases, from %v", n, d.phases[0].Begin.Unix())
	}
}

// A number that was another list's since a time has no name.
func TestListNames(t *testing.T) {
	var d DropRecorder
	if names := d.ListNames(time.Unix(0, 0)); names != nil {
		t.Errorf("%q before all phases", names)
	}
	for second, lists := range [][]string{{"a", "b"}, {"a", "c"}, {"a", "c", "d"}} {
		d.Follow(Phase{Lists: lists, Begin: time.Unix(int64(second), 0)}, true, func() (c Tally) { return c })
	}
	for began, want := range map[int64][]string{0: {"a", "", ""}, 1: {"a", "c", ""}, 2: {"a", "c", "d"}} {
		if names := d.ListNames(time.Unix(began, 0)); !slices.Equal(names, want) {
			t.Errorf("since second %d: %q, want %q", began, names, want)
		}
	}
	d.last.End = time.Unix(1, 0)
	if names := d.ListNames(time.Unix(2, 0)); !slices.Equal(names, []string{"a", "c", ""}) {
		t.Errorf("%q, where the last interval has ended before", names)
	}
}

// Packets of which no more is known belong to what all others are: monitored, on trial, or dropped.
func TestAddUnknown(t *testing.T) {
	of := func(all, monitored, trial uint64) (i DropInterval) {
		i.Packets, i.Monitored.Packets, i.Trial.Packets = all, monitored, trial
		return i
	}
	for _, c := range []struct{ before, after DropInterval }{
		{of(0, 0, 0), of(5, 0, 0)},
		{of(10, 0, 0), of(15, 0, 0)},
		{of(10, 9, 0), of(15, 9, 0)},
		{of(10, 10, 0), of(15, 15, 0)},
		{of(10, 0, 10), of(15, 0, 15)},
		{of(10, 4, 6), of(15, 9, 6)},
		{of(10, 4, 5), of(15, 4, 5)},
	} {
		got := c.before
		if addUnknown(&got, 5); !reflect.DeepEqual(got, c.after) {
			t.Errorf("%+v: %+v, want %+v", c.before, got, c.after)
		}
	}
}
