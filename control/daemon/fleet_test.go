package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/fleet/authority"
	"weir/control/fleet/broker"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/hub"
	"weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/control/serve"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/wait"
)

// fleetHub is a hub with a broker, which may stop and start again.
type fleetHub struct {
	*hub.Hub
	t         *testing.T
	dir       string
	listen    string
	authority *authority.Authority
	stop      func()
}

func newFleetHub(t *testing.T) *fleetHub {
	t.Helper()
	h := &fleetHub{t: t, dir: t.TempDir(), listen: "127.0.0.1:0"}
	var err error
	if h.authority, err = authority.Init(filepath.Join(h.dir, "keys")); err != nil {
		t.Fatal(err)
	}
	return h
}

// start starts the hub with lists as its configuration has them.
func (h *fleetHub) start(lists string) {
	h.t.Helper()
	log := slog.New(slog.NewTextHandler(h.t.Output(), nil)).With("of", "hub")
	b, err := broker.Start(broker.Options{Authority: h.authority, Dir: filepath.Join(h.dir, "broker"), Listen: h.listen, Names: []string{"127.0.0.1"}, Log: log})
	if err != nil {
		h.t.Fatal(err)
	}
	h.listen = strings.TrimPrefix(b.URL(), "tls://")
	text := fmt.Sprintf("servers: [%q]\nbroker: {listen: %q}\nkeys: %s/keys\nstate_dir: %s/hub\nheartbeat: 1s\n%s", b.URL(), h.listen, h.dir, h.dir, lists)
	c, err := config.ParseHub("hub.yaml", []byte(text))
	if err != nil {
		h.t.Fatal(err)
	}
	if h.Hub, err = hub.Open(hub.Options{Config: c, Authority: h.authority, Broker: b, Log: log}); err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = h.Run(ctx) })
	h.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		h.Close()
		b.Close()
	})
	h.t.Cleanup(func() { h.stop() })
}

// enroll returns the file of a node.
func (h *fleetHub) enroll(name string, labels ...string) string {
	h.t.Helper()
	n, err := h.authority.Enroll(name, labels, []string{"tls://" + h.listen})
	if err != nil {
		h.t.Fatal(err)
	}
	text, err := n.Marshal()
	if err != nil {
		h.t.Fatal(err)
	}
	path := filepath.Join(h.dir, name+".json")
	write(h.t, path, string(text))
	if _, err := enrollment.Read(path); err != nil {
		h.t.Fatal(err)
	}
	return path
}

func (h *fleetHub) block(entries ...string) {
	h.t.Helper()
	if _, err := h.Change(h.t.Context(), api.Change{Action: api.Block, Entries: entries}); err != nil {
		h.t.Fatal(err)
	}
}

// becomes waits until a daemon has a verdict on packets from an address.
func becomes(t *testing.T, d *Daemon, from string, want verdict.Action) {
	t.Helper()
	for deadline := wait.Deadline(); verdictOf(t, d, from) != want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("packets from %s: want %v; lists %+v, status %+v", from, want, d.readings.Lists().Lists, d.readings.Status().Fleet)
		}
	}
}

func listNamed(d *Daemon, name string) *api.List {
	for _, l := range d.readings.Lists().Lists {
		if l.Name == name {
			return &l
		}
	}
	return nil
}

