package hub

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"weir/control/api"
	"weir/control/api/server"
	"weir/control/audit"
	"weir/control/durable"
	"weir/control/fleet/authority"
	"weir/control/fleet/enrollment"
)

const (
	bodyTimeout = 10 * time.Second // of a request
	copyTimeout = 10 * time.Minute // of keys and state

	// Handshakes take time of the processor that nodes need.
	maxHandshakes = 100 // a second

	// Brakes of an address, or a /64 of IPv6: few requests under way at once, and few refusals within a minute,
	// after which it waits for the next minute.
	maxUnderWay  = 32
	maxRefusals  = 10
	maxAddresses = 4096 // that are counted; with more, all wait
)

// Joins lets hosts join, and operators ask. It is safe for concurrent use.
type Joins struct {
	hub        *Hub
	api        http.Handler
	secure     *tls.Config
	handshakes *rate.Limiter

	mu      sync.Mutex
	minute  time.Time // when refused began
	refused map[netip.Prefix]int
	busy    map[netip.Prefix]int  // requests under way
	copies  map[string]netip.Addr // where a standby, by its token, copied to last

	copying sync.Mutex // of the keys and the state, once at a time
}

// Joins returns what lets hosts join, over TLS.
func (h *Hub) Joins(secure *tls.Config) *Joins {
	return &Joins{hub: h, api: server.HubHandler(h), secure: secure, handshakes: rate.NewLimiter(maxHandshakes, maxHandshakes), busy: make(map[netip.Prefix]int),
		copies: make(map[string]netip.Addr)}
}

// Secure returns a listener for TLS on another one.
func (j *Joins) Secure(l net.Listener) net.Listener { return &secured{l, j} }

// secured is a listener for TLS.
type secured struct {
	net.Listener
	of *Joins
}

// Accept implements [net.Listener].
func (s *secured) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	_ = s.of.handshakes.Wait(context.Background()) // others wait in the queue of the system
	return &securedConn{tls.Server(c, s.of.secure), s.of}, nil
}

// securedConn is a connection that makes its handshake at the first read.
type securedConn struct {
	*tls.Conn
	of *Joins
}

// Read implements [net.Conn].
func (c *securedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" && !c.ConnectionState().HandshakeComplete {
		c.of.refuse(addressOf(c.RemoteAddr().String()), audit.Join, authority.Refused{}, fmt.Errorf("the host does not trust this hub: its token is of other keys, or for another name (%w)", alert.Err))
	}
	return n, err
}

// addressOf returns the address of a host, without its port.
func addressOf(peer string) netip.Addr {
	at, _ := netip.ParseAddrPort(peer)
	return at.Addr().Unmap().WithZone("")
}

// ServeHTTP implements [http.Handler].
func (j *Joins) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	from := addressOf(q.RemoteAddr)
	answer := func(status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v) // the host asks again
	}
	if token, ok := strings.CutPrefix(q.Header.Get("Authorization"), "Bearer "); ok {
		j.operate(w, q, from, token)
		return
	}
	if q.Method != http.MethodPost || q.URL.Path != enrollment.JoinPath {
		http.NotFound(w, q)
		return
	}
	leave, why := j.enter(network(from), false)
	if why != "" {
		answer(http.StatusTooManyRequests, enrollment.Refused{Why: why})
		return
	}
	defer leave()
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // or else the server's own
	var r enrollment.Request
	if err := json.NewDecoder(http.MaxBytesReader(w, q.Body, enrollment.MaxRequest)).Decode(&r); err != nil {
		j.refuse(from, audit.Join, authority.Refused{}, errors.New("no request of weir join"))
		answer(http.StatusBadRequest, enrollment.Refused{Why: "no request of weir join"})
		return
	}
	n, err := j.hub.grant(r, from)
	switch why, refused := errors.AsType[authority.Refused](err); {
	case err == nil:
		answer(http.StatusOK, n)
	case refused:
		change := audit.Join
		if r.JWT != "" {
			change = audit.Renew
		}
		j.refuse(from, change, why, why)
		answer(http.StatusForbidden, enrollment.Refused{Why: why.Error(), Keys: why.Keys})
	default:
		j.hub.o.Log.Error("a host could not join: "+err.Error(), "from", from)
		text := "the hub cannot record it"
		if _, full := errors.AsType[errFull](err); full || durable.Full(err) {
			text = "its disk is full"
		}
		answer(http.StatusServiceUnavailable, enrollment.Refused{Why: text})
	}
}

