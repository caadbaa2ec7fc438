package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"weir/control/fleet/wire"
)

// DefaultHubSocket is the default path of the socket of a hub.
const DefaultHubSocket = "/run/weir-hub/hub.sock"

const fleetPath = "/v1/fleet"

// Hub is what the server of a hub serves. It is safe for concurrent use.
type Hub interface {
	Asker
	Consoles
	audited
	// Fleet returns the state of the hub and of what its nodes report.
	Fleet(context.Context) (HubStatus, error)
	// Change adds or removes entries on all nodes, as that of a [Daemon].
	Change(context.Context, Change) (FleetChanged, error)
	// Refresh reads the sources of a list now, "" for those of all lists. With accept,
	// contents that have shrunk or become empty are accepted, this once.
	Refresh(ctx context.Context, list string, accept bool) ([]FetchOutcome, error)
	// Roll changes the course of rollouts.
	Roll(context.Context, FleetRoll) (FleetRolled, error)
	// Reload reads hub.yaml again. With an error, nothing has changed.
	Reload(context.Context) (FleetReloaded, error)
}

// FleetReloaded lists what has changed in the configuration: POST /v1/reload of a hub.
type FleetReloaded struct {
	Changes   []string `json:"changes"`   // a line for each
	Published bool     `json:"published"` // false: it will be, when the broker can be reached
}

// FleetReload is an attempt to reload the configuration.
type FleetReload struct {
	Time  time.Time `json:"time"`
	Error string    `json:"error,omitempty"` // why the configuration before stays
}

// FleetChanged is the result of a change: POST or DELETE /v1/entries of a hub.
type FleetChanged struct {
	Changed
	Version   wire.Place `json:"version"`   // of the list, which has the change
	Published bool       `json:"published"` // false: it will be, when the broker can be reached
	Warnings  []string   `json:"warnings,omitempty"`
}

// HubStatus is the state of a fleet: GET /v1/fleet.
type HubStatus struct {
	Time      time.Time   `json:"time"`
	Version   string      `json:"version"`           // of the hub
	Connected bool        `json:"connected"`         // to the broker
	Catalog   *time.Time  `json:"catalog,omitempty"` // the last one that was published; nil: none yet
	Problems  []string    `json:"problems"`          // a line each
	Lists     []FleetList `json:"lists"`
	Nodes     []FleetNode `json:"nodes"`
	Ignored   uint64      `json:"ignored_reports"` // of nodes: too many, or none that the hub understands

	Reload *FleetReload `json:"reload,omitempty"` // the last one; nil: none since the start
}

// FleetList is a list of a fleet.
type FleetList struct {
	Name      string       `json:"name"`
	Action    string       `json:"action"`
	Direction string       `json:"direction"`
	Priority  int          `json:"priority"`
	Version   wire.Place   `json:"version"`
	Published wire.Place   `json:"published"`
	Entries   int          `json:"entries"`
	Manual    int          `json:"manual_entries"`
	Feeds     []FeedSource `json:"feeds"`

	// Of the nodes that are enrolled: how many are to have which versions, and how many have
	// them that have reported; at most MaxShares, those of most nodes.
	Wanted []FleetShare `json:"wanted"`
	Have   []FleetShare `json:"have"`

	// Rollout is the last one, nil if changes reach all nodes at once, or there was none.
	Rollout *FleetRollout `json:"rollout,omitempty"`
}

// MaxShares bounds the versions of a list that a status counts.
const MaxShares = 8

// FleetShare is how many nodes have a version.
type FleetShare struct {
	Version wire.Place `json:"version"` // 0.0: nothing, or with those that are wanted, what they have
	Nodes   int        `json:"nodes"`
}

// The states of a node.
const (
	NodeUnseen  = "unseen"  // it was enrolled, and has not reported since the hub started
	NodeCurrent = "current" // it has the versions that it is to have
	NodeBehind  = "behind"
	NodeStale   = "stale" // by its own report, it does not hear the hub
	NodeSilent  = "silent"
	NodeRevoked = "revoked"
)

// FleetNode is a node of a fleet.
type FleetNode struct {
	Name    string       `json:"node"`
	Labels  []string     `json:"labels"`
	State   string       `json:"state"`
	Seen    *time.Time   `json:"seen,omitempty"`
	Report  *wire.Status `json:"report,omitempty"` // the last one
	Ignored uint64       `json:"ignored_reports"`  // too many, or none that the hub understands

	// Violations counts what the node tried at the server inside the hub that it may not do.
	Violations uint64 `json:"violations"`
}

// HubHandler returns a handler of the API of a hub.
func HubHandler(h Hub) http.Handler { return handler("hub", hubRoutes(h)) }

func hubRoutes(h Hub) []route {
	change := func(ctx context.Context, asked Change) (any, error) { return h.Change(ctx, asked) }
	status := route{http.MethodGet, fleetPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
		f, err := h.Fleet(q.Context())
		f.Problems, f.Lists, f.Nodes = list(f.Problems), list(f.Lists), list(f.Nodes)
		for i := range f.Lists {
			f.Lists[i].Wanted, f.Lists[i].Have = list(f.Lists[i].Wanted), list(f.Lists[i].Have)
		}
		return f, err
	}}
	reload := route{http.MethodPost, reloadPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
		r, err := h.Reload(q.Context())
		r.Changes = list(r.Changes)
		return r, err
	}}
	return slices.Concat(changeRoutes(change), refreshRoutes(h.Refresh), askRoutes(h), consoleRoutes(h), []route{rollRoute(h), auditRoute(h), reload, status})
}

// Fleet asks a hub for the state of its fleet.
func (c *Client) Fleet(ctx context.Context) (*HubStatus, error) {
	return get[HubStatus](ctx, c, fleetPath)
}

// ReloadFleet makes a hub read its configuration again.
func (c *Client) ReloadFleet(ctx context.Context) (*FleetReloaded, error) {
	return ask[FleetReloaded](ctx, c, http.MethodPost, reloadPath, nil)
}

// ChangeFleet is Change for a hub.
func (c *Client) ChangeFleet(ctx context.Context, change Change) (*FleetChanged, error) {
	return askChange[FleetChanged](ctx, c, change)
}
