package feed

import (
	"context"
	"sync"
	"time"
)

// slots bounds how many goroutines wait for a disk at the same time. Each takes a thread,
// which stays, with some 100 KiB; Go ends a process that has 10,000.
type slots chan struct{}

var (
	reading = make(slots, 32) // of sources that are files or directories
	writing = make(slots, 32) // of saved contents
)

// slotTime is for how long a slot is lent at most: a file system that does not answer must
// not keep lists of others from being read.
const slotTime = 10 * time.Second

// take returns when a slot is free, or ctx is done. Release frees the slot.
func (s slots) take(ctx context.Context) (release func()) {
	select {
	case s <- struct{}{}:
	case <-ctx.Done():
		return func() {}
	}
	once := sync.OnceFunc(func() { <-s })
	late := time.AfterFunc(slotTime, once)
	return func() {
		late.Stop()
		once()
	}
}
