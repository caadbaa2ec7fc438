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
	"weir/filter/flood"
)

// maxRate bounds what a node may claim to receive: packets a second.
const maxRate = 1e12

// Floods implements [server.Asker].
func (h *Hub) Floods(ctx context.Context, nodes []string) (f api.FleetFloods, err error) {
	if f, err = h.unmeasured(ctx, nodes); err == nil {
		err = h.measure(ctx, &f)
	}
	return f, err
}

// unmeasured is [Hub.Floods] with rules as the nodes name them.
func (h *Hub) unmeasured(ctx context.Context, nodes []string) (f api.FleetFloods, err error) {
	if nodes, err = h.asker.nodes(nodes); err != nil {
		return f, err
	}
	answers, err := ask(ctx, h.asker, nodes, wire.AskFloods, struct{}{}, patience, checkFloods)
	if err != nil {
		return f, err
	}
	rules := make(map[string]*api.FleetFloodRule)
	for _, a := range answers {
		n := api.NodeFloods{}
		if a.value != nil {
			n = *a.value
		}
		n.Node, n.Problem = a.node, a.problem()
		f.Nodes = append(f.Nodes, n)
		if n.Floods == nil || n.Floods.Now == nil {
			continue
		}
		for _, r := range n.Floods.Now.Rules {
			of := conditions(r)
			if rules[of] == nil {
				rules[of] = &api.FleetFloodRule{FloodRule: api.FloodRule{Pattern: of, Proposed: true}}
			}
			merged(rules[of], r, a.node)
		}
	}
	for of, r := range rules {
		if n := len(r.Addresses); n > 0 {
			r.Pattern = fmt.Sprintf("%s%d sources", of, n)
		}
		f.Rules = append(f.Rules, *r)
	}
	err = h.Do(ctx, func() error {
		f.Patterns = h.patterns.at(f.Nodes, h.noted.Load().members)
		return nil
	})
	return f, err
}

func byRate(a, b api.FleetFloodRule) int {
	return cmp.Or(cmp.Compare(b.Rate, a.Rate), strings.Compare(a.Pattern, b.Pattern))
}

// ofSources comes before the number of sources in the text of a rule.
const ofSources = " of "

// conditions returns the text of a rule without the number of its sources, of which each node has others.
func conditions(r api.FloodRule) string {
	if at := strings.LastIndex(r.Pattern, ofSources); at >= 0 && len(r.Addresses) > 0 {
		return r.Pattern[:at+len(ofSources)]
	}
	return r.Pattern
}

// merged adds to a rule what a node has found.
func merged(of *api.FleetFloodRule, r api.FloodRule, node string) {
	of.Nodes = slices.Compact(append(of.Nodes, node))
	of.Name, of.Proposed = cmp.Or(of.Name, r.Name), of.Proposed && r.Proposed
	of.Rate, of.Sources = of.Rate+r.Rate, of.Sources+r.Sources
	of.Share, of.Covered = max(of.Share, r.Share), max(of.Covered, r.Covered)
	of.Packets, of.Conversations = worse(of.Packets, r.Packets, node), worse(of.Conversations, r.Conversations, node)
	of.Addresses = append(of.Addresses, r.Addresses...)
	slices.Sort(of.Addresses)
	of.Addresses = slices.Compact(of.Addresses)
}

// checkFloods returns what cannot be true of a node's answer.
func checkFloods(a *api.NodeFloods) error {
	if a.Floods == nil {
		return errors.New("it says nothing of floods")
	}
	if n := len(a.Patterns); n > wire.MaxPatterns {
		return fmt.Errorf("%d patterns, want at most %d", n, wire.MaxPatterns)
	}
	now := a.Floods.Now
	a.Floods.Past = []api.Flood{}
	sum := a.Floods.Rate + a.Floods.Usual
	if now != nil {
		sum += now.Rate
		if now.Rules == nil {
			now.Rules = []api.FloodRule{}
		}
		if n := len(now.Rules); n > flood.MaxRules {
			return fmt.Errorf("%d rules, want at most %d", n, flood.MaxRules)
		}
		for _, r := range now.Rules {
			if sum += r.Rate; r.Rate < 0 || len(r.Pattern) > api.MaxPattern {
				return fmt.Errorf("a rule of %d bytes, for %g packets a second", len(r.Pattern), r.Rate)
			}
			if len(r.Addresses) > 0 {
				continue
			}
			if _, err := flood.ParseRule(r.Pattern); err != nil {
				return err
			}
		}
	}
	if !(sum >= 0 && sum < maxRate) {
		return fmt.Errorf("%g packets a second", sum)
	}
	return nil
}
