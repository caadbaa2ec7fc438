// Package demo shows weir at work, and proves it: two network namespaces with a
// wire between them, lists of a million entries, mostly listed traffic, and a
// receiver behind the filter that counts the packets that pass, independently
// of weir.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/control/attach"
	"weir/control/demo/playground"
	meter "weir/control/observe/traffic"
	"weir/loader"
)

// Options configure the demo.
type Options struct {
	Entries int     // addresses on the generated list
	Seconds int     // of traffic
	Feed    string  // a list to use instead of generated ones
	Capture string  // a capture whose packets are sent instead of generated ones
	Console bool    // serve the console
	Filters Starter // starts the daemon

	Say  func(string)   // prints what happens; may be nil
	Show func(Progress) // called several times a second; may be nil
}

// Counts are numbers of packets, by expected outcome.
type Counts struct {
	Unlisted uint64 `json:"unlisted"` // to pass
	Listed   uint64 `json:"listed"`   // to be dropped
	Allowed  uint64 `json:"allowed"`  // listed, and to pass, since an allow list has them too
}

func countsOf(c [numKinds]uint64) Counts {
	return Counts{Unlisted: c[unlisted], Listed: c[listed], Allowed: c[allowedToo]}
}

// Total returns the sum.
func (c Counts) Total() uint64 { return c.Unlisted + c.Listed + c.Allowed }

// Progress is the state of the traffic.
type Progress struct {
	Elapsed  time.Duration
	PPS      float64 // recent rate of packets decided by weir
	Sent     Counts
	Received Counts // behind the filter
	Dropped  uint64 // by weir's counters
}

// Report is the result of the demo.
type Report struct {
	Entries        int      `json:"entries"`
	Shapes         int      `json:"shapes"`
	KernelBytes    int      `json:"kernel_bytes"`
	Predicted      float64  `json:"predicted_false_positive_rate"`
	LoadSeconds    float64  `json:"load_seconds"`
	TrafficSeconds float64  `json:"traffic_seconds"`
	PPS            float64  `json:"pps"`
	Sent           Counts   `json:"sent"`
	Received       Counts   `json:"received"` // behind the filter, counted independently
	Dropped        uint64   `json:"dropped"`  // by weir's counters
	Allowed        uint64   `json:"allowed"`  // by weir's counters
	Lost           uint64   `json:"lost"`     // before the filter: the wire's queue was full
	SwapSeconds    float64  `json:"swap_seconds"`
	Passed         bool     `json:"passed"`
	Failures       []string `json:"failures,omitempty"`
}

const (
	prefix = "weir-demo"
	pins   = loader.Pins("/sys/fs/bpf/" + prefix)

	settle = 300 * time.Millisecond // time until the wire is silent
	look   = 250 * time.Millisecond // interval between readings of the counters
)

// Run runs the demo. It leaves nothing behind, even if ctx ends early, and
// removes leftovers of killed demos. The report is nil unless all traffic was
// sent.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Say == nil {
		o.Say = func(string) {}
	}
	if o.Show == nil {
		o.Show = func(Progress) {}
	}
	return alone(ctx, func(dir string) (*Report, error) {
		s := &stage{o: o, random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
		defer s.close()
		if err := s.set(ctx, dir); err != nil {
			return nil, err
		}
		return s.play(ctx)
	})
}

// alone calls play with a directory of its own, while no other demo runs, and then removes
// the namespaces, the pins and the files.
func alone[R any](ctx context.Context, play func(dir string) (*R, error)) (_ *R, err error) {
	lock, err := takeLock(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := sweep(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", prefix+"-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir), sweep()) }()
	return play(dir)
}

// takeLock excludes other demos. An abstract socket is a lock that disappears
// with its process, though it may take a moment.
func takeLock(ctx context.Context) (io.Closer, error) {
	for tries := 0; ; tries++ {
		lock, err := net.Listen("unix", "@"+prefix)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("look for other demos: %w", err)
		}
		if tries == 10 {
			return nil, errors.New("another demo is running")
		}
		if err := sleep(ctx, settle); err != nil {
			return nil, err
		}
	}
}

