package broker

import (
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"weir/control/fleet/authority"
)

const (
	// startTimeout bounds the start: the stream is read, and may be large.
	startTimeout  = time.Minute
	readyInterval = 50 * time.Millisecond

	tlsTimeout = 5 // seconds

	tidyInterval    = 5 * time.Second
	manyConnections = 100
)

// limits returns the options that all servers have.
func limits() *server.Options {
	return &server.Options{
		NoSigs: true, JetStream: true, SyncAlways: true,
		JetStreamMaxStore: 1 << 50, // by default, three quarters of the free space at the start: nothing on a full disk
		TLSVerify:         true, TLSTimeout: tlsTimeout,
		MaxConn: 100_000, MaxPayload: 1 << 20, MaxPending: 64 << 20, MaxControlLine: 4096,
		PingInterval: 20 * time.Second, MaxPingsOut: 2, WriteDeadline: 10 * time.Second,
	}
}

// address returns the parts of HOST:PORT. Port 0 is any.
func address(listen string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, err
	}
	if port, err = strconv.Atoi(text); err != nil {
		return "", 0, fmt.Errorf("port %q: %w", text, err)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	return host, port, nil
}

// inside is a server inside the process.
type inside struct {
	log    *slog.Logger
	server *server.Server
	own    []nats.Option // of connections within the process
	events *nats.Conn

	failed chan string // has room for why the server cannot run

	gate    *gate
	guard   *guard
	fetcher *fetcher                              // nil: JetStream answers what nodes fetch
	names   func(key string) string               // of nodes and sites, by their public keys; nil: unknown
	knows   func(node, user string) (bool, error) // whether the node was enrolled with the user; nil: unknown
	proved  func(node, user string) error         // takes in that a node has connected as a user; nil: it is not

	ended   chan struct{} // closed: watchOver returns
	watches sync.WaitGroup
}

// run starts a server, which does not listen for nodes before [inside.listen]. Connections from
// within the process have a certificate, too. Accounts are loaded before anybody connects: two
// connections at once that are an account's first would both make its directory, and an account
// that is loaded beside a connection to the hub removes what the hub has subscribed to there.
func (i *inside) run(o *server.Options, own []nats.Option, accounts ...string) (err error) {
	i.guard, i.gate = newGuard(i.log), newGate()
	o.DontListen = true
	o.TLSConfig = o.TLSConfig.Clone() // not that of sites' servers
	o.TLSConfig.VerifyConnection = i.guard.hello
	o.TLSConfig.GetConfigForClient, o.TLSTimeout = i.admit(o.TLSConfig.GetConfigForClient), handshakeTimeout.Seconds()
	if i.server, err = server.NewServer(o); err != nil {
		return err
	}
	i.guard.server = i.server
	i.own = own
	i.failed = make(chan string, 1)
	i.server.SetLoggerV2(&logger{log: i.log, guard: i.guard, names: i.names, failed: i.failed}, false, false, false)
	for _, account := range accounts {
		if _, err := i.server.LookupAccount(account); err != nil {
			return err
		}
	}
	i.server.Start()
	for began := time.Now(); !i.server.ReadyForConnections(readyInterval); {
		select {
		case text := <-i.failed:
			return errors.New(text)
		default:
		}
		if time.Since(began) > startTimeout {
			return fmt.Errorf("not ready within %v", startTimeout)
		}
	}
	i.ended = make(chan struct{})
	i.watches.Go(i.watchOver)
	return nil
}

// admit returns what has handshakes wait for their turn, and then gives them the server's configuration of that time;
// nil: it is always the same.
func (i *inside) admit(current func(*tls.ClientHelloInfo) (*tls.Config, error)) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if _, err := i.gate.admit(hello); err != nil || current == nil {
			return nil, err
		}
		c, err := current(hello)
		if err == nil {
			c = c.Clone()
			c.VerifyConnection = i.guard.hello
		}
		return c, err
	}
}

// listen begins to listen for nodes. It comes after watch and serve: a node that connects before
// watch is not compared with its certificate, and one that fetches before serve takes the server for
// one of a cluster.
func (i *inside) listen() error {
	listening := make(chan struct{})
	i.server.AcceptLoop(listening)
	<-listening
	select {
	case text := <-i.failed:
		return errors.New(text)
	default:
		return nil
	}
}

// watchOver looks after what nodes do. It returns to the system what handshakes have left, each time that
// many connections were made or ended: at the start, all nodes connect at once.
func (i *inside) watchOver() {
	look, tidy := time.NewTicker(guardInterval), time.NewTicker(tidyInterval)
	defer look.Stop()
	defer tidy.Stop()
	tidied, last := 0, 0
	for {
		select {
		case <-i.ended:
			return
		case now := <-look.C:
			i.guard.look(now)
		case <-tidy.C:
			now := i.server.NumClients()
			if steady := max(now-last, last-now) <= manyConnections/10; steady && max(now-tidied, tidied-now) >= manyConnections {
				debug.FreeOSMemory()
				tidied = now
			}
			last = now
		}
	}
}

