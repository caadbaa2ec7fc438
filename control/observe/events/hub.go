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

// Period is how often a hub looks for events, while somebody wants them.
const Period = 50 * time.Millisecond

// Limit is the number of events a second, of all interfaces together, above
// which the programs tell of fewer packets.
const Limit = 10_000

// lease is how long the programs go on telling without being told to.
const lease = time.Second

// Hub reads events and gives them to subscribers. Its methods may be called
// concurrently.
type Hub struct {
	log *slog.Logger

	mu         sync.Mutex // guards what follows
	interfaces []*reader
	subs       []*subscription
	ended      bool
}

// reader reads the events of an interface.
type reader struct {
	Interface
	failed bool // the last time

	lost  uint64 // as it was last read
	seen  []loader.Counter
	looks time.Duration               // when these were read
	rate  [verdict.NumReasons]float64 // packets a second
	oneIn [verdict.NumReasons]uint32
}

// NewHub makes a hub without interfaces or subscribers.
func NewHub(log *slog.Logger) *Hub { return &Hub{log: log} }

// Run reads events until ctx is done, which ends all subscriptions.
func (h *Hub) Run(ctx context.Context) {
	tick := time.NewTicker(Period)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.mu.Lock()
			if len(h.subs) > 0 {
				h.poll()
				h.ask()
			}
			h.mu.Unlock()
		case <-ctx.Done():
			h.mu.Lock()
			defer h.mu.Unlock()
			h.ended = true
			for _, s := range h.subs {
				close(s.to)
			}
			h.subs = nil
			h.ask()
			return
		}
	}
}

// Follow goes over to the interfaces that are filtered now.
func (h *Hub) Follow(now []Interface) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*reader
	for _, i := range now {
		k := slices.IndexFunc(h.interfaces, func(r *reader) bool { return r.Stats == i.Stats })
		if k < 0 {
			// What another process has left unread is told to nobody.
			err := i.Stats.Events(func(*loader.Event) {})
			h.interfaces = append(h.interfaces, &reader{failed: err != nil, lost: i.Stats.EventsLost()})
			if k = len(h.interfaces) - 1; err != nil {
				h.log.Error(i.String() + ": " + err.Error())
			}
		}
		h.interfaces[k].Interface = i
		all = append(all, h.interfaces[k])
	}
	for _, r := range h.interfaces {
		if !slices.Contains(all, r) {
			r.Stats.Sample(loader.Sampling{})
		}
	}
	h.interfaces = all
	h.ask()
}

// Subscribe gives events until end is called, or Run returns. Who does not take
// them as fast as they come loses some, and is told how many, together with those,
// of whatever reason, for which a buffer in the kernel was full.
func (h *Hub) Subscribe(want Want) (told <-chan Event, end func()) {
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
	h.poll() // what came before is none of its business
	h.subs = append(h.subs, s)
	h.ask()
	return s.to, func() { h.unsubscribe(s) }
}

// Loop tells of a packet that seems to run in a loop, under the reason of those that
// do. Who wants frames is not told: there is none.
func (h *Hub) Loop(e Event) {
	e.Reason = verdict.Looped
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.subs {
		if s.wants(e.Reason) && !s.Frames {
			s.give(e)
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
}

// poll gives the subscribers what has come.
func (h *Hub) poll() {
	clock := loader.Monotonic()
	now := time.Now()
	boot := now.Add(-clock)
	for _, r := range h.interfaces {
		h.drain(r, boot)
		r.measure(clock)
	}
	for _, s := range h.subs {
		s.tellLost(now)
	}
}

func (h *Hub) drain(r *reader, boot time.Time) {
	err := r.Stats.Events(func(told *loader.Event) {
		if told.Packet.Reason >= uint32(verdict.NumReasons) {
			return // another version's
		}
		e := r.event(told, boot)
		for _, s := range h.subs {
			if !s.wants(e.Reason) {
				continue
			}
			if s.Frames && e.Frame == nil {
				e.Frame = slices.Clone(told.Frame)
			}
			s.give(e)
		}
	})
	if err != nil && !r.failed {
		h.log.Error(r.String() + ": " + err.Error())
	}
	r.failed = err != nil
	lost := r.Stats.EventsLost()
	for _, s := range h.subs {
		s.lost += lost - min(lost, r.lost)
	}
	r.lost = lost
}

// measure finds how many packets leave for each reason. A rate falls slowly, for
// a flood that pauses goes on.
func (r *reader) measure(clock time.Duration) {
	const fade = 0.9 // from one look to the next
	if clock-r.looks < Period/2 {
		return // two packets are no flood because they come at once
	}
	now := r.Stats.Reasons(nil)
	seconds := (clock - r.looks).Seconds()
	for i := range min(len(now), len(r.seen), len(r.rate)) {
		grown := now[i].Packets - min(now[i].Packets, r.seen[i].Packets)
		r.rate[i] = max(float64(grown)/seconds, fade*r.rate[i])
	}
	r.seen, r.looks = now, clock
}

// ask tells the programs what is wanted.
func (h *Hub) ask() {
	frames := slices.ContainsFunc(h.subs, func(s *subscription) bool { return s.Frames })
	for _, r := range h.interfaces {
		for i := range r.oneIn {
			r.oneIn[i] = 0
		}
		for _, reason := range Reasons() {
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
		r.Stats.Sample(loader.Sampling{OneIn: r.oneIn, Frames: frames, Until: until})
	}
}

// thin makes the programs tell of fewer packets until the events are not more
// than a limit. Those of which there are most give way first: a flood leaves
// room for what is rare.
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
