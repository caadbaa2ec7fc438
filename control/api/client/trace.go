package client

import (
	"context"
	"encoding/json"
	"net/http"

	"weir/control/api"
)

// Trace returns where and when packets may have passed. It fails with a [*api.BadRequest]
// for a packet that cannot be traced.
func (c *Client) Trace(ctx context.Context, asked api.TraceQuestion) (*api.Traced, error) {
	body, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	return Ask[api.Traced](ctx, c, http.MethodPost, api.TracePath, body)
}
