// Package ask answers questions about packets: what the lists and trackers of a daemon do with them.
package ask

import (
	"context"

	"weir/control/explain"
	"weir/filter/sketch"
	"weir/filter/verdict"

	"weir/control/api"
	"weir/control/observe/drops"
	"weir/control/observe/traffic"
	"weir/control/ruleset"
	"weir/control/stage/tracker"
	"weir/control/stages"
	"weir/loader"
)

// Active is the rule set that filters, with the trackers that punish.
type Active struct {
	ruleset.Active
	Trackers *tracker.Runner
	Stats    []*loader.Stats // of the interfaces
}

// Host lends what filters. It is safe for concurrent use.
type Host interface {
	// LendWatched calls fn in a turn of the daemon's loop, and returns its error.
	LendWatched(ctx context.Context, fn func(Active) error) error
}

// Explainer answers questions about packets. It is safe for concurrent use.
type Explainer struct {
	host    Host
	meter   *traffic.Meter
	drops   *drops.Recorder
	stages  *stages.Running
	version string
}

// New returns what answers questions about the packets of a host, of a version of weir.
func New(host Host, meter *traffic.Meter, drops *drops.Recorder, stages *stages.Running, version string) *Explainer {
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
		if err := x.host.LendWatched(ctx, func(by Active) error {
			hits := x.meter.Hits()
			penalties, more := meeting(by.Trackers.Watcher().Penalties(loader.Monotonic()), q)
			all := explain.Answers(by.Engine, q, penalties)
			for i := range all {
				describe(&all[i], by.Trackers.Watcher(), more)
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

// meeting returns the penalties that all packets of a question meet, and the first of those
// that some may, and the number of the others.
func meeting(all []verdict.Penalty, q explain.Question) (kept []verdict.Penalty, more int) {
	if q.Frame != nil {
		return all, 0 // a packet is of a flow, or it is not
	}
	some := 0
	for _, p := range all {
		switch {
		case !p.Meets(q.Known):
			continue
		case !p.Flow.Shape.Within(q.Known.Shape):
			if some++; some > maxDepends {
				continue
			}
		}
		kept = append(kept, p)
	}
	return kept, max(0, some-maxDepends)
}

// describe adds to an answer what is known of heavy hitters: how much of one exceeds its limit,
// how many penalties are left out, and which flows are spared.
func describe(a *explain.Answer, by *tracker.Watcher, more int) {
	if a.Direction == drops.Direction(true) || !a.Known.Src.IsValid() {
		return // outgoing packets have no penalties
	}
	a.PenaltiesMore = more
	if l := a.Limit; l != nil {
		spec, offered, known := by.Limited(l.Key, l.Rate)
		l.Tracker, l.Unit = string(spec.Key), "packets"
		if spec.Counts() == sketch.Bytes {
			l.Unit = "bytes"
		}
		if known {
			l.Offered = &offered
		}
	}
	for _, x := range by.Spared(loader.Monotonic()) {
		if len(a.Spared) < maxDepends && x.Flow.Overlaps(a.Known) {
			a.Spared = append(a.Spared, x.API().String())
		}
	}
}

// maxDepends bounds the flows of one kind that an answer names.
const maxDepends = 10
