package hub

import (
	"context"
	"fmt"
	"net/http"

	"weir/control/api"
	"weir/control/audit"
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

// OpenConsole implements [api.Consoles].
func (h *Hub) OpenConsole(_ context.Context, asked api.ConsoleRequest) (api.ConsoleOpened, error) {
	if h.console == nil {
		return api.ConsoleOpened{}, errNoConsole
	}
	if !asked.ReadOnly {
		r := audit.Record{Change: audit.Console}
		audit.By(&r, asked.UID, asked.Client)
		h.audit.Record(r)
	}
	return h.console.Open(asked), nil
}

// EndConsole implements [api.Consoles].
func (h *Hub) EndConsole(ctx context.Context) (api.ConsoleEnded, error) {
	if h.console == nil {
		return api.ConsoleEnded{}, errNoConsole
	}
	r := audit.Record{Change: audit.ConsoleEnd}
	audit.ByCaller(ctx, &r)
	h.audit.Record(r)
	return api.ConsoleEnded{Sessions: h.console.End()}, nil
}
