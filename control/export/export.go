// Package export sends flow collectors records of passed and dropped packets, as IPFIX
// (RFC 7011), and samples of dropped packets, as sFlow version 5.
//
// Nothing waits for a collector. Each has a queue of its own, of bounded length, and a
// goroutine that sends what is in it. What cannot be sent is counted as lost; a
// connection is tried again and again.
package export

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir/control/endpoint"
	"weir/filter/ordered"
)

const (
	// maxQueue bounds the batches that wait for a collector, MaxFlows the records of
	// each half of one.
	maxQueue = 8
	MaxFlows = 4096

	// The delays between attempts to connect double, from firstRetry to maxRetry.
	firstRetry = time.Second
	maxRetry   = 30 * time.Second

	// A refused datagram is reported as an error of a later one. So a connection
	// over UDP is known to work when nothing fails so long after its first batch.
	refusal = time.Second

	// timeout is for connecting, and for sending a message.
	timeout = 5 * time.Second
)

// Exporter sends batches to collectors. Its methods are safe for concurrent use.
type Exporter struct {
	log *slog.Logger

	mu      sync.Mutex
	senders []*sender // by name
	former  []Count   // of collectors that were removed: counters never go back
}

// New returns an exporter without collectors.
func New(log *slog.Logger) *Exporter { return &Exporter{log: log} }

// Configure makes the exporter send to collectors, and to no others. Those that stay the
// same keep their queues.
func (x *Exporter) Configure(collectors []Collector) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var next []*sender
	for _, c := range collectors {
		at := slices.IndexFunc(x.senders, func(s *sender) bool { return s.Collector == c })
		if at >= 0 {
			next = append(next, x.senders[at])
			continue
		}
		ctx, cancel := context.WithCancel(context.Background()) // until Close
		s := &sender{Collector: c, log: x.log.With("collector", c.Name, "to", string(c.URL())), cancel: cancel, wake: make(chan struct{}, 1), ended: make(chan struct{})}
		next = append(next, s)
		go s.run(ctx)
	}
	for _, s := range x.senders {
		if !slices.Contains(next, s) {
			s.cancel()
			<-s.ended
			x.former = merge(x.former, s.count())
		}
	}
	ordered.By(next, func(a, b *sender) int { return cmp.Compare(a.Name, b.Name) })
	x.senders = next
}

// On reports whether there are collectors.
func (x *Exporter) On() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.senders) > 0
}

// Send queues a batch for the collectors that take its kind, whose contents must not
// change afterwards. It does not wait.
func (x *Exporter) Send(b Batch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.senders {
		if (s.SFlow != "") == (b.Samples != nil) {
			s.put(b)
		}
	}
}

// Close stops the exporter, after giving collectors some time for what waits.
func (x *Exporter) Close(grace time.Duration) {
	late := time.After(grace)
	often := time.NewTicker(5 * time.Millisecond)
	defer often.Stop()
	for waits := true; waits; {
		waits = slices.ContainsFunc(x.Counts(), func(c Count) bool { return c.Waiting > 0 && !c.Failing })
		select {
		case <-often.C:
		case <-late:
			waits = false
		}
	}
	x.Configure(nil)
}

// Count counts a collector's records by their fate.
type Count struct {
	Collector string
	Sent      uint64
	Lost      uint64 // they could not be sent, or too many were waiting
	Waiting   int    // batches
	Failing   bool   // the last attempt failed
}

// Counts returns what became of the records of all collectors, in the order of their
// names. Counters never go back.
func (x *Exporter) Counts() []Count {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := slices.Clone(x.former)
	for _, s := range x.senders {
		all = merge(all, s.count())
	}
	ordered.By(all, func(a, b Count) int { return cmp.Compare(a.Collector, b.Collector) })
	return all
}

func merge(all []Count, c Count) []Count {
	at := slices.IndexFunc(all, func(o Count) bool { return o.Collector == c.Collector })
	if at < 0 {
		return append(all, c)
	}
	o := &all[at]
	o.Sent += c.Sent
	o.Lost += c.Lost
	o.Waiting, o.Failing = c.Waiting, c.Failing
	return all
}

// Servers returns the addresses of the collectors that are connected to over TCP, by
// name.
func (x *Exporter) Servers() map[string][]netip.Addr {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := make(map[string][]netip.Addr)
	for _, s := range x.senders {
		s.mu.Lock()
		if s.server.IsValid() {
			all[s.Name] = []netip.Addr{s.server}
		}
		s.mu.Unlock()
	}
	return all
}

// sender sends to a collector.
type sender struct {
	Collector
	log    *slog.Logger
	cancel context.CancelFunc
	wake   chan struct{}
	ended  chan struct{} // closed when run has ended

	// Of run's goroutine.
	conn    net.Conn      // nil: none
	forget  func() bool   // has the end of run not close conn
	broken  chan struct{} // closed when the collector has closed conn
	dialed  time.Time     // when conn was made, or its name resolved again
	first   time.Time     // when conn sent its first batch; zero: not yet
	session *session      // of IPFIX
	sflow   *sflowSession // nil at first
	wait    time.Duration // until the next attempt to connect
	again   time.Time     // when that may be

	mu      sync.Mutex // guards the rest
	queue   []Batch    // the oldest first
	sending bool
	counts  Count
	server  netip.Addr
}

func (b *Batch) records() uint64 {
	if b.Samples != nil {
		return b.Samples.records()
	}
	return uint64(len(b.All) + len(b.Heavy))
}