// The hub says of a node in monitor mode, and of one that filters on some of its interfaces, that
// it does not enforce, as long as its packets pass.
func TestFleetNotEnforcing(t *testing.T) {
	t.Parallel() // it waits for reports
	h := newFleetHub(t)
	h.start("")
	text := "fleet: {enroll: " + h.enroll("edge-1") + "}\n"
	d := startLists(t, lab.New(t), io.Discard, text+"monitor: true")
	h.block("198.51.100.7")
	says := func(why, problem string, nodes int) {
		t.Helper()
		var f api.HubStatus
		defer func() {
			if t.Failed() {
				t.Logf("%+v", f)
			}
		}()
		wait.For(t, "the hub says "+why, func() (ok bool) {
			var err error
			f, err = h.Fleet(t.Context())
			return err == nil && f.Nodes[0].State == api.NodeCurrent && f.Nodes[0].NotEnforcing == why &&
				strings.Contains(strings.Join(f.Problems, "\n"), problem) == (nodes > 0) && h.Metrics().NotEnforcing == nodes
		})
		if r := f.Nodes[0].Report; r.Mode != "drop" && r.Mode != "exact" || r.Address != "127.0.0.1" || r.Interfaces < 1 {
			t.Errorf("%+v", r)
		}
	}
	says("monitor mode", "1 of 1 nodes that report are in monitor mode, and drop nothing: edge-1: ", 1)
	if got := verdictOf(t, d, "198.51.100.7"); got != verdict.Pass {
		t.Errorf("in monitor mode: %v", got)
	}
	rewriteConfig(t, d, "monitor: true", "monitor: false")
	says("", "monitor mode", 0)
	becomes(t, d, "198.51.100.7", verdict.Drop)
	rewriteConfig(t, d, "interfaces: [", "interfaces: [{name: none0}, ")
	says("1 of 2 interfaces are filtered", "1 of 1 nodes that report do not filter on all of their interfaces: edge-1 (1 of 2 interfaces are filtered): ", 1)
}

// A daemon filters by the lists of its fleet beside its own, with the hub and without,
// and across reloads.
func TestFleet(t *testing.T) {
	t.Parallel() // it waits a lot
	h := newFleetHub(t)
	feed := filepath.Join(h.dir, "feed")
	write(t, feed, "192.0.2.1\n2001:db8::1\n")
	lists := fmt.Sprintf("lists: {drop: {sources: [{file: %s}], interval: 24h}}", feed)
	h.start(lists)
	own := feedFile(t, "own.txt", "203.0.113.1\n")
	d := startLists(t, lab.New(t), io.Discard, fmt.Sprintf("lists: {drop: {sources: [{file: %s}], interval: 24h}}\nfleet: {enroll: %s, max_age: 4s}", own, h.enroll("edge-1")))
	becomes(t, d, "192.0.2.1", verdict.Drop)
	becomes(t, d, "203.0.113.1", verdict.Drop)
	for deadline := wait.Deadline(); ; time.Sleep(20 * time.Millisecond) { // stale where the machine is slow
		l := listNamed(d, "fleet.drop")
		if l == nil || l.Entries != 2 || len(l.Feeds) != 1 || l.Feeds[0].Source != "fleet" || l.Feeds[0].Version == "" {
			t.Fatalf("%+v", l)
		}
		if l.Feeds[0].Error == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", l)
		}
	}
	if l := listNamed(d, "drop"); l == nil || l.Entries != 1 || l.Feeds[0].Version != "" {
		t.Errorf("%+v", l)
	}
	if e, err := d.api.Explainer.Explain(t.Context(), "192.0.2.1", true); err != nil || e.Answers[0].List != "fleet.drop" || e.Answers[0].Entries()[0].Source != "fleet: "+feed || e.Answers[0].Entries()[0].Line != 1 {
		t.Errorf("%+v, %v", e, err)
	}
	wait.For(t, "the status has the list that is configured twice", func() bool { return slices.Equal(d.readings.Status().Fleet.Twice, []string{"drop"}) })
	var warnings []string
	if err := d.loop.Do(t.Context(), func() error { warnings = d.active.prepared.Warnings(); return nil }); err != nil || len(warnings) != 1 || !strings.HasPrefix(warnings[0], "list drop is configured here, and comes from the hub as fleet.drop: ") {
		t.Errorf("warnings %q, %v", warnings, err)
	}

	// A command at the hub.
	h.block("198.51.100.7")
	becomes(t, d, "198.51.100.7", verdict.Drop)

	// Another list is there for, and one goes. What the node lists itself stays.
	h.stop()
	h.start(strings.Replace(lists, "{drop:", "{other: {sources: [{file: "+feedFile(t, "other.txt", "192.0.2.99\n")+"}], interval: 24h}, drop:", 1))
	becomes(t, d, "192.0.2.99", verdict.Drop)
	h.stop()
	h.start(lists)
	becomes(t, d, "192.0.2.99", verdict.Pass)
	for _, from := range []string{"192.0.2.1", "198.51.100.7", "203.0.113.1"} {
		becomes(t, d, from, verdict.Drop)
	}

	// Without the hub.
	h.stop()
	stale := func() bool {
		s, m := d.readings.Status().Fleet, d.readings.Metrics().Fleet
		return s != nil && s.Stale && m != nil && m.Stale && !m.Connected
	}
	for deadline := wait.Deadline(); !stale(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("a dead hub: %+v, metrics %+v", d.readings.Status().Fleet, d.readings.Metrics().Fleet)
		}
	}
	if _, err := d.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	for _, from := range []string{"192.0.2.1", "198.51.100.7", "203.0.113.1"} {
		if got := verdictOf(t, d, from); got != verdict.Drop {
			t.Errorf("without a hub, %s: %v", from, got)
		}
	}
	// A last message of the hub may have come after stale was true.
	wait.For(t, "the list is stale", func() bool {
		l := listNamed(d, "fleet.drop")
		return l != nil && l.Feeds[0].Outcome == api.Failed && strings.Contains(l.Feeds[0].Error, "stale")
	})
}