// URL returns where the server listens.
func (i *inside) URL() string { return "tls://" + i.server.Addr().String() }

// Options returns how to connect from within the process.
func (i *inside) Options() []nats.Option {
	return append([]nats.Option{nats.InProcessServer(local{i.server}), nats.Timeout(handshakeTimeout)}, i.own...)
}

// Connections returns the number of connections.
func (i *inside) Connections() int { return i.server.NumClients() }

// Sent returns the number of bytes that were sent, to the process itself, too.
func (i *inside) Sent() int64 {
	v, err := i.server.Varz(nil)
	if err != nil {
		return 0
	}
	return v.OutBytes
}

// Close stops the server.
func (i *inside) Close() {
	if i.fetcher != nil {
		i.fetcher.close()
		i.fetcher = nil
	}
	if i.events != nil {
		i.events.Close()
	}
	if i.ended != nil {
		close(i.ended)
		i.watches.Wait()
		i.ended = nil
	}
	if i.server != nil {
		i.server.Shutdown()
		i.server.WaitForShutdown()
	}
}

// update replaces the claims of an account, if they have changed: the server makes the
// account's imports anew, and meanwhile loses what nodes ask for and its answers.
func (i *inside) update(claims *jwt.AccountClaims, token string) error {
	resolver := i.server.AccountResolver()
	if now, err := resolver.Fetch(claims.Subject); err == nil && now == token {
		return nil
	}
	a, err := i.server.LookupAccount(claims.Subject)
	if err != nil {
		return err
	}
	if err := resolver.Store(claims.Subject, token); err != nil {
		return err
	}
	i.server.UpdateAccountClaims(a, claims)
	return nil
}

// watch takes in who is connected, and compares the certificate of each connection with its
// key: nothing else ties the two together.
func (i *inside) watch(account string, credentials nats.Option) (err error) {
	i.events, err = nats.Connect("", append(i.Options(), credentials, nats.MaxReconnects(-1))...)
	if err != nil {
		return err
	}
	if _, err = i.events.Subscribe("$SYS.ACCOUNT."+account+".DISCONNECT", func(m *nats.Msg) {
		var e server.DisconnectEventMsg
		if err := json.Unmarshal(m.Data, &e); err == nil && e.Client.Kind == "Client" {
			i.guard.disconnected(e.Client.ID)
		}
	}); err != nil {
		return err
	}
	warned := make(map[string]bool) // by user
	_, err = i.events.Subscribe("$SYS.ACCOUNT."+account+".CONNECT", func(m *nats.Msg) {
		var e server.ConnectEventMsg
		if err := json.Unmarshal(m.Data, &e); err != nil {
			i.log.Error("broker: event: " + err.Error())
			return
		}
		if e.Client.Kind != "Client" || e.Client.Host == "" {
			return // between the hub and a site, or within the process
		}
		all, err := i.server.Connz(&server.ConnzOptions{Username: true, CID: e.Client.ID})
		if err != nil || len(all.Conns) == 0 {
			return // it has gone
		}
		key, user, certificate := "", "", ""
		var sum fingerprint
		if claims, err := jwt.DecodeUserClaims(e.Client.Jwt); err == nil {
			key, user = claims.Name, claims.Subject
		}
		if certs := all.Conns[0].TLSPeerCerts; len(certs) > 0 {
			certificate = strings.TrimPrefix(certs[0].Subject, "CN=")
			_, _ = hex.Decode(sum[:], []byte(certs[0].CertSha256)) // the server has written it
		}
		address := net.JoinHostPort(e.Client.Host, strconv.Itoa(all.Conns[0].Port))
		if key == "" || key != certificate {
			i.log.Warn("a node was disconnected: its key and its certificate are of different nodes",
				"key", key, "certificate", certificate, "address", e.Client.Host)
			_ = i.server.DisconnectClientByID(e.Client.ID) // it may be gone
			return
		}
		if key == authority.ServerName && i.unknown(key, user) {
			return // a hub that asks which one this is
		}
		if !warned[user] && i.unknown(key, user) {
			warned[user] = true
			i.log.Warn("a node is connected with a user that the keys do not know, as after an older backup was restored: "+
				"`weir hub revoke NODE --user USER` cuts it off", "node", key, "user", user, "address", e.Client.Host)
		}
		if i.proved != nil {
			if err := i.proved(key, user); err != nil {
				i.log.Error("the former certificate of a node is not revoked: "+err.Error(), "node", key)
			}
		}
		for _, id := range i.guard.connected(key, user, sum, connection{e.Client.ID, address, all.Conns[0].Start}) {
			_ = i.server.DisconnectClientByID(id) // it may be gone
		}
	})
	return err
}

// unknown reports whether the keys do not know a user that they have signed: revoking the node does not cut it off.
func (i *inside) unknown(node, user string) bool {
	if i.knows == nil {
		return false
	}
	known, err := i.knows(node, user)
	return err == nil && !known
}
