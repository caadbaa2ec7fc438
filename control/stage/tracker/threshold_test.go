package tracker

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/filter/key"
	"weir/filter/penalty"
)

// While the watcher is away, programs punish within an interval each source at twice the
// threshold, and none at half of it, however long that takes. The watcher reports them when
// it is back.
func TestProgramsPunish(t *testing.T) {
	s := mustParse(t, "key=src,threshold=60pps,action=block,duration=2s")
	g := DefaultScan("src")
	g.Action, g.Threshold = Block, 640
	watched := []Watched{{Spec: s}, {Spec: g.Spec()}}
	h := newHost(t, watched)
	h.wires = h.wires[:1] // or each has only a part of a source
	w := newWatcher(watched, func() {})
	on := h.wires[0]
	w.tick(h.still, h.wires)
	blocked := func(s source) bool { return table(on).Check(s.flow.Hash, 1, h.now) == penalty.Blocked }
	begin := h.now
	first := make(map[uint64]time.Duration) // when each was punished
	for h.now < begin+time.Minute {
		h.pass(10 * time.Millisecond)
		for _, s := range h.sources {
			if _, known := first[s.flow.Hash]; !known && blocked(s) {
				first[s.flow.Hash] = h.now - begin
			}
		}
	}
	heavy := 0
	for _, s := range h.sources {
		at, punished := first[s.flow.Hash]
		if !s.heavy {
			if punished {
				t.Errorf("%v, at half of the threshold, is punished after %v", s.flow.Key, at)
			}
			continue
		}
		heavy++
		if !punished || at > time.Duration(watched[s.tracker].Interval) {
			t.Errorf("%v, at twice the threshold, is punished after %v: %t", s.flow.Key, at, punished)
		}
		if !blocked(s) {
			t.Errorf("%v, at twice the threshold, is not punished any more", s.flow.Key)
		}
	}
	reports := make(map[uint64]bool)
	_, events := w.tick(h.still, h.wires)
	for _, e := range events {
		reports[e.Flow.Hash] = true
	}
	if n := len(w.Penalties(h.now)); n != heavy || len(reports) != heavy || heavy != 6 {
		t.Errorf("%d penalties of %d sources, %d reported", n, heavy, len(reports))
	}
}

// A threshold that becomes a share is not enforced by programs any more.
func TestProgramsStop(t *testing.T) {
	h := newHost(t, []Watched{{Spec: mustParse(t, "key=src,threshold=60pps,action=block")}})
	on := h.wires[0]
	for _, x := range []struct {
		spec     string
		enforced uint64
	}{
		{"key=src,threshold=60pps,action=block", 60},
		{"key=src,threshold=60pps+1%,action=block", 0},
		{"key=src,threshold=90pps,action=block", 90},
		{"key=src,threshold=90pps", 0},
	} {
		w := newWatcher([]Watched{{Spec: mustParse(t, x.spec)}}, func() {})
		w.tick(h.still, h.wires)
		if got := on.Threshold(0); got.Units != x.enforced {
			t.Errorf("%s: %+v", x.spec, got)
		}
	}
}

