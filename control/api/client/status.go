package client

import (
	"context"

	"weir/control/api"
)

// Status returns the states of all interfaces.
func (c *Client) Status(ctx context.Context) (*api.Status, error) {
	return Get[api.Status](ctx, c, api.StatusPath)
}
