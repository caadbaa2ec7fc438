package learn

import (
	"log/slog"
	"math"
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
	o.Judge(&e, Counted{Clean: 1000, Spared: 500, Matched: 9}, 0, time.Time{})
	if r, ok := o.Counted(); ok || o.All() != (Mistakes{}) {
		t.Errorf("%v and %v, nothing is judged", r, o.All())
	}
	o.Judge(&e, Counted{Clean: 1100, Spared: 504, Matched: 9}, 0, time.Time{})
	if all, want := o.All(), (Mistakes{Spared: 4, Passed: 100}); all != want {
		t.Errorf("%v, want %v", all, want)
	}
	if r, ok := o.Counted(); !ok || r.Share != 0 || r.Without != 0.04 || r.Packets != 100 || r.Low != 0 || r.High < 0.03 || r.High > 0.04 {
		t.Errorf("%+v, want none of 100, and 4 of them without weights", r)
	}
	if p := o.Predicted(); p != 0 {
		t.Errorf("%v predicted, and all are spared", p)
	}
	o.built = Mistakes{Dropped: 1, Spared: 3, Passed: 99}
	if p, u := o.Predicted(), o.Weights().Uniform; p != u/4 || u == 0 {
		t.Errorf("%v predicted, and a quarter of %v is dropped", p, u)
	}
}

// The rate counts what was sent since the filter was built. Its interval is wider where few elements had all
// dropped packets, and packets without an event count as those with one.
func TestCounted(t *testing.T) {
	o, judge := judging()
	e := approximate(t)
	all := passing(e.Block, 400)
	count := func(c Counted, elements, each int) Rate {
		t.Helper()
		judge(e, c, all[:elements], each)
		r, _ := o.Counted()
		return r
	}
	if r := count(Counted{Clean: 50, Matched: 5}, 3, 1); r != (Rate{}) {
		t.Errorf("%+v of packets before the first look", r)
	}
	of := func(r Rate, low, share, high float64) bool {
		return math.Abs(r.Low-low) < 1e-4 && math.Abs(r.Share-share) < 1e-9 && math.Abs(r.High-high) < 1e-4
	}
	// By Wilson's formula for 400 of 2000.
	if r := count(Counted{Clean: 1650, Matched: 405}, 400, 1); !of(r, 0.18305, 0.2, 0.21811) || r.Packets != 2000 {
		t.Errorf("400 elements: %+v", r)
	}
	again := *e // another filter
	again.Block, _ = newSet(t, 7, 1000, 8, 10)
	e = &again
	if r := count(Counted{Clean: 1650, Matched: 405}, 0, 0); r != (Rate{}) {
		t.Errorf("%+v of another filter", r)
	}
	all = passing(e.Block, 4)
	// 4 of 20.
	if r := count(Counted{Clean: 3250, Matched: 805}, 4, 100); !of(r, 0.08066, 0.2, 0.41602) || r.Packets != 2000 {
		t.Errorf("4 elements with 100 packets each: %+v", r)
	}
	// As many packets again have no event.
	if r := count(Counted{Clean: 4850, Matched: 1205}, 4, 0); math.Abs(r.Share-0.2) > 1e-9 || r.Packets != 4000 || r.High < 0.41602 {
		t.Errorf("half of the events: %+v", r)
	}
}

// Traffic that has come to be other than what was learned is found, after however much that was as learned, and no
// other is, nor where few elements have all the mistakes.
func TestWorse(t *testing.T) {
	o, judge := judging()
	e := approximate(t)
	e.Block.Classes = make([]byte, membership.NumClasses+1)
	equal := e.Block.FalsePositiveRate(e.Block.Len())
	all := passing(e.Block, 3000)
	var c Counted
	// look sends packets, of which elements are mistakes, with some packets each, and reports whether they are too many.
	look := func(packets, elements, each int) (counted float64, worse bool) {
		t.Helper()
		c.Clean += uint64(packets - elements*each)
		c.Matched += uint64(elements * each)
		judge(e, c, all[:elements], each)
		all = all[elements:]
		counted, of, worse := o.Worse(e.Block)
		if worse && of != equal {
			t.Errorf("%v is expected, want %v", of, equal)
		}
		return counted, worse
	}
	look(0, 0, 0)
	if _, worse := look(10_000_000, 100, 1); worse {
		t.Error("worse, with mistakes of one packet in 100,000")
	}
	packets := int(20 / equal)
	for range 50 { // as expected of equal bits
		if counted, worse := look(packets, 20, 1); worse {
			t.Fatalf("worse, with %v", counted)
		}
	}
	if counted, worse := look(packets, 4, 30); worse { // six times as many packets, of four elements
		t.Fatalf("worse by four elements, with %v", counted)
	}
	for range 20 {
		look(packets, 1, 1)
	}
	found := 0
	for ; ; found++ {
		if found == 25 {
			t.Fatal("one and a half times as many are not found")
		}
		if counted, worse := look(packets, 30, 1); worse {
			if math.Abs(counted/equal/1.5-1) > 0.01 {
				t.Errorf("%v counted, want %v", counted, 1.5*equal)
			}
			break
		}
	}
	if found < 2 {
		t.Errorf("found after %d mistakes: chance does as much", 30*(found+1))
	}
}

// In monitor mode, packets that a penalty would drop are no mistakes of the filter.
func TestJudgeInMonitorMode(t *testing.T) {
	e := approximate(t)
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
		judged <- event(k, 8)
	}
	o.Judge(e, Counted{}, 0, time.Time{})
	if all := o.All(); all.Dropped != 16 {
		t.Errorf("%v are mistakes, want those of the 2 events that the cascade passes: 16", all.Dropped)
	}
}

// judging returns an observer, and what has it judge the counters of programs and some events of each element that
// they have dropped.
func judging() (o *Observer, judge func(e *engine.Generation, c Counted, dropped []key.Key, each int)) {
	judged := make(chan events.Event, 3000)
	o = NewObserver(Config{}, nil, nil, slog.New(slog.DiscardHandler))
	o.judged = judged
	return o, func(e *engine.Generation, c Counted, dropped []key.Key, each int) {
		for _, k := range dropped {
			for range each {
				judged <- event(k, 1)
			}
		}
		o.Judge(e, c, 0, time.Time{})
	}
}

// approximate returns a filter that passes many sources.
func approximate(t *testing.T) *engine.Generation {
	t.Helper()
	var listed []list.V4Prefix
	for i := range uint32(1000) {
		listed = append(listed, list.V4(1<<31+i, 32))
	}
	e, err := engine.Reference([]engine.List{{Name: "feed", Contents: list.Entries{V4: listed}.Set()}},
		engine.Config{Mode: membership.Approximate, BitsPerKey: 2})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// event returns that of one of some packets of a source that were taken for listed ones.
func event(k key.Key, oneIn int) events.Event {
	return events.Event{Time: time.Now(), Reason: verdict.WouldBlock, OneIn: uint32(oneIn), Tuple: key.Tuple{Src: k.Src}}
}
