package server

import (
	"net/http"

	"weir/control/api"
)

func notifyRoutes(c Notifier) []route {
	return []route{{http.MethodPost, api.NotifyTestPath, func(w http.ResponseWriter, q *http.Request) (any, error) {
		var asked api.NotifyTest
		if err := api.ReadBody(w, q, maxSmallBody, &asked); err != nil {
			return nil, err
		}
		tested, err := c.TestNotify(q.Context(), asked.Target)
		return api.NotifyTests{Targets: list(tested)}, err
	}}}
}

// maxSmallBody bounds requests that have a few fields, in bytes.
const maxSmallBody = 1 << 20
