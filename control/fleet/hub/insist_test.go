package hub

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// A lost answer costs a second, since commands wait for less than operationTimeout.
func TestInsist(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		lost int // answers
		err  error
		asks int
		took time.Duration
	}{
		{"answered", 0, nil, 1, 0},
		{"lost", 1, nil, 2, lostAnswer},
		{"gone", 9, context.DeadlineExceeded, 2, lostAnswer + operationTimeout},
		{"refused", 0, nats.ErrNoResponders, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, asks := time.Now(), 0
				got, err := insist(t.Context(), operationTimeout, func(ctx context.Context) (int, error) {
					if asks++; asks <= c.lost {
						<-ctx.Done()
						return 0, ctx.Err()
					}
					return 7, c.err
				})
				if !errors.Is(err, c.err) || err == nil && got != 7 || asks != c.asks || time.Since(began) != c.took {
					t.Errorf("%d, %v, asked %d times, took %v; want %v, %d times, %v", got, err, asks, time.Since(began), c.err, c.asks, c.took)
				}
			})
		})
	}
}
