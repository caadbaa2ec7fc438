// Package node makes a host a node of a fleet: it follows the lists that the hub
// publishes.
//
// A [Node] obeys the signed catalog, which names the lists that it is to have, and
// their versions. It receives deltas as they are published, asks the broker for what it has missed,
// creates nothing there, and verifies every byte
// against the fleet's key. What is active is saved, and loaded before the network is
// there. A hub that is gone changes nothing, except that entries expire in their time.
package node

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/filter/ordered"
	"weir/filter/snapshot"
)

// Config says how a node follows its fleet.
type Config struct {
	Enrollment enrollment.Node
	Directory  string        // where lists are saved; "": they are not
	MaxAge     time.Duration // after which the hub's silence is reported; 0: as the hub says
	MaxRate    int64         // bytes a second with which lists are fetched; 0: as the hub says
	ReadOnly   bool          // nothing is written
	Version    string        // of weir
	Prefix     string        // of the names of lists in [List.Status]
	Log        *slog.Logger

	Clock Clock // of the host; nil: that of [time.Now], which somebody may set while the node does not run
}

// Clock has the wall clock, and how far that is ahead of a clock that is never set.
type Clock interface {
	Now() (wall time.Time, ahead time.Duration)
}

// Daemon filters by the lists.
type Daemon interface {
	// TakeLists is called when the result of [Node.Lists] has changed, TakeContents when
	// the contents of one list have. Both return when that is active, or fail. Contents
	// may be taken of several lists at once.
	TakeLists(context.Context) error
	TakeContents(context.Context, *List) error

	// TakePatterns has the host drop what patterns match which the hub has published, and ends those
	// that are to end, at a time of the hub. It is called again with each catalog that has patterns.
	TakePatterns(ctx context.Context, all []wire.Pattern, now time.Time) error

	// DescribeNode sets what the lists are enforced by in a report, and the packets passed and
	// dropped so far.
	DescribeNode(*wire.Status)

	// Answer answers a question of the hub, which is one of those of package wire, in
	// JSON. It may be called several times at once.
	Answer(ctx context.Context, what string, question []byte) (any, error)

	// Rehearse begins to count which packets a version of a list would drop in addition,
	// in place of another one of the list; nil ends that. It fails where the version
	// would be refused. Rehearsed returns what was counted.
	Rehearse(ctx context.Context, list string, c *Candidate) error
	Rehearsed(list string) wire.Rehearsal

	// Measure returns with which addresses that a version of a list drops, and the contents
	// before it did not drop, this host has conversed lately; Conversed, with which that the list
	// would drop. nil: that is not recorded.
	Measure(ctx context.Context, list string, c *Candidate, before *list.Set) *wire.Conversed
	Conversed(list string) *wire.Conversed
}

const (
	// DefaultMaxAge is the maximum age where neither the catalog nor the configuration
	// says one.
	DefaultMaxAge = 5 * time.Minute

	// maxCatalog bounds the signed catalog: the broker's messages.
	maxCatalog = 1 << 20

	reportInterval    = wire.StatusInterval
	rehearsalInterval = 2 * time.Second        // of reports during a rehearsal
	reportAgain       = 5 * time.Second        // after a connection, while nothing comes from the hub
	reportAtMost      = 100 * time.Millisecond // apart
	leastSpread       = 200 * time.Millisecond // of the nodes that one change makes report
	mostSpread        = 30 * time.Second
	reportWithin      = time.Second      // where the hub asks for it
	askInterval       = 30 * time.Second // for the catalog, while none arrives
	defaultBeat       = 10 * time.Second // of the hub, before it has said how often it is heard
	leaveTimeout      = 3 * time.Second  // for an answer of the only server, where the hub is not heard
	askTimeout        = 5 * time.Second
	askAgain          = time.Second // where there was no answer
	relistInterval    = 10 * time.Second
)

