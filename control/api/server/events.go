package server

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"weir/control/api"
)

// stream is an answer that writes itself to the response.
type stream func(http.ResponseWriter, *http.Request)

// eventsRoute streams events.
func eventsRoute(s Streamer) route {
	return route{http.MethodGet, api.EventsPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
		asked, err := api.ParseEvents(q.URL.Query())
		if err != nil {
			return nil, err
		}
		all, err := s.Subscribe(asked)
		if err != nil {
			return nil, err
		}
		return stream(func(w http.ResponseWriter, q *http.Request) { answerEvents(asked, w, q, all) }), nil
	}}
}

// glance is how long events are sent to a client that does not follow them.
const glance = time.Second

// answerEvents sends events, a line each, until the client disconnects or the daemon stops.
func answerEvents(e api.Events, w http.ResponseWriter, q *http.Request, all Subscription) {
	defer all.Close()
	connection := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	if connection.Flush() != nil {
		return
	}
	ctx := q.Context()
	if !e.Follow {
		glimpse, cancel := context.WithTimeout(ctx, glance)
		defer cancel()
		ctx = glimpse
	}
	lines := json.NewEncoder(w)
	for {
		event, ok := all.Next(ctx)
		if !ok {
			return
		}
		_ = connection.SetWriteDeadline(time.Now().Add(answerTimeout)) // fails in tests only
		if lines.Encode(event) != nil || !all.Ready() && connection.Flush() != nil {
			return
		}
	}
}
