package hub

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/control/api"
	"weir/control/config"
	"weir/control/fleet/authority"
	fleetnode "weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/snapshot"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// serverConfig is the variable with the configuration of a nats-server that is a
// process of its own.
const serverConfig = "WEIR_TEST_NATS_SERVER"

// TestServerProcess is no test: it is a nats-server that other tests kill.
func TestServerProcess(t *testing.T) {
	file := os.Getenv(serverConfig)
	if file == "" {
		t.Skip("run by other tests")
	}
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	o.NoSigs = true
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.ConfigureLogger()
	s.Start()
	s.WaitForShutdown()
}

// process is a process that runs a test of this package.
type process struct {
	t       *testing.T
	test    string
	env     []string
	prefix  []string // of the command
	command *exec.Cmd
}

func (p *process) start() {
	p.t.Helper()
	words := append(slices.Clone(p.prefix), os.Args[0], "-test.run=^"+p.test+"$")
	p.command = exec.Command(words[0], words[1:]...)
	p.command.Env = append(os.Environ(), p.env...)
	if testing.Verbose() {
		p.command.Stderr = os.Stderr
	}
	if err := p.command.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(p.kill)
}

func (p *process) kill() {
	if p.command != nil {
		_ = p.command.Process.Kill()
		_ = p.command.Wait()
		p.command = nil
	}
}

// sink is the daemon of a node that filters nothing: what it is given is active.
type sink struct{ node *fleetnode.Node }

func (s sink) TakeLists(ctx context.Context) error {
	for _, l := range s.node.Lists() {
		_ = s.TakeContents(ctx, l)
	}
	return nil
}
func (sink) TakeContents(_ context.Context, l *fleetnode.List) error       { return l.Keep(l.Version()) }
func (sink) Rehearse(context.Context, string, *fleetnode.Candidate) error  { return nil }
func (sink) Rehearsed(string) wire.Rehearsal                               { return wire.Rehearsal{} }
func (sink) Conversed(string) *wire.Conversed                              { return nil }
func (sink) TakePatterns(context.Context, []wire.Pattern, time.Time) error { return nil }

func (sink) Measure(context.Context, string, *fleetnode.Candidate, *list.Set) *wire.Conversed {
	return nil
}
func (sink) DescribeNode(s *wire.Status) { s.Interfaces, s.Filtered = 1, 1 }
func (sink) Answer(context.Context, string, []byte) (any, error) {
	return nil, fmt.Errorf("nothing is known")
}

