package server

import (
	"net/http"

	"weir/control/api"
	"weir/control/api/internal/contract"
)

func enforceRoute(d Enforcer) route {
	return route{http.MethodPost, contract.EnforcePath, func(w http.ResponseWriter, q *http.Request) (any, error) {
		var c api.EnforceChange
		if err := readBody(w, q, 1<<20, &c); err != nil {
			return nil, err
		}
		c.UID, c.Client = caller(q)
		c.Connection = connection(q)
		if err := c.Check(); err != nil {
			return nil, err
		}
		return d.Enforce(q.Context(), q.PathValue("list"), c)
	}}
}