func mustParse(t *testing.T, text string) Spec {
	t.Helper()
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Programs impose no penalty on what it would cut off; what needs no protection any more is
// punished again.
func TestProgramsSpare(t *testing.T) {
	s := mustParse(t, "key=src/24,threshold=60pps,action=block,duration=2s")
	watched := []Watched{{Spec: s}}
	h := newHost(t, watched)
	h.wires = h.wires[:1]
	m := h.wires[0].counters.(*wire)
	w := newWatcher(watched, func() {})
	gateway := key.Source(netip.MustParsePrefix("10.0.0.1/32"))
	flow := h.sources[0].flow // of its network
	protect := func(on bool) {
		w.Protect(func(flows []key.Key) map[key.Key]string {
			all := make(map[key.Key]string)
			for _, f := range flows {
				if on && f == flow.Key {
					all[f] = "the gateway 10.0.0.1"
				}
			}
			return all
		}, []key.Key{gateway})
		w.tick(h.still, h.wires)
	}
	send := func() bool {
		for range 200 {
			m.program(0, 0, flow, h.now)
		}
		return slices.ContainsFunc(h.sources, func(s source) bool { return table(h.wires[0]).Check(s.flow.Hash, 1, h.now) != penalty.None })
	}
	protect(true)
	if send() {
		t.Error("the network of the gateway is punished")
	}
	protect(false)
	h.now += time.Minute
	if !send() {
		t.Error("it is still spared")
	}
	h.now += time.Minute
	protect(true)
	if send() {
		t.Error("it is punished again")
	}
}

// blocks reports whether the interface's programs block a flow.
func (c interfaceTrackers) blocks(hash uint64, now time.Duration) bool {
	return c.Penalized() > 0 && table(c).Check(hash, 1, now) == penalty.Blocked
}

// ticks lets a second pass a number of times. In each, a source sends so many packets, all to
// the first tracker on the first interface.
func (h *host) ticks(w *Watcher, seconds, pps int) {
	for range seconds * int(time.Second/Tick) {
		h.send(0, pps*int(Tick)/int(time.Second))
		h.now += Tick
		w.tick(h.still, h.wires)
	}
}

// A penalty of an earlier configuration ends by the present one, whether programs enforce the
// threshold or not, and whether its source is known when the configuration changes, sends later,
// or stays silent.
func TestPenaltiesOfAnEarlierConfiguration(t *testing.T) {
	for _, threshold := range []string{"100pps", "100pps+1%"} {
		for _, x := range []struct {
			name             string
			to               string
			silent           int // seconds, before the change
			pps              int // from two seconds after it on
			seconds          int
			blocked, limited bool // in the end
		}{
			{"a limit, and it sends again", "limit,limit=90pps,duration=1d", 10, 70, 10, false, true},
			{"a limit for a minute, and it sends again", "limit,limit=90pps,duration=1m", 10, 30, 70, false, false},
			{"a minute, and it is known", "block,duration=1m", 0, 0, 70, false, false},
			{"a minute, and it is silent", "block,duration=1m", 10, 0, 70, false, false},
			{"the same, and it is silent", "block,duration=1d", 10, 0, 70, true, false},
		} {
			spec := "key=src,threshold=" + threshold + ",action="
			watched := []Watched{{Spec: mustParse(t, spec+"block,duration=1d")}}
			h := newHost(t, watched)
			h.ticks(newWatcher(watched, func() {}), 2, 3000)
			w := newWatcher(watched, func() {})
			h.ticks(w, 5, 10) // so few that they do not renew its penalty
			h.ticks(w, x.silent, 0)
			w = newWatcher([]Watched{{Spec: mustParse(t, spec+x.to)}}, func() {})
			h.ticks(w, 2, 0)
			h.ticks(w, x.seconds, x.pps)
			got := table(h.wires[0]).Check(h.sources[0].flow.Hash, 1000, h.now)
			limited := got == penalty.None && table(h.wires[0]).Check(h.sources[0].flow.Hash, 1, h.now) == penalty.Limited
			if blocked := got == penalty.Blocked; blocked != x.blocked || limited != x.limited {
				t.Errorf("%s, then %s: blocked %t, limited %t", threshold, x.name, blocked, limited)
			}
			if n := len(w.Penalties(h.now)); x.limited && n != 1 || n > 1 {
				t.Errorf("%s, then %s: %d penalties are known", threshold, x.name, n)
			}
		}
	}
}

// An interface that appears gets the present penalties, and none that has ended.
func TestPenaltiesOnANewInterface(t *testing.T) {
	watched := []Watched{{Spec: mustParse(t, "key=src,threshold=100pps,action=block,duration=1m")}}
	h := newHost(t, watched)
	all := h.wires
	h.wires = all[:1]
	w := newWatcher(watched, func() {})
	h.ticks(w, 2, 3000)
	h.ticks(w, 5, 0)
	blocked := func() bool { return all[1].blocks(h.sources[0].flow.Hash, h.now) }
	h.wires = all
	if w.tick(h.still, h.wires); !blocked() {
		t.Errorf("of %d penalties, the new interface has none", len(w.Penalties(h.now)))
	}
	h.wires = all[:1]
	h.ticks(w, 1, 0)
	all[1].SetPenalized(0) // another one
	h.wires = all
	if w.tick(h.still, h.wires); !blocked() {
		t.Errorf("of %d penalties, the interface that is back has none", len(w.Penalties(h.now)))
	}
	if h.ticks(w, 60, 0); blocked() || len(w.Penalties(h.now)) > 0 {
		t.Error("the penalty does not end")
	}
}

// Penalties stay when other trackers are configured, for which programs begin with empty tables;
// not those of a tracker that leaves the configuration.
func TestPenaltiesInherited(t *testing.T) {
	limit := Watched{Spec: mustParse(t, "key=src,threshold=100pps,action=block,duration=1h")}
	before := []Watched{limit}
	h := newHost(t, before)
	last := newWatcher(before, func() {})
	h.ticks(last, 2, 3000)
	h.ticks(last, 5, 0)
	guard := DefaultScan("dst").Spec()
	shorter := Watched{Spec: mustParse(t, "key=src,threshold=100pps,action=block,duration=1m")}
	for _, x := range []struct {
		name  string
		after []Watched
		lasts time.Duration // 0: it has none
	}{
		{"the same behind a scan detector", []Watched{{Spec: guard}, limit}, time.Hour},
		{"the same, and a scan detector of the same key", []Watched{limit, {Spec: DefaultScan("src").Spec()}}, time.Hour},
		{"a shorter one before the same", []Watched{shorter, limit}, time.Hour},
		{"a shorter one", []Watched{shorter, {Spec: guard}}, time.Minute},
		{"of another key", []Watched{{Spec: mustParse(t, "key=dst,threshold=100pps,action=block,duration=1h")}}, 0},
		{"which only reports", []Watched{{Spec: mustParse(t, "key=src,threshold=100pps")}}, 0},
	} {
		next := newHost(t, x.after)
		next.now = h.now
		w := newWatcher(x.after, func() {})
		w.Inherit(last)
		w.tick(next.still, nil)
		w.tick(next.still, next.wires)
		all := w.Penalties(next.now)
		if (len(all) == 1) != (x.lasts > 0) || len(all) == 1 && (all[0].Until > next.now+x.lasts || all[0].Until < next.now+x.lasts-10*time.Second) {
			t.Errorf("%s: penalties %+v", x.name, all)
		}
		hash := next.wires[1].Hash(0, h.sources[0].flow.Key) // trackers of the same key share the secret here
		if blocked := next.wires[1].blocks(hash, next.now); blocked != (x.lasts > 0) {
			t.Errorf("%s: blocked %t", x.name, blocked)
		}
	}
}

// A flow that was spared is punished where a tracker of the same key spares none.
func TestSparedInherited(t *testing.T) {
	spec := mustParse(t, "key=src,threshold=100pps,action=block,duration=1h")
	spec.AntiLockout = true
	watched := []Watched{{Spec: spec}}
	h := newHost(t, watched)
	last := newWatcher(watched, func() {})
	last.Protect(func(flows []key.Key) map[key.Key]string {
		all := make(map[key.Key]string)
		for _, k := range flows {
			all[k] = "the gateway"
		}
		return all
	}, nil)
	h.ticks(last, 2, 3000)
	blocked := func() bool { return h.wires[1].blocks(h.sources[0].flow.Hash, h.now) }
	if blocked() || len(last.Spared(h.now)) != 1 {
		t.Fatalf("blocked %t, spared %v", blocked(), last.Spared(h.now))
	}
	watched[0].AntiLockout = false
	w := newWatcher(watched, func() {})
	w.Inherit(last)
	h.ticks(w, 3, 3000)
	if !blocked() || len(w.Spared(h.now)) != 0 {
		t.Errorf("blocked %t, spared %v", blocked(), w.Spared(h.now))
	}
}
