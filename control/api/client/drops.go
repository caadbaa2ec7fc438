package client

import (
	"context"
	"net/url"
	"strconv"

	"weir/control/api"
)

// Drops asks who was dropped.
func (c *Client) Drops(ctx context.Context, asked api.DropsQuestion) (*api.Drops, error) {
	q := url.Values{
		api.ByParameter:    {asked.By},
		api.LastParameter:  {strconv.FormatFloat(asked.Last.Seconds(), 'g', -1, 64)},
		api.LimitParameter: {strconv.Itoa(asked.Limit)},
	}
	return Get[api.Drops](ctx, c, api.DropsPath+"?"+q.Encode())
}
