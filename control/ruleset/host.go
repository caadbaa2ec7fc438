package ruleset

import (
	"context"

	"weir/control/engine"
)

// Active is the rule set that filters, with the engine that was built from it.
type Active struct {
	*Ruleset
	Engine *engine.Generation
}

// Host lends the rule set that filters. It is safe for concurrent use.
type Host interface {
	// Lend calls fn in a turn of the daemon's loop, and returns its error. It fails when ctx is done, or
	// the loop has ended, before fn is called. After the turn, fn's caller may read the sets that it
	// has found, which are immutable, or a copy ([Ruleset.Copy]).
	Lend(ctx context.Context, fn func(Active) error) error
}
