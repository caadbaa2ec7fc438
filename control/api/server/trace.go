package server

import (
	"net/http"

	"weir/control/api"
)

// maxTracing bounds a request, in bytes.
const maxTracing = 4 << 20

// traceRoute returns the route that traces packets.
func traceRoute(s Recorder) route {
	return route{http.MethodPost, api.TracePath, func(w http.ResponseWriter, q *http.Request) (any, error) {
		asked, err := readTrace(w, q)
		if err != nil {
			return nil, err
		}
		t, err := s.Trace(q.Context(), asked)
		if err != nil {
			return nil, err
		}
		answer := *t // the daemon's slice must not change
		answer.Interfaces = list(t.Interfaces)
		return answer, nil
	}}
}

func readTrace(w http.ResponseWriter, q *http.Request) (asked api.TraceQuestion, err error) {
	if err := api.ReadBody(w, q, maxTracing, &asked); err != nil {
		return asked, err
	}
	if err := asked.Check(); err != nil {
		return asked, &api.BadRequest{Err: err}
	}
	return asked, nil
}
