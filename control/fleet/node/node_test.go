package node

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"weir/control/feed"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/filter/snapshot"
	"weir/tests/long"
	"weir/tests/wait"
)

// hub is a broker and the least publisher: the truth is in memory.
type hub struct {
	log     slog.Handler // of nodes; nil: it is not read
	t       *testing.T
	r       *rand.Rand
	server  *server.Server
	user    string // that nodes connect as; "": none
	conn    *nats.Conn
	js      nats.JetStreamContext
	public  ed25519.PublicKey
	private ed25519.PrivateKey

	catalog wire.Catalog
	truth   map[wire.Place]*list.Set
	timed   map[string]time.Time
	clock   time.Duration         // by how much the clocks of nodes are ahead
	ahead   time.Duration         // of the hub's clock, the one that says how old catalogs are
	steady  Clock                 // of nodes; nil: they have the wall clock
	ids     map[wire.Place]string // of versions; nil: they have none, as those of older hubs
	maxRate int64                 // of nodes
	at      wire.Place
	live    func(subject string, message []byte) // publishes live, perhaps with faults
	sent    [][]byte                             // all messages, with their subjects
	sentTo  []string
}

const name = "drop.v1" // its dot is no end of a token

func newHub(t *testing.T, users ...*server.User) *hub {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true, Users: users})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(30 * time.Second) {
		t.Fatal("the broker does not start")
	}
	h := &hub{t: t, r: rand.New(rand.NewPCG(1, 2)), server: s, truth: map[wire.Place]*list.Set{}, timed: map[string]time.Time{}, at: wire.Place{Epoch: 1}}
	var as []nats.Option
	if users != nil {
		as = append(as, nats.UserInfo(users[0].Username, users[0].Password))
	}
	if h.conn, err = nats.Connect(s.ClientURL(), as...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.conn.Close)
	if h.js, err = h.conn.JetStream(); err != nil {
		t.Fatal(err)
	}
	if h.public, h.private, err = ed25519.GenerateKey(nil); err != nil {
		t.Fatal(err)
	}
	h.truth[h.at] = list.Union()
	h.catalog = wire.Catalog{Place: wire.Place{Epoch: 1}, MaxAge: 60}
	h.live = func(subject string, message []byte) { h.publishLive(subject, message) }
	h.addStream()
	return h
}

func (h *hub) publishLive(subject string, message []byte) {
	if err := h.conn.Publish(wire.DownPrefix+subject, message); err != nil {
		h.t.Error(err)
	}
}

func (h *hub) addStream() {
	h.t.Helper()
	_, err := h.js.AddStream(&nats.StreamConfig{Name: wire.Stream, Subjects: wire.StreamSubjects, AllowDirect: true, Storage: nats.MemoryStorage})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *hub) store(subject string, message []byte) {
	h.t.Helper()
	if _, err := h.js.Publish(subject, message); err != nil {
		h.t.Fatal(err)
	}
	h.sent, h.sentTo = append(h.sent, message), append(h.sentTo, subject)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// change publishes the next version.
func (h *hub) change(set *list.Set, expires ...wire.Expiry) {
	h.t.Helper()
	from := h.at
	h.at.Version++
	d := set.Diff(h.truth[from])
	h.truth[h.at] = set
	if h.ids != nil {
		h.ids[h.at] = wire.NewID()
	}
	m := must(wire.SealDelta(h.private, wire.Delta{
		FromID: h.ids[from], ID: h.ids[h.at],
		List: name, Epoch: h.at.Epoch, From: from.Version, To: h.at.Version, Sum: snapshot.Of(set.Groups()).String(), Entries: set.Len(),
		Issued: time.Now(), Expires: expires, Add: d.Add.Groups(), Remove: d.Remove.Groups(),
	}))
	h.store(wire.DeltaSubject(name), m)
	h.live(wire.DeltaSubject(name), m)
}

// snapshot publishes a snapshot of the current version.
func (h *hub) snapshot(expires ...wire.Expiry) { h.t.Helper(); h.snapshotAs(name, expires...) }

// snapshotAs publishes a snapshot of the current version, as one of another list.
func (h *hub) snapshotAs(name string, expires ...wire.Expiry) {
	h.t.Helper()
	chunks, head, err := wire.SealSnapshot(h.private, wire.Head{List: name, Place: h.at, ID: h.ids[h.at], Issued: time.Now()}, h.truth[h.at].Groups(), expires)
	if err != nil {
		h.t.Fatal(err)
	}
	for i, c := range chunks {
		h.store(wire.ChunkSubject(name, h.at.Epoch, h.at.Version, i), c)
	}
	h.store(wire.HeadSubject(name), head)
}

// release publishes a catalog that wants the current version.
func (h *hub) release() { h.t.Helper(); h.want(h.at) }

func (h *hub) want(p wire.Place) {
	h.t.Helper()
	h.publish(wire.ListState{Name: name, Settings: block, Releases: []wire.Release{{Place: p, ID: h.ids[p]}}})
}

var block = wire.Settings{Action: "block", Direction: "src"}

func (h *hub) publish(lists ...wire.ListState) {
	h.t.Helper()
	h.catalog.Version++
	h.catalog.Issued, h.catalog.Lists = time.Now().Add(h.ahead), lists
	m := must(wire.SealCatalog(h.private, h.catalog))
	h.store(wire.CatalogSubject(), m)
	h.live(wire.CatalogSubject(), m)
}

func set(t testing.TB, entries ...string) *list.Set {
	t.Helper()
	e, _, err := listfile.Parse("test", strings.NewReader(strings.Join(entries, "\n")), listfile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e.Set()
}

// Messages that are refused for the same reason are one line, with their number, and are
// forgotten when that is over.
func TestRefusals(t *testing.T) {
	n := &Node{log: slog.New(slog.DiscardHandler), reports: make(chan struct{}, 1)}
	for i := range 30 {
		n.refuse(fmt.Errorf("catalog 7.%d is older than 7.%d", i, i+10))
	}
	n.refuse(errors.New("forged"))
	if len(n.refused.last) != 2 {
		t.Fatalf("%v", n.refused.last)
	}
	first, second := n.refused.last[0].String(), n.refused.last[1].String()
	if !strings.HasPrefix(first, "refused 30 times, the last at ") || !strings.HasSuffix(first, "Z: catalog 7.29 is older than 7.39") || !strings.HasPrefix(second, "refused at ") {
		t.Errorf("%q, %q", first, second)
	}
	n.refused.last[0].last = time.Now().Add(-refusalAge - time.Second)
	n.refused.forget(time.Now())
	if len(n.refused.last) != 1 || n.refused.last[0].text != "forged" {
		t.Errorf("%v", n.refused.last)
	}
}

// A list that changes all the time makes no more reports than the hub takes, and the last
// one is of the last version.
func TestReportsKeepToTheAllowance(t *testing.T) {
	h := newHub(t)
	var mu sync.Mutex
	allowed := rate.NewLimiter(rate.Every(wire.ReportEvery), wire.ReportBurst)
	var last wire.Status
	taken, ignored := 0, 0
	if _, err := h.conn.Subscribe(wire.StatusSubject("edge-1"), func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		if !allowed.Allow() {
			ignored++
			return
		}
		taken++
		last = must(wire.ParseStatus(m.Data))
	}); err != nil {
		t.Fatal(err)
	}
	h.snapshot()
	h.release()
	began := time.Now()
	r := h.start(t.TempDir())
	for i := range 35 {
		h.change(set(t, fmt.Sprintf("192.0.2.%d", i)))
		h.release()
		if i%10 == 0 {
			r.reaches(h)
		}
		time.Sleep(reportAtMost)
	}
	wait.For(t, "a report of the last version", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(last.Lists) == 1 && last.Lists[0].Active == h.at
	})
	mu.Lock()
	defer mu.Unlock()
	most := wire.NodeBurst + 1 + int(time.Since(began)/wire.NodeEvery)
	t.Logf("%d reports, %d at most", taken, most)
	if ignored > 0 || taken > most {
		t.Errorf("%d of %d reports are ignored, want at most %d reports", ignored, taken+ignored, most)
	}
}

