package hub

import (
	"context"
	"fmt"
	"net/http"

	"weir/control/api"
)

// errNoConsole says how to have one.
var errNoConsole = fmt.Errorf("%w: set console.listen in hub.yaml, as in 127.0.0.1:9481, and restart the hub", api.ErrNoConsole)

// Console returns the handler of the console, nil if none is configured.
func (h *Hub) Console() http.Handler {
	if h.console == nil {
		return nil
	}
	return h.console
}

// ConsoleProxy returns the handler of the console for requests of its reverse proxy.
func (h *Hub) ConsoleProxy() http.Handler {
	return h.console.Proxy(h.o.Config.Console.Proxy.UserHeader)
}

// OpenConsole implements [server.Consoles].
func (h *Hub) OpenConsole(_ context.Context, asked api.ConsoleRequest) (api.ConsoleOpened, error) {
	if h.console == nil {
		return api.ConsoleOpened{}, errNoConsole
	}
	return h.audit.OpenConsole(h.console, asked), nil
}

// EndConsole implements [server.Consoles].
func (h *Hub) EndConsole(ctx context.Context) (api.ConsoleEnded, error) {
	if h.console == nil {
		return api.ConsoleEnded{}, errNoConsole
	}
	return h.audit.EndConsole(ctx, h.console), nil
}
