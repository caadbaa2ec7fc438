package daemon

import (
	"weir/control/api/server"
	"weir/control/console"
	"weir/control/fleet/node"
	"weir/control/metrics"
)

// API answers the API, the console, scrapes of metrics and the hub of a fleet: each question by
// the part of the daemon that knows. It is safe for concurrent use.
type API struct {
	*Daemon
	*loop
	*readings
	*lister
	*changer
	*entries
	auditor
	*consoles
	*notifier
	*trafficHistory
	*dropped
	*explainer
	*groups
	*override
	*trials
	*collateral
	*appraiser
	*rehearsals
}

var (
	_ server.Daemon  = (*API)(nil)
	_ console.Daemon = (*API)(nil)
	_ node.Daemon    = (*API)(nil)
	_ metrics.Source = (*API)(nil)
)

// API returns what answers for the daemon.
func (d *Daemon) API() *API {
	return &API{
		Daemon: d, loop: d.loop, readings: &d.readings, lister: &d.lists, changer: &d.changes, entries: &d.entries, auditor: d.audit, consoles: &d.console, notifier: d.notifier, trafficHistory: &d.observers.history, dropped: &d.observers.drops,
		explainer: &d.explainer, groups: &d.groups, override: &d.monitor, trials: &d.trials, collateral: &d.collateral, appraiser: &d.worth, rehearsals: &d.rehearsals,
	}
}
