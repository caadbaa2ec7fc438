package hub

import (
	"log/slog"
	"slices"

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

// guard knows what nodes do that they should not: the server inside the hub.
type guard interface {
	Problems() []string            // a line each
	Violations() map[string]uint64 // by node
	Misuse() (violations uint64, twice int, slow uint64)
}

// guarded returns the guard of a broker, nil with a cluster.
func guarded(b Broker) guard {
	g, _ := b.(guard)
	return g
}

// dialer connects the hub to the broker. It is safe for concurrent use.
type dialer struct {
	broker    Broker
	authority *authority.Authority
	log       *slog.Logger
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
	return nats.Connect(d.broker.URL(), slices.Concat(options, more, d.broker.Options())...)
}
