package client

import (
	"context"
	"net/url"
	"strconv"

	"weir/control/api"
	"weir/control/api/routing"
)

// Audit returns the last changes, the latest first.
func (c *Client) Audit(ctx context.Context, limit int) (*api.Audit, error) {
	return Get[api.Audit](ctx, c, routing.AuditPath+"?"+url.Values{routing.LimitParameter: {strconv.Itoa(limit)}}.Encode())
}
