package server

import (
	"context"
	"net/http"

	"weir/control/api"
)

// enforceRoute returns the route of a change of a list's trial.
func enforceRoute[T any](enforce func(ctx context.Context, list string, c api.EnforceChange) (T, error)) route {
	return route{http.MethodPost, api.EnforcePath, func(w http.ResponseWriter, q *http.Request) (any, error) {
		var c api.EnforceChange
		if err := api.ReadBody(w, q, 1<<20, &c); err != nil {
			return nil, err
		}
		c.UID, c.Client = caller(q)
		c.Connection = Connection(q)
		if err := c.Check(); err != nil {
			return nil, err
		}
		return enforce(q.Context(), q.PathValue("list"), c)
	}}
}
