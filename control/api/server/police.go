package server

import (
	"net/http"

	"weir/control/api"
)

func policeRoute(d Policer) route {
	return route{http.MethodPost, api.PolicePath, func(w http.ResponseWriter, q *http.Request) (any, error) {
		var c api.PoliceChange
		if err := api.ReadBody(w, q, 1<<20, &c); err != nil {
			return nil, err
		}
		c.UID, c.Client = caller(q)
		c.Connection = Connection(q)
		if err := c.Check(); err != nil {
			return nil, err
		}
		return d.SetPolice(q.Context(), c)
	}}
}
