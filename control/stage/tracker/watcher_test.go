package tracker

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/filter/blocked"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/penalty"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/long"
	"weir/tests/seed"
)

// host is a host without a kernel: sources send at constant rates, by a clock that goes on
// whatever the watcher does.
type host struct {
	random  *rand.Rand
	now     time.Duration
	wires   interfaces
	sources []source

	pauses float64 // the probability of one wherever the watcher may be held up
	kills  float64 // the probability that it is killed there instead

	woken     bool // a program has woken the watcher
	exchanges int  // of banks
}

// source sends to the tracker of its number only.
type source struct {
	tracker int
	flow    sketch.Flow
	every   time.Duration // between two packets
	next    time.Duration
	heavy   bool
}

// wire is the memory of an interface's trackers. All interfaces share the first fields.
type wire struct {
	h          *host
	banks      [][2][]*sketch.Bank // of each tracker
	trackers   []*sketch.Tracker
	thresholds []loader.Threshold
	active     []int // of each tracker

	penalized int
	wake      bool // programs wake the watcher
	on        *interfaceTrackers
}

// program counts a packet on a CPU at a time, as the program does.
func (w *wire) program(tracker, cpu int, f sketch.Flow, at time.Duration) {
	bank := w.banks[tracker][w.active[tracker]][cpu]
	_, known := bank.Lookup(f.Hash)
	units := bank.CountKey(f.Key, f.Hash, 100)
	if _, knows := bank.Lookup(f.Hash); w.wake && (units > 0 || knows && !known) {
		w.h.woken = true
	}
	t := w.thresholds[tracker]
	if units == 0 || t.Units == 0 {
		return
	}
	of := penalty.Threshold{Units: t.Units, Window: time.Duration(t.Window)}
	if windows(*w.on).Add(of, f.Hash, units, at) {
		w.penalized++
		table(*w.on).Impose(f.Hash, penalty.Penalty{Until: at + time.Duration(t.Lasts)}, at)
	}
}

func (w *wire) Threshold(tracker int) loader.Threshold { return w.thresholds[tracker] }

func (w *wire) SetThreshold(tracker int, t loader.Threshold) {
	w.h.held()
	w.thresholds[tracker] = t
}

func (w *wire) SourceHash(tracker int, src netip.Addr) uint64 {
	return verdict.SourceHash(src, w.trackers[tracker].Secret)
}

type killed struct{}

// held is called wherever the watcher may be held up.
func (h *host) held() {
	switch p := h.random.Float64(); {
	case p < h.kills:
		panic(killed{})
	case p < h.kills+h.pauses:
		h.pass(time.Duration(h.random.ExpFloat64() * float64(2*time.Second)))
	}
}

func (h *host) clock() time.Duration {
	h.held()
	defer h.held()
	return h.now
}

// pass lets time pass, and the sources send.
func (h *host) pass(d time.Duration) {
	h.now += d
	for i := range h.sources {
		s := &h.sources[i]
		for ; s.next <= h.now; s.next += s.every {
			w := h.wires[h.random.IntN(len(h.wires))].counters.(*wire)
			w.program(s.tracker, h.random.IntN(2), s.flow, s.next)
		}
	}
}

func (w *wire) Banks(tracker, bank int) []*sketch.Bank {
	w.h.held()
	return w.banks[tracker][bank]
}

func (w *wire) Pairs(int, int) *blocked.Filter {
	w.h.held()
	return nil
}

func (w *wire) Active(tracker int) int {
	w.h.held()
	return w.active[tracker]
}

func (w *wire) Began(tracker, bank int) time.Duration {
	w.h.held()
	return w.banks[tracker][bank][0].Began()
}

func (w *wire) SetActive(tracker, bank int) {
	w.h.held()
	if w.active[tracker] != bank {
		w.h.exchanges++
		w.active[tracker] = bank
	}
	w.h.held()
}

