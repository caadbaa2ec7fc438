package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"

	"weir/control/api"
)

// ErrStopped is the error of events that were followed when the daemon stopped.
var ErrStopped = errors.New("weir has stopped")

// Events returns events, to be ranged over once. They end after a second, or if they
// are followed, with an error, such as that of the context.
func (c *Client) Events(ctx context.Context, asked api.Events) (iter.Seq2[*api.Event, error], error) {
	asking, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(patience, func() { cancel(c.Silent(patience)) })
	r, err := c.send(asking, http.MethodGet, api.EventsPath+"?"+asked.Query().Encode(), nil)
	late.Stop()
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return func(yield func(*api.Event, error) bool) {
		defer cancel(nil)
		defer r.Body.Close()
		lines := json.NewDecoder(r.Body)
		for {
			e := new(api.Event)
			err := lines.Decode(e)
			switch {
			case err == io.EOF && !asked.Follow:
				return
			case err != nil && ctx.Err() != nil:
				err = context.Cause(ctx)
			case errors.Is(err, ErrUnanswered):
			case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
				err = ErrStopped
			case err != nil:
				err = fmt.Errorf("events of the daemon at %s: %w", c.path, err)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}, nil
}
