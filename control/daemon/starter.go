package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dustin/go-humanize"

	"weir/control/api"
	"weir/control/feed"
)

// starter answers while the daemon starts.
type starter struct {
	queued   *queuedChanges
	progress *feed.Progress
	fleet    *fleet
	version  string
	since    time.Time
}

// Starting implements [server.Starter].
func (s *starter) Starting() api.Starting {
	doing, awaited := "building and loading the filter", s.fleet.Awaited()
	switch source, read, total := s.progress.Get(); {
	case awaited != "":
		doing = awaited
	case source == "":
		doing = "reading what is saved"
	case total > 0 && read < total:
		doing = fmt.Sprintf("reading %s, %s of %s", source, humanize.Bytes(uint64(read)), humanize.Bytes(uint64(total)))
	}
	return api.Starting{PID: os.Getpid(), Version: s.version, Since: s.since, Doing: doing}
}

// Queue implements [server.Starter].
func (s *starter) Queue(ctx context.Context, c api.Change) (api.Changed, error) {
	done, err := s.queued.Queue(ctx, c)
	if bad := new(api.BadRequest); err != nil && !errors.As(err, &bad) {
		err = errors.Join(&api.StartingError{Starting: s.Starting()}, err)
	}
	return done, err
}