func (w *wire) SetPenalized(n int)                 { w.penalized = n }
func (w *wire) Penalized() int                     { return w.penalized }
func (w *wire) Hash(tracker int, k key.Key) uint64 { return w.trackers[tracker].Hash(k) }
func (w *wire) SetWake(on bool)                    { w.wake = on }
func (w *wire) Wakes() bool                        { return w.wake }
func (w *wire) IsPresent(*loader.Stats) bool       { return true }
func (w *wire) Close() error                       { return nil }

// newWire returns the trackers of an interface with a number of CPUs, and of buckets of
// penalties.
func newWire(w *wire, cpus, buckets int) interfaceTrackers {
	return interfaceTrackers{
		counters: w, cpus: cpus, stats: &loader.Stats{},
		penalties: make([]uint64, buckets*penalty.BucketWords), windows: make([]uint64, buckets*penalty.WindowBucketWords),
	}
}

// newHost returns a host with two interfaces and two CPUs. Of each tracker some sources are
// at half of its threshold, and some at twice that.
func newHost(t *testing.T, watched []Watched) *host {
	t.Helper()
	h := &host{random: seed.New(t), now: time.Hour}
	var banks [][2][]*sketch.Bank
	var trackers []*sketch.Tracker
	for _, x := range watched {
		tracker := trackerOf(x)
		var both [2][]*sketch.Bank
		for bank := range both {
			for range 2 {
				b, err := sketch.NewBank(*tracker, make([]uint64, tracker.LineWords()), make([]uint64, tracker.FlowWords()))
				if err != nil {
					t.Fatal(err)
				}
				both[bank] = append(both[bank], b)
			}
		}
		banks, trackers = append(banks, both), append(trackers, tracker)
	}
	thresholds, active := make([]loader.Threshold, len(watched)), make([]int, len(watched))
	for range 2 {
		w := &wire{h: h, banks: banks, trackers: trackers, thresholds: thresholds, active: active}
		h.wires = append(h.wires, newWire(w, 2, 64))
		h.wires[len(h.wires)-1].penalties, h.wires[len(h.wires)-1].windows = h.wires[0].penalties, h.wires[0].windows
		w.on = &h.wires[len(h.wires)-1]
	}
	for i, x := range watched {
		tracker := trackerOf(x)
		add := func(n int, times float64) {
			units := float64(x.threshold(0).Units)
			if x.Threshold.Share > 0 {
				units = 60 * x.Interval.Seconds()
			}
			for range n {
				src := netip.AddrFrom4([4]byte{10, byte(i), 0, byte(len(h.sources))})
				k := tracker.Key(key.Tuple{Src: src, Dst: netip.AddrFrom4([4]byte{192, 0, 2, 1})})
				every := time.Duration(float64(x.Interval) / (units * times))
				h.sources = append(h.sources, source{
					tracker: i, flow: sketch.Flow{Key: k, Hash: tracker.Hash(k)}, every: every,
					next: h.now + time.Duration(h.random.Int64N(int64(every))), heavy: times > 1,
				})
			}
		}
		add(20, 0.5)
		add(3, 2)
	}
	return h
}

func trackerOf(w Watched) *sketch.Tracker {
	t := w.Counting().Tracker
	t.Secret = hash.NewSecret(hash.Seed{1})
	return &t
}

