package broker

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/time/rate"
)

// Limits on each node, so that none harms the others. What a node needs is far below them.
const (
	// maxConnections is how many connections a node may have: one, and the one before,
	// which the server may take a minute to give up. The newest ones stay.
	maxConnections = 2

	// A node connects again a second or more after the last time.
	helloBurst = 100
	helloEvery = time.Second

	// maxViolations in a minute is from when a node is cut off for a while. A node whose
	// version does not fit may have some.
	maxViolations = 500
	barredFor     = time.Minute

	// maxMessages and maxBytes bound what a node sends in rateInterval. A report has at
	// most 256 kB, of which a node sends ten a second at most.
	rateInterval = 10 * time.Second
	maxMessages  = 5_000 * 10
	maxBytes     = 8 << 20 * 10

	guardInterval = time.Second
	logInterval   = time.Minute
	shownFor      = 10 * time.Minute // after the last violation, in the status
	maxStrays     = 10_000           // connections whose node is not known yet
	maxShown      = 10
)

// guard knows which nodes are connected, and what they try that they may not do.
type guard struct {
	log    *slog.Logger
	server *server.Server // set before the server starts

	mu         sync.Mutex
	nodes      map[string]*guarded
	hellos     map[fingerprint]*rate.Limiter // of connections, before they count, by certificate
	open       map[uint64]string             // the nodes of connections
	strays     map[uint64]*tried             // of connections that are not known yet, or no longer
	counted    map[uint64]sent               // by connection, at the last count of rates
	countedAt  time.Time
	violations uint64
}

// sent counts the messages and bytes of a connection.
type sent struct{ messages, bytes int64 }

// fingerprint is the SHA-256 of a certificate.
type fingerprint [sha256.Size]byte

// guarded is a node that is, or was, connected.
type guarded struct {
	conns   []connection // in the order in which they were made
	let     fingerprint  // the certificate with which it was let in last
	user    string       // its key then, which each enrollment makes anew
	barred  time.Time    // until when it may not connect with that
	total   uint64       // violations
	recent  uint64       // those since the last line in the log
	minute  uint64       // those in this minute, which began at since
	since   time.Time
	last    string    // violation
	lastAt  time.Time // zero: none
	logged  time.Time
	doubled string // at which addresses it is connected twice; "": it is not
}

type connection struct {
	id      uint64
	address string
	began   time.Time
}

// tried counts the violations of a connection since the last look.
type tried struct {
	times uint64
	last  string
	since time.Time
}

func newGuard(log *slog.Logger) *guard {
	return &guard{log: log, nodes: make(map[string]*guarded), hellos: make(map[fingerprint]*rate.Limiter), open: make(map[uint64]string), strays: make(map[uint64]*tried), counted: make(map[uint64]sent)}
}

// node returns a node by name, whose certificate or key the server has checked. g.mu is
// held.
func (g *guard) node(name string) *guarded {
	n := g.nodes[name]
	if n == nil {
		n = &guarded{}
		g.nodes[name] = n
	}
	return n
}

// hello refuses connections of a node that makes too many, when its certificate is known,
// and before they take memory. They count by certificate, not by name: a file that is revoked since
// the node was enrolled anew has another one, and so has a site of the same name. They would keep the
// node out.
func (g *guard) hello(s tls.ConnectionState) error {
	if len(s.PeerCertificates) == 0 {
		return nil // TLS itself refuses that
	}
	name, sum := s.PeerCertificates[0].Subject.CommonName, fingerprint(sha256.Sum256(s.PeerCertificates[0].Raw))
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[name]
	if n != nil && n.let != sum {
		n = nil
	}
	if n != nil && now.Before(n.barred) {
		return fmt.Errorf("node %s is cut off for a while", name)
	}
	hellos := g.hellos[sum]
	if hellos == nil {
		hellos = rate.NewLimiter(rate.Every(helloEvery), helloBurst)
		g.hellos[sum] = hellos
	}
	if !hellos.AllowN(now, 1) {
		g.violations++
		if n != nil {
			n.violated(1, "Connection - more often than once a second", now)
		}
		return fmt.Errorf("node %s connects too often", name)
	}
	return nil
}