// Node is a node of a fleet.
type Node struct {
	c      Config
	log    *slog.Logger
	key    ed25519.PublicKey
	dir    string // of this fleet; "": nothing is saved
	daemon Daemon // set by Run

	connect  func(...nats.Option) (*nats.Conn, error)
	catalogs chan message
	servers  *servers
	joined   chan struct{} // the connection is there again
	reports  chan struct{}
	changed  chan struct{} // the lists have
	patterns chan struct{} // the catalog has, or has had
	read     uint64        // the sequence number of the last catalog that was fetched; loop's
	live     uint64        // that of the newest one that came live; loop's

	unsavedCatalog []byte // the last one while lists leave, which a restart must find; loop's

	asking chan struct{} // full while the hub is asked where entries come from: it answers a node one question at a time

	delays    delays
	link      pace
	clock     hubClock
	clustered atomic.Bool // JetStream answers what it fetches

	own     atomic.Pointer[identity]
	renewal atomic.Pointer[Renewal] // that fails; nil: it does not
	expired atomic.Bool             // what it has, by what the hub says
	denied  atomic.Bool             // the hub has refused it since it was connected

	assigning  sync.Mutex    // held while an assignment is taken
	reassigned chan struct{} // by the hub
	replaced   chan struct{} // another certificate of the authority issues

	conn atomic.Pointer[nats.Conn] // nil before Run
	// connected says whether the node is connected to the hub. The connection itself is locked
	// while it dials, which would hold up the daemon.
	connected atomic.Bool
	unreached atomic.Pointer[string] // why it could not connect, the last time; nil: that is not known

	mu        sync.Mutex // protects what follows
	catalog   wire.Catalog
	heard     time.Time // when the catalog arrived; zero: it was loaded
	followers map[string]*follower
	problem   string // why the lists are not active
	unsaved   string // why the last catalog is not saved; "": it is
	refused   refusals
}

// Open returns a node with what it has saved.
func Open(c Config) (*Node, error) {
	n := &Node{
		asking: make(chan struct{}, 1),
		c:      c, log: c.Log, key: c.Enrollment.PublicKey, followers: make(map[string]*follower),
		catalogs: make(chan message, 16), joined: make(chan struct{}, 1), reports: make(chan struct{}, 1), changed: make(chan struct{}, 1), patterns: make(chan struct{}, 1), reassigned: make(chan struct{}, 1), replaced: make(chan struct{}, 1),
	}
	n.own.Store(&identity{Node: c.Enrollment, of: c.Enrollment.User()})
	n.clock.local = time.Now
	if c.Clock != nil {
		n.clock.local = func() time.Time {
			now, ahead := c.Clock.Now()
			return now.Round(0).Add(-ahead)
		}
	}
	n.connect = func(more ...nats.Option) (*nats.Conn, error) {
		o, err := enrollment.Options(n.current)
		if err != nil {
			return nil, err
		}
		return nats.Connect(n.current().URL(), slices.Concat(o, more, []nats.Option{nats.CustomReconnectDelay(n.reconnectDelay)})...)
	}
	if c.Directory != "" {
		// Another fleet has another directory: its lists are of no use here.
		n.dir = filepath.Join(c.Directory, hex.EncodeToString(n.key[:8]))
	}
	if n.dir != "" {
		n.loadClock()
		n.loadRenewed()
		n.loadAssignment()
	}
	if n.servers = newServers(n.current().Servers, n.dir, n.log); c.ReadOnly {
		n.servers.path = ""
	}
	if n.dir == "" {
		return n, nil
	}
	message, err := os.ReadFile(n.catalogPath())
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil
	}
	if err == nil {
		n.catalog, err = n.openCatalog(message)
	}
	if err != nil {
		n.log.Error("the saved catalog of the fleet cannot be read, its lists come back with the hub: " + err.Error())
		return n, nil
	}
	for _, l := range n.catalog.Lists {
		if want, ok := n.wants(l); ok {
			n.open(l.Name, want)
		}
	}
	return n, nil
}

func (n *Node) catalogPath() string { return filepath.Join(n.dir, "catalog") }

// open adds the follower of a list, with what was saved of it.
func (n *Node) open(name string, want wanted) *follower {
	f := &follower{n: n, name: name, want: want, wake: make(chan struct{}, 1), ahead: make(map[uint64]opened)}
	n.followers[name] = f
	if n.dir == "" {
		return f
	}
	f.disk.path = filepath.Join(n.dir, hex.EncodeToString([]byte(name)))
	s, err := f.disk.load(name, n.key)
	if err != nil {
		n.log.Error("the saved list of the fleet cannot be read, it comes back with the hub: "+err.Error(), "list", name)
	}
	if n.c.ReadOnly {
		f.disk.path = ""
	}
	if s == nil {
		return f
	}
	now := n.clock.now()
	f.at, f.newest, f.contents, f.version, f.loaded = s, s, s.active(now), 1, 1
	f.hidden, _ = s.expired(now)
	f.unconfirmed = []update{{state: s, version: 1}}
	f.list = &List{f: f, settings: want.Settings}
	return f
}

