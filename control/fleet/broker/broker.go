// Package broker is the NATS server with JetStream that a hub has inside, where the
// fleet has no servers of its own.
package broker

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"weir/control/fleet/authority"
	"weir/control/fleet/wire"
)

// startTimeout bounds the start: the stream is read, and may be large.
const startTimeout = time.Minute

// Options say how to run a server.
type Options struct {
	Authority *authority.Authority
	Dir       string   // of the stream
	Listen    string   // HOST:PORT
	Names     []string // DNS names and addresses that nodes know it by
	Log       *slog.Logger
}

// Server is a running server.
type Server struct {
	o       Options
	server  *server.Server
	account string
	own     *tls.Config
	events  *nats.Conn

	mu      sync.Mutex
	members map[string]authority.Member // by user
}

// Start starts a server. It accepts nodes whose certificate and key the authority has
// signed for the same node, and that are not revoked.
func Start(o Options) (*Server, error) {
	b := &Server{o: o}
	if err := b.start(); err != nil {
		b.Close()
		return nil, fmt.Errorf("broker: %w", err)
	}
	return b, nil
}

func (b *Server) start() error {
	host, text, err := net.SplitHostPort(b.o.Listen)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("port %q: %w", text, err)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	operator, _, err := b.o.Authority.Operator()
	if err != nil {
		return err
	}
	resolver := &server.MemAccResolver{}
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
	if err := errors.Join(resolver.Store(account.Subject, token), resolver.Store(stream.Subject, streamToken), resolver.Store(system.Subject, systemToken)); err != nil {
		return err
	}
	tlsConfig, err := b.o.Authority.ServerTLS(append([]string{name}, b.o.Names...))
	if err != nil {
		return err
	}
	if b.own, err = b.o.Authority.ClientTLS(); err != nil {
		return err
	}
	b.own.ServerName = name
	if err := b.load(); err != nil {
		return err
	}
	b.server, err = server.NewServer(&server.Options{
		ServerName: name, Host: host, Port: port, NoSigs: true,
		TrustedOperators: []*jwt.OperatorClaims{operator}, AccountResolver: resolver, SystemAccount: system.Subject,
		TLSConfig: tlsConfig, TLSVerify: true, TLSTimeout: 5,
		JetStream: true, StoreDir: b.o.Dir, SyncAlways: true, JetStreamDomain: wire.HubDomain,
		MaxConn: 100_000, MaxPayload: 1 << 20, MaxPending: 64 << 20, MaxControlLine: 4096,
		PingInterval: 20 * time.Second, MaxPingsOut: 2, WriteDeadline: 10 * time.Second,
	})
	if err != nil {
		return err
	}
	b.server.SetLoggerV2(logger{b.o.Log}, false, false, false)
	b.server.Start()
	if !b.server.ReadyForConnections(startTimeout) {
		return fmt.Errorf("not ready within %v", startTimeout)
	}
	// Two connections at once that are the account's first would both make its directory.
	if _, err := b.server.LookupAccount(stream.Subject); err != nil {
		return err
	}
	return b.watch()
}

// URL returns where the server listens.
func (b *Server) URL() string { return "tls://" + b.server.Addr().String() }

// Options returns how to connect from within the process.
func (b *Server) Options() []nats.Option {
	return []nats.Option{nats.InProcessServer(b.server), nats.Secure(b.own)}
}

// name is in the server's certificate, for connections from within the process.
const name = "weir-hub"

// Refresh takes in who was enrolled and revoked since. Nodes that are revoked are
// disconnected.
func (b *Server) Refresh() error {
	if err := b.load(); err != nil {
		return err
	}
	claims, token, err := b.o.Authority.Account()
	if err != nil {
		return err
	}
	if err := b.server.AccountResolver().Store(claims.Subject, token); err != nil {
		return err
	}
	a, err := b.server.LookupAccount(claims.Subject)
	if err != nil {
		return err
	}
	b.server.UpdateAccountClaims(a, claims)
	return nil
}

// Connections returns the number of connections.
func (b *Server) Connections() int { return b.server.NumClients() }

// Close stops the server.
func (b *Server) Close() {
	if b.events != nil {
		b.events.Close()
	}
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
}

// watch compares the certificate of each connection with its user: nothing else ties
// the two together.
func (b *Server) watch() error {
	token, seed, err := b.o.Authority.Own(true)
	if err != nil {
		return err
	}
	b.events, err = nats.Connect("", append(b.Options(), nats.UserJWTAndSeed(token, seed), nats.MaxReconnects(-1))...)
	if err != nil {
		return err
	}
	_, err = b.events.Subscribe("$SYS.ACCOUNT."+b.account+".CONNECT", func(m *nats.Msg) {
		var e server.ConnectEventMsg
		if err := json.Unmarshal(m.Data, &e); err != nil {
			b.o.Log.Error("broker: event: " + err.Error())
			return
		}
		if e.Client.IssuerKey == b.account {
			return // the hub's own: nodes are signed by the key of their scope
		}
		if err := b.match(e.Client.ID, e.Client.User); err != nil {
			b.o.Log.Warn("a node was disconnected: "+err.Error(), "address", e.Client.Host)
			_ = b.server.DisconnectClientByID(e.Client.ID) // it may be gone
		}
	})
	return err
}

// match returns an error unless a connection has the certificate of its user.
func (b *Server) match(id uint64, user string) error {
	all, err := b.server.Connz(&server.ConnzOptions{Username: true, CID: id})
	if err != nil || len(all.Conns) == 0 {
		return nil // it has gone
	}
	m, ok := b.member(user)
	if !ok { // it may have been enrolled since
		if err := b.load(); err != nil {
			return err
		}
		if m, ok = b.member(user); !ok {
			return errors.New("its key is no enrolled node's")
		}
	}
	if certs := all.Conns[0].TLSPeerCerts; len(certs) == 0 || certs[0].CertSha256 != m.Certificate {
		return fmt.Errorf("it has the key of node %s, and another certificate", m.Name)
	}
	return nil
}

// load reads which nodes were enrolled.
func (b *Server) load() error {
	all, err := b.o.Authority.Members()
	if err != nil {
		return err
	}
	members := make(map[string]authority.Member, len(all))
	for _, m := range all {
		members[m.User] = m
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.members = members
	return nil
}

// member returns the node of a user.
func (b *Server) member(user string) (authority.Member, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, ok := b.members[user]
	return m, ok
}

// logger logs what the server does.
type logger struct{ log *slog.Logger }

func (l logger) Noticef(format string, v ...any) { l.log.Debug("broker: " + fmt.Sprintf(format, v...)) }
func (l logger) Warnf(format string, v ...any)   { l.log.Warn("broker: " + fmt.Sprintf(format, v...)) }
func (l logger) Fatalf(format string, v ...any)  { l.log.Error("broker: " + fmt.Sprintf(format, v...)) }
func (l logger) Errorf(format string, v ...any)  { l.log.Error("broker: " + fmt.Sprintf(format, v...)) }
func (l logger) Debugf(string, ...any)           {}
func (l logger) Tracef(string, ...any)           {}
