package server

import (
	"context"
	"net/http"

	"weir/control/api"
)

// Starter is a daemon that is starting. It is safe for concurrent use.
type Starter interface {
	Starting() api.Starting
	// Queue stores a change that the daemon makes once it filters.
	Queue(context.Context, api.Change) (api.Changed, error)
}

// StartingHandler returns a handler of the API for the time until the daemon can answer: it
// takes changes of entries, and says that the daemon is starting.
func StartingHandler(s Starter) http.Handler {
	mux := http.NewServeMux()
	for _, r := range changeRoutes(s.Queue) {
		r.on(mux)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fail(w, &api.StartingError{Starting: s.Starting()}) })
	return fromHere(mux)
}