// Lists returns the lists of which something is known, by name.
func (n *Node) Lists() []*List {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*List
	for _, f := range n.sorted() {
		f.mu.Lock()
		if f.list != nil {
			all = append(all, f.list)
		}
		f.mu.Unlock()
	}
	return all
}

// Expects reports whether a list of the hub may be among those of the node, but is not
// known yet. The saved catalog may be older than the last one, if the disk was full: that it
// does not name a list says nothing before the hub was heard.
func (n *Node) Expects(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.followers[name]
	if f == nil {
		return n.heard.IsZero()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list == nil
}

// sorted returns the followers by the names of their lists. n.mu is held.
func (n *Node) sorted() []*follower {
	all := make([]*follower, 0, len(n.followers))
	for _, f := range n.followers {
		all = append(all, f)
	}
	ordered.By(all, func(a, b *follower) int { return strings.Compare(a.name, b.name) })
	return all
}

// Age is how old what the node knows is.
type Age struct {
	Confirmed time.Time // when the hub last said what the node is to have; zero: never
	Max       time.Duration
	Connected bool
	Why       string // the node is not connected, as far as that is known
}

// Err returns why the node is stale, nil if it is not.
func (a Age) Err() error {
	switch age := time.Since(a.Confirmed); {
	case a.Confirmed.IsZero():
		return errors.New("stale: nothing was heard of the hub yet" + a.because())
	case age > a.Max && !a.Connected:
		return fmt.Errorf("stale: no connection, the hub was last heard %v ago%s", age.Round(time.Second), a.because())
	case age > a.Max:
		return fmt.Errorf("stale: connected, but what the hub said last is %v old (is it down, or a clock wrong?)", age.Round(time.Second))
	}
	return nil
}

func (a Age) because() string {
	if a.Connected || a.Why == "" {
		return ""
	}
	return ": " + a.Why
}

// fails notes why the node could not connect to the hub.
func (n *Node) fails(err error) {
	if errors.Is(err, nats.ErrNoServers) {
		return // what is said of a first attempt that was refused
	}
	text := err.Error()
	text = text[:min(len(text), maxText)]
	if saysExpired(err) {
		n.expired.Store(true)
		text = "the certificate of this node has expired"
	} else if refusesUser(err) {
		n.denied.Store(true)
		text = "the hub refuses this node: if it was revoked or enrolled anew, it needs the file of a new weir hub enroll; or weir join it with a token"
	} else if _, unknown := errors.AsType[x509.UnknownAuthorityError](err); unknown {
		text = "the hub's certificate is not of the keys in this node's file: if the hub has new keys, the node needs the file of a new weir hub enroll"
	}
	wire.Printable(&text) // the server may be another
	n.unreached.Store(&text)
}

// refusesUser reports whether the broker lets a node in no more.
func refusesUser(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthRevoked) || errors.Is(err, nats.ErrAuthExpired)
}

// Age returns how old what the node knows is.
func (n *Node) Age() Age {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := Age{Confirmed: n.catalog.Issued, Max: n.c.MaxAge, Connected: n.connected.Load()}
	if why := n.unreached.Load(); why != nil {
		a.Why = *why
	}
	if r := n.renewal.Load(); r != nil {
		a.Why = strings.TrimPrefix(a.Why+"; "+r.String(), "; ")
	}
	if !n.heard.IsZero() && n.heard.Before(a.Confirmed) { // the hub's clock is ahead
		a.Confirmed = n.heard
	}
	if a.Max == 0 {
		a.Max = time.Duration(min(n.catalog.MaxAge, int64(24*time.Hour/time.Second))) * time.Second
	}
	if a.Max <= 0 {
		a.Max = DefaultMaxAge
	}
	return a
}

// Name returns the name of the node.
func (n *Node) Name() string { return n.c.Enrollment.Name }

// Expires returns until when the node's certificate is valid, if it should have been renewed; zero otherwise.
func (n *Node) Expires() time.Time {
	if from, until := n.current().Lives(); !until.IsZero() && enrollment.ExpiresSoon(from, until, n.clock.now()) {
		return until
	}
	return time.Time{}
}

// Catalog returns the place of the catalog that the node obeys.
func (n *Node) Catalog() wire.Place {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.catalog.Place
}

// Refused returns the number of messages that were refused: not signed by the hub, or
// older than what is known.
func (n *Node) Refused() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.refused.messages
}

