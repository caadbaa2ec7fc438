package daemon

import (
	"context"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/journal"
)

// Audit implements [api.Daemon].
func (d *Daemon) Audit(limit int) []api.AuditRecord { return d.audit.Last(limit) }

// firstKeys returns the first entries of a batch, as in a list.
func firstKeys(batch []journal.Change) (first []string) {
	for _, c := range batch[:min(len(batch), audit.MaxFirst)] {
		first = append(first, c.Key.String())
	}
	return first
}

// auditMulticast records a change of multicast groups.
func (d *Daemon) auditMulticast(c api.MulticastChange, changed api.MulticastChanged) {
	r := audit.Record{
		Change: audit.MulticastAdd, Interface: c.Interface, Entries: len(c.Groups),
		Changed: changed.Added + changed.Removed, First: c.Groups,
	}
	if c.Remove {
		r.Change = audit.MulticastRemove
	}
	audit.By(&r, c.UID, c.Client)
	d.audit.Record(r)
}

// auditReload records a change of the configuration.
func (d *Daemon) auditReload(ctx context.Context, summary []string) {
	r := audit.Record{Change: audit.Reload, Entries: len(summary), Changed: len(summary), First: summary, Source: "signal"}
	audit.ByCaller(ctx, &r)
	d.audit.Record(r)
}
