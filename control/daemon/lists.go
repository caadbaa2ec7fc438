package daemon

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"weir/control/api"
	"weir/control/observe"
	"weir/control/observe/traffic"
)

// listsWait is how long a question for the lists waits for Run's goroutine. Those of
// the last second answer it otherwise, also while the daemon stops: a list that keeps it busy is
// among them.
const listsWait = 250 * time.Millisecond

// lister describes the lists. It is safe for concurrent use, but for what says otherwise.
type lister struct {
	loop       *loop
	active     *active
	meter      *traffic.Meter
	collateral *observe.Conversations
	last       atomic.Pointer[api.Lists] // as last described
}

// Lists implements [server.Snapshots].
func (n *lister) Lists() (all api.Lists) {
	ctx, cancel := context.WithTimeout(context.Background(), listsWait)
	defer cancel()
	if err := n.loop.Do(ctx, func() error { all = n.describe(); return nil }); err != nil {
		if last := n.last.Load(); last != nil {
			all = api.Lists{Lists: slices.Clone(last.Lists), At: last.At}
		}
	}
	for i := range all.Lists {
		all.Lists[i].Trial = trialShown(all.Lists[i].Trial)
	}
	return all
}

// describe describes the lists as they are. It is for Run's goroutine.
func (n *lister) describe() api.Lists {
	return api.Lists{Lists: n.active.prepared.Describe(n.meter.Hits(), n.collateral.Last()), At: time.Now()}
}
