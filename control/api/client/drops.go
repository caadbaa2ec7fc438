package client

import (
	"context"
	"net/url"
	"strconv"

	"weir/control/api"
	"weir/control/api/internal/contract"
)

// Drops asks who was dropped.
func (c *Client) Drops(ctx context.Context, asked api.DropsQuestion) (*api.Drops, error) {
	q := url.Values{
		contract.ByParameter:    {asked.By},
		contract.LastParameter:  {strconv.FormatFloat(asked.Last.Seconds(), 'g', -1, 64)},
		contract.LimitParameter: {strconv.Itoa(asked.Limit)},
	}
	return Get[api.Drops](ctx, c, contract.DropsPath+"?"+q.Encode())
}
