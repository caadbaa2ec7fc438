// Package client asks a daemon for multicast forwarding, and changes it.
package client

import (
	"context"
	"encoding/json"
	"net/http"

	"weir/control/stage/multicast/message"

	"weir/control/api/client"
)

// Get returns the state of multicast forwarding.
func Get(ctx context.Context, c *client.Client) (*message.Multicast, error) {
	return client.Get[message.Multicast](ctx, c, message.Path)
}

// Change adds groups to those that an interface wants, or removes them. It fails with
// an api.BadRequest if the daemon does not understand or refuses the change.
func Change(ctx context.Context, c *client.Client, change message.MulticastChange) (*message.MulticastChanged, error) {
	method := http.MethodPost
	if change.Remove {
		method = http.MethodDelete
	}
	body, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return client.Ask[message.MulticastChanged](ctx, c, method, message.Path, body)
}
