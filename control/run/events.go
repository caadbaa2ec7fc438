package run

import (
	"weir/control/observe/events"
	"weir/filter/membership"
	"weir/filter/verdict"
)

// Events implements api.Source.
func (f *Filter) Events(w events.Want) (told <-chan events.Event, end func()) {
	return f.events.Subscribe(w)
}

// listen goes over to the events of the interfaces that are filtered now.
func (f *Filter) listen() {
	var lists []string
	for _, l := range f.description.Lists {
		lists = append(lists, l.Name)
	}
	var there []events.Interface
	for _, h := range f.holds {
		if h.present() {
			there = append(there, events.Interface{
				Target: h.Target, Stats: h.Stats(), Lists: lists, Policy: f.description.Policy(),
			})
		}
	}
	f.events.Follow(there)
}

// judgeOne is how many of the listed packets are judged, where no table has done
// so: one in so many.
const judgeOne = 256

// misjudged is the number of packets since it was last called that were taken
// for listed ones and are not. It is 0 where a table tells.
func (f *Filter) misjudged() (wrong float64) {
	w := &f.watch
	judging := w.learner != nil && f.generation.Block.Mode == membership.Approximate
	if judging && w.judged == nil {
		w.judged, w.endJudging = f.events.Subscribe(events.Want{Reasons: []verdict.Reason{verdict.Blocked, verdict.Monitored}, OneIn: judgeOne})
	}
	if !judging && w.judged != nil {
		w.endJudging()
		w.judged = nil
	}
	if !judging {
		return 0
	}
	for {
		select {
		case e, ok := <-w.judged:
			if !ok {
				return wrong // weir is about to stop
			}
			// The lists of an earlier generation are gone.
			if e.Lost == 0 && e.Time.After(f.description.Loaded) && !f.generation.Blocks(e.Tuple) {
				wrong += float64(e.OneIn)
			}
		default:
			return wrong
		}
	}
}
