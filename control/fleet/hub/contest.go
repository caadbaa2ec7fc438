package hub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/fleet/authority"
	"weir/control/fleet/wire"
)

// visitTimeout bounds the visit of an address of servers, and how long commands wait after a start
// for the first visits. It is a variable for tests.
var visitTimeout = 2 * time.Second

const (
	// seekAtMost is how often the addresses are visited.
	seekAtMost = 2 * time.Second

	// ownAgain is after what time an address is visited again where this hub itself has answered.
	ownAgain = time.Minute

	// maxVisited bounds the addresses of a name that are visited.
	maxVisited = 16
)

// errOverruled means that another hub has the larger claim.
var errOverruled = errors.New("another hub with the same keys has taken over")

// contest knows of other hubs with the same keys. Of two, neither acknowledges commands until one is made
// to take over: it has the larger claim then, and the other one does not publish either. It is safe for
// concurrent use.
type contest struct {
	instance string        // of this start
	again    chan struct{} // has room for one: addresses are to be visited now
	looked   chan struct{} // closed when the addresses were visited once, or did not answer in time

	mu      sync.Mutex
	claim   uint64
	began   time.Time            // when the first catalog was published; zero: not yet
	own     map[string]time.Time // when this hub itself last answered at an address
	rival   *rival               // nil: none was seen
	stopped chan struct{}        // closed: commands are refused, since a hub was seen that has no smaller claim
}

// rival is another hub with the same keys.
type rival struct {
	wire.Hub
	where string // in messages, with what comes before it
	from  evidence
	seen  time.Time
}

// evidence says how a rival was noticed. Larger ones know better where it is.
type evidence int

const (
	byReport evidence = iota
	byQuestion
	byVisit
)

func newContest(claim uint64) *contest {
	return &contest{
		instance: wire.NewID(), claim: claim, again: make(chan struct{}, 1), looked: make(chan struct{}), stopped: make(chan struct{}),
		own: make(map[string]time.Time),
	}
}

// term returns the term of a catalog that is made now.
func (c *contest) term() wire.Term {
	c.mu.Lock()
	defer c.mu.Unlock()
	return wire.Term{Instance: c.instance, Claim: c.claim, Issued: time.Now().UTC()}
}

// meet takes in that another hub was seen, and reports whether that is news.
func (c *contest) meet(r rival) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch was := c.rival; {
	case was == nil:
		news = true
	case was.Instance == r.Instance:
		r.Claim = max(r.Claim, was.Claim) // a report may be of before
		news = (was.Claim > c.claim) != (r.Claim > c.claim)
		if r.from < was.from {
			r.where, r.from = was.where, was.from
			if len(was.Nodes) > 0 {
				r.Nodes = was.Nodes
			}
		}
	case r.Claim < was.Claim:
		return false
	}
	c.rival = &r
	if r.Claim >= c.claim && !closed(c.stopped) {
		close(c.stopped)
		news = true
	}
	return news
}

// published notes that a catalog was published.
func (c *contest) published(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.began.IsZero() {
		c.began = at
	}
}

// overlaps reports whether the catalog of a term is another hub's, made since this one has published. The
// clock may have been set since then.
func (c *contest) overlaps(t wire.Term, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return t.Instance != "" && t.Instance != c.instance && !c.began.IsZero() && t.Issued.After(now.Round(0).Add(-now.Sub(c.began))) && !t.Issued.After(now)
}

// settled reports whether other hubs were looked for, and none keeps this one from acknowledging.
func (c *contest) settled() bool { return closed(c.looked) && !closed(c.stops()) }

// stops returns a channel that is closed when commands are refused.
func (c *contest) stops() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// other returns the other hub, nil if none was seen.
func (c *contest) other() *rival {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rival
}

