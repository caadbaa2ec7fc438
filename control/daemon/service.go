package daemon

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"weir/control/serve"
)

// service notifies the service manager. It is safe for concurrent use.
type service struct {
	*serve.Manager
	state atomic.Pointer[string] // the daemon's summary of the last second; nil: it does not run yet
	log   *slog.Logger
}

// notified logs that the service manager could not be notified.
func (s *service) notified(err error) {
	if err != nil {
		s.log.Warn(err.Error())
	}
}

// feedWatchdog reports to the service manager that the daemon is alive, while Run
// takes turns, or makes progress within one: a reload of hundreds of interfaces
// takes seconds.
func (s *service) feedWatchdog(ctx context.Context, interval time.Duration, progress func() uint64) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for last := uint64(0); ; {
		now := progress()
		if state := s.state.Load(); state != nil && now != last {
			s.notified(s.Alive(*state))
		}
		last = now
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
