package daemon

import (
	"context"
	"os"

	"weir/control/api"
	"weir/control/api/process"
	"weir/control/audit"
	"weir/control/journal"
)

// Audit implements [server.Daemon].
func (d *Daemon) Audit(limit int) []api.AuditRecord { return d.audit.Last(limit) }

// firstKeys returns the first entries of a batch, as in a list.
func firstKeys(batch []journal.Change) (first []string) {
	for _, c := range batch[:min(len(batch), audit.MaxFirst)] {
		first = append(first, c.Key.String())
	}
	return first
}

// auditMulticast records a change of multicast groups.
func (d *Daemon) auditMulticast(ctx context.Context, c api.MulticastChange, changed api.MulticastChanged, err error) {
	r := audit.Record{
		Change: audit.MulticastAdd, Interface: c.Interface, Entries: len(c.Groups),
		Changed: changed.Added + changed.Removed, First: c.Groups,
	}
	if c.Remove {
		r.Change = audit.MulticastRemove
	}
	audit.By(&r, c.UID, c.Client)
	d.audited(ctx, r, err)
}

// audited records a change that a context's caller has made, or with an error one that was
// not made.
func (d *Daemon) audited(ctx context.Context, r audit.Record, err error) {
	audit.ByCaller(ctx, &r)
	if err != nil {
		d.audit.Refused(r, err)
		return
	}
	d.audit.Record(r)
}

// auditReload records a change of the configuration, or with an error one that was refused.
func (d *Daemon) auditReload(ctx context.Context, summary []string, err error) {
	d.audited(ctx, audit.Record{Change: audit.Reload, Entries: len(summary), Changed: len(summary), First: summary, Source: "signal"}, err)
}

// auditStart records the start of the daemon, and whether the last one was killed.
func (d *Daemon) auditStart() {
	r := audit.Record{Change: audit.Start, First: d.active.attach.Names(), Entries: len(d.active.attach.Names()), Source: "process"}
	for _, last := range d.audit.Last(api.MaxAudit) {
		if last.Change == audit.Stop {
			break
		}
		if last.Change == audit.Start {
			r.Reason = "no stop is recorded after the last start: a crash, or a kill"
			break
		}
	}
	audit.By(&r, uint32(os.Getuid()), "")
	audit.ByProcess(&r, process.Own())
	r.Source = "process"
	d.audit.Record(r)
}

// auditStop records the end of the daemon.
func (d *Daemon) auditStop(keep bool) {
	r := audit.Record{Change: audit.Stop, Source: "signal", Reason: "the program is detached"}
	switch {
	case len(d.active.attach.Names()) == 0:
		r.Source, r.Reason = "process", "nothing is left to filter"
	case keep:
		r.Reason = "the program stays attached"
	}
	d.audit.Record(r)
}
