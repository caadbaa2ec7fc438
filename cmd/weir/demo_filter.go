package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"weir/control/api"
	"weir/control/attach"
	"weir/control/config"
	"weir/control/daemon"
	"weir/control/demo"
	"weir/control/observe/traffic"
)

// demoFilters starts daemons for the demo in this process.
type demoFilters struct{}

// Start implements [demo.Starter].
func (demoFilters) Start(ctx context.Context, c *config.Config, look time.Duration) (demo.Filter, error) {
	d, err := daemon.Start(ctx, daemon.Options{Config: fixedConfig{c}, Version: version, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &demoFilter{d, d.API(), cancel, make(chan error, 1)}
	go func() { f.ended <- d.Run(running, nil, look, nil) }()
	return f, nil
}

// fixedConfig is a configuration that never changes.
type fixedConfig struct{ c *config.Config }

func (r fixedConfig) Read() (*config.Config, error) { return r.c, r.c.Validate() }

// demoFilter is a running daemon of the demo.
type demoFilter struct {
	daemon *daemon.Daemon
	api    *daemon.API
	cancel context.CancelFunc
	ended  chan error
}

// Describe implements [demo.Filter].
func (f *demoFilter) Describe(ctx context.Context) (m attach.Metadata, err error) {
	err = f.api.Do(ctx, func() error { m = f.daemon.Metadata(); return nil })
	return m, err
}

// Counters implements [demo.Filter].
func (f *demoFilter) Counters() traffic.Counters { return f.api.Counters() }

// Reload implements [demo.Filter].
func (f *demoFilter) Reload(ctx context.Context) (api.Reloaded, error) { return f.daemon.Reload(ctx) }

// OpenConsole implements [demo.Filter].
func (f *demoFilter) OpenConsole(ctx context.Context, asked api.ConsoleRequest) (api.ConsoleOpened, error) {
	return f.api.OpenConsole(ctx, asked)
}

// Close ends the daemon, and detaches its program.
func (f *demoFilter) Close() error {
	f.cancel()
	return errors.Join(<-f.ended, f.daemon.Stop())
}
