package observe

import (
	"context"
	"fmt"
	"math"
	"slices"

	"weir/control/api"
	"weir/control/explain"
	"weir/control/observe/traffic"
	"weir/control/ruleset"
	"weir/control/stages"
	"weir/filter/flood"
	"weir/filter/packet"
	"weir/filter/penalty"
	"weir/filter/verdict"
)

// Explainer answers questions about packets. It is safe for concurrent use.
type Explainer struct {
	host    Host
	meter   *traffic.Meter
	drops   *DropRecorder
	stages  *stages.Running
	version string
}

// NewExplainer returns an explainer of a host's packets, in a version of weir.
func NewExplainer(host Host, meter *traffic.Meter, drops *DropRecorder, stages *stages.Running, version string) *Explainer {
	return &Explainer{host, meter, drops, stages, version}
}

// Trace implements [server.Recorder].
func (x *Explainer) Trace(ctx context.Context, q api.TraceQuestion) (*api.Traced, error) {
	return x.stages.Trace(ctx, q)
}

// Explain implements [server.Explainer].
func (x *Explainer) Explain(ctx context.Context, question string, places bool) (e api.Explanation, err error) {
	asked, err := explain.ParseQuestion(question)
	if err != nil {
		return e, &api.BadRequest{Err: err}
	}
	answers, wanted, err := x.Ask(ctx, asked)
	if places {
		wanted.Find(ruleset.Source.Find) // outside of the loop, as it reads the feeds
	}
	return Explanation(question, answers...), err
}

// ExplainFrames implements [server.Explainer].
func (x *Explainer) ExplainFrames(ctx context.Context, frames [][]byte) (all []api.Explanation, err error) {
	var asked []explain.Question
	for _, f := range frames {
		asked = append(asked, explain.Question{Frame: f})
	}
	answers, wanted, err := x.Ask(ctx, asked)
	wanted.Find(ruleset.Source.Find)
	for _, a := range answers {
		all = append(all, Explanation(a.Packet, a))
	}
	return all, err
}

// Explanation returns the answers to a question as clients see them.
func Explanation(question string, answers ...explain.Answer) api.Explanation {
	all := make([]api.Answer, len(answers))
	for i := range answers {
		all[i] = answers[i].API()
	}
	return api.NewExplanation(question, all...)
}

// Ask answers questions, but for the places of entries, which it returns.
func (x *Explainer) Ask(ctx context.Context, asked []explain.Question) (answers []explain.Answer, wanted ruleset.Places, err error) {
	wanted = make(ruleset.Places)
	for _, q := range asked { // each in a turn of its own: there may be many
		if err := x.host.Lend(ctx, func(by ruleset.Active) error {
			hits := x.meter.Hits()
			of := &q.Known
			if q.Frame != nil {
				of = nil // the packet is of a flow, or it is not
			}
			penalties, more := x.stages.Trackers.Meeting(of)
			patterns := by.Stages.Patterns.Matching(mayMatch(q))
			penalties = append(penalties, by.Stages.Limits.Meeting(q.Known)...)
			own := penaltyOf(patterns, q, penalties)
			penalties = append(penalties, own...)
			all := explain.Answers(by.Engine, q, penalties)
			for i := range all {
				x.describe(&all[i], more, by.Stages)
				describePatterns(&all[i], patterns, q, own != nil)
				all[i].Condense()
				by.DescribeAnswer(&all[i], wanted)
				by.CountAnswer(&all[i], hits)
			}
			answers = append(answers, all...)
			return nil
		}); err != nil {
			return nil, nil, err
		}
	}
	for i := range answers {
		x.drops.Describe(&answers[i])
	}
	return answers, wanted, nil
}

// describe adds to an answer what is known of heavy hitters: how much of one exceeds its limit,
// how many penalties are left out, and which flows are spared.
func (x *Explainer) describe(a *explain.Answer, more int, of *stages.Table) {
	if a.Direction == Direction(true) || !a.Known.Src.IsValid() {
		return // outgoing packets have no penalties
	}
	a.PenaltiesMore = more
	if l := a.Limit; l != nil {
		if by := of.Limits.Of(l.Key); by != nil {
			l.Unit = by.Unit()
		} else {
			l.Tracker, l.Unit, l.Offered = x.stages.Trackers.Limited(l.Key, l.Rate)
		}
	}
	a.Spared = x.stages.Trackers.SparedOf(a.Known)
}

// mayMatch returns whether a pattern may match packets of a question: of a frame, whether it does.
func mayMatch(q explain.Question) func(*stages.Pattern) bool {
	if q.Frame == nil {
		return func(p *stages.Pattern) bool {
			return slices.ContainsFunc(p.Keys(), q.Known.Overlaps)
		}
	}
	fields, ok := flood.Of(q.Frame, len(q.Frame))
	fields.Conversing = flood.Stranger // which a frame does not say
	return func(p *stages.Pattern) bool { return ok && p.Rule.Matches(&fields) }
}

// drops reports whether a pattern drops all that it matches, conversations as well.
func drops(p stages.Pattern) bool {
	lo, _ := p.Rule.Bounds(flood.Strangers)
	return !p.Trial && p.Rate.Value == 0 && lo == 0
}

// penaltyOf returns a penalty that drops a frame as patterns do which match it, unless others do. An
// allow list lets it pass, as it does with any penalty.
func penaltyOf(patterns []stages.Pattern, q explain.Question, others []verdict.Penalty) []verdict.Penalty {
	p, _ := packet.Parse(q.Frame)
	if q.Frame == nil || !p.HasAddresses || !slices.ContainsFunc(patterns, drops) ||
		slices.ContainsFunc(others, func(x verdict.Penalty) bool { return x.Meets(p.Tuple.Key()) }) {
		return nil
	}
	return []verdict.Penalty{{Flow: p.Tuple.Key(), Penalty: penalty.Penalty{Until: math.MaxInt64}}}
}

// describePatterns adds to an answer which patterns may drop the packets, and which does; own says that
// the penalty of a pattern was asked about, and no other meets the packets.
func describePatterns(a *explain.Answer, patterns []stages.Pattern, q explain.Question, own bool) {
	if a.Direction == Direction(true) {
		return
	}
	for _, p := range patterns {
		if q.Frame != nil && drops(p) {
			if own && a.Reason == verdict.Heavy {
				a.Reason, a.Pattern = verdict.Pattern, p.Rule.String()
			}
			return
		}
		d := explain.Dependency{Stage: verdict.StagePenalty, Packets: "what matches " + p.Rule.String(), Verdict: verdict.Drop, Reason: verdict.Pattern}
		if !p.Until.IsZero() {
			d.Until = &p.Until
		}
		switch {
		case p.Trial:
			d.Verdict, d.Packets = verdict.Pass, d.Packets+", on trial"
		case p.Rate.Value > 0:
			d.Packets += fmt.Sprintf(", above %v", p.Rate)
		}
		a.Depends = append(a.Depends, d)
	}
}
