package server

import (
	"context"
	"net/http"

	"weir/control/api"
)

// Consoles opens sessions of a console, and ends them.
type Consoles interface {
	// OpenConsole returns a URL that opens the console once.
	OpenConsole(context.Context, api.ConsoleRequest) (api.ConsoleOpened, error)
	// EndConsole ends all sessions of the console.
	EndConsole(context.Context) (api.ConsoleEnded, error)
}

func consoleRoutes(d Consoles) []route {
	return []route{
		{http.MethodPost, api.ConsolePath, func(w http.ResponseWriter, q *http.Request) (any, error) {
			var r api.ConsoleRequest
			if err := api.ReadBody(w, q, 1<<20, &r); err != nil {
				return nil, err
			}
			if err := api.CheckSSH(r.SSH); err != nil {
				return nil, err
			}
			by, _ := api.CallerOf(q.Context())
			r.UID, r.Client, r.Process = by.UID, by.Client, by.Process
			return d.OpenConsole(q.Context(), r)
		}},
		{http.MethodDelete, api.ConsolePath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			return d.EndConsole(q.Context())
		}},
	}
}
