package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/demo/playground"
	"weir/control/fleet/wire"
	"weir/filter/packet"
)

// FleetOptions configure the demo of a fleet.
type FleetOptions struct {
	Options
	Weir, Hub string // paths of the programs
}

// FleetReport is the result of the demo of a fleet.
type FleetReport struct {
	Nodes          int      `json:"nodes"`
	Entries        int      `json:"entries"`
	LoadSeconds    float64  `json:"load_seconds"` // from the start of the hub to that of the traffic
	TrafficSeconds float64  `json:"traffic_seconds"`
	Sent           Counts   `json:"sent"` // to all nodes
	Received       Counts   `json:"received"`
	FeedSeconds    float64  `json:"feed_seconds"`     // from the change of a feed until all nodes confirm it
	HubDownSeconds float64  `json:"hub_down_seconds"` // in which there was no hub
	CommandSeconds float64  `json:"command_seconds"`  // from a command until all nodes confirm it
	Passed         bool     `json:"passed"`
	Failures       []string `json:"failures,omitempty"`
}

const (
	fleetNodes = 3

	// What is sent to a node at once, and how many of the packets that are to pass may
	// be on the way: so few that no queue overflows.
	fleetBurst  = 16
	fleetFlight = 64

	fleetPatience = time.Minute
)

// fleetStage is a hub and nodes, each in a namespace of its own, and traffic to each
// node.
type fleetStage struct {
	o       FleetOptions
	dir     string
	random  *rand.Rand
	lists   *lists
	traffic *traffic
	address string // the feed that grows

	hubNetns string
	hub      *process
	api      *client.Client
	nodes    []*fleetNode
	report   FleetReport
}

// fleetNode is a node, and the traffic to it.
type fleetNode struct {
	ground   *playground.Playground
	daemon   *process
	name     string
	frames   atomic.Pointer[[]frame]
	sender   *socketSender
	receiver *receiver
}

// process is a program in a namespace.
type process struct {
	cmd  *exec.Cmd
	log  string // the file of its log
	done chan struct{}
}

// startIn starts a program in the namespace of an end. It is killed when this process
// ends.
func startIn(end playground.End, log string, args ...string) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &process{cmd: exec.Command(args[0], args[1:]...), log: log, done: make(chan struct{})}
	p.cmd.Stderr = f
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // Ctrl-C is for the demo
	if err := end.In(p.cmd.Start); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) kill() {
	if p != nil {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
	}
}

// lastLine returns the last line of the log.
func (p *process) lastLine() string {
	text, _ := os.ReadFile(p.log)
	text = bytes.TrimSpace(text)
	return string(text[bytes.LastIndexByte(text, '\n')+1:])
}