// Wherever a watcher is held up, for however long, and wherever it is killed, no source at
// half of the threshold is punished or reported, neither by it nor by the next one; and each
// at twice the threshold is once a watcher has had two intervals undisturbed.
// A time that is unknown, as to banks of a release that does not record it, is one of the
// disturbances. The same holds for a watcher that rests, as that of every other run does.
func TestPauses(t *testing.T) {
	long.Seconds(t)
	var watched []Watched
	for _, text := range []string{
		"key=src,threshold=60pps,action=block,duration=2s",
		"key=src,threshold=6%,action=limit,limit=5pps,duration=1s", // of 960 pps: 58 pps
		"key=src,threshold=60pps,interval=300ms",
	} {
		s, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		watched = append(watched, Watched{Spec: s})
	}
	g := DefaultScan("src")
	g.Distinct, g.Action = Addresses, Block
	watched = append(watched, Watched{Spec: g.Spec()})

	for run := range long.Or(2, 6) {
		h := newHost(t, watched)
		rests := run%2 == 1
		start := func() *Watcher {
			w := newWatcher(watched, h.held)
			w.rest.allowed = rests
			return w
		}
		w := start()
		caught := make(map[uint64]bool) // reported or punished since the last disturbance
		judged := func(what string, f sketch.Flow) {
			i := slices.IndexFunc(h.sources, func(s source) bool { return s.flow.Hash == f.Hash })
			if s := h.sources[i]; !s.heavy {
				t.Errorf("run %d, at %v: %v, at half of the threshold of tracker %d, is %s", run, h.now, f.Key, s.tracker, what)
			}
			caught[f.Hash] = true
		}
		// tick reports whether the watcher has come through.
		tick := func() (through bool) {
			defer func() {
				if r := recover(); r != nil {
					if r != (killed{}) {
						panic(r)
					}
					w = start()
				}
			}()
			if h.woken {
				h.woken = false
				w.Wake()
			}
			if rests && h.now < w.Due() {
				return true
			}
			reports, events := w.tick(h.clock, h.wires)
			for _, e := range events {
				if !e.Released {
					judged(fmt.Sprintf("an event of %d packets in %v", e.Flow.Packets, e.Over), e.Flow)
				}
			}
			for _, r := range reports {
				for _, f := range r.Flows {
					if f.Heavy {
						judged(fmt.Sprintf("reported, with %d packets in %v", f.Packets, r.Interval), f.Flow)
					}
				}
			}
			return true
		}
		punished := func() {
			for _, c := range h.wires {
				for _, s := range h.sources {
					if table(c).Check(s.flow.Hash, 1, h.now) == penalty.Blocked {
						judged("blocked", s.flow)
					}
				}
			}
		}
		kills, pauses := 0, 0
		for range 30 {
			h.pauses, h.kills = 0, 0
			switch h.random.IntN(3) {
			case 0: // it is held up within its work, again and again
				h.pauses = 0.01
				pauses++
			case 1: // it is killed within its work, and another one starts after a while
				h.kills = 0.02
			default: // an older release runs meanwhile, which records no time
				m := h.wires[0].counters.(*wire)
				for i := range m.active {
					for _, b := range m.banks[i][1-m.active[i]] {
						b.Reset()
					}
					m.active[i] ^= 1
				}
				h.pass(time.Duration(h.random.Int64N(int64(5 * time.Second))))
			}
			for range 10 {
				if !tick() {
					kills++
					h.pass(time.Duration(h.random.ExpFloat64() * float64(2*time.Second)))
				}
				punished()
				h.pass(Tick)
			}
			h.pauses, h.kills = 0, 0
			if h.random.IntN(4) > 0 {
				continue
			}
			clear(caught)
			// An interval that was disturbed ends, then one passes, of the longest tracker.
			for range 2*int(time.Duration(g.Window)/Tick) + 2 {
				tick()
				punished()
				h.pass(Tick)
			}
			for _, s := range h.sources {
				if s.heavy && !caught[s.flow.Hash] {
					t.Errorf("run %d, at %v: %v, at twice the threshold of tracker %d, is not found", run, h.now, s.flow.Key, s.tracker)
				}
			}
		}
		if kills == 0 || pauses == 0 {
			t.Errorf("killed %d times, %d rounds with pauses: too few to test anything", kills, pauses)
		}
		if t.Failed() {
			return
		}
	}
}

func newWatcher(watched []Watched, grace func()) *Watcher {
	w := NewWatcher(watched)
	w.grace = grace
	return w
}

// A clock that the test sets.
func (h *host) still() time.Duration { return h.now }

// send counts packets of a source of tracker 0 now.
func (h *host) send(source int, packets int) {
	w := h.wires[0].counters.(*wire)
	for range packets {
		w.banks[0][w.active[0]][0].CountKey(h.sources[source].flow.Key, h.sources[source].flow.Hash, 100)
	}
}

