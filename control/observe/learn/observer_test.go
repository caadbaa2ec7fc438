package learn

import (
	"log/slog"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/observe/events"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/verdict"
)

// Packets from before an observer began are not judged; of the rest, it says how many weights
// have saved.
func TestJudge(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	o := NewObserver(Config{}, events.NewHub(log), nil, log)
	var e engine.Generation
	e.Block, _ = newSet(t, 1, 1000, 8, 10)
	o.Judge(&e, Counted{1000, 500}, 0, time.Nanosecond, time.Time{})
	if recent, all := o.Measured(); recent != (Mistakes{}) || all != recent {
		t.Errorf("%v and %v, nothing is judged", recent, all)
	}
	o.Judge(&e, Counted{1100, 504}, 0, time.Nanosecond, time.Time{})
	recent, all := o.Measured()
	if want := (Mistakes{Spared: 4, Passed: 100}); all != want || recent != want {
		t.Errorf("%v and %v, want %v", recent, all, want)
	}
	if with, without := recent.Rate(); with != 0 || without != 0.04 {
		t.Errorf("%v are dropped, and %v without weights, want 0 and 0.04", with, without)
	}
	if p := o.Predicted(); p != 0 {
		t.Errorf("%v predicted, and all are spared", p)
	}
	o.recent = Mistakes{Dropped: 1, Spared: 3, Passed: 99}
	if p, u := o.Predicted(), o.Weights().Uniform; p != u/4 || u == 0 {
		t.Errorf("%v predicted, and a quarter of %v is dropped", p, u)
	}
}

// In monitor mode, packets that a penalty would drop are no mistakes of the filter.
func TestJudgeInMonitorMode(t *testing.T) {
	var listed []list.V4Prefix
	for i := range uint32(1000) {
		listed = append(listed, list.V4(1<<31+i, 32))
	}
	e, err := engine.Reference([]engine.List{{Name: "feed", Contents: list.Entries{V4: listed}.Set()}},
		engine.Config{Mode: membership.Approximate, BitsPerKey: 2})
	if err != nil {
		t.Fatal(err)
	}
	var passed, stopped key.Key // by the cascade; neither is listed
	for i := 0; passed.Shape == (key.Shape{}) || stopped.Shape == (key.Shape{}); i++ {
		if k := source(i); e.Block.Passes(k) {
			passed = k
		} else {
			stopped = k
		}
	}
	judged := make(chan events.Event, 3)
	log := slog.New(slog.DiscardHandler)
	o := NewObserver(Config{}, events.NewHub(log), nil, log)
	o.judged = judged
	for _, k := range []key.Key{stopped, passed, passed} {
		judged <- events.Event{Time: time.Now(), Reason: verdict.WouldBlock, OneIn: 8, Tuple: key.Tuple{Src: k.Src}}
	}
	o.Judge(e, Counted{}, 0, time.Nanosecond, time.Time{})
	if _, all := o.Measured(); all.Dropped != 16 {
		t.Errorf("%v are mistakes, want those of the 2 events that the cascade passes: 16", all.Dropped)
	}
}
