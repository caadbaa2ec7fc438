package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/fleet/broker"
	fleetnode "weir/control/fleet/node"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// balancer forwards connections.
type balancer struct {
	address string
	mu      sync.Mutex
	dead    chan struct{} // closed: connections made until then lead nowhere, and stay
}

func newBalancer(t *testing.T, to string) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{address: l.Addr().String(), dead: make(chan struct{})}
	t.Cleanup(func() { l.Close() })
	forward := func(to, from net.Conn, dead chan struct{}) {
		b := make([]byte, 1<<16)
		for {
			n, err := from.Read(b)
			select {
			case <-dead:
				continue
			default:
			}
			if err == nil {
				_, err = to.Write(b[:n])
			}
			if err != nil {
				to.Close()
				from.Close()
				return
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			b.mu.Lock()
			dead := b.dead
			b.mu.Unlock()
			go forward(c, server, dead)
			go forward(server, c, dead)
		}
	}()
	return b
}

// leaveDead has the connections so far lead nowhere.
func (b *balancer) leaveDead() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.dead)
	b.dead = make(chan struct{})
}

// record is a log.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *record) log() *slog.Logger { return slog.New(slog.NewTextHandler(r, nil)) }

func (r *record) has(text string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !strings.Contains(r.text.String(), text) {
		return fmt.Errorf("the log does not say %q:\n%s", text, r.text.String())
	}
	return nil
}

// A node and the server of a site leave a connection that is up and leads nowhere.
func TestDeadConnection(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.sites = lab.FreeAddress(t)
	f.start("")
	toHub, toSites := newBalancer(t, f.listen), newBalancer(t, f.sites)

	listen := lab.FreeAddress(t)
	e, err := f.authority.EnrollSite("paris", []string{"tls://" + listen}, []string{"tls://" + toSites.address})
	if err != nil {
		t.Fatal(err)
	}
	var ofSite, ofNode record
	site, err := broker.StartSite(broker.SiteOptions{Enrollment: e, Dir: t.TempDir(), Listen: listen, Log: ofSite.log()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := site.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait(); site.Close() })
	var all []*fleetnode.Node
	for name, at := range map[string]string{"edge-1": toHub.address, "edge-2": listen} {
		n, err := f.authority.Enroll(name, nil, []string{"tls://" + at})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, follow(t, fleetnode.Config{Enrollment: n, Log: ofNode.log()}))
	}
	block := func(entry string) {
		t.Helper()
		if c, err := f.hub.Change(t.Context(), block(entry)); err != nil || !c.Published {
			t.Fatalf("%+v, %v", c, err)
		}
		for _, n := range all {
			wait.Until(t, func() error {
				if err := hasAll(listOf(n, config.FleetBlock), []string{entry}); err != nil {
					return fmt.Errorf("%s: %w", n.Name(), err)
				}
				return nil
			})
		}
	}
	block("192.0.2.1")
	began := time.Now()
	toHub.leaveDead()
	toSites.leaveDead()
	block("192.0.2.2")
	t.Logf("heard again after %v", time.Since(began).Round(time.Millisecond))
	for _, r := range []*record{&ofNode, &ofSite} {
		if err := r.has("is not heard over this connection, connecting anew"); err != nil {
			t.Error(err)
		}
	}
}

// centre is the variable with the network namespace of the hub and its nodes.
const centre = "WEIR_TEST_CENTRE"