// Run follows the hub until ctx is done, and has d filter by its lists. It may be called
// again.
func (n *Node) Run(ctx context.Context, d Daemon) error {
	n.mu.Lock()
	n.daemon = d
	n.mu.Unlock()
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	defer n.connected.Store(false)
	// Handlers of this connection may be called after its end, beside those of the next Run.
	join := func(conn *nats.Conn) {
		if ctx.Err() == nil {
			n.connected.Store(true)
			n.unreached.Store(nil)
			n.denied.Store(false)
		}
		n.servers.proved(conn.ConnectedAddr())
		n.servers.save()
		n.delays.joins.Add(1)
		n.delays.joined.Store(time.Now().UnixNano())
		poke(n.joined)
	}
	conn, err := n.connect(
		nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.IgnoreAuthErrorAbort(),
		nats.ReconnectBufSize(-1), nats.Timeout(n.patience()),
		nats.SkipHostLookup(), nats.SetCustomDialer(n.servers),
		nats.PingInterval(10*time.Second), nats.MaxPingsOutstanding(3), // of a link that a chunk fills
		nats.ConnectHandler(func(conn *nats.Conn) {
			n.log.Info("connected to the hub of the fleet")
			join(conn)
		}),
		nats.ReconnectHandler(func(conn *nats.Conn) {
			n.log.Info("connected to the hub of the fleet again")
			n.clustered.Store(false) // it may be another server
			join(conn)
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { n.fails(err) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			n.delays.lost(n.servers.accepted.Load(), time.Now())
			if ctx.Err() == nil {
				n.connected.Store(false)
				n.log.Warn("the connection to the hub of the fleet is lost, filtering goes on", "error", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			n.log.Warn("connection to the hub of the fleet: " + err.Error())
			if refusesUser(err) { // also where another of the servers is tried next, and gives no answer
				n.denied.Store(true)
			}
			poke(n.joined) // what was lost is fetched
		}),
	)
	if err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	defer conn.Close()
	if err := n.subscribe(conn); err != nil {
		return err
	}
	if err := n.answer(ctx, conn, &all); err != nil {
		return err
	}
	n.conn.Store(conn)
	n.mu.Lock()
	for _, f := range n.followers {
		if !f.leaves() {
			n.start(ctx, &all, f)
		}
	}
	n.mu.Unlock()
	all.Go(func() { n.followPatterns(ctx) })
	n.loop(ctx, &all)
	return nil
}

// followPatterns has the daemon follow the patterns of each catalog, and of the saved one before. One that it
// has refused may be possible later.
func (n *Node) followPatterns(ctx context.Context) {
	for had := false; ; {
		n.mu.Lock()
		all := n.catalog.For(n.current().Groups())
		n.mu.Unlock()
		if len(all) > 0 || had {
			if err := n.daemon.TakePatterns(ctx, all, n.clock.now()); err != nil && ctx.Err() == nil {
				n.log.Error("the patterns of the fleet are not followed: " + err.Error())
			}
		}
		had = len(all) > 0
		select {
		case <-ctx.Done():
			return
		case <-n.patterns:
		}
	}
}

// patience returns how long a server has for a connection. The only one may have little time for
// each node.
func (n *Node) patience() time.Duration {
	if len(n.current().Servers) > 1 {
		return dialTimeout
	}
	return 3 * dialTimeout
}

// delays counts the connections that determine how long a node waits before the next one.
type delays struct {
	joins  atomic.Uint64 // connections over which the node got in
	joined atomic.Int64  // when the last one did
	past   atomic.Uint64 // connections without that do not count any more
}

// lost takes in that a connection is lost. One that lasted lets the delays begin anew.
func (d *delays) lost(accepted uint64, now time.Time) {
	if now.Sub(time.Unix(0, d.joined.Load())) >= mostDelay {
		d.past.Store(accepted - d.joins.Load())
	}
}

// next returns the bound of the next delay: it doubles with each connection that the server took, and did
// not let in, as it has too little time for all. One that takes none costs it nothing.
func (d *delays) next(accepted uint64) time.Duration {
	failed := int64(accepted - d.joins.Load() - d.past.Load())
	return min(leastDelay<<max(0, min(failed, 10)), mostDelay)
}

const leastDelay, mostDelay, refusedDelay = 3 * time.Second, time.Minute, 20 * time.Second

// reconnectDelay returns how long to wait before connecting again. A node that is
// revoked does not fill the hub's log.
func (n *Node) reconnectDelay(int) time.Duration {
	if conn := n.conn.Load(); conn != nil {
		err := conn.LastError()
		if err != nil {
			n.fails(err)
		}
		if refusesUser(err) {
			return refusedDelay + rand.N(2*refusedDelay)
		}
	}
	return rand.N(n.delays.next(n.servers.accepted.Load()))
}

// subscribe receives what is published live. The callbacks do not wait.
func (n *Node) subscribe(conn *nats.Conn) error {
	for subject, take := range map[string]func(*nats.Msg){
		wire.CatalogSubject(): func(m *nats.Msg) {
			select {
			case n.catalogs <- messageOf(m):
			default:
				poke(n.joined) // the last one is fetched
			}
		},
		wire.DeltasSubject(): func(m *nats.Msg) {
			name, ok := wire.ListOfDelta(strings.TrimPrefix(m.Subject, wire.DownPrefix))
			if !ok {
				return
			}
			n.mu.Lock()
			f := n.followers[name]
			n.mu.Unlock()
			if f != nil {
				f.arrived(messageOf(m))
			}
		},
	} {
		s, err := conn.Subscribe(wire.DownPrefix+subject, take)
		if err == nil {
			err = s.SetPendingLimits(4096, 16<<20)
		}
		if err != nil {
			return fmt.Errorf("fleet: %w", err)
		}
	}
	return nil
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// start starts a follower. n.mu is held.
func (n *Node) start(ctx context.Context, all *sync.WaitGroup, f *follower) {
	ctx, f.cancel = context.WithCancel(ctx)
	last, ended := f.ended, make(chan struct{})
	f.ended = ended
	all.Go(func() {
		defer close(ended)
		if last != nil {
			<-last
		}
		f.run(ctx)
	})
}

func (n *Node) pokeFollowers() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, f := range n.followers {
		poke(f.wake)
	}
}

// loop obeys catalogs, and reports.
func (n *Node) loop(ctx context.Context, all *sync.WaitGroup) {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	reported, asked, listed, joined := time.Time{}, time.Now(), time.Time{}, time.Time{}
	soon, due := time.NewTimer(time.Hour), false // whether it is running
	defer soon.Stop()
	stale := false
	var silence wire.Silence
	all.Go(func() { n.followRenewal(ctx) })
	allowed := rate.NewLimiter(rate.Every(wire.NodeEvery), wire.NodeBurst)
	// in is how long the next report waits: the hub ignores what is beyond its allowance.
	in := func() time.Duration {
		return max(reportAtMost-time.Since(reported), time.Duration((1-allowed.Tokens())*float64(wire.NodeEvery)))
	}
	report := func() {
		if !allowed.Allow() {
			soon.Reset(in())
			due = true
			return
		}
		soon.Stop()
		due = false
		reported = time.Now()
		n.report()
	}
	type answer struct {
		message
		err error
	}
	answers, asking, again := make(chan answer, 1), false, false
	ask := func() {
		if again = asking; asking {
			return
		}
		asked, asking = time.Now(), true
		all.Go(func() { // a hub that has just started may not answer
			short, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			m, err := n.get(short, last(wire.CatalogSubject()))
			answers <- answer{m, err}
		})
	}
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-n.catalogs:
			asked = time.Now()
			n.obey(ctx, all, m, true)
		case a := <-answers:
			asking = false
			if a.err == nil {
				n.read = a.seq
				n.obey(ctx, all, a.message, false)
			} else if ctx.Err() == nil {
				n.log.Debug("the catalog of the fleet cannot be read: " + a.err.Error())
				asked = time.Now().Add(askAgain - askInterval)
			}
			if again {
				ask()
			}
		case <-n.reassigned:
			n.regroup(ctx, all)
			n.reportSoon()
		case <-n.joined:
			ask()
			n.pokeFollowers() // deltas may be missing
			joined = time.Now()
			report()
		case <-n.changed:
			listed = time.Now()
			n.lists(ctx)
		case <-n.reports:
			// A change makes all nodes report: at once, they would delay the next change.
			if !due {
				soon.Reset(max(0, in()) + rand.N(n.spread()))
				due = true
			}
		case <-soon.C:
			report()
		case now := <-second.C:
			age := n.Age()
			if is := age.Err() != nil; is != stale {
				if stale = is; is {
					n.log.Warn("fleet: " + age.Err().Error() + "; filtering goes on with what is known")
				} else {
					n.log.Info("fleet: what is known is up to date")
				}
				report()
			}
			if age.Connected && now.Sub(asked) > askInterval {
				ask()
			}
			if heard, beat := n.beats(); age.Connected && silence.Over(heard, joined, beat, now) {
				all.Go(n.leave)
			}
			if n.listsDue(now, listed) {
				poke(n.changed)
			}
			if now.Sub(reported) >= n.reportAfter(now, joined) {
				report()
			}
		}
	}
}

// spread returns in which time all nodes that a change makes report are to do so.
func (n *Node) spread() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return max(leastSpread, min(time.Duration(n.catalog.Spread)*time.Millisecond, mostSpread))
}