// What is heavy depends on the time over which it was counted, up to one and a half
// intervals; what was counted for longer, or for a time that is unknown, is discarded.
func TestWindows(t *testing.T) {
	const half, double = 0, 20
	for name, x := range map[string]struct {
		tracker string
		before  func(*host, *Watcher) // after the first interval
		over    time.Duration
		packets int
		reports int
		heavy   bool
		crowd   bool // others send then
	}{
		"at the threshold":                     {over: time.Second, packets: 100, reports: 1, heavy: true},
		"below":                                {over: time.Second, packets: 99, reports: 1},
		"an interval is longer":                {over: 1400 * time.Millisecond, packets: 139, reports: 1},
		"an interval is longer, and heavy":     {over: 1400 * time.Millisecond, packets: 140, reports: 1, heavy: true},
		"too long":                             {over: 1600 * time.Millisecond, packets: 10_000},
		"far too long":                         {over: time.Hour, packets: 1 << 20},
		"a short interval":                     {tracker: ",interval=100ms", over: 250 * time.Millisecond, packets: 24, reports: 1},
		"a short interval, and heavy":          {tracker: ",interval=100ms", over: 250 * time.Millisecond, packets: 25, reports: 1, heavy: true},
		"a short interval is too long":         {tracker: ",interval=100ms", over: 350 * time.Millisecond, packets: 1000},
		"an older release has begun the bank":  {before: (*host).forget, over: time.Second, packets: 1000},
		"the bank begins in the future":        {before: func(h *host, _ *Watcher) { h.now -= time.Minute }, over: time.Second, packets: 1000},
		"another watcher goes on":              {before: func(_ *host, w *Watcher) { *w = *newWatcher([]Watched{w.trackers[0].Watched}, func() {}) }, over: time.Second, packets: 100, reports: 1, heavy: true},
		"a share of the first packets is none": {tracker: "+40%", before: func(h *host, w *Watcher) { *w = *newWatcher([]Watched{w.trackers[0].Watched}, func() {}) }, over: time.Second / 2, packets: 1000, crowd: true},
		"a share after a pause is none":        {tracker: "+40%", before: func(h *host, w *Watcher) { h.now += time.Minute; w.tick(h.still, h.wires) }, over: Tick, packets: 1000, crowd: true},
		"a share on a new interface is none":   {tracker: "+40%", before: (*host).reattach, over: Tick, packets: 1000, crowd: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Parse("key=src,action=block,threshold=100pps" + x.tracker)
			if err != nil {
				t.Fatal(err)
			}
			watched := []Watched{{Spec: s}}
			h := newHost(t, watched)
			w := newWatcher(watched, func() {})
			w.tick(h.still, h.wires)
			h.now += time.Duration(s.Interval)
			if reports, _ := w.tick(h.still, h.wires); len(reports) != 1 {
				t.Fatalf("%d reports of the first interval, want 1", len(reports))
			}
			h.now += time.Millisecond // the sketch admits everybody
			h.send(double, 10)
			h.now += time.Duration(s.Interval) - time.Millisecond
			w.tick(h.still, h.wires) // who lasts is counted exactly from now on
			if x.before != nil {
				x.before(h, w)
			}
			h.send(double, x.packets)
			h.now += x.over
			reports, events := w.tick(h.still, h.wires)
			if len(reports) != x.reports || len(events) > 0 != x.heavy {
				t.Errorf("%d reports, want %d; events %v, want some: %t", len(reports), x.reports, events, x.heavy)
			}
			for _, r := range reports {
				if r.Interval != x.over || r.Packets != uint64(x.packets) {
					t.Errorf("reported %d packets in %v, want %d in %v", r.Packets, r.Interval, x.packets, x.over)
				}
			}
			for _, e := range events {
				if e.Over != x.over {
					t.Errorf("%v in %v, want %v", e, e.Over, x.over)
				}
			}
			if read := w.trackers[0].read; read != (x.reports > 0) && x.over >= time.Duration(s.Interval) {
				t.Errorf("the last interval can be read: %t", read)
			}
			// From here on it watches again.
			h.now += Tick
			w.tick(h.still, h.wires)
			if x.crowd {
				for other := 1; other < 4; other++ {
					h.send(other, 1000)
				}
			} else {
				h.send(half, int(time.Duration(s.Interval)/(20*time.Millisecond)))
			}
			again := 0
			for range int(time.Duration(s.Interval)/Tick) + 1 {
				h.now += Tick
				reports, events := w.tick(h.still, h.wires)
				again += len(reports)
				for _, e := range events {
					if !e.Released {
						t.Errorf("then %v, at half of the threshold", e)
					}
				}
			}
			if again == 0 {
				t.Error("then it reports no interval")
			}
		})
	}
}

