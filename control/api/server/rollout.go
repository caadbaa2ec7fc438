package server

import (
	"fmt"
	"net/http"

	"weir/control/api"
)

func rollRoute(h Hub) route {
	return route{http.MethodPost, api.RolloutsPath, func(w http.ResponseWriter, q *http.Request) (any, error) {
		var asked api.FleetRoll
		if err := api.ReadBody(w, q, 1<<20, &asked); err != nil {
			return nil, err
		}
		switch {
		case asked.Do == api.RollPause, asked.Do == api.RollResume:
		case asked.Do != api.RollForward && asked.Do != api.RollRollback:
			return nil, &api.BadRequest{Err: fmt.Errorf("do: %.20q: want pause, resume, forward or rollback", asked.Do)}
		case asked.List == "":
			return nil, &api.BadRequest{Err: fmt.Errorf("do: %s: list is missing", asked.Do)}
		}
		r, err := h.Roll(q.Context(), asked)
		r.Lists = list(r.Lists)
		return r, err
	}}
}