// RunFleet runs the demo of a fleet. It leaves nothing behind, as [Run].
func RunFleet(ctx context.Context, o FleetOptions) (*FleetReport, error) {
	if o.Say == nil {
		o.Say = func(string) {}
	}
	if o.Show == nil {
		o.Show = func(Progress) {}
	}
	return alone(ctx, func(dir string) (*FleetReport, error) {
		s := &fleetStage{o: o, dir: dir, random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
		defer s.close()
		if err := s.set(ctx); err != nil {
			return nil, err
		}
		return s.play(ctx)
	})
}

func (s *fleetStage) close() {
	s.hub.kill()
	for _, n := range s.nodes {
		n.daemon.kill()
		if n.sender != nil {
			n.sender.Close()
		}
		if n.receiver != nil {
			n.receiver.Close()
		}
		n.ground.Close()
	}
}

func (s *fleetStage) path(name string) string { return filepath.Join(s.dir, name) }

// set makes lists and namespaces, and starts hub and nodes.
func (s *fleetStage) set(ctx context.Context) (err error) {
	if s.lists, err = makeLists(s.dir, s.o.Options, s.random); err != nil {
		return err
	}
	s.address = s.lists.addresses
	if s.traffic, err = makeTraffic(s.lists, s.random); err != nil {
		return err
	}
	markFrames(s.traffic.frames)
	if err := s.ground(); err != nil {
		return err
	}
	began := time.Now()
	if err := s.configure(); err != nil {
		return err
	}
	if err := s.startHub(); err != nil {
		return err
	}
	for i, n := range s.nodes {
		if err := s.startNode(ctx, i, n); err != nil {
			return err
		}
	}
	status, err := s.await(ctx, "the nodes filter by the hub's lists", current)
	if err != nil {
		return err
	}
	s.report.Nodes, s.report.LoadSeconds = len(s.nodes), time.Since(began).Seconds()
	for _, l := range status.Lists {
		s.report.Entries += l.Entries
	}
	s.o.Say(fmt.Sprintf("a hub with %d entries in %d lists, and %d nodes that filter by them, each in a namespace of its own: after %.2f s",
		s.report.Entries, len(status.Lists), len(s.nodes), s.report.LoadSeconds))
	for _, n := range s.nodes {
		if n.sender, err = newSocketSender(&traffic{}, n.ground.A); err != nil {
			return err
		}
		if n.receiver, err = newReceiver(n.ground.B); err != nil {
			return err
		}
		n.setFrames(s.traffic.frames)
	}
	return nil
}

// setFrames sets what is sent from now on: copies, since each sender numbers its own.
func (n *fleetNode) setFrames(frames []frame) {
	own := make([]frame, len(frames))
	for i, f := range frames {
		own[i] = frame{f.kind, bytes.Clone(f.data)}
	}
	n.frames.Store(&own)
}

// ground makes the namespaces: for each node that of its senders and its own, with a
// wire between them, and one to the hub's.
func (s *fleetStage) ground() error {
	for i := range fleetNodes {
		ground, err := playground.New(prefix)
		if err != nil {
			return err
		}
		s.nodes = append(s.nodes, &fleetNode{ground: ground, name: fmt.Sprintf("node-%d", i+1)})
	}
	s.hubNetns = strings.TrimSuffix(s.nodes[0].ground.A.Netns, "a") + "hub"
	if err := playground.MakeNetns(s.hubNetns); err != nil {
		return err
	}
	for i, n := range s.nodes {
		end := func(netns, iface string, last byte) playground.End {
			return playground.End{
				Netns: netns, Iface: iface, MAC: []byte{2, 0, 0, 1, byte(i), last},
				IPv4: netip.AddrFrom4([4]byte{198, 18, byte(i + 1), last}), IPv6: netip.AddrFrom16([16]byte{0: 0xfd, 7: byte(i + 1), 15: last}),
			}
		}
		link := playground.Playground{A: end(s.hubNetns, n.name, 1), B: end(n.ground.B.Netns, "hub", 2)}
		if err := link.Wire(); err != nil {
			return err
		}
	}
	return nil
}

// configure makes the fleet's keys and the configuration of the hub.
func (s *fleetStage) configure() error {
	var b strings.Builder
	var servers []string
	for i := range s.nodes {
		servers = append(servers, fmt.Sprintf("%q", fmt.Sprintf("tls://198.18.%d.1:4222", i+1)))
	}
	fmt.Fprintf(&b, "servers: [%s]\nbroker: {listen: \"0.0.0.0:4222\"}\nkeys: %s\nstate_dir: %s\napi: {socket: %s}\nheartbeat: 1s\nmax_age: 1h\nlists:\n",
		strings.Join(servers, ", "), s.path("keys"), s.path("hub"), s.path("hub.sock"))
	for _, file := range s.lists.files {
		fmt.Fprintf(&b, "  %s: {sources: [{file: %s}], interval: 24h}\n", strings.TrimSuffix(filepath.Base(file), ".txt"), file)
	}
	fmt.Fprintf(&b, "  allowed: {action: allow, sources: [{file: %s}], interval: 24h}\n", s.lists.allowed)
	if err := os.WriteFile(s.path("hub.yaml"), []byte(b.String()), 0o600); err != nil {
		return err
	}
	s.api = client.DialHub(s.path("hub.sock"))
	_, err := s.run("init", s.path("keys"))
	return err
}

// run runs a command of weir-hub to its end.
func (s *fleetStage) run(args ...string) ([]byte, error) {
	out, err := exec.Command(s.o.Hub, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("weir-hub %s: %w: %s", args[0], err, bytes.TrimSpace(exit.Stderr))
	}
	return out, err
}

func (s *fleetStage) startHub() (err error) {
	s.hub, err = startIn(playground.End{Netns: s.hubNetns}, s.path("hub.log"), s.o.Hub, "run", "--config", s.path("hub.yaml"))
	return err
}

func (s *fleetStage) startNode(ctx context.Context, i int, n *fleetNode) error {
	enrolled, err := s.run("enroll", "--config", s.path("hub.yaml"), n.name)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("interfaces: [{name: %s, required: true}]\npins: %s-%d\nstate_dir: %s\napi: {socket: %s}\nfleet: {enroll: %s}\n",
		n.ground.B.Iface, pins, i+1, s.path(n.name), s.path(n.name+".sock"), s.path(n.name+".json"))
	for name, text := range map[string][]byte{n.name + ".json": enrolled, n.name + ".yaml": []byte(text)} {
		if err := os.WriteFile(s.path(name), text, 0o600); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	n.daemon, err = startIn(n.ground.B, s.path(n.name+".log"), s.o.Weir, "run", "--config", s.path(n.name+".yaml"))
	return err
}

// await waits until the hub's status is as wanted.
func (s *fleetStage) await(ctx context.Context, what string, is func(*api.HubStatus) bool) (*api.HubStatus, error) {
	for deadline := time.Now().Add(fleetPatience); ; {
		short, cancel := context.WithTimeout(ctx, fleetPatience)
		status, err := s.api.Fleet(short)
		cancel()
		if err == nil && is(status) {
			return status, nil
		}
		if time.Now().After(deadline) {
			if err == nil {
				err = errors.New("the hub answers")
			}
			lines := []string{"the hub: " + s.hub.lastLine()}
			for _, n := range s.nodes {
				if n.daemon != nil {
					lines = append(lines, n.name+": "+n.daemon.lastLine())
				}
			}
			return nil, fmt.Errorf("waited in vain until %s (%w)\n%s", what, err, strings.Join(lines, "\n"))
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// current reports whether all nodes have confirmed the hub's versions, and the feeds
// were read.
func current(f *api.HubStatus) bool {
	if f.Catalog == nil || len(f.Nodes) < fleetNodes || slices.ContainsFunc(f.Nodes, func(n api.FleetNode) bool { return n.State != api.NodeCurrent }) {
		return false
	}
	for _, l := range f.Lists {
		if l.Version != l.Published || slices.ContainsFunc(l.Feeds, func(s api.FeedSource) bool { return s.Read == nil }) {
			return false
		}
		for _, n := range f.Nodes {
			if !slices.ContainsFunc(n.Report.Lists, func(r wire.ListStatus) bool { return r.Name == l.Name && r.Active == l.Version }) {
				return false
			}
		}
	}
	return true
}

// send sends to a node until ctx is done, no faster than packets come out.
func (n *fleetNode) send(ctx context.Context) error {
	number := uint32(0)
	for sleep(ctx, time.Millisecond) == nil {
		received, err := n.receiver.received()
		if err != nil {
			return err
		}
		if n.sender.counts[unlisted].Load()+n.sender.counts[allowedToo].Load() > received[unlisted]+received[allowedToo]+fleetFlight {
			continue
		}
		frames := *n.frames.Load()
		for range fleetBurst {
			if err := n.sender.put(&frames[int(number)%len(frames)], number); err != nil {
				return err
			}
			number++
		}
	}
	return nil
}

// play sends traffic while a feed changes, the hub dies and comes back.
func (s *fleetStage) play(ctx context.Context) (*FleetReport, error) {
	if err := sleep(ctx, settle); err != nil {
		return nil, err
	}
	began := time.Now()
	sending, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	for _, n := range s.nodes {
		group.Go(func() error {
			defer stop()
			return n.send(sending)
		})
	}
	group.Go(func() error {
		defer stop()
		err := s.conduct(sending, time.Duration(s.o.Seconds)*time.Second/4)
		if ctx.Err() != nil || sending.Err() != nil {
			return nil // which has its own reason
		}
		return err
	})
	if err := errors.Join(s.watch(sending, began), group.Wait()); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	s.report.TrafficSeconds = time.Since(began).Seconds()
	if err := sleep(ctx, settle); err != nil { // for the last packets
		return nil, err
	}
	return &s.report, s.judge()
}

// conduct does what happens during the traffic, at intervals.
func (s *fleetStage) conduct(ctx context.Context, interval time.Duration) error {
	if err := sleep(ctx, interval); err != nil {
		return err
	}
	added := s.lists.fresh(s.traffic, s.random)
	took, err := s.change(ctx, "the nodes have confirmed the feed's change", func() error { return s.grow(added) })
	if err != nil {
		return err
	}
	s.report.FeedSeconds = took.Seconds()
	s.send(added...)
	s.o.Say(fmt.Sprintf("added %d entries to a feed: after %.2f s all nodes have confirmed them, and packets from there are sent, too", len(added), took.Seconds()))
	if err := sleep(ctx, interval); err != nil {
		return err
	}

	s.hub.kill()
	died := time.Now()
	s.o.Say("killed the hub: the nodes go on")
	if err := sleep(ctx, interval); err != nil {
		return err
	}
	if err := s.startHub(); err != nil {
		return err
	}
	if _, err := s.await(ctx, "the hub is back", current); err != nil {
		return err
	}
	s.report.HubDownSeconds = time.Since(died).Seconds()
	one := s.lists.fresh(s.traffic, s.random)[0]
	took, err = s.change(ctx, "the nodes have confirmed the command", func() error {
		_, err := s.api.ChangeFleet(ctx, api.Change{Action: api.Block, Entries: []string{one.String()}, Reason: "demo"})
		return err
	})
	if err != nil {
		return err
	}
	s.report.CommandSeconds = took.Seconds()
	s.send(append(added, one)...)
	s.o.Say(fmt.Sprintf("the hub is back after %.2f s; blocked one more address, which all nodes have confirmed after %.3f s", s.report.HubDownSeconds, took.Seconds()))
	return sleep(ctx, interval)
}

// change makes a change at the hub, and returns how long it takes until all nodes have
// confirmed it.
func (s *fleetStage) change(ctx context.Context, what string, make func() error) (time.Duration, error) {
	before, err := s.await(ctx, what, func(*api.HubStatus) bool { return true })
	if err != nil {
		return 0, err
	}
	entries := func(f *api.HubStatus) (n int) {
		for _, l := range f.Lists {
			n += l.Entries
		}
		return n
	}
	began := time.Now()
	if err := make(); err != nil {
		return 0, err
	}
	_, err = s.await(ctx, what, func(f *api.HubStatus) bool { return entries(f) > entries(before) && current(f) })
	return time.Since(began), err
}

// grow adds entries to a feed, which is replaced as a whole.
func (s *fleetStage) grow(added []netip.Addr) error {
	text, err := os.ReadFile(s.address)
	if err != nil {
		return err
	}
	for _, a := range added {
		text = append(a.AppendTo(text), '\n')
	}
	if err := os.WriteFile(s.address+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(s.address+".new", s.address)
}

// send has packets from newly listed addresses sent among the others, a quarter of all.
func (s *fleetStage) send(added ...netip.Addr) {
	more := newTraffic()
	for i := range len(s.traffic.frames) {
		if i%4 > 0 {
			continue
		}
		from := added[len(added)-1-i/4%len(added)]
		t := anyTuple(from, random4(s.random), s.random)
		for passesFirst(packet.Frame(t)) { // by chance, as DHCP
			t = anyTuple(from, random4(s.random), s.random)
		}
		more.addTuple(listed, t)
	}
	markFrames(more.frames)
	mixed := slices.Clone(s.traffic.frames)
	for i, f := range more.frames {
		mixed[4*i] = f
	}
	for _, n := range s.nodes {
		n.setFrames(mixed)
	}
}

// watch shows the progress of the traffic until it ends.
func (s *fleetStage) watch(ctx context.Context, began time.Time) error {
	last, at := uint64(0), began
	for sleep(ctx, look) == nil {
		sent, received, err := s.counts()
		if err != nil {
			return err
		}
		p := Progress{Elapsed: time.Since(began), Sent: countsOf(sent), Received: countsOf(received)}
		p.PPS = float64(p.Sent.Total()-last) / time.Since(at).Seconds()
		p.Dropped = p.Sent.Total() - min(p.Sent.Total(), p.Received.Total())
		last, at = p.Sent.Total(), time.Now()
		s.o.Show(p)
	}
	return nil
}

// counts returns the packets sent to all nodes, and received behind their filters.
func (s *fleetStage) counts() (sent, received [numKinds]uint64, err error) {
	for _, n := range s.nodes {
		in, err := n.sender.sent()
		if err != nil {
			return sent, received, err
		}
		out, err := n.receiver.received()
		if err != nil {
			return sent, received, err
		}
		for k := range in {
			sent[k] += in[k]
			received[k] += out[k]
		}
	}
	return sent, received, nil
}

// judge compares what was received with the expectations.
func (s *fleetStage) judge() error {
	r := &s.report
	fail := func(format string, args ...any) { r.Failures = append(r.Failures, fmt.Sprintf(format, args...)) }
	sent, received, err := s.counts()
	if err != nil {
		return err
	}
	r.Sent, r.Received = countsOf(sent), countsOf(received)
	for _, n := range s.nodes {
		in, _ := n.sender.sent()
		out, err := n.receiver.received()
		if err != nil {
			return err
		}
		if out[listed] > 0 {
			data, number := n.receiver.evidence()
			fail("on %s, %d listed packets came through, the first is number %d: % x", n.name, out[listed], number, data)
		}
		if in[unlisted] != out[unlisted] || in[allowedToo] != out[allowedToo] {
			fail("on %s, %d packets were to pass, %d came through", n.name, in[unlisted]+in[allowedToo], out[unlisted]+out[allowedToo])
		}
		if in[unlisted] < 1000 || in[listed] < 1000 || in[allowedToo] == 0 {
			fail("too few packets were sent to %s to prove anything", n.name)
		}
	}
	r.Passed = len(r.Failures) == 0
	return nil
}

// Verdict returns the report in one line.
func (r *FleetReport) Verdict() string {
	if !r.Passed {
		return "FAILED: " + strings.Join(r.Failures, "; ")
	}
	return fmt.Sprintf("PROVED: on %d nodes, with the hub and without, none of %d listed packets came through, and none of %d others was dropped",
		r.Nodes, r.Sent.Listed, r.Sent.Unlisted+r.Sent.Allowed)
}
