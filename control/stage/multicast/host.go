package multicast

import (
	"context"

	"weir/control/api"
	"weir/control/engine"
)

// Host is the daemon, as the routes need it. It is safe for concurrent use.
type Host interface {
	// Do calls fn in a turn of the goroutine that owns the groups, with the generation that
	// filters then.
	Do(ctx context.Context, fn func(*engine.Generation) error) error
	// DoAlone is Do for what changes a generation: the next one is not in the making.
	DoAlone(ctx context.Context, fn func(*engine.Generation) error) error
	// Attempt records a change that the context's caller has made, or with an error one that was
	// not made.
	Attempt(ctx context.Context, r api.AuditRecord, err error)
}
