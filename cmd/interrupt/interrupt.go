// Package interrupt ends commands at SIGINT and SIGTERM.
package interrupt

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Err is the error of a read that a signal has ended.
var Err = errors.New("interrupted")

// Context returns a context that ends at the first signal. The second one kills the process,
// unless [InOrder] has been called.
func Context() (ctx context.Context, stop func()) {
	ctx, stop = signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// InOrder lets no signal kill the process until done is called: a command that has something to
// tidy up ends with its context alone.
func InOrder() (done func()) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM)
	return func() { signal.Stop(caught) }
}

// Reader reads until a context ends, though a read that has begun cannot be taken back. It
// begins to read with the first Read.
type Reader struct {
	From io.Reader

	ctx   context.Context
	begin sync.Once
	read  *io.PipeReader
}

// NewReader returns a Reader, which fails with [Err] once ctx is done.
func NewReader(ctx context.Context, from io.Reader) *Reader { return &Reader{From: from, ctx: ctx} }

func (r *Reader) Read(b []byte) (int, error) {
	r.begin.Do(func() {
		var w *io.PipeWriter
		r.read, w = io.Pipe()
		context.AfterFunc(r.ctx, func() { w.CloseWithError(Err) })
		go func() {
			_, err := io.Copy(w, r.From)
			w.CloseWithError(err)
		}()
	})
	return r.read.Read(b)
}
