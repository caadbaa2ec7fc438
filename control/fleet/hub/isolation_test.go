package hub

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/config"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
	"weir/tests/long"
	"weir/tests/wait"
)

// lines is a log that can be looked at.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(b))
	return len(b), nil
}

// of returns the lines with a text.
func (l *lines) of(text string) (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			all = append(all, line)
		}
	}
	return all
}

// logged has the broker and the hub of a fleet log to lines.
func logged(t *testing.T) (*fleet, *lines) {
	f, l := newFleet(t), &lines{}
	f.log = slog.New(slog.NewTextHandler(l, nil))
	return f, l
}

// watched is a node that counts what it is sent.
type watched struct {
	*nats.Conn
	node           enrollment.Node
	messages, size atomic.Int64
}

// watch connects a node that subscribes to all that it may, and counts what comes, but for
// what is published live, once.
func (f *fleet) watch(name string) *watched {
	t := f.t
	t.Helper()
	w := &watched{}
	w.node, w.Conn = f.enroll(name)
	var live sync.Map
	for _, subject := range []string{wire.DownPrefix + wire.CatalogSubject(), wire.DownPrefix + wire.ListsSubjects, wire.NodeInbox(name) + ">", wire.QuestionsSubject(name)} {
		if _, err := w.Subscribe(subject, func(m *nats.Msg) {
			if m.Subject == wire.DownPrefix+m.Header.Get("Nats-Subject") {
				if _, again := live.LoadOrStore(m.Header.Get("Nats-Sequence"), true); !again {
					return
				}
			}
			w.messages.Add(1)
			w.size.Add(int64(len(m.Data)))
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return w
}

// named waits until the hub's status names a node for what it has tried.
func (f *fleet) named(node, what string) {
	f.t.Helper()
	wait.Until(f.t, func() error {
		s, err := f.hub.Fleet(f.t.Context())
		if err != nil {
			return err
		}
		for _, p := range s.Problems {
			if strings.Contains(p, "node "+node+" ") && strings.Contains(p, what) {
				return nil
			}
		}
		return fmt.Errorf("problems: %q, want node %s and %q", s.Problems, node, what)
	})
}

// A node that has answers sent to others: nothing arrives there, and the hub names it.
func TestFetchForOthers(t *testing.T) {
	t.Parallel() // it waits a lot
	f, log := logged(t)
	f.start("")
	good := f.watch("good")
	_, bad := f.enroll("bad")
	f.change(block(many(1000)...))
	place := f.has(config.FleetBlock).Active
	chunk := fmt.Sprintf(`{"last_by_subj":%q}`, wire.ChunkSubject(config.FleetBlock, place.Epoch, 1, 0))
	before := f.broker.Sent()
	var sent int64
	for _, reply := range []string{
		wire.DownPrefix + wire.DeltaSubject(config.FleetBlock), wire.DownPrefix + wire.CatalogSubject(), wire.DownPrefix + wire.HeadSubject("x"),
		wire.NodeInbox("good") + "x", wire.NodeInbox("good") + "x.y", wire.AskSubject("good", "explain"), wire.StatusSubject("good"), "weir.v1.fetch.good", wire.FetchSubject, "_INBOX.bad", "foo",
	} {
		for _, what := range []string{chunk, fmt.Sprintf(`{"last_by_subj":%q}`, wire.CatalogSubject())} {
			for range 10 { // of which it is not cut off
				if err := bad.PublishRequest(wire.NodeFetchSubject("bad"), reply, []byte(what)); err != nil {
					t.Fatal(err)
				}
				sent += int64(len(wire.NodeFetchSubject("bad")) + len(reply) + len(what))
			}
		}
	}
	f.named("bad", "another")
	if err := bad.Flush(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		t.Fatal(err)
	}
	if _, err := good.Request(wire.NodeFetchSubject("good"), []byte(chunk), wait.Patience); err != nil { // after all that
		t.Error(err)
	}
	if n := good.messages.Load(); n > 1 { // its own answer, which the inbox has, too
		t.Errorf("%d messages of %d bytes came to another node", n, good.size.Load())
	}
	if n := f.broker.Sent() - before; n > 2*sent+100_000 { // and heartbeats
		t.Errorf("the hub has sent %d bytes for %d", n, sent)
	}
	wait.Until(t, func() error {
		if all := log.of("tries what it may not do"); len(all) != 1 || !strings.Contains(all[0], "node=bad") {
			return fmt.Errorf("in the log: %q", all)
		}
		return nil
	})
}

// many returns addresses.
func many(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("10.0.%d.%d", i>>8, i&255))
	}
	return all
}

// A node fetches what it needs of the stream, and nothing else of it.
func TestFetchable(t *testing.T) {
	long.Seconds(t)
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	_, c := f.enroll("edge-1")
	f.change(block("192.0.2.1"))
	get := func(what string) (*nats.Msg, error) {
		return c.Request(wire.NodeFetchSubject("edge-1"), []byte(what), 500*time.Millisecond)
	}
	for _, subject := range []string{wire.CatalogSubject(), wire.HeadSubject(config.FleetBlock), wire.DeltaSubject(config.FleetBlock)} {
		wait.Until(t, func() error {
			m, err := get(fmt.Sprintf(`{"last_by_subj":%q}`, subject))
			if err == nil && m.Header.Get("Nats-Subject") != subject {
				err = fmt.Errorf("%s: %v", subject, m.Header)
			}
			return err
		})
	}
	wait.Until(t, func() error {
		m, err := get(fmt.Sprintf(`{"seq":1,"next_by_subj":%q}`, wire.DeltaSubject("none")))
		if err == nil && m.Header.Get("Status") != "404" {
			err = fmt.Errorf("what is not there: %v", m.Header)
		}
		return err
	})
	for _, what := range []string{
		fmt.Sprintf(`{"last_by_subj":%q}`, wire.AccountSubject()),
		`{"last_by_subj":"weir.v1.live.>"}`, `{"last_by_subj":"weir.v1.live.*"}`, `{"seq":1}`, `{"seq":1,"next_by_subj":">"}`, `{}`, `{`, ``,
		fmt.Sprintf(`{"seq":1,"batch":100,"next_by_subj":%q}`, wire.DeltaSubject(config.FleetBlock)), fmt.Sprintf(`{"multi_last":[%q]}`, wire.CatalogSubject()),
	} {
		if m, err := get(what); err == nil {
			t.Errorf("%s: answered %v, %d bytes", what, m.Header, len(m.Data))
		}
	}
	// Catalogs and lists arrive live, and no account does.
	d, err := f.connect(enrolled(t, f, "edge-2"))
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1000)
	for _, subject := range []string{wire.DownPrefix + ">", wire.DownPrefix + "*.*.live.*", wire.DownPrefix + wire.AccountSubject()} {
		if _, err := d.Subscribe(subject, func(m *nats.Msg) { got <- m.Subject }); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Flush(); err != nil {
		t.Fatal(err)
	}
	own := f.inStream()
	for _, subject := range []string{wire.AccountSubject(), wire.LiveSubjects[:len(wire.LiveSubjects)-1] + "other", wire.HeadSubject("last")} {
		if err := own.Publish(wire.DownPrefix+subject, nil); err != nil {
			t.Fatal(err)
		}
	}
	for last := wire.DownPrefix + wire.HeadSubject("last"); ; {
		select {
		case subject := <-got:
			if subject == last {
				return
			}
			if subject != wire.DownPrefix+wire.CatalogSubject() && !strings.HasPrefix(subject, wire.DownPrefix+strings.TrimSuffix(wire.ListsSubjects, ">")) {
				t.Errorf("a node reads %s", subject)
			}
		case <-time.After(wait.Patience):
			t.Fatal("nothing arrives")
		}
	}
}

// inStream returns a connection in the account of the stream.
func (f *fleet) inStream() *nats.Conn {
	f.t.Helper()
	token, seed, err := f.authority.OwnStream()
	if err != nil {
		f.t.Fatal(err)
	}
	c, err := nats.Connect("", append(f.broker.Options(), nats.UserJWTAndSeed(token, seed))...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(c.Close)
	return c
}

func enrolled(t *testing.T, f *fleet, name string) enrollment.Node {
	t.Helper()
	n, err := f.authority.Enroll(name, nil, []string{f.broker.URL()})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A node may fetch what there is, more than once, and not all the time.
func TestFetchLimit(t *testing.T) {
	long.Only(t, "has the hub send 20 MB in small answers")
	t.Parallel()
	f := newFleet(t)
	f.start("")
	n, c := f.enroll("edge-1")
	_, other := f.enroll("edge-2")
	f.change(block(many(60_000)...))
	w := f.follower(n, c)
	if _, _, _, err := w.read(config.FleetBlock); err != nil {
		t.Fatal(err)
	}
	what := []byte(fmt.Sprintf(`{"last_by_subj":%q}`, wire.DeltaSubject(config.FleetBlock)))
	var sent, got int64
	refused := false
	for end := wait.Deadline(); !refused && time.Now().Before(end); {
		m, err := c.Request(wire.NodeFetchSubject("edge-1"), what, wait.Patience)
		if err != nil {
			t.Fatal(err)
		}
		sent += int64(len(what))
		got += int64(len(m.Data))
		refused = m.Header.Get("Status") == "429"
	}
	t.Logf("%d bytes for %d", got, sent)
	if !refused || got < 1<<20 {
		t.Errorf("refused: %v, after %d bytes", refused, got)
	}
	f.named("edge-1", "more than there is")
	if m, err := other.Request(wire.NodeFetchSubject("edge-2"), what, wait.Patience); err != nil || m.Header.Get("Status") != "" {
		t.Errorf("another node: %v", err)
	}
}

// small dials connections that take little before somebody reads.
type small struct{ deafDialer }

func (d small) Dial(network, address string) (net.Conn, error) {
	c, err := d.deafDialer.Dial(network, address)
	if err == nil {
		err = c.(deaf).Conn.(*net.TCPConn).SetReadBuffer(4096)
	}
	return c, err
}

// What a node does not read the hub does not go on to send: its memory would have it.
func TestDoesNotRead(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	feed := filepath.Join(f.dir, "large.txt")
	if err := writeFeed(feed, 300_000); err != nil {
		t.Fatal(err)
	}
	f.start("lists: {large: {sources: [{file: " + feed + "}]}}")
	_, good := f.enroll("good")
	bad := enrolled(t, f, "bad")
	var stop atomic.Bool
	until := make(chan struct{})
	defer close(until)
	c, err := f.connect(bad, nats.NoReconnect(), nats.SetCustomDialer(small{deafDialer{&stop, until}}))
	if err != nil {
		t.Fatal(err)
	}
	large := fmt.Sprintf(`{"last_by_subj":%q}`, wire.DeltaSubject("large"))
	wait.Until(t, func() error {
		m, err := good.Request(wire.NodeFetchSubject("good"), []byte(large), 10*time.Second)
		if err == nil && len(m.Data) < wire.ChunkSize/2 {
			err = fmt.Errorf("a delta of %d bytes", len(m.Data))
		}
		return err
	})
	inbox := c.NewInbox()
	if _, err := c.Subscribe(inbox, func(*nats.Msg) {}); err != nil { // which does not happen
		t.Fatal(err)
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	stop.Store(true)
	before := f.broker.Sent()
	for i := range 60 { // 64 may wait
		// Equal questions are one.
		if err := c.PublishRequest(wire.NodeFetchSubject("bad"), inbox, fmt.Appendf(nil, "%s%*s", large, i, "")); err != nil {
			t.Fatal(err)
		}
	}
	_ = c.FlushTimeout(time.Second) // it reads no answer
	wait.For(t, "the hub answers the node", func() bool { return f.broker.Sent()-before >= wire.ChunkSize })
	time.Sleep(2 * time.Second)
	// The stream sends each answer to the server, and that to the node. What a socket holds of it
	// has a bound of the system's.
	sent := f.broker.Sent() - before
	t.Logf("the hub has sent %d bytes to a node that reads nothing", sent)
	if sent > 2*(8<<20) {
		t.Error("too many")
	}
	if _, err := good.Request(wire.NodeFetchSubject("good"), []byte(large), wait.Patience); err != nil {
		t.Errorf("another node: %v", err)
	}
}

// Two hosts with one file are reported, with both addresses; a host that connects again is
// not; and no more than two connections stay.
func TestConnectedTwice(t *testing.T) {
	t.Parallel() // it waits a lot
	f, log := logged(t)
	f.start("")
	n, c := f.enroll("n8")
	d, err := f.connect(n)
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.hub.Fleet(t.Context())
	if err != nil || len(s.Problems) > 0 {
		t.Errorf("%q, %v", s.Problems, err)
	}
	own := []string{local(t, c), local(t, d)}
	wait.Until(t, func() error { // both are alive
		for _, c := range []*nats.Conn{c, d} {
			if err := c.Publish(wire.StatusSubject("n8"), status(t, wire.Status{})); err != nil {
				t.Fatal(err)
			}
		}
		s, err := f.hub.Fleet(t.Context())
		if err == nil && !strings.Contains(strings.Join(s.Problems, "\n"), "node n8 is connected twice, from "+own[0]+" and "+own[1]) {
			err = fmt.Errorf("problems %q, want %q", s.Problems, own)
		}
		return err
	})
	if m := f.hub.Metrics(); m.Misuse == nil || m.Misuse.Twice != 1 {
		t.Errorf("metrics: %+v", m.Misuse)
	}
	if all := log.of("is connected twice"); len(all) != 1 || !strings.Contains(all[0], "node=n8") || !strings.Contains(all[0], own[0]) {
		t.Errorf("log: %q", all)
	}
	// The first one goes, and it is over.
	c.Close()
	wait.Until(t, func() error {
		s, err := f.hub.Fleet(t.Context())
		if err == nil && len(s.Problems) > 0 {
			err = fmt.Errorf("problems %q", s.Problems)
		}
		return err
	})
	// Many.
	others := f.broker.Connections()
	for range 30 {
		if _, err := f.connect(n, nats.NoReconnect()); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, func() error {
		if now := f.broker.Connections(); now > others+1 {
			return fmt.Errorf("%d connections, before %d", now, others)
		}
		return nil
	})
}

// local returns the address that a connection comes from.
func local(t *testing.T, c *nats.Conn) string {
	t.Helper()
	a := c.LocalAddr()
	if a == "" {
		t.Fatal("not connected")
	}
	return a
}

// What a node tries that it may not do is counted, one line a minute says so, with its name,
// and who persists is cut off. Others are not.
func TestPersists(t *testing.T) {
	t.Parallel() // it waits a lot
	f, log := logged(t)
	f.start("")
	f.enroll("good")
	bad := enrolled(t, f, "bad")
	var gone atomic.Bool
	c, err := f.connect(bad, nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { gone.Store(true) }), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20_000 {
		if err := c.Publish(wire.StatusSubject("good"), []byte("x")); err != nil {
			break
		}
		if i%1000 == 0 {
			_ = c.Flush() // it may be cut off
		}
	}
	wait.Until(t, func() error {
		if !gone.Load() {
			return errors.New("it stays connected")
		}
		return nil
	})
	if _, err := f.connect(bad, nats.NoReconnect()); err == nil {
		t.Error("it connects again at once")
	}
	f.named("bad", "weir.v1.up.good.status")
	s, err := f.hub.Fleet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range s.Nodes {
		if bad := n.Name == "bad"; bad != (n.Violations > maxExpected) {
			t.Errorf("node %s: %d violations", n.Name, n.Violations)
		}
	}
	if m := f.hub.Metrics(); m.Misuse == nil || m.Misuse.Violations <= maxExpected {
		t.Errorf("metrics: %+v", m.Misuse)
	}
	log.mu.Lock()
	all := slices.Clone(log.all)
	log.mu.Unlock()
	about := 0
	for _, line := range all {
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") {
			about++
		}
	}
	if about > 5 || len(log.of("node=bad")) == 0 {
		t.Errorf("%d lines, of node bad %q", about, log.of("node=bad"))
	}
}

// maxExpected are the violations from which on a node is cut off.
const maxExpected = 500