// What a node may not have of a list is left out, or refused, as of a feed.
func TestFleetGuard(t *testing.T) {
	t.Parallel() // it waits a lot
	h := newFleetHub(t)
	h.start("")
	l := lab.New(t)
	d := startLists(t, l, io.Discard, fmt.Sprintf("failsafe: {prefixes: [198.51.100.0/24]}\nmax_coverage: 1%%\nfleet: {enroll: %s}", h.enroll("edge-1")))
	h.block("192.0.2.1")
	becomes(t, d, "192.0.2.1", verdict.Drop)
	until := func(is func(l *api.List) bool) {
		t.Helper()
		for deadline := wait.Deadline(); ; time.Sleep(5 * time.Millisecond) {
			if l := listNamed(d, "fleet.block"); l != nil && is(l) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%+v", d.readings.Lists().Lists)
			}
		}
	}
	h.block("198.51.100.0/23")
	until(func(l *api.List) bool { return len(l.LeftOut) == 1 && l.LeftOut[0].Failsafe == "198.51.100.0/24" })
	h.block("64.0.0.0/6")
	until(func(l *api.List) bool { return strings.Contains(l.Feeds[0].Error, "max_coverage") })
	if got := verdictOf(t, d, "192.0.2.1"); got != verdict.Drop {
		t.Errorf("the old contents: %v", got)
	}
	if _, err := d.Reload(t.Context()); err != nil {
		t.Errorf("a list of the fleet keeps the node from reloading: %v", err)
	}
	if got := verdictOf(t, d, "192.0.2.1"); got != verdict.Drop {
		t.Errorf("the old contents after a reload: %v", got)
	}
	if _, err := h.Change(t.Context(), api.Change{Action: api.Block, Remove: true, Entries: []string{"198.51.100.0/23", "64.0.0.0/6"}}); err != nil {
		t.Fatal(err)
	}
	h.block(netip.MustParseAddr("192.0.2.2").String())
	becomes(t, d, "192.0.2.2", verdict.Drop)
}

