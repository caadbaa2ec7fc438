package hub

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"weir/control/api"
	"weir/control/config"
	"weir/control/fleet/authority"
	"weir/control/fleet/wire"
)

// Plan implements [server.Hub]. It changes nothing, and reads no sources.
func (h *Hub) Plan(ctx context.Context, q api.FleetPlanQuestion) (p api.FleetPlan, err error) {
	var next *config.Hub
	switch {
	case len(q.Text) > api.MaxPlan:
		return p, &api.BadRequest{Err: fmt.Errorf("a configuration of %d bytes, want at most %d", len(q.Text), api.MaxPlan)}
	case q.Text == "":
		next, err = h.o.Reader.Read()
	default:
		next, err = config.ParseHub(q.File, []byte(q.Text))
	}
	if err == nil && h.o.Process != nil {
		err = h.o.Process.Check(next)
	}
	if err != nil {
		return p, &api.BadRequest{Err: err}
	}
	var now *config.Hub
	var members map[string]authority.Member
	entries := make(map[string]int)
	err = h.Do(ctx, func() (err error) {
		now = h.conf()
		for _, l := range h.lists.all {
			entries[l.Name] = l.history.Contents().Len()
		}
		members, err = h.members.read()
		return err
	})
	if err != nil {
		return p, err
	}
	p.Changes = config.Diff(now, next)
	p.Restart = config.Fixed(p.Changes)
	p.Warnings = EmptyWaves(next, members)
	before, after := now.AllLists(), next.AllLists()
	named := func(all []config.List, name string) *config.List {
		if i := slices.IndexFunc(all, func(l config.List) bool { return l.Name == name }); i >= 0 {
			return &all[i]
		}
		return nil
	}
	for _, l := range slices.Concat(after, before) {
		was, is := named(before, l.Name), named(after, l.Name)
		if slices.ContainsFunc(p.Lists, func(have api.PlannedList) bool { return have.Name == l.Name }) ||
			was != nil && is != nil && reflect.DeepEqual(was, is) && reflect.DeepEqual(now.RolloutOf(l), next.RolloutOf(l)) {
			continue
		}
		planned := api.PlannedList{Name: l.Name, Entries: entries[l.Name]}
		var had, has []string
		planned.Before, had = plannedNodes(now, was, members)
		planned.After, has = plannedNodes(next, is, members)
		planned.Gain = slices.DeleteFunc(slices.Clone(has), func(n string) bool { return slices.Contains(had, n) })
		planned.Lose = slices.DeleteFunc(had, func(n string) bool { return slices.Contains(has, n) })
		p.Lists = append(p.Lists, planned)
	}
	return p, nil
}

// plannedNodes returns the nodes that have a list by a configuration, in their order; nil: without the list.
func plannedNodes(c *config.Hub, l *config.List, members map[string]authority.Member) (n *api.PlannedNodes, names []string) {
	if l == nil {
		return nil, nil
	}
	for name, m := range members {
		if m.Revoked.IsZero() && wire.Names(l.Labels, m.Labels) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	n = &api.PlannedNodes{Nodes: len(names)}
	if r := c.RolloutOf(*l); r != nil {
		for _, w := range r.Waves {
			wave := api.PlannedWave{Labels: w.Labels, Mode: string(w.Mode)}
			for _, name := range names {
				if wire.Names(w.Labels, members[name].Labels) {
					wave.Nodes++
				}
			}
			n.Waves = append(n.Waves, wave)
		}
	}
	return n, names
}

// EmptyWaves returns a line for each wave, and for each list with labels, that has no enrolled node.
func EmptyWaves(h *config.Hub, members map[string]authority.Member) (all []string) {
	labels := make(map[string]bool)
	for _, m := range members {
		for _, l := range m.Labels {
			labels[l] = labels[l] || m.Revoked.IsZero()
		}
	}
	for _, l := range h.Lists {
		if len(l.Labels) > 0 && !slices.ContainsFunc(l.Labels, func(label string) bool { return labels[label] }) {
			all = append(all, fmt.Sprintf("list %s: no node with label %s is enrolled: none has the list", l.Name, strings.Join(l.Labels, " or ")))
		}
		r := h.RolloutOf(l)
		if r == nil {
			continue
		}
		for i, w := range r.Waves {
			if len(w.Labels) > 0 && !slices.ContainsFunc(w.Labels, func(label string) bool { return labels[label] }) {
				all = append(all, fmt.Sprintf("list %s: no node with label %s is enrolled: its changes do not go beyond wave %d", l.Name, strings.Join(w.Labels, " or "), i+1))
			}
		}
	}
	return all
}
