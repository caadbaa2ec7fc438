package daemon

import (
	"context"
	"slices"
	"time"

	"weir/control/api"
	"weir/control/api/server"
	"weir/control/audit"
	"weir/control/console"
	"weir/control/fleet/node"
	"weir/control/lists"
	"weir/control/metrics"
	"weir/control/observe"
	"weir/control/ruleset"
	"weir/control/serve"
)

// API answers requests of clients, the console, scrapes of metrics and the hub of a fleet, each by
// the part of the daemon that knows. The methods of [server.Daemon], [console.Daemon], [node.Daemon]
// and [metrics.Source] are safe for concurrent use.
type API struct {
	reconfigured
	*loop
	records
	*notices
	*readings
	*changer
	*trials
	*override
	*policing
	*observe.TrafficHistory
	*observe.DropRecorder
	*observe.Conversations
	*rehearsals

	early *serve.Early // at the API's socket; nil: it could not be opened yet
	consoles
	stageRoutes
	*ruleset.Pages
	*lists.Reader
	*observe.Explainer
	*observe.Appraiser
}

var (
	_ server.Daemon  = (*API)(nil)
	_ console.Daemon = (*API)(nil)
	_ node.Daemon    = (*API)(nil)
	_ metrics.Source = (*API)(nil)
)

// reconfigured is the daemon, as commands and the hub of a fleet change its configuration.
type reconfigured interface {
	server.Reloader
	TakeLists(context.Context) error
	TakeContents(context.Context, *node.List) error
}

// records is the audit log one level deeper than the parts that have methods of the same names.
type records struct{ *audit.Log }

// Entries implements [server.EntriesReader].
func (a *API) Entries(ctx context.Context, asked api.EntriesQuestion) (api.Entries, error) {
	page, err := a.Pages.Entries(ctx, asked)
	if err != nil || asked.List != "" || asked.After != "" {
		return page, err
	}
	until := time.Now().Add(asked.Expiring)
	page.Limits = slices.DeleteFunc(a.Status().Policed, func(o api.PoliceOverride) bool {
		return o.Interface != "" || asked.Expiring > 0 && (o.Until == nil || o.Until.After(until))
	})
	return page, nil
}

// API returns the methods that clients of the daemon call.
func (d *Daemon) API() *API { return d.api }
