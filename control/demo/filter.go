package demo

import (
	"context"
	"net"
	"time"

	"weir/control/api"
	"weir/control/attach"
	"weir/control/config"
	"weir/control/demo/playground"
	meter "weir/control/observe/traffic"
	"weir/control/stage/tracker"
	"weir/loader/hooks"
)

// Starter starts daemons.
type Starter interface {
	// Start starts a daemon that reads the counters at an interval. It filters once Start
	// returns, and until it is closed, even if ctx ends.
	Start(_ context.Context, _ *config.Config, look time.Duration) (Filter, error)
}

// Filter is a running daemon.
type Filter interface {
	// Describe describes the active program.
	Describe(context.Context) (attach.Metadata, error)
	Counters() meter.Counters
	Reload(context.Context) (api.Reloaded, error)
	OpenConsole(context.Context, api.ConsoleRequest) (api.ConsoleOpened, error)
	// Close ends the daemon, and detaches its program.
	Close() error
}

// startFilter starts a daemon that filters on an interface by the lists.
func startFilter(ctx context.Context, l *lists, on playground.End, o Options) (Filter, error) {
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
		c.Trackers = []tracker.Spec{tracker.DefaultSpec("src"), tracker.DefaultSpec("dst")}
	}
	c.Interfaces = []config.Interface{{Name: on.Iface, Netns: on.Netns, XDP: hooks.Native, Required: true}}
	return o.Filters.Start(ctx, c, look)
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
