package client

import (
	"context"
	"encoding/json"
	"net/http"

	"weir/control/api"
)

// TestNotify sends a test event to a receiver of notifications, "" for all, and
// returns what they answered.
func (c *Client) TestNotify(ctx context.Context, target string) ([]api.NotifyTested, error) {
	body, err := json.Marshal(api.NotifyTest{Target: target})
	if err != nil {
		return nil, err
	}
	n, err := Ask[api.NotifyTests](ctx, c, http.MethodPost, api.NotifyTestPath, body)
	if err != nil {
		return nil, err
	}
	return n.Targets, nil
}
