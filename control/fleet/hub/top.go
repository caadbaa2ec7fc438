package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"weir/control/api"
	"weir/control/fleet/wire"
	"weir/control/stage"
	"weir/filter/key"
	"weir/filter/ordered"
)

// Top implements [server.Asker]. It asks each node for its largest flows, and then all of
// them for those that may be large together: a flow that is spread over many nodes may
// not be among the largest of each.
func (h *Hub) Top(ctx context.Context, nodes []string, asked api.FleetTopQuestion) (t api.FleetTop, err error) {
	t = api.FleetTop{Key: asked.Key, Unit: asked.Unit, Share: asked.Share}
	var k stage.Key
	if err := k.UnmarshalText([]byte(asked.Key)); err != nil {
		return t, &api.BadRequest{Err: err}
	}
	if nodes, err = h.asker.nodes(nodes); err != nil {
		return t, err
	}
	question := wire.HeavyQuestion{Key: string(k), Unit: t.Unit, Most: wire.MaxHeavy}
	answers, err := askHeavy(ctx, h.asker, nodes, question)
	if err != nil {
		return t, err
	}
	var all []counted
	for _, a := range answers {
		var c counted
		if a.err == nil {
			if c, a.err = newCounted(a.node, a.value, k); a.err == nil {
				all = append(all, c)
			}
		}
		t.Nodes = append(t.Nodes, c.rate(a.node, a.problem()))
	}
	candidates, rest := merge(all, asked.Share)
	if len(candidates) > 0 {
		question.Most, question.Keys, nodes = 0, nil, nil
		for _, f := range candidates {
			question.Keys = append(question.Keys, f.key.Append(nil))
		}
		for _, c := range all {
			nodes = append(nodes, c.node)
		}
		if answers, err = askHeavy(ctx, h.asker, nodes, question); err != nil {
			return t, err
		}
		for i, a := range answers {
			all[i].estimate(a.value, candidates) // without an answer, by what it said first
			n, _ := slices.BinarySearchFunc(t.Nodes, a.node, func(n api.NodeRate, name string) int { return strings.Compare(n.Node, name) })
			t.Nodes[n] = all[i].rate(a.node, a.problem())
		}
	}
	for _, c := range all {
		t.Rate += c.perSecond(c.Units)
	}
	t.Rest = rest
	for _, f := range candidates {
		if f.most < asked.Share*t.Rate {
			t.Rest = max(t.Rest, f.most)
			continue
		}
		t.Flows = append(t.Flows, api.FlowRate{
			Key: stage.FlowName(f.key), Rate: f.most, Least: f.least, Share: min(1, f.most/max(t.Rate, 1e-9)), Nodes: f.nodes,
		})
	}
	ordered.By(t.Flows, func(a, b api.FlowRate) int { return cmp.Or(cmp.Compare(b.Rate, a.Rate), strings.Compare(a.Key, b.Key)) })
	return t, nil
}

func askHeavy(ctx context.Context, by *asker, nodes []string, q wire.HeavyQuestion) ([]answered[wire.HeavyFlows], error) {
	return ask(ctx, by, nodes, wire.AskHeavy, q, patience, func(a *wire.HeavyFlows) error { return a.Check(q) })
}

// counted has a node's counts of its largest flows.
type counted struct {
	node string
	wire.HeavyFlows
	largest map[key.Key]wire.HeavyFlow
}

func newCounted(node string, a *wire.HeavyFlows, k stage.Key) (counted, error) {
	c := counted{node, *a, make(map[key.Key]wire.HeavyFlow, len(a.Flows))}
	v4, v6 := k.Shapes()
	for _, f := range a.Flows {
		is, err := key.Parse(f.Key)
		if _, again := c.largest[is]; err == nil && again {
			err = fmt.Errorf("%v occurs twice", is)
		}
		if err == nil && is.Shape != v4 && is.Shape != v6 {
			err = errors.New("a flow of another tracker")
		}
		if err != nil {
			return counted{}, fmt.Errorf("invalid answer: %w", err)
		}
		c.largest[is] = f
	}
	return c, nil
}

func (c counted) perSecond(units uint64) float64 { return float64(units) / c.Interval }

func (c counted) rate(node, problem string) api.NodeRate {
	n := api.NodeRate{Node: node, Problem: problem, Interval: c.Interval, Denied: c.Denied}
	if c.Interval > 0 {
		n.Rate = c.perSecond(c.Units)
	}
	return n
}

// candidate is a flow that may be large on all nodes together.
type candidate struct {
	key         key.Key
	nodes       int // that have it among their largest
	least, most float64
}

// merge returns the flows that probably have a share of all that is counted, the largest
// first, with rates of 0 that are yet to be added, and the rate that no flow exceeds that
// no node names.
func merge(all []counted, share float64) (candidates []*candidate, rest float64) {
	var rate, floors float64
	flows := make(map[key.Key]*candidate)
	for _, c := range all {
		rate += c.perSecond(c.Units)
		rest += c.perSecond(c.Rest)
		floor := c.floor()
		floors += floor
		for k, f := range c.largest {
			if flows[k] == nil {
				flows[k] = &candidate{key: k}
			}
			flows[k].nodes++
			flows[k].most += c.perSecond(f.Most) - floor
		}
	}
	for _, f := range flows {
		f.most += floors // where a node does not name it
		candidates = append(candidates, f)
	}
	ordered.By(candidates, func(f, g *candidate) int { return cmp.Or(cmp.Compare(g.most, f.most), f.key.Compare(g.key)) })
	n := slices.IndexFunc(candidates, func(f *candidate) bool { return f.most < share*rate })
	if n < 0 {
		n = len(candidates)
	}
	if n = min(n, wire.MaxEstimates); n < len(candidates) {
		rest = max(rest, candidates[n].most)
	}
	candidates = candidates[:n]
	for _, f := range candidates {
		f.most = 0
	}
	return candidates, rest
}

// floor returns the rate of the smallest flow that the node names, of which there may
// be more.
func (c counted) floor() float64 {
	if len(c.Flows) < wire.MaxHeavy {
		return 0
	}
	least := c.Flows[0].Most
	for _, f := range c.Flows {
		least = min(least, f.Most)
	}
	return c.perSecond(least)
}

// estimate adds to the rates of candidates those of a node: what it has answered when
// asked for them, or nil if it has not.
func (c *counted) estimate(a *wire.HeavyFlows, candidates []*candidate) {
	if a != nil {
		c.HeavyFlows = *a
	}
	for i, f := range candidates {
		of, named := c.largest[f.key]
		switch {
		case a != nil:
			of = a.Flows[i]
		case !named:
			of.Most = c.Rest
		}
		f.least += c.perSecond(of.Least)
		f.most += c.perSecond(of.Most)
	}
}
