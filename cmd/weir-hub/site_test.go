package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/config"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// asCommand is the variable that makes the test a weir-hub.
const asCommand = "WEIR_TEST_AS_HUB"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(execute(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// weirHub returns a command line of weir-hub.
func weirHub(args ...string) *exec.Cmd {
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), asCommand+"=1")
	if testing.Verbose() {
		c.Stderr = os.Stderr
	}
	return c
}

// started starts a process until the test ends, and returns how to kill it.
func started(t *testing.T, args ...string) (kill func()) {
	t.Helper()
	c := weirHub(args...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() { _ = c.Process.Kill(); _ = c.Wait() })
	t.Cleanup(kill)
	return kill
}

// fleet is a hub, with a configuration in a directory.
type fleet struct {
	t      *testing.T
	dir    string
	client *client.Client
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir()}
	f.client = client.Dial(f.path("hub.sock"))
	hub, sites := lab.FreePort(t), lab.FreePort(t)
	text := fmt.Sprintf(`keys: %[1]s/keys
state_dir: %[1]s/hub
servers: ["tls://127.0.0.1:%[2]d"]
sites: ["tls://127.0.0.1:%[3]d"]
broker: {listen: "127.0.0.1:%[2]d", listen_sites: "127.0.0.1:%[3]d"}
heartbeat: 1s
api: {socket: %[1]s/hub.sock}
`, f.dir, hub, sites)
	if err := os.WriteFile(f.path("hub.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f.run("init", f.path("keys"))
	return f
}

func (f *fleet) path(name string) string { return filepath.Join(f.dir, name) }

// run runs a command of weir-hub, and returns what it prints.
func (f *fleet) run(args ...string) []byte {
	f.t.Helper()
	if args[0] != "init" && args[0] != "relay" {
		args = append(args, "--config", f.path("hub.yaml"))
	}
	var out, log bytes.Buffer
	c := weirHub(args...)
	c.Stdout, c.Stderr = &out, &log
	if err := c.Run(); err != nil {
		f.t.Fatalf("weir-hub %s: %v\n%s", strings.Join(args, " "), err, log.Bytes())
	}
	return out.Bytes()
}

func (f *fleet) hub() (kill func()) {
	f.t.Helper()
	kill = started(f.t, "run", "--config", f.path("hub.yaml"))
	wait.Until(f.t, func() error {
		s, err := f.client.Fleet(f.t.Context())
		if err == nil && s.Catalog == nil {
			err = fmt.Errorf("nothing published yet: %q", s.Problems)
		}
		return err
	})
	return kill
}

func (f *fleet) block(entries ...string) {
	f.t.Helper()
	if c := f.change(entries...); !c.Published {
		f.t.Fatalf("not published: %+v", c)
	}
}

// change has the hub block entries, which nodes have once it publishes them.
func (f *fleet) change(entries ...string) *api.FleetChanged {
	f.t.Helper()
	c, err := f.client.ChangeFleet(f.t.Context(), api.Change{Action: api.Block, Entries: entries})
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// node enrolls a node, and has it follow the fleet with nothing of its own.
func (f *fleet) node(name string, more ...string) *node.Node {
	f.t.Helper()
	e, err := enrollment.Parse(f.run(append([]string{"enroll", name}, more...)...))
	if err != nil {
		f.t.Fatal(err)
	}
	n, err := node.Open(node.Config{Enrollment: e, Directory: f.t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = n.Run(ctx, sink{n}) })
	f.t.Cleanup(func() { stop(); running.Wait() })
	return n
}

// sink is the daemon of a node that filters nothing: what it is given is active.
type sink struct{ node *node.Node }

func (s sink) TakeLists(ctx context.Context) error {
	for _, l := range s.node.Lists() {
		_ = s.TakeContents(ctx, l)
	}
	return nil
}
func (sink) TakeContents(_ context.Context, l *node.List) error            { return l.Keep(l.Version()) }
func (sink) DescribeNode(s *wire.Status)                                   { s.Interfaces, s.Filtered = 1, 1 }
func (sink) Rehearse(context.Context, string, *node.Candidate) error       { return nil }
func (sink) Rehearsed(string) wire.Rehearsal                               { return wire.Rehearsal{} }
func (sink) Conversed(string) *wire.Conversed                              { return nil }
func (sink) TakePatterns(context.Context, []wire.Pattern, time.Time) error { return nil }

func (sink) Measure(context.Context, string, *node.Candidate, *list.Set) *wire.Conversed {
	return nil
}
func (sink) Answer(context.Context, string, []byte) (any, error) {
	return nil, errors.New("not asked here")
}

// have waits until nodes have exactly some entries to block.
func (f *fleet) have(entries []string, nodes ...*node.Node) {
	f.t.Helper()
	wait.Until(f.t, func() error { return have(entries, len(entries), nodes) })
}

// agree waits until nodes have as many entries to block as the hub, these among them, and returns all.
func (f *fleet) agree(entries []string, nodes ...*node.Node) (all []string) {
	f.t.Helper()
	wait.Until(f.t, func() error {
		s, err := f.client.Fleet(f.t.Context())
		if err != nil {
			return err
		}
		for _, l := range s.Lists {
			if l.Name == config.FleetBlock {
				return have(entries, l.Entries, nodes)
			}
		}
		return errors.New("the hub does not have the list")
	})
	for k := range blocked(nodes[0]).All() {
		all = append(all, k.String())
	}
	return all
}

// have returns why a node does not have some entries to block, and a number of all.
func have(entries []string, number int, nodes []*node.Node) error {
	for _, n := range nodes {
		has := blocked(n)
		for _, text := range entries {
			e, err := listfile.ParseEntry(text)
			if err != nil {
				return err
			}
			for k := range e.Set().All() {
				if !has.Has(k) {
					return fmt.Errorf("node %s does not have %s", n.Name(), text)
				}
			}
		}
		if has.Len() != number {
			return fmt.Errorf("node %s has %d entries, want %d", n.Name(), has.Len(), number)
		}
	}
	return nil
}

// blocked returns the entries that a node blocks.
func blocked(n *node.Node) *list.Set {
	for _, l := range n.Lists() {
		if l.Name() == config.FleetBlock {
			return l.Contents()
		}
	}
	return list.Union()
}

// TestSite has nodes of a site follow the hub through the site's server, and go on and
// start without the hub.
func TestSite(t *testing.T) {
	f := newFleet(t)
	listen := lab.FreeAddress(t)
	if err := os.WriteFile(f.path("site.json"), f.run("site", "paris", "--server", "tls://"+listen), 0o600); err != nil {
		t.Fatal(err)
	}
	kill := f.hub()
	relay := func() (kill func()) {
		t.Helper()
		return started(t, "relay", f.path("site.json"), "--listen", listen, "--state-dir", f.path("relay"))
	}
	entries := []string{"192.0.2.1"}
	f.block(entries...)
	cut := relay()
	a := f.node("a", "--site", "paris")
	direct := f.node("direct")
	f.have(entries, a, direct)
	entries = append(entries, "192.0.2.2")
	began := time.Now()
	f.block("192.0.2.2")
	f.have(entries, a, direct)
	t.Logf("live: %v", time.Since(began))
	wait.Until(t, func() error { // reports arrive through the site
		s, err := f.client.Fleet(t.Context())
		if err != nil {
			return err
		}
		for _, n := range s.Nodes {
			if n.State != api.NodeCurrent {
				return fmt.Errorf("node %s is %s", n.Name, n.State)
			}
		}
		return nil
	})

	// Without the hub: a node that starts, and another after the site's server has
	// started anew.
	kill()
	b := f.node("b", "--site", "paris")
	f.have(entries, a, b)
	cut()
	cut = relay()
	c := f.node("c", "--site", "paris")
	f.have(entries, a, b, c)

	if !long.Enabled {
		return // the server takes up to a minute to follow again
	}

	// The hub is back.
	kill = f.hub()
	began = time.Now()
	entries = append(entries, "192.0.2.3")
	f.block("192.0.2.3")
	f.have(entries, a, b, c, direct)
	t.Logf("after the hub came back: %v", time.Since(began))

	// What was changed while the site was cut off.
	cut()
	for i := range 20 {
		entries = append(entries, fmt.Sprintf("198.51.100.%d", i))
		f.block(entries[len(entries)-1])
	}
	cut = relay()
	began = time.Now()
	f.have(entries, a, b, c, direct)
	t.Logf("after the site came back: %v", time.Since(began))

	// A node that is revoked is cut off at the site.
	f.run("revoke", "b")
	wait.Until(t, func() error {
		if b.Age().Connected {
			return fmt.Errorf("a revoked node is connected")
		}
		return nil
	})
	if !a.Age().Connected {
		t.Error("another node is not connected")
	}
	if n := a.Refused() + b.Refused() + c.Refused(); n > 0 {
		t.Errorf("%d messages were refused", n)
	}

	// The hub begins another stream.
	kill()
	if err := os.RemoveAll(f.path("hub/broker")); err != nil {
		t.Fatal(err)
	}
	kill = f.hub()
	began = time.Now()
	entries = append(entries, "192.0.2.4")
	f.block("192.0.2.4")
	f.have(entries, a, c, direct) // which may be live
	wait.Until(t, func() error {
		d := f.node(fmt.Sprintf("d%d", time.Now().UnixNano()), "--site", "paris")
		defer f.run("revoke", d.Name())
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			for _, l := range d.Lists() {
				if l.Name() == config.FleetBlock && l.Contents().Len() == len(entries) {
					return nil
				}
			}
		}
		return fmt.Errorf("a cold node of the site does not have what is new")
	})
	t.Logf("after the stream was lost: %v", time.Since(began))

	// The site is revoked.
	f.run("revoke", "--site", "paris")
	time.Sleep(3 * time.Second)
	f.block("192.0.2.99")
	f.have(append(slices.Clip(entries), "192.0.2.99"), direct)
	time.Sleep(time.Second)
	f.have(entries, a, c)
	cut()
	kill()
}

// A hub that goes on from an older copy brings nodes of a site to its contents, too: where the
// site's server is there and where it comes later, and where the hub is upgraded first and the
// site's server later, or with the former file.
func TestSiteRestored(t *testing.T) {
	long.Only(t, "the server takes up to a minute to follow again")
	t.Parallel() // it waits a lot
	f := newFleet(t)
	listen := lab.FreeAddress(t)
	if err := os.WriteFile(f.path("site.json"), f.run("site", "paris", "--server", "tls://"+listen), 0o600); err != nil {
		t.Fatal(err)
	}
	relay := func() (kill func()) {
		t.Helper()
		return started(t, "relay", f.path("site.json"), "--listen", listen, "--state-dir", f.path("relay"))
	}
	kill, cut := f.hub(), relay()
	a, direct := f.node("a", "--site", "paris"), f.node("direct")
	kept := []string{"192.0.2.1", "192.0.2.2"}
	f.block(kept...)
	f.have(kept, a, direct)
	kill()
	if err := os.CopyFS(f.path("backup"), os.DirFS(f.path("hub"))); err != nil {
		t.Fatal(err)
	}
	kill = f.hub()
	entries := slices.Clip(kept)
	for i, machine := range []bool{true, false, true} {
		for k := range 5 {
			entries = append(entries, fmt.Sprintf("198.51.100.%d", 10*i+k))
		}
		f.block(entries[len(entries)-5:]...)
		f.have(entries, a, direct)
		kill()
		if i == 2 { // the server comes later
			cut()
		}
		if err := errors.Join(os.RemoveAll(f.path("hub")), os.CopyFS(f.path("hub"), os.DirFS(f.path("backup")))); err != nil {
			t.Fatal(err)
		}
		if !machine {
			if err := os.RemoveAll(f.path("hub/broker")); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		kill = f.hub()
		added := fmt.Sprintf("203.0.113.%d", i)
		f.change(added) // which the hub publishes once it has asked nodes for what it has lost
		f.agree(append(slices.Clip(kept), added), direct)
		took := time.Since(began)
		if i == 2 {
			cut = relay()
		}
		entries = f.agree(append(slices.Clip(kept), added), direct, a)
		t.Logf("machine %v: %v after the hub's start, at the site after %v", machine, took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	}
	wait.Until(t, func() error {
		s, err := f.client.Fleet(t.Context())
		if err != nil {
			return err
		}
		for _, n := range s.Nodes {
			if n.State != api.NodeCurrent {
				return fmt.Errorf("node %s is %s", n.Name, n.State)
			}
		}
		return nil
	})
	cut()
	kill()
}

// SIGHUP has the server of a site take another file, as of a site that was enrolled anew, or
// go on with the former one.
func TestRelayHangUp(t *testing.T) {
	f := newFleet(t)
	listen := lab.FreeAddress(t)
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(f.path("site.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	site := func(name string) []byte { return f.run("site", name, "--server", "tls://"+listen) }
	first := site("paris")
	write(first)
	f.hub()
	relay := weirHub("relay", f.path("site.json"), "--listen", listen, "--state-dir", f.path("relay"))
	relay.Stderr = nil // which it has where tests are verbose
	log, err := relay.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = relay.Process.Kill(); _ = relay.Wait() })
	said := make(chan string, 1000)
	go func() {
		for lines := bufio.NewScanner(log); lines.Scan(); {
			said <- lines.Text()
		}
		close(said)
	}()
	says := func(want string) {
		t.Helper()
		for end := time.After(2 * time.Minute); ; {
			select {
			case line, ok := <-said:
				if !ok {
					t.Fatalf("the server has ended, want %q", want)
				}
				if strings.Contains(line, want) {
					return
				}
			case <-end:
				t.Fatalf("the server does not say %q", want)
			}
		}
	}
	hangUp := func() {
		t.Helper()
		if err := relay.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	says("listening for nodes")
	a := f.node("a", "--site", "paris")
	var entries []string
	block := func() {
		t.Helper()
		entries = append(entries, fmt.Sprintf("192.0.2.%d", len(entries)))
		f.block(entries[len(entries)-1])
		f.have(entries, a)
	}
	block()
	hangUp()
	says("it is the same")
	block()
	// Files that cannot be used: the text says so, or the server that starts with it.
	for i, bad := range [][]byte{[]byte("{}"), site("rome"), bytes.Replace(first, []byte(`"operator": "`), []byte(`"operator": "x`), 1)} {
		write(bad)
		hangUp()
		says("the former one stays")
		if i == 2 {
			says("listening for nodes")
		}
		block()
	}
	// The site is enrolled anew, which revokes the former file.
	write(site("paris"))
	hangUp()
	says("is another one")
	says("listening for nodes")
	block()
}
