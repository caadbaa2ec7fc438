// Package notify sends events to the receivers that an operator has chosen:
// webhooks, commands and syslog servers.
//
// Nothing waits for a receiver. Each has a queue of its own, of bounded length, and a
// goroutine that delivers the events one after another, in the order in which they
// were sent. What cannot be delivered is tried again, for up to an hour; when a queue
// is full, its oldest event is discarded. The next one that is delivered says how many were not.
package notify

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/filter/ordered"
)

const (
	// maxQueue bounds the events that wait for a receiver: some 500 KB of JSON.
	maxQueue = 256

	// The delays between attempts double, from firstRetry to maxRetry.
	firstRetry = time.Second
	maxRetry   = time.Minute

	// giveUp is the age at which an event that could not be delivered is of no use.
	giveUp = time.Hour

	// complainAgain is how often the log says that events are discarded.
	complainAgain = time.Minute
)

// Notifier sends events to targets. Its methods are safe for concurrent use.
type Notifier struct {
	host, agent string
	log         *slog.Logger
	random      func() float64 // 0…1, for jitter
	transport   http.RoundTripper

	mu        sync.Mutex
	receivers []*receiver // by name
	leaving   []*receiver // that are being stopped
	former    []Count     // of targets that were removed: counters never go back
	stopping  sync.WaitGroup
}

// New returns a notifier without targets.
func New(version string, log *slog.Logger) *Notifier {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &Notifier{host: host, agent: "weir/" + version, log: log, random: mathrand.Float64, transport: newTransport()}
}

// Configure makes the notifier send to targets, and to no others. Those that stay the
// same keep their queues.
func (n *Notifier) Configure(targets []Target) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var next []*receiver
	for _, t := range targets {
		at := slices.IndexFunc(n.receivers, func(r *receiver) bool { return reflect.DeepEqual(r.Target, t) })
		if at >= 0 {
			next = append(next, n.receivers[at])
			continue
		}
		next = append(next, n.receive(t))
	}
	for _, r := range n.receivers {
		if !slices.Contains(next, r) {
			n.leave(r)
		}
	}
	ordered.By(next, func(a, b *receiver) int { return cmp.Compare(a.Name, b.Name) })
	n.receivers = next
}

