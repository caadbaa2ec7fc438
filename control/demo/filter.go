package demo

import (
	"context"
	"errors"
	"log/slog"

	"weir/control/attach"
	"weir/control/config"
	"weir/control/daemon"
	"weir/control/demo/playground"
	"weir/loader"
)

// filter is a daemon that filters on an interface of the demo.
type filter struct {
	*daemon.Daemon
	cancel context.CancelFunc
	ended  chan error
}

// configured is a fixed configuration.
type configured struct{ c *config.Config }

func (r configured) Read() (*config.Config, error) { return r.c, r.c.Validate() }

func startFilter(ctx context.Context, l *lists, on playground.End, version string) (*filter, error) {
	c, err := l.config()
	if err != nil {
		return nil, err
	}
	c.Pins = pins
	c.Interfaces = []config.Interface{{Name: on.Iface, Netns: on.Netns, XDP: loader.Native, Required: true}}
	d, err := daemon.Start(ctx, daemon.Options{Config: configured{c}, Version: version, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &filter{d, cancel, make(chan error, 1)}
	go func() { f.ended <- d.Run(running, nil, look, nil) }()
	return f, nil
}

// metadata describes what is active.
func (f *filter) metadata(ctx context.Context) (m attach.Metadata, err error) {
	err = f.Do(ctx, func() error { m = f.Metadata(); return nil })
	return m, err
}

// stop detaches the program.
func (f *filter) stop() error {
	f.cancel()
	return errors.Join(<-f.ended, f.Stop())
}
