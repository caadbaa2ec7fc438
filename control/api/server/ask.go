package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"weir/control/api"
	"weir/filter/sketch"
)

// Asker asks the nodes of a fleet: those that are named, or nil for all. Each is in the
// result, with a problem if it has not answered.
type Asker interface {
	// Explain asks what becomes of packets, by an entry in the format of lists.
	Explain(ctx context.Context, nodes []string, packets string) (api.FleetExplanation, error)
	// Top asks for the largest flows of all nodes together.
	Top(ctx context.Context, nodes []string, asked api.FleetTopQuestion) (api.FleetTop, error)
	// Floods asks whether there are floods, and which.
	Floods(ctx context.Context, nodes []string) (api.FleetFloods, error)
	// Trace asks where and when packets may have passed.
	Trace(ctx context.Context, nodes []string, asked api.TraceQuestion) (api.FleetTraced, error)
}

// maxNamed bounds the nodes that a request names.
const maxNamed = 1000

// askRoutes ask nodes.
func askRoutes(a Asker) []route {
	named := func(q *http.Request) ([]string, error) {
		nodes := q.URL.Query()[api.NodeParameter]
		if len(nodes) > maxNamed {
			return nil, &api.BadRequest{Err: fmt.Errorf("%d nodes: name at most %d, or none for all", len(nodes), maxNamed)}
		}
		return nodes, nil
	}
	return []route{
		{http.MethodGet, api.FleetExplainPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			nodes, err := named(q)
			if err != nil {
				return nil, err
			}
			question := q.URL.Query().Get("q")
			e, err := a.Explain(q.Context(), nodes, question)
			e.Nodes = list(e.Nodes)
			return e, askAsIn(api.FleetExplainPath, question, err)
		}},
		{http.MethodGet, api.FleetTopPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			nodes, err := named(q)
			if err != nil {
				return nil, err
			}
			asked, err := readTop(q.URL.Query())
			if err != nil {
				return nil, err
			}
			t, err := a.Top(q.Context(), nodes, asked)
			t.Nodes, t.Flows = list(t.Nodes), list(t.Flows)
			return t, err
		}},
		{http.MethodGet, api.FleetFloodsPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			nodes, err := named(q)
			if err != nil {
				return nil, err
			}
			f, err := a.Floods(q.Context(), nodes)
			f.Nodes, f.Rules, f.Patterns = list(f.Nodes), list(f.Rules), patternsOf(f.Patterns)
			return f, err
		}},
		{http.MethodPost, api.FleetTracePath, func(w http.ResponseWriter, q *http.Request) (any, error) {
			nodes, err := named(q)
			if err != nil {
				return nil, err
			}
			asked, err := readTrace(w, q)
			if err != nil {
				return nil, err
			}
			t, err := a.Trace(q.Context(), nodes, asked)
			t.Nodes = list(t.Nodes)
			return t, err
		}},
	}
}

func readTop(query url.Values) (asked api.FleetTopQuestion, err error) {
	asked = api.FleetTopQuestion{Key: cmp.Or(query.Get("key"), "src"), Unit: cmp.Or(query.Get("unit"), sketch.Packets.String()), Share: api.DefaultShare}
	if err := new(sketch.Unit).UnmarshalText([]byte(asked.Unit)); err != nil {
		return asked, &api.BadRequest{Err: err}
	}
	if text := query.Get("share"); text != "" {
		if asked.Share, err = strconv.ParseFloat(text, 64); err != nil || !(asked.Share >= 0 && asked.Share <= 1) {
			return asked, &api.BadRequest{Err: fmt.Errorf("share=%.60q: want 0 to 1", text)}
		}
	}
	return asked, nil
}

func patternsOf(all []api.FleetPattern) []api.FleetPattern {
	for i := range all {
		all[i].Nodes = list(all[i].Nodes)
	}
	return list(all)
}
