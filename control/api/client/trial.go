package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"weir/control/api"
)

// Enforce ends the trial of a list, or begins one, whatever the configuration says. It fails
// with a [*api.BadRequest] if that must not be.
func (c *Client) Enforce(ctx context.Context, list string, change api.EnforceChange) (*api.Enforced, error) {
	return enforce[api.Enforced](ctx, c, list, change)
}

// EnforceFleet is Enforce at a hub, for all nodes.
func (c *Client) EnforceFleet(ctx context.Context, list string, change api.EnforceChange) (*api.FleetEnforced, error) {
	return enforce[api.FleetEnforced](ctx, c, list, change)
}

func enforce[T any](ctx context.Context, c *Client, list string, change api.EnforceChange) (*T, error) {
	body, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return Ask[T](ctx, c, http.MethodPost, strings.Replace(api.EnforcePath, "{list}", url.PathEscape(list), 1), body)
}
