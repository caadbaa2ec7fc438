package hub

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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

	unanswered int       // attempts to publish
	left       time.Time // when the connections to the cluster were last made anew
}

// cluster returns the cluster of servers, nil where one runs inside.
func (d *dialer) cluster() *External {
	e, _ := d.broker.(*External)
	return e
}

// leaveAgain is how long a server of the cluster is used at least: the others choose a leader meanwhile,
// and one cut off would be the next but one.
const leaveAgain = 15 * time.Second

// tried takes in how an attempt to publish has ended. A server that is cut off from the others keeps
// connections, and publishes nothing: after two attempts, the hub connects to the next one. All of
// its connections are to one server, as the one that publishes.
func (d *dialer) tried(publishes *nats.Conn, err error, now time.Time) {
	e := d.cluster()
	if e == nil {
		return
	}
	d.mu.Lock()
	all := append(slices.Clone(d.conns), e.events)
	d.mu.Unlock()
	refused, _ := errors.AsType[*jetstream.APIError](err)
	switch {
	case err == nil:
		d.unanswered = 0
		at := publishes.ConnectedUrl()
		for _, c := range all {
			if on := c.ConnectedUrl(); at != "" && on != "" && on != at {
				_ = c.ForceReconnect() // closed: the hub ends
			}
		}
		return
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout): // asked twice
		d.unanswered += 2
	case errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) || refused != nil && refused.Code == 503:
		d.unanswered++
	default:
		d.unanswered = 0
	}
	if d.unanswered < 2 || now.Sub(d.left) < leaveAgain {
		return
	}
	d.unanswered, d.left = 0, now
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