// run is a node that runs, and what it has made known.
type run struct {
	*Node
	t    *testing.T
	stop func()

	mu      sync.Mutex
	known   map[string]*list.Set // by list
	failing error

	answers   func(ctx context.Context, what string, question []byte) (any, error)
	rehearsed map[string]*list.Set
	patterns  []wire.Pattern
	measures  int
}

func (h *hub) config(directory string) Config {
	return Config{
		MaxRate:    h.maxRate,
		Enrollment: enrollment.Node{Name: "edge-1", Labels: []string{"canary"}, Servers: []string{h.server.ClientURL()}, PublicKey: h.public}, Directory: directory, Version: "test",
		Log: slog.New(cmp.Or[slog.Handler](h.log, slog.DiscardHandler)), Clock: h.steady,
	}
}

// TakeContents takes the contents of a list and has them kept, as a daemon does.
func (r *run) TakeContents(_ context.Context, l *List) error {
	version := l.Version()
	contents := l.Contents()
	r.mu.Lock()
	if !slices.Contains(r.Lists(), l) { // it is gone
		r.mu.Unlock()
		return nil
	}
	failing := r.failing
	if failing == nil {
		r.known[l.Name()] = contents
	}
	r.mu.Unlock()
	if failing != nil {
		l.Revert(version, failing)
		return failing
	}
	return l.Keep(version)
}

func (r *run) TakeLists(ctx context.Context) error {
	all := r.Lists()
	r.mu.Lock()
	maps.DeleteFunc(r.known, func(name string, _ *list.Set) bool { // the others filter on
		return !slices.ContainsFunc(all, func(l *List) bool { return l.Name() == name })
	})
	r.mu.Unlock()
	var errs []error
	for _, l := range all {
		errs = append(errs, r.TakeContents(ctx, l))
	}
	return errors.Join(errs...)
}

func (r *run) DescribeNode(s *wire.Status) {
	s.Passed, s.Dropped, s.Mode, s.Interfaces, s.Filtered = 5, 3, "drop", 2, 1
}

func (r *run) Answer(ctx context.Context, what string, question []byte) (any, error) {
	if r.answers == nil {
		return nil, errors.New("nothing is known")
	}
	return r.answers(ctx, what, question)
}

func (r *run) TakePatterns(_ context.Context, all []wire.Pattern, _ time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.patterns = all
	return nil
}

// dropped returns the patterns that the host drops.
func (r *run) dropped() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.patterns {
		if !p.Off {
			all = append(all, p.Pattern)
		}
	}
	return all
}

func (r *run) Rehearse(_ context.Context, list string, c *Candidate) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c != nil && r.failing != nil {
		return r.failing
	}
	delete(r.rehearsed, list)
	if c != nil {
		r.rehearsed[list] = c.Contents
	}
	return nil
}

func (r *run) Rehearsed(string) wire.Rehearsal {
	return wire.Rehearsal{Looked: 10, Passed: 20, WouldDrop: 3}
}

// Measure counts the entries that are new.
func (r *run) Measure(_ context.Context, _ string, c *Candidate, before *list.Set) *wire.Conversed {
	r.mu.Lock()
	r.measures++
	r.mu.Unlock()
	return &wire.Conversed{Addresses: c.Contents.Diff(before).Add.Len()}
}

func (r *run) Conversed(list string) *wire.Conversed {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known[list] == nil {
		return nil
	}
	return &wire.Conversed{Addresses: r.known[list].Len()}
}

// start starts a node.
func (h *hub) start(directory string) *run {
	h.t.Helper()
	r := &run{t: h.t, known: map[string]*list.Set{}, rehearsed: map[string]*list.Set{}}
	c := h.config(directory)
	var err error
	if r.Node, err = Open(c); err != nil {
		h.t.Fatal(err)
	}
	if by := h.clock; h.steady == nil {
		r.clock.local = func() time.Time { return time.Now().Add(by) }
	}
	url := h.server.ClientURL()
	r.connect = func(o ...nats.Option) (*nats.Conn, error) {
		if h.user != "" {
			o = append(o, nats.UserInfo(h.user, ""))
		}
		o = append(o, nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(time.Millisecond, time.Millisecond))
		return nats.Connect(url, o...)
	}
	_ = r.TakeLists(h.t.Context())
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx, r) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			h.t.Error(err)
		}
	})
	h.t.Cleanup(func() { r.stop() })
	return r
}

