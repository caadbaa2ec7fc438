// Package broker runs NATS servers with JetStream inside the process: that of a hub
// without a cluster, and that of a site.
package broker

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"weir/control/fleet/authority"
	"weir/control/fleet/wire"
)

// Options say how to run a server.
type Options struct {
	Authority *authority.Authority
	Dir       string   // of the stream
	Listen    string   // HOST:PORT
	Sites     string   // HOST:PORT for the servers of sites; "": they cannot connect
	Names     []string // DNS names and addresses that nodes and sites know it by
	Log       *slog.Logger
}

// Server is the hub's server.
type Server struct {
	o       Options
	account string
	inside
}

// Start starts a server. It accepts nodes whose certificate and key the authority has
// signed for the same node, and that are not revoked.
func Start(o Options) (*Server, error) {
	b := &Server{o: o, inside: inside{log: o.Log}}
	if err := b.start(); err != nil {
		b.Close()
		return nil, fmt.Errorf("broker: %w", err)
	}
	return b, nil
}

func (b *Server) start() error {
	operator, _, err := b.o.Authority.Operator()
	if err != nil {
		return err
	}
	account, token, err := b.o.Authority.Account()
	if err != nil {
		return err
	}
	b.account = account.Subject
	system, systemToken, err := b.o.Authority.System()
	if err != nil {
		return err
	}
	stream, streamToken, err := b.o.Authority.Stream()
	if err != nil {
		return err
	}
	resolver := &server.MemAccResolver{}
	if err := errors.Join(resolver.Store(account.Subject, token), resolver.Store(stream.Subject, streamToken), resolver.Store(system.Subject, systemToken)); err != nil {
		return err
	}
	o := limits()
	o.ServerName, o.StoreDir, o.JetStreamDomain = authority.ServerName, b.o.Dir, wire.HubDomain
	o.TrustedOperators, o.AccountResolver, o.SystemAccount = []*jwt.OperatorClaims{operator}, resolver, system.Subject
	if o.Host, o.Port, err = address(b.o.Listen); err != nil {
		return err
	}
	if o.TLSConfig, err = b.o.Authority.ServerTLS(append([]string{authority.ServerName}, b.o.Names...)); err != nil {
		return err
	}
	if b.o.Sites != "" {
		if o.LeafNode.Host, o.LeafNode.Port, err = address(b.o.Sites); err != nil {
			return err
		}
		o.LeafNode.TLSConfig, o.LeafNode.TLSTimeout, o.LeafNode.AuthTimeout = o.TLSConfig.Clone(), tlsTimeout, tlsTimeout
	}
	own, err := b.o.Authority.ClientTLS()
	if err != nil {
		return err
	}
	if err := b.run(o, own); err != nil {
		return err
	}
	if err := b.load(stream.Subject); err != nil {
		return err
	}
	events, seed, err := b.o.Authority.Own(true)
	if err != nil {
		return err
	}
	return b.watch(b.account, nats.UserJWTAndSeed(events, seed))
}

// Refresh takes in who was enrolled and revoked since. Nodes and sites that are revoked
// are disconnected.
func (b *Server) Refresh() error {
	for _, account := range []func() (*jwt.AccountClaims, string, error){b.o.Authority.Stream, b.o.Authority.Account} {
		claims, token, err := account()
		if err != nil {
			return err
		}
		if err := b.update(claims, token); err != nil {
			return err
		}
	}
	return nil
}
