package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"weir/control/api"
	"weir/control/explain"
	"weir/control/feed"
	"weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/control/ruleset"
	"weir/control/stage"
	"weir/filter/key"
	"weir/filter/sketch"
)

// Answer implements [node.Daemon].
func (x *Explainer) Answer(ctx context.Context, what string, question []byte) (any, error) {
	switch what {
	case wire.AskExplain:
		return answer(ctx, question, x.answerExplain)
	case wire.AskHeavy:
		return answer(ctx, question, x.answerHeavy)
	case wire.AskTrace:
		return answer(ctx, question, x.answerTrace)
	}
	return nil, fmt.Errorf("weir %s does not know what %.20q is: update it", x.version, what)
}

func answer[Q any](ctx context.Context, question []byte, with func(context.Context, Q) (any, error)) (any, error) {
	var q Q
	if err := json.Unmarshal(question, &q); err != nil {
		return nil, fmt.Errorf("the question cannot be read: %w", err)
	}
	return with(ctx, q)
}

func (x *Explainer) answerExplain(ctx context.Context, q wire.ExplainQuestion) (any, error) {
	asked, err := explain.ParseQuestion(q.Packets)
	if err != nil {
		return nil, err
	}
	answers, wanted, err := x.Ask(ctx, asked)
	wanted.Find(func(s ruleset.Source, keys []key.Key) []feed.Origin {
		if l, ok := s.(*node.List); ok {
			return l.FindHere(keys) // the hub knows the rest, and adds it itself
		}
		return s.Find(keys)
	})
	return Explanation(q.Packets, answers...), err
}

func (x *Explainer) answerHeavy(ctx context.Context, q wire.HeavyQuestion) (any, error) {
	var k stage.Key
	var unit sketch.Unit
	if err := k.UnmarshalText([]byte(q.Key)); err != nil {
		return nil, err
	}
	if err := unit.UnmarshalText([]byte(q.Unit)); err != nil {
		return nil, err
	}
	var a wire.HeavyFlows
	err := x.host.Lend(ctx, func(by ruleset.Active) (err error) {
		if !x.stages.Trackers.Watcher().Interval(by.Engine, x.host.Stats(), k, unit, func(interval time.Duration, banks []*sketch.Bank) {
			a, err = node.Heavy(q, interval, banks)
		}) {
			return fmt.Errorf("no tracker counts %v by %v, or it has no interval since a start or a pause: set trackers in weir.yaml, or ask again", unit, k)
		}
		return err
	})
	return a, err
}

func (x *Explainer) answerTrace(ctx context.Context, q api.TraceQuestion) (any, error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	return x.Trace(ctx, q)
}
