package daemon

import (
	"context"
	"os"

	"weir/control/api"
	"weir/control/api/process"
	"weir/control/audit"
	"weir/control/journal"
)

// auditor records who has changed what. It is safe for concurrent use.
type auditor struct{ *audit.Log }

// Audit implements [server.Auditor].
func (a auditor) Audit(limit int) []api.AuditRecord { return a.Last(limit) }

// refusedChange records a change of entries that was not made.
func (a auditor) refusedChange(ctx context.Context, c api.Change, err error) {
	a.Refused(audit.Changed(ctx, c, api.Changed{List: nameIn(c)}, c.Entries[:min(len(c.Entries), audit.MaxFirst)]), err)
}

// firstKeys returns the first entries of a batch, as in a list.
func firstKeys(batch []journal.Change) (first []string) {
	for _, c := range batch[:min(len(batch), audit.MaxFirst)] {
		first = append(first, c.Key.String())
	}
	return first
}

// attempt records a change that a context's caller has made, or with an error one that was
// not made.
func (a auditor) attempt(ctx context.Context, r audit.Record, err error) {
	audit.ByCaller(ctx, &r)
	a.Attempt(r, err)
}

// reload records a change of the configuration, or with an error one that was refused.
func (a auditor) reload(ctx context.Context, summary []string, err error) {
	a.attempt(ctx, audit.Record{Change: audit.Reload, Entries: len(summary), Changed: len(summary), First: summary, Source: "signal"}, err)
}

// start records the start of a daemon that filters interfaces, and whether the last one was killed.
func (a auditor) start(interfaces []string) {
	r := audit.Record{Change: audit.Start, First: interfaces, Entries: len(interfaces), Source: "process"}
	for _, last := range a.Last(api.MaxAudit) {
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
	a.Record(r)
}

// stop records the end of a daemon that filters interfaces.
func (a auditor) stop(interfaces []string, keep bool) {
	r := audit.Record{Change: audit.Stop, Source: "signal", Reason: "the program is detached"}
	switch {
	case len(interfaces) == 0:
		r.Source, r.Reason = "process", "nothing is left to filter"
	case keep:
		r.Reason = "the program stays attached"
	}
	a.Record(r)
}