// problem says that there is another hub, "" if there is none.
func (c *contest) problem(now time.Time, interval time.Duration) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, stops := c.rival, closed(c.stopped)
	if r == nil {
		return ""
	}
	lives := now.Sub(r.seen) < 3*interval+visitTimeout
	text := "another hub with the same keys is alive" + r.where
	if !lives {
		text = fmt.Sprintf("another hub with the same keys was alive%s, until %s", r.where, r.seen.Format(time.TimeOnly))
	}
	switch n := len(r.Nodes); {
	case n == wire.MaxHubNodes:
		text += fmt.Sprintf("; nodes %s and others obey it", strings.Join(r.Nodes[:n-1], ", "))
	case n > 0:
		text += "; nodes that obey it: " + strings.Join(r.Nodes, ", ")
	default:
		text += "; no node reports to it"
	}
	switch {
	case stops && r.Claim > c.claim:
		return text + ". It has taken over: this hub publishes nothing, and acknowledges no commands. Stop this hub; if it is to rule the nodes: weir fleet take-over"
	case stops:
		return text + ". This hub acknowledges no commands. Stop one of the two; if this one is to rule the nodes: weir fleet take-over"
	case !lives:
		return ""
	}
	return text + ". This hub has taken over: stop the other one"
}

// command calls fn in Run's goroutine, unless another hub or a full disk keeps this one from taking commands.
// At the start, it waits until other hubs were looked for.
func (h *Hub) command(ctx context.Context, fn func() error) error {
	c := h.publisher.contest
	select {
	case <-c.looked:
	case <-ctx.Done():
		return ctx.Err()
	case <-h.loop.ended:
	}
	return h.Do(ctx, func() error {
		if closed(c.stops()) {
			return errors.New(c.problem(time.Now(), h.publisher.seekInterval()))
		}
		if err := h.dir.room(); err != nil {
			return err
		}
		return fn()
	})
}

// overruled reports whether another hub has the larger claim.
func (c *contest) overruled() bool {
	r := c.other()
	return closed(c.stops()) && r.Claim > c.term().Claim
}

func (p *publisher) seekInterval() time.Duration {
	return max(time.Duration(p.conf().Heartbeat), seekAtMost)
}

// meet takes in that another hub lives.
func (p *publisher) meet(h wire.Hub, from evidence, where string) {
	if h.Instance == p.contest.instance {
		return
	}
	if p.contest.meet(rival{Hub: h, where: where, from: from, seen: time.Now()}) {
		if text := p.contest.problem(time.Now(), p.seekInterval()); text != "" {
			p.log.Error(text)
		}
		p.wake()
	}
}

// says returns what this hub says of itself, in signed form.
func (p *publisher) says(nonce, address string) ([]byte, error) {
	t := p.contest.term()
	return wire.SealHub(p.authority.Key(), wire.Hub{
		Nonce: nonce, Instance: t.Instance, Claim: t.Claim, Address: address,
		Nodes: p.nodes.reporting(time.Duration(p.conf().MaxAge), time.Now()),
	})
}

// answer answers another hub.
func (p *publisher) answer(m *nats.Msg) {
	h, err := wire.OpenHub(p.authority.PublicKey(), m.Data)
	if err != nil {
		return
	}
	p.meet(h, byQuestion, " at "+h.Address)
	if text, err := p.says(h.Nonce, ""); err == nil {
		_ = m.Respond(text) // the other one asks again
	}
}

// seek visits the addresses that nodes know, until ctx ends: nodes may obey another hub there.
func (p *publisher) seek(ctx context.Context) {
	looked := sync.OnceFunc(func() {
		close(p.contest.looked)
		p.wake()
	})
	if p.broker.cluster() != nil { // two hubs have one stream there, which only one can publish to
		looked()
		return
	}
	defer time.AfterFunc(visitTimeout, looked).Stop()
	for {
		if own, err := p.authority.ClientTLS(); err != nil {
			p.log.Error("other hubs with the same keys are not looked for: " + err.Error())
		} else {
			own.ServerName = authority.ServerName
			p.visitAll(ctx, own)
		}
		looked()
		select {
		case <-ctx.Done():
			return
		case <-p.contest.again:
		case <-time.After(p.seekInterval()):
		}
	}
}

