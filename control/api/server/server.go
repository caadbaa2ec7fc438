// Package server serves the API of a daemon, and of the hub of a fleet: its routes, over a
// Unix socket or over TCP with client certificates. docs/api/openapi.yaml describes them, and
// a test compares that with the types and routes here.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/clock"
)

// Daemon answers the requests to a daemon. It is safe for concurrent use, and its answers do not
// change afterwards.
//
// An error that is a [*api.BadRequest] or an [api.AbsentError] is the caller's; any other says that
// the daemon failed.
type Daemon interface {
	Snapshots
	Streamer
	Explainer
	Recorder
	Changer
	EntriesReader
	Refresher
	Versioner
	Enforcer
	Appraiser
	Reloader
	Monitor
	Policer
	Notifier
	Router
	Auditor
	Consoles
}

// Snapshots are answered at once, however busy the daemon is.
type Snapshots interface {
	Status() api.Status
	// Top returns nil until the first interval is over.
	Top() *api.Top
	// Weights returns nil where none are learned.
	Weights() *api.Weights
	// Floods returns what is known of floods. No slice of a flood is nil.
	Floods() api.Floods
	Lists() api.Lists
}

// Streamer has events.
type Streamer interface {
	// Subscribe returns the events that are asked for, from now on.
	Subscribe(api.Events) (Subscription, error)
}

// Subscription has the events that a client has asked for, until it is closed or the daemon
// stops.
type Subscription interface {
	// Next waits for an event. It is false at the end, and when ctx is done.
	Next(ctx context.Context) (api.Event, bool)
	// Ready reports whether Next would return an event at once.
	Ready() bool
	Close()
}

// Explainer answers questions about packets.
type Explainer interface {
	// Explain answers a question: an entry, in the format of lists. places says whether to find
	// entries in their sources, which takes as long as reading the sources.
	Explain(ctx context.Context, question string, places bool) (api.Explanation, error)
	// ExplainFrames explains Ethernet frames, in their order.
	ExplainFrames(ctx context.Context, frames [][]byte) ([]api.Explanation, error)
}

// Recorder remembers what has passed and was dropped.
type Recorder interface {
	// Trace returns where and when packets may have passed.
	Trace(context.Context, api.TraceQuestion) (*api.Traced, error)
	// Drops returns which sources were dropped.
	Drops(context.Context, api.DropsQuestion) (api.Drops, error)
	// History returns what passed and was dropped. The question's Step is not 0.
	History(context.Context, api.HistoryQuestion) (api.History, error)
}

// Changer changes lists.
type Changer interface {
	// Change adds or removes entries. When it returns without an error, that is
	// durable; with one, nothing has changed.
	Change(context.Context, api.Change) (api.Changed, error)
	// Flush removes all manual entries of a list, as Change does.
	Flush(ctx context.Context, list string, c api.FlushChange) (api.Changed, error)
}

// EntriesReader reads the entries of lists.
type EntriesReader interface {
	// Entries returns a page of manual entries.
	Entries(context.Context, api.EntriesQuestion) (api.Entries, error)
	// Export returns all active entries of a list, in one of the formats.
	Export(ctx context.Context, list, format string) (api.Export, error)
}

// Appraiser says what lists are worth.
type Appraiser interface {
	// Worth takes a pass over all entries.
	Worth(context.Context) (api.ListsWorth, error)
	// Collateral returns that of a list, "" for all of them.
	Collateral(ctx context.Context, list string) (api.Collateral, error)
}

// Refresher reads the sources of lists.
type Refresher interface {
	// Refresh reads the sources of a list now, "" for those of all lists. With
	// accept, it takes what has shrunk or covers too much. It fails only if the
	// sources could not be tried.
	Refresh(ctx context.Context, list string, accept bool) ([]api.FetchOutcome, error)
}

// Versioner remembers the contents that lists had before.
type Versioner interface {
	// Versions returns those of a list's sources.
	Versions(ctx context.Context, list string, diff ...string) (api.ListVersions, error)
	// Rollback returns to the contents before the last change of a list's sources.
	Rollback(ctx context.Context, list string) (api.FetchOutcome, error)
}

// Enforcer has lists on trial.
type Enforcer interface {
	// Enforce ends the trial of a list, or begins one, whatever the configuration says. When
	// it returns without an error, that is durable; with one, nothing has changed.
	Enforce(ctx context.Context, list string, c api.EnforceChange) (api.Enforced, error)
}

// Reloader reads the configuration.
type Reloader interface {
	// Reload reads the configuration again. With an error, nothing has changed.
	Reload(context.Context) (api.Reloaded, error)
	// ReloadUnconfirmed is Reload, but returns to the configuration before after a
	// time, unless Confirm is called.
	ReloadUnconfirmed(ctx context.Context, within time.Duration) (api.Reloaded, error)
	Confirm(context.Context) error
}

