package node

import (
	"context"
	"sync"
	"time"
)

// pace keeps a node from fetching faster than a rate, all lists together.
type pace struct {
	mu   sync.Mutex
	free time.Time // when what was fetched may have been
}

// wait waits for the time that some bytes take at a rate a second.
func (p *pace) wait(ctx context.Context, bytes int, rate int64) error {
	p.mu.Lock()
	if now := time.Now(); p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(float64(bytes) / float64(rate) * float64(time.Second)))
	left := time.Until(p.free)
	p.mu.Unlock()
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
	rate := n.catalog.MaxRate(n.groups)
	if own := n.c.MaxRate; own > 0 && (rate == 0 || own < rate) {
		rate = own
	}
	return rate
}

// fetch is get at the node's rate.
func (n *Node) fetch(ctx context.Context, what directGet) (message, error) {
	m, err := n.get(ctx, what)
	if rate := n.maxRate(); err == nil && rate > 0 {
		err = n.link.wait(ctx, len(m.data), rate)
	}
	return m, err
}