// A list of the fleet may be for certain packets, or on trial; a node that cannot do that refuses
// it, reports that to the hub, and has the other lists.
func TestFleetLimited(t *testing.T) {
	long.Seconds(t)
	t.Parallel() // it waits a lot
	h := newFleetHub(t)
	const lists = "lists: {limited: {entries: [192.0.2.1, 192.0.2.2, 192.0.2.3], PORTS, vlans: [0]}, trial: {entries: [192.0.2.2], ENFORCE}, whole: {entries: [192.0.2.9]}}"
	text := func(ports, enforce string) string {
		return strings.NewReplacer("PORTS", "ports: ["+ports+"]", "ENFORCE", "enforce: "+enforce).Replace(lists)
	}
	h.start(text("tcp/22, udp/5000-5010", "false"))
	l := lab.New(t)
	d := startLists(t, l, io.Discard, "fleet: {enroll: "+h.enroll("edge-1")+"}")
	approx := startLists(t, lab.New(t), io.Discard, "mode: approx\nfleet: {enroll: "+h.enroll("edge-2")+"}")
	becomes(t, d, "192.0.2.9", verdict.Drop)
	becomes(t, approx, "192.0.2.9", verdict.Drop)
	reasons := func(from string, port uint16, want verdict.Reason) {
		t.Helper()
		counted := func() (n uint64) {
			interfaces, _ := d.observers.meter.Read()
			for _, i := range interfaces {
				n += i.Counts[want].Packets
			}
			return n
		}
		before := counted()
		sendFrame(t, l, 7, packet.Frame(key.Tuple{Src: netip.MustParseAddr(from), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, SrcPort: 1, DstPort: port}))
		await(t, fmt.Sprintf("packets from %s to port %d as %v", from, port, want), before+7, counted)
	}
	// The settings of each list arrive by themselves.
	arrived := func(ports string, onTrial bool) {
		t.Helper()
		for end := wait.Deadline(); ; time.Sleep(5 * time.Millisecond) {
			limited, trial := listNamed(d, "fleet.limited"), listNamed(d, "fleet.trial")
			if limited != nil && limited.Entries == 3 && limited.For == ports+", of VLAN 0" && trial != nil && trial.Entries == 1 && (trial.Trial != nil) == onTrial {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%+v, %+v", limited, trial)
			}
		}
	}
	arrived("tcp/22, udp/5000-5010", true)
	reasons("192.0.2.1", 5005, verdict.Blocked)
	reasons("192.0.2.1", 4999, verdict.Clean)
	reasons("192.0.2.2", 5005, verdict.Blocked)
	reasons("192.0.2.2", 4999, verdict.WouldBlock)
	for _, name := range []string{"fleet.limited", "fleet.trial"} {
		if l := listNamed(approx, name); l != nil {
			t.Errorf("mode: approx: %+v", l)
		}
	}
	refusals := func() int {
		f, err := h.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, node := range f.Nodes {
			if node.Name != "edge-2" || node.Report == nil {
				continue
			}
			for _, l := range node.Report.Lists {
				if l.Refused && strings.Contains(l.Error, "mode: approx does not know") {
					n++
				}
			}
		}
		return n
	}
	for end := wait.Deadline(); refusals() != 2; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the hub does not know that a node refuses the lists")
		}
	}
	if f, err := h.Fleet(t.Context()); err != nil || !slices.ContainsFunc(f.Lists, func(l api.FleetList) bool {
		return l.Name == "limited" && l.For == "tcp/22, udp/5000-5010, of VLAN 0" && !l.Trial
	}) || !slices.ContainsFunc(f.Lists, func(l api.FleetList) bool { return l.Name == "trial" && l.Trial && l.For == "" }) {
		t.Errorf("%+v, %v", f.Lists, err)
	}
	if _, err := d.trials.Enforce(t.Context(), "fleet.trial", api.EnforceChange{}); err == nil || !strings.Contains(err.Error(), "hub.yaml") {
		t.Errorf("%v", err)
	}

	// Other ports, and the trial is over.
	h.stop()
	h.start(text("udp/4999", "true"))
	arrived("udp/4999", false)
	reasons("192.0.2.1", 4999, verdict.Blocked)
	reasons("192.0.2.1", 5005, verdict.Clean)
	reasons("192.0.2.2", 5005, verdict.Blocked)

	// A command at the hub, and without the hub.
	enforce := func(c api.EnforceChange) {
		t.Helper()
		if done, err := h.Enforce(t.Context(), "trial", c); err != nil || !done.Changed || !done.Published {
			t.Fatalf("%+v, %v", done, err)
		}
		arrived("udp/4999", c.Off)
	}
	enforce(api.EnforceChange{Off: true})
	reasons("192.0.2.2", 5005, verdict.WouldBlock)
	enforce(api.EnforceChange{})
	reasons("192.0.2.2", 5005, verdict.Blocked)
	enforce(api.EnforceChange{Off: true})
	h.stop()
	if _, err := d.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	reasons("192.0.2.1", 4999, verdict.Blocked)
	reasons("192.0.2.1", 5005, verdict.Clean)
	reasons("192.0.2.2", 5005, verdict.WouldBlock)
	var c *config.Config
	if err := d.loop.Do(t.Context(), func() error { c = d.active.prepared.Config; return nil }); err != nil {
		t.Fatal(err)
	}
	read, err := Prepare(t.Context(), c, slog.New(slog.DiscardHandler), nil) // what a start reads
	if err != nil {
		t.Fatal(err)
	}
	if l := read.List("fleet.trial"); l == nil || l.Enforce || read.List("fleet.limited") == nil || !read.List("fleet.limited").Enforce {
		t.Errorf("what the node has saved: %+v", l)
	}
}

