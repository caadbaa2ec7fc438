package daemon

import (
	"context"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/engine"
)

// stageRoutes are the routes of stages.
type stageRoutes []api.Route

// Routes implements [server.Router].
func (r stageRoutes) Routes() []api.Route { return r }

// host is the daemon, as the routes of stages need it. It implements [multicast.Host].
type host struct {
	loop   *loop
	active *active
	audit  *audit.Log
}

// Do implements [multicast.Host].
func (h host) Do(ctx context.Context, fn func(*engine.Generation) error) error {
	return h.loop.Do(ctx, func() error { return fn(h.active.engine) })
}

// DoAlone implements [multicast.Host].
func (h host) DoAlone(ctx context.Context, fn func(*engine.Generation) error) error {
	return h.loop.doAlone(ctx, func() error { return fn(h.active.engine) })
}

// Attempt implements [multicast.Host].
func (h host) Attempt(ctx context.Context, r api.AuditRecord, err error) {
	h.audit.AttemptBy(ctx, r, err)
}
