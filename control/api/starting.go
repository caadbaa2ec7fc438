package api

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// Starting is the state of a daemon that does not filter yet, or not by its new lists.
type Starting struct {
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Since   time.Time `json:"since"`
	Doing   string    `json:"doing"` // as in "reading /srv/drop.txt"
}

// StartingError is the answer of a daemon that is starting.
type StartingError struct{ Starting Starting }

func (e *StartingError) Error() string {
	return fmt.Sprintf("the daemon is starting (PID %d, since %s, %s): ask again when it filters", e.Starting.PID, e.Starting.Since.Local().Format(time.TimeOnly), e.Starting.Doing)
}

// Starter is a daemon that is starting. It is safe for concurrent use.
type Starter interface {
	Starting() Starting
	// Queue stores a change that the daemon makes once it filters.
	Queue(context.Context, Change) (Changed, error)
}

// StartingHandler returns a handler of the API for the time until the daemon can answer: it
// takes changes of entries, and says that the daemon is starting.
func StartingHandler(s Starter) http.Handler {
	mux := http.NewServeMux()
	for _, r := range changeRoutes(func(ctx context.Context, c Change) (any, error) { return s.Queue(ctx, c) }) {
		r.on(mux)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fail(w, &StartingError{s.Starting()}) })
	return fromHere(mux)
}
