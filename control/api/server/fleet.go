package server

import (
	"context"
	"net/http"
	"slices"

	"weir/control/api"
)

// Hub answers the requests to a hub. It is safe for concurrent use.
type Hub interface {
	Asker
	Consoles
	Auditor
	Refresher
	Versioner
	EntriesReader
	// Fleet returns the state of the hub, and the reports of its nodes.
	Fleet(context.Context) (api.HubStatus, error)
	// Change adds or removes entries on all nodes, as [Changer] does on one.
	Change(context.Context, api.Change) (api.FleetChanged, error)
	// Flush removes all manual entries of a list on all nodes.
	Flush(ctx context.Context, list string, c api.FlushChange) (api.FleetChanged, error)
	// Roll changes the course of rollouts.
	Roll(context.Context, api.FleetRoll) (api.FleetRolled, error)
	// Enforce ends the trial of a list on all nodes, or begins one.
	Enforce(ctx context.Context, list string, c api.EnforceChange) (api.FleetEnforced, error)
	// ChangeFloods has nodes drop what patterns match, or ends that.
	ChangeFloods(context.Context, api.FleetFloodsChange) (api.FleetFloodsChanged, error)
	// TakeOver has the hub rule the nodes, and not another one with the same keys.
	TakeOver(context.Context) (api.FleetTakenOver, error)
	// Lost returns what is known to be lost of the hub's history.
	Lost(context.Context) (api.FleetLost, error)
	// Plan returns what a reload would change.
	Plan(context.Context, api.FleetPlanQuestion) (api.FleetPlan, error)
	// Reload reads hub.yaml again. With an error, nothing has changed.
	Reload(context.Context) (api.FleetReloaded, error)
}

// HubHandler returns a handler of the API of a hub.
func HubHandler(h Hub) http.Handler { return handler("hub", hubRoutes(h)) }

func hubRoutes(h Hub) []route {
	status := route{http.MethodGet, api.FleetPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
		f, err := h.Fleet(q.Context())
		f.Problems, f.Lists, f.Nodes = list(f.Problems), list(f.Lists), list(f.Nodes)
		for i := range f.Lists {
			f.Lists[i].Wanted, f.Lists[i].Have = list(f.Lists[i].Wanted), list(f.Lists[i].Have)
		}
		return f, err
	}}
	reload := route{http.MethodPost, api.ReloadPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
		r, err := h.Reload(q.Context())
		r.Changes = list(r.Changes)
		return r, err
	}}
	plan := route{http.MethodPost, api.PlanPath, func(w http.ResponseWriter, q *http.Request) (any, error) {
		var question api.FleetPlanQuestion
		if err := api.ReadBody(w, q, 2*api.MaxPlan, &question); err != nil { // escapes make it longer
			return nil, err
		}
		p, err := h.Plan(q.Context(), question)
		p.Changes, p.Restart, p.Lists, p.Warnings = list(p.Changes), list(p.Restart), list(p.Lists), list(p.Warnings)
		for i := range p.Lists {
			l := &p.Lists[i]
			l.Gain, l.Lose = list(l.Gain), list(l.Lose)
			for _, n := range []*api.PlannedNodes{l.Before, l.After} {
				if n != nil {
					n.Waves = list(n.Waves)
				}
			}
		}
		return p, err
	}}
	floods := route{http.MethodPost, api.FleetFloodsPath, func(w http.ResponseWriter, q *http.Request) (any, error) {
		var c api.FleetFloodsChange
		if err := api.ReadBody(w, q, 1<<20, &c); err != nil {
			return nil, err
		}
		if err := c.Check(); err != nil {
			return nil, err
		}
		done, err := h.ChangeFloods(q.Context(), c)
		done.Patterns = patternsOf(done.Patterns)
		return done, err
	}}
	takeOver := route{http.MethodPost, api.TakeOverPath, func(_ http.ResponseWriter, q *http.Request) (any, error) { return h.TakeOver(q.Context()) }}
	lost := route{http.MethodGet, api.LostPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
		l, err := h.Lost(q.Context())
		l.Lost = list(l.Lost)
		return l, err
	}}
	return slices.Concat(changeRoutes(h.Change), entriesRoutes(h, h.Flush), refreshRoutes(h.Refresh), versionRoutes(h), askRoutes(h), consoleRoutes(h), []route{rollRoute(h), enforceRoute(h.Enforce), auditRoute(h), plan, reload, floods, takeOver, lost, status})
}