// receive starts a receiver.
func (n *Notifier) receive(t Target) *receiver {
	ctx, cancel := context.WithCancel(context.Background()) // until stop
	r := &receiver{Target: t, n: n, cancel: cancel, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go r.run(ctx)
	return r
}

// leave stops a receiver, without waiting for what it is delivering.
func (n *Notifier) leave(r *receiver) {
	n.leaving = append(n.leaving, r)
	n.stopping.Go(func() {
		r.stop()
		n.mu.Lock()
		defer n.mu.Unlock()
		n.leaving = slices.DeleteFunc(n.leaving, func(o *receiver) bool { return o == r })
		n.former = merge(n.former, r.count())
	})
}

// Close stops the notifier, after giving receivers that work some time for the events
// that wait. It logs what was not delivered.
func (n *Notifier) Close(grace time.Duration) {
	late := time.After(grace)
	often := time.NewTicker(5 * time.Millisecond)
	defer often.Stop()
	for waits := true; waits && n.works(); {
		select {
		case <-often.C:
		case <-late:
			waits = false
		}
	}
	n.Configure(nil)
	n.stopping.Wait()
}

// works reports whether events wait for a receiver that does not fail.
func (n *Notifier) works() bool {
	return slices.ContainsFunc(n.Counts(), func(c Count) bool { return c.Waiting > 0 && !c.Failing })
}

// Send sends an event to the targets that want it. It does not wait.
func (n *Notifier) Send(e Event) {
	e = n.complete(e)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.receivers {
		if r.wants(e.Kind) {
			r.put(e)
		}
	}
}

// complete adds what all events have.
func (n *Notifier) complete(e Event) Event {
	e.Version, e.ID, e.Host = Version, rand.Text(), n.host
	e.Time = cmp.Or(e.Time, time.Now())
	return e
}

// ErrNoTarget is wrapped by errors for a target that does not exist.
var ErrNoTarget = errors.New("no such target of notifications")

// Tested is the result of a test event.
type Tested struct {
	Target  string        // its name
	Place   string        // its URL without secrets, or its command
	Answer  string        // what the receiver has answered, or printed
	Err     error         // nil: the event was delivered
	Took    time.Duration // until then
	Waiting int           // events that wait for the receiver
}

// Test sends a test event to a target, or with "" to all, past their queues, and
// returns the answers.
func (n *Notifier) Test(ctx context.Context, name string) ([]Tested, error) {
	n.mu.Lock()
	receivers := slices.DeleteFunc(slices.Clone(n.receivers), func(r *receiver) bool { return name != "" && r.Name != name })
	n.mu.Unlock()
	switch {
	case len(receivers) == 0 && name != "":
		return nil, fmt.Errorf("%w: %q", ErrNoTarget, name)
	case len(receivers) == 0:
		return nil, fmt.Errorf("%w: the configuration has none (notify)", ErrNoTarget)
	}
	tests := make([]Tested, len(receivers))
	var all sync.WaitGroup
	for i, r := range receivers {
		all.Go(func() {
			e := n.complete(Event{Kind: Test, Severity: Info, Text: "This is a test by weir notify test."})
			began := time.Now()
			answer, err := r.attempt(ctx, e)
			tests[i] = Tested{Target: r.Name, Place: r.place(), Answer: answer, Err: err, Took: time.Since(began), Waiting: r.count().Waiting}
		})
	}
	all.Wait()
	return tests, ctx.Err()
}

// Count counts a target's events by their fate.
type Count struct {
	Target    string
	Delivered uint64
	Failed    uint64 // given up
	Discarded uint64 // because the queue was full, or the target was removed
	Attempts  uint64 // that failed
	Waiting   int    // in the queue, and being delivered
	Failing   bool   // the last attempt failed
}

// Counts returns what became of the events of all targets, in the order of their
// names. Counters never go back.
func (n *Notifier) Counts() []Count {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := slices.Clone(n.former)
	for _, r := range slices.Concat(n.leaving, n.receivers) {
		all = merge(all, r.count())
	}
	ordered.By(all, func(a, b Count) int { return cmp.Compare(a.Target, b.Target) })
	return all
}

// merge adds a count to those before it.
func merge(all []Count, c Count) []Count {
	at := slices.IndexFunc(all, func(o Count) bool { return o.Target == c.Target })
	if at < 0 {
		return append(all, c)
	}
	o := &all[at]
	o.Delivered += c.Delivered
	o.Failed += c.Failed
	o.Discarded += c.Discarded
	o.Attempts += c.Attempts
	o.Waiting, o.Failing = c.Waiting, c.Failing
	return all
}

// receiver delivers the events of a target.
type receiver struct {
	Target
	n      *Notifier
	cancel context.CancelFunc
	wake   chan struct{}
	ended  chan struct{} // closed when run has ended

	mu         sync.Mutex // guards the rest
	queue      []Event    // the oldest first
	delivering bool
	missed     int       // discarded or given up since the last event that was delivered, or is being
	complained time.Time // of discarded events
	counts     Count
	servers    []netip.Addr // of the last delivery that reached one
}

// Servers returns the addresses that events were sent to last, by target.
func (n *Notifier) Servers() map[string][]netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make(map[string][]netip.Addr)
	for _, r := range n.receivers {
		r.mu.Lock()
		if len(r.servers) > 0 {
			all[r.Name] = r.servers
		}
		r.mu.Unlock()
	}
	return all
}

// put queues an event.
func (r *receiver) put(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == maxQueue {
		r.queue = slices.Delete(r.queue, 0, 1)
		r.missed++
		r.counts.Discarded++
		if time.Since(r.complained) >= complainAgain {
			r.complained = time.Now()
			r.n.log.Error("notifications are discarded, the oldest first: the receiver does not keep up, or fails",
				"target", r.Name, "to", r.place(), "discarded", r.counts.Discarded)
		}
	}
	r.queue = append(r.queue, e)
	select {
	case r.wake <- struct{}{}:
	default: // it has yet to look
	}
}

