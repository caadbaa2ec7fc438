package run

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"slices"
	"sync"

	"weir/control/engine"
	"weir/loader"
)

// sentry puts programs on interfaces in the moment in which the kernel tells that
// they are there: mostly before they are up. It waits for nobody, not for the
// verifier, since its programs are loaded, nor for the filter's goroutine, which
// may be building a generation, nor for who has locked the pins: each interface has
// a goroutine for that. What it has done, the filter takes in later.
type sentry struct {
	pins loader.Pins
	log  *slog.Logger
	told chan struct{} // there is something for the filter to look at

	ctx   context.Context // nil until Serve
	posts map[string]post // by namespace; the filter's goroutine alone uses them

	met     sync.WaitGroup           // the goroutines
	mu      sync.Mutex               // guards what follows; nobody waits for a lock of the pins with it
	meeting map[Target]*loader.Iface // what they are about, and what the kernel has told of it since; nil: nothing
	places  []Place                  // none: nothing is met any more
	lost    []Target
	known   map[Target]*loader.Attachment // those that the filter has, or is to take in
	spares  []*spare
	arrived []*hold        // to take in
	tried   map[Target]int // number of the interface that took no spare
}

// post is where a sentry looks: a namespace, by its inode number.
type post struct {
	inode uint64
	leave context.CancelFunc
}

// spare is a program that waits for an interface.
type spare struct {
	stats      *loader.Stats
	program    *loader.Program
	generation *engine.Generation
	about      []byte
}

func (s *spare) Close() error { return errors.Join(s.program.Close(), s.stats.Close()) }

// maxSpares is the number of programs that wait for interfaces that were not
// there before: these may come in pairs, as veths do.
const maxSpares = 2

func newSentry(o Options) *sentry {
	return &sentry{
		pins: o.Pins, log: o.Log, told: make(chan struct{}, 1),
		posts: make(map[string]post), meeting: make(map[Target]*loader.Iface),
		known: make(map[Target]*loader.Attachment), tried: make(map[Target]int),
	}
}

// follow posts the sentry where interfaces are to be filtered, and withdraws it
// from namespaces that are gone, which could not end while it is there.
func (s *sentry) follow(places []Place) {
	if s.ctx == nil {
		return
	}
	there := make(map[string]bool)
	for _, p := range places {
		if _, looked := there[p.Netns]; looked {
			continue
		}
		inode, err := p.Namespace()
		if there[p.Netns] = err == nil; err != nil || s.posts[p.Netns].inode == inode {
			continue
		}
		if old, ok := s.posts[p.Netns]; ok {
			old.leave()
		}
		ctx, leave := context.WithCancel(s.ctx)
		if err := p.Follow(ctx.Done(), func(i *loader.Iface) { s.notice(p.Netns, i) }); err != nil {
			s.log.Debug(err.Error()) // followInterval will do
			leave()
			continue
		}
		s.posts[p.Netns] = post{inode, leave}
	}
	for name, p := range s.posts {
		if !there[name] {
			p.leave()
			delete(s.posts, name)
		}
	}
}

// notice takes note of an interface that has come or changed, or, where it is
// nil, that one has gone.
func (s *sentry) notice(netns string, i *loader.Iface) {
	if i == nil || !s.meet(Target{Netns: netns, Iface: i.Name}, i) {
		s.tell()
	}
}

func (s *sentry) tell() {
	select {
	case s.told <- struct{}{}:
	default: // the filter has yet to look
	}
}

// meet puts a program on an interface, if one waits for it, and then tells the
// filter; it reports whether it does. Where it fails, the filter will find the
// interface without one, try again, and say why.
func (s *sentry) meet(t Target, i *loader.Iface) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.places) == 0 {
		return false
	}
	if _, is := s.meeting[t]; is {
		s.meeting[t] = i
		return true
	}
	if a := s.known[t]; a != nil {
		s.begin(t, func() {
			if err := a.Reattach(i); err != nil {
				s.log.Debug(err.Error())
			}
		})
		return true
	}
	at := slices.IndexFunc(s.places, func(p Place) bool { return p.names(t) })
	if at < 0 || len(s.spares) == 0 || s.tried[t] == i.Index || slices.Contains(s.lost, t) {
		return false
	}
	p, xdp := s.spares[0], s.places[at].XDP
	s.spares = s.spares[1:]
	s.begin(t, func() {
		a, err := s.pins.Attach(t, i, xdp, p.about, p.program)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			s.tried[t], s.spares = i.Index, append(s.spares, p)
			s.log.Debug(err.Error())
			return
		}
		delete(s.tried, t)
		s.known[t] = a
		s.arrived = append(s.arrived, &hold{Target: t, XDP: xdp, Attachment: a, of: p.generation})
	})
	return true
}

