package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
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
	"weir/filter/verdict"
	"weir/tests/lab"
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
	log := slog.New(slog.DiscardHandler)
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
	for deadline := time.Now().Add(2 * time.Minute); verdictOf(t, d, from) != want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("packets from %s: want %v; lists %+v, status %+v", from, want, d.Lists(), d.Status().Fleet)
		}
	}
}

func listNamed(d *Daemon, name string) *api.List {
	for _, l := range d.Lists() {
		if l.Name == name {
			return &l
		}
	}
	return nil
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
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) { // stale where the machine is slow
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
	if e, err := d.Explain(t.Context(), "192.0.2.1"); err != nil || e.Answers[0].List != "fleet.drop" || e.Answers[0].Entries()[0].Source != "fleet: "+feed || e.Answers[0].Entries()[0].Line != 1 {
		t.Errorf("%+v, %v", e, err)
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
		s, m := d.Status().Fleet, d.Metrics().Fleet
		return s != nil && s.Stale && m != nil && m.Stale && !m.Connected
	}
	for deadline := time.Now().Add(30 * time.Second); !stale(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("a dead hub: %+v, metrics %+v", d.Status().Fleet, d.Metrics().Fleet)
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
	if l := listNamed(d, "fleet.drop"); l == nil || l.Feeds[0].Outcome != api.Failed || !strings.Contains(l.Feeds[0].Error, "stale") {
		t.Errorf("%+v", l)
	}
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
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if l := listNamed(d, "fleet.block"); l != nil && is(l) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%+v", d.Lists())
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