// beats returns when the hub was last heard, and how often it is to be.
func (n *Node) beats() (heard time.Time, beat time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if beat = time.Duration(n.catalog.Beat) * time.Millisecond; beat <= 0 || beat > time.Hour {
		beat = defaultBeat
	}
	return n.heard, beat
}

// leave makes the connection anew, over which the hub is not heard, unless that cannot help: its server answers and no
// other one does, as while a restored hub takes back what its nodes have, or what it sends fills the link.
func (n *Node) leave() {
	conn := n.conn.Load()
	before := n.servers.read.Load()
	switch answers := conn.FlushTimeout(leaveTimeout) == nil; {
	case answers && !n.provesAnother(conn.ConnectedUrl()), !answers && n.servers.read.Load() != before:
		return
	}
	n.log.Warn("the hub of the fleet is not heard over this connection, connecting anew")
	_ = conn.ForceReconnect() // closed: the node ends
}

// provesAnother reports whether another server than the connected one takes the node.
func (n *Node) provesAnother(connected string) bool {
	others := n.current()
	others.Servers = slices.DeleteFunc(slices.Clone(others.Servers), func(s string) bool { return s == connected })
	return len(others.Servers) > 0 && n.prove(others) == nil
}

// reportAfter returns how long after the last report the next one is due. A hub that has just started
// may have missed the first report of a connection, which is how it learns that its own state is
// an older copy: reports go on each second until it publishes.
func (n *Node) reportAfter(now, joined time.Time) time.Duration {
	n.mu.Lock()
	silent := n.heard.Before(joined) && now.Sub(joined) < reportAgain
	n.mu.Unlock()
	switch {
	case silent:
		return time.Second / 2 // each tick, also where one is late
	case n.rehearses():
		return rehearsalInterval
	}
	return reportInterval
}

