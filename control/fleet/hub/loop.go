package hub

import (
	"context"
	"errors"
)

// ErrStopped means that the hub has been stopped.
var ErrStopped = errors.New("the hub has been stopped")

// loop takes functions to the goroutine of [Hub.Run], which owns most of the hub's state. It is
// safe for concurrent use.
type loop struct {
	ctx      context.Context // of [Hub.Run], for that goroutine
	requests chan func()
	ended    chan struct{} // closed when Run ends
}

func newLoop() *loop { return &loop{requests: make(chan func()), ended: make(chan struct{})} }

// Do calls fn in Run's goroutine, and waits for it.
func (l *loop) Do(ctx context.Context, fn func() error) (err error) {
	done := make(chan struct{})
	select {
	case l.requests <- func() { err = fn(); close(done) }:
		<-done
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ended:
		return ErrStopped
	}
}
