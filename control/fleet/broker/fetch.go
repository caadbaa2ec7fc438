package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"weir/control/fleet/wire"
)

// Limits on what a node fetches.
const (
	// window bounds, for each node, what was answered and it has not read yet: two chunks.
	window = 2 * wire.ChunkSize

	// In all, a node may fetch fetchTimes what the stream has and fetchLeast, and each
	// fetchPeriod as much as the stream has, at least fetchLeast. A node without state fetches
	// half of it: the stream has two snapshots of each list.
	fetchTimes  = 2
	fetchLeast  = 16 << 20
	fetchPeriod = time.Minute
	perAnswer   = 512 // bytes, that each counts in addition

	maxAsked    = 64 // questions of a node that wait
	maxAskedAge = 75 * time.Second
	maxQuestion = 512 // bytes
	fetchers    = 4   // answer at once
	askStream   = 5 * time.Second
	tryAgain    = 100 * time.Millisecond // a node that has not read enough
	sizeEvery   = 10 * time.Second

	// refusals that are answered, for each node: a short one has about the length of the
	// question.
	refusalBurst = 20
	refusalEvery = 100 * time.Millisecond

	maxFetching  = 100_000 // nodes
	forgetAfter  = 10 * time.Minute
	maxFetchWait = 65536 // questions that wait to be looked at
)

// fetcher answers what nodes fetch of the stream. JetStream itself would send it to whatever
// subject a node names, as often and as much as it asks for.
type fetcher struct {
	in     *inside
	nodes  *server.Account
	conn   *nats.Conn // in the account of nodes
	stream *nats.Conn // in that of the stream

	size atomic.Int64 // of the stream
	stop chan struct{}
	all  sync.WaitGroup

	mu     sync.Mutex
	ready  []*fetching
	wake   *sync.Cond
	by     map[string]*fetching
	closed bool
}

// fetching is a node that fetches.
type fetching struct {
	name     string
	asked    []asked
	waiting  bool    // it is in ready, or is answered, or will be in a moment
	used     float64 // bytes of its allowance
	counted  time.Time
	unread   int64 // bytes sent since the node had read what was sent before
	refusals *rate.Limiter
}

// asked is a question.
type asked struct {
	text  []byte
	reply string
	at    time.Time
}

// serve begins to answer what the nodes of an account fetch.
func (i *inside) serve(account string, nodes, stream nats.Option) (err error) {
	f := &fetcher{in: i, by: make(map[string]*fetching), stop: make(chan struct{})}
	f.wake = sync.NewCond(&f.mu)
	i.fetcher = f
	if f.nodes, err = i.server.LookupAccount(account); err != nil {
		return err
	}
	// Without TLS: what is fetched goes through this process.
	for to, credentials := range map[**nats.Conn]nats.Option{&f.conn: nodes, &f.stream: stream} {
		if *to, err = nats.Connect("", nats.InProcessServer(local{i.server}), credentials, nats.MaxReconnects(-1), nats.CustomInboxPrefix(wire.HubInbox+".fetch"), nats.Name("weir-hub fetch")); err != nil {
			return err
		}
	}
	s, err := f.conn.Subscribe(wire.NodeFetchSubject("*"), func(m *nats.Msg) { f.take(wire.NodeOfFetch(m.Subject), m) })
	if err == nil {
		err = s.SetPendingLimits(maxFetchWait, 64<<20)
	}
	if err != nil {
		return err
	}
	if err := f.conn.Flush(); err != nil {
		return err
	}
	for range fetchers {
		f.all.Go(f.answer)
	}
	f.all.Go(f.look)
	return nil
}

// close ends that.
func (f *fetcher) close() {
	close(f.stop)
	f.mu.Lock()
	f.closed = true
	f.wake.Broadcast()
	f.mu.Unlock()
	for _, c := range []*nats.Conn{f.conn, f.stream} {
		if c != nil {
			c.Close()
		}
	}
	f.all.Wait()
}

// take takes in a question of a node. It must not wait: others wait behind it.
func (f *fetcher) take(name string, m *nats.Msg) {
	if to, ok := wire.NodeOfInbox(m.Reply); !ok || to != name {
		f.in.guard.misused(name, fmt.Sprintf("Fetch for another - Subject %.100q", m.Reply))
		return
	}
	if f.nodes.Interest(m.Reply) == 0 {
		return // it may be made up: no connection waits there
	}
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.by[name]
	if n == nil {
		if len(f.by) >= maxFetching {
			return
		}
		n = &fetching{name: name, refusals: rate.NewLimiter(rate.Every(refusalEvery), refusalBurst)}
		f.by[name] = n
	}
	for i := range n.asked {
		if bytes.Equal(n.asked[i].text, m.Data) { // it asks again
			n.asked[i].reply, n.asked[i].at = m.Reply, now
			return
		}
	}
	if len(n.asked) >= maxAsked || len(m.Data) > maxQuestion {
		f.in.guard.misused(name, "Fetch - too much at once")
		return
	}
	n.asked = append(n.asked, asked{m.Data, m.Reply, now})
	f.enqueue(n)
}

