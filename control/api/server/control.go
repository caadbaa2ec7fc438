package server

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"weir/control/api"
)

// readWithin returns in what time a reload has to be confirmed, 0 for never.
func readWithin(query url.Values) (time.Duration, error) {
	text := query.Get(api.ConfirmParameter)
	if text == "" {
		return 0, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds >= 1 && seconds <= 24*60*60) {
		return 0, &api.BadRequest{Err: fmt.Errorf("%s=%.60q: want 1 to %d", api.ConfirmParameter, text, 24*60*60)}
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// controlRoutes returns the routes that wait for the daemon's loop, or change
// something.
func controlRoutes(c Daemon) []route {
	return slices.Concat(changeRoutes(c.Change), refreshRoutes(c.Refresh), []route{
		{http.MethodGet, api.ListsPath, func(http.ResponseWriter, *http.Request) (any, error) {
			all := c.Lists()
			lists := slices.Clone(list(all.Lists)) // the daemon's slice must not change
			for i := range lists {
				lists[i].Feeds, lists[i].LeftOut, lists[i].Spare = list(lists[i].Feeds), list(lists[i].LeftOut), list(lists[i].Spare)
				lists[i].Feeds = slices.Clone(lists[i].Feeds)
				for j := range lists[i].Feeds {
					lists[i].Feeds[j].FirstBad = list(lists[i].Feeds[j].FirstBad)
				}
			}
			return api.Lists{Lists: lists, At: all.At}, nil
		}},
		{http.MethodGet, api.WorthPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			w, err := c.Worth(q.Context())
			w.Lists = list(w.Lists)
			for i := range w.Lists {
				w.Lists[i].Months, w.Lists[i].Overlaps = list(w.Lists[i].Months), list(w.Lists[i].Overlaps)
			}
			return w, err
		}},
		{http.MethodGet, api.CollateralPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			a, err := c.Collateral(q.Context(), q.URL.Query().Get(api.ListParameter))
			a.Lists = list(a.Lists)
			for i := range a.Lists {
				a.Lists[i].Latest = list(a.Lists[i].Latest)
			}
			return a, err
		}},
		enforceRoute(c.Enforce),
		{http.MethodPost, api.ReloadPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			within, err := readWithin(q.URL.Query())
			if err != nil {
				return nil, err
			}
			var r api.Reloaded
			if within == 0 {
				r, err = c.Reload(q.Context())
			} else {
				r, err = c.ReloadUnconfirmed(q.Context(), within)
			}
			return api.Reloaded{Changes: list(r.Changes), Unfiltered: list(r.Unfiltered)}, err
		}},
		{http.MethodPost, api.ConfirmPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			return api.Confirmed{Confirmed: true}, c.Confirm(q.Context())
		}},
		monitorRoute(c),
		policeRoute(c),
		{http.MethodGet, api.ExplainPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			places, err := readPlaces(q.URL.Query())
			if err != nil {
				return nil, err
			}
			question := q.URL.Query().Get("q")
			e, err := c.Explain(q.Context(), question, places)
			return e, askAsIn(api.ExplainPath, question, err)
		}},
		{http.MethodPost, api.ExplainPath, func(w http.ResponseWriter, q *http.Request) (any, error) {
			return explainFrames(c, w, q)
		}},
	}, versionRoutes(c), entriesRoutes(c, c.Flush), routesOf(c), notifyRoutes(c))
}

// versionRoutes show the versions of lists, and return to former ones.
func versionRoutes(v Versioner) []route {
	return []route{
		{http.MethodGet, api.VersionsPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			all, err := v.Versions(q.Context(), q.PathValue("list"), q.URL.Query()[api.DiffParameter]...)
			all.Sources = list(all.Sources)
			return all, err
		}},
		{http.MethodPost, api.RollbackPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			o, err := v.Rollback(q.Context(), q.PathValue("list"))
			return api.Refreshed{Sources: []api.FetchOutcome{o}}, err
		}},
	}
}

// changeRoutes add and remove entries.
func changeRoutes[T any](do func(context.Context, api.Change) (T, error)) []route {
	var large sync.Mutex // locked during a large change
	change := func(w http.ResponseWriter, q *http.Request) (any, error) {
		if q.ContentLength < 0 || q.ContentLength > largeBody {
			large.Lock()
			defer large.Unlock()
		}
		asked, err := readChange(w, q)
		if err != nil {
			return nil, err
		}
		return do(q.Context(), asked)
	}
	return []route{{http.MethodPost, api.EntriesPath, change}, {http.MethodDelete, api.EntriesPath, change}}
}

// refreshRoutes returns the routes that have sources read.
func refreshRoutes(refresh func(ctx context.Context, list string, accept bool) ([]api.FetchOutcome, error)) []route {
	answer := func(_ http.ResponseWriter, q *http.Request) (any, error) {
		name, accept := q.PathValue("list"), false
		if text := q.URL.Query().Get("accept"); text != "" {
			var err error
			if accept, err = strconv.ParseBool(text); err != nil || accept && name == "" {
				return nil, &api.BadRequest{Err: fmt.Errorf("accept %.20q: want true or false, and the name of a list", text)}
			}
		}
		outcomes, err := refresh(q.Context(), name, accept)
		return api.Refreshed{Sources: list(outcomes)}, err
	}
	return []route{{http.MethodPost, api.RefreshPath, answer}, {http.MethodPost, api.RefreshListPath, answer}}
}
