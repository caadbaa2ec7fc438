package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"weir/control/attach/inventory"
	"weir/control/config"
	"weir/control/daemon"
	"weir/control/demo"
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
	*daemon.Daemon
	*daemon.API
	cancel context.CancelFunc
	ended  chan error
}

// Describe implements [demo.Filter].
func (f *demoFilter) Describe(ctx context.Context) (m inventory.Metadata, err error) {
	err = f.Do(ctx, func() error { m = f.Metadata(); return nil })
	return m, err
}

// Close ends the daemon, and detaches its program.
func (f *demoFilter) Close() error {
	f.cancel()
	return errors.Join(<-f.ended, f.Stop())
}