// Intervals that are discarded are counted, wherever the watcher is held up; those before it
// began are not.
func TestDiscarded(t *testing.T) {
	s, err := Parse("key=src,action=block,threshold=100pps")
	if err != nil {
		t.Fatal(err)
	}
	watched := []Watched{{Spec: s}}
	h := newHost(t, watched)
	w := newWatcher(watched, func() {})
	want := func(what string, n int, longest time.Duration) {
		t.Helper()
		all := w.Discarded()
		if n == 0 && len(all) == 0 {
			return
		}
		if len(all) != 1 || all[0] != (Discarded{s, n, longest}) {
			t.Errorf("%s: %+v, want %d, the longest of %v", what, all, n, longest)
		}
	}
	tick := func(after time.Duration) {
		h.now += after
		w.tick(h.still, h.wires)
	}
	tick(0)
	for range 30 {
		tick(Tick)
	}
	want("three seconds", 0, 0)
	tick(time.Minute)
	tick(2 * time.Second)
	want("between ticks", 2, time.Minute)
	want("again", 0, 0)
	w.grace = func() { h.now += time.Hour }
	tick(time.Second)
	want("within a tick", 1, time.Hour+time.Second)
	h.now += time.Hour
	w = newWatcher(watched, func() {})
	tick(0)
	want("before it began", 0, 0)
}

// A penalty that has ended while the watcher was held up does not begin again because the flow
// is above half of the threshold.
func TestPenaltyEndsInAPause(t *testing.T) {
	s, err := Parse("key=src,action=block,threshold=100pps,duration=2s")
	if err != nil {
		t.Fatal(err)
	}
	watched := []Watched{{Spec: s}}
	h := newHost(t, watched)
	w := newWatcher(watched, func() {})
	began, released := 0, 0
	second := func(packets int) {
		for range int(time.Second / Tick) {
			h.send(0, packets/int(time.Second/Tick))
			h.now += Tick
			_, events := w.tick(h.still, h.wires)
			for _, e := range events {
				if e.Released {
					released++
				} else {
					began++
				}
			}
		}
	}
	second(300)
	second(300)
	if began != 1 || released != 0 {
		t.Fatalf("above the threshold it was punished %d times, released %d times; want 1 and 0", began, released)
	}
	second(70)
	second(70)
	second(70)
	if began != 1 || released != 0 {
		t.Fatalf("above half of the threshold it was punished %d times, released %d times; want 1 and 0", began, released)
	}
	h.now += time.Minute
	for range 3 {
		second(70)
		for _, c := range h.wires {
			if v := table(c).Check(h.sources[0].flow.Hash, 1, h.now); v != penalty.None {
				t.Error("it is punished again, below the threshold")
			}
		}
	}
	if began != 1 || released != 1 {
		t.Errorf("after the pause it was punished %d times in all, released %d times; want 1 and 1", began, released)
	}
}

// reattach lets a watcher begin without an interface, and adds the interfaces after more
// than an interval.
func (h *host) reattach(w *Watcher) {
	*w = *newWatcher([]Watched{w.trackers[0].Watched}, func() {})
	for range time.Second/Tick + 2 {
		w.tick(h.still, nil)
		h.now += Tick
	}
	for _, c := range h.wires {
		m := c.counters.(*wire)
		for i, both := range m.banks {
			for _, b := range both[m.active[i]] {
				b.Reset()
				b.Begin(h.now)
			}
		}
	}
	w.tick(h.still, h.wires)
}

// forget clears the banks as an older release does.
func (h *host) forget(*Watcher) {
	for _, c := range h.wires {
		for _, both := range c.counters.(*wire).banks {
			for _, banks := range both {
				for _, b := range banks {
					b.Reset()
				}
			}
		}
	}
}

