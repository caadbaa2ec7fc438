package client

import (
	"context"
	"encoding/json"
	"net/http"

	"weir/control/api"
)

// Multicast returns the state of multicast forwarding.
func (c *Client) Multicast(ctx context.Context) (*api.Multicast, error) {
	return Get[api.Multicast](ctx, c, api.MulticastPath)
}

// ChangeMulticast adds groups to those that an interface wants, or removes them. It fails with
// an api.BadRequest if the daemon does not understand or refuses the change.
func (c *Client) ChangeMulticast(ctx context.Context, change api.MulticastChange) (*api.MulticastChanged, error) {
	method := http.MethodPost
	if change.Remove {
		method = http.MethodDelete
	}
	body, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return Ask[api.MulticastChanged](ctx, c, method, api.MulticastPath, body)
}
