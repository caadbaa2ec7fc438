package daemon

import (
	"weir/control/api/server"
	"weir/control/console"
	"weir/control/fleet/node"
	"weir/control/metrics"
	"weir/control/serve"
)

// API answers requests of clients, the console, scrapes of metrics and the hub of a fleet, each by
// the part of the daemon that knows. It is safe for concurrent use.
type API struct {
	*Daemon
	*loop
	auditor
	*notifier
	*readings
	*changer
	*trials
	*override
	*groups
	*trafficHistory
	*dropped
	*collateral
	*rehearsals

	early *serve.Early // at the API's socket; nil: it could not be opened yet
	consoles
	entries
	refresher
	explainer
	appraiser
}

var (
	_ server.Daemon  = (*API)(nil)
	_ console.Daemon = (*API)(nil)
	_ node.Daemon    = (*API)(nil)
	_ metrics.Source = (*API)(nil)
)

// API returns what answers for the daemon.
func (d *Daemon) API() *API { return d.api }