// What a penalty would cut off is not blocked, and limited to no less than what it needs: from
// the start, once it is protected, and where an earlier watcher has punished it. It may be
// punished again once it is no longer protected.
func TestProtected(t *testing.T) {
	for _, x := range []struct {
		tracker string
		after   float64 // the rate of the penalty that a protected flow has, 0 for none
		guarded bool
	}{
		{"action=block", 0, true},
		{"action=limit,limit=10pps", leastProtectedPackets, true},
		{"action=limit,limit=5kpps", 5000, true},
		{"action=block,anti_lockout=false", 0, false},
	} {
		t.Run(x.tracker, func(t *testing.T) {
			s, err := Parse("key=src,threshold=100pps,duration=1h," + x.tracker)
			if err != nil {
				t.Fatal(err)
			}
			watched := []Watched{{Spec: s}}
			h := newHost(t, watched)
			w := newWatcher(watched, func() {})
			const gateway, other = 0, 1
			protect := func(sources ...int) {
				w.Protect(func(flows []key.Key) map[key.Key]string {
					cut := make(map[key.Key]string)
					for _, i := range sources {
						cut[h.sources[i].flow.Key] = "the gateway"
					}
					return cut
				}, nil)
			}
			var events []Event
			second := func() {
				for range time.Second / Tick {
					h.send(gateway, 200)
					h.send(other, 200)
					h.now += Tick
					_, some := w.tick(h.still, h.wires)
					events = append(events, some...)
				}
			}
			state := func(source int) (rates []float64) {
				for _, c := range h.wires {
					tb, err := penalty.NewTable(slices.Clone(c.penalties))
					if err != nil {
						t.Fatal(err)
					}
					hash := h.sources[source].flow.Hash
					if !tb.Contains(hash) {
						continue
					}
					rate := 0.0
					for range 10_000 { // at once
						if tb.Check(hash, 1, h.now) == penalty.None {
							rate++
						}
					}
					rates = append(rates, rate)
				}
				return rates
			}
			want := func(what string, source int, protected bool) {
				t.Helper()
				got := state(source)
				if protected && x.guarded && s.Action == Block {
					if len(got) > 0 {
						t.Errorf("%s: it is blocked", what)
					}
					return
				}
				rate := 0.0
				if s.Action == Limit {
					rate = s.limit()
				}
				if protected && x.guarded {
					rate = x.after
				}
				if len(got) != 2 || got[0] != rate || got[1] != rate {
					t.Errorf("%s: %v packets pass, want %v", what, got, rate)
				}
			}
			protect(gateway)
			second()
			second()
			want("protected", gateway, true)
			want("not protected", other, false)
			for _, e := range events {
				spared := e.Flow.Hash == h.sources[gateway].flow.Hash && x.guarded
				if e.Unmet || e.Released || (e.CutsOff == "the gateway") != spared {
					t.Errorf("%+v", e)
				}
			}
			if len(events) != 2 {
				t.Errorf("%d events: %v", len(events), events)
			}
			events = nil
			protect(other) // there is another default route
			h.now += Tick
			_, events = w.tick(h.still, h.wires)
			want("protected now", other, true)
			if s.Action == Block && x.guarded {
				if len(events) != 1 || !events[0].Released || events[0].CutsOff == "" {
					t.Errorf("%v", events)
				}
			} else if len(events) > 0 {
				t.Errorf("%v", events)
			}
			second()
			second()
			want("protected now, and heavy", other, true)
			want("no longer protected", gateway, false)

			// Another watcher does not know what this one has set.
			w = newWatcher(watched, func() {})
			k := h.sources[gateway].flow.Key
			w.Protect(func([]key.Key) map[key.Key]string { return map[key.Key]string{k: "the gateway"} }, []key.Key{k})
			w.tick(h.still, h.wires)
			if got := state(gateway); x.guarded && len(got) > 0 {
				t.Errorf("what an earlier watcher has set lets %v pass", got)
			}
		})
	}
}
