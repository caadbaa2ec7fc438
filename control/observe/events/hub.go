package events

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"weir/filter/verdict"
	"weir/loader"
)

// Period is the interval at which a hub reads events while there are
// subscribers.
const Period = 50 * time.Millisecond

// Limit is the number of events per second, of all interfaces together, above
// which the programs sample.
const Limit = 10_000

// lease is the time after which the programs stop reporting unless it is
// renewed.
const lease = time.Second

// Hub reads events and passes them to subscribers. Its methods are safe for
// concurrent use.
type Hub struct {
	log *slog.Logger
	due *time.Ticker // runs while there are subscribers

	mu         sync.Mutex // guards the fields below
	interfaces []*reader
	subs       []*subscription
	ended      bool
}

// reader reads the events of an interface.
type reader struct {
	Interface
	failed bool // in the last attempt

	wakes *loader.Wakes // by its events; nil: no one waits for them
	lost  uint64        // as of the last reading
	seen  []loader.Counter
	looks time.Duration               // time of the last reading
	rate  [verdict.NumReasons]float64 // packets per second
	oneIn [verdict.NumReasons]uint32
}

// NewHub returns a hub without interfaces and subscribers.
func NewHub(log *slog.Logger) *Hub {
	h := &Hub{log: log, due: time.NewTicker(Period)}
	h.due.Stop()
	return h
}

// Run reads events until ctx is done, which ends all subscriptions.
func (h *Hub) Run(ctx context.Context) {
	defer h.due.Stop()
	for {
		select {
		case <-h.due.C:
			h.mu.Lock()
			if len(h.subs) > 0 {
				h.poll()
				h.ask()
			} else {
				h.due.Stop() // until the next subscription
			}
			h.mu.Unlock()
		case <-ctx.Done():
			h.mu.Lock()
			defer h.mu.Unlock()
			if len(h.subs) > 0 {
				h.poll() // what has happened since the last time
			}
			h.ended = true
			for _, s := range h.subs {
				close(s.to)
			}
			h.subs = nil
			h.ask()
			h.listen()
			return
		}
	}
}

// Follow sets the interfaces to read from.
func (h *Hub) Follow(now []Interface) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.subs) > 0 {
		h.poll() // what was reported before belongs to the former lists and policy
	}
	var all []*reader
	for _, i := range now {
		k := slices.IndexFunc(h.interfaces, func(r *reader) bool { return r.Stats == i.Stats })
		if k < 0 {
			r := &reader{Interface: i, lost: i.Stats.EventsLost()}
			if len(h.subs) > 0 { // the next subscription discards what another process has left unread
				r.failed = h.failed(r, i.Stats.Events(func(*loader.Event) {}))
			}
			k, h.interfaces = len(h.interfaces), append(h.interfaces, r)
		}
		h.interfaces[k].Interface = i
		all = append(all, h.interfaces[k])
	}
	for _, r := range h.interfaces {
		if !slices.Contains(all, r) {
			r.Stats.Sample(loader.Sampling{})
		}
	}
	for _, r := range h.interfaces {
		if !slices.Contains(all, r) {
			h.failed(r, r.end())
		}
	}
	h.interfaces = all
	h.ask()
	h.listen()
}

// The least time between two readings of an interface's events that its programs wake the hub for. It doubles
// while they come at that rate.
const (
	leastPause = time.Millisecond
	mostPause  = 2 * time.Millisecond
)

// listen has events read as they come, if a subscriber is to be woken.
func (h *Hub) listen() {
	waits := slices.ContainsFunc(h.subs, func(s *subscription) bool { return s.Wake != nil })
	for _, r := range h.interfaces {
		switch {
		case !waits:
			h.failed(r, r.end())
		case r.wakes == nil:
			w, err := r.Stats.EventWakes()
			if !h.failed(r, err) && w != nil {
				r.wakes = w
				go h.follow(r, w)
			}
		}
	}
}

// end ends the waiting for events.
func (r *reader) end() (err error) {
	if r.wakes != nil {
		err, r.wakes = r.wakes.End(), nil
	}
	return err
}

