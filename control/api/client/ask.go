package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"weir/control/api"
)

// askNodes sends a request that waits for nodes.
func askNodes[T any](ctx context.Context, c *Client, method, path string, query url.Values, nodes []string, body []byte) (*T, error) {
	query[api.NodeParameter] = nodes
	soon, cancel := context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("the hub at %s does not answer within %v", c.path, askTimeout))
	defer cancel()
	return Ask[T](soon, c, method, path+"?"+query.Encode(), body)
}

// askTimeout is how long a hub may take to ask all nodes twice.
const askTimeout = time.Minute

// ExplainFleet asks nodes what becomes of packets.
func (c *Client) ExplainFleet(ctx context.Context, nodes []string, packets string) (*api.FleetExplanation, error) {
	return askNodes[api.FleetExplanation](ctx, c, http.MethodGet, api.FleetExplainPath, url.Values{"q": {packets}}, nodes, nil)
}

// TopFleet asks nodes for the largest flows.
func (c *Client) TopFleet(ctx context.Context, nodes []string, asked api.FleetTopQuestion) (*api.FleetTop, error) {
	query := url.Values{"key": {asked.Key}, "unit": {asked.Unit}, "share": {strconv.FormatFloat(asked.Share, 'g', -1, 64)}}
	return askNodes[api.FleetTop](ctx, c, http.MethodGet, api.FleetTopPath, query, nodes, nil)
}

// FleetFloods asks nodes whether there are floods, and which.
func (c *Client) FleetFloods(ctx context.Context, nodes []string) (*api.FleetFloods, error) {
	return askNodes[api.FleetFloods](ctx, c, http.MethodGet, api.FleetFloodsPath, url.Values{}, nodes, nil)
}

// ChangeFleetFloods has nodes drop what patterns match, or ends that.
func (c *Client) ChangeFleetFloods(ctx context.Context, change api.FleetFloodsChange) (*api.FleetFloodsChanged, error) {
	body, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return askNodes[api.FleetFloodsChanged](ctx, c, http.MethodPost, api.FleetFloodsPath, url.Values{}, nil, body)
}

// TraceFleet asks nodes where and when packets may have passed.
func (c *Client) TraceFleet(ctx context.Context, nodes []string, asked api.TraceQuestion) (*api.FleetTraced, error) {
	body, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	return askNodes[api.FleetTraced](ctx, c, http.MethodPost, api.FleetTracePath, url.Values{}, nodes, body)
}
