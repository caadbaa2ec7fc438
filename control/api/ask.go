package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"weir/control/engine"
	"weir/filter/sketch"
)

const (
	fleetExplainPath = "/v1/fleet/explain"
	fleetTopPath     = "/v1/fleet/top"
	fleetTracePath   = "/v1/fleet/trace"
)

// Asker asks the nodes of a fleet: those that are named, or nil for all. Each is in the
// result, with a problem if it has not answered.
type Asker interface {
	// Explain asks what becomes of packets, as [engine.ParseQuestion] reads them.
	Explain(ctx context.Context, nodes []string, packets string) (FleetExplanation, error)
	// Top asks for the largest flows of all nodes together.
	Top(ctx context.Context, nodes []string, asked FleetTopQuestion) (FleetTop, error)
	// Trace asks where and when packets may have passed.
	Trace(ctx context.Context, nodes []string, asked TraceQuestion) (FleetTraced, error)
}

// FleetExplanation says what becomes of packets at each node: GET /v1/fleet/explain.
type FleetExplanation struct {
	Question string            `json:"question"`
	Nodes    []NodeExplanation `json:"nodes"`
}

// NodeExplanation is the explanation of a node.
type NodeExplanation struct {
	Node        string       `json:"node"`
	Problem     string       `json:"problem,omitempty"`     // why there is no answer
	Explanation *Explanation `json:"explanation,omitempty"` // nil: there is none
}

// FleetTopQuestion says which flows are asked for.
type FleetTopQuestion struct {
	Key   string  // of the trackers, as in weir.yaml
	Unit  string  // that they count: packets or bytes
	Share float64 // of all that is counted, which a flow is to have: 0 … 1
}

// FleetTop are the largest flows of a fleet: GET /v1/fleet/top. Each node counts in
// intervals of its own, and the rates are those of each node's last one.
type FleetTop struct {
	Key   string     `json:"key"`
	Unit  string     `json:"unit"`
	Share float64    `json:"share"` // that a flow is to have
	Nodes []NodeRate `json:"nodes"`
	Rate  float64    `json:"per_second"`      // of all flows of the nodes that have answered
	Rest  float64    `json:"rest_per_second"` // that no flow exceeds which is not in Flows
	Flows []FlowRate `json:"flows"`           // the largest first
}

// NodeRate is what a node has counted.
type NodeRate struct {
	Node     string  `json:"node"`
	Problem  string  `json:"problem,omitempty"` // why there is no answer, or only a part of it
	Interval float64 `json:"interval_seconds"`
	Rate     float64 `json:"per_second"`
	Denied   uint64  `json:"denied_packets"` // of flows that may be missing for lack of room
}

// FlowRate is a flow of several nodes together.
type FlowRate struct {
	Key   string  `json:"key"`            // in the format of lists
	Rate  float64 `json:"per_second"`     // never too small
	Least float64 `json:"min_per_second"` // never too large
	Share float64 `json:"share"`          // of all that is counted: 0 … 1
	Nodes int     `json:"nodes"`          // that have it among their largest
}

// FleetTraced is where and when packets may have passed: POST /v1/fleet/trace.
type FleetTraced struct {
	Nodes []NodeTraced `json:"nodes"`
}

// NodeTraced is the answer of a node.
type NodeTraced struct {
	Node    string  `json:"node"`
	Problem string  `json:"problem,omitempty"` // why there is no answer
	Traced  *Traced `json:"traced,omitempty"`  // nil: there is none
}

// nodeParameter names a node; it may be repeated.
const nodeParameter = "node"

// maxNamed bounds the nodes that a request names.
const maxNamed = 1000

// askRoutes ask nodes.
func askRoutes(a Asker) []route {
	named := func(q *http.Request) ([]string, error) {
		nodes := q.URL.Query()[nodeParameter]
		if len(nodes) > maxNamed {
			return nil, &BadRequest{Err: fmt.Errorf("%d nodes: name at most %d, or none for all", len(nodes), maxNamed)}
		}
		return nodes, nil
	}
	return []route{
		{http.MethodGet, fleetExplainPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			nodes, err := named(q)
			if err != nil {
				return nil, err
			}
			packets := q.URL.Query().Get("q")
			if _, err := engine.ParseQuestion(packets); err != nil {
				return nil, &BadRequest{Err: fmt.Errorf("%w; ask as in %s?q=192.0.2.1", err, fleetExplainPath)}
			}
			e, err := a.Explain(q.Context(), nodes, packets)
			e.Nodes = list(e.Nodes)
			return e, err
		}},
		{http.MethodGet, fleetTopPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
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
		{http.MethodPost, fleetTracePath, func(w http.ResponseWriter, q *http.Request) (any, error) {
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

// DefaultShare is that of flows that are asked for.
const DefaultShare = 0.001

func readTop(query url.Values) (asked FleetTopQuestion, err error) {
	asked = FleetTopQuestion{Key: cmp.Or(query.Get("key"), "src"), Unit: cmp.Or(query.Get("unit"), sketch.Packets.String()), Share: DefaultShare}
	if err := new(sketch.Unit).UnmarshalText([]byte(asked.Unit)); err != nil {
		return asked, &BadRequest{Err: err}
	}
	if text := query.Get("share"); text != "" {
		if asked.Share, err = strconv.ParseFloat(text, 64); err != nil || !(asked.Share >= 0 && asked.Share <= 1) {
			return asked, &BadRequest{Err: fmt.Errorf("share=%.60q: want 0 to 1", text)}
		}
	}
	return asked, nil
}

// askNodes sends a request that waits for nodes.
func askNodes[T any](ctx context.Context, c *Client, method, path string, query url.Values, nodes []string, body []byte) (*T, error) {
	query[nodeParameter] = nodes
	soon, cancel := context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("the hub at %s does not answer within %v", c.path, askTimeout))
	defer cancel()
	return ask[T](soon, c, method, path+"?"+query.Encode(), body)
}

// askTimeout is how long a hub may take to ask all nodes twice.
const askTimeout = time.Minute

// ExplainFleet asks nodes what becomes of packets.
func (c *Client) ExplainFleet(ctx context.Context, nodes []string, packets string) (*FleetExplanation, error) {
	return askNodes[FleetExplanation](ctx, c, http.MethodGet, fleetExplainPath, url.Values{"q": {packets}}, nodes, nil)
}

// TopFleet asks nodes for the largest flows.
func (c *Client) TopFleet(ctx context.Context, nodes []string, asked FleetTopQuestion) (*FleetTop, error) {
	query := url.Values{"key": {asked.Key}, "unit": {asked.Unit}, "share": {strconv.FormatFloat(asked.Share, 'g', -1, 64)}}
	return askNodes[FleetTop](ctx, c, http.MethodGet, fleetTopPath, query, nodes, nil)
}

// TraceFleet asks nodes where and when packets may have passed.
func (c *Client) TraceFleet(ctx context.Context, nodes []string, asked TraceQuestion) (*FleetTraced, error) {
	body, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	return askNodes[FleetTraced](ctx, c, http.MethodPost, fleetTracePath, url.Values{}, nodes, body)
}
