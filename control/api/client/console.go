package client

import (
	"context"
	"encoding/json"
	"net/http"

	"weir/control/api"
)

// OpenConsole asks for a URL that opens the console once.
func (c *Client) OpenConsole(ctx context.Context, r api.ConsoleRequest) (*api.ConsoleOpened, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return Ask[api.ConsoleOpened](ctx, c, http.MethodPost, api.ConsolePath, body)
}

// EndConsole ends all sessions of the console.
func (c *Client) EndConsole(ctx context.Context) (*api.ConsoleEnded, error) {
	return Ask[api.ConsoleEnded](ctx, c, http.MethodDelete, api.ConsolePath, nil)
}
