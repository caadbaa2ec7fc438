package observe

import (
	"context"
	"time"

	"weir/control/api"
	"weir/control/history"
	"weir/control/observe/traffic"
	"weir/filter/verdict"
	"weir/loader"
)

// TrafficHistory records the history of a second at a time.
type TrafficHistory struct {
	*history.Recorder                           // safe for concurrent use
	Hits              map[string]loader.Counter // by list, at the end of the last second
}

// Second records what was counted until now. hits count the block lists' packets; collateral is nil where none is
// recorded.
func (p *TrafficHistory) Second(now time.Time, r traffic.Rates, drops func(verdict.Reason) bool, hits map[string]loader.Counter, collateral *api.Collateral) {
	s := history.Sample{Interval: r.Interval}
	for i, n := range r.Grown {
		if n.Packets > 0 {
			reason := verdict.Reason(i)
			s.Reasons = append(s.Reasons, history.Reason{Name: reason.String(), Drops: drops(reason), Count: history.Count(n)})
		}
	}
	for name, n := range hits {
		if before := p.Hits[name]; n.Packets > before.Packets {
			s.Lists = append(s.Lists, history.List{
				Name:  api.ListOf(name),
				Count: history.Count{Packets: n.Packets - before.Packets, Bytes: n.Bytes - min(n.Bytes, before.Bytes)},
			})
		}
	}
	if collateral != nil {
		for _, l := range collateral.Lists {
			if l.Day > 0 {
				s.Lists = append(s.Lists, history.List{Name: l.List, Conversed: l.Day})
			}
		}
	}
	p.Hits = hits
	p.Add(now, s)
}

// History implements [server.Recorder].
func (p *TrafficHistory) History(_ context.Context, asked api.HistoryQuestion) (api.History, error) {
	now := time.Now()
	step := history.StepOf(asked.Since, asked.Step)
	all := p.Since(now.Add(-asked.Since), now, step)
	h := api.History{Since: now.Add(-asked.Since), Until: now, Step: step.Seconds(), Total: pointOf(history.Sum(all))}
	for _, r := range all {
		h.Points = append(h.Points, pointOf(r))
	}
	return h, nil
}

func pointOf(r history.Record) api.HistoryPoint {
	passed, dropped := r.Passed(), r.Dropped()
	p := api.HistoryPoint{
		Time: r.Begin, Seconds: r.Covered.Seconds(), Other: r.Other.Packets,
		Passed: passed.Packets, PassedBytes: passed.Bytes, Dropped: dropped.Packets, DroppedBytes: dropped.Bytes,
	}
	for _, c := range r.Reasons {
		p.Reasons = append(p.Reasons, api.HistoryReason{Reason: c.Name, Drops: c.Drops, Packets: c.Packets, Bytes: c.Bytes})
	}
	for _, l := range r.Lists {
		p.Lists = append(p.Lists, api.HistoryList{List: l.Name, Packets: l.Packets, Bytes: l.Bytes, Alone: l.Alone, Conversed: l.Conversed})
	}
	return p
}
