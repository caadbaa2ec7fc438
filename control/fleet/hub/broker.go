package hub

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/fleet/authority"
	"weir/control/fleet/wire"
)

// Broker describes the servers that nodes connect to.
type Broker interface {
	// Options returns how the hub connects.
	Options() []nats.Option
	// URL returns where, "" if the options say it.
	URL() string
	// Refresh takes in which nodes are enrolled and revoked, and disconnects the latter.
	Refresh() error
}

// guard knows what nodes do that they should not, and whether they can connect: the server inside the hub.
type guard interface {
	Handshakes() (waiting int, late uint64)
	Problems() []string            // a line each
	Violations() map[string]uint64 // by node
	Misuse() (violations uint64, twice int, slow uint64)
}

// guarded returns the guard of a broker, nil with a cluster.
func guarded(b Broker) guard {
	g, _ := b.(guard)
	return g
}

// dialer connects the hub to the broker. It is safe for concurrent use, but for tried.
type dialer struct {
	broker    Broker
	authority *authority.Authority
	log       *slog.Logger

	mu    sync.Mutex
	conns []*nats.Conn // that were made

	unanswered int       // times that the server has been asked without an answer
	since      time.Time // when there was the first of these
}

// cluster returns the cluster of servers, nil where one runs inside.
func (d *dialer) cluster() *External {
	e, _ := d.broker.(*External)
	return e
}

// mostUnanswered is how long a server of the cluster that hears the others is used though it does not
// publish: they choose a leader meanwhile, which takes ten seconds.
const mostUnanswered = 15 * time.Second

// tried takes in how an attempt to publish has ended. A server that is cut off from the others keeps
// connections, and publishes nothing: asked twice without an answer, the hub connects to the next one. All of
// its connections are to one server, as the one that publishes.
func (d *dialer) tried(publishes *nats.Conn, err error, replicas int, now time.Time) {
	e := d.cluster()
	if e == nil {
		return
	}
	d.mu.Lock()
	all := append(slices.Clone(d.conns), e.events)
	d.mu.Unlock()
	if err == nil {
		d.unanswered = 0
		at := publishes.ConnectedUrl()
		for _, c := range all {
			if on := c.ConnectedUrl(); at != "" && on != "" && on != at {
				_ = c.ForceReconnect() // closed: the hub ends
			}
		}
		return
	}
	n := unanswered(err)
	switch {
	case n == 0:
		d.unanswered = 0
	case d.unanswered == 0:
		d.since = now
	}
	if d.unanswered += n; d.unanswered < 2 || now.Sub(d.since) < mostUnanswered && e.hears(replicas/2+1) {
		return
	}
	d.unanswered = 0
	d.log.Warn("a server of the cluster does not publish, connecting to the next one: " + err.Error())
	for _, c := range all {
		_ = c.ForceReconnect()
	}
}

// own returns the hub's credentials in the account of the nodes.
func (d *dialer) own() (token, seed string, err error) { return d.authority.Own(false) }

// dial connects to the broker with some credentials.
func (d *dialer) dial(name string, own func() (token, seed string, err error), more ...nats.Option) (*nats.Conn, error) {
	token, seed, err := own()
	if err != nil {
		return nil, err
	}
	options := []nats.Option{
		nats.Name(name), nats.UserJWTAndSeed(token, seed), nats.CustomInboxPrefix(wire.HubInbox), nats.MaxReconnects(-1), nats.ReconnectWait(retryInterval),
		nats.ErrorHandler(func(_ *nats.Conn, s *nats.Subscription, err error) {
			subject := ""
			if s != nil {
				subject = s.Subject
			}
			d.log.Warn("broker: "+err.Error(), "subject", subject)
		}),
	}
	c, err := nats.Connect(d.broker.URL(), slices.Concat(options, more, d.broker.Options())...)
	if err == nil {
		d.mu.Lock()
		d.conns = append(slices.DeleteFunc(d.conns, (*nats.Conn).IsClosed), c)
		d.mu.Unlock()
	}
	return c, err
}