// visitAll visits all addresses of servers at once.
func (p *publisher) visitAll(ctx context.Context, own *tls.Config) {
	ctx, cancel := context.WithTimeout(ctx, visitTimeout)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	for _, s := range p.conf().Servers {
		u, err := url.Parse(s)
		if err != nil {
			continue
		}
		all.Go(func() {
			addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
			if err != nil {
				p.log.Debug("an address of servers is not known: " + err.Error())
			}
			for _, a := range addresses[:min(len(addresses), maxVisited)] {
				all.Go(func() {
					at := net.JoinHostPort(a.Unmap().String(), u.Port())
					if err := p.visit(ctx, at, own); err != nil {
						p.log.Debug("no hub is found at an address of servers: "+err.Error(), "address", at)
					}
				})
			}
		})
	}
}

// dial is a [nats.CustomDialer].
type dial func(network, address string) (net.Conn, error)

func (d dial) Dial(network, address string) (net.Conn, error) { return d(network, address) }

// visit asks the hub at an address which one it is.
func (p *publisher) visit(ctx context.Context, address string, own *tls.Config) error {
	c := p.contest
	c.mu.Lock()
	answered := c.own[address]
	c.mu.Unlock()
	if time.Since(answered) < ownAgain {
		return nil
	}
	token, seed, err := p.broker.own()
	if err != nil {
		return err
	}
	options := []nats.Option{
		nats.Name("weir-hub"), nats.UserJWTAndSeed(token, seed), nats.CustomInboxPrefix(wire.HubInbox), nats.NoReconnect(), nats.Timeout(visitTimeout),
		nats.Secure(own), nats.SetCustomDialer(dial(func(network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil {
				context.AfterFunc(ctx, func() { conn.Close() })
			}
			return conn, err
		})),
	}
	if p.conf().Broker.TLSFirst != "" {
		options = append(options, nats.TLSHandshakeFirst())
	}
	conn, err := nats.Connect("tls://"+address, options...)
	if err != nil {
		return err
	}
	defer conn.Close()
	from, nonce := "", wire.NewID()
	if a, err := conn.GetClientIP(); err == nil {
		from = a.String()
	}
	question, err := p.says(nonce, from)
	if err != nil {
		return err
	}
	m, err := conn.RequestWithContext(ctx, wire.HubSubject, question)
	if err != nil {
		return err
	}
	h, err := wire.OpenHub(p.authority.PublicKey(), m.Data)
	if err == nil && h.Nonce != nonce {
		err = errors.New("the answer is to another question")
	}
	if err != nil {
		return err
	}
	if h.Instance == c.instance {
		c.mu.Lock()
		c.own[address] = time.Now()
		c.mu.Unlock()
	}
	p.meet(h, byVisit, " at "+address)
	return nil
}

// TakeOver implements [server.Hub].
func (h *Hub) TakeOver(ctx context.Context) (done api.FleetTakenOver, err error) {
	var wait <-chan struct{}
	c := h.publisher.contest
	err = h.Do(ctx, func() error {
		r := c.other()
		if r == nil {
			return &api.BadRequest{Err: errors.New("no other hub with the same keys was seen: there is nothing to take over")}
		}
		claim := max(h.store.Claim(), r.Claim) + 1
		if err := h.store.TakeOver(claim); err != nil {
			return err
		}
		c.mu.Lock()
		c.claim, c.stopped = claim, make(chan struct{})
		c.mu.Unlock()
		done.From = strings.TrimLeft(r.where, ", ")
		wait = h.publisher.again()
		return nil
	})
	r := audit.Record{Change: audit.TakeOver, Reason: "from the hub " + done.From}
	audit.ByCaller(ctx, &r)
	h.audit.Attempt(r, err)
	if err != nil {
		return done, err
	}
	select {
	case c.again <- struct{}{}: // the other one hears it at once
	default:
	}
	done.Published = h.publisher.wait(ctx, wait)
	return done, nil
}