// A node lists the prefixes around the addresses of a list of the fleet, by its own allow lists and
// addresses, without the hub, too, and after a restart.
func TestFleetDerived(t *testing.T) {
	t.Parallel() // it waits a lot
	h := newFleetHub(t)
	h.start("lists: {block: {prefix6: 64}, feed: {entries: [192.0.2.1, 192.0.2.2], aggregate: {ipv4: 24, at: 3}}}")
	l := lab.New(t)
	d := startLists(t, l, io.Discard, "lists: {friends: {action: allow, entries: ['2001:db8:2::7']}}\nfleet: {enroll: "+h.enroll("edge-1")+"}")
	becomes(t, d, "192.0.2.1", verdict.Drop)
	has := func(want verdict.Action, from ...string) {
		t.Helper()
		for _, f := range from {
			if got := verdictOf(t, d, f); got != want {
				t.Errorf("packets from %s: %v, want %v", f, got, want)
			}
		}
	}
	change := func(list string, remove bool, entries ...string) {
		t.Helper()
		if _, err := h.Change(t.Context(), api.Change{Action: api.Block, List: list, Remove: remove, Entries: entries}); err != nil {
			t.Fatal(err)
		}
	}
	has(verdict.Pass, "192.0.2.200", "2001:db8:1::99")
	change("", false, "2001:db8:1::5", "2001:db8:2::8")
	becomes(t, d, "2001:db8:1::99", verdict.Drop)
	has(verdict.Drop, "2001:db8:1::5", "2001:db8:2::8")
	has(verdict.Pass, "2001:db8:1:1::5", "2001:db8:2::7", "2001:db8:2::9")
	if e, err := d.api.Explainer.Explain(t.Context(), "2001:db8:1::99", true); err != nil || len(e.Answers[0].Matches) != 1 || e.Answers[0].Matches[0].Derived == nil || e.Answers[0].Matches[0].Derived.By != api.ByPrefix6 {
		t.Errorf("%+v, %v", e, err)
	}
	change("feed", false, "192.0.2.3")
	becomes(t, d, "192.0.2.200", verdict.Drop)
	change("feed", true, "192.0.2.3")
	becomes(t, d, "192.0.2.200", verdict.Pass)
	has(verdict.Drop, "192.0.2.1", "192.0.2.2")
	has(verdict.Pass, "192.0.2.3")
	change("feed", false, "192.0.2.4")
	becomes(t, d, "192.0.2.200", verdict.Drop)

	// A version that is rehearsed counts with the prefixes that it leads to.
	if err := d.fleet.rehearsals.Rehearse(t.Context(), "feed", &node.Candidate{
		Settings: wire.Settings{Action: "block", Direction: "src", Aggregate: wire.Aggregate{IPv4: 24, At: 3}},
		Contents: setOf(t, "192.0.2.1", "203.0.113.1", "203.0.113.2", "203.0.113.3"),
	}); err != nil {
		t.Fatal(err)
	}
	send(t, l, 5, "203.0.113.200")
	await(t, "packets that a version would drop by a prefix", 5, func() uint64 { return d.fleet.rehearsals.Rehearsed("feed").WouldDrop })
	if top := d.fleet.rehearsals.Rehearsed("feed").Top; len(top) != 1 || top[0].Entry != "203.0.113.0/24" {
		t.Errorf("%+v", top)
	}
	if err := d.fleet.rehearsals.Rehearse(t.Context(), "feed", nil); err != nil {
		t.Fatal(err)
	}

	// Without the hub.
	h.stop()
	if _, err := d.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	has(verdict.Drop, "192.0.2.200", "2001:db8:1::99")
	var c *config.Config
	if err := d.loop.Do(t.Context(), func() error { c = d.active.prepared.Config; return nil }); err != nil {
		t.Fatal(err)
	}
	read, err := Prepare(t.Context(), c, slog.New(slog.DiscardHandler), nil) // what a start reads
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fleet.block", "fleet.feed"} {
		if l := read.List(name); l == nil || l.DerivedNumber == 0 || read.Contents(l.DerivedNumber).Len() != 1 {
			t.Errorf("what the node has saved of %s: %+v", name, l)
		}
	}
}