func (r *run) has(name string) *list.Set {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[name]
}

func equal(a, b *list.Set) bool { return a != nil && a.Diff(b).Len() == 0 }

// active returns the version that the node reports.
func (r *run) active() wire.ListStatus {
	r.Node.mu.Lock()
	f := r.followers[name]
	r.Node.mu.Unlock()
	if f == nil {
		return wire.ListStatus{}
	}
	return f.status()
}

// refusedWhat returns what the node has refused, and why.
func (r *run) refusedWhat() []refusal {
	r.Node.mu.Lock()
	defer r.Node.mu.Unlock()
	return slices.Clone(r.refused.last)
}

// reaches waits until a node filters by the hub's version.
func (r *run) reaches(h *hub) {
	r.t.Helper()
	defer func() {
		if r.t.Failed() {
			r.t.Logf("the node: %+v, it has refused %q", r.active(), r.refusedWhat())
		}
	}()
	wait.For(r.t, fmt.Sprintf("version %v", h.at), func() bool { return r.active().Active == h.at })
	if !equal(r.has(name), h.truth[h.at]) {
		r.t.Fatalf("version %v: %d entries, want %d", h.at, r.has(name).Len(), h.truth[h.at].Len())
	}
	if s := r.active(); s.Sum != snapshot.Of(h.truth[h.at].Groups()).String() || s.Entries != h.truth[h.at].Len() || s.Error != "" {
		r.t.Fatalf("reported: %+v", s)
	}
}

// follow starts a hub with a list of one address, and a node that filters by it.
func follow(t *testing.T, dir string) (*hub, *run) {
	t.Helper()
	h := newHub(t)
	n := h.start(dir)
	h.change(set(t, "192.0.2.1"))
	h.snapshot()
	h.release()
	n.reaches(h)
	return h, n
}

func TestFollow(t *testing.T) {
	t.Parallel() // it waits a lot
	h := newHub(t)
	statuses := make(chan wire.Status, 1000)
	if _, err := h.conn.Subscribe(wire.StatusSubject("edge-1"), func(m *nats.Msg) { statuses <- must(wire.ParseStatus(m.Data)) }); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	n := h.start(dir)
	h.change(set(t, "192.0.2.1", "2001:db8::/32", "tcp *:* > 192.0.2.9:25"))
	h.snapshot()
	h.release()
	n.reaches(h)
	for i := range 5 { // live
		h.change(set(t, "192.0.2.1", fmt.Sprintf("198.51.100.%d", i)))
		h.release()
		n.reaches(h)
	}
	wait.For(t, "a status", func() bool {
		for len(statuses) > 0 {
			if s := <-statuses; len(s.Lists) == 1 && s.Lists[0].Active == h.at && !s.Stale && s.Dropped == 3 && s.Catalog == h.catalog.Place {
				return true
			}
		}
		return false
	})

	// While it was away: few changes, then many.
	for _, changes := range []int{3, 3 * maxAhead} {
		n.stop()
		for i := range changes {
			h.change(set(t, fmt.Sprintf("10.0.%d.%d", changes%256, i)))
		}
		h.snapshot()
		h.change(set(t, "192.0.2.200"))
		h.release()
		n = h.start(dir)
		n.reaches(h)
	}

	// Without the hub, a node has what it had.
	n.stop()
	h.server.Shutdown()
	n = h.start(dir)
	if !equal(n.has(name), h.truth[h.at]) || n.active().Active != h.at {
		t.Fatalf("without a hub: %d entries, %+v", n.has(name).Len(), n.active())
	}
}

