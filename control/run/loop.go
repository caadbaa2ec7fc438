package run

import (
	"errors"
	"time"

	"weir/control/observe/events"
	"weir/control/status"
	"weir/filter/icarus"
	"weir/filter/verdict"
	"weir/loader"
)

// Loop is the node that this host is in a domain that looks for loops.
type Loop struct {
	*icarus.Node
	ID    uint64
	Edges []string // names and patterns of the interfaces where packets enter and leave
	Drop  bool     // packets in a loop; otherwise they are only reported
}

func (l *Loop) describe() *status.Loop {
	if l == nil {
		return nil
	}
	return &status.Loop{
		Node: l.ID, Domain: l.Domain, Size: l.Size, K: l.K, Confirm: l.Confirm, Drop: l.Drop, Edges: l.Edges,
	}
}

// loops are those that were found.
type loops struct {
	found <-chan events.Event // nil while nobody looks for any
	end   func()
	told  events.Loops
	fault string // why a program does not know the edges, as the log has it
}

// setEdges tells the program of an interface which interfaces are edges.
func (f *Filter) setEdges(t Target, s *loader.Stats) error {
	l := f.o.Loop
	if l == nil || len(l.Edges) == 0 {
		return s.SetEdges(false, nil)
	}
	own, edges, err := t.Edges(l.Edges)
	if errors.Is(err, loader.ErrNoNetns) {
		return nil // the interface is gone with it
	}
	if err != nil {
		return err
	}
	return s.SetEdges(own, edges)
}

// followEdges keeps what the programs know of edges true, as interfaces come
// and go.
func (f *Filter) followEdges() {
	if f.o.Loop == nil || len(f.o.Loop.Edges) == 0 {
		return
	}
	fault := ""
	for _, h := range f.holds {
		if !h.present() {
			continue
		}
		if err := f.setEdges(h.Target, h.Stats()); err != nil {
			fault = h.Target.String() + ": " + err.Error()
		}
	}
	if fault != "" && fault != f.loops.fault {
		f.o.Log.Error(fault)
	}
	f.loops.fault = fault
}

// tellLoops logs which packets were found in a loop.
func (f *Filter) tellLoops(now time.Time) {
	l := &f.loops
	if on := f.o.Loop != nil; on && l.found == nil {
		l.found, l.end = f.events.Subscribe(events.Want{Reasons: []verdict.Reason{verdict.Looped}})
	} else if !on && l.found != nil {
		l.end()
		l.found = nil
	}
	for {
		var e events.Event
		select {
		case found, ok := <-l.found:
			if !ok {
				return // weir is about to stop
			}
			e = found
		default:
			return
		}
		if e.FirstTTL != 0 {
			continue // of digests: recorded() has logged it
		}
		if src, dst := e.Tuple.Src, e.Tuple.Dst; src.IsValid() && l.told.Tell(src, dst, now) {
			f.o.Log.Warn("a packet goes round in a circle: it comes here again",
				"src", src, "dst", dst, "interface", e.Target.String(), "dropped", e.Dropped)
		}
	}
}
