package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/control/api"
	"weir/control/config"
	"weir/control/fleet/authority"
	"weir/control/fleet/broker"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/snapshot"
	"weir/tests/long"
	"weir/tests/wait"
)

// The configuration has as many lists as nodes take.
func TestMaxLists(t *testing.T) {
	if config.MaxFleetLists != wire.MaxLists {
		t.Errorf("config.MaxFleetLists is %d, wire.MaxLists %d", config.MaxFleetLists, wire.MaxLists)
	}
}

// fleet is a hub with a broker of its own, in a directory.
type fleet struct {
	t         *testing.T
	dir       string
	authority *authority.Authority
	broker    *broker.Server
	hub       *Hub
	listen    string
	joinsAt   string        // where a process of the hub lets hosts join
	sites     string        // where the broker listens for those; "": nowhere
	clock     time.Duration // by how much the hub's clock is ahead
	text      string        // of hub.yaml
	beside    Process
	log       *slog.Logger // nil: testLog
	stop      func()
}

func newFleet(t *testing.T) *fleet { t.Helper(); return newFleetIn(t, t.TempDir()) }

func newFleetIn(t *testing.T, dir string) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: dir, listen: "127.0.0.1:0"}
	var err error
	if f.authority, err = authority.Init(filepath.Join(f.dir, "keys")); err != nil {
		t.Fatal(err)
	}
	return f
}

func testLog() *slog.Logger {
	if !testing.Verbose() {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

// start starts broker and hub with lists in YAML. Nodes are to connect to servers, to the broker where there
// are none.
func (f *fleet) start(lists string, servers ...string) {
	f.t.Helper()
	log := f.log
	if log == nil {
		log = testLog()
	}
	var err error
	if f.broker, err = broker.Start(broker.Options{
		Authority: f.authority, Dir: filepath.Join(f.dir, "broker"), Listen: f.listen, Sites: f.sites, Names: []string{"127.0.0.1", "127.0.0.2"}, Log: log,
	}); err != nil {
		f.t.Fatal(err)
	}
	f.listen = strings.TrimPrefix(f.broker.URL(), "tls://")
	if len(servers) == 0 {
		servers = []string{f.broker.URL()}
	}
	f.text = fmt.Sprintf("servers: [%s]\nbroker: {listen: %q}\nkeys: %s/keys\nstate_dir: %s/hub\nheartbeat: 1s\n%s", strings.Join(servers, ", "), f.listen, f.dir, f.dir, lists)
	c, err := config.ParseHub("hub.yaml", []byte(f.text))
	if err != nil {
		f.t.Fatal(err)
	}
	b := f.broker
	f.run(c, b)
	stop := f.stop
	f.stop = func() { stop(); b.Close() }
	f.t.Cleanup(f.stop)
}

// now returns a clock that is ahead.
func (f *fleet) now(by time.Duration) func() time.Time {
	return func() time.Time { return time.Now().Add(by) }
}

// Read implements [config.HubReader].
func (f *fleet) Read() (*config.Hub, error) { return config.ParseHub("hub.yaml", []byte(f.text)) }

func init() { publishTimeout, visitTimeout = wait.Patience, wait.Patience }

// run runs a hub until the test ends, or stop.
func (f *fleet) run(c *config.Hub, b Broker) {
	f.t.Helper()
	var err error
	if f.hub, err = Open(Options{Config: c, Authority: f.authority, Broker: b, Log: testLog(), Now: f.now(f.clock), Reader: f, Process: f.beside}); err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := f.hub.Run(ctx); err != nil {
			f.t.Error(err)
		}
	})
	f.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		f.hub.Close()
	})
	f.t.Cleanup(f.stop)
}