// connected takes in a connection of a node, which was let in with a key and a certificate. It returns
// those that are to be closed.
func (g *guard) connected(name, user string, certificate fingerprint, c connection) (excess []uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[c.id] == name {
		return nil // it was taken in
	}
	n := g.node(name)
	if n.user == user && time.Now().Before(n.barred) { // it has another certificate of its name
		g.violations++
		return []uint64{c.id}
	}
	n.let, n.user = certificate, user
	g.open[c.id] = name
	n.conns = append(n.conns, c)
	for len(n.conns) > maxConnections {
		excess = append(excess, n.conns[0].id)
		n.conns = n.conns[1:]
		g.violations++
		n.violated(1, fmt.Sprintf("Connection - more than %d", maxConnections), time.Now())
	}
	return excess
}

// disconnected takes in that a connection has ended.
func (g *guard) disconnected(id uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[g.open[id]]
	if n == nil {
		return
	}
	g.charge(n, id, time.Now())
	n.conns = slices.DeleteFunc(n.conns, func(c connection) bool { return c.id == id })
	delete(g.open, id)
	delete(g.counted, id)
}

// connections returns the connections of a node.
func (g *guard) connections(name string) (all []uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[name]; n != nil {
		for _, c := range n.conns {
			all = append(all, c.id)
		}
	}
	return all
}

// violation takes in what a connection has tried that it may not do. It does not ask the
// server, which may hold its locks.
func (g *guard) violation(id uint64, what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.violations++
	t := g.strays[id]
	if t == nil {
		if len(g.strays) >= maxStrays {
			return // they are counted in all
		}
		t = &tried{since: time.Now()}
		g.strays[id] = t
	}
	t.times++
	t.last = what
}

// misused takes in what a node has tried that it may not do.
func (g *guard) misused(name, what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.violations++
	g.node(name).violated(1, what, time.Now())
}

// charge counts what a connection has tried as that of its node. g.mu is held.
func (g *guard) charge(n *guarded, id uint64, now time.Time) {
	if t := g.strays[id]; t != nil {
		n.violated(t.times, t.last, now)
		delete(g.strays, id)
	}
}

func (n *guarded) violated(times uint64, what string, now time.Time) {
	if now.Sub(n.since) >= time.Minute {
		n.since, n.minute = now, 0
	}
	n.total += times
	n.recent += times
	n.minute += times
	n.last, n.lastAt = what, now
}

// bar cuts a node off. It returns the connections to close. g.mu is held.
func (n *guarded) bar(now time.Time) (ids []uint64) {
	n.barred, n.minute, n.since = now.Add(barredFor), 0, now
	for _, c := range n.conns {
		ids = append(ids, c.id)
	}
	return ids
}

// look counts, logs and cuts off. It is called each guardInterval.
func (g *guard) look(now time.Time) {
	sending := g.rates(now)
	var closing []uint64
	g.mu.Lock()
	for id, t := range g.strays {
		if n := g.nodes[g.open[id]]; n != nil {
			g.charge(n, id, now)
		} else if now.Sub(t.since) > 10*guardInterval {
			delete(g.strays, id) // it did not come to be a node's
		}
	}
	for sum, hellos := range g.hellos {
		if hellos.TokensAt(now) >= helloBurst {
			delete(g.hellos, sum)
		}
	}
	var double []string
	for name, n := range g.nodes {
		too := sending[name]
		if too != "" {
			n.violated(1, too, now)
		}
		if too != "" || n.minute > maxViolations {
			closing = append(closing, n.bar(now)...)
			g.log.Error("a node is cut off for a minute: it goes on trying what it may not do", "node", name, "last", n.last, "from", n.addresses())
		}
		if n.recent > 0 && now.Sub(n.logged) >= logInterval {
			g.log.Warn("a node tries what it may not do", "node", name, "times", n.recent, "last", n.last, "from", n.addresses())
			n.logged, n.recent = now, 0
		}
		if len(n.conns) > 1 {
			double = append(double, name)
		} else {
			n.doubled = ""
		}
		if len(n.conns) == 0 && n.total == 0 && now.After(n.barred) && g.hellos[n.let] == nil {
			delete(g.nodes, name)
		}
	}
	g.mu.Unlock()
	for _, id := range closing {
		_ = g.server.DisconnectClientByID(id) // it may be gone
	}
	for _, name := range double {
		g.double(name)
	}
}

