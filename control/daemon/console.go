package daemon

import (
	"context"
	"fmt"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/console"
)

// errNoConsole says how to have one.
var errNoConsole = fmt.Errorf("%w: set console.listen in weir.yaml, as in 127.0.0.1:9479, and restart weir", api.ErrNoConsole)

// consoles opens and ends sessions of the console. It is safe for concurrent use.
type consoles struct {
	*console.Console // nil: none is served
	audit            *audit.Log
}

// OpenConsole implements [server.Consoles].
func (c *consoles) OpenConsole(_ context.Context, asked api.ConsoleRequest) (api.ConsoleOpened, error) {
	if c.Console == nil {
		return api.ConsoleOpened{}, errNoConsole
	}
	return c.audit.OpenConsole(c.Console, asked), nil
}

// EndConsole implements [server.Consoles].
func (c *consoles) EndConsole(ctx context.Context) (api.ConsoleEnded, error) {
	if c.Console == nil {
		return api.ConsoleEnded{}, errNoConsole
	}
	return c.audit.EndConsole(ctx, c.Console), nil
}
