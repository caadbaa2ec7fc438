package audit

import (
	"context"
	"os"
	"slices"
	"time"

	"weir/control/api"
)

// Audit implements [server.Auditor].
func (a *Log) Audit(limit int) []api.AuditRecord { return a.Last(limit) }

// AttemptBy records a change that a context's caller has made, or with an error one that was not made.
func (a *Log) AttemptBy(ctx context.Context, r Record, err error) {
	ByCaller(ctx, &r)
	a.Attempt(r, err)
}

// RefusedChange records a change of a list's entries that was not made.
func (a *Log) RefusedChange(ctx context.Context, list string, c api.Change, err error) {
	a.Refused(Changed(ctx, c, api.Changed{List: list}, c.Entries[:min(len(c.Entries), MaxFirst)]), err)
}

// Reloaded records a change of the configuration, or with an error one that was refused.
func (a *Log) Reloaded(ctx context.Context, summary []string, err error) {
	a.AttemptBy(ctx, Record{Change: Reload, Entries: len(summary), Changed: len(summary), First: summary, Source: "signal"}, err)
}

// What a stop says of the program.
const (
	staysAttached = "the program stays attached"
	isDetached    = "the program is detached"
)

// Started records the start of a daemon that filters interfaces, and whether the last one was killed. Programs of
// before have filtered the inherited ones until now. It returns those that the last daemon has left filtered, since
// the boot, and that are not among them: something else has removed its programs.
func (a *Log) Started(interfaces, inherited []string, booted time.Time) (gone []string) {
	r := Record{Change: Start, First: interfaces, Entries: len(interfaces), Source: "process"}
	killed := true
	for _, last := range a.Last(api.MaxAudit) {
		if last.Change == Detach || last.Change == Stop && last.Reason != staysAttached {
			break
		}
		if last.Change == Stop {
			killed = false
		}
		if last.Change != Start {
			continue
		}
		if killed {
			r.Reason = "no stop is recorded after the last start: a crash, or a kill"
		}
		gone = slices.DeleteFunc(slices.Clone(last.First), func(name string) bool {
			return last.Time.Before(booted) || !slices.Contains(interfaces, name) || slices.Contains(inherited, name)
		})
		break
	}
	By(&r, uint32(os.Getuid()), "")
	ByProcess(&r, api.OwnProcess())
	r.Source = "process"
	a.Record(r)
	return gone
}

// Stopped records the end of a daemon that filters interfaces, whose program may stay attached.
func (a *Log) Stopped(interfaces []string, keep bool) {
	r := Record{Change: Stop, Source: "signal", Reason: isDetached}
	switch {
	case len(interfaces) == 0:
		r.Source, r.Reason = "process", "nothing is left to filter"
	case keep:
		r.Reason = staysAttached
	}
	a.Record(r)
}