// follow reads the events of an interface as they come, until w ends.
func (h *Hub) follow(r *reader, w *loader.Wakes) {
	pause, last := leastPause, time.Time{}
	timer := time.NewTimer(0)
	<-timer.C
	for w.Wait() == nil {
		now := time.Now()
		if now.Sub(last) < 2*pause {
			pause = min(2*pause, mostPause)
		} else {
			pause = leastPause
		}
		last = now
		h.mu.Lock()
		if r.wakes == w && len(h.subs) > 0 {
			h.drain(r, now.Add(-loader.Monotonic()))
		}
		h.mu.Unlock()
		timer.Reset(pause)
		<-timer.C
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed(r, w.Close())
}

// Subscribe returns a channel of events, until end is called or Run returns. A
// slow subscriber loses events, and receives the number of lost ones, including
// those of any reason for which a buffer in the kernel was full.
func (h *Hub) Subscribe(want Want) (events <-chan Event, end func()) {
	if want.Room == 0 {
		want.Room = DefaultRoom
	}
	want.OneIn = max(want.OneIn, 1)
	s := &subscription{Want: want, to: make(chan Event, want.Room)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		close(s.to)
		return s.to, func() {}
	}
	h.poll() // earlier events are not for this subscriber
	if len(h.subs) == 0 {
		h.due.Reset(Period)
	}
	h.subs = append(h.subs, s)
	h.ask()
	h.listen()
	return s.to, func() { h.unsubscribe(s) }
}

// Report passes on an event without a frame, which no program has sent. Subscribers that want
// frames do not receive it.
func (h *Hub) Report(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.subs {
		if s.wants(e.Reason) && !s.Frames {
			s.send(e)
		}
	}
}

func (h *Hub) unsubscribe(s *subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.Index(h.subs, s)
	if i < 0 {
		return
	}
	h.subs = slices.Delete(h.subs, i, i+1)
	close(s.to)
	h.ask()
	h.listen()
	if len(h.subs) > 0 {
		return
	}
	for _, r := range h.interfaces { // buffers that are not read need not be mapped
		h.failed(r, r.Stats.CloseEvents())
	}
}

// failed logs an error in reading the events of an interface, unless there is none, or one is
// known.
func (h *Hub) failed(r *reader, err error) bool {
	if err != nil && !r.failed {
		h.log.Error(r.String() + ": " + err.Error())
	}
	return err != nil
}

// poll passes new events to the subscribers.
func (h *Hub) poll() {
	clock := loader.Monotonic()
	now := time.Now()
	boot := now.Add(-clock)
	for _, r := range h.interfaces {
		h.drain(r, boot)
		r.measure(clock)
	}
	for _, s := range h.subs {
		s.sendLost(now)
	}
}

func (h *Hub) drain(r *reader, boot time.Time) {
	err := r.Stats.Events(func(kernel *loader.Event) {
		if kernel.Packet.Reason >= uint32(verdict.NumReasons) {
			return // of another version
		}
		e := r.Event(kernel, boot)
		for _, s := range h.subs {
			if !s.wantsEvent(&e) {
				continue
			}
			if s.Frames && e.Frame == nil {
				e.Frame = slices.Clone(kernel.Frame)
			}
			s.send(e)
		}
	})
	r.failed = h.failed(r, err)
	lost := r.Stats.EventsLost()
	for _, s := range h.subs {
		s.lost += lost - min(lost, r.lost)
	}
	r.lost = lost
}

// measure updates the packet rate of each reason. A rate decays slowly, as a
// flood may pause.
func (r *reader) measure(clock time.Duration) {
	const fade = 0.9 // per reading
	if clock-r.looks < Period/2 {
		return // two packets at once are not a flood
	}
	now := r.Stats.Reasons(nil)
	seconds := (clock - r.looks).Seconds()
	for i := range min(len(now), len(r.seen), len(r.rate)) {
		grown := now[i].Packets - min(now[i].Packets, r.seen[i].Packets)
		r.rate[i] = max(float64(grown)/seconds, fade*r.rate[i])
	}
	r.seen, r.looks = now, clock
}

// ask sets the programs' sampling rates.
func (h *Hub) ask() {
	frames := slices.ContainsFunc(h.subs, func(s *subscription) bool { return s.Frames })
	first := slices.ContainsFunc(h.subs, func(s *subscription) bool { return s.NewFlows })
	for _, r := range h.interfaces {
		for i := range r.oneIn {
			r.oneIn[i] = 0
		}
		for _, reason := range append(Reasons(), verdict.Clean) {
			for _, s := range h.subs {
				if n := r.oneIn[reason]; s.wants(reason) && (n == 0 || s.OneIn < n) {
					r.oneIn[reason] = s.OneIn
				}
			}
		}
	}
	thin(h.interfaces, Limit)
	until := loader.Monotonic() + lease
	for _, r := range h.interfaces {
		r.Stats.Sample(loader.Sampling{OneIn: r.oneIn, First: first, Frames: frames, Until: until})
	}
}

// thin lowers the sampling rates until the number of events is within a limit,
// the most frequent reasons first: a flood leaves room for rare events.
func thin(all []*reader, limit float64) {
	for {
		var sum, most float64
		var largest *uint32
		for _, r := range all {
			for i, n := range r.oneIn {
				if n == 0 {
					continue
				}
				events := r.rate[i] / float64(n)
				sum += events
				if events > most {
					most, largest = events, &r.oneIn[i]
				}
			}
		}
		if sum <= limit {
			return
		}
		*largest *= 2
	}
}