func TestFleetRefused(t *testing.T) {
	for enroll, want := range map[string]string{
		"/does/not/exist":                         "no such file",
		feedFile(t, "bad.json", "{}"):             "no weir_fleet",
		feedFile(t, "none.json", "no enrollment"): "weir hub enroll",
	} {
		c := config.Default()
		c.Fleet.Enroll = config.Path(enroll)
		if _, err := Prepare(t.Context(), c, slog.New(slog.DiscardHandler), nil); err == nil || !strings.Contains(err.Error(), "fleet.enroll: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", enroll, err)
		}
	}
}

// The catalog that is saved may be older than the program that filters, as where the disk was full:
// a start waits for lists that it does not name until the hub says whether they are gone.
func TestFleetAwaitsUnsaved(t *testing.T) {
	t.Parallel() // it waits a lot
	h := newFleetHub(t)
	h.start("")
	d := startLists(t, lab.New(t), io.Discard, "fleet: {enroll: "+h.enroll("edge-1")+"}")
	h.block("192.0.2.1")
	becomes(t, d, "192.0.2.1", verdict.Drop)
	var c *config.Config
	if err := d.loop.Do(t.Context(), func() error { c = d.active.prepared.Config; return nil }); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the lists as the node has saved them", func() bool {
		f, err := h.Fleet(t.Context())
		return err == nil && len(f.Nodes) == 1 && f.Nodes[0].State == api.NodeCurrent
	})
	h.stop()
	n, err := openNode(c, nil, "test", true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{service: &service{Manager: new(serve.Manager), log: slog.New(slog.DiscardHandler)}}
	f.node.Store(n)
	ended := make(chan error, 1)
	go func() { ended <- f.Await(t.Context(), []string{"fleet.block", "fleet.unsaved", "own"}) }()
	wait.For(t, "what the start waits for", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("it does not wait: %v", err)
		default:
		}
		return strings.HasPrefix(f.Awaited(), "waiting for fleet.unsaved, ")
	})
	h.start("")
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A command says how many nodes drop packets by it: none while the node is away or monitors, and all
// when it does.
func TestFleetChangeEnforced(t *testing.T) {
	t.Parallel() // it waits for reports
	h := newFleetHub(t)
	h.start("")
	text := "fleet: {enroll: " + h.enroll("edge-1") + "}\n"
	h.enroll("edge-2")
	block := func(entry string, enforcing int) {
		t.Helper()
		wait.For(t, entry+" is in effect as expected", func() bool {
			c, err := h.Change(t.Context(), api.Change{Action: api.Block, Entries: []string{entry}, Await: true})
			return err == nil && c.Published && c.Nodes == 2 && c.Enforcing == enforcing
		})
	}
	block("198.51.100.6", 0)
	d := startLists(t, lab.New(t), io.Discard, text+"monitor: true")
	becomesCurrent := func(why string) {
		t.Helper()
		wait.For(t, "edge-1 says "+why, func() bool {
			f, err := h.Fleet(t.Context())
			return err == nil && f.Nodes[0].State == api.NodeCurrent && f.Nodes[0].NotEnforcing == why
		})
	}
	becomesCurrent("monitor mode")
	block("198.51.100.7", 0)
	rewriteConfig(t, d, "monitor: true", "monitor: false")
	becomesCurrent("")
	c, err := h.Change(t.Context(), api.Change{Action: api.Block, Entries: []string{"198.51.100.8"}, Await: true})
	if err != nil || c.Enforcing != 1 || c.Nodes != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	if got := verdictOf(t, d, "198.51.100.8"); got != verdict.Drop { // at once: that is the claim
		t.Errorf("after the answer: %v", got)
	}
}

