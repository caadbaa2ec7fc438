package daemon

import (
	"context"
	"fmt"
	"time"

	"weir/control/api"
)

// errNoConsole says how to have one.
var errNoConsole = fmt.Errorf("%w: set console.listen in weir.yaml, as in 127.0.0.1:9479, and restart weir", api.ErrNoConsole)

// OpenConsole implements [api.Daemon].
func (d *Daemon) OpenConsole(_ context.Context, asked api.ConsoleRequest) (api.ConsoleOpened, error) {
	if d.console == nil {
		return api.ConsoleOpened{}, errNoConsole
	}
	if !asked.ReadOnly {
		r := auditRecord{Time: time.Now(), Change: auditConsole}
		by(&r, asked.UID, asked.Client)
		d.audit.record(r)
	}
	return d.console.Open(asked), nil
}

// EndConsole implements [api.Daemon].
func (d *Daemon) EndConsole(ctx context.Context) (api.ConsoleEnded, error) {
	if d.console == nil {
		return api.ConsoleEnded{}, errNoConsole
	}
	r := auditRecord{Time: time.Now(), Change: auditConsoleEnd}
	byCaller(ctx, &r)
	d.audit.record(r)
	return api.ConsoleEnded{Sessions: d.console.End()}, nil
}
