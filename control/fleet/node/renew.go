package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/durable"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
)

const (
	renewTimeout = 30 * time.Second // for the hub's answer
	renewSoon    = 2 * time.Second  // after the first attempt without one; it doubles up to
	renewAgain   = 10 * time.Minute
	renewRefused = 6 * time.Hour // after a refusal
)

// credentials are a file with what a node has renewed, or is about to.
type credentials struct {
	Of   string          `json:"of"` // the user that they follow: that of the enrollment file, or that of the renewal
	Node enrollment.Node `json:"node"`
}

// complete reports whether the hub has answered.
func (c credentials) complete() bool { return c.Node.Certificate != "" }

func (n *Node) credentialsPath() string { return filepath.Join(n.dir, "credentials") }

// nextPath returns where the next credentials are until a connection has proved them.
func (n *Node) nextPath() string { return n.credentialsPath() + ".next" }

// loadCredentials returns the credentials in a file that follow a user, the zero value if there are none.
func loadCredentials(path, of string) (c credentials, err error) {
	if err = loadJSON(path, &c); err != nil || c.Of != of {
		return credentials{}, err // of a former enrollment
	}
	return c, nil
}

// loadJSON reads a file of the node, which leaves v as it is where there is none.
func loadJSON(path string, v any) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	return err
}

// saveJSON replaces a file of the node.
func saveJSON(path string, v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		err = writeFile(path, text)
	}
	return err
}

// identity is a node with what it has renewed last.
type identity struct {
	enrollment.Node
	of string // the user of its enrollment file

	assignment wire.Assignment // that it obeys; the zero value: none
	message    []byte          // the same, signed
}

// with returns the identity with other credentials.
func (i *identity) with(next enrollment.Node) *identity {
	own := *i
	own.Certificate, own.Key, own.JWT, own.Seed = next.Certificate, next.Key, next.JWT, next.Seed
	if next.Join != "" {
		own.Join = next.Join
	}
	return &own
}

// current returns the node as it connects.
func (n *Node) current() enrollment.Node {
	if own := n.own.Load(); own != nil {
		return own.Node
	}
	return n.c.Enrollment
}

// loadRenewed takes in what the node has renewed.
func (n *Node) loadRenewed() {
	own := n.own.Load()
	c, err := loadCredentials(n.credentialsPath(), own.of)
	if err != nil {
		n.log.Error("the renewed certificate of the fleet cannot be read, that of the enrollment file is used: " + err.Error())
	} else if c.complete() {
		n.own.Store(own.with(c.Node))
	}
}

// Take has the node connect by another enrollment file, as of a host that has joined anew, and reports whether it is
// another one. It fails where that takes a new [Node].
func (n *Node) Take(e enrollment.Node) (bool, error) {
	own := n.own.Load()
	if e.User() == own.of {
		return false, nil
	}
	is := n.c.Enrollment
	if e.Name != is.Name || e.TLSFirst != is.TLSFirst || !e.PublicKey.Equal(is.PublicKey) {
		return false, errors.New("it is of another node or fleet than before: restart weir")
	}
	n.own.Store(&identity{Node: e, of: e.User()})
	n.forgetAssignment()
	n.useServers(e.Servers)
	n.denied.Store(false)
	n.takeRenewal(nil)
	n.reconnect()
	return true, nil
}

// reconnect makes the connection anew.
func (n *Node) reconnect() {
	if conn := n.conn.Load(); conn != nil {
		_ = conn.ForceReconnect() // closed: the node ends
	}
}

// Denied reports whether the hub lets the node in no more, as far as that is known.
func (n *Node) Denied() bool { return n.denied.Load() }

// Renewal is that the node cannot renew its certificate.
type Renewal struct {
	Since time.Time
	Why   string
}

func (r *Renewal) String() string {
	return fmt.Sprintf("the renewal of its certificate fails since %s: %s", r.Since.UTC().Format(time.RFC3339), r.Why)
}

// Renewal returns since when the node cannot renew its certificate, and why; nil: it need not, or can.
func (n *Node) Renewal() *Renewal { return n.renewal.Load() }