// enqueue has a node be answered in its turn. f.mu is held.
func (f *fetcher) enqueue(n *fetching) {
	if !n.waiting && len(n.asked) > 0 && !f.closed {
		n.waiting = true
		f.ready = append(f.ready, n)
		f.wake.Signal()
	}
}

// answer answers one question of each node in turn.
func (f *fetcher) answer() {
	for {
		f.mu.Lock()
		for len(f.ready) == 0 && !f.closed {
			f.wake.Wait()
		}
		if f.closed {
			f.mu.Unlock()
			return
		}
		n := f.ready[0]
		f.ready = f.ready[1:]
		unread := n.unread
		f.mu.Unlock()
		if unread > window/2 {
			unread = f.in.pending(n.name)
		}
		f.mu.Lock()
		n.unread = unread
		if unread > window/2 { // it reads slowly, or not at all
			time.AfterFunc(tryAgain, func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				n.waiting = false
				f.enqueue(n)
			})
			f.mu.Unlock()
			continue
		}
		q := n.asked[0]
		n.asked = n.asked[1:]
		allowed := n.allowed(f.size.Load(), time.Now())
		f.mu.Unlock()
		size := 0
		if allowed && time.Since(q.at) < maxAskedAge {
			size = f.fetch(n.name, q)
		}
		f.mu.Lock()
		n.unread += int64(size)
		n.used += float64(size + perAnswer)
		n.waiting = false
		refuse := !allowed && n.refusals.Allow()
		f.enqueue(n)
		f.mu.Unlock()
		if !allowed {
			f.in.guard.misused(n.name, "Fetch - more than there is, many times over")
		}
		if refuse {
			f.respond(q, &nats.Msg{Header: nats.Header{"Status": {"429"}}})
		}
	}
}

// allowed reports whether a node may fetch more, of a stream of some size.
func (n *fetching) allowed(size int64, now time.Time) bool {
	least := float64(max(size, fetchLeast))
	if !n.counted.IsZero() {
		n.used = max(0, n.used-least*now.Sub(n.counted).Seconds()/fetchPeriod.Seconds())
	}
	n.counted = now
	return n.used < float64(fetchTimes*size+fetchLeast)
}

// pending returns how much the connections of a node have to read, in bytes.
func (i *inside) pending(name string) (bytes int64) {
	for _, id := range i.guard.connections(name) {
		if all, err := i.server.Connz(&server.ConnzOptions{CID: id}); err == nil {
			for _, c := range all.Conns {
				bytes += int64(c.Pending)
			}
		}
	}
	return bytes
}

// fetch answers a question. It returns the length of the answer.
func (f *fetcher) fetch(name string, q asked) int {
	var what wire.Fetch
	d := json.NewDecoder(bytes.NewReader(q.text))
	d.DisallowUnknownFields()
	subject := ""
	if err := d.Decode(&what); err == nil && (what.Last == "") != (what.Next == "") {
		subject = what.Last + what.Next
	}
	if !wire.Fetchable(subject) {
		f.in.guard.misused(name, fmt.Sprintf("Fetch - %.100q", q.text))
		return 0
	}
	text, err := json.Marshal(what)
	if err != nil {
		return 0
	}
	m, err := f.stream.Request(wire.FetchSubject, text, askStream)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		// Without data, the answer means that no one is there: the node would take the server for
		// one of a cluster.
		m = &nats.Msg{Header: nats.Header{"Status": {"503"}, "Description": {"the stream is not there"}}, Data: []byte("503")}
	case err != nil:
		return 0 // the node asks again
	}
	return f.respond(q, m)
}

// respond sends an answer, and returns its length.
func (f *fetcher) respond(q asked, m *nats.Msg) int {
	answer := &nats.Msg{Subject: q.reply, Header: m.Header, Data: m.Data}
	if err := f.conn.PublishMsg(answer); err != nil {
		return 0
	}
	return answer.Size()
}

// look finds out how large the stream is, and forgets nodes that fetch no longer.
func (f *fetcher) look() {
	tick := time.NewTicker(sizeEvery)
	defer tick.Stop()
	soon := time.NewTimer(0)
	defer soon.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-tick.C:
		case <-soon.C:
		}
		if bytes, ok := f.streamSize(); ok {
			f.size.Store(bytes)
		} else {
			soon.Reset(time.Second)
		}
		now := time.Now()
		f.mu.Lock()
		for name, n := range f.by {
			if !n.waiting && now.Sub(n.counted) > forgetAfter {
				delete(f.by, name)
			}
		}
		f.mu.Unlock()
	}
}

func (f *fetcher) streamSize() (int64, bool) {
	js, err := f.stream.JetStream(nats.MaxWait(askStream))
	if err != nil {
		return 0, false
	}
	info, err := js.StreamInfo(wire.Stream)
	if err != nil {
		return 0, false
	}
	return int64(info.State.Bytes), true
}
