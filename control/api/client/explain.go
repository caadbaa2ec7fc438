package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"weir/control/api"
)

// Explain returns the answer to a question: about an entry, in the format of lists.
func (c *Client) Explain(ctx context.Context, question string) (*api.Explanation, error) {
	return Ask[api.Explanation](ctx, c, http.MethodGet, api.ExplainPath+"?q="+url.QueryEscape(question), nil)
}

// ExplainSoon is Explain without the places of entries in their sources. To find these, the daemon
// reads the sources.
func (c *Client) ExplainSoon(ctx context.Context, question string) (*api.Explanation, error) {
	query := url.Values{"q": {question}, api.PlacesParameter: {"false"}}
	return Get[api.Explanation](ctx, c, api.ExplainPath+"?"+query.Encode())
}

// ExplainFrames explains Ethernet frames, at most MaxExplained.
func (c *Client) ExplainFrames(ctx context.Context, frames [][]byte) ([]api.Explanation, error) {
	body, err := json.Marshal(api.Frames{Frames: frames})
	if err != nil {
		return nil, err
	}
	e, err := Ask[api.Explanations](ctx, c, http.MethodPost, api.ExplainPath, body)
	if err != nil {
		return nil, err
	}
	return e.Explanations, nil
}