// listsDue reports whether the lists are to be activated: one is gone, or the last attempt has failed
// some time ago.
func (n *Node) listsDue(now, listed time.Time) bool {
	if n.release(now) {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.problem != "" && now.Sub(listed) > relistInterval
}

// lists activates the lists.
func (n *Node) lists(ctx context.Context) {
	err := n.daemon.TakeLists(ctx)
	n.mu.Lock()
	last := n.problem
	n.problem = ""
	if err != nil {
		n.problem = "the lists of the fleet are not active as they should be: " + err.Error()
	}
	changed := last != n.problem
	text := n.problem
	n.mu.Unlock()
	if changed && err != nil && ctx.Err() == nil {
		n.log.Error(text)
	}
	n.reportSoon()
}

func (n *Node) openCatalog(message []byte) (wire.Catalog, error) {
	if len(message) > maxCatalog {
		return wire.Catalog{}, fmt.Errorf("catalog of %d bytes", len(message))
	}
	c, err := wire.OpenCatalog(n.key, message)
	if err == nil && len(c.Lists) > wire.MaxLists {
		err = fmt.Errorf("catalog %v has %d lists, more than %d", c.Place, len(c.Lists), wire.MaxLists)
	}
	if err == nil && len(c.Patterns) > wire.MaxPatterns {
		err = fmt.Errorf("catalog %v has %d patterns, more than %d", c.Place, len(c.Patterns), wire.MaxPatterns)
	}
	if err != nil {
		return wire.Catalog{}, err
	}
	return c, nil
}

// obey follows a catalog, unless it is an older one.
func (n *Node) obey(ctx context.Context, all *sync.WaitGroup, m message, live bool) {
	c, err := n.openCatalog(m.data)
	if err != nil {
		n.refuse(err)
		return
	}
	if c.Report {
		time.AfterFunc(rand.N(reportWithin), n.reportSoon) // not all nodes at once
	}
	n.mu.Lock()
	last := n.catalog
	n.mu.Unlock()
	if live && !c.Before(last.Place) {
		n.live = m.seq
	}
	if c.Place == last.Place {
		n.mu.Lock()
		n.heard = time.Now() // what was loaded is still the last one
		n.mu.Unlock()
		return
	}
	if c.Before(last.Place) {
		if m.seq > 0 && m.seq < n.read {
			return // it was on its way while a later one was read
		}
		if !live && m.seq > 0 && m.seq < n.live {
			return // the copy of the stream that answered is behind
		}
		n.refuse(fmt.Errorf("catalog %v is older than %v, which the hub has published before", c.Place, last.Place))
		return
	}
	changed := live && n.clock.hear(c.Issued)
	n.saveClock()
	wants, leave := n.compare(c)
	if leave {
		n.unsavedCatalog = m.data // until they have left: a restart must find them
	} else {
		n.saveCatalog(m.data)
	}
	if n.follow(ctx, all, c, time.Now(), wants, changed) {
		poke(n.changed)
	}
}

// regroup follows the last catalog, of which other groups of nodes have other versions.
func (n *Node) regroup(ctx context.Context, all *sync.WaitGroup) {
	n.mu.Lock()
	c, heard := n.catalog, n.heard
	n.mu.Unlock()
	if wants, _ := n.compare(c); n.follow(ctx, all, c, heard, wants, false) {
		poke(n.changed)
	}
}

// saveCatalog saves a catalog, so that a restart knows what to filter by without the hub.
func (n *Node) saveCatalog(message []byte) {
	n.unsavedCatalog = nil
	if n.dir != "" && !n.c.ReadOnly {
		n.saved(writeFile(n.catalogPath(), message))
	}
}

// saved takes in that a catalog was saved, or why not. A catalog comes with each heartbeat of the
// hub: what stays the same is logged once.
func (n *Node) saved(err error) {
	text := ""
	if err != nil {
		text = "the catalog of the fleet cannot be saved, a restart would find an older one: " + err.Error()
	}
	n.mu.Lock()
	changed := n.unsaved != text
	n.unsaved = text
	n.mu.Unlock()
	switch {
	case changed && err != nil:
		n.log.Error(text)
	case changed:
		n.log.Info("the catalog of the fleet is saved again")
	default:
		return
	}
	n.reportSoon()
}

// compare returns what a catalog wants of this node, by list. It marks the lists that the catalog has no
// more, but that filter until those that it adds do, as one of these may be the same list under
// another name. It reports whether any is marked.
func (n *Node) compare(c wire.Catalog) (wants map[string]wanted, leave bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	wants = make(map[string]wanted)
	var added []string
	for _, l := range c.Lists {
		if want, ok := n.wants(l); ok {
			wants[l.Name] = want
			if n.followers[l.Name] == nil {
				added = append(added, l.Name)
			}
		}
	}
	for name, f := range n.followers {
		if _, ok := wants[name]; ok {
			continue
		}
		if !f.leaves() && len(added) > 0 && f.filters() {
			f.leaveBy, f.leaveFor = time.Now().Add(leaveWithin), added
		}
		leave = leave || f.leaves()
	}
	return wants, leave
}

// follow makes a catalog the current one, which was heard at a time, and reports whether a list is gone. changed:
// entries expire at other times.
func (n *Node) follow(ctx context.Context, all *sync.WaitGroup, c wire.Catalog, heard time.Time, wants map[string]wanted, changed bool) bool {
	var gone []*follower
	n.mu.Lock()
	n.catalog, n.heard = c, heard
	for name, f := range n.followers {
		if _, ok := wants[name]; ok {
			continue
		}
		f.cancel() // one that leaves filters by the version that it has
		if !f.leaves() {
			delete(n.followers, name)
			gone = append(gone, f)
		}
	}
	for name, want := range wants {
		f := n.followers[name]
		if f == nil {
			f = n.open(name, want)
			n.start(ctx, all, f)
			continue
		}
		if f.leaves() { // it has come back
			f.leaveBy, f.leaveFor = time.Time{}, nil
			n.start(ctx, all, f)
		}
		f.mu.Lock()
		differs := f.want.Settings != want.Settings || f.want.Place != want.Place || f.want.id != want.id || f.want.rehearse != want.rehearse
		f.want = want
		f.mu.Unlock()
		if differs || changed {
			poke(f.wake)
		}
	}
	n.mu.Unlock()
	poke(n.patterns)
	for _, f := range gone {
		f.removeFile()
	}
	return len(gone) > 0
}

// release removes the lists that leave, once those that they wait for filter or the time is over, and
// reports whether it has removed any.
func (n *Node) release(now time.Time) bool {
	var gone []*follower
	leave := false
	n.mu.Lock()
	for name, f := range n.followers {
		switch {
		case !f.leaves():
		case now.Before(f.leaveBy) && slices.ContainsFunc(f.leaveFor, n.isAwaited):
			leave = true
		default:
			delete(n.followers, name)
			gone = append(gone, f)
		}
	}
	n.mu.Unlock()
	if !leave && n.unsavedCatalog != nil {
		n.saveCatalog(n.unsavedCatalog)
	}
	for _, f := range gone {
		f.removeFile()
	}
	return len(gone) > 0
}

// isAwaited reports whether a list is to filter, and does not yet. n.mu is held.
func (n *Node) isAwaited(name string) bool {
	f := n.followers[name]
	return f != nil && !f.leaves() && !f.filters()
}

// wants returns what a catalog says of a list for this node, false if nothing.
func (n *Node) wants(l wire.ListState) (want wanted, ok bool) {
	want = wanted{Settings: l.Settings}
	want.Place, want.rehearse, ok = l.For(n.current().Groups())
	want.id, want.rehearseID, want.inWave = l.IDOf(want.Place), l.IDOf(want.rehearse), l.InWave(n.current().Groups())
	return want, ok
}

// refuse notes that a message was refused.
func (n *Node) refuse(err error) {
	n.mu.Lock()
	known, quiet := n.refused.add(err, time.Now())
	n.mu.Unlock()
	if !quiet {
		n.log.Error("a message of the fleet is refused: " + err.Error())
	}
	if !known {
		n.reportSoon()
	}
}

func (n *Node) reportSoon() { poke(n.reports) }

// maxText bounds an error in a report.
const maxText = 200

// report sends the node's status to the hub.
func (n *Node) report() {
	age := n.Age()
	s := wire.Status{Time: time.Now(), Version: n.c.Version, Stale: age.Err() != nil, Lists: []wire.ListStatus{}, Settings: wire.SettingsOf(n.current())}
	n.daemon.DescribeNode(&s)
	n.mu.Lock()
	s.Catalog, s.Term, s.Seal = n.catalog.Place, n.catalog.Term, n.catalog.Seal
	n.refused.forget(time.Now())
	for _, r := range n.refused.last {
		s.Problems = append(s.Problems, r.String())
	}
	renewal := ""
	if r := n.renewal.Load(); r != nil {
		renewal = r.String()
	}
	for _, p := range []string{n.problem, n.unsaved, renewal} {
		if p != "" {
			s.Problems = append(s.Problems, p)
		}
	}
	all := slices.DeleteFunc(n.sorted(), (*follower).leaves)
	n.mu.Unlock()
	conn := n.conn.Load()
	if conn != nil {
		if ip, err := conn.GetClientIP(); err == nil {
			s.Address = ip.String()
		}
	}
	for _, f := range all {
		s.Lists = append(s.Lists, f.status())
	}
	for i, p := range s.Problems {
		s.Problems[i] = p[:min(len(p), maxText)]
	}
	text, err := wire.MarshalStatus(s)
	if err == nil && conn != nil && n.connected.Load() {
		err = conn.Publish(wire.StatusSubject(n.c.Enrollment.Name), text)
	}
	if err != nil {
		n.log.Debug("the status cannot be reported to the fleet: " + err.Error())
	}
}

// status returns what the node reports of a list.
func (f *follower) status() wire.ListStatus {
	rehearsal := f.reported()
	var conversed *wire.Conversed
	f.n.mu.Lock()
	d := f.n.daemon // nil before Run
	f.n.mu.Unlock()
	if d != nil {
		conversed = d.Conversed(f.name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := wire.ListStatus{Name: f.name, Active: f.active.place(), Wanted: f.want.Place, Sum: snapshot.Sum{}.String(), Refused: f.refused != nil, Rehearsal: rehearsal, Conversed: conversed}
	if f.measured.place == s.Active {
		s.Added = f.measured.conversed
	}
	if f.active != nil {
		s.ID, s.Seal, s.Sum, s.Entries = f.active.id, f.active.seal, f.active.sum.String(), f.active.entries.Len()
	}
	if err := cmp.Or(f.refused, f.err, f.unsaved); err != nil {
		text := err.Error()
		s.Error = text[:min(len(text), maxText)]
	}
	return s
}
