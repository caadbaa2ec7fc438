package hub

import (
	"cmp"
	"context"
	"slices"

	"weir/control/api"
	"weir/control/fleet/wire"
	"weir/filter/flood"
	"weir/filter/ordered"
)

// leastSeen is the share of a flood's packets that a rule matches at a node that sees it: as of those that it finds.
const leastSeen = 0.15

// measuring is a question for what rules match, with the answers of nodes.
type measuring struct {
	*api.FleetFloods
	asked []string
	not   map[string]uint32 // by the conditions of a rule, those asked for that do not stand in for it
}

// measure asks nodes what the rules of all match at each, and leaves one rule of those that match the same. A node
// that lies can add rules, keep rules that match the same, and make rules look worse. It can hide nothing that others
// say: the worst is shown. A rule goes only if each node that has found it says that another one matches 0.9 of its
// packets, and none that this hits more usual packets there, and more than rules may.
func (h *Hub) measure(ctx context.Context, f *api.FleetFloods) error {
	ordered.By(f.Rules, func(a, b api.FleetFloodRule) int {
		last := cmp.Compare(min(1, len(a.Addresses)), min(1, len(b.Addresses)))
		return cmp.Or(last, cmp.Compare(len(b.Nodes), len(a.Nodes)), byRate(a, b))
	})
	m := measuring{FleetFloods: f, not: make(map[string]uint32)}
	for _, r := range f.Rules[:min(len(f.Rules), wire.MaxMeasured)] {
		if len(r.Addresses) == 0 {
			m.asked = append(m.asked, r.Pattern)
		}
	}
	var names []string
	for _, n := range f.Nodes {
		names = append(names, n.Node)
	}
	if len(m.asked) > 0 {
		answers, err := ask[[]wire.MeasuredRule](ctx, h.asker, names, wire.AskMeasure, m.asked, patience, nil)
		if err != nil {
			return err
		}
		for i, a := range answers {
			is := make([]wire.MeasuredRule, len(m.asked))
			if f.Nodes[i].Unmeasured = a.problem(); a.value != nil {
				copy(is, *a.value) // which may have any length
			}
			m.add(&f.Nodes[i], is)
		}
		m.merge()
	}
	ordered.By(f.Rules, byRate)
	return nil
}

// add adds to rules what they match at a node: the zero value of each, if that is not known.
func (m *measuring) add(n *api.NodeFloods, is []wire.MeasuredRule) {
	for j, of := range is {
		r := &m.Rules[j]
		if n.Unmeasured == "" {
			r.Measured++
		}
		r.Packets, r.Conversations = worse(r.Packets, of.Packets, n.Node), worse(r.Conversations, of.Conversations, n.Node)
		r.Proposed = r.Proposed || most(r.Packets, r.Conversations) > flood.MaxCollateral
		if at, known := slices.BinarySearch(r.Nodes, n.Node); !known && (of.Flood.Estimate() >= leastSeen || len(of.For) > 0) {
			r.Nodes = slices.Insert(r.Nodes, at, n.Node)
		}
		for i, other := range is {
			if most(of.Packets, of.Conversations) > max(flood.MaxCollateral, most(other.Packets, other.Conversations)) {
				m.not[m.asked[i]] |= 1 << j
			}
		}
		if n.Floods == nil || n.Floods.Now == nil {
			continue
		}
		for _, its := range n.Floods.Now.Rules {
			if !slices.Contains(of.For, its.Pattern) {
				m.not[conditions(its)] |= 1 << j
			}
		}
	}
}

// merge leaves the rules for which none stands in: of two, that is the one that is sure, that more nodes see, or that hits less.
func (m *measuring) merge() {
	sure := map[bool]int{false: len(m.Nodes)} // by Proposed
	ordered.By(m.Rules, func(a, b api.FleetFloodRule) int {
		seen := cmp.Compare(sure[b.Proposed]+len(b.Nodes), sure[a.Proposed]+len(a.Nodes))
		return cmp.Or(seen, cmp.Compare(most(a.Packets, a.Conversations), most(b.Packets, b.Conversations)))
	})
	var kept []api.FleetFloodRule
	for _, r := range m.Rules {
		by := slices.IndexFunc(kept, func(k api.FleetFloodRule) bool {
			j := slices.Index(m.asked, k.Pattern)
			return j >= 0 && m.not[conditions(r.FloodRule)]>>j&1 == 0 && (!k.Proposed || slices.Contains(m.asked, r.Pattern))
		})
		if by < 0 {
			kept = append(kept, r)
			continue
		}
		k := &kept[by]
		k.Also, k.Rate, k.Sources = append(k.Also, r.Pattern), k.Rate+r.Rate, k.Sources+r.Sources
	}
	m.Rules = kept
}

// worse returns the larger share of the usual traffic, that which a node claims or the one before, and of equal ones
// that of which less is known. An unknown one is smaller than all.
func worse(a, b api.FloodShare, node string) api.FloodShare {
	s := flood.NewShare(max(0, min(b.Hits, b.Of)), max(0, b.Of))
	if a.Of == 0 || s.Of > 0 && cmp.Or(cmp.Compare(s.Estimate, a.Estimate()), cmp.Compare(a.Of, s.Of)) > 0 {
		return api.FloodShare{Hits: s.Hits, Of: s.Of, Low: s.Low, High: s.High, Node: node}
	}
	return a
}

// most returns the larger one of two shares: a rule may hit [flood.MaxCollateral] of the usual traffic.
func most(packets, conversations api.FloodShare) float64 {
	return max(packets.Estimate(), conversations.Estimate())
}
