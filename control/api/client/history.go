package client

import (
	"context"
	"net/url"
	"strconv"

	"weir/control/api"
)

// History asks what passed and was dropped.
func (c *Client) History(ctx context.Context, asked api.HistoryQuestion) (*api.History, error) {
	q := url.Values{api.SinceParameter: {strconv.FormatFloat(asked.Since.Seconds(), 'g', -1, 64)}}
	if asked.Step != 0 {
		q.Set(api.StepParameter, strconv.FormatFloat(asked.Step.Seconds(), 'g', -1, 64))
	}
	return Get[api.History](ctx, c, api.HistoryPath+"?"+q.Encode())
}
