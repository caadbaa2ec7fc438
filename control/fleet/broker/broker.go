// Package broker runs NATS servers with JetStream inside the process: that of a hub
// without a cluster, and that of a site.
package broker

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

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
	TLSFirst  TLSFirst
	Log       *slog.Logger
}

// TLSFirst says whether clients begin with TLS, before the server says which version it is.
type TLSFirst int

// The modes of TLSFirst.
const (
	TLSLater   TLSFirst = iota // the server speaks first
	TLSAccept                  // a client may begin; others wait a moment longer
	TLSRequire                 // others cannot connect
)

// tlsWait is how long a server waits for a client that may begin with TLS.
const tlsWait = 100 * time.Millisecond

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
	b.names, b.knows, b.proved = b.nameOf, o.Authority.Knows, o.Authority.Proved
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
	first := token
	if len(token) > jwt.MaxTokenSize { // the server reads no longer ones, but takes their claims below
		if first, err = b.o.Authority.Unrevoking(account); err != nil {
			return err
		}
	}
	resolver := &server.MemAccResolver{}
	if err := errors.Join(resolver.Store(account.Subject, first), resolver.Store(stream.Subject, streamToken), resolver.Store(system.Subject, systemToken)); err != nil {
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
	switch b.o.TLSFirst {
	case TLSAccept:
		o.TLSHandshakeFirst, o.TLSHandshakeFirstFallback = true, tlsWait
	case TLSRequire:
		o.TLSHandshakeFirst = true
	case TLSLater:
	}
	if b.o.Sites != "" {
		if o.LeafNode.Host, o.LeafNode.Port, err = address(b.o.Sites); err != nil {
			return err
		}
		o.LeafNode.TLSConfig, o.LeafNode.TLSTimeout, o.LeafNode.AuthTimeout = o.TLSConfig.Clone(), tlsTimeout, tlsTimeout
	}
	own, err := b.o.Authority.Connecting(authority.ServerName)
	if err != nil {
		return err
	}
	if err := b.run(o, own, stream.Subject, account.Subject); err != nil {
		return err
	}
	if err := b.update(account, token); err != nil {
		return err
	}
	events, seed, err := b.o.Authority.Own(true)
	if err != nil {
		return err
	}
	if err := b.watch(b.account, nats.UserJWTAndSeed(events, seed)); err != nil {
		return err
	}
	nodes, nodesSeed, err := b.o.Authority.Own(false)
	if err != nil {
		return err
	}
	lists, listsSeed, err := b.o.Authority.OwnStream()
	if err != nil {
		return err
	}
	if err := b.serve(b.account, nats.UserJWTAndSeed(nodes, nodesSeed), nats.UserJWTAndSeed(lists, listsSeed)); err != nil {
		return err
	}
	return b.listen()
}

// nameOf returns the node or site that a public key is of.
func (b *Server) nameOf(key string) string {
	members, err := b.o.Authority.AllMembers()
	if err != nil {
		return ""
	}
	for name, m := range members {
		if _, former := m.Former[key]; former || m.User == key || m.Before == key {
			return "node " + name
		}
	}
	sites, err := b.o.Authority.Sites()
	if err != nil {
		return ""
	}
	for _, s := range sites {
		if _, former := s.Former[key]; former || s.Stream == key || s.Nodes == key {
			return "site " + s.Name
		}
	}
	return ""
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
