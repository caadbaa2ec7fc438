package tracker

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/penalty"
	"weir/filter/sketch"
	"weir/loader"
)

// full is a watcher of trackers with a whole table of penalties.
type full struct {
	*Watcher
	on  interfaces
	now time.Duration
}

func newFull(t *testing.T, trackers ...string) *full {
	t.Helper()
	var watched []Watched
	for _, text := range trackers {
		s, err := Parse("key=src,threshold=64pps,duration=1h," + text)
		if err != nil {
			t.Fatal(err)
		}
		watched = append(watched, Watched{Spec: s})
	}
	return &full{newWatcher(watched, func() {}), interfaces{newWire(&wire{}, 1, loader.PenaltyBuckets)}, time.Hour}
}

var secret = hash.NewSecret(hash.Seed{1})

// source returns a flow that a tracker has counted packets of.
func (f *full) source(tracker, i int, packets uint64) sketch.Flow {
	k := key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte{10 + byte(tracker), byte(i >> 16), byte(i >> 8), byte(i)}), 32))
	return sketch.Flow{Key: k, Hash: secret.Sum(k.Append(nil)), Packets: packets}
}

// sources returns n flows of tracker 0.
func (f *full) sources(first, n int, packets uint64) (all []sketch.Flow) {
	for i := range n {
		all = append(all, f.source(0, first+i, packets))
	}
	return all
}

func (f *full) judge(tracker int, flows ...sketch.Flow) []Event {
	return f.punish(f.trackers[tracker], f.now, time.Second, flows, 64, f.on)
}

func (f *full) blocked(flow sketch.Flow) bool {
	return table(f.on[0]).Check(flow.Hash, 1, f.now) == penalty.Blocked
}

// Twelve thousand forged scanners keep none of forty real ones from being blocked, neither
// those who scan more, nor those of another tracker; and they cannot displace these.
func TestFullTable(t *testing.T) {
	const forged, real = 12_000, 40
	for _, trackers := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(trackers, " trackers"), func(t *testing.T) {
			var texts []string
			for range trackers {
				texts = append(texts, "action=block")
			}
			f := newFull(t, texts...)
			flood := func(first int) {
				const tick = 500
				for i := 0; i < forged; i += tick {
					f.judge(0, f.sources(first+i, tick, 120)...)
					f.now += Tick
				}
			}
			flood(0)
			if n := table(f.on[0]).Len(); n < MaxPenalties*95/100 {
				t.Fatalf("%d penalties: the table is not full", n)
			}
			var others []sketch.Flow
			for tracker := range trackers {
				// The others are just above the threshold: their trackers have room of their own.
				for packets := uint64(70); packets <= 2000 && (tracker == 0 || packets == 70); packets += 200 {
					var all []sketch.Flow
					for i := range real {
						all = append(all, f.source(tracker, 1<<20+i, packets))
					}
					f.judge(tracker, all...)
					f.now += Tick
					if packets == 70 {
						others = append(others, all...)
					}
				}
			}
			if trackers == 1 && f.Replaced() == 0 {
				t.Error("no penalty was replaced")
			}
			for again := range 2 {
				for _, s := range others {
					if !f.blocked(s) {
						t.Errorf("%v is not blocked, after %d floods", s.Key, again+1)
					}
				}
				flood(forged)
			}
		})
	}
}

// A refusal is reported once, and once more when there is room; who is displaced is no
// longer shown as punished.
func TestRefusedAndReplaced(t *testing.T) {
	f := newFull(t, "action=block")
	refused := make(map[uint64]sketch.Flow)
	for _, e := range f.judge(0, f.sources(0, 12_000, 120)...) {
		if e.Unmet {
			refused[e.Flow.Hash] = e.Flow
		}
	}
	if len(refused) < 1000 {
		t.Fatalf("%d were refused", len(refused))
	}
	for _, s := range refused {
		if f.trackers[0].penal[s.Hash] == nil {
			continue // forgotten
		}
		s.Packets = 1000
		if events := f.judge(0, s); len(events) != 1 || events[0].Unmet || events[0].Released {
			t.Fatalf("a stronger one that was refused has %v", events)
		}
		if events := f.judge(0, s); len(events) != 0 {
			t.Fatalf("then %v", events)
		}
		break
	}
	if got, want := len(f.Penalties(f.now)), table(f.on[0]).Len(); got != want || f.Replaced() != 1 {
		t.Errorf("%d penalties are shown of %d; %d replaced, want 1", got, want, f.Replaced())
	}
}

// The flows that are remembered are bounded, whatever a tracker does with them, and the
// oldest go.
func TestRememberedIsBounded(t *testing.T) {
	for _, action := range []string{"report", "block"} {
		f := newFull(t, "action="+action)
		begun, forgotten := 0, 0
		const tick = 256
		for i := 0; i < 5*MaxPenalties; i += tick {
			f.now += Tick
			for _, e := range f.judge(0, f.sources(i, tick, 70)...) {
				if e.Forgotten {
					forgotten++
				} else {
					begun++
				}
			}
			if n := len(f.trackers[0].penal); n > MaxPenalties+table(f.on[0]).Len() {
				t.Fatalf("%s: %d flows are remembered of %d", action, n, i+tick)
			}
		}
		if begun != 5*MaxPenalties || forgotten != begun-len(f.trackers[0].penal) {
			t.Errorf("%s: %d events, %d of forgotten ones, %d are remembered", action, begun, forgotten, len(f.trackers[0].penal))
		}
		if last := f.source(0, 5*MaxPenalties-1, 0); f.trackers[0].penal[last.Hash] == nil {
			t.Errorf("%s: the last one is forgotten", action)
		}
		if n := len(f.Penalties(f.now)); action == "block" && n != table(f.on[0]).Len() {
			t.Errorf("%d penalties are known of %d", n, table(f.on[0]).Len())
		}
	}
}
