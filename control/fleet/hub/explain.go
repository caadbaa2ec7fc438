package hub

import (
	"context"
	"strings"

	"weir/control/api"
	"weir/control/config"
	"weir/control/explain"
	"weir/control/fleet/wire"
	"weir/control/list/listfile"
	"weir/filter/key"
)

// Explain implements [server.Asker].
func (h *Hub) Explain(ctx context.Context, nodes []string, packets string) (e api.FleetExplanation, err error) {
	e.Question = packets
	if _, err := explain.ParseQuestion(packets); err != nil {
		return e, &api.BadRequest{Err: err}
	}
	if nodes, err = h.asker.nodes(nodes); err != nil {
		return e, err
	}
	answers, err := ask[api.Explanation](ctx, h.asker, nodes, wire.AskExplain, wire.ExplainQuestion{Packets: packets}, patience, (*api.Explanation).Check)
	if err != nil {
		return e, err
	}
	here := make(entries)
	for _, a := range answers {
		e.Nodes = append(e.Nodes, api.NodeExplanation{Node: a.node, Problem: a.problem(), Explanation: a.value})
		if a.value == nil {
			continue
		}
		for i := range a.value.Answers {
			for _, m := range a.value.Answers[i].Entries() {
				if name, ok := strings.CutPrefix(m.List, config.FleetPrefix); ok && m.Source == wire.Source {
					here.add(name, m)
				}
			}
		}
	}
	here.find(ctx, h.origins)
	return e, nil
}

// entries are matches of which the hub knows more than nodes, by list and entry.
type entries map[string]map[string][]*api.Match

func (e entries) add(list string, m *api.Match) {
	if e[list] == nil {
		e[list] = make(map[string][]*api.Match)
	}
	if same := e[list][m.Entry]; same != nil || len(e[list]) < wire.MaxOrigins {
		e[list][m.Entry] = append(same, m)
	}
}

// find adds to the matches where they come from, as far as that is known.
func (e entries) find(ctx context.Context, find finder) {
	for name, matches := range e {
		var keys []key.Key
		var found [][]*api.Match
		for text, same := range matches {
			parsed, err := listfile.ParseEntry(text)
			if err != nil || parsed.Len() != 1 {
				continue // a node may say anything
			}
			for k := range parsed.Set().All() {
				keys, found = append(keys, k), append(found, same)
			}
		}
		origins, err := find(ctx, name, keys)
		if err != nil {
			continue // the node has a list that the hub does not
		}
		for i, o := range origins {
			for _, m := range found[i] {
				m.Line, m.Added, m.Reason, m.Origin = o.Line, o.Added, o.Reason, o.By
				if o.Source != "" {
					m.Source = o.Source
				}
			}
		}
	}
}
