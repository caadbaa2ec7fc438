package serve

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"weir/control/api/server"
)

// Early is the API's socket of a daemon that is starting, which Run takes over.
type Early struct {
	handler atomic.Pointer[http.Handler]
	stop    context.CancelFunc
	ended   chan struct{}
}

// Open answers at the API's socket by a handler, until Run takes the socket over. It returns
// nil where it cannot listen: Run tries that again, and logs why.
func (c Config) Open(h http.Handler, log *slog.Logger) *Early {
	if c.Socket == "" {
		return nil
	}
	l, err := c.listen()
	if err != nil {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &Early{stop: stop, ended: make(chan struct{})}
	e.handler.Store(&h)
	go func() {
		defer close(e.ended)
		if err := server.Serve(ctx, l, e, log); err != nil {
			log.Error(err.Error())
		}
	}()
	return e
}

// ServeHTTP implements [http.Handler].
func (e *Early) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	(*e.handler.Load()).ServeHTTP(w, q)
}

// Close stops answering, and waits for the end. It may be called again, and of nil.
func (e *Early) Close() {
	if e != nil {
		e.stop()
		<-e.ended
	}
}

// takeOver answers by a handler from now on, until ctx is done.
func (e *Early) takeOver(ctx context.Context, h http.Handler, servers *sync.WaitGroup) {
	e.handler.Store(&h)
	servers.Go(func() {
		select {
		case <-ctx.Done():
			e.Close()
		case <-e.ended: // which is logged
		}
	})
}