// TestPartition cuts each server of a cluster off from the two others, while hub and nodes reach all
// three. Publishing goes on, and what was acknowledged reaches all nodes.
func TestPartition(t *testing.T) {
	long.Only(t, "takes minutes")
	name := os.Getenv(centre)
	if name == "" {
		within := exec.Command("ip", "netns", "exec", lab.NewHost(t, "hub").Netns, os.Args[0], "-test.run=^TestPartition$", "-test.v="+fmt.Sprint(testing.Verbose()))
		within.Env = append(os.Environ(), centre+"="+within.Args[3])
		within.Stdout, within.Stderr = os.Stdout, os.Stderr
		if err := within.Run(); err != nil {
			t.Fatal(err)
		}
		return
	}
	f := newFleet(t)
	middle := lab.Host{Netns: name}
	var hosts []string
	var at []lab.Host
	var prefix [][]string
	for i := range byte(3) {
		h := lab.NewHost(t, fmt.Sprintf("broker-%d", i+1))
		hub, server := lab.Join(t, i+1, 1500, middle, fmt.Sprintf("to%d", i+1), h, "eth0")
		for j := range byte(3) {
			if j != i {
				server.Route(t, fmt.Sprintf("10.0.%d.0/24", j+1), hub.IPv4)
			}
		}
		at, hosts, prefix = append(at, h), append(hosts, server.IPv4.String()), append(prefix, []string{"ip", "netns", "exec", h.Netns})
	}
	urls, _ := f.cluster(hosts, prefix...)
	f.external(urls)
	var all []*fleetnode.Node
	for i := range 6 {
		servers := slices.Concat(urls[i%3:], urls[:i%3])
		n, err := f.authority.Enroll(fmt.Sprintf("edge-%d", i), nil, servers)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, follow(t, fleetnode.Config{Enrollment: n, Directory: t.TempDir()}))
	}
	current := func() error {
		s, err := f.hub.Fleet(t.Context())
		if err != nil {
			return err
		}
		for _, n := range s.Nodes {
			if n.State != api.NodeCurrent {
				return fmt.Errorf("%s is %s: %q", n.Name, n.State, s.Problems)
			}
		}
		return nil
	}
	whole := func() error { // with all replicas
		s, err := f.hub.Fleet(t.Context())
		if i := slices.IndexFunc(s.Problems, func(p string) bool { return strings.Contains(p, "replica") }); i >= 0 {
			err = errors.New(s.Problems[i])
		}
		return err
	}
	wait.Until(t, whole)
	wait.Until(t, current)
	run := func(h lab.Host, words ...string) {
		t.Helper()
		c := exec.Command("ip", append([]string{"-n", h.Netns}, words...)...)
		if text, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	var acknowledged []string
	var published atomic.Int64
	var longest time.Duration // without publication, while commands goes on
	total := 0
	commands := func(during func()) {
		longest = 0
		var all sync.WaitGroup
		defer all.Wait()
		done := make(chan struct{})
		defer close(done)
		all.Go(func() {
			for last, ended := time.Now(), false; !ended; total++ {
				entry := fmt.Sprintf("10.1.%d.%d", total>>8, total&255)
				c, err := f.hub.Change(t.Context(), block(entry))
				if err != nil {
					t.Error(err)
					return
				}
				acknowledged = append(acknowledged, entry)
				longest = max(longest, time.Since(last))
				if c.Published {
					last = time.Now()
					published.Add(1)
				}
				select {
				case <-done:
					ended = true
				case <-time.After(100 * time.Millisecond):
				}
			}
		})
		during()
	}
	more := func() {
		t.Helper()
		before := published.Load()
		wait.Until(t, func() error {
			if n := published.Load(); n < before+5 {
				return fmt.Errorf("%d commands were published, %d before", n, before)
			}
			return nil
		})
	}
	const most = 15 * time.Second
	for round := range long.Rounds(1, 2, 20) {
		i := 2 - round%3 // first one that the hub is not connected to
		commands(func() {
			for j := range 3 {
				if j != i {
					run(at[i], "route", "replace", "blackhole", fmt.Sprintf("10.0.%d.0/24", j+1))
				}
			}
			for began := time.Now(); time.Since(began) < 2*most; {
				more()
			}
		})
		cut := longest
		wait.Until(t, current) // while the server is still cut off
		commands(func() {
			for j := range 3 {
				if j != i {
					run(at[i], "route", "replace", fmt.Sprintf("10.0.%d.0/24", j+1), "via", fmt.Sprintf("10.0.%d.1", i+1))
				}
			}
			wait.Until(t, whole)
			more()
		})
		wait.Until(t, current)
		t.Logf("server %d: at most %v without publication while it is cut off, %v while it comes back", i+1, cut.Round(time.Millisecond), longest.Round(time.Millisecond))
		if max(cut, longest) > most {
			t.Errorf("more than %v", most)
		}
	}
	for _, n := range all {
		wait.Until(t, func() error { return hasAll(listOf(n, config.FleetBlock), acknowledged) })
	}
}
