package client

import (
	"context"
	"net/url"
	"strconv"

	"weir/control/api"
	"weir/control/api/routing"
)

// History asks what passed and was dropped.
func (c *Client) History(ctx context.Context, asked api.HistoryQuestion) (*api.History, error) {
	q := url.Values{routing.SinceParameter: {strconv.FormatFloat(asked.Since.Seconds(), 'g', -1, 64)}}
	if asked.Step != 0 {
		q.Set(routing.StepParameter, strconv.FormatFloat(asked.Step.Seconds(), 'g', -1, 64))
	}
	return Get[api.History](ctx, c, routing.HistoryPath+"?"+q.Encode())
}
