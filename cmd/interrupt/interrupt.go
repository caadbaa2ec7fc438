// Package interrupt ends commands at SIGINT and SIGTERM.
package interrupt

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Err is the error of a read that a signal has ended.
var Err = errors.New("interrupted")

// grace is for how long a command may go on after the first signal: it may sort, or build tables.
const grace = time.Second / 2

// inOrder is the number of commands that have called InOrder and are not done.
var inOrder atomic.Int32

// Context returns a context that ends at the first signal. The second one kills the process, as the
// first does after a grace, unless [InOrder] has been called.
func Context() (context.Context, func()) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	var ended atomic.Bool
	context.AfterFunc(ctx, func() {
		stop()
		time.AfterFunc(grace, func() {
			if !ended.Load() && inOrder.Load() == 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
			}
		})
	})
	return ctx, func() {
		ended.Store(true)
		stop()
	}
}

// InOrder lets no signal kill the process until done is called: a command that has something to
// tidy up ends with its context alone.
func InOrder() (done func()) {
	inOrder.Add(1)
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM)
	return func() {
		inOrder.Add(-1)
		signal.Stop(caught)
	}
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
