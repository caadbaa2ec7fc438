package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"weir/control/durable"
	"weir/control/fleet/authority"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
)

const (
	// siteInterval is how often a site's server looks after its mirror.
	siteInterval = time.Second

	// A mirror that is behind and makes no progress begins to follow again when the
	// connection to the hub is made anew, unless the server waits for an answer, which it
	// does for 30 seconds.
	behindLong = 32 * time.Second

	// A mirror that has never heard of the hub is made anew after this time, then after twice as
	// long each time, up to behindLong: its question came before the hub's answers could, and the
	// server would wait for one.
	unheardLong = 3 * time.Second

	operationTimeout = 5 * time.Second
)

// SiteOptions say how to run the server of a site.
type SiteOptions struct {
	Enrollment enrollment.Site
	Dir        string // of the mirror
	Listen     string // HOST:PORT
	Log        *slog.Logger
}

// Site is the server of a site: nodes connect to it instead of the hub. It is
// connected to the hub as a leaf, and has a mirror of the stream.
type Site struct {
	o        SiteOptions
	operator *jwt.OperatorClaims
	account  *jwt.AccountClaims
	token    string // of which those are
	unsaved  bool   // it could not be saved yet
	conn     *nats.Conn
	js       jetstream.JetStream
	mirrored string // which stream the mirror is of; "": unknown
	noted    string // what the file says of that
	inside

	mu     sync.Mutex
	newer  wire.Place // the last catalog that came live
	stream string     // which stream it is in; "": unknown
	heard  time.Time  // when one came; zero: not since the start
	beat   time.Duration
}

// StartSite starts the server of a site, which Run then looks after. It needs no
// connection to the hub.
func StartSite(o SiteOptions) (*Site, error) {
	s := &Site{o: o, inside: inside{log: o.Log}}
	if err := s.start(); err != nil {
		s.Close()
		return nil, fmt.Errorf("server of site %s: %w", o.Enrollment.Name, err)
	}
	return s, nil
}

