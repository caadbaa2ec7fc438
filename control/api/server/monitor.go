package server

import (
	"errors"
	"fmt"
	"net/http"

	"weir/control/api"
)

func checkMonitor(c *api.MonitorChange) error {
	switch {
	case c.On == nil:
		return &api.BadRequest{Err: errors.New("on is missing: want true or false")}
	case !*c.On && c.For != 0:
		return &api.BadRequest{Err: errors.New("for_seconds is for monitor mode to be switched on")}
	case c.For != 0 && c.For < api.MinTTL || c.For > api.MaxTTL:
		return &api.BadRequest{Err: fmt.Errorf("for_seconds %v: want %v up to %d, or 0 for ever", c.For, api.MinTTL, api.MaxTTL)}
	}
	return nil
}

func monitorRoute(d Monitor) route {
	return route{http.MethodPost, api.MonitorPath, func(w http.ResponseWriter, q *http.Request) (any, error) {
		var c api.MonitorChange
		if err := api.ReadBody(w, q, 1<<20, &c); err != nil {
			return nil, err
		}
		c.UID, c.Client = caller(q)
		if err := checkMonitor(&c); err != nil {
			return nil, err
		}
		return d.SetMonitor(q.Context(), c)
	}}
}