// Monitor has a monitor mode.
type Monitor interface {
	// SetMonitor switches monitor mode on, whatever the configuration says, or ends
	// that. With an error, nothing has changed.
	SetMonitor(context.Context, api.MonitorChange) (api.Monitored, error)
}

// Policer limits what interfaces receive.
type Policer interface {
	// SetPolice limits an interface to a rate, whatever the configuration says, or ends that.
	// With an error, nothing has changed.
	SetPolice(context.Context, api.PoliceChange) (api.Policed, error)
}

// Notifier sends notifications.
type Notifier interface {
	// TestNotify sends a test event to a receiver of notifications, "" for all.
	TestNotify(ctx context.Context, target string) ([]api.NotifyTested, error)
}

// Router has routes of its own.
type Router interface {
	Routes() []api.Route
}

// Auditor remembers changes.
type Auditor interface {
	// Audit returns the last changes that were made, the latest first.
	Audit(limit int) []api.AuditRecord
}

// route is a method and a path with what answers them.
type route struct {
	method, path string
	answer       func(http.ResponseWriter, *http.Request) (any, error)
}

// at reports whether a path matches the route's, in which {name} matches any name.
func (r route) at(path string) bool {
	return slices.EqualFunc(strings.Split(r.path, "/"), strings.Split(path, "/"), func(want, is string) bool {
		return want == is || strings.HasPrefix(want, "{") && is != ""
	})
}

// snapshotRoutes are answered from snapshots.
func snapshotRoutes(s Snapshots) []route {
	return []route{
		{http.MethodGet, api.StatusPath, func(http.ResponseWriter, *http.Request) (any, error) {
			status := s.Status()
			status.Interfaces = list(status.Interfaces)
			return status, nil
		}},
		{http.MethodGet, api.TopPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			limit, err := onlyLimit(q.URL.Query(), api.MaxTop, api.MaxTop)
			if err != nil {
				return nil, err
			}
			if t := s.Top(); t != nil {
				return whole(*t, limit), nil
			}
			return nil, api.Fail(http.StatusServiceUnavailable, errors.New("no rates yet, the daemon has just started: try again in a second"))
		}},
		{http.MethodGet, api.FloodsPath, func(http.ResponseWriter, *http.Request) (any, error) {
			f := s.Floods()
			f.Past = list(f.Past)
			return f, nil
		}},
		{http.MethodGet, api.WeightsPath, func(http.ResponseWriter, *http.Request) (any, error) {
			if w := s.Weights(); w != nil {
				weights := *w
				weights.Elements = list(w.Elements)
				return weights, nil
			}
			return nil, api.Fail(http.StatusNotFound, errors.New("this daemon learns no weights: that requires mode: approx in weir.yaml"))
		}},
	}
}

// list is [api.NonNil], shorter.
func list[T any](all []T) []T { return api.NonNil(all) }

// whole returns t with an empty slice for every nil one, and at most limit flows of each
// tracker and dropped sources.
func whole(t api.Top, limit int) api.Top {
	t.Interfaces, t.Reasons, t.Filter.Lists, t.Problems = list(t.Interfaces), list(t.Reasons), list(t.Filter.Lists), list(t.Problems)
	for _, trackers := range []*[]api.Tracker{&t.Trackers, &t.Sampled} {
		*trackers = slices.Clone(list(*trackers)) // the daemon's slice must not change
		for i := range *trackers {
			of := &(*trackers)[i]
			of.More += max(0, len(of.Flows)-limit)
			of.Flows = slices.Clone(list(of.Flows)[:min(len(of.Flows), limit)])
			for j := range of.Flows {
				f := &of.Flows[j]
				f.Reasons, f.Lists = list(f.Reasons), list(f.Lists)
			}
		}
	}
	if t.Sources != nil {
		sources := (*t.Sources)[:min(len(*t.Sources), limit)]
		t.Sources = &sources
	}
	return t
}

// Handler returns a handler of the API.
func Handler(d Daemon) http.Handler { return handler("daemon", routes(d)) }

// handler answers by routes. Its errors call the server by name, for clients that expect
// another one.
func handler(name string, all []route) http.Handler {
	mux := http.NewServeMux()
	for _, r := range all {
		r.on(mux)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) { fail(w, unanswered(w, q, name, all)) })
	return fromHere(mux)
}