// begin calls fn for an interface in a goroutine, which then meets what has come in
// its place meanwhile.
func (s *sentry) begin(t Target, fn func()) {
	s.meeting[t] = nil
	s.met.Go(func() {
		fn()
		s.mu.Lock()
		next := s.meeting[t]
		delete(s.meeting, t)
		s.mu.Unlock()
		if next == nil || !s.meet(t, next) {
			s.tell()
		}
	})
}

// names tells whether a place means an interface.
func (p Place) names(t Target) bool {
	if !p.pattern() {
		return p.Target == t
	}
	ok, _ := path.Match(p.Iface, t.Iface)
	return ok && p.Netns == t.Netns
}

// arrivals gives the interfaces that were met, for the filter to take in.
func (s *sentry) arrivals() (all []*hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, s.arrived = s.arrived, nil
	return all
}

// instruct says what is to be filtered where, and what is filtered.
func (s *sentry) instruct(places []Place, lost []Target, holds []*hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.places, s.lost = slices.Clone(places), slices.Clone(lost)
	clear(s.known)
	for _, h := range slices.Concat(holds, s.arrived) {
		if h.Attachment != nil {
			s.known[h.Target] = h.Attachment
		}
	}
	for t := range s.tried {
		if !slices.ContainsFunc(s.places, func(p Place) bool { return p.names(t) }) {
			delete(s.tried, t)
		}
	}
}

// has tells whether the sentry has met an interface, is about to, or knows it.
func (s *sentry) has(t Target) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, is := s.meeting[t]
	return is || s.known[t] != nil
}

// dismiss makes sure that the program is not put back on an interface any more,
// unless that has happened since the filter looked, or is under way.
func (s *sentry) dismiss(h *hold) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, is := s.meeting[h.Target]; is {
		return false
	}
	if h.Attachment != nil {
		if index, err := h.Index(); err != nil || index != h.index {
			return false
		}
	}
	delete(s.known, h.Target)
	delete(s.tried, h.Target)
	return true
}

// wanted is how many spares there should be: for interfaces that may come and
// that nothing is kept for.
func (s *sentry) wanted() (n int) {
	for _, p := range s.places {
		switch {
		case p.pattern():
			return maxSpares
		case s.known[p.Target] == nil && !slices.Contains(s.lost, p.Target):
			n++
		}
	}
	return min(n, maxSpares)
}

// provide makes the spares that are wanted, of the generation in force.
func (s *sentry) provide(g *engine.Generation, about func() ([]byte, error)) error {
	s.mu.Lock()
	wanted := s.wanted()
	stale := slices.DeleteFunc(slices.Clone(s.spares), func(p *spare) bool { return p.generation == g })
	missing := max(0, wanted-(len(s.spares)-len(stale)))
	s.mu.Unlock()
	var made []*spare
	var err error
	for range missing {
		var p *spare
		if p, err = newSpare(g, about); err != nil {
			break
		}
		made = append(made, p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// One of an earlier generation is better than none while the next is made.
	s.spares = slices.DeleteFunc(s.spares, func(p *spare) bool {
		if p.generation != g {
			p.Close()
		}
		return p.generation != g
	})
	s.spares = append(s.spares, made...)
	for len(s.spares) > wanted {
		s.spares[0].Close()
		s.spares = s.spares[1:]
	}
	return err
}

func newSpare(g *engine.Generation, about func() ([]byte, error)) (_ *spare, err error) {
	p := &spare{generation: g}
	if p.about, err = about(); err != nil {
		return nil, err
	}
	if p.stats, err = loader.NewStats(0); err != nil {
		return nil, err
	}
	if p.program, err = g.Load(p.stats); err != nil {
		return nil, errors.Join(err, p.stats.Close())
	}
	return p, nil
}

// retire ends the sentry. It gives what was still to be taken in.
func (s *sentry) retire() []*hold {
	for _, p := range s.posts {
		p.leave()
	}
	s.mu.Lock()
	s.places = nil
	s.mu.Unlock()
	s.met.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.spares {
		p.Close()
	}
	s.spares = nil
	clear(s.known)
	arrived := s.arrived
	s.arrived = nil
	return arrived
}
