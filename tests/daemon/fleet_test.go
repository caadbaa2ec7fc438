package daemon

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/config"
	"weir/control/fleet/wire"
	"weir/filter/key"
	"weir/tests/binary"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/seed"
	"weir/tests/timed"
	"weir/tests/wait"
)

// hubBinary builds weir-hub.
var hubBinary = sync.OnceValues(func() (string, error) {
	dir := filepath.Dir(releases[0].path)
	return filepath.Join(dir, "weir-hub"), binary.Build(dir, "weir-hub", "weir-hub")
})

// fleet is a hub and nodes, each in a network namespace, with a wire from the hub to
// each.
type fleet struct {
	t     *testing.T
	dir   string
	path  string // of weir-hub
	host  lab.Host
	api   *client.Client
	nodes []*fleetNode

	process *os.Process
	ended   chan struct{}
}

// fleetNode is a node of a fleet. It filters at the end B of a wire of its own.
type fleetNode struct {
	*host
	name string
	up   lab.End // the hub's end of the wire between them
	load *traffic
	d    *daemon
}

// hubAddress is the hub's in its namespace.
const hubAddress = "10.255.0.1"

// newFleet starts a hub whose list drop has a number of entries, and nodes which
// filter by it.
func newFleet(t *testing.T, nodes, entries int) *fleet {
	t.Helper()
	path, err := hubBinary()
	if err != nil {
		t.Fatal(err)
	}
	lab.Root(t)
	f := &fleet{t: t, dir: t.TempDir(), path: path, host: lab.NewHost(t, "hub")}
	f.api = client.DialHub(filepath.Join(f.dir, "hub.sock"))
	f.host.In(t, func() {
		var lo netlink.Link
		var addr *netlink.Addr
		if lo, err = netlink.LinkByName("lo"); err != nil {
			return
		}
		if addr, err = netlink.ParseAddr(hubAddress + "/32"); err == nil {
			err = netlink.AddrAdd(lo, addr)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	f.feed(addresses(feedBlock, 0, entries))
	f.hub("init", f.file("keys"))
	f.configure(hubAddress, hubAddress)
	f.start()
	for i := range nodes {
		f.nodes = append(f.nodes, f.node(i+1))
	}
	for _, n := range f.nodes {
		n.d = n.start(releases[0])
	}
	f.converge()
	return f
}

// configure writes a configuration for a hub at an address, where servers have several.
func (f *fleet) configure(address string, servers ...string) {
	f.t.Helper()
	f.write("hub.yaml", fmt.Sprintf(`servers: ["tls://%[6]s:4222"]
broker: {listen: "%[1]s:4222"}
keys: %[2]s
state_dir: %[3]s
heartbeat: 1s
max_age: 30s
api: {socket: %[4]s}
lists: {drop: {sources: [{file: %[5]s}], interval: 24h}}
`, address, f.file("keys"), f.file("hub"), f.file("hub.sock"), f.file("feed.txt"), strings.Join(servers, `:4222", "tls://`)))
}

func (f *fleet) file(name string) string { return filepath.Join(f.dir, name) }

func (f *fleet) write(name, text string) {
	f.t.Helper()
	path := f.file(name)
	must.Write(f.t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		f.t.Fatal(err)
	}
}

// feed writes what list drop is read from.
func (f *fleet) feed(all []netip.Addr) {
	f.t.Helper()
	f.write("feed.txt", strings.Join(lines(all), "\n")+"\n")
}

// hub runs a command of weir-hub to its end.
func (f *fleet) hub(args ...string) string {
	f.t.Helper()
	out, err := exec.Command(f.path, args...).Output()
	if err != nil {
		f.t.Fatalf("weir-hub %q: %v", args, err)
	}
	return string(out)
}

// node makes a node, and sends listed and other packets to it, as yet unfiltered.
func (f *fleet) node(i int) *fleetNode {
	f.t.Helper()
	n := &fleetNode{host: newHost(f.t), name: fmt.Sprintf("node-%d", i)}
	n.inside = true
	up, down := lab.Join(f.t, byte(i), 1500, f.host, n.name, lab.Host{Netns: n.B.Netns}, "hub")
	down.Route(f.t, hubAddress+"/32", up.IPv4)
	n.up = up
	n.write("fleet.json", []byte(f.hub("enroll", "--config", f.file("hub.yaml"), n.name)))
	n.configure(n.B.Iface, "fleet: {enroll: %s}\n", n.path("fleet.json"))
	n.load = startTraffic(f.t, n.Lab, froms(addresses(feedBlock, 0, 500)...), froms(addresses(cleanBlock, 0, 500)...))
	n.load.rate = 1000
	return n
}

// start starts the hub, and waits until it publishes.
func (f *fleet) start() {
	f.t.Helper()
	f.begin()
	f.until("the hub publishes", func(s *api.HubStatus) error {
		if s.Catalog == nil {
			return fmt.Errorf("nothing yet: %q", s.Problems)
		}
		return nil
	})
}

// begin starts the hub.
func (f *fleet) begin() {
	f.t.Helper()
	log, err := os.OpenFile(f.file("hub.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		f.t.Fatal(err)
	}
	defer log.Close()
	c := exec.Command(f.path, "run", "--config", f.file("hub.yaml"))
	c.Stderr = log
	if err := start(c, f.host.Netns); err != nil {
		f.t.Fatal(err)
	}
	ended := make(chan struct{})
	f.process, f.ended = c.Process, ended
	go func() { _ = c.Wait(); close(ended) }()
	f.t.Cleanup(func() {
		_ = c.Process.Kill() // which fails where it has ended
		<-ended
	})
}

// kill is kill -9 of the hub.
func (f *fleet) kill() {
	_ = f.process.Kill()
	<-f.ended
}

// until waits until the hub's status has no error.
func (f *fleet) until(what string, check func(*api.HubStatus) error) {
	f.t.Helper()
	var err error
	for deadline := wait.Deadline(); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(f.t.Context(), wait.Patience)
		var s *api.HubStatus
		if s, err = f.api.Fleet(ctx); err == nil {
			err = check(s)
		}
		cancel()
		if err == nil {
			return
		}
	}
	log, _ := os.ReadFile(f.file("hub.log"))
	f.t.Fatalf("waited in vain until %s: %v\nthe hub's log:\n%s", what, err, log[max(0, len(log)-4000):])
}

// converge waits until all nodes have the lists that the hub has, with the same
// checksums.
func (f *fleet) converge() (lists []api.FleetList) {
	f.t.Helper()
	f.until("all nodes have the hub's lists", func(s *api.HubStatus) error {
		lists = s.Lists
		sums := make(map[string]string)
		for _, n := range s.Nodes {
			if n.State != api.NodeCurrent {
				return fmt.Errorf("%s is %s: %+v", n.Name, n.State, n.Report)
			}
			for _, l := range s.Lists {
				i := slices.IndexFunc(n.Report.Lists, func(r wire.ListStatus) bool { return r.Name == l.Name })
				if i < 0 {
					return fmt.Errorf("%s has no list %s", n.Name, l.Name)
				}
				r := n.Report.Lists[i]
				if r.Active != l.Version || r.Entries != l.Entries || r.Error != "" {
					return fmt.Errorf("%s: list %s %+v, want %v with %d entries", n.Name, l.Name, r, l.Version, l.Entries)
				}
				if sum, known := sums[l.Name]; known && sum != r.Sum {
					return fmt.Errorf("list %s of version %v has two checksums: %s, and on %s %s", l.Name, l.Version, sum, n.Name, r.Sum)
				}
				sums[l.Name] = r.Sum
			}
		}
		if len(s.Nodes) != len(f.nodes) {
			return fmt.Errorf("%d nodes, want %d", len(s.Nodes), len(f.nodes))
		}
		return nil
	})
	return lists
}

// block blocks a source in a list, on all nodes.
func (f *fleet) change(ctx context.Context, list string, remove bool, src netip.Addr) (*api.FleetChanged, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return f.api.ChangeFleet(ctx, api.Change{Action: api.Block, List: list, Remove: remove, Entries: []string{src.String()}})
}

// enforced makes a change that lists a source, and returns after what time packets
// from there were dropped on all nodes.
func (f *fleet) enforced(src netip.Addr, change func()) time.Duration {
	f.t.Helper()
	var all sync.WaitGroup
	began := time.Now()
	took := make([]time.Duration, len(f.nodes))
	for i, n := range f.nodes {
		all.Go(func() {
			for n.load.passes(from(src))[0] {
				if took[i] = time.Since(began); took[i] > wait.Patience {
					f.t.Errorf("packets from %v still pass on %s", src, n.name)
					return
				}
			}
			took[i] = time.Since(began)
		})
	}
	change()
	all.Wait()
	return slices.Max(took)
}

// A change at the hub is enforced on all nodes within a second, with a million entries.
func TestFleetLatency(t *testing.T) {
	timed.Alone(t)
	f := newFleet(t, long.Or(2, 8), long.Or(20_000, 1_000_000))
	for _, n := range f.nodes {
		n.load.run()
	}
	var took []time.Duration
	for i := range long.Or(2, 10) {
		list := []string{"drop", config.FleetBlock}[i%2]
		src := address(commandBlock, i)
		took = append(took, f.enforced(src, func() {
			if c, err := f.change(t.Context(), list, false, src); err != nil || c.Added != 1 || !c.Published {
				t.Errorf("%+v, %v", c, err)
			}
		}))
	}
	entries := long.Or(20_000, 1_000_000)
	f.within("a command at the hub", took)
	f.converge()
	took = nil
	for i := range long.Or(2, 4) {
		// From when the file is there, which the hub notices at once, it is read to its end.
		f.write("next.txt", strings.Join(lines(addresses(feedBlock, 0, entries+i+1)), "\n")+"\n")
		took = append(took, f.enforced(address(feedBlock, entries+i), func() {
			if err := os.Rename(f.file("next.txt"), f.file("feed.txt")); err != nil {
				t.Error(err)
			}
		}))
		f.converge()
	}
	f.within("a line more in a feed", took)
	for _, n := range f.nodes {
		n.load.finish()
	}
}

// within fails where changes took more than a second at best: others may have used the
// machine at the rest.
func (f *fleet) within(what string, took []time.Duration) {
	f.t.Helper()
	slices.Sort(took)
	f.t.Logf("%d nodes, %d entries: %s is enforced on all nodes after %v, from %v to %v", len(f.nodes), f.converge()[0].Entries, what,
		took[len(took)/2].Round(time.Millisecond), took[0].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	if took[0] > time.Second {
		f.t.Errorf("%s takes %v, want at most a second", what, took[0])
	}
}

// acknowledged is a command that the hub has acknowledged.
type acknowledged struct {
	src   netip.Addr
	list  string
	place wire.Place
}

// operator changes lists at the hub all the time.
type operator struct {
	f  *fleet
	mu sync.Mutex

	blocked   []acknowledged
	unblocked []netip.Addr
	failed    int
}

// temporary is the block of addresses that are listed and taken off again.
const temporary = 50

func (o *operator) run(ctx context.Context) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := 0; ctx.Err() == nil; i++ {
		time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond)
		list := []string{"drop", config.FleetBlock}[random.IntN(2)]
		src := address(commandBlock, i)
		if i%4 == 0 {
			src = address(temporary, i)
		}
		c, err := o.f.change(ctx, list, false, src)
		var gone error
		if err == nil && i%4 == 0 {
			if _, gone = o.f.change(ctx, list, true, src); gone != nil {
				continue // it may be listed, or not
			}
		}
		o.mu.Lock()
		switch {
		case err != nil:
			o.failed++ // it may be listed, or not
		case i%4 == 0:
			o.unblocked = append(o.unblocked, src)
		default:
			o.blocked = append(o.blocked, acknowledged{src, list, c.Version})
		}
		o.mu.Unlock()
	}
}

// acknowledged returns the number of entries that the hub has acknowledged.
func (o *operator) acknowledged() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.blocked)
}