// on makes a mux answer by a route.
func (r route) on(mux *http.ServeMux) {
	mux.HandleFunc(r.method+" "+r.path, func(w http.ResponseWriter, q *http.Request) {
		answer, err := any(nil), checkQuery(q.URL)
		if err == nil && givenUp(q) {
			err = errGivenUp
		}
		if err == nil {
			answer, err = r.answer(w, withCaller(q))
		}
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

// givenUp reports whether a client on this host no longer waits for the answer.
func givenUp(q *http.Request) bool {
	until, err := strconv.ParseInt(q.Header.Get(api.UntilHeader), 10, 64)
	return err == nil && clock.This().Ran() > time.Duration(until)
}

var errGivenUp = api.Fail(http.StatusRequestTimeout, errors.New("the client had given up: nothing was done"))

// fromHere refuses requests that a web site has made a browser send.
func fromHere(h http.Handler) http.Handler {
	// A browser may have a client's certificate, and any site may make it send requests.
	sameSite := http.NewCrossOriginProtection()
	sameSite.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, api.Fail(http.StatusForbidden, errors.New("requests from web sites may not change anything")))
	}))
	return sameSite.Handler(h)
}

// checkQuery returns an error where a parameter is there twice that has one value.
func checkQuery(u *url.URL) error {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return &api.BadRequest{Err: fmt.Errorf("the query: %w", err)}
	}
	for name, values := range query {
		if len(values) > 1 && name != api.ReasonParameter && name != api.NodeParameter {
			return &api.BadRequest{Err: fmt.Errorf("parameter %.60q is there %d times: want it once", name, len(values))}
		}
	}
	return nil
}

// routesOf returns the routes that a daemon has of its own.
func routesOf(d Router) (all []route) {
	for _, r := range d.Routes() {
		all = append(all, route{r.Method, r.Path, r.Answer})
	}
	return all
}

// routes returns the routes of the API's first version.
func routes(d Daemon) []route {
	return slices.Concat(snapshotRoutes(d), []route{eventsRoute(d), traceRoute(d), dropsRoute(d), historyRoute(d), auditRoute(d)}, controlRoutes(d), consoleRoutes(d))
}

// unanswered returns why no route answers a request, and which ones there are.
func unanswered(w http.ResponseWriter, q *http.Request, name string, all []route) error {
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
		return api.Fail(http.StatusMethodNotAllowed, fmt.Errorf("%s does not allow %s: use %s", q.URL.Path, q.Method, allowed))
	}
	return api.Fail(http.StatusNotFound, fmt.Errorf("this is a %s, which has no %s: it has %s", name, q.URL.Path, strings.Join(paths, ", ")))
}

// reply sends a value as JSON. It is encoded completely before the status is sent.
func reply(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		fail(w, fmt.Errorf("encode the answer: %w", err)) // such as a rate that is NaN
		return
	}
	// However long the answer took, the client gets the full time to read it.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout)) // fails in tests only
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(body, '\n')) // an error means that the client has gone
}

func fail(w http.ResponseWriter, err error) {
	status, sent := http.StatusInternalServerError, api.Failure{Error: err.Error()}
	var f *api.Fault
	var bad *api.BadRequest
	var starting *api.StartingError
	switch {
	case errors.As(err, &starting):
		status, sent.Starting = http.StatusServiceUnavailable, &starting.Starting
	case errors.As(err, &f):
		status = f.Status
	case errors.As(err, &bad):
		status, sent.Entry = http.StatusBadRequest, bad.Entry
	case errors.As(err, new(api.AbsentError)):
		status = http.StatusNotFound
	}
	reply(w, status, sent)
}

// Limits on a client, so that one that hangs uses few resources.
const (
	headerTimeout = 5 * time.Second
	answerTimeout = 30 * time.Second // a long list of weights over a slow link
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10 // bytes
	stopTimeout   = time.Second
)

// Limits on what is logged of clients that do not speak HTTP or TLS.
const (
	maxComplaints     = 5
	complaintInterval = time.Minute
)

// complaints logs the first lines of each interval, and the number of the others.
type complaints struct {
	log *slog.Logger

	mu      sync.Mutex
	began   time.Time
	written int
	left    int
}

// Write logs a line. It never fails.
func (c *complaints) Write(line []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.began) >= complaintInterval {
		if c.left > 0 {
			c.log.Warn("more complaints about clients were left out", "lines", c.left)
		}
		c.began, c.written, c.left = now, 0, 0
	}
	if c.written == maxComplaints {
		c.left++
		return len(line), nil
	}
	c.written++
	c.log.Warn(strings.TrimSpace(string(line[:min(len(line), maxHeader)])))
	return len(line), nil
}

// Serve serves a handler on a listener until ctx is done, then closes the listener.
// Answers that are being sent then have a second to end.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler:           untilIdle(h),
		ConnState:         noteIdle,
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return identify(withLimited(ctx, c), c) },
		ReadHeaderTimeout: headerTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          stdlog.New(&complaints{log: log}, "", 0),
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