func (s *Site) start() (err error) {
	e := s.o.Enrollment
	if s.operator, err = jwt.DecodeOperatorClaims(e.Operator); err != nil {
		return fmt.Errorf("operator: %w", err)
	}
	if s.account, err = s.check(e.NodesAccount); err != nil {
		return fmt.Errorf("account of nodes: %w", err)
	}
	s.token = strings.TrimSpace(e.NodesAccount)
	saved, err := os.ReadFile(s.accountPath())
	switch {
	case err == nil:
		if c, err := s.check(string(saved)); err != nil {
			s.log.Error("the saved account of the fleet cannot be used: nodes revoked since the site was enrolled may connect until the hub can be reached: " + err.Error())
		} else if replaces(c, s.account) {
			s.account, s.token = c, strings.TrimSpace(string(saved))
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	of, err := os.ReadFile(s.mirroredPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.mirrored, s.noted = string(of), string(of)
	stream, err := jwt.DecodeAccountClaims(e.StreamAccount)
	if err != nil {
		return fmt.Errorf("account of the stream: %w", err)
	}
	system, err := jwt.DecodeAccountClaims(e.System)
	if err != nil {
		return fmt.Errorf("system: %w", err)
	}
	resolver := &server.MemAccResolver{}
	if err := errors.Join(resolver.Store(s.account.Subject, s.token), resolver.Store(stream.Subject, e.StreamAccount), resolver.Store(system.Subject, e.System)); err != nil {
		return err
	}
	o := limits()
	o.ServerName, o.StoreDir, o.JetStreamDomain = "site-"+e.Name, s.o.Dir, wire.SiteDomain(e.Name)
	o.TrustedOperators, o.AccountResolver, o.SystemAccount = []*jwt.OperatorClaims{s.operator}, resolver, system.Subject
	if o.Host, o.Port, err = address(s.o.Listen); err != nil {
		return err
	}
	if o.TLSConfig, err = e.TLS(); err != nil {
		return err
	}
	for account, c := range map[string]enrollment.Credentials{stream.Subject: e.Stream, s.account.Subject: e.Nodes} {
		r, err := s.remote(account, c)
		if err != nil {
			return err
		}
		o.LeafNode.Remotes = append(o.LeafNode.Remotes, r)
	}
	o.LeafNode.ReconnectInterval = time.Second
	own, err := e.TLS()
	if err != nil {
		return err
	}
	own.ServerName = authority.ServerName
	if err := s.run(o, []nats.Option{nats.Secure(own)}, stream.Subject, s.account.Subject); err != nil {
		return err
	}
	if err := s.watch(s.account.Subject, nats.UserJWTAndSeed(e.Events.JWT, e.Events.Seed)); err != nil {
		return err
	}
	s.conn, err = nats.Connect("", append(s.Options(), nats.UserJWTAndSeed(e.Own.JWT, e.Own.Seed), nats.MaxReconnects(-1))...)
	if err != nil {
		return err
	}
	if _, err := s.conn.Subscribe(wire.DownPrefix+wire.CatalogSubject(), s.live); err != nil {
		return err
	}
	if s.js, err = jetstream.New(s.conn); err != nil {
		return err
	}
	if err := s.serve(s.account.Subject, nats.UserJWTAndSeed(e.Fetch.JWT, e.Fetch.Seed), nats.UserJWTAndSeed(e.Own.JWT, e.Own.Seed)); err != nil {
		return err
	}
	return s.listen()
}

// remote returns the connection of an account to the hub.
func (s *Site) remote(account string, c enrollment.Credentials) (*server.RemoteLeafOpts, error) {
	r := &server.RemoteLeafOpts{LocalAccount: account, TLS: true, TLSTimeout: tlsTimeout}
	for _, text := range s.o.Enrollment.Hub {
		u, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		r.URLs = append(r.URLs, u)
	}
	var err error
	if r.TLSConfig, err = s.o.Enrollment.TLS(); err != nil {
		return nil, err
	}
	key, err := nkeys.FromSeed([]byte(c.Seed))
	if err != nil {
		return nil, err
	}
	r.SignatureCB = func(nonce []byte) (string, []byte, error) {
		signature, err := key.Sign(nonce)
		return c.JWT, signature, err
	}
	return r, nil
}

// Close stops the server.
func (s *Site) Close() {
	if s.conn != nil {
		s.conn.Close()
	}
	s.inside.Close()
}

// Connected reports whether the server is connected to the hub, with both accounts.
func (s *Site) Connected() bool { return s.server.NumLeafNodes() == 2 }

// mirror makes the mirror of the hub's stream.
func (s *Site) mirror(ctx context.Context) error {
	_, err := s.js.CreateStream(ctx, s.mirrorConfig())
	return err
}

// live takes in a catalog that the hub has just published.
func (s *Site) live(m *nats.Msg) {
	c, err := wire.OpenCatalog(s.o.Enrollment.PublicKey, m.Data)
	if err != nil {
		return // nodes refuse and report it
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard, s.beat = time.Now(), time.Duration(c.Beat)*time.Millisecond
	// One that the hub could not store is in no stream.
	if of := m.Header.Get(wire.StreamHeader); of != "" && s.newer.Before(c.Place) {
		s.newer, s.stream = c.Place, of
	}
}

// Run looks after the mirror until ctx is done.
func (s *Site) Run(ctx context.Context) error {
	tick := time.NewTicker(siteInterval)
	defer tick.Stop()
	var w watch
	for {
		s.look(ctx, &w)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// watch is the state that Run has found so far.
type watch struct {
	begun       bool
	connected   bool
	up          time.Time    // since when
	silence     wire.Silence // of the hub
	mirror      progress
	revocations string // the error in reading them that was logged, "" for none
	following   string // that of the mirror
	tidying     string
	tidied      tidied
}

// look looks after the mirror once. An error that stays is logged once.
func (s *Site) look(ctx context.Context, w *watch) {
	if is := s.Connected(); is != w.connected || !w.begun {
		w.connected, w.begun, w.up = is, true, time.Now()
		if is {
			s.log.Info("connected to the hub")
		} else {
			s.log.Warn("no connection to the hub: nodes of the site go on with the mirror")
		}
	}
	logNew := func(last *string, what string, err error) {
		text := ""
		if err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != "" && text != *last {
			s.log.Error(what + ": " + text)
		}
		*last = text
	}
	s.mu.Lock()
	heard, beat := s.heard, s.beat
	s.mu.Unlock()
	if w.connected && !heard.IsZero() && w.silence.Over(heard, w.up, beat, time.Now()) {
		s.log.Warn("the hub is not heard over this connection, connecting anew")
		_ = s.reconnect() // the connections are gone
	}
	logNew(&w.revocations, "which nodes are revoked cannot be read", s.refresh(ctx))
	logNew(&w.following, "the mirror of the hub's stream", s.follow(ctx, &w.mirror))
	logNew(&w.tidying, "the mirror keeps what the hub has removed", s.tidy(ctx, &w.tidied))
}

// progress is how far the mirror has come.
type progress struct {
	sequence uint64
	since    time.Time
	again    bool          // the connection to the hub was made anew since
	asked    time.Time     // when the mirror was last made
	pause    time.Duration // until it is made anew, if it has not heard of the hub by then
}

// follow makes the mirror anew where the hub has begun another stream: its sequence
// numbers are not those that the mirror goes on from.
func (s *Site) follow(ctx context.Context, at *progress) (err error) {
	defer func() { err = errors.Join(err, s.note()) }()
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	stream, err := s.js.Stream(ctx, wire.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if !s.Connected() {
			return nil // nothing would answer
		}
		*at = progress{asked: time.Now(), pause: min(max(unheardLong, 2*at.pause), behindLong)}
		return s.mirror(ctx)
	}
	if err != nil {
		return err
	}
	if at.asked.IsZero() {
		at.asked, at.pause = time.Now(), unheardLong
	}
	if i := stream.CachedInfo(); s.Connected() && i.State.LastSeq == 0 && i.Mirror != nil && i.Mirror.Active < 0 && time.Since(at.asked) > at.pause {
		return s.js.DeleteStream(ctx, wire.Stream) // the next look makes it
	}
	s.mu.Lock()
	newer, of := s.newer, s.stream
	s.mu.Unlock()
	if of != "" && of != s.mirrored {
		if s.mirrored != "" {
			s.log.Warn("the hub has begun another stream, making the mirror anew", "before", s.mirrored, "now", of)
			*at = progress{asked: time.Now(), pause: unheardLong}
			if err := s.js.DeleteStream(ctx, wire.Stream); err != nil {
				return err
			}
			s.mirrored = of // whenever it can be made
			return s.mirror(ctx)
		}
		s.mirrored = of
		return nil
	}
	if last := stream.CachedInfo().State.LastSeq; last != at.sequence || at.since.IsZero() {
		at.sequence, at.since, at.again = last, time.Now(), false
		return nil
	}
	var have wire.Place
	m, err := stream.GetLastMsgForSubject(ctx, wire.CatalogSubject())
	if err == nil {
		var c wire.Catalog
		if c, err = wire.OpenCatalog(s.o.Enrollment.PublicKey, m.Data); err == nil {
			have = c.Place
		}
	}
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) && !errors.Is(err, wire.ErrForged) {
		return err
	}
	switch {
	case !have.Before(newer):
		at.since, at.again = time.Now(), false
	case time.Since(at.since) > behindLong && !at.again:
		at.again = true
		return s.reconnect()
	}
	return nil
}

// note saves which stream the mirror is of, unless that is done.
func (s *Site) note() error {
	if s.mirrored == s.noted {
		return nil
	}
	if err := durable.WriteFile(s.mirroredPath(), []byte(s.mirrored)); err != nil {
		return err
	}
	s.noted = s.mirrored
	return nil
}

// reconnect makes the connections to the hub anew.
func (s *Site) reconnect() error {
	leaves, err := s.server.Leafz(nil)
	if err != nil {
		return err
	}
	for _, l := range leaves.Leafs {
		_ = s.server.DisconnectClientByID(l.ID) // it may be gone
	}
	return nil
}

// mirroredPath is the file that says which stream the mirror is of.
func (s *Site) mirroredPath() string { return filepath.Join(s.o.Dir, "mirrored") }

func (s *Site) accountPath() string { return filepath.Join(s.o.Dir, "account.jwt") }

// check returns the claims of an account that the operator has signed.
func (s *Site) check(token string) (*jwt.AccountClaims, error) {
	c, err := jwt.DecodeAccountClaims(strings.TrimSpace(token))
	if err != nil {
		return nil, err
	}
	if c.Issuer != s.operator.Subject {
		return nil, errors.New("the fleet's operator has not signed it")
	}
	if s.account != nil && c.Subject != s.account.Subject {
		return nil, errors.New("it is another account")
	}
	return c, nil
}

// replaces reports whether an account replaces the present one: it was issued later, or revokes
// at least as much. The hub's clock may have been set back.
func replaces(c, present *jwt.AccountClaims) bool {
	if c.IssuedAt > present.IssuedAt {
		return true
	}
	for user, at := range present.Revocations {
		if now, ok := c.Revocations[user]; !ok || now < at {
			return false
		}
	}
	return true
}

// update takes in the claims of the nodes' account. Where its imports change, the server removes
// what the hub has subscribed to, since a client of the site could not: the connections to the hub
// are made anew, with all subscriptions.
func (s *Site) update(c *jwt.AccountClaims, token string) error {
	if err := s.inside.update(c, token); err != nil {
		return err
	}
	same := func(a, b *jwt.Import) bool {
		return a.Account == b.Account && a.Subject == b.Subject && a.Type == b.Type
	}
	if slices.EqualFunc(c.Imports, s.account.Imports, same) {
		return nil
	}
	return s.reconnect()
}

// refresh takes in which nodes are revoked, from the mirror.
func (s *Site) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	var m *jetstream.RawStreamMsg
	stream, err := s.js.Stream(ctx, wire.Stream)
	if err == nil {
		m, err = stream.GetLastMsgForSubject(ctx, wire.AccountSubject())
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	c, err := s.check(string(m.Data))
	if err != nil {
		return err
	}
	token := strings.TrimSpace(string(m.Data))
	if token != s.token && replaces(c, s.account) { // accounts of one second have the same ID
		if err := s.update(c, token); err != nil {
			return err
		}
		s.account, s.token, s.unsaved = c, token, true
	}
	if !s.unsaved {
		return nil
	}
	if err := durable.WriteFile(s.accountPath(), []byte(s.token)); err != nil {
		return err
	}
	s.unsaved = false
	return nil
}