// enroll enrolls a node and connects it.
func (f *fleet) enroll(name string) (enrollment.Node, *nats.Conn) {
	f.t.Helper()
	n, err := f.authority.Enroll(name, []string{"edge"}, []string{f.broker.URL()})
	if err != nil {
		f.t.Fatal(err)
	}
	c, err := f.connect(n)
	if errors.Is(err, nats.ErrAuthorization) { // once in a hundred runs on a busy machine; nodes try again, too
		f.t.Logf("node %s at first: %v", name, err)
		c, err = f.connect(n)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return n, c
}

func (f *fleet) connect(n enrollment.Node, more ...nats.Option) (*nats.Conn, error) {
	c, err := f.tryConnect(n, more...)
	if err == nil {
		f.t.Cleanup(c.Close)
	}
	return c, err
}

func (f *fleet) tryConnect(n enrollment.Node, more ...nats.Option) (*nats.Conn, error) {
	options, err := n.Options()
	if err != nil {
		return nil, err
	}
	options = append(append(options, nats.Timeout(wait.Patience)), more...)
	c, err := nats.Connect(n.URL(), options...)
	// On a slow machine the server's first PING may come before its answer, which the client refuses.
	for tries := 0; tries < 3 && err != nil && strings.Contains(err.Error(), "got 'PING'"); tries++ {
		c, err = nats.Connect(n.URL(), options...)
	}
	return c, err
}

func (f *fleet) change(c api.Change) api.FleetChanged {
	f.t.Helper()
	changed, err := f.hub.Change(f.t.Context(), c)
	if err != nil {
		f.t.Fatal(err)
	}
	return changed
}

// has returns what a node reports that has the last version of a list.
func (f *fleet) has(name string) wire.ListStatus {
	f.t.Helper()
	s := wire.ListStatus{Name: name}
	if err := f.hub.Do(f.t.Context(), func() error {
		l := f.hub.lists.get(name).history
		s.Active, s.ID, s.Sum, s.Entries = l.Place(), l.ID(l.Place()), snapshot.Of(l.Contents().Groups()).String(), l.Contents().Len()
		return nil
	}); err != nil {
		f.t.Fatal(err)
	}
	return s
}

func block(entries ...string) api.Change { return api.Change{Action: api.Block, Entries: entries} }

// follower is a node as simple as it can be: it reads the lists anew from the stream.
type follower struct {
	public []byte
	stream directGetter
}

type directGetter struct {
	node string
	conn *nats.Conn
}

// get asks for a message directly, nil if there is none.
func (d directGetter) get(request string) (*nats.Msg, error) {
	m, err := d.conn.Request(wire.NodeFetchSubject(d.node), []byte(request), 5*time.Second)
	if err != nil {
		return nil, err
	}
	switch m.Header.Get("Status") {
	case "404":
		return nil, nil
	case "":
		return m, nil
	}
	return nil, errors.New(m.Header.Get("Status") + " " + m.Header.Get("Description"))
}

func (d directGetter) last(subject string) (*nats.Msg, error) {
	return d.get(fmt.Sprintf(`{"last_by_subj":%q}`, subject))
}

// read returns the list that the catalog wants: from the snapshot, and the deltas
// after it.
func (w follower) read(name string) (*list.Set, []wire.Expiry, wire.Place, error) {
	m, err := w.stream.last(wire.CatalogSubject())
	if err != nil || m == nil {
		return nil, nil, wire.Place{}, fmt.Errorf("catalog: %w", err)
	}
	c, err := wire.OpenCatalog(w.public, m.Data)
	if err != nil {
		return nil, nil, wire.Place{}, err
	}
	var want wire.Place
	for _, l := range c.Lists {
		if l.Name == name {
			want = l.Releases[0].Place
		}
	}
	if m, err = w.stream.last(wire.HeadSubject(name)); err != nil || m == nil {
		return nil, nil, want, fmt.Errorf("head: %w", err)
	}
	h, err := wire.OpenHead(w.public, m.Data)
	if err != nil {
		return nil, nil, want, err
	}
	var whole []byte
	for i := range h.Chunks() {
		m, err := w.stream.last(wire.ChunkSubject(name, h.Epoch, h.Version, i))
		if err != nil || m == nil {
			return nil, nil, want, fmt.Errorf("chunk %d of %v: %w", i, h.Place, err)
		}
		whole = append(whole, m.Data...)
	}
	set, expires, err := wire.OpenSnapshot(h, whole)
	if err != nil {
		return nil, nil, want, err
	}
	at, sequence := h.Place, "1"
	for at.Before(want) {
		m, err := w.stream.get(fmt.Sprintf(`{"seq":%s,"next_by_subj":%q}`, sequence, wire.DeltaSubject(name)))
		if err != nil || m == nil {
			return nil, nil, want, fmt.Errorf("no delta after %v, want %v: %w", at, want, err)
		}
		var n uint64
		fmt.Sscan(m.Header.Get("Nats-Sequence"), &n)
		sequence = fmt.Sprint(n + 1)
		d, err := wire.OpenDelta(w.public, m.Data)
		if err != nil {
			return nil, nil, want, err
		}
		if d.Epoch != at.Epoch || d.To <= at.Version {
			continue
		}
		if d.From != at.Version {
			return nil, nil, want, fmt.Errorf("a gap: delta from %d, have %v", d.From, at)
		}
		change, err := d.Set()
		if err != nil {
			return nil, nil, want, err
		}
		set, _ = set.Apply(change)
		expires = append(expires, d.Expires...)
		if got := snapshot.Of(set.Groups()).String(); got != d.Sum {
			return nil, nil, want, fmt.Errorf("version %d: checksum %s, want %s", d.To, got, d.Sum)
		}
		at.Version = d.To
	}
	return set, expires, at, nil
}

func (f *fleet) follower(n enrollment.Node, c *nats.Conn) follower {
	return follower{n.PublicKey, directGetter{n.Name, c}}
}

// eventually waits until a condition has no error.
// lastRecord returns the last record of the audit but those of enrollments, which the hub sees
// some time later.
func (f *fleet) lastRecord() api.AuditRecord {
	f.t.Helper()
	for _, r := range f.hub.Audit(16) {
		if r.Source != bySource {
			return r
		}
	}
	f.t.Fatal("no record")
	return api.AuditRecord{}
}

func wantEntries(s *list.Set, entries ...string) error {
	for _, text := range entries {
		e, err := listfile.ParseEntry(text)
		if err != nil {
			return err
		}
		for k := range e.Set().All() {
			if !s.Has(k) {
				return fmt.Errorf("%s is missing", text)
			}
		}
	}
	if s.Len() != len(entries) {
		return fmt.Errorf("%d entries, want %q", s.Len(), entries)
	}
	return nil
}

// TestHub follows lists from a feed and from commands through the broker.
func TestHub(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	file := filepath.Join(f.dir, "drop.txt")
	write := func(text string) {
		if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("192.0.2.1\n198.51.100.0/24\n2001:db8::/32\n")
	lists := "lists: {drop: {sources: [{file: " + file + "}], interval: 1s}, to: {direction: dst}}\n"
	f.start(lists)
	n, c := f.enroll("edge-1")
	w := f.follower(n, c)
	has := func(name string, entries ...string) {
		t.Helper()
		wait.Until(t, func() error {
			s, _, _, err := w.read(name)
			if err != nil {
				return err
			}
			return wantEntries(s, entries...)
		})
	}
	has("drop", "192.0.2.1", "198.51.100.0/24", "2001:db8::/32")

	live := make(chan wire.Delta, 100)
	if _, err := c.Subscribe(wire.DownPrefix+wire.DeltaSubject("drop"), func(m *nats.Msg) {
		if d, err := wire.OpenDelta(n.PublicKey, m.Data); err == nil {
			live <- d
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	changed := f.change(api.Change{Action: api.Block, List: "drop", Entries: []string{"203.0.113.7", "tcp *:* > 192.0.2.9:25"}, TTL: 3600})
	if changed.Added != 2 || !changed.Published {
		t.Errorf("%+v", changed)
	}
	select {
	case d := <-live:
		if d.To != changed.Version.Version || len(d.Expires) != 2 {
			t.Errorf("live: %+v", d)
		}
	case <-time.After(wait.Patience):
		t.Fatal("nothing live")
	}
	s, expires, at, err := w.read("drop") // acknowledged: no waiting
	if err != nil || at != changed.Version || len(expires) != 2 {
		t.Errorf("%v, %v, %v, want %v", expires, at, err, changed.Version)
	}
	if err := wantEntries(s, "192.0.2.1", "198.51.100.0/24", "2001:db8::/32", "203.0.113.7", "tcp *:* > 192.0.2.9:25"); err != nil {
		t.Error(err)
	}

	// An entry of a feed does not expire, and what the feed drops goes.
	write("192.0.2.1\n203.0.113.7\n")
	has("drop", "192.0.2.1", "203.0.113.7", "tcp *:* > 192.0.2.9:25")
	if _, expires, _, _ = w.read("drop"); len(expires) < 3 || !expires[len(expires)-1].At.IsZero() || expires[len(expires)-1].Entry != "203.0.113.7" {
		t.Errorf("expiries %v", expires)
	}
	f.change(api.Change{Action: api.Block, List: "drop", Entries: []string{"tcp *:* > 192.0.2.9:25"}, Remove: true})
	f.change(api.Change{Action: api.Block, Entries: []string{"192.0.2.200"}, TTL: 0.5})
	has("drop", "192.0.2.1", "203.0.113.7")
	has(config.FleetBlock)

	// A restart goes on where it was.
	_, _, before, _ := w.read("drop")
	f.stop()
	f.start(lists)
	c, err = f.connect(n)
	if err != nil {
		t.Fatal(err)
	}
	w = f.follower(n, c)
	has("drop", "192.0.2.1", "203.0.113.7")
	if _, _, at, err := w.read("drop"); err != nil || at != before {
		t.Errorf("after a restart %v, %v, before %v", at, err, before)
	}

	for _, bad := range []api.Change{
		{Action: api.Block, List: "none", Entries: []string{"192.0.2.1"}},
		{Action: api.Allow, List: "drop", Entries: []string{"192.0.2.1"}},
		{Action: api.Block, Entries: []string{"192.0.2.300"}},
		{Action: api.Block, List: "to", Entries: []string{"192.0.2.1", "any 192.0.2.2:* > *:*"}},
	} {
		if _, err := f.hub.Change(t.Context(), bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// TestLostStream loses what the broker has, and what the store has.
func TestLostStream(t *testing.T) {
	long.Seconds(t)
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	n, c := f.enroll("edge-1")
	for i := range 5 {
		f.change(block(fmt.Sprintf("192.0.2.%d", i)))
	}
	_, _, before, err := f.follower(n, c).read(config.FleetBlock)
	if err != nil {
		t.Fatal(err)
	}
	again := func(epoch uint64) (*list.Set, wire.Place) { // at least
		t.Helper()
		f.start("")
		c, err := f.connect(n)
		if err != nil {
			t.Fatal(err)
		}
		var s *list.Set
		var at wire.Place
		wait.Until(t, func() (err error) {
			if s, _, at, err = f.follower(n, c).read(config.FleetBlock); err != nil {
				return err
			}
			if at.Epoch < epoch {
				return fmt.Errorf("epoch %d, want %d", at.Epoch, epoch)
			}
			return wantEntries(s, "192.0.2.0", "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4")
		})
		return s, at
	}
	remove := func(name string) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(f.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	f.stop()
	remove("broker")
	if _, at := again(before.Epoch); at != before {
		t.Errorf("the stream was lost: version %v, before %v", at, before)
	}
	f.stop()
	remove("hub/store") // the journal is there
	_, at := again(before.Epoch + 1)

	// A store from a backup: the stream has versions that it does not.
	f.stop()
	if err := os.CopyFS(filepath.Join(f.dir, "backup"), os.DirFS(filepath.Join(f.dir, "hub"))); err != nil {
		t.Fatal(err)
	}
	again(at.Epoch)
	f.change(block("192.0.2.99"))
	f.stop()
	remove("hub")
	if err := os.Rename(filepath.Join(f.dir, "backup"), filepath.Join(f.dir, "hub")); err != nil {
		t.Fatal(err)
	}
	again(at.Epoch + 1)
}

// TestTwoHubs starts a second hub for the same stream: the first one stops to publish,
// and reports it.
func TestTwoHubs(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	n, c := f.enroll("edge-1")
	f.change(block("192.0.2.1"))
	config := *f.hub.o.Config
	config.StateDir += "-2"
	o := f.hub.o
	o.Config = &config
	second, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	second.publisher.contest.instance = f.hub.publisher.contest.instance // as with a cluster, neither asks for the other one
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = second.Run(ctx) })
	defer func() { stop(); running.Wait(); second.Close() }()
	changed, err := second.Change(t.Context(), block("192.0.2.2"))
	if err != nil {
		t.Fatal(err)
	}
	follower := f.follower(n, c)
	wait.Until(t, func() error { // on a busy machine it is published after the answer
		s, _, at, err := follower.read("block")
		if err == nil && (at.Before(changed.Version) || wantEntries(s, "192.0.2.2") != nil) {
			err = fmt.Errorf("%v, want %v", at, changed.Version)
		}
		return err
	})
	wait.Until(t, func() error {
		s, err := f.hub.Fleet(t.Context())
		if err == nil && !strings.Contains(strings.Join(s.Problems, ""), "another hub") {
			err = fmt.Errorf("problems of the first hub: %q", s.Problems)
		}
		return err
	})
}

// TestForeignDelta stores a delta that is not the hub's while the hub has nothing to publish: it
// notices by the next heartbeat, and publishes what nodes need once more.
func TestForeignDelta(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	f.change(block("192.0.2.1"))
	js, err := jetstream.New(f.inStream())
	if err != nil {
		t.Fatal(err)
	}
	subject := wire.DeltaSubject(config.FleetBlock)
	if _, err := js.Publish(t.Context(), subject, []byte("not signed")); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, func() error {
		s, err := js.Stream(t.Context(), wire.Stream)
		if err != nil {
			return err
		}
		m, err := s.GetLastMsgForSubject(t.Context(), subject)
		if err == nil {
			_, err = wire.OpenDelta(f.authority.PublicKey(), m.Data)
		}
		return err
	})
}

// TestPermissions tries a node's credentials on what is not its own.
func TestPermissions(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	n, c := f.enroll("edge-1")
	_, other := f.enroll("edge-2")
	f.change(block("192.0.2.1"))
	refused := func(what string, do func(c *nats.Conn)) {
		t.Helper()
		bad := make(chan error, 10)
		c, err := f.connect(n, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { bad <- err }))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		do(c)
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-bad:
			if !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(wait.Patience):
			t.Errorf("%s: allowed", what)
		}
	}
	for _, subject := range []string{
		wire.CatalogSubject(), wire.HeadSubject(config.FleetBlock), wire.DeltaSubject(config.FleetBlock), wire.ChunkSubject(config.FleetBlock, 1, 1, 0),
		wire.DownPrefix + wire.CatalogSubject(), wire.StatusSubject("edge-2"), wire.OriginSubject("edge-2"), wire.AskSubject("edge-1", "explain"), wire.AskSubject("edge-2", "explain"),
		"_INBOX.edge-2.x", "_INBOX.weir.x", "weir.v1.up.all.status", "weir.v1.other", "foo",
		"weir.v1.up.edge-1", "weir.v1.down.x", "$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO." + wire.Stream, "$JS.API.STREAM.CREATE.X", "$JS.API.STREAM.PURGE." + wire.Stream, "$JS.API.STREAM.DELETE." + wire.Stream, "$JS.API.STREAM.UPDATE." + wire.Stream,
		"$JS.API.STREAM.MSG.DELETE." + wire.Stream, "$JS.API.STREAM.MSG.GET." + wire.Stream, "$JS.API.STREAM.SNAPSHOT." + wire.Stream, "$JS.API.STREAM.RESTORE." + wire.Stream,
		"$JS.API.CONSUMER.CREATE." + wire.Stream, "$JS.API.CONSUMER.CREATE." + wire.Stream + ".c", "$JS.API.CONSUMER.DURABLE.CREATE." + wire.Stream + ".c",
		"$JS.API.CONSUMER.MSG.NEXT." + wire.Stream + ".c", "$JS.ACK.x", "$JS.FC.x", "$JS.API.DIRECT.GET.OTHER", "$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.INFO.x",
	} {
		refused("publish to "+subject, func(c *nats.Conn) { _ = c.Publish(subject, []byte("x")) })
	}
	for _, subject := range []string{
		">", "weir.>", "weir.v1.>", "weir.v1.up.>", wire.StatusSubject("*"), wire.StatusSubject("edge-2"), "_INBOX.>", "_INBOX.edge-2.>", "_INBOX.*.>",
		wire.AskSubject("edge-2", "explain"), "weir.v1.ask.all.>", "weir.v1.ask.>", "weir.v1.live.>", "weir.v1.chunks.>", "$JS.>", "$SYS.>", "$JS.API.>",
	} {
		refused("subscribe to "+subject, func(c *nats.Conn) { _, _ = c.Subscribe(subject, func(*nats.Msg) {}) })
	}

	// What is its own works.
	got := make(chan string, 10)
	if _, err := c.Subscribe(wire.QuestionsSubject("edge-1"), func(m *nats.Msg) { got <- "asked"; _ = m.Respond([]byte("answer")) }); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	token, seed, err := f.authority.Own(false)
	if err != nil {
		t.Fatal(err)
	}
	own, err := nats.Connect("", append(f.broker.Options(), nats.UserJWTAndSeed(token, seed))...)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if m, err := own.Request(wire.AskSubject("edge-1", "explain"), nil, wait.Patience); err != nil || string(m.Data) != "answer" {
		t.Errorf("asked: %v", err)
	}

	// The key of a node without its certificate, and the certificate without the key.
	_, stranger := f.enroll("edge-3")
	stranger.Close()
	second, err := f.authority.Enroll("edge-4", nil, []string{f.broker.URL()})
	if err != nil {
		t.Fatal(err)
	}
	mixed := n
	mixed.Certificate, mixed.Key = second.Certificate, second.Key
	closed := make(chan struct{})
	if c, err := f.connect(mixed, nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(closed) })); err == nil {
		select {
		case <-closed:
		case <-time.After(wait.Patience):
			t.Errorf("the key of one node with another's certificate: connected as %v", c.Opts.Name)
		}
	}

	// Revoked: cut off, and not let in again.
	gone := make(chan struct{})
	other.SetDisconnectErrHandler(func(*nats.Conn, error) { close(gone) })
	if err := f.authority.Revoke("edge-2"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone:
	case <-time.After(wait.Patience):
		t.Error("a revoked node stays connected")
	}
	if err := f.authority.Revoke("edge-9"); err == nil {
		t.Error("a node that was never enrolled is revoked")
	}
	anonymous, err := n.TLS()
	if err != nil {
		t.Fatal(err)
	}
	anonymous.Certificates = nil
	if _, err := nats.Connect(n.URL(), nats.Secure(anonymous), nats.UserJWTAndSeed(n.JWT, n.Seed)); err == nil {
		t.Error("connected without a certificate")
	}
}

// Who blocks an address of the hub learns that nodes leave it out, and the status says so.
func TestOwnAddress(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	if w := f.change(block("192.0.2.1", "127.0.0.0/30")).Warnings; len(w) != 1 || !strings.HasPrefix(w[0], "127.0.0.0/30 covers 127.0.0.1, which is an address of this hub: nodes leave it out") {
		t.Errorf("%q", w)
	}
	problems := func() []string {
		t.Helper()
		s, err := f.hub.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Problems
	}
	if all := problems(); len(all) != 1 || !strings.HasPrefix(all[0], "list block: 127.0.0.0/30 covers 127.0.0.1, which is an address of this hub") {
		t.Errorf("problems %q", all)
	}
	if w := f.change(api.Change{Action: api.Block, Remove: true, Entries: []string{"127.0.0.0/30"}}).Warnings; len(w) != 0 {
		t.Errorf("%q", w)
	}
	if all := problems(); len(all) != 0 {
		t.Errorf("problems %q", all)
	}
	if w := f.change(api.Change{Action: api.Allow, Entries: []string{"127.0.0.1"}}).Warnings; len(w) != 0 {
		t.Errorf("%q", w)
	}
}

// The stream keeps two snapshots of a list, and the changes since the first of them, also where the hub
// starts again between any two.
func TestTwoSnapshots(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.reserve()
	var s jetstream.Stream
	start := func() {
		t.Helper()
		f.start("")
		js, err := jetstream.New(f.inStream())
		if err != nil {
			t.Fatal(err)
		}
		wait.Until(t, func() (err error) { s, err = js.Stream(t.Context(), wire.Stream); return err })
	}
	start()
	versions := make(map[wire.Place]bool)
	var deltas uint64
	look := func() {
		t.Helper()
		info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(">"))
		if err != nil {
			t.Fatal(err)
		}
		clear(versions)
		for subject := range info.State.Subjects {
			for v := range f.has(config.FleetBlock).Active.Version + 1 {
				if p := (wire.Place{Epoch: f.has(config.FleetBlock).Active.Epoch, Version: v}); subject == wire.ChunkSubject(config.FleetBlock, p.Epoch, p.Version, 0) {
					versions[p] = true
				}
			}
		}
		deltas = info.State.Subjects[wire.DeltaSubject(config.FleetBlock)]
	}
	for i := range 6 {
		c := f.change(block(fmt.Sprintf("192.0.2.%d", i)))
		if err := f.hub.Do(t.Context(), func() error {
			defer f.hub.publisher.wake()
			return f.hub.lists.get(config.FleetBlock).history.Rebase()
		}); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, func() error {
			if look(); !versions[c.Version] {
				return fmt.Errorf("snapshot %v is not published: %v", c.Version, versions)
			}
			return nil
		})
		if i > 0 && !versions[wire.Place{Epoch: c.Version.Epoch, Version: c.Version.Version - 1}] {
			t.Errorf("the snapshot before %v has gone: %v", c.Version, versions)
		}
		if i < 5 {
			f.stop() // maybe before the old ones are removed: the last one removes them
			start()
		}
	}
	wait.Until(t, func() error { // they are removed after the new one is there
		if look(); len(versions) > 2 || deltas > 3 {
			return fmt.Errorf("the stream has snapshots %v, and %d deltas", versions, deltas)
		}
		return nil
	})
}
