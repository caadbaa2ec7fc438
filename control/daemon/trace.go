package daemon

import (
	"context"

	"weir/control/api"
	"weir/control/stage/digest"
)

// Trace implements [server.Recorder].
func (x *explainer) Trace(ctx context.Context, q api.TraceQuestion) (*api.Traced, error) {
	var r *digest.Recorder
	if err := x.loop.doAlone(ctx, func() error {
		if r = x.observers.recorder; r != nil {
			r.Look(x.active.engine)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if r == nil {
		return nil, api.ErrNoDigests
	}
	return r.Answer(ctx, q)
}
