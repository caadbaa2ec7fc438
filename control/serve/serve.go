// Package serve answers clients: commands over a Unix socket, and over TCP with
// certificates; scrapes of metrics; and the service manager.
package serve

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"weir/control/api/server"
	"weir/control/metrics"
)

// Config says where to listen.
type Config struct {
	Socket  string // of the API; "": none
	Group   string // whose members may use the socket, as root may; "": that of the process
	TLS     TLS    // where the API is served as well
	Metrics string // address and port where metrics are served as well; "": none

	Early *Early // of Open, which is served on; nil: none

	Problems *Problems // has why listening fails; nil: the log has

	Console        TLS          // where the console is served, without certificates if these are ""
	ConsoleHandler http.Handler // nil: there is none

	Join  string // address and port where hosts join a fleet; "": nowhere
	Joins Joins  // what answers them

	Proxy        Proxy        // where its reverse proxy connects to
	ProxyHandler http.Handler // nil: there is none
}

// Proxy is a socket, and the group whose members may use it, as root may.
type Proxy struct{ Socket, Group string }

// Joins lets hosts join, over TLS.
type Joins interface {
	http.Handler
	Secure(net.Listener) net.Listener
}

// TLS is a TCP address, "": none, where clients with certificates are served,
// and files in PEM for that.
type TLS struct{ Address, Cert, Key, ClientCA string }

// Source answers the API's requests, and has the metrics.
type Source interface {
	server.Daemon
	metrics.Source
}

// maxConsoleConnections bounds what processes of this host, whichever they are, take of
// the daemon's descriptors, beside the streams of sessions.
const maxConsoleConnections = 128

// maxScrapeConnections bounds those of the metrics' listener, which is for few.
const maxScrapeConnections = 128

// maxJoinConnections bounds those of hosts that join, each of which asks once.
const maxJoinConnections = 256

// retryInterval is how soon listening is tried again.
const retryInterval = 2 * time.Second

// Run starts to serve, until ctx is done, and returns a function that waits for
// the end. Filtering does not depend on it: where listening fails, it is logged
// and tried again, since at boot the network comes up after the filter.
func (c Config) Run(ctx context.Context, s Source, log *slog.Logger) (wait func()) {
	return c.run(ctx, server.Handler(s), metrics.Handler(s, log), log)
}

// HubSource is the Source of a hub.
type HubSource interface {
	server.Hub
	metrics.HubSource
}

// RunHub is Run for a hub.
func (c Config) RunHub(ctx context.Context, s HubSource, log *slog.Logger) (wait func()) {
	return c.run(ctx, server.HubHandler(s), metrics.HubHandler(s, log), log)
}

func (c Config) listen() (net.Listener, error) {
	l, err := server.ListenGroup(c.Socket, c.Group)
	if err != nil {
		return nil, err
	}
	return server.LimitListener(l, server.MaxConnections), nil
}

func (c Config) run(ctx context.Context, commands, scrapes http.Handler, log *slog.Logger) (wait func()) {
	var servers sync.WaitGroup
	answer := func(what string, h http.Handler, listen func() (net.Listener, error)) {
		l, err := listen()
		if err != nil {
			log.Error(what + " unavailable, retrying: " + err.Error())
			c.Problems.set(what, err)
		}
		servers.Go(func() {
			late := err != nil
			for err != nil {
				select {
				case <-ctx.Done():
					c.Problems.set(what, nil)
					return
				case <-time.After(retryInterval):
					l, err = listen()
					c.Problems.set(what, err)
				}
			}
			if late {
				log.Info("listening", "address", l.Addr().String())
			}
			if err := server.Serve(ctx, l, h, log); err != nil {
				log.Error(err.Error())
			}
		})
	}
	if c.Metrics != "" {
		answer("metrics listener", scrapes, func() (net.Listener, error) {
			l, err := net.Listen("tcp", c.Metrics)
			if err != nil {
				return nil, err
			}
			return server.LimitListener(l, maxScrapeConnections), nil
		})
	}
	if t := c.Console; c.ConsoleHandler != nil {
		answer("console at "+t.Address, c.ConsoleHandler, func() (net.Listener, error) {
			l, err := net.Listen("tcp", t.Address)
			if err != nil {
				return nil, err
			}
			l = server.LimitListener(l, maxConsoleConnections)
			if t.Cert == "" {
				return l, nil
			}
			secure, err := server.NewTLSListener(l, t.Cert, t.Key, t.ClientCA)
			if err != nil {
				return nil, errors.Join(err, l.Close())
			}
			return secure, nil
		})
	}
	if c.Join != "" {
		answer("joining at "+c.Join, c.Joins, func() (net.Listener, error) {
			l, err := net.Listen("tcp", c.Join)
			if err != nil {
				return nil, err
			}
			return c.Joins.Secure(server.LimitListener(l, maxJoinConnections)), nil
		})
	}
	if c.ProxyHandler != nil {
		answer("the console's socket "+c.Proxy.Socket, c.ProxyHandler, func() (net.Listener, error) {
			l, err := server.ListenPeers(c.Proxy.Socket, c.Proxy.Group, log)
			if err != nil {
				return nil, err
			}
			return server.LimitListener(l, maxConsoleConnections), nil
		})
	}
	all := http.NewServeMux()
	all.Handle("/", commands)
	all.Handle(metrics.Path, scrapes)
	switch {
	case c.Early != nil:
		c.Early.takeOver(ctx, all, &servers)
	case c.Socket != "":
		answer("API socket", all, c.listen)
	}
	if t := c.TLS; t.Address != "" {
		answer("API at "+t.Address, all, func() (net.Listener, error) {
			return server.ListenTLS(t.Address, t.Cert, t.Key, t.ClientCA)
		})
	}
	return servers.Wait
}
