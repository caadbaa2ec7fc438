package daemon

import (
	"context"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/observe/drops"
	"weir/control/ruleset"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
)

// explainer answers questions about packets. It is safe for concurrent use.
type explainer struct {
	loop      *loop
	active    *active
	observers *observers
	version   string
}

// Trace implements [server.Recorder].
func (x *explainer) Trace(ctx context.Context, q api.TraceQuestion) (*api.Traced, error) {
	return x.observers.stages.Trace(ctx, q)
}

// Explain implements [server.Explainer].
func (x *explainer) Explain(ctx context.Context, question string, places bool) (e api.Explanation, err error) {
	asked, err := engine.ParseQuestion(question)
	if err != nil {
		return e, &api.BadRequest{Err: err}
	}
	answers, wanted, err := x.explain(ctx, asked)
	if places {
		wanted.Find(ruleset.Source.Find) // outside of the loop, as it reads the feeds
	}
	return Explanation(question, answers...), err
}

// ExplainFrames implements [server.Explainer].
func (x *explainer) ExplainFrames(ctx context.Context, frames [][]byte) (all []api.Explanation, err error) {
	var asked []engine.Question
	for _, f := range frames {
		asked = append(asked, engine.Question{Frame: f})
	}
	answers, wanted, err := x.explain(ctx, asked)
	wanted.Find(ruleset.Source.Find)
	for _, a := range answers {
		all = append(all, Explanation(a.Packet, a))
	}
	return all, err
}

// Explanation returns the answers to a question as clients see them.
func Explanation(question string, answers ...engine.Answer) api.Explanation {
	all := make([]api.Answer, len(answers))
	for i := range answers {
		all[i] = answers[i].API()
	}
	return api.NewExplanation(question, all...)
}

// explain answers questions, but for the places of entries, which it returns.
func (x *explainer) explain(ctx context.Context, asked []engine.Question) (answers []engine.Answer, wanted ruleset.Places, err error) {
	wanted = make(ruleset.Places)
	for _, q := range asked { // each in a turn of its own: there may be many
		if err := x.loop.Do(ctx, func() error {
			hits := x.observers.meter.Hits()
			penalties, more := meeting(x.observers.heavy.Penalties(loader.Monotonic()), q)
			all := x.active.engine.Explain(q, penalties)
			for i := range all {
				x.observers.describe(&all[i], more)
				all[i].Condense()
				x.active.prepared.DescribeAnswer(&all[i], wanted)
				x.active.prepared.CountAnswer(&all[i], hits)
			}
			answers = append(answers, all...)
			return nil
		}); err != nil {
			return nil, nil, err
		}
	}
	for i := range answers {
		x.observers.drops.Describe(&answers[i])
	}
	return answers, wanted, nil
}

// meeting returns the penalties that all packets of a question meet, and the first of those
// that some may, and the number of the others.
func meeting(all []verdict.Penalty, q engine.Question) (kept []verdict.Penalty, more int) {
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
func (o *observers) describe(a *engine.Answer, more int) {
	if a.Direction == drops.Direction(true) || !a.Known.Src.IsValid() {
		return // outgoing packets have no penalties
	}
	a.PenaltiesMore = more
	if l := a.Limit; l != nil {
		spec, offered, known := o.heavy.Limited(l.Key, l.Rate)
		l.Tracker, l.Unit = string(spec.Key), "packets"
		if spec.Counts() == sketch.Bytes {
			l.Unit = "bytes"
		}
		if known {
			l.Offered = &offered
		}
	}
	for _, x := range o.heavy.Spared(loader.Monotonic()) {
		if len(a.Spared) < maxDepends && x.Flow.Overlaps(a.Known) {
			a.Spared = append(a.Spared, sparedOf(x).String())
		}
	}
}

// maxDepends bounds the flows of one kind that an answer names.
const maxDepends = 10