// followRenewal renews the node's certificate in time, until ctx is done.
func (n *Node) followRenewal(ctx context.Context) {
	var next time.Time  // the earliest attempt
	again := renewAgain // the pause after an attempt without an answer
	for {
		own := n.own.Load()
		from, until := own.Lives()
		life := max(time.Second, until.Sub(from))
		if now := time.Now(); !until.IsZero() && now.After(next) && n.renewDue(own) {
			err := n.renew(ctx, own)
			if ctx.Err() != nil {
				return
			}
			if n.renewal.Load() == nil {
				again = 0 // the attempt before has not failed
			}
			pause := life / 10
			switch _, refused := errors.AsType[enrollment.Refused](err); {
			case refused:
				again, pause = renewAgain, min(renewRefused, life/5)
			case err != nil:
				again = min(max(2*again, renewSoon), renewAgain)
				pause = min(again, life/20)
			default:
				again = renewAgain
			}
			next = time.Now().Add(pause/2 + rand.N(pause))
			n.takeRenewal(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-n.replaced:
			next = time.Time{}
		case <-time.After(min(again, time.Minute, life/50)):
		}
	}
}

// renewDue reports whether the certificate is to be renewed: by the hub's clock, or since the hub says that it has
// expired, or since another certificate of the authority issues, or since a renewal was begun.
func (n *Node) renewDue(own *identity) bool {
	if n.expired.Load() || own.IsReplaced() || !n.clock.now().Before(own.RenewAt()) {
		return true
	}
	begun, err := loadCredentials(n.nextPath(), own.User())
	return err == nil && begun.Node.Seed != "" && n.dir != ""
}

// takeRenewal notes how an attempt has ended.
func (n *Node) takeRenewal(err error) {
	before := n.renewal.Load()
	if err == nil {
		n.expired.Store(false)
		if n.renewal.Store(nil); before != nil {
			n.reportSoon()
		}
		return
	}
	now := &Renewal{time.Now(), err.Error()}
	now.Why = now.Why[:min(len(now.Why), maxText)]
	wire.Printable(&now.Why)
	if before != nil {
		now.Since = before.Since
	}
	if n.renewal.Store(now); before == nil || before.Why != now.Why {
		n.log.Warn("the certificate of this node of the fleet is not renewed: " + now.Why)
		n.reportSoon()
	}
}

// renew renews the certificate. It goes on where a process was killed: the new keys are on the disk before the hub
// hears of them, and its answer before a connection proves that. Then they replace the former ones.
func (n *Node) renew(ctx context.Context, own *identity) error {
	if n.dir == "" || n.c.ReadOnly {
		return errors.New("there is no state_dir for new keys")
	}
	next, err := loadCredentials(n.nextPath(), own.User())
	if err != nil || next.Node.Seed == "" {
		keys, err := enrollment.NewKeys()
		if err != nil {
			return err
		}
		next = credentials{Of: own.User()}
		next.Node.Key, next.Node.Seed = keys.Key, keys.Seed
		if err := saveJSON(n.nextPath(), next); err != nil {
			return err
		}
	}
	if _, until := next.Node.Lives(); !next.complete() || !n.clock.now().Before(until) {
		if next.Node, err = n.askRenewal(ctx, own.Node, enrollment.Keys{Key: next.Node.Key, Seed: next.Node.Seed}); err == nil {
			err = saveJSON(n.nextPath(), next)
		}
		if err != nil {
			return err
		}
	}
	proved := own.with(next.Node)
	if err := n.prove(proved.Node); err != nil {
		return fmt.Errorf("the new certificate: %w", err)
	}
	if err := saveJSON(n.credentialsPath(), credentials{own.of, next.Node}); err != nil {
		return err
	}
	for ; !n.own.CompareAndSwap(own, proved); proved = own.with(next.Node) {
		of := own.User()
		if own = n.own.Load(); own.User() != of {
			return nil // by another file, which what is saved does not follow
		} // else it was assigned something meanwhile
	}
	if err := durable.Remove(n.nextPath()); err != nil { // it follows a former user by now
		n.log.Debug(err.Error())
	}
	_, until := next.Node.Lives()
	n.log.Info("the certificate of this node of the fleet is renewed", "expires", until.UTC().Format(time.RFC3339))
	n.reconnect()
	return nil
}

// askRenewal asks the hub: over the connection, or where hosts join.
func (n *Node) askRenewal(ctx context.Context, own enrollment.Node, k enrollment.Keys) (next enrollment.Node, err error) {
	r, err := own.Renewal(k)
	if err != nil {
		return next, err
	}
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	if conn := n.conn.Load(); conn != nil && n.connected.Load() {
		next, err = n.askConnected(ctx, conn, own, k, r)
		if _, refused := errors.AsType[enrollment.Refused](err); err == nil || refused {
			return next, err
		}
	}
	for _, hub := range joinURLs(own) {
		next, bad := own.Renew(ctx, hub, k, r)
		if _, refused := errors.AsType[enrollment.Refused](bad); bad == nil || refused {
			return next, bad
		}
		err = errors.Join(err, bad)
	}
	return next, err
}

// joinURLs returns where hosts join the hub of a node.
func joinURLs(own enrollment.Node) (all []string) {
	if own.Join != "" {
		return []string{own.Join}
	}
	for _, s := range own.Servers {
		if u, err := url.Parse(s); err == nil {
			all = append(all, "https://"+net.JoinHostPort(u.Hostname(), enrollment.JoinPort))
		}
	}
	return all
}

func (n *Node) askConnected(ctx context.Context, conn *nats.Conn, own enrollment.Node, k enrollment.Keys, r enrollment.Request) (next enrollment.Node, err error) {
	question, err := json.Marshal(r)
	if err != nil {
		return next, err
	}
	ctx, cancel := context.WithTimeout(ctx, renewTimeout/2)
	defer cancel()
	m, err := conn.RequestWithContext(ctx, wire.RenewSubject(own.Name), question)
	var body json.RawMessage
	if err == nil {
		body, err = wire.ParseAnswer(m.Data)
	}
	var a enrollment.Answer
	if err == nil {
		err = json.Unmarshal(body, &a)
	}
	switch {
	case err != nil:
		return next, err
	case a.Refused != nil:
		return next, *a.Refused
	case a.Node == nil:
		return next, errors.New("the hub's answer is empty")
	}
	return *a.Node, own.TakeRenewed(k, r, a.Node)
}

// prove connects by what a node has, once.
func (n *Node) prove(own enrollment.Node) error {
	o, err := own.Options()
	if err != nil {
		return err
	}
	quiet := func(*nats.Conn, *nats.Subscription, error) {} // the error is returned, too
	conn, err := nats.Connect(own.URL(), append(o, nats.NoReconnect(), nats.ErrorHandler(quiet), nats.Timeout(n.patience()),
		nats.SkipHostLookup(), nats.SetCustomDialer(n.servers))...)
	if err != nil {
		return err
	}
	n.delays.joins.Add(1)
	conn.Close()
	return nil
}

// saysExpired reports whether the hub refuses the node because its certificate has expired.
func saysExpired(err error) bool {
	return errors.Is(err, nats.ErrAuthExpired) || err != nil && strings.Contains(err.Error(), "tls: expired certificate")
}
