package node

import (
	"context"
	"sync"
	"time"

	"weir/control/fleet/wire"
)

// pace keeps a node from fetching faster than a rate, all lists together. Short messages do
// not wait for long ones, which wait for all: a small list does not wait for a large one.
type pace struct {
	mu    sync.Mutex
	free  time.Time // when what was fetched may have been
	short time.Time // when the short messages may have been
}

// shortMessage is the length of a message, in bytes, that does not wait for longer ones.
const shortMessage = 64 << 10

// wait waits for the time that some bytes take at a rate a second.
func (p *pace) wait(ctx context.Context, bytes int, rate int64) error {
	takes := time.Duration(float64(bytes) / float64(rate) * float64(time.Second))
	now := time.Now()
	after := func(t *time.Time) time.Time {
		if t.Before(now) {
			*t = now
		}
		*t = t.Add(takes)
		return *t
	}
	p.mu.Lock()
	until := after(&p.free)
	if bytes <= shortMessage {
		until = after(&p.short)
	}
	p.mu.Unlock()
	left := until.Sub(now)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(left):
		return nil
	}
}

// maxRate returns the bytes a second with which the node fetches; 0: no bound.
func (n *Node) maxRate() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	rate := n.catalog.MaxRate(n.current().Groups())
	if own := n.c.MaxRate; own > 0 && (rate == 0 || own < rate) {
		rate = own
	}
	return rate
}

// fetch is get at the node's rate.
func (n *Node) fetch(ctx context.Context, what wire.Fetch) (message, error) {
	m, err := n.get(ctx, what)
	if rate := n.maxRate(); err == nil && rate > 0 {
		err = n.link.wait(ctx, len(m.data), rate)
	}
	return m, err
}