// follow lists for each node's traffic what the node has acknowledged: no such packet
// may pass from then on.
func (o *operator) follow(ctx context.Context) {
	done := make(map[string]int) // by node and list, of blocked
	for ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
		short, cancel := context.WithTimeout(ctx, 10*time.Second)
		s, err := o.f.api.Fleet(short)
		cancel()
		if err != nil {
			continue
		}
		o.mu.Lock()
		blocked := o.blocked
		o.mu.Unlock()
		for _, n := range s.Nodes {
			if n.Report == nil {
				continue
			}
			at := slices.IndexFunc(o.f.nodes, func(f *fleetNode) bool { return f.name == n.Name })
			for _, l := range n.Report.Lists {
				var more []key.Tuple
				from := n.Name + " " + l.Name
				for ; done[from] < len(blocked); done[from]++ {
					b := blocked[done[from]]
					if b.list == l.Name && l.Active.Before(b.place) {
						break
					}
					if b.list == l.Name {
						more = append(more, froms(b.src)...)
					}
				}
				if len(more) > 0 {
					o.f.nodes[at].load.list(more...)
				}
			}
		}
	}
}

// The hub and nodes are killed, cut off and stopped, again and again, while commands
// change the lists: a version that a node has acknowledged filters there from then on,
// no acknowledged command is lost, and in the end all have the same lists.
func TestFleetFaults(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	f := newFleet(t, long.Or(2, 4), long.Or(5_000, 200_000))
	epoch := f.converge()[0].Version.Epoch
	random := seed.New(t)
	upTo := func(d time.Duration) time.Duration { return time.Duration(random.Float64() * float64(d)) }
	for _, n := range f.nodes {
		n.load.run()
	}
	o := &operator{f: f}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { o.run(ctx) })
	following, unfollow := context.WithCancel(t.Context())
	defer unfollow()
	running.Go(func() { o.follow(following) })

	var healing sync.WaitGroup
	cut := make(map[*fleetNode]*sync.Mutex)
	for _, n := range f.nodes {
		cut[n] = &sync.Mutex{}
	}
	any := func() *fleetNode { return f.nodes[random.IntN(len(f.nodes))] }
	faults := []struct {
		what  string
		times int
		do    func()
	}{
		{"kill the hub", long.Rounds(2, 4, 16), func() {
			f.kill()
			time.Sleep(upTo(500 * time.Millisecond))
			if random.IntN(3) == 0 {
				f.begin() // and perhaps the next kill comes while it starts
			} else {
				f.start()
			}
		}},
		{"kill a node", long.Rounds(2, 4, 16), func() {
			n := any()
			n.d.kill()
			time.Sleep(upTo(500 * time.Millisecond))
			n.d = n.begin(releases[0])
			if random.IntN(3) > 0 {
				n.d.ready()
			}
		}},
		{"cut a node off", long.Rounds(2, 3, 10), func() {
			n, for_ := any(), upTo(3*time.Second)
			if !cut[n].TryLock() {
				return
			}
			n.set(netlink.LinkSetDown)
			healing.Go(func() {
				defer cut[n].Unlock()
				time.Sleep(for_)
				n.set(netlink.LinkSetUp)
			})
		}},
		{"stop the hub for a while", long.Rounds(1, 2, 6), func() {
			_ = f.process.Signal(syscall.SIGSTOP)
			time.Sleep(upTo(2 * time.Second))
			_ = f.process.Signal(syscall.SIGCONT)
		}},
		{"stop a node for a while", long.Rounds(1, 2, 6), func() {
			n := any()
			_ = n.d.process.Signal(syscall.SIGSTOP)
			time.Sleep(upTo(2 * time.Second))
			_ = n.d.process.Signal(syscall.SIGCONT)
		}},
	}
	var order []int
	for i, fault := range faults {
		order = append(order, slices.Repeat([]int{i}, fault.times)...)
	}
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	began := time.Now()
	for _, i := range order {
		time.Sleep(upTo(time.Second))
		if testing.Verbose() {
			t.Logf("%.1fs: %s", time.Since(began).Seconds(), faults[i].what)
		}
		faults[i].do()
	}
	healing.Wait()
	for _, n := range f.nodes {
		n.d.ready()
	}
	f.until("the hub is back", func(*api.HubStatus) error { return nil })
	const enough = 50 // for the test to say anything
	for deadline := wait.Deadline(); o.acknowledged() < enough && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(500 * time.Millisecond) // in which commands succeed again
	stop()
	lists := f.converge()
	time.Sleep(100 * time.Millisecond) // follow sees that
	unfollow()
	running.Wait()

	for _, l := range lists {
		if l.Version.Epoch != epoch {
			t.Errorf("list %s: version %v: the hub has begun an epoch, as if its history were lost", l.Name, l.Version)
		}
	}
	var blocked []netip.Addr
	for _, b := range o.blocked {
		blocked = append(blocked, b.src)
	}
	for _, n := range f.nodes {
		n.load.expect(n.name+": an acknowledged entry", false, froms(blocked...)...)
		n.load.expect(n.name+": an entry that was removed", true, froms(o.unblocked...)...)
		s, err := n.api.Status(t.Context())
		if err != nil || s.Fleet == nil || s.Fleet.Stale || s.Fleet.Refused > 0 {
			t.Errorf("%s: %+v, %v", n.name, s.Fleet, err)
		}
		n.load.await(uint64(2 * len(blocked)))
		n.load.finish()
	}
	t.Logf("%d faults in %v: %d commands acknowledged, %d removals, %d failed; versions %v and %v", len(order), time.Since(began).Round(time.Second),
		len(blocked), len(o.unblocked), o.failed, lists[0].Version, lists[1].Version)
	if len(blocked) < enough {
		t.Errorf("fewer than %d commands were acknowledged", enough)
	}
}