// operate answers an operator with a token.
func (j *Joins) operate(w http.ResponseWriter, q *http.Request, from netip.Addr, token string) {
	fail := func(status int, why string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(api.Failure{Error: why}) // the operator asks again
	}
	o, err := j.hub.o.Authority.OperatorOf(token)
	leave, why := j.enter(network(from), err == nil)
	if why != "" {
		fail(http.StatusTooManyRequests, why)
		return
	}
	defer leave()
	status := http.StatusUnauthorized
	if needed := api.RoleFor(q.Method, q.URL.Path); err == nil && !api.MayAs(o.Role, needed) {
		status, err = http.StatusForbidden, fmt.Errorf("operator %s has the role %s: this takes %s", o.Name, o.Role, needed)
	}
	if err != nil {
		if status == http.StatusUnauthorized {
			j.count(from)
		}
		r := audit.Record{Change: audit.Request, Entries: 1, First: []string{q.Method + " " + q.URL.Path}, Source: from.String()}
		if o.Name != "" {
			r.Source, r.Reason = api.ByOperator(o.Name), "from "+from.String()
		}
		j.hub.audit.Refused(r, err)
		fail(status, err.Error())
		return
	}
	if q.Method == http.MethodGet && q.URL.Path == api.BackupPath && j.hub.o.Backup != nil {
		if !j.copying.TryLock() {
			fail(http.StatusServiceUnavailable, "another copy is under way")
			return
		}
		defer j.copying.Unlock()
		j.copy(w, o, from)
		return
	}
	j.api.ServeHTTP(w, server.AsOperator(q, o.Name))
}

// copy sends a standby the keys and the state, one at a time. The socket does not: who may use it may not read the
// keys.
func (j *Joins) copy(w http.ResponseWriter, o authority.Operator, from netip.Addr) {
	j.mu.Lock()
	known := j.copies[o.ID] == from
	j.copies[o.ID] = from
	j.mu.Unlock()
	if !known { // else a line each minute
		j.hub.audit.Record(audit.Record{Change: audit.Copy, Entries: 1, Changed: 1, Source: api.ByOperator(o.Name), Reason: "from " + from.String()})
	}
	w.Header().Set("Content-Type", "application/gzip")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(copyTimeout)) // or else the server's own
	if err := j.hub.o.Backup.Backup(w); err != nil {
		j.hub.o.Log.Error("a copy for operator "+o.Name+" has failed: "+err.Error(), "from", from)
		panic(http.ErrAbortHandler) // so that it is not taken for whole
	}
}

// grant grants what a host asks for that has a token, or is a node and renews what it has.
func (h *Hub) grant(r enrollment.Request, from netip.Addr) (n enrollment.Node, err error) {
	if err := h.dir.room(); err != nil {
		return n, err
	}
	c := h.conf()
	if r.JWT != "" {
		return h.o.Authority.Renew(r, c.Servers)
	}
	return h.o.Authority.Join(r, from, c.Servers, c.Broker.TLSFirst != "")
}

// renew answers a node that asks for a renewal over its connection.
func (h *Hub) renew(name string, text []byte) (a enrollment.Answer, err error) {
	var r enrollment.Request
	if err := json.Unmarshal(text, &r); err != nil || r.JWT == "" {
		return a, errors.New("no renewal")
	}
	var n enrollment.Node
	if asked, _, bad := r.Check(); bad == nil && asked != name {
		err = authority.Refused{Node: name}.Because("it asks for another node")
	} else {
		n, err = h.grant(r, netip.Addr{})
	}
	if why, refused := errors.AsType[authority.Refused](err); refused {
		h.audit.Refused(recordOf(audit.Renew, "node "+name, why), why)
		return enrollment.Answer{Refused: &enrollment.Refused{Why: why.Error()}}, nil
	}
	return enrollment.Answer{Node: &n}, err
}

// enter begins a request from a network, or returns why it has to wait. Refused requests, of the same address or of very
// many, hold up no operator whose token is valid.
func (j *Joins) enter(from netip.Prefix, proved bool) (leave func(), why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if now := time.Now(); now.Sub(j.minute) >= time.Minute {
		j.minute, j.refused = now, make(map[netip.Prefix]int)
	}
	switch {
	case !proved && (j.refused[from] >= maxRefusals || len(j.refused) >= maxAddresses):
		return nil, "too many refused requests from this address: wait a minute"
	case j.busy[from] >= maxUnderWay:
		return nil, "too many requests from this address at once"
	}
	j.busy[from]++
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.busy[from]--; j.busy[from] == 0 {
			delete(j.busy, from)
		}
	}, ""
}

// refuse counts and records a refusal of a change.
func (j *Joins) refuse(from netip.Addr, change string, who authority.Refused, why error) {
	j.count(from)
	j.hub.audit.Refused(recordOf(change, from.String(), who), why)
}

// count counts a refusal.
func (j *Joins) count(from netip.Addr) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.refused != nil { // a request has come
		j.refused[network(from)]++
	}
}

// recordOf returns the record of a refusal.
func recordOf(change, source string, who authority.Refused) audit.Record {
	r := audit.Record{Change: change, Entries: 1, Source: source}
	if who.Node != "" {
		r.First = []string{who.Node}
	}
	if who.Token != "" {
		r.Reason = "token " + who.Token
	}
	return r
}

// network returns the network that brakes count an address under.
func network(from netip.Addr) netip.Prefix {
	bits := 64
	if from.Is4() {
		bits = 32
	}
	p, _ := from.Prefix(bits) // cannot fail
	return p
}