// take waits for the oldest event.
func (r *receiver) take(ctx context.Context) (e Event, ok bool) {
	for {
		r.mu.Lock()
		if r.delivering = len(r.queue) > 0; r.delivering {
			e = r.queue[0]
			r.queue = slices.Delete(r.queue, 0, 1)
			e.Missed, r.missed = r.missed, 0
			r.mu.Unlock()
			return e, ctx.Err() == nil
		}
		r.mu.Unlock()
		select {
		case <-r.wake:
		case <-ctx.Done():
			return e, false
		}
	}
}

func (r *receiver) run(ctx context.Context) {
	defer close(r.ended)
	for {
		e, ok := r.take(ctx)
		if !ok {
			return
		}
		r.deliver(ctx, e)
		if ctx.Err() != nil {
			return
		}
	}
}

// deliver delivers an event, with as many attempts as that takes, or gives up.
func (r *receiver) deliver(ctx context.Context, e Event) {
	for wait := firstRetry; ; wait = min(2*wait, maxRetry) {
		_, err := r.attempt(ctx, e)
		if ctx.Err() != nil {
			return
		}
		final := err != nil && (isFinal(err) || time.Since(e.Time) >= giveUp)
		r.note(e, err, final)
		if err == nil || final {
			return
		}
		// Daemons that failed together must not retry together.
		pause := wait/2 + time.Duration(r.n.random()*float64(wait/2))
		select {
		case <-time.After(max(pause, min(retryAfter(err), maxRetry))):
		case <-ctx.Done():
			return
		}
	}
}

// note counts and logs the outcome of an attempt. Of attempts that fail alike, only
// the first is an error in the log.
func (r *receiver) note(e Event, err error, final bool) {
	log := r.n.log.With("target", r.Name, "to", r.place(), "event", string(e.Kind), "id", e.ID)
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.counts.Failing
	r.counts.Failing = err != nil
	switch {
	case err == nil:
		r.counts.Delivered++
		if was {
			log.Info("notifications are delivered again")
		}
		return
	case final:
		r.counts.Failed++
		r.missed += e.Missed + 1
		log.Error("a notification was not delivered: "+err.Error(), "text", e.Text)
	case !was:
		log.Error("a notification could not be delivered, retrying: " + err.Error())
	default:
		log.Debug("a notification could not be delivered, retrying: " + err.Error())
	}
	r.counts.Attempts++
}

// attempt tries once to deliver an event, and returns the receiver's answer.
func (r *receiver) attempt(ctx context.Context, e Event) (answer string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(r.Timeout), fmt.Errorf("not done within %v", r.Timeout))
	defer cancel()
	switch {
	case r.URL != "":
		return r.post(ctx, e)
	case r.Syslog != "":
		return r.log(ctx, e)
	}
	return r.execute(ctx, e)
}

func (r *receiver) count() Count {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counts
	c.Target, c.Waiting = r.Name, len(r.queue)
	if r.delivering {
		c.Waiting++
	}
	return c
}

// stop ends the receiver. What waits for it is discarded.
func (r *receiver) stop() {
	r.cancel()
	<-r.ended
	left := r.count().Waiting
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue, r.delivering = nil, false
	r.counts.Discarded += uint64(left)
	r.counts.Failing = false
	if left > 0 {
		r.n.log.Warn("notifications were not delivered: their target was removed, or the daemon ends", "target", r.Name, "to", r.place(), "discarded", left)
	}
}

// failure is why an attempt failed.
type failure struct {
	error
	final      bool          // another attempt would fail as well
	retryAfter time.Duration // that the receiver has asked for
}

func (f *failure) Unwrap() error { return f.error }

func isFinal(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && f.final
}

func retryAfter(err error) time.Duration {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.retryAfter
	}
	return 0
}

// line returns a text that others chose as one printable line.
func line(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "\uFFFD")), " ")
	return cut(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '\uFFFD'
		}
		return r
	}, text))
}