// set changes the state of the hub's end of the wire to a node.
func (n *fleetNode) set(state func(netlink.Link) error) {
	var err error
	n.up.In(n.t, func() {
		var link netlink.Link
		if link, err = netlink.LinkByName(n.up.Iface); err == nil {
			err = state(link)
		}
	})
	if err != nil {
		n.t.Errorf("%s: %v", n.up.Iface, err)
	}
}

// A node loses its state directory while the kernel filters on: with the hub there and away
// nothing listed passes, and the status says what the node waits for.
func TestFleetStateLost(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	f := newFleet(t, 1, long.Or(5_000, 1_000_000))
	n := f.nodes[0]
	src := address(commandBlock, 1)
	if _, err := f.change(t.Context(), config.FleetBlock, false, src); err != nil {
		t.Fatal(err)
	}
	f.converge()
	n.load.list(froms(src)...)
	n.load.run()
	lose := func() {
		t.Helper()
		n.d.kill()
		if err := os.RemoveAll(n.path("state")); err != nil {
			t.Fatal(err)
		}
	}
	lose()
	n.d = n.begin(releases[0])
	n.d.ready()
	f.converge()

	f.kill()
	lose()
	n.d = n.begin(releases[0])
	n.d.await(0, "the lists of the fleet that filter already are not saved")
	own := address(commandBlock, 2)
	if c, err := n.change("manual", false, own.String()); err != nil || !c.Queued {
		t.Errorf("a change meanwhile: %+v, %v", c, err)
	}
	time.Sleep(time.Second)
	_, err := n.api.Status(t.Context())
	if err == nil || !strings.Contains(err.Error(), "waiting for fleet.block, fleet.drop") || !strings.Contains(err.Error(), "stale") {
		t.Errorf("the status: %v", err)
	}
	f.start()
	n.d.ready()
	f.converge()
	n.emptied() // the queue
	n.load.expect("an entry that waited", false, froms(own)...)
	n.load.finish()
}