// Where an answer is lost, as when the hub revokes a node, the node asks again.
func TestLostAnswer(t *testing.T) {
	former := getTimeouts
	getTimeouts[0] = 200 * time.Millisecond
	t.Cleanup(func() { getTimeouts = former })
	h, n := follow(t, t.TempDir())
	allowDirect := func(is bool) {
		t.Helper()
		info, err := h.js.StreamInfo(wire.Stream)
		if err == nil {
			info.Config.AllowDirect = is
			_, err = h.js.UpdateStream(&info.Config)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	allowDirect(false)
	lost := make(chan struct{}, 100)
	silent, err := h.conn.Subscribe(wire.FetchSubject, func(*nats.Msg) { poke(lost) })
	if err == nil {
		err = h.conn.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	h.live = func(subject string, message []byte) {
		if subject == wire.CatalogSubject() {
			h.publishLive(subject, message)
		}
	}
	h.change(set(t, "192.0.2.2"))
	h.release()
	<-lost
	allowDirect(true)
	if err := silent.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	n.reaches(h)
}

// A version that only other nodes are to have does not become active, nor one that is
// between the node's own and the one that is wanted.
func TestGroups(t *testing.T) {
	t.Parallel() // it waits a lot
	h, n := follow(t, t.TempDir())
	first := h.at
	h.change(set(t, "192.0.2.2"))
	second := h.at
	h.snapshot()
	state := wire.ListState{Name: name, Settings: block, Releases: []wire.Release{{Place: first}, {Groups: []string{"node:edge-2"}, Place: second}}}
	h.publish(state)
	wait.For(t, "the catalog", func() bool { return n.Catalog() == h.catalog.Place })
	late := h.start(t.TempDir()) // its version is not that of the last snapshot
	wait.For(t, "the older snapshot", func() bool { return late.active().Active == first })
	if n.active().Active != first || !equal(late.has(name), h.truth[first]) {
		t.Errorf("%+v, %+v", n.active(), late.active())
	}
	state.Releases[1].Groups = []string{"canary"}
	h.publish(state)
	n.reaches(h)
	late.reaches(h)
	// Nothing goes back.
	h.want(first)
	wait.For(t, "the catalog", func() bool { return n.Catalog() == h.catalog.Place })
	time.Sleep(50 * time.Millisecond)
	if n.active().Active != second {
		t.Errorf("%+v", n.active())
	}
	// A list that is not for this node goes.
	h.publish(wire.ListState{Name: name, Settings: block, Releases: []wire.Release{{Groups: []string{"others"}, Place: second}}})
	wait.For(t, "the list goes", func() bool { return n.has(name) == nil && len(n.Lists()) == 0 })
	// And comes back, to allow by.
	h.publish(wire.ListState{Name: name, Settings: wire.Settings{Action: "allow", Direction: "both"}, Releases: []wire.Release{{Place: second}}})
	n.reaches(h)
	// Its settings change, with its contents.
	h.release()
	wait.For(t, "other settings", func() bool { all := n.Lists(); return len(all) == 1 && all[0].Settings() == block })
	n.reaches(h)
}

// TestRename takes a catalog with a list under another name: the former one filters until the other
// does, also after a restart. Without another list, it goes at once.
func TestRename(t *testing.T) {
	t.Parallel() // it waits a lot
	dir := t.TempDir()
	h, n := follow(t, dir)
	renamed := wire.ListState{Name: "renamed", Settings: block, Releases: []wire.Release{{Place: h.at}}}
	h.publish(renamed)
	n.stays(h)
	n.stop()
	n = h.start(dir)
	n.stays(h)
	h.publish(wire.ListState{Name: name, Settings: block, Releases: []wire.Release{{Place: h.at}}}, renamed)
	wait.For(t, "the catalog", func() bool { return n.Catalog() == h.catalog.Place })
	h.change(set(t, "192.0.2.1", "192.0.2.9"))
	h.publish(wire.ListState{Name: name, Settings: block, Releases: []wire.Release{{Place: h.at}}}, renamed)
	n.reaches(h) // it has come back
	renamed.Releases[0].Place = h.at
	renamed.Name = "renamed.again"
	h.publish(renamed)
	n.stays(h)
	h.snapshotAs(renamed.Name)
	h.publish(renamed) // the next heartbeat
	wait.For(t, "the other name", func() bool { return n.has(renamed.Name) != nil })
	if !equal(n.has(renamed.Name), h.truth[h.at]) {
		t.Errorf("%d entries", n.has(renamed.Name).Len())
	}
	wait.For(t, "the former name goes", func() bool { return n.has(name) == nil && len(n.Lists()) == 1 })
	h.publish()
	wait.For(t, "all lists go", func() bool { return len(n.Lists()) == 0 })
	n.stop()
	if files, err := os.ReadDir(n.dir); err != nil || len(files) > 1 || n.unsavedCatalog != nil {
		t.Errorf("left are %v, %v", files, err)
	}
}

// stays checks that the list filters for two seconds after the last catalog: what leaves is looked
// at each second.
func (r *run) stays(h *hub) {
	r.t.Helper()
	wait.For(r.t, "the catalog", func() bool { return r.Catalog() == h.catalog.Place })
	for range 2 * time.Second / (10 * time.Millisecond) {
		if r.has(name) == nil {
			r.t.Fatal("nothing filters")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestLeaveBy ends the wait for a list that does not come.
func TestLeaveBy(t *testing.T) {
	t.Parallel() // it waits a lot
	h, n := follow(t, t.TempDir())
	h.publish(wire.ListState{Name: "other", Settings: block, Releases: []wire.Release{{Place: wire.Place{Epoch: 9, Version: 9}}}})
	n.stays(h)
	n.Node.mu.Lock()
	n.followers[name].leaveBy = time.Now()
	n.Node.mu.Unlock()
	wait.For(t, "it goes in the end", func() bool { return n.has(name) == nil })
}

// TestWithdrawn replaces a list that the node does not have yet: it never filters.
func TestWithdrawn(t *testing.T) {
	t.Parallel() // it waits a lot
	h, n := follow(t, t.TempDir())
	of := func(name string) wire.ListState {
		return wire.ListState{Name: name, Settings: block, Releases: []wire.Release{{Place: h.at}}}
	}
	h.publish(of(name), of("wrong"))
	wait.For(t, "the catalog", func() bool { return n.Catalog() == h.catalog.Place })
	h.publish(of(name), of("right"))
	wait.For(t, "the next one", func() bool { return n.Catalog() == h.catalog.Place })
	h.snapshotAs("wrong")
	h.snapshotAs("right")
	h.publish(of(name), of("right"))
	wait.For(t, "the right one", func() bool { return n.has("right") != nil })
	n.stays(h)
	if n.has("wrong") != nil || len(n.Lists()) != 2 {
		t.Error("a list filters that the catalog does not have")
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel() // it waits a lot
	h := newHub(t)
	dir := t.TempDir()
	n := h.start(dir)
	soon := time.Now().Add(15 * time.Second).Truncate(time.Millisecond) // all are there before, on a slow machine, too
	h.change(set(t, "192.0.2.1", "192.0.2.2", "192.0.2.3", "tcp *:* > 192.0.2.9:25", "2001:db8::1"),
		wire.Expiry{Entry: "192.0.2.1", At: soon}, wire.Expiry{Entry: "192.0.2.2", At: soon},
		wire.Expiry{Entry: "tcp *:* > 192.0.2.9:25", At: soon}, wire.Expiry{Entry: "2001:db8::1", At: soon})
	h.snapshot(wire.Expiry{Entry: "192.0.2.1", At: soon}, wire.Expiry{Entry: "192.0.2.2", At: soon},
		wire.Expiry{Entry: "tcp *:* > 192.0.2.9:25", At: soon}, wire.Expiry{Entry: "2001:db8::1", At: soon})
	h.release()
	wait.For(t, "all five", func() bool { return n.has(name).Len() == 5 })
	h.change(set(t, "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "tcp *:* > 192.0.2.9:25", "2001:db8::1"), wire.Expiry{Entry: "192.0.2.2"}) // it stays
	h.release()
	wait.For(t, "the second version", func() bool { return n.active().Active == h.at })
	h.server.Shutdown() // the hub is gone
	left := set(t, "192.0.2.2", "192.0.2.3", "192.0.2.4")
	wait.For(t, "the end of the others", func() bool { return equal(n.has(name), left) })
	if time.Now().Before(soon) {
		t.Error("they have expired early")
	}
	if s := n.active(); s.Sum != snapshot.Of(h.truth[h.at].Groups()).String() {
		t.Errorf("the version has become another: %+v", s)
	}
	n.stop()
	if n = h.start(dir); !equal(n.has(name), left) {
		t.Errorf("after a restart: %d entries", n.has(name).Len())
	}
}

// Where the clocks differ, explain says when an entry of the hub expires by the node's clock.
func TestExpiryShown(t *testing.T) {
	t.Parallel() // it waits a lot
	h := newHub(t)
	h.ahead = time.Hour
	n := h.start(t.TempDir())
	left := 10 * time.Minute
	entry, end := set(t, "192.0.2.1"), time.Now().Add(left)
	h.change(entry)
	h.snapshot(wire.Expiry{Entry: "192.0.2.1", At: end.Add(h.ahead)})
	h.release()
	n.reaches(h)
	h.release() // live, with the clock
	wait.For(t, "the end by the node's clock", func() bool {
		for k := range entry.All() {
			shown := n.Lists()[0].Find([]key.Key{k})[0].Expires
			return shown.Sub(end).Abs() < leastDifference
		}
		return false
	})
}

// A catalog that cannot be saved, as on a full disk, is reported to the hub, and logged once: one
// comes with each heartbeat.
func TestCatalogNotSaved(t *testing.T) {
	h := newHub(t)
	var mu sync.Mutex
	var log bytes.Buffer
	h.log = slog.NewTextHandler(writerFunc(func(b []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return log.Write(b) }), nil)
	logged := func(text string) int { mu.Lock(); defer mu.Unlock(); return strings.Count(log.String(), text) }
	dir := t.TempDir()
	n := h.start(dir)
	h.change(set(t, "192.0.2.1"))
	h.snapshot()
	h.release()
	n.reaches(h)
	said := make(chan bool, 1000)
	if _, err := h.conn.Subscribe(wire.StatusSubject("edge-1"), func(m *nats.Msg) {
		said <- slices.ContainsFunc(must(wire.ParseStatus(m.Data)).Problems, func(p string) bool { return strings.Contains(p, "catalog of the fleet cannot be saved") })
	}); err != nil {
		t.Fatal(err)
	}
	reported := func(want bool) {
		t.Helper()
		wait.For(t, fmt.Sprint("the problem is reported: ", want), func() bool {
			is := !want
			for len(said) > 0 {
				is = <-said
			}
			return is == want
		})
	}
	in := filepath.Join(n.catalogPath()+".new", "in the way")
	if err := os.MkdirAll(in, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		h.release()
		wait.For(t, "the catalog", func() bool { return n.Catalog() == h.catalog.Place })
	}
	reported(true)
	if got := logged("cannot be saved"); got != 1 {
		t.Errorf("logged %d times", got)
	}
	if err := os.RemoveAll(filepath.Dir(in)); err != nil {
		t.Fatal(err)
	}
	h.release()
	reported(false)
	if got := logged("saved again"); got != 1 {
		t.Errorf("logged %d times that it is saved again", got)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// What cannot be activated is reported, and is not saved.
func TestNotActive(t *testing.T) {
	t.Parallel() // it waits a lot
	dir := t.TempDir()
	h, n := follow(t, dir)
	good := h.at
	n.mu.Lock()
	n.failing = errors.New("too wide")
	n.mu.Unlock()
	h.change(set(t, "0.0.0.0/1"))
	h.release()
	wait.For(t, "the reason", func() bool { return strings.Contains(n.active().Error, "too wide") })
	if s := n.active(); s.Active != good || s.Wanted != h.at {
		t.Errorf("%+v", s)
	}
	if s := n.Lists()[0].Status().Sources[0]; s.Last.Result != feed.Failed || s.Last.Failure != feed.Uncompiled {
		t.Errorf("%+v", s.Last)
	}
	n.stop()
	n = h.start("")
	n.stop()
	again, err := Open(h.config(dir))
	if err != nil || len(again.Lists()) != 1 || !equal(again.Lists()[0].Contents(), h.truth[good]) {
		t.Errorf("saved: %v, %v", again.Lists(), err)
	}
	n = h.start(dir)
	h.change(set(t, "192.0.2.7"))
	h.release()
	n.reaches(h)
	n.stop()
	if n = h.start(dir); !equal(n.has(name), h.truth[h.at]) {
		t.Errorf("after a version that was left out: %d entries", n.has(name).Len())
	}
}

// A file that was cut off or damaged anywhere is an earlier version, or none.
func TestSaved(t *testing.T) {
	dir := t.TempDir()
	h, n := follow(t, dir)
	for i := range 3 {
		h.change(set(t, fmt.Sprintf("192.0.2.%d", i), "198.51.100.0/24"))
		h.release()
		n.reaches(h)
	}
	n.stop()
	files := must(filepath.Glob(filepath.Join(dir, "*", "*")))
	var path string
	for _, f := range files {
		if filepath.Base(f) != "catalog" {
			path = f
		}
	}
	whole := must(os.ReadFile(path))
	check := func(what string, text []byte) {
		t.Helper()
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		again := must(Open(h.config(dir)))
		for _, l := range again.Lists() {
			if p := l.f.newest.Place; !equal(l.Contents(), h.truth[p]) {
				t.Fatalf("%s: version %v has %d entries", what, p, l.Contents().Len())
			}
		}
	}
	for i := 0; i < len(whole); i += 1 + h.r.IntN(5) {
		check(fmt.Sprintf("cut to %d bytes", i), whole[:i])
		damaged := append([]byte(nil), whole...)
		damaged[i] ^= 1 << (i % 8)
		check(fmt.Sprintf("damaged at byte %d", i), damaged)
	}
	// Cut within the last delta, the file goes on from the one before.
	check("cut", whole[:len(whole)-3])
	n = h.start(dir)
	n.reaches(h)
	n.stop()
	if n = h.start(dir); n.active().Active != h.at {
		t.Errorf("%+v", n.active())
	}
}

func TestMaxRate(t *testing.T) {
	t.Parallel() // it waits a lot
	h := newHub(t)
	var entries list.Entries
	for i := range 200_000 {
		entries.V4 = append(entries.V4, list.V4Of(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 13), byte(i >> 5), byte(i << 3)}), 32)))
		_ = i
	}
	for range 200_000 {
		entries.V4 = append(entries.V4, list.V4(h.r.Uint32(), 32))
	}
	h.change(entries.Set())
	h.snapshot()
	size := 0
	for i, s := range h.sentTo {
		if s != wire.HeadSubject(name) && s != wire.DeltaSubject(name) {
			size += len(h.sent[i])
		}
	}
	for text, links := range map[string][]wire.Link{
		"as the hub says":       {{Groups: []string{"others"}, MaxRate: 1}, {Groups: []string{"canary"}, MaxRate: int64(size)}},
		"as its own file says":  nil,
		"as the slower of them": {{Groups: []string{"node:edge-1"}, MaxRate: 1 << 40}},
	} {
		began := time.Now()
		h.maxRate = 0
		if text != "as the hub says" {
			h.maxRate = int64(size)
		}
		h.catalog.Links = links
		h.publish(wire.ListState{Name: name, Settings: block, Releases: []wire.Release{{Place: h.at}}})
		n := h.start("") // after the catalog, or it would go by the former one
		n.reaches(h)
		if took := time.Since(began); took < 900*time.Millisecond {
			t.Errorf("%s: %d bytes at %d bytes a second in %v", text, size, size, took)
		}
		n.stop()
	}
}

// Whatever a broker does with messages, a node has exactly a version of the hub's, none
// that is not wanted, and never goes back; when the broker is well again, it has the
// wanted one.
func TestFaults(t *testing.T) {
	for seed := range long.Or[uint64](2, 6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { t.Parallel(); faults(t, seed) })
	}
}

func faults(t *testing.T, seed uint64) {
	h := newHub(t)
	h.r = rand.New(rand.NewPCG(seed, 5))
	_, others, _ := ed25519.GenerateKey(nil)
	var late []func()
	h.live = func(subject string, m []byte) {
		send := func(m []byte) { h.publishLive(subject, m) }
		switch h.r.IntN(12) {
		case 0: // withheld
		case 1: // twice
			send(m)
			send(m)
		case 2: // late
			late = append(late, func() { send(m) })
		case 3: // cut off
			send(m[:h.r.IntN(len(m))])
		case 4: // changed
			forged := append([]byte(nil), m...)
			forged[h.r.IntN(len(m))] ^= 1 << h.r.IntN(8)
			send(forged)
		case 5: // signed by somebody else
			if subject == wire.CatalogSubject() {
				c := h.catalog
				c.Version += 1000
				send(must(wire.SealCatalog(others, c)))
			} else {
				send(must(wire.SealDelta(others, wire.Delta{List: name, Epoch: h.at.Epoch, From: h.at.Version - 1, To: h.at.Version, Add: set(t, "203.0.113.1").Groups()})))
			}
		case 6: // an old one instead
			if i := h.r.IntN(len(h.sent)); true {
				h.publishLive(h.sentTo[i], h.sent[i])
				h.publishLive(subject, h.sent[i]) // and as if it were another
			}
		default:
			send(m)
		}
		if len(late) > 0 && h.r.IntN(2) == 0 {
			i := h.r.IntN(len(late))
			late[i]()
			late = append(late[:i], late[i+1:]...)
		}
	}
	dir := t.TempDir()
	n := h.start(dir)
	wantedPlaces := map[wire.Place]bool{}
	var lastSeen wire.Place
	var lastCatalog wire.Place
	check := func() {
		t.Helper()
		if c := n.Catalog(); c.Before(lastCatalog) {
			t.Fatalf("seed %d: catalog %v after %v", seed, c, lastCatalog)
		} else {
			lastCatalog = c
		}
		n.Node.mu.Lock()
		f := n.followers[name]
		n.Node.mu.Unlock()
		if f == nil {
			return
		}
		f.mu.Lock()
		s, contents := f.newest, f.contents
		f.mu.Unlock()
		if s == nil {
			return
		}
		if truth := h.truth[s.Place]; truth == nil || !equal(contents, truth) {
			t.Fatalf("seed %d: version %v is not that of the hub", seed, s.Place)
		}
		if !wantedPlaces[s.Place] {
			t.Fatalf("seed %d: version %v was never wanted", seed, s.Place)
		}
		if s.Before(lastSeen) {
			t.Fatalf("seed %d: back from %v to %v", seed, lastSeen, s.Place)
		}
		lastSeen = s.Place
	}
	random := func() *list.Set {
		var e list.Entries
		for range h.r.IntN(40) {
			e.V4 = append(e.V4, list.V4(0xc0000200|uint32(h.r.IntN(256)), 32))
			e.V6 = append(e.V6, netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 15: byte(h.r.IntN(64))}), 128))
		}
		return e.Set()
	}
	for range 120 {
		switch h.r.IntN(14) {
		case 0:
			h.snapshot()
		case 1: // history is lost
			_ = h.js.PurgeStream(wire.Stream, &nats.StreamPurgeRequest{Subject: wire.DeltaSubject(name)})
			h.snapshot()
		case 2: // everything is
			if h.js.DeleteStream(wire.Stream) == nil {
				h.addStream()
			}
			if h.r.IntN(2) == 0 { // the truth, too
				next := wire.Place{Epoch: h.at.Epoch + 1, Version: 1}
				h.truth[next] = random()
				h.at, h.catalog.Place = next, wire.Place{Epoch: h.catalog.Epoch + 1}
			}
			h.snapshot()
			wantedPlaces[h.at] = true
			h.release()
		case 3: // a crash
			n.stop()
			check()
			lastSeen = wire.Place{}
			if s := n.active(); s.Active != (wire.Place{}) {
				lastSeen = s.Active // which it has confirmed
			}
			n = h.start(dir)
			check()
		case 4: // an old message is the last one in the stream
			i := h.r.IntN(len(h.sent))
			_, _ = h.js.Publish(h.sentTo[i], h.sent[i])
		case 5: // a forged one is
			i := h.r.IntN(len(h.sent))
			forged := append([]byte(nil), h.sent[i]...)
			forged[h.r.IntN(len(forged))] ^= 1
			_, _ = h.js.Publish(h.sentTo[i], forged)
		default:
			if len(h.sent) == 0 {
				h.snapshot()
			}
			h.change(random())
			if h.r.IntN(3) > 0 {
				wantedPlaces[h.at] = true
				h.release()
			}
		}
		if h.r.IntN(3) == 0 {
			time.Sleep(time.Duration(h.r.IntN(10)) * time.Millisecond)
		}
		check()
	}
	h.live = h.publishLive
	h.snapshot()
	wantedPlaces[h.at] = true
	h.release()
	n.reaches(h)
	check()
}

// The past of an earlier epoch, still in the stream and properly signed, does not come
// back, nor after a restart.
func TestReplay(t *testing.T) {
	t.Parallel() // it waits a lot
	dir := t.TempDir()
	h, n := follow(t, dir)
	first := h.at
	h.catalog.Patterns = []wire.Pattern{
		{ID: "1", Pattern: "udp sport 123", Until: time.Now().Add(time.Hour)},
		{ID: "2", Pattern: "udp sport 53", Until: time.Now().Add(time.Hour), Groups: []string{"canary"}},
		{ID: "3", Pattern: "udp sport 19", Until: time.Now().Add(time.Hour), Groups: []string{"paris"}},
	}
	h.want(first)
	wait.For(t, "the patterns for the node", func() bool { return slices.Equal(n.dropped(), []string{"udp sport 123", "udp sport 53"}) })
	old := h.sent[len(h.sent)-1]
	h.catalog.Patterns = []wire.Pattern{{ID: "1", Pattern: "udp sport 123", Off: true}}
	h.at = wire.Place{Epoch: 2, Version: 1}
	h.truth[h.at] = set(t, "192.0.2.2")
	h.snapshot()
	h.catalog.Place = wire.Place{Epoch: 2}
	h.release()
	n.reaches(h)
	for range 2 {
		refused := n.Refused()
		h.store(wire.CatalogSubject(), old)
		h.publishLive(wire.CatalogSubject(), old)
		wait.For(t, "it is refused", func() bool { return n.Refused() > refused })
		if n.active().Active != h.at || n.active().Wanted != h.at || !equal(n.has(name), h.truth[h.at]) {
			t.Fatalf("%+v", n.active())
		}
		wait.For(t, "that patterns have ended", func() bool { return len(n.dropped()) == 0 })
		n.stop()
		n = h.start(dir)
	}
	// Nor where the hub itself errs.
	h.want(first)
	wait.For(t, "the catalog", func() bool { return n.Catalog() == h.catalog.Place })
	time.Sleep(50 * time.Millisecond)
	if n.active().Active != h.at {
		t.Errorf("back to %+v", n.active())
	}
}

// A delta that does not lead from the node's version to the one that it promises, though
// it is signed, is not applied.
func TestBrokenDelta(t *testing.T) {
	t.Parallel() // it waits a lot
	h, n := follow(t, t.TempDir())
	for what, spoil := range map[string]func(*wire.Delta){
		"sum":     func(d *wire.Delta) { d.Add = set(t, "192.0.2.99").Groups() },
		"entries": func(d *wire.Delta) { d.Entries++ },
		"adds what is there": func(d *wire.Delta) {
			d.Add = append(h.truth[wire.Place{Epoch: d.Epoch, Version: d.From}].Groups(), d.Add...)[:1]
		},
		"removes what is not": func(d *wire.Delta) { d.Remove = set(t, "203.0.113.3").Groups() },
		"expiry":              func(d *wire.Delta) { d.Expires = []wire.Expiry{{Entry: "nonsense", At: time.Now()}} },
	} {
		before := h.at
		h.at.Version++
		h.truth[h.at] = list.Union(h.truth[before], set(t, fmt.Sprintf("198.51.100.%d", h.at.Version)))
		change := h.truth[h.at].Diff(h.truth[before])
		d := wire.Delta{
			List: name, Epoch: 1, From: before.Version, To: h.at.Version, Sum: snapshot.Of(h.truth[h.at].Groups()).String(), Entries: h.truth[h.at].Len(),
			Add: change.Add.Groups(),
		}
		spoil(&d)
		m := must(wire.SealDelta(h.private, d))
		h.store(wire.DeltaSubject(name), m)
		h.publishLive(wire.DeltaSubject(name), m)
		h.release()
		wait.For(t, what+": an error", func() bool { return n.active().Error != "" })
		if n.active().Active != before || !equal(n.has(name), h.truth[before]) {
			t.Fatalf("%s: %+v", what, n.active())
		}
		h.snapshot()
		h.release()
		n.reaches(h)
	}
}

// A delta of another list, properly signed, that comes as one of this list is refused, also
// where it would fit: both lists are at the same version and have the same contents.
func TestDeltaOfAnotherList(t *testing.T) {
	for how, send := range map[string]func(h *hub, m []byte){
		"live":   func(h *hub, m []byte) { h.publishLive(wire.DeltaSubject(name), m) },
		"stored": func(h *hub, m []byte) { h.store(wire.DeltaSubject(name), m) },
	} {
		t.Run(how, func(t *testing.T) {
			h, n := follow(t, t.TempDir())
			before := h.truth[h.at]
			wrong := list.Union(before, set(t, "203.0.113.9"))
			other := must(wire.SealDelta(h.private, wire.Delta{
				List: "another", Epoch: h.at.Epoch, From: h.at.Version, To: h.at.Version + 1,
				Sum: snapshot.Of(wrong.Groups()).String(), Entries: wrong.Len(), Issued: time.Now(), Add: wrong.Diff(before).Add.Groups(),
			}))
			h.live = func(subject string, m []byte) {
				if subject == wire.CatalogSubject() { // the list's own delta is in the stream alone
					h.publishLive(subject, m)
				}
			}
			refused := func() bool {
				return slices.ContainsFunc(n.refusedWhat(), func(r refusal) bool { return strings.Contains(r.text, `delta of list "another"`) })
			}
			send(h, other)
			h.change(list.Union(before, set(t, "198.51.100.9")))
			send(h, other) // the node looks for the first delta, or the last one
			h.release()
			wait.For(t, "the node has seen it", func() bool { return refused() || n.active().Active == h.at })
			h.snapshot() // where the last delta of the stream leads nowhere
			h.release()
			n.reaches(h)
			wait.For(t, "it is refused", refused)
		})
	}
}

// A node that hears nothing new is stale, whatever old messages it is sent.
func TestStale(t *testing.T) {
	t.Parallel() // it waits a lot
	h := newHub(t)
	h.catalog.MaxAge = 1
	n := h.start(t.TempDir())
	h.change(set(t, "192.0.2.1"))
	h.snapshot()
	h.release()
	n.reaches(h)
	if err := n.Age().Err(); err != nil && time.Since(h.catalog.Issued) < time.Second {
		t.Error(err)
	}
	wait.For(t, "it is stale", func() bool { return n.Age().Err() != nil })
	for i := range h.sent {
		h.publishLive(h.sentTo[i], h.sent[i])
	}
	s := n.Lists()[0].Status().Sources[0]
	if s.Last.Err == nil || s.Failures == 0 || s.Entries != 1 || !equal(n.has(name), h.truth[h.at]) {
		t.Errorf("%+v", s)
	}
	h.release()
	wait.For(t, "it is up to date", func() bool { return n.Age().Err() == nil })
}

// Where the hub's clock is ahead, a node that starts again is stale as long after it has heard
// of the hub as others, not when its own clock has come so far.
func TestStaleAhead(t *testing.T) {
	t.Parallel() // it waits a lot
	h := newHub(t)
	h.ahead, h.catalog.MaxAge = time.Hour, 1
	dir := t.TempDir()
	n := h.start(dir)
	h.change(set(t, "192.0.2.1"))
	h.snapshot()
	h.release()
	n.reaches(h)
	wait.For(t, "it is stale", func() bool { return n.Age().Err() != nil })
	n.stop()
	n = h.start(dir)
	wait.For(t, "it is stale again", func() bool { return n.Age().Err() != nil })
}

// A catalog that was on its way while a later one was fetched is no attack.
func TestLateCatalog(t *testing.T) {
	t.Parallel() // it waits a lot
	h := newHub(t)
	h.change(set(t, "192.0.2.1"))
	h.snapshot()
	h.release()
	late := h.sent[len(h.sent)-1]
	h.release()
	n := h.start(t.TempDir()) // which fetches the last one
	n.reaches(h)
	m := nats.NewMsg(wire.DownPrefix + wire.CatalogSubject())
	m.Data = late
	m.Header.Set("Nats-Sequence", "1")
	if err := h.conn.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	h.release()
	wait.For(t, "the catalog after it", func() bool { return n.Catalog() == h.catalog.Place })
	if n.Refused() > 0 {
		t.Errorf("refused: %q", n.refusedWhat())
	}
	h.publishLive(wire.CatalogSubject(), late)
	wait.For(t, "the old one is refused", func() bool { return n.Refused() == 1 })
}

// What a snapshot is made of is withheld, cut off or replaced: a node that starts has
// nothing rather than something else, and says why.
func TestSpoiltSnapshot(t *testing.T) {
	for what, spoil := range map[string]func(h *hub){
		"no chunk": func(h *hub) {
			_ = h.js.PurgeStream(wire.Stream, &nats.StreamPurgeRequest{Subject: wire.ChunksSubject(name, h.at.Epoch, h.at.Version)})
		},
		"no head": func(h *hub) {
			_ = h.js.PurgeStream(wire.Stream, &nats.StreamPurgeRequest{Subject: wire.HeadSubject(name)})
		},
		"half a chunk":   func(h *hub) { h.replaceChunk(func(b []byte) []byte { return b[:len(b)/2] }) },
		"a longer chunk": func(h *hub) { h.replaceChunk(func(b []byte) []byte { return append(b, 0) }) },
		"another chunk":  func(h *hub) { h.replaceChunk(func(b []byte) []byte { b[len(b)-1] ^= 1; return b }) },
		"half a head": func(h *hub) {
			m, err := h.js.GetLastMsg(wire.Stream, wire.HeadSubject(name))
			if err == nil {
				h.store(wire.HeadSubject(name), m.Data[:len(m.Data)/2])
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := newHub(t)
			h.change(set(t, "192.0.2.1", "198.51.100.0/24", "2001:db8::/32"))
			h.snapshot()
			_ = h.js.PurgeStream(wire.Stream, &nats.StreamPurgeRequest{Subject: wire.DeltaSubject(name)})
			spoil(h)
			h.release()
			n := h.start(t.TempDir())
			wait.For(t, "an error", func() bool { return n.active().Error != "" })
			if n.has(name) != nil || n.active().Active != (wire.Place{}) {
				t.Errorf("active: %+v", n.active())
			}
			if withheld := strings.HasPrefix(what, "no "); (n.Refused() == 0) != withheld {
				t.Errorf("%d messages refused: %q", n.Refused(), n.refusedWhat())
			}
			h.snapshot()
			h.release()
			n.reaches(h)
		})
	}
}

// Deltas that a node refuses, among those of the hub and after them, do not hide the others
// from a node that starts.
func TestSpoiltDeltas(t *testing.T) {
	h := newHub(t)
	h.change(set(t, "192.0.2.1"))
	h.snapshot()
	bad := func(n int) {
		for range n {
			h.store(wire.DeltaSubject(name), []byte("not signed"))
		}
	}
	for i := range 5 {
		bad(i)
		h.change(set(t, "192.0.2.1", fmt.Sprintf("198.51.100.%d", i)))
	}
	bad(5)
	h.release()
	n := h.start(t.TempDir())
	n.reaches(h)
	if n.Refused() == 0 {
		t.Error("none was refused")
	}
}

// replaceChunk replaces the only chunk of the last snapshot.
func (h *hub) replaceChunk(by func([]byte) []byte) {
	subject := wire.ChunkSubject(name, h.at.Epoch, h.at.Version, 0)
	m, err := h.js.GetLastMsg(wire.Stream, subject)
	if err != nil {
		h.t.Fatal(err)
	}
	h.store(subject, by(m.Data))
}
