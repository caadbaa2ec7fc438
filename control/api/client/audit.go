package client

import (
	"context"
	"net/url"
	"strconv"

	"weir/control/api"
	"weir/control/api/internal/contract"
)

// Audit returns the last changes, the latest first.
func (c *Client) Audit(ctx context.Context, limit int) (*api.Audit, error) {
	return Get[api.Audit](ctx, c, contract.AuditPath+"?"+url.Values{contract.LimitParameter: {strconv.Itoa(limit)}}.Encode())
}
