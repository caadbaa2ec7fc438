package observe

import (
	"cmp"
	"log/slog"
	"net/netip"
	"time"

	"weir/control/api"
	"weir/control/export"
	"weir/control/observe/events"
	"weir/control/observe/traffic"
	"weir/control/stage/tracker"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/filter/verdict"
	"weir/loader"
)

// Exports collects what is exported at the end of an interval. Each packet that was
// counted is in exactly one record: with its source, as far as that is known, else with
// its list, else with its reason. Its methods are not safe for concurrent use, except those of
// the exporter.
type Exports struct {
	*export.Exporter
	hub      *events.Hub
	interval time.Duration

	began   time.Time                          // zero: nothing is collected
	tracked bool                               // who was dropped is known
	reasons [verdict.NumReasons]loader.Counter // not exported yet
	waiting [verdict.NumReasons]loader.Counter // of these, since the last interval or longer
	drops   [verdict.NumReasons]bool
	lists   map[string]loader.Counter // matched by lists that are known, and not exported yet
	last    ExportedLists
	sources map[dropFlow]export.Flow
	heavy   map[heavyFlow]export.Flow
	samples samples
}

// ExportedLists has the block lists, by their names.
type ExportedLists struct {
	Hits  map[string]loader.Counter // packets that each has matched
	Trial map[string]bool           // lists on trial
	Out   map[string]bool           // lists of outgoing packets, which have no records
}

// NewExports returns exports to no collector yet, with samples from a hub.
func NewExports(hub *events.Hub, log *slog.Logger) *Exports {
	return &Exports{Exporter: export.New(log), hub: hub}
}

// dropFlow and heavyFlow identify records.
type (
	dropFlow struct {
		source netip.Addr
		reason verdict.Reason
		list   string
	}
	heavyFlow struct {
		tracker string
		key     key.Key
	}
)

// Configure follows a configuration. Records begin now: hits are those that lists have had before.
func (x *Exports) Configure(s export.Spec, now time.Time, hits map[string]loader.Counter) {
	x.Exporter.Configure(s.Collectors)
	x.samples.configure(s.Collectors, x.hub, x.Exporter)
	x.interval = time.Duration(s.Interval)
	if len(s.Collectors) == 0 {
		*x = Exports{Exporter: x.Exporter, hub: x.hub, samples: x.samples}
	} else if x.began.IsZero() {
		*x = Exports{Exporter: x.Exporter, hub: x.hub, samples: x.samples, interval: x.interval, began: now, last: ExportedLists{Hits: hits}, lists: make(map[string]loader.Counter)}
		x.clear()
	}
}

func (x *Exports) clear() {
	x.sources, x.heavy = make(map[dropFlow]export.Flow), make(map[heavyFlow]export.Flow)
}

// Report takes in the report of a tracker. lists are the names of the programs' lists, "" where a
// number was another list's in the same interval.
func (x *Exports) Report(now time.Time, r *tracker.Report, lists []string, monitor bool) {
	if x.began.IsZero() || r.Spec.CountsPairs() {
		return
	}
	flow := export.Flow{Begin: now.Add(-r.Interval), End: now}
	for _, f := range r.Flows {
		if r.Role == tracker.Drops {
			// What was counted exactly, and no estimates: the rest has records, too. So
			// has a list whose name is not known here: it has counters.
			id := dropFlow{source: f.Key.Src, reason: verdict.Reason(f.Cause.Reason)}
			if n := int(f.Cause.List); n > 0 {
				if n > len(lists) || lists[n-1] == "" {
					continue
				}
				id.list = lists[n-1]
			}
			if monitor {
				switch id.reason {
				case verdict.Blocked, verdict.Heavy, verdict.RateLimited, verdict.Policed, verdict.Pattern:
					id.reason = verdict.WouldBlock
				}
			}
			if f.Packets > 0 && id.reason < verdict.NumReasons {
				flow.Src = netip.PrefixFrom(id.source, id.source.BitLen())
				flow.Dst = netip.PrefixFrom(f.Dst, f.Dst.BitLen())
				flow.Packets, flow.Bytes = f.Packets, f.Bytes
				flow.Reason, flow.List = id.reason.String(), id.list
				addFlow(x.sources, id, flow)
			}
			continue
		}
		if !f.Heavy {
			continue
		}
		k := f.Key
		flow.Src, flow.Dst = netip.PrefixFrom(k.Src, int(k.SrcBits)), netip.PrefixFrom(k.Dst, int(k.DstBits))
		flow.Proto, flow.SrcPort, flow.DstPort = k.Proto, k.SrcPort, k.DstPort
		packets, bytes := f.Whole(r.Spec.Counts())
		flow.Packets, flow.Bytes = uint64(packets), uint64(bytes)
		flow.Tracker, flow.Action = string(r.Spec.Key), r.Spec.Action.String()
		addFlow(x.heavy, heavyFlow{r.Spec.Label(), k}, flow)
	}
}