// follow runs nodes with the code of real ones, until the test ends.
func follow(t *testing.T, c fleetnode.Config) *fleetnode.Node {
	t.Helper()
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	n, err := fleetnode.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := n.Run(ctx, sink{n}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
	return n
}

// listOf returns what a node has of a list.
func listOf(n *fleetnode.Node, name string) *list.Set {
	for _, l := range n.Lists() {
		if l.Name() == name {
			return l.Contents()
		}
	}
	return list.Union()
}

// cluster starts nats-servers, configured as `weir hub cluster` does, in processes of their own. prefix is
// the command that starts them elsewhere, by host.
func (f *fleet) cluster(hosts []string, prefix ...[]string) (urls []string, servers map[string]*process) {
	t := f.t
	t.Helper()
	client, routes, leaves := lab.FreePort(t), lab.FreePort(t), lab.FreePort(t)
	servers = make(map[string]*process)
	for _, host := range hosts {
		urls = append(urls, fmt.Sprintf("tls://%s:%d", host, client))
	}
	for i, host := range hosts {
		made, err := authority.Cluster{
			Servers: urls, Routes: routes, Leaves: leaves, Files: filepath.Join(f.dir, "cluster", host), State: filepath.Join(f.dir, "state", host),
		}.Write(f.authority, filepath.Join(f.dir, "all", host))
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(made, func(dir string) bool { return filepath.Base(dir) == host })
		if err := os.CopyFS(filepath.Join(f.dir, "cluster", host), os.DirFS(made[at])); err != nil {
			t.Fatal(err)
		}
		servers[host] = &process{t: t, test: "TestServerProcess", env: []string{serverConfig + "=" + filepath.Join(f.dir, "cluster", host, "nats-server.conf")}}
		if prefix != nil {
			servers[host].prefix = prefix[i]
		}
		servers[host].start()
	}
	return urls, servers
}

// external runs a hub that publishes to a cluster.
func (f *fleet) external(urls []string) *External {
	t := f.t
	t.Helper()
	external, err := NewExternal(urls, f.authority, testLog())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(external.Close)
	text := fmt.Sprintf("servers: [%q, %q, %q]\nbroker: {servers: [%q, %q, %q], replicas: 3}\nkeys: %s/keys\nstate_dir: %s/hub\nheartbeat: 1s\n",
		urls[0], urls[1], urls[2], urls[0], urls[1], urls[2], f.dir, f.dir)
	c, err := config.ParseHub("hub.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	f.run(c, external)
	return external
}

// TestCluster publishes to three nats-servers, configured as `weir hub cluster` does,
// while commands change a list: the one that leads the stream is killed, and one loses
// its disk. No command that was acknowledged is lost, and all nodes have the same.
func TestCluster(t *testing.T) {
	long.Only(t, "takes a minute")
	f := newFleet(t)
	var hosts []string
	for i := range 3 {
		hosts = append(hosts, fmt.Sprintf("127.0.0.%d", i+1))
	}
	urls, servers := f.cluster(hosts)
	state := func(host string) string { return filepath.Join(f.dir, "state", host) }
	external := f.external(urls)
	var all []*fleetnode.Node
	for i := range 8 {
		n, err := f.authority.Enroll(fmt.Sprintf("edge-%d", i), nil, urls)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, follow(t, fleetnode.Config{Enrollment: n, Directory: t.TempDir()}))
	}
	wait.Until(t, func() error {
		s, err := f.hub.Fleet(t.Context())
		if err == nil && s.Catalog == nil {
			err = fmt.Errorf("nothing published yet: %q", s.Problems)
		}
		return err
	})

	token, seed, err := f.authority.OwnStream()
	if err != nil {
		t.Fatal(err)
	}
	own, err := nats.Connect(strings.Join(urls, ","), append(external.Options(), nats.UserJWTAndSeed(token, seed), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	js, err := jetstream.New(own)
	if err != nil {
		t.Fatal(err)
	}
	leader := func() (host string) {
		t.Helper()
		wait.Until(t, func() error {
			s, err := js.Stream(t.Context(), wire.Stream)
			if err != nil {
				return err
			}
			i, err := s.Info(t.Context())
			if err != nil {
				return err
			}
			if len(i.Cluster.Replicas) != 2 || i.Cluster.Leader == "" {
				return fmt.Errorf("%d replicas, leader %q", len(i.Cluster.Replicas), i.Cluster.Leader)
			}
			for _, r := range i.Cluster.Replicas {
				if !r.Current {
					return fmt.Errorf("%s is not up to date", r.Name)
				}
			}
			host = i.Cluster.Leader
			return nil
		})
		return host
	}
	leader()

	ctx, stop := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	var mu sync.Mutex
	var acknowledged []string
	for worker := range 4 {
		workers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				entry := fmt.Sprintf("10.%d.%d.%d", worker, i>>8, i&255)
				if _, err := f.hub.Change(ctx, block(entry)); err != nil {
					continue
				}
				mu.Lock()
				acknowledged = append(acknowledged, entry)
				mu.Unlock()
			}
		})
	}
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(acknowledged) }
	more := func() { // acknowledged meanwhile
		t.Helper()
		before := count()
		wait.Until(t, func() error {
			if n := count(); n < before+20 {
				return fmt.Errorf("%d commands acknowledged, %d before", n, before)
			}
			return nil
		})
	}
	for round := range 3 {
		more()
		first := leader()
		servers[first].kill() // in the midst of publishing
		more()
		servers[first].start()
		second := leader()
		for host := range servers {
			if host != second { // one that is to be brought up to date by the others
				servers[host].kill()
				if err := os.RemoveAll(state(host)); err != nil {
					t.Fatal(err)
				}
				more()
				servers[host].start()
				break
			}
		}
		t.Logf("round %d: %s and then %s led, %d commands acknowledged", round+1, first, leader(), count())
	}
	stop()
	workers.Wait()
	wait.Until(t, func() error {
		s, err := f.hub.Fleet(t.Context())
		if err != nil {
			return err
		}
		var want string
		if err := f.hub.Do(t.Context(), func() error {
			want = snapshot.Of(f.hub.lists.get(config.FleetBlock).history.Contents().Groups()).String()
			return nil
		}); err != nil {
			return err
		}
		for _, n := range s.Nodes {
			if n.State != api.NodeCurrent {
				return fmt.Errorf("%s is %s", n.Name, n.State)
			}
		}
		for _, n := range all {
			if got := snapshot.Of(listOf(n, config.FleetBlock).Groups()).String(); got != want {
				return fmt.Errorf("%s: checksum %s, want %s", n.Name(), got, want)
			}
		}
		return nil
	})
	for _, n := range all {
		if err := hasAll(listOf(n, config.FleetBlock), acknowledged); err != nil {
			t.Fatalf("%s: %v", n.Name(), err)
		}
	}
}

// hasAll fails unless a set has all entries.
func hasAll(s *list.Set, entries []string) error {
	var lost []string
	for _, text := range entries {
		e, err := listfile.ParseEntry(text)
		if err != nil {
			return err
		}
		for k := range e.Set().All() {
			if !s.Has(k) {
				lost = append(lost, text)
			}
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("%d of %d acknowledged commands are lost: %s…", len(lost), len(entries), strings.Join(lost[:min(5, len(lost))], ", "))
	}
	return nil
}
