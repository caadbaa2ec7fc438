package client

import (
	"context"
	"net/url"
	"strconv"

	"weir/control/api"
	"weir/control/api/routing"
)

// Drops asks who was dropped.
func (c *Client) Drops(ctx context.Context, asked api.DropsQuestion) (*api.Drops, error) {
	q := url.Values{
		routing.ByParameter:    {asked.By},
		routing.LastParameter:  {strconv.FormatFloat(asked.Last.Seconds(), 'g', -1, 64)},
		routing.LimitParameter: {strconv.Itoa(asked.Limit)},
	}
	return Get[api.Drops](ctx, c, routing.DropsPath+"?"+q.Encode())
}
