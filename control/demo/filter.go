package demo

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"weir/control/attach"
	"weir/control/config"
	"weir/control/daemon"
	"weir/control/demo/playground"
	"weir/control/observe/heavy"
	"weir/loader"
)

// filter is a daemon that filters on an interface of the demo.
type filter struct {
	*daemon.Daemon
	*daemon.API
	cancel context.CancelFunc
	ended  chan error
}

// configured is a fixed configuration.
type configured struct{ c *config.Config }

func (r configured) Read() (*config.Config, error) { return r.c, r.c.Validate() }

func startFilter(ctx context.Context, l *lists, on playground.End, o Options) (*filter, error) {
	c, err := l.config()
	if err != nil {
		return nil, err
	}
	c.Pins = pins
	if o.Console {
		if c.Console.Listen, err = freeAddress(); err != nil {
			return nil, err
		}
		// It shows talkers, too.
		c.Trackers = []heavy.Spec{heavy.DefaultSpec("src"), heavy.DefaultSpec("dst")}
	}
	c.Interfaces = []config.Interface{{Name: on.Iface, Netns: on.Netns, XDP: loader.Native, Required: true}}
	d, err := daemon.Start(ctx, daemon.Options{Config: configured{c}, Version: o.Version, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &filter{d, d.API(), cancel, make(chan error, 1)}
	go func() { f.ended <- d.Run(running, nil, look, nil) }()
	return f, nil
}

// consoleAddress is where the console is served, if nothing else is.
const consoleAddress = "127.0.0.1:9479"

// freeAddress returns an address on which nothing listens.
func freeAddress() (config.Address, error) {
	l, err := net.Listen("tcp", consoleAddress)
	if err != nil {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return "", err
	}
	return config.Address(l.Addr().String()), l.Close()
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