// The hub goes on from older copies of its state, or of its machine. All nodes have its
// contents in time, and nothing that is listed in both histories passes.
func TestFleetRestored(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	fleetRestored(t, 2, 5_000, time.Minute)
}

// A large fleet, on a quiet machine, has them within ten seconds.
func TestLargeFleetRestored(t *testing.T) {
	timed.Alone(t)
	long.Only(t, "a minute")
	fleetRestored(t, 8, 1_000_000, 10*time.Second)
}

func fleetRestored(t *testing.T, nodes, entries int, within time.Duration) {
	t.Helper()
	f := newFleet(t, nodes, entries)
	change := func(i int) netip.Addr {
		t.Helper()
		src := address(commandBlock, i)
		if c, err := f.change(t.Context(), config.FleetBlock, false, src); err != nil || !c.Published {
			t.Fatalf("%+v, %v", c, err)
		}
		return src
	}
	both := change(0)
	f.converge()
	for _, n := range f.nodes {
		n.load.list(froms(both)...)
		n.load.run()
	}
	f.kill()
	backup := f.file("backup")
	if err := os.CopyFS(backup, os.DirFS(f.file("hub"))); err != nil {
		t.Fatal(err)
	}
	f.start()
	next := 1
	for _, machine := range []bool{true, false} {
		for _, after := range []int{0, 20} {
			var lost []netip.Addr
			for range 10 {
				lost = append(lost, change(next))
				next++
			}
			f.converge()
			f.kill()
			if err := os.RemoveAll(f.file("hub")); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(f.file("hub"), os.DirFS(backup)); err != nil {
				t.Fatal(err)
			}
			if !machine {
				if err := os.RemoveAll(filepath.Join(f.file("hub"), "broker")); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			f.start()
			var made []netip.Addr
			for range after {
				made = append(made, change(next))
				next++
			}
			lists := f.converge()
			took := time.Since(began)
			t.Logf("machine %v, %d changes: all nodes have the hub's contents %v after its start", machine, after, took.Round(time.Millisecond))
			if took > within {
				t.Errorf("machine %v, %d changes: all nodes have the hub's contents %v after its start, want at most %v", machine, after, took, within)
			}
			for _, l := range lists {
				if l.Name == config.FleetBlock && l.Entries != next {
					t.Errorf("list %s has %d entries, want all %d, those of the lost history taken back from nodes", l.Name, l.Entries, next)
				}
			}
			for _, n := range f.nodes {
				n.load.expect(n.name+": an entry of the lost history", false, froms(lost...)...)
				n.load.expect(n.name+": an entry of the new history", false, froms(made...)...)
			}
		}
	}
	for _, n := range f.nodes {
		n.load.finish()
	}
}

// A node leaves out what covers its hub while it is not connected, too: it connects again after the
// hub, and after the node itself, was away.
func TestFleetKeepsItsHub(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	f := newFleet(t, 1, 100)
	n := f.nodes[0]
	n.d.kill()
	// The daemon is in the namespace of its interfaces: the protection against lock-out looks after its connections.
	n.write("weir.yaml", fmt.Appendf(nil, "interfaces: [{name: %s}, {name: hub}]\npins: %s\nstate_dir: %s\napi: {socket: %s}\nlearning: {elements: 0}\nfleet: {enroll: %s}\n",
		n.B.Iface, n.pins, n.path("state"), n.path("weir.sock"), n.path("fleet.json")))
	n.d = n.start(releases[0])
	f.converge()
	block := func(entry string) {
		t.Helper()
		if c, err := f.api.ChangeFleet(t.Context(), api.Change{Action: api.Block, Entries: []string{entry}}); err != nil || !c.Published {
			t.Fatalf("%+v, %v", c, err)
		}
		f.converge()
	}
	block("10.255.0.0/24")
	for i := range 2 {
		f.kill()
		if i == 0 {
			for deadline := wait.Deadline(); ; time.Sleep(10 * time.Millisecond) {
				if s, err := n.api.Status(t.Context()); err == nil && !s.Fleet.Connected {
					break
				} else if time.Now().After(deadline) {
					t.Fatalf("%+v, %v", s, err)
				}
			}
			time.Sleep(3 * time.Second) // from when on a change of entries has the protection against lock-out look anew
			if _, err := n.change("manual", false, address(commandBlock, 9).String()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
		} else {
			n.d.kill()
			n.d = n.start(releases[0])
		}
		f.start()
		block(address(commandBlock, i).String())
		lists, err := n.api.Lists(t.Context())
		if err != nil || !slices.ContainsFunc(lists.Lists, func(l api.List) bool {
			return slices.ContainsFunc(l.LeftOut, func(o api.LeftOut) bool { return o.Entry == "10.255.0.0/24" })
		}) {
			t.Errorf("what is left out: %+v, %v", lists, err)
		}
	}
}

// Where a copy of the hub runs beside it, commands at both fail and say where the other one is, until one takes
// over: what it blocks then is dropped, and the other one goes on to refuse.
func TestFleetTakeOver(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	const spareAddress = "127.0.0.2"
	f := newFleet(t, 1, 500)
	n := f.nodes[0]
	f.kill()
	spare := &fleet{t: t, dir: t.TempDir(), path: f.path, host: f.host}
	spare.api = client.DialHub(spare.file("hub.sock"))
	if out, err := exec.Command("cp", "-a", f.dir+"/.", spare.dir).CombinedOutput(); err != nil { // with the modes of keys
		t.Fatalf("%v: %s", err, out)
	}
	for hub, address := range map[*fleet]string{f: hubAddress, spare: spareAddress} {
		hub.configure(address, hubAddress, spareAddress)
		hub.start()
	}
	weir := func(hub *fleet, args ...string) (code int, said string) {
		t.Helper()
		c := exec.Command(releases[0].path, append(append([]string{"fleet"}, args...), "--socket", hub.file("hub.sock"))...)
		out, err := c.CombinedOutput()
		if c.ProcessState == nil {
			t.Fatal(err)
		}
		return c.ProcessState.ExitCode(), string(out)
	}
	refused := func(hub *fleet, texts ...string) {
		t.Helper()
		code, said := 0, ""
		defer func() {
			if t.Failed() {
				t.Logf("exit %d: %s", code, said)
			}
		}()
		wait.For(t, fmt.Sprintf("a command is refused with %q", texts), func() bool {
			code, said = weir(hub, "block", "203.0.113.7")
			return code == 1 && !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(said, text) })
		})
	}
	refused(f, "another hub with the same keys is alive at "+spareAddress+":4222", "weir fleet take-over")
	refused(spare, "another hub with the same keys is alive at "+hubAddress+":4222", "nodes that obey it: node-1", "weir fleet take-over")
	if code, said := weir(f, "status"); code != 4 || !strings.Contains(said, "another hub with the same keys is alive at "+spareAddress) {
		t.Errorf("status: exit %d: %s", code, said)
	}
	if code, said := weir(f, "take-over"); code != 0 || !strings.Contains(said, "taken over from the hub at "+spareAddress) {
		t.Errorf("take-over: exit %d: %s", code, said)
	}
	blocked := address(commandBlock, 0)
	if code, said := weir(f, "block", blocked.String()); code != 0 {
		t.Errorf("block: exit %d: %s", code, said)
	}
	n.load.list(froms(blocked)...)
	n.load.run()
	n.load.expect("an entry after the take-over", false, froms(blocked)...)
	refused(spare, "It has taken over")
	if _, said := weir(spare, "take-over", "--json"); !strings.Contains(said, `"from": "at `+hubAddress) { // exit 5 where its nodes are not there
		t.Errorf("take-over at the spare: %s", said)
	}
	refused(f, "It has taken over")
	n.load.finish()
}
