package hub

import (
	"context"
	"errors"
	"fmt"

	"weir/control/api"
	"weir/control/fleet/wire"
	"weir/filter/invariant"
)

// Trace implements [server.Asker]. Nodes get only the start of each packet, without
// what forwarding changes: none needs more.
func (h *Hub) Trace(ctx context.Context, nodes []string, asked api.TraceQuestion) (t api.FleetTraced, err error) {
	if nodes, err = h.asker.nodes(nodes); err != nil {
		return t, err
	}
	q := api.TraceQuestion{Packets: make([]api.TraceAbout, len(asked.Packets))}
	for i, p := range asked.Packets {
		if p.Data, err = invariant.AppendStart(nil, p.Data); err != nil {
			return t, &api.BadRequest{Err: fmt.Errorf("packet %d: %w", i+1, err)}
		}
		q.Packets[i] = p
	}
	answers, err := ask(ctx, h.asker, nodes, wire.AskTrace, q, patienceToSearch, func(t *api.Traced) error {
		for _, i := range t.Interfaces {
			if len(i.Packets) != len(q.Packets) {
				return errors.New("it is of other packets")
			}
			for _, p := range i.Packets {
				if !(p.Chance >= 0 && p.Chance <= 1) {
					return fmt.Errorf("a probability of %g", p.Chance)
				}
			}
		}
		return nil
	})
	for _, a := range answers {
		t.Nodes = append(t.Nodes, api.NodeTraced{Node: a.node, Problem: a.problem(), Traced: a.value})
	}
	return t, err
}
