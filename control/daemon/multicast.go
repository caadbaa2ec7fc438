package daemon

import (
	"context"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/stages"
)

// groups are the multicast groups that interfaces want, which Run's goroutine owns. Its methods
// are safe for concurrent use.
type groups struct {
	loop   *loop
	active *active
	stages *stages.Running
	audit  auditor
}

// Multicast implements [server.Multicaster].
func (s *groups) Multicast() (m api.Multicast, err error) {
	bad := s.loop.Do(context.Background(), func() (err error) { m, err = s.stages.Multicast(s.active.engine); return err })
	return m, bad
}

// ChangeMulticast implements [server.Multicaster].
func (s *groups) ChangeMulticast(ctx context.Context, c api.MulticastChange) (changed api.MulticastChanged, err error) {
	changed.Interface = c.Interface
	err = s.loop.doAlone(ctx, func() error { return s.stages.ChangeMulticast(s.active.engine, c, &changed) })
	r := audit.Record{
		Change: audit.MulticastAdd, Interface: c.Interface, Entries: len(c.Groups),
		Changed: changed.Added + changed.Removed, First: c.Groups,
	}
	if c.Remove {
		r.Change = audit.MulticastRemove
	}
	audit.By(&r, c.UID, c.Client)
	s.audit.attempt(ctx, r, err)
	return changed, err
}
