package observe

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir/filter/ordered"
	"weir/filter/verdict"
)

// Bounds of a DropHistory.
const (
	Keep = time.Hour

	fine     = 10 * time.Second // length of a recent slice
	finePart = 2 * time.Minute  // older ones are joined into slices of a minute
	maxFlows = 1000             // of a slice; the smallest are left out
)

// DroppedFlow is packets from one source, or to one destination, that were dropped for one
// cause, or would have been.
type DroppedFlow struct {
	Remote netip.Addr // the source, of outgoing packets the destination
	Reason verdict.Reason
	List   string // that matched; "": none, or it is unknown
	Out    bool   // the packets were outgoing

	Monitor    bool // they passed, in monitor mode
	Renumbered bool // a list matched, and its number became another's meanwhile
}

// DropCount has the packets of a flow that were dropped.
type DropCount struct {
	Packets, Bytes uint64
	Least          uint64     // lower bound of Packets, which may be an estimate
	Dst            netip.Addr // of one of the packets
}

func (c DropCount) plus(d DropCount) DropCount {
	return DropCount{c.Packets + d.Packets, c.Bytes + d.Bytes, c.Least + d.Least, d.Dst}
}

// Total is a number of packets with their bytes.
type Total struct{ Packets, Bytes uint64 }

// Plus returns the sum.
func (t Total) Plus(u Total) Total { return Total{t.Packets + u.Packets, t.Bytes + u.Bytes} }

// DropInterval counts the packets of a short time that were dropped, or would have been.
type DropInterval struct {
	Begin, End     time.Time
	Packets, Bytes uint64 // in all
	Monitored      Total  // of these, packets that passed in monitor mode, but for lists on trial
	Trial          Total  // of these, packets that passed since the list is on trial
	Flows          map[DroppedFlow]DropCount
	Lists          map[string]uint64 // packets that each list has matched, in all
	ListsMonitored map[string]uint64 // of these, packets in monitor mode, of lists that are not on trial
}

// add adds a later interval.
func (i *DropInterval) add(j DropInterval) {
	i.End = j.End
	i.Packets += j.Packets
	i.Bytes += j.Bytes
	i.Monitored = i.Monitored.Plus(j.Monitored)
	i.Trial = i.Trial.Plus(j.Trial)
	for f, n := range j.Flows {
		i.Flows[f] = i.Flows[f].plus(n)
	}
	for name, n := range j.Lists {
		i.Lists[name] += n
	}
	for name, n := range j.ListsMonitored {
		i.ListsMonitored[name] += n
	}
}

// trim leaves the largest flows.
func (i *DropInterval) trim() {
	if len(i.Flows) <= maxFlows {
		return
	}
	all := ordered.Of(maps.Keys(i.Flows), func(a, b DroppedFlow) int {
		return cmp.Or(cmp.Compare(i.Flows[b].Packets, i.Flows[a].Packets), a.Remote.Compare(b.Remote))
	})
	for _, f := range all[maxFlows:] {
		delete(i.Flows, f)
	}
}

// DropSum adds up intervals until they are taken. The zero DropSum is empty and ready; its methods may be
// called concurrently.
type DropSum struct {
	mu  sync.Mutex
	all DropInterval
}

// Add adds an interval.
func (s *DropSum) Add(i DropInterval) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all.Flows == nil {
		s.all = empty(i.Begin)
	}
	s.all.add(i)
	if len(s.all.Flows) > 4*maxFlows {
		s.all.trim()
	}
}

// Take returns the intervals that were added since it was called last.
func (s *DropSum) Take() DropInterval {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.all
	s.all = DropInterval{}
	return taken
}

func empty(at time.Time) DropInterval {
	return DropInterval{Begin: at, End: at, Flows: make(map[DroppedFlow]DropCount), Lists: make(map[string]uint64), ListsMonitored: make(map[string]uint64)}
}

// DropHistory has the drops of the last hour. The zero DropHistory is empty and ready;
// its methods may be called concurrently.
type DropHistory struct {
	mu     sync.Mutex
	slices []DropInterval // in order
}

// Add adds an interval, which follows those before.
func (h *DropHistory) Add(i DropInterval) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := len(h.slices) - 1
	if last < 0 || !h.slices[last].Begin.Truncate(fine).Equal(i.Begin.Truncate(fine)) {
		if last >= 0 {
			h.slices[last].trim()
		}
		h.join(i.End.Add(-finePart))
		h.slices = append(h.slices, empty(i.Begin))
		last = len(h.slices) - 1
	}
	s := &h.slices[last]
	s.add(i)
	if len(s.Flows) > 4*maxFlows {
		s.trim()
	}
	first := slices.IndexFunc(h.slices, func(s DropInterval) bool { return i.End.Sub(s.End) <= Keep })
	h.slices = slices.Delete(h.slices, 0, max(first, 0))
}

// join joins the slices of a minute that ended before a time.
func (h *DropHistory) join(before time.Time) {
	joined := h.slices[:0]
	for _, s := range h.slices {
		last := len(joined) - 1
		if last >= 0 && s.End.Before(before) && s.Begin.Truncate(time.Minute).Equal(joined[last].Begin.Truncate(time.Minute)) {
			joined[last].add(s)
			joined[last].trim()
			continue
		}
		joined = append(joined, s)
	}
	clear(h.slices[len(joined):])
	h.slices = joined
}

// LatestDrops counts the packets of some flows that were dropped, or would have been.
type LatestDrops struct {
	Time      time.Time   // about when any of them was last
	Flow      DroppedFlow // which of them had the most packets then
	All       DropCount
	Monitored uint64 // of these packets, the ones that passed in monitor mode
}

// Last returns what was dropped of the flows that match. It reports false if nothing was.
func (h *DropHistory) Last(match func(DroppedFlow) bool) (l LatestDrops, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.slices {
		var most DropCount
		for f, n := range s.Flows {
			if !match(f) {
				continue
			}
			if f.Monitor {
				l.Monitored += n.Packets
			}
			if l.All = l.All.plus(n); !ok || s.End.After(l.Time) || n.Packets > most.Packets {
				l.Time, l.Flow, most, ok = s.End, f, n, true
			}
		}
	}
	return l, ok
}

// Since returns what was dropped from about a time on: the slice that contains it is
// included. Without any, it returns an empty interval at now.
func (h *DropHistory) Since(from, now time.Time) DropInterval {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := empty(now)
	for _, s := range h.slices {
		if !s.End.After(from) {
			continue
		}
		if s.Begin.Before(all.Begin) {
			all.Begin = s.Begin
		}
		all.add(s)
	}
	return all
}