// rewriteConfig changes the configuration of a daemon, which reloads it.
func rewriteConfig(t *testing.T, d *Daemon, before, after string) {
	t.Helper()
	path := string(d.o.Config.(config.File))
	text := must.Read(t, path)
	write(t, path, strings.Replace(string(text), before, after, 1))
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A host joins a fleet by a reload, and filters by its lists at once. A reload that is to be confirmed does not do that, and
// none takes it away.
func TestFleetJoinedByReload(t *testing.T) {
	t.Parallel() // it waits for the hub
	h := newFleetHub(t)
	h.start("")
	h.block("198.51.100.7")
	r := configure(t, lab.New(t).B)
	r.c.StateDir = config.Path(t.TempDir())
	d := begin(t, r)
	fleet := config.Fleet{Enroll: config.Path(filepath.Join(t.TempDir(), "none.json"))}
	r.change(func(c *config.Config) { c.Fleet = fleet })
	if _, err := d.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "none.json") {
		t.Errorf("without the file: %v", err)
	}
	if s := d.readings.Status(); s.Fleet != nil {
		t.Errorf("a node after a reload that was refused: %+v", s.Fleet)
	}
	fleet.Enroll = config.Path(h.enroll("edge-1"))
	r.change(func(c *config.Config) { c.Fleet = fleet })
	if _, err := d.ReloadUnconfirmed(t.Context(), time.Minute); err == nil || !strings.Contains(err.Error(), "without --confirm") {
		t.Errorf("a reload that is to be confirmed: %v", err)
	}
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	becomes(t, d.Daemon, "198.51.100.7", verdict.Drop)
	h.block("198.51.100.8")
	becomes(t, d.Daemon, "198.51.100.8", verdict.Drop)
	if s := d.readings.Status(); s.Fleet == nil || s.Fleet.Node != "edge-1" {
		t.Errorf("%+v", s.Fleet)
	}
	r.change(func(c *config.Config) { c.Fleet = config.Fleet{} })
	if _, err := d.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "restart only") {
		t.Errorf("leaving the fleet: %v", err)
	}
	becomes(t, d.Daemon, "198.51.100.8", verdict.Drop)
}
