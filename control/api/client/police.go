package client

import (
	"context"
	"encoding/json"
	"net/http"

	"weir/control/api"
)

// SetPolice limits what an interface receives to a rate, whatever the configuration says, or ends
// that. It fails with a [*api.BadRequest] if that must not be.
func (c *Client) SetPolice(ctx context.Context, change api.PoliceChange) (*api.Policed, error) {
	body, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return Ask[api.Policed](ctx, c, http.MethodPost, api.PolicePath, body)
}