// addresses are those that a node is connected from. g.mu is held.
func (n *guarded) addresses() string {
	all := make([]string, len(n.conns))
	for i, c := range n.conns {
		all[i] = c.address
	}
	return strings.Join(all, " and ")
}

// double finds out whether two hosts are connected as one node: on both connections
// something came after the second one was made. The former connection of a host that has
// connected again is silent.
func (g *guard) double(name string) {
	g.mu.Lock()
	conns := slices.Clone(g.nodes[name].conns)
	g.mu.Unlock()
	if len(conns) < 2 {
		return
	}
	conns = conns[len(conns)-2:]
	for _, c := range conns {
		all, err := g.server.Connz(&server.ConnzOptions{CID: c.id})
		if err == nil && len(all.Conns) == 0 {
			g.disconnected(c.id)
			return
		}
		if err != nil || !all.Conns[0].LastActivity.After(conns[1].began.Add(time.Second)) {
			return
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[name]
	if n == nil {
		return
	}
	at := conns[0].address + " and " + conns[1].address
	if n.doubled == "" {
		g.log.Error("a node is connected twice: two hosts have its file, enroll one of them under a name of its own", "node", name, "from", at)
	}
	n.doubled = at
}

// rates returns which nodes have sent too much since the last count, and how much.
func (g *guard) rates(now time.Time) map[string]string {
	if now.Sub(g.countedAt) < rateInterval {
		return nil
	}
	first := g.countedAt.IsZero()
	g.countedAt = now
	all, err := g.server.Connz(&server.ConnzOptions{Limit: 1 << 20})
	if err != nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	of := make(map[string]sent)
	for _, c := range all.Conns {
		name, ok := g.open[c.Cid]
		if !ok {
			continue
		}
		last, known := g.counted[c.Cid]
		g.counted[c.Cid] = sent{c.InMsgs, c.InBytes}
		if first && !known {
			continue
		}
		s := of[name]
		s.messages += c.InMsgs - last.messages
		s.bytes += c.InBytes - last.bytes
		of[name] = s
	}
	too := make(map[string]string)
	for name, s := range of {
		if s.messages > maxMessages || s.bytes > maxBytes {
			too[name] = fmt.Sprintf("%d messages of %d kB in all within %v", s.messages, s.bytes/1000, rateInterval)
		}
	}
	return too
}

// Problems returns what nodes do that they should not, and whether they wait to connect, a line each.
func (i *inside) Problems() (all []string) {
	if text := i.gate.problem(); text != "" {
		all = append(all, text)
	}
	g, now := i.guard, time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(g.nodes)) {
		n := g.nodes[name]
		if n.doubled != "" {
			all = append(all, fmt.Sprintf("node %s is connected twice, from %s: two hosts have its file, enroll one of them under a name of its own", name, n.doubled))
		}
		if !n.lastAt.IsZero() && now.Sub(n.lastAt) < shownFor {
			text := fmt.Sprintf("node %s tries what it may not do, %d times so far, last: %s", name, n.total, n.last)
			if now.Before(n.barred) {
				text += "; it is cut off for a minute"
			}
			all = append(all, text)
		}
	}
	return all[:min(len(all), maxShown)]
}

// Violations returns how often each node tried what it may not do.
func (i *inside) Violations() map[string]uint64 {
	g := i.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[string]uint64)
	for name, n := range g.nodes {
		if n.total > 0 {
			all[name] = n.total
		}
	}
	return all
}

// Misuse returns how often nodes tried what they may not do, how many are connected twice,
// and how many connections were closed since too much waited to be read.
func (i *inside) Misuse() (violations uint64, twice int, slow uint64) {
	g := i.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range g.nodes {
		if n.doubled != "" {
			twice++
		}
	}
	return g.violations, twice, uint64(i.server.NumSlowConsumers())
}