// put queues a batch.
func (s *sender) put(b Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Samples != nil {
		s.counts.Lost += b.Samples.Lost
	}
	if len(s.queue) == maxQueue {
		s.counts.Lost += s.queue[0].records()
		s.queue = slices.Delete(s.queue, 0, 1)
	}
	s.queue = append(s.queue, b)
	select {
	case s.wake <- struct{}{}:
	default: // it has yet to look
	}
}

func (s *sender) count() Count {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts
	c.Collector, c.Waiting = s.Name, len(s.queue)
	if s.sending {
		c.Waiting++
	}
	return c
}

func (s *sender) run(ctx context.Context) {
	defer close(s.ended)
	defer func() {
		s.hangUp()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, b := range s.queue {
			s.counts.Lost += b.records()
		}
		s.queue, s.sending = nil, false
	}()
	for {
		if !s.connect(ctx) {
			return
		}
		s.mu.Lock()
		var b Batch
		if s.sending = len(s.queue) > 0; s.sending {
			b = s.queue[0]
			s.queue = slices.Delete(s.queue, 0, 1)
		}
		sending := s.sending
		s.mu.Unlock()
		if sending {
			s.send(b)
			continue
		}
		select {
		case <-s.wake:
		case <-s.broken:
		case <-ctx.Done():
			return
		}
	}
}

// connect connects to the collector, unless it is connected, with as many attempts as
// that takes. It reports false when ctx is done.
func (s *sender) connect(ctx context.Context) bool {
	select {
	case <-s.broken:
		s.hangUp()
		s.failed("the collector has closed the connection, connecting again")
	default:
	}
	if s.conn != nil && s.conn.RemoteAddr().Network() == "udp" && time.Since(s.dialed) >= resolveAgain {
		s.renew(ctx)
	}
	for s.conn == nil {
		select {
		case <-time.After(time.Until(s.again)):
		case <-ctx.Done():
			return false
		}
		soon, cancel := context.WithTimeout(ctx, timeout)
		conn, err := s.URL().Dial(soon, s.TLS)
		cancel()
		if err != nil {
			if ctx.Err() != nil {
				return false
			}
			s.failed("the collector cannot be reached, trying again: " + err.Error())
			continue
		}
		s.use(ctx, conn)
	}
	return ctx.Err() == nil
}

// resolveAgain is how often the name of a collector over UDP is resolved again: its former address
// need not refuse packets.
const resolveAgain = 5 * time.Minute

// renew connects anew if the collector's name has another address. If that fails, the connection
// stays.
func (s *sender) renew(ctx context.Context) {
	s.dialed = time.Now()
	soon, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := s.URL().Dial(soon, s.TLS)
	switch {
	case err != nil:
	case conn.RemoteAddr().String() == s.conn.RemoteAddr().String():
		_ = conn.Close()
	default:
		s.hangUp()
		s.use(ctx, conn)
	}
}

// use sends on a new connection.
func (s *sender) use(ctx context.Context, conn net.Conn) {
	s.forget = context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends a write that hangs
	s.conn, s.broken, s.dialed, s.first = conn, make(chan struct{}), time.Now(), time.Time{}
	if s.SFlow == "" {
		s.session = newSession(s.Collector)
	} else {
		if s.sflow == nil {
			s.sflow = newSFlow(s.Collector)
		}
		s.sflow.connected(conn)
	}
	if server, ok := endpoint.Server(conn); ok {
		s.mu.Lock()
		s.server = server
		s.mu.Unlock()
		go listen(conn, s.broken)
	}
}

// listen waits until a collector closes its connection: it has nothing to say.
func listen(c net.Conn, broken chan<- struct{}) {
	_, _ = io.Copy(io.Discard, c)
	close(broken)
}

func (s *sender) hangUp() {
	if s.conn != nil {
		s.forget()
		_ = s.conn.Close()
		s.conn, s.broken = nil, nil
	}
}

// send sends a batch. What cannot be sent is lost: of a connection that breaks, it is
// unknown what has arrived, and twice would be wrong, too.
func (s *sender) send(b Batch) {
	var messages []message
	if b.Samples != nil {
		messages = s.sflow.encode(b.Samples, s.count().Lost, time.Now())
	} else {
		messages = s.session.encode(b, time.Now())
	}
	var all, sent uint64
	for _, m := range messages {
		all += uint64(m.records)
	}
	var failed error
	for _, m := range messages {
		_ = s.conn.SetWriteDeadline(time.Now().Add(timeout)) // fails only where writing does
		if _, failed = s.conn.Write(m.bytes); failed != nil {
			s.hangUp()
			break
		}
		sent += uint64(m.records)
	}
	now := time.Now()
	if s.first.IsZero() {
		s.first = now
	}
	works := failed == nil && (s.conn.RemoteAddr().Network() != "udp" || now.Sub(s.first) >= refusal)
	s.mu.Lock()
	s.counts.Sent += sent
	s.counts.Lost += all - sent
	was := s.counts.Failing
	s.counts.Failing, s.sending = was && !works, false
	s.mu.Unlock()
	switch {
	case failed != nil:
		s.failed("records could not be sent: " + failed.Error())
	case works:
		s.wait = 0
		if was {
			s.log.Info("records are exported again")
		}
	}
}

// failed notes a failure, after which to wait. Only the first one is logged as an error.
func (s *sender) failed(text string) {
	s.mu.Lock()
	first := !s.counts.Failing
	s.counts.Failing = true
	s.mu.Unlock()
	s.wait = min(max(2*s.wait, firstRetry), maxRetry)
	s.again = time.Now().Add(s.wait)
	if first {
		s.log.Error(text)
	} else {
		s.log.Debug(text)
	}
}
