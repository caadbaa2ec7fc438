package broker

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"weir/control/fleet/authority"
)

const (
	// startTimeout bounds the start: the stream is read, and may be large.
	startTimeout = time.Minute

	tlsTimeout = 5 // seconds

	tidyInterval    = 5 * time.Second
	manyConnections = 100
)

// limits returns the options that all servers have.
func limits() *server.Options {
	return &server.Options{
		NoSigs: true, JetStream: true, SyncAlways: true,
		TLSVerify: true, TLSTimeout: tlsTimeout,
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
	own    *tls.Config
	events *nats.Conn
}

// run starts a server. Connections from within the process have a certificate, too.
func (i *inside) run(o *server.Options, own *tls.Config) (err error) {
	if i.server, err = server.NewServer(o); err != nil {
		return err
	}
	i.own = own
	i.own.ServerName = authority.ServerName
	failed := make(chan string, 1)
	i.server.SetLoggerV2(logger{i.log, failed}, false, false, false)
	i.server.Start()
	ready := make(chan bool, 1)
	go func() { ready <- i.server.ReadyForConnections(startTimeout) }()
	select {
	case text := <-failed:
		return errors.New(text)
	case ok := <-ready:
		if !ok {
			return fmt.Errorf("not ready within %v", startTimeout)
		}
	}
	go i.tidy()
	return nil
}

// tidy returns to the system what handshakes have left, each time that many connections
// were made or ended: at the start, all nodes connect at once.
func (i *inside) tidy() {
	tick := time.NewTicker(tidyInterval)
	defer tick.Stop()
	tidied, last := 0, 0
	for i.server.Running() {
		<-tick.C
		now := i.server.NumClients()
		if steady := max(now-last, last-now) <= manyConnections/10; steady && max(now-tidied, tidied-now) >= manyConnections {
			debug.FreeOSMemory()
			tidied = now
		}
		last = now
	}
}

// load loads an account before anybody connects to it: two connections at once that are
// its first would both make its directory.
func (i *inside) load(account string) error {
	_, err := i.server.LookupAccount(account)
	return err
}

// URL returns where the server listens.
func (i *inside) URL() string { return "tls://" + i.server.Addr().String() }

// Options returns how to connect from within the process.
func (i *inside) Options() []nats.Option {
	return []nats.Option{nats.InProcessServer(i.server), nats.Secure(i.own)}
}

// Connections returns the number of connections.
func (i *inside) Connections() int { return i.server.NumClients() }

// Close stops the server.
func (i *inside) Close() {
	if i.events != nil {
		i.events.Close()
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

// watch compares the certificate of each connection with its key: nothing else ties
// the two together.
func (i *inside) watch(account string, credentials nats.Option) (err error) {
	i.events, err = nats.Connect("", append(i.Options(), credentials, nats.MaxReconnects(-1))...)
	if err != nil {
		return err
	}
	_, err = i.events.Subscribe("$SYS.ACCOUNT."+account+".CONNECT", func(m *nats.Msg) {
		var e server.ConnectEventMsg
		if err := json.Unmarshal(m.Data, &e); err != nil {
			i.log.Error("broker: event: " + err.Error())
			return
		}
		if e.Client.Kind != "Client" {
			return // between the hub and a site
		}
		all, err := i.server.Connz(&server.ConnzOptions{Username: true, CID: e.Client.ID})
		if err != nil || len(all.Conns) == 0 {
			return // it has gone
		}
		key, certificate := "", ""
		if claims, err := jwt.DecodeUserClaims(e.Client.Jwt); err == nil {
			key = claims.Name
		}
		if certs := all.Conns[0].TLSPeerCerts; len(certs) > 0 {
			certificate = strings.TrimPrefix(certs[0].Subject, "CN=")
		}
		if key != "" && key == certificate {
			return
		}
		i.log.Warn("a node was disconnected: its key and its certificate are of different nodes",
			"key", key, "certificate", certificate, "address", e.Client.Host)
		_ = i.server.DisconnectClientByID(e.Client.ID) // it may be gone
	})
	return err
}

// logger logs what the server does.
type logger struct {
	log    *slog.Logger
	failed chan<- string // has room for why the server cannot run
}

func (l logger) Noticef(format string, v ...any) { l.log.Debug("broker: " + fmt.Sprintf(format, v...)) }
func (l logger) Warnf(format string, v ...any)   { l.log.Warn("broker: " + fmt.Sprintf(format, v...)) }
func (l logger) Errorf(format string, v ...any)  { l.log.Error("broker: " + fmt.Sprintf(format, v...)) }
func (l logger) Debugf(string, ...any)           {}
func (l logger) Tracef(string, ...any)           {}

// Fatalf is called by a server that cannot run, as without a port to listen on. It does
// not end the process.
func (l logger) Fatalf(format string, v ...any) {
	l.Errorf(format, v...)
	select {
	case l.failed <- fmt.Sprintf(format, v...):
	default: // it has started
	}
}