// sweep removes leftovers of demos: namespaces, and with them the wire, pins,
// and files.
func sweep() (err error) {
	left, _ := filepath.Glob(string(pins) + "*")
	for _, dir := range append(left, string(pins)) {
		_, bad := attach.DetachAll(loader.Pins(dir))
		err = errors.Join(err, bad, os.RemoveAll(dir))
	}
	left, _ = filepath.Glob("/run/netns/" + prefix + "-*")
	for _, path := range left {
		err = errors.Join(err, netns.DeleteNamed(filepath.Base(path)))
	}
	left, _ = filepath.Glob(filepath.Join(os.TempDir(), prefix+"-*"))
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		return fmt.Errorf("clear away a demo: %w", err)
	}
	return nil
}

// stage is the environment of a demo.
type stage struct {
	o        Options
	random   *rand.Rand
	ground   *playground.Playground
	lists    *lists
	traffic  *traffic
	filter   Filter
	sender   sender
	receiver *receiver
	report   Report
}

func (s *stage) close() {
	if s.sender != nil {
		s.sender.Close()
	}
	if s.receiver != nil {
		s.receiver.Close()
	}
	if s.filter != nil {
		s.filter.Close() // sweep removes the rest
	}
	if s.ground != nil {
		s.ground.Close()
	}
}

// set sets up the stage.
func (s *stage) set(ctx context.Context, dir string) (err error) {
	if s.ground, err = playground.New(prefix); err != nil {
		return err
	}
	s.o.Say(fmt.Sprintf("made namespaces %s and %s with a veth pair between them", s.ground.A.Netns, s.ground.B.Netns))

	if s.lists, err = makeLists(dir, s.o, s.random); err != nil {
		return err
	}
	if s.o.Capture != "" {
		s.traffic, err = readTraffic(s.o.Capture, s.lists)
	} else {
		s.traffic, err = makeTraffic(s.lists, s.random)
	}
	if err != nil {
		return err
	}
	c := s.traffic.counts
	s.o.Say(fmt.Sprintf("drew %d packets to send: %d listed, %d unlisted, %d listed and allowed",
		len(s.traffic.frames), c[listed], c[unlisted], c[allowedToo]))
	if ctx.Err() != nil {
		return ctx.Err()
	}

	began := time.Now()
	if s.filter, err = startFilter(ctx, s.lists, s.ground.B, s.o); err != nil {
		return err
	}
	d, err := s.filter.Describe(ctx)
	if err != nil {
		return err
	}
	s.report.LoadSeconds = time.Since(began).Seconds()
	s.report.Entries, s.report.Shapes = d.Entries, len(d.Shapes)
	s.report.KernelBytes, s.report.Predicted = d.KernelBytes, d.Predicted
	s.o.Say(fmt.Sprintf("filtering on %s, native XDP: %d entries in %d shapes from text files in %.2f s, %.1f MB of kernel memory",
		s.ground.B.Iface, d.Entries, len(d.Shapes), s.report.LoadSeconds, float64(d.KernelBytes)/1e6))

	if s.o.Console {
		// What somebody blocks there would come true, and the proof false.
		opened, err := s.filter.OpenConsole(ctx, api.ConsoleRequest{ReadOnly: true, UID: uint32(os.Getuid())})
		if err != nil {
			return err
		}
		s.o.Say("open the console in a browser: " + opened.URL)
	}

	if s.sender, err = newSender(s.traffic, s.ground.A); err != nil {
		return err
	}
	s.receiver, err = newReceiver(s.ground.B)
	return err
}

// play sends the traffic, exchanges the generation half way through, and checks
// the result.
func (s *stage) play(ctx context.Context) (*Report, error) {
	if err := sleep(ctx, settle); err != nil {
		return nil, err
	}
	length := time.Duration(s.o.Seconds) * time.Second
	before := s.filter.Counters()
	began := time.Now()

	sending, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	group.Go(func() error {
		defer stop()
		return s.ground.A.In(func() error { return s.sender.send(sending) })
	})
	group.Go(func() error {
		defer stop()
		return s.conduct(sending, length)
	})
	watched := s.watch(sending, began, before.Packets())
	if err := errors.Join(watched, group.Wait()); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	s.report.TrafficSeconds = time.Since(began).Seconds()
	if err := sleep(ctx, settle); err != nil { // for the last packets
		return nil, err
	}
	if err := s.judge(before); err != nil {
		return nil, err
	}
	return &s.report, nil
}

