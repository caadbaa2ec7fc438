package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"weir/control/observe/events"
)

// Source is a running weir, as the server asks it: at any time, and from
// several goroutines at once. What it gives must not change afterwards.
type Source interface {
	// Top is nil until the first interval is over.
	Top() *Top
	// Weights is nil where none are learned.
	Weights() *Weights
	// Events tells of packets until end is called, or weir stops.
	Events(events.Want) (told <-chan events.Event, end func())
	// Trace tells where and when packets have passed. Its error may be a
	// [*BadRequest].
	Trace(context.Context, TraceQuestion) (*Traced, error)
}

// fault is an error with the HTTP status that tells it.
type fault struct {
	status int
	error
}

// failure is how an error is sent.
type failure struct {
	Error string `json:"error"`
	Entry *int   `json:"entry,omitempty"` // index of the entry that it is about
}

// route is what can be asked for.
type route struct {
	method, path string
	answer       func(http.ResponseWriter, *http.Request) (any, error)
}

// at reports whether a path is the route's, in which {name} stands for any name.
func (r route) at(path string) bool {
	return slices.EqualFunc(strings.Split(r.path, "/"), strings.Split(path, "/"), func(want, is string) bool {
		return want == is || strings.HasPrefix(want, "{") && is != ""
	})
}

// sourceRoutes are those that a Source answers.
func sourceRoutes(s Source) []route {
	return []route{
		{http.MethodGet, topPath, func(http.ResponseWriter, *http.Request) (any, error) {
			if t := s.Top(); t != nil {
				return whole(*t), nil
			}
			return nil, fault{http.StatusServiceUnavailable, errors.New("weir has just begun, and has no rates yet: ask again in a second")}
		}},
		{http.MethodGet, weightsPath, func(http.ResponseWriter, *http.Request) (any, error) {
			if w := s.Weights(); w != nil {
				weights := *w
				weights.Elements = list(w.Elements)
				return weights, nil
			}
			return nil, fault{http.StatusNotFound, errors.New("this weir learns no weights")}
		}},
	}
}

// list makes sure that an empty list is sent as one, and not as null.
func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

// whole is what is sent, with a list wherever there may be one.
func whole(t Top) Top {
	t.Interfaces, t.Reasons, t.Filter.Lists = list(t.Interfaces), list(t.Reasons), list(t.Filter.Lists)
	t.Trackers = slices.Clone(list(t.Trackers)) // the source's own must not change
	for i := range t.Trackers {
		t.Trackers[i].Flows = list(t.Trackers[i].Flows)
	}
	return t
}

// Handler answers for a weir that cannot be changed.
func Handler(s Source) http.Handler { return HandlerFor(s, nil) }

// HandlerFor answers for a weir that can be changed, unless c is nil.
func HandlerFor(s Source, c Control) http.Handler {
	all := routes(s, c)
	mux := http.NewServeMux()
	for _, r := range all {
		mux.HandleFunc(r.method+" "+r.path, func(w http.ResponseWriter, q *http.Request) {
			answer, err := r.answer(w, q)
			if err != nil {
				fail(w, err)
				return
			}
			if s, ok := answer.(stream); ok {
				s(w, q)
				return
			}
			reply(w, http.StatusOK, answer)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) { fail(w, unanswered(w, q, all)) })
	// A browser may hold a client's certificate, and any site may make it ask.
	sameSite := http.NewCrossOriginProtection()
	sameSite.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, fault{http.StatusForbidden, errors.New("a web site may not change anything here")})
	}))
	return sameSite.Handler(mux)
}

// routes are those of the API's first version.
func routes(s Source, c Control) []route {
	return append(append(sourceRoutes(s), eventsRoute(s), traceRoute(s)), controlRoutes(c)...)
}

// unanswered says why no route answers a request, and what would.
func unanswered(w http.ResponseWriter, q *http.Request, all []route) error {
	var paths, methods []string
	for _, r := range all {
		if !slices.Contains(paths, r.path) {
			paths = append(paths, r.path)
		}
		if r.at(q.URL.Path) {
			methods = append(methods, r.method)
		}
	}
	if len(methods) > 0 {
		allowed := strings.Join(methods, ", ")
		w.Header().Set("Allow", allowed)
		return fault{http.StatusMethodNotAllowed, fmt.Errorf("%s is not for %s: use %s", q.URL.Path, q.Method, allowed)}
	}
	return fault{http.StatusNotFound, fmt.Errorf("there is no %s here: there are %s", q.URL.Path, strings.Join(paths, ", "))}
}

// reply sends a value as JSON. It is made whole before its status is sent.
func reply(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		fail(w, fmt.Errorf("encode the answer: %w", err)) // such as a rate that is no number
		return
	}
	// However long the answer took to find: the client has all the time to read it.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout)) // fails in tests only
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(body, '\n')) // who has gone away need not be told
}

func fail(w http.ResponseWriter, err error) {
	status, sent := http.StatusInternalServerError, failure{Error: err.Error()}
	var f fault
	var bad *BadRequest
	switch {
	case errors.As(err, &f):
		status = f.status
	case errors.As(err, &bad):
		status, sent.Entry = http.StatusBadRequest, bad.Entry
	case errors.Is(err, ErrNoList), errors.Is(err, ErrNoMulticast), errors.Is(err, ErrNoDigests):
		status = http.StatusNotFound
	}
	reply(w, status, sent)
}

// Limits on a client, so that one that hangs costs little.
const (
	headerTimeout = 5 * time.Second
	answerTimeout = 30 * time.Second // a long list of weights, over a slow line
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10 // bytes
	stopTimeout   = time.Second
)

// Serve answers by a handler, such as that of the API, on a listener until ctx
// is done, and closes it. Answers that are under way then have a second to end.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler:           h,
		ConnContext:       identify,
		ReadHeaderTimeout: headerTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve HTTP at %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := server.Shutdown(last); err != nil {
		return server.Close()
	}
	return nil
}
