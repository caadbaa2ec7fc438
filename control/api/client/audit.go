package client

import (
	"context"
	"net/url"
	"strconv"

	"weir/control/api"
)

// Audit returns the last changes, the latest first.
func (c *Client) Audit(ctx context.Context, limit int) (*api.Audit, error) {
	return Get[api.Audit](ctx, c, api.AuditPath+"?"+url.Values{api.LimitParameter: {strconv.Itoa(limit)}}.Encode())
}