// conduct exchanges the generation in the middle of the traffic, and returns
// when the traffic should end, at least some time after the exchange.
func (s *stage) conduct(ctx context.Context, length time.Duration) error {
	began := time.Now()
	if sleep(ctx, length/2) != nil {
		return nil
	}
	if err := s.swap(ctx); err != nil {
		return err
	}
	_ = sleep(ctx, max(length-time.Since(began), 2*look))
	return nil
}

// swap exchanges the generation.
func (s *stage) swap(ctx context.Context) error {
	if err := s.lists.grow(s.traffic, s.random); err != nil {
		return err
	}
	began := time.Now()
	if _, err := s.filter.Reload(ctx); err != nil {
		return err
	}
	d, err := s.filter.Describe(ctx)
	if err != nil {
		return err
	}
	s.report.SwapSeconds = time.Since(began).Seconds()
	s.o.Say(fmt.Sprintf("read the lists again under a new secret, now %d entries, and exchanged the program in mid-traffic (%.2f s)",
		d.Entries, s.report.SwapSeconds))
	return nil
}

// watch shows the progress of the traffic until it ends.
func (s *stage) watch(ctx context.Context, began time.Time, base uint64) error {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	at, last := began, base
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			counters := s.filter.Counters()
			p := Progress{Elapsed: now.Sub(began), Dropped: counters.Blocked()}
			packets := counters.Packets()
			p.PPS = float64(packets-last) / now.Sub(at).Seconds()
			at, last = now, packets
			sent, received, err := s.counts()
			if err != nil {
				return err
			}
			p.Sent, p.Received = countsOf(sent), countsOf(received)
			s.o.Show(p)
		}
	}
}

func (s *stage) counts() (sent, received [numKinds]uint64, err error) {
	if sent, err = s.sender.sent(); err != nil {
		return sent, received, err
	}
	received, err = s.receiver.received()
	return sent, received, err
}

// judge compares the counters with the expectations.
func (s *stage) judge(before meter.Counters) error {
	sent, received, err := s.counts()
	if err != nil {
		return err
	}
	r := &s.report
	r.Sent, r.Received = countsOf(sent), countsOf(received)
	counters := s.filter.Counters()
	r.Dropped = counters.Blocked() - before.Blocked()
	r.Allowed = counters.Allowed() - before.Allowed()
	decided := counters.Packets() - before.Packets()
	r.PPS = float64(decided) / r.TrafficSeconds
	if r.Sent.Total() > decided {
		r.Lost = r.Sent.Total() - decided
	}
	fail := func(format string, args ...any) { r.Failures = append(r.Failures, fmt.Sprintf(format, args...)) }
	if r.Received.Listed > 0 {
		text := fmt.Sprintf("%d listed packets came through", r.Received.Listed)
		if data, number := s.receiver.evidence(); data != nil {
			text += fmt.Sprintf(", the first is number %d: % x", number, data)
		}
		fail("%s", text)
	}
	if r.Dropped > r.Sent.Listed || r.Sent.Listed-r.Dropped > r.Lost {
		fail("%d listed packets were sent, %d dropped, %d lost before the filter", r.Sent.Listed, r.Dropped, r.Lost)
	}
	good, came := r.Sent.Unlisted+r.Sent.Allowed, r.Received.Unlisted+r.Received.Allowed
	if came > good || good-came > r.Lost {
		fail("%d packets were to pass, %d came through, %d lost before the filter", good, came, r.Lost)
	}
	if r.Sent.Unlisted == 0 || r.Sent.Listed == 0 && s.traffic.counts[listed] > 0 {
		fail("too few packets were sent to prove anything")
	}
	if r.SwapSeconds == 0 {
		fail("the program was not exchanged")
	}
	r.Passed = len(r.Failures) == 0
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// Verdict returns the report in one line.
func (r *Report) Verdict() string {
	if !r.Passed {
		return "FAILED: " + strings.Join(r.Failures, "; ")
	}
	return fmt.Sprintf("PROVED: none of %d listed packets came through, and none of %d others was dropped",
		r.Sent.Listed, r.Sent.Unlisted+r.Sent.Allowed)
}
