package client

import (
	"context"
	"encoding/json"
	"net/http"

	"weir/control/api"
)

// Roll changes the course of rollouts at a hub.
func (c *Client) Roll(ctx context.Context, asked api.FleetRoll) (*api.FleetRolled, error) {
	body, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	return Ask[api.FleetRolled](ctx, c, http.MethodPost, api.RolloutsPath, body)
}
