package daemon

import (
	"context"
	"fmt"

	"weir/control/api"
)

// errNoConsole says how to have one.
var errNoConsole = fmt.Errorf("%w: set console.listen in weir.yaml, as in 127.0.0.1:9479, and restart weir", api.ErrNoConsole)

// OpenConsole implements [server.Daemon].
func (d *Daemon) OpenConsole(_ context.Context, asked api.ConsoleRequest) (api.ConsoleOpened, error) {
	if d.console == nil {
		return api.ConsoleOpened{}, errNoConsole
	}
	return d.audit.OpenConsole(d.console, asked), nil
}

// EndConsole implements [server.Daemon].
func (d *Daemon) EndConsole(ctx context.Context) (api.ConsoleEnded, error) {
	if d.console == nil {
		return api.ConsoleEnded{}, errNoConsole
	}
	return d.audit.EndConsole(ctx, d.console), nil
}