// addFlow adds a flow to others, of which there may be a number.
func addFlow[K comparable](all map[K]export.Flow, id K, f export.Flow) {
	before, known := all[id]
	switch {
	case known:
		f.Begin, f.Packets, f.Bytes = before.Begin, f.Packets+before.Packets, f.Bytes+before.Bytes
	case len(all) >= export.MaxFlows/2:
		return
	}
	all[id] = f
}

// Second takes in what was counted in a second, and exports at the end of an interval,
// which it reports. tracked: reports will say who was dropped.
func (x *Exports) Second(now time.Time, r traffic.Rates, tracked bool, drops func(verdict.Reason) bool, lists ExportedLists) bool {
	if x.began.IsZero() {
		return false
	}
	x.tracked = tracked
	for i, n := range r.Grown {
		x.reasons[i].Packets += n.Packets
		x.reasons[i].Bytes += n.Bytes
		x.drops[i] = drops(verdict.Reason(i))
	}
	for name, n := range lists.Hits {
		list := api.ListOf(name)
		if before := x.last.Hits[name]; n.Packets > before.Packets && list != "" && !lists.Out[list] {
			sum := x.lists[list]
			x.lists[list] = loader.Counter{Packets: sum.Packets + n.Packets - before.Packets, Bytes: sum.Bytes + n.Bytes - min(n.Bytes, before.Bytes)}
		}
	}
	x.last = lists
	if now.Sub(x.began) < x.interval-time.Second/2 {
		return false
	}
	x.flush(now, r.Monitor, false)
	return true
}

// flush exports what was collected.
func (x *Exports) flush(now time.Time, monitor, last bool) {
	if x.began.IsZero() {
		return
	}
	x.Send(x.batch(now, monitor, last))
	x.began = now
	x.clear()
}

// batch returns the records of an interval. The report of a tracker comes later than the
// counters: what is not known to have a source waits for one until the next batch,
// unless it is the last one. Counters are read one after another: what a list is ahead
// of its reason waits, too.
func (x *Exports) batch(now time.Time, monitor, last bool) export.Batch {
	b := export.Batch{Time: now}
	put := func(f export.Flow, r verdict.Reason, of *loader.Counter) {
		n := least(least(loader.Counter{Packets: f.Packets, Bytes: f.Bytes}, *of), x.reasons[r])
		if n.Packets == 0 {
			return
		}
		if n.Packets == x.reasons[r].Packets {
			n.Bytes = x.reasons[r].Bytes
		}
		*of, x.reasons[r] = minus(*of, least(*of, n)), minus(x.reasons[r], n)
		f.Packets, f.Bytes, f.Reason, f.Dropped = n.Packets, n.Bytes, r.String(), x.drops[r]
		b.All = append(b.All, f)
	}
	listed := func(name string) verdict.Reason {
		if monitor || x.last.Trial[name] {
			return verdict.WouldBlock
		}
		return verdict.Blocked
	}
	// A report may come after the records of its packets, and takes none of other lists.
	unlisted := x.reasons
	for name, n := range x.lists {
		of := &unlisted[listed(name)]
		*of = minus(*of, least(*of, n))
	}
	for id, f := range x.sources {
		if id.list == "" {
			put(f, id.reason, &unlisted[id.reason])
			continue
		}
		rest := x.lists[id.list]
		put(f, id.reason, &rest)
		x.lists[id.list] = rest
	}
	var ready [verdict.NumReasons]loader.Counter
	for i, n := range x.reasons {
		if ready[i] = n; x.tracked && !last && (x.drops[i] || verdict.Reason(i) == verdict.WouldBlock) {
			// The sources of packets that waited before are known by now.
			ready[i] = least(n, x.waiting[i])
		}
	}
	whole := export.Flow{Begin: x.began, End: now}
	for name, n := range x.lists {
		reason := listed(name)
		before := x.reasons[reason]
		whole.List, whole.Packets, whole.Bytes = name, n.Packets, n.Bytes
		if len(b.All) < export.MaxFlows-int(verdict.NumReasons) {
			put(whole, reason, &ready[reason])
			n = minus(n, least(n, minus(before, x.reasons[reason])))
		}
		if x.lists[name] = n; n.Packets == 0 {
			delete(x.lists, name)
		}
	}
	whole.List = ""
	for i, n := range ready {
		whole.Packets, whole.Bytes = n.Packets, n.Bytes
		put(whole, verdict.Reason(i), &n)
	}
	x.waiting = x.reasons
	for _, f := range x.heavy {
		b.Heavy = append(b.Heavy, f)
	}
	ordered.By(b.Heavy, func(a, b export.Flow) int { return cmp.Compare(b.Packets, a.Packets) })
	return b
}

func least(a, b loader.Counter) loader.Counter {
	return loader.Counter{Packets: min(a.Packets, b.Packets), Bytes: min(a.Bytes, b.Bytes)}
}

func minus(a, b loader.Counter) loader.Counter {
	return loader.Counter{Packets: a.Packets - b.Packets, Bytes: a.Bytes - b.Bytes}
}

// Finish exports what is left, before Close.
func (x *Exports) Finish(now time.Time, monitor bool, meter *traffic.Meter, attached []*loader.Attachment) {
	x.flush(now, monitor, true)
	x.SendCounters(now, meter, attached)
	x.samples.close()
}
