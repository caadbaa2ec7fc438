package daemon

import (
	"context"
	"fmt"

	"weir/control/api"
	"weir/control/audit"
)

// errNoConsole says how to have one.
var errNoConsole = fmt.Errorf("%w: set console.listen in weir.yaml, as in 127.0.0.1:9479, and restart weir", api.ErrNoConsole)

// OpenConsole implements [api.Daemon].
func (d *Daemon) OpenConsole(_ context.Context, asked api.ConsoleRequest) (api.ConsoleOpened, error) {
	if d.console == nil {
		return api.ConsoleOpened{}, errNoConsole
	}
	if !asked.ReadOnly {
		r := audit.Record{Change: audit.Console}
		audit.By(&r, asked.UID, asked.Client)
		d.audit.Record(r)
	}
	return d.console.Open(asked), nil
}

// EndConsole implements [api.Daemon].
func (d *Daemon) EndConsole(ctx context.Context) (api.ConsoleEnded, error) {
	if d.console == nil {
		return api.ConsoleEnded{}, errNoConsole
	}
	r := audit.Record{Change: audit.ConsoleEnd}
	audit.ByCaller(ctx, &r)
	d.audit.Record(r)
	return api.ConsoleEnded{Sessions: d.console.End()}, nil
}
