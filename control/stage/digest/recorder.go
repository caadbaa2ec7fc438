// Package digest records which packets passed an interface and when, and finds
// where a packet came from: the Source Path Isolation Engine of Snoeren et al.
// ("Hash-based IP traceback", SIGCOMM 2001) over the digests that the data
// plane records.
//
// A [Recorder] divides the recorded digests into time slices, which it keeps in
// memory and, optionally, in an [Archive] on disk. [Question] queries several
// nodes for packets and reconstructs the path that they took.
//
// A digest sets bits for a keyed hash of the fields that do not change on the way
// (filter/invariant), all in one cache line of a filter (filter/blocked). A bank gathers sixteen
// packets, touches their cache lines, and then writes them, because writes that miss would each
// wait. When a slice ends, the recorder adds what is still gathered. Bits that are all set mean
// that the packet was seen before, and only then is its TTL looked at.
package digest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/observe/events"
	"weir/control/stage"
	"weir/filter/blocked"
	"weir/filter/digest"
	"weir/filter/hash"
	"weir/filter/invariant"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// counts are an interface's counters since it was first recorded here.
type counts struct {
	packets uint64 // recorded
	skipped uint64 // truncated or malformed
	loops   uint64 // packets suspected of being in a loop
}

// Recorder collects, slice by slice, the digests that the programs record, for the life of a
// daemon. There must be exactly one per interface. Its methods are not safe for concurrent use,
// except Trace and Samples.
type Recorder struct {
	directory string // of the archive
	hub       *events.Hub
	log       *slog.Logger

	mu      sync.Mutex // guards the fields below
	part    *Part      // of the programs; nil: they record nothing
	archive *Archive   // nil: none, or it could not be opened
	ticked  time.Time  // last call of Tick, or when the first programs were yet to record
	logs    []*record  // also of interfaces whose counters alone are kept
}

// record is the state of an interface.
type record struct {
	netif.Target
	stats    *loader.Stats // nil while the interface is gone
	slices   []*digest.Slice
	begun    time.Time // begin of the present slice
	number   uint32    // its number
	past     counts    // of finished slices
	now      counts    // its number under way
	reported stage.Reported
	live     *digest.Slice // the present slice as of the last look
}

// NewRecorder returns a recorder, with its archive below a directory. It reports loops to the
// hub.
func NewRecorder(stateDir string, hub *events.Hub, log *slog.Logger) *Recorder {
	return &Recorder{directory: filepath.Join(stateDir, "digests"), hub: hub, log: log}
}

// Prepare makes ready to follow a part, nil for none. Where the archive cannot be opened, slices are
// kept in memory alone, until a later Prepare can open it: filtering does not depend on it.
func (r *Recorder) Prepare(next *Part) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.part == nil {
		r.ticked = time.Now()
	}
	if next.archives() && r.archive == nil {
		var err error
		if r.archive, err = OpenArchive(r.archiveOf(next), r.log); err != nil {
			r.log.Error("digests are kept in memory alone until the next reload: " + err.Error())
		}
	}
}

// Finish ends all slices, unless they go on with the next part. It is called when the next
// programs are ready: what passes from then on until they run is not recorded.
func (r *Recorder) Finish(next *Part) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.part.goesOn(next) {
		return
	}
	r.look()
	for _, l := range r.logs {
		if l.live != nil && l.live.Packets > 0 {
			r.keep(l, l.live)
		}
		l.live = nil
	}
}

// Follow goes on with what a part records, nil for nothing: then all but the counters is forgotten.
func (r *Recorder) Follow(next *Part) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.part.goesOn(next) {
		for _, l := range r.logs {
			l.past, l.now, l.begun, l.live = l.total(), counts{}, time.Time{}, nil
		}
	}
	if r.part = next; next == nil {
		for _, l := range r.logs {
			l.stats, l.slices = nil, nil
		}
	}
	if next.archives() && r.archive != nil {
		r.archive.limit(r.archiveOf(next))
	} else {
		r.closeArchive()
	}
}

// archiveOf returns the archive of a part, in the recorder's directory.
func (r *Recorder) archiveOf(p *Part) ArchiveConfig {
	c := p.Archive
	c.Dir = r.directory
	return c
}

// Close waits until the archive is written.
func (r *Recorder) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closeArchive()
}

func (r *Recorder) closeArchive() {
	if r.archive != nil {
		_ = r.archive.Close() // never fails
		r.archive = nil
	}
}

// Tick ends the slices that are due, and reports loops. Packets recorded before an interface is
// first passed to Tick count as part of a slice that began before the last call without it. An
// interface that is gone is forgotten with its last slice; the counters of one that is named stay.
func (r *Recorder) Tick(_ time.Duration, incoming []stage.Interface, named []netif.Target) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.part == nil {
		return stage.Idle
	}
	r.follow(incoming)
	now := time.Now()
	number := uint32(r.part.Config.Number(now))
	var ended []*record
	for _, l := range r.recorded() {
		r.part.Read(l.stats, func(m *Memory) {
			if l.begun.IsZero() {
				r.adopt(l, m, now)
			}
			if l.number != number {
				m.Begin(1-m.Active(), number)
				m.Exchange()
				ended = append(ended, l)
			}
		})
	}
	if len(ended) > 0 {
		loader.Grace() // no program is writing to the banks that are read now
	}
	after := time.Now()
	for _, l := range r.recorded() {
		if l.begun.IsZero() {
			continue
		}
		r.part.Read(l.stats, func(m *Memory) {
			if slices.Contains(ended, l) {
				r.find(l, m, 1-m.Active(), now)
				r.end(l, m, now, after)
				l.number = number
			}
			r.find(l, m, m.Active(), now)
		})
	}
	for _, l := range r.logs { // by the monotonic clock: a wall clock that is set forward removes none
		l.slices = slices.DeleteFunc(l.slices, func(s *digest.Slice) bool { return s.To.Before(now.Add(-r.part.Config.Keep)) })
	}
	r.logs = slices.DeleteFunc(r.logs, func(l *record) bool { return l.empty() && !slices.Contains(named, l.Target) })
	r.ticked, now = now, time.Now()
	return min(r.part.Config.Begin(r.part.Config.Number(now)+1).Sub(now), stage.Often)
}

// follow updates the set of interfaces.
func (r *Recorder) follow(interfaces []stage.Interface) {
	for _, l := range r.logs {
		if !slices.Contains(interfaces, stage.Interface{Target: l.Target, Stats: l.stats}) {
			l.past, l.now = l.total(), counts{}
			l.stats, l.begun, l.live = nil, time.Time{}, nil
		}
	}
	for _, i := range interfaces {
		k := slices.IndexFunc(r.logs, func(l *record) bool { return l.Target == i.Target })
		if k < 0 {
			k, r.logs = len(r.logs), append(r.logs, &record{Target: i.Target})
		}
		r.logs[k].stats = i.Stats
	}
}

// recorded returns the state of the interfaces that are there.
func (r *Recorder) recorded() []*record {
	return slices.DeleteFunc(slices.Clone(r.logs), func(l *record) bool { return l.stats == nil })
}

// late bounds the time for which a program records before its interface is
// passed to Tick.
const late = time.Second

// adopt determines in which slice a program began to record. One without a
// slice number began after the last call of Tick.
func (r *Recorder) adopt(l *record, m *Memory, now time.Time) {
	b, _ := m.Bank(0, m.Active())
	current := r.part.Config.Number(now)
	switch {
	case b.Slice != 0:
		l.number = b.Slice
		l.begun = r.part.Config.Begin(current - int64(int32(uint32(current)-b.Slice))) // may be in the future: see span
	default:
		l.number = 0
		l.begun = r.part.Config.Begin(r.part.Config.Number(r.ticked.Add(-late)))
	}
}

// end makes a slice of the finished bank, whose end is between two times.
func (r *Recorder) end(l *record, m *Memory, before, after time.Time) {
	s, n := r.read(l, m, 1-m.Active(), after)
	l.past, l.now, l.live = l.past.plus(n), counts{}, nil
	l.begun = before
	if s.Packets > 0 {
		r.keep(l, s)
	}
}

// span returns the time that a slice of the given duration covers. If the clock
// was set back meanwhile, it covers the slice by the old clock and by the new one,
// because a packet's time may have been read from either.
// If it was set forward, that needs no special case. A slice that begins after
// it ends, because the clock was set back while no recorder was running, is
// assumed to have the usual length. The end keeps its monotonic reading, by which a slice ages.
func (p *Part) span(begun, end time.Time, took time.Duration) (from, to time.Time) {
	if took < 0 {
		took = p.Config.Slice
	}
	begun = begun.Round(0) // without the monotonic reading, which clock changes do not affect
	back := max(0, begun.Add(took).Sub(end.Round(0)))
	return begun.Add(-back), end.Add(back)
}

// read makes a slice of the contents of a bank, up to a time.
func (r *Recorder) read(l *record, m *Memory, bank int, end time.Time) (*digest.Slice, counts) {
	s := &digest.Slice{Seed: m.Seed(), Filter: blocked.New(r.part.Filter)}
	s.From, s.To = r.part.span(l.begun, end, end.Sub(l.begun))
	var n counts
	for cpu := range loader.CPUs() {
		b, words := m.Bank(cpu, bank)
		gathered := *b // before the filter, which contains at least these packets
		for _, g := range gathered.Gathered[:min(int(gathered.Count), len(gathered.Gathered))] {
			s.Filter.Observe(g.Digest)
		}
		if err := s.Filter.Union(words); err != nil {
			panic(err) // cannot happen: the memory has this geometry
		}
		n = n.plus(counts{gathered.Packets + uint64(gathered.Count), gathered.Skipped, gathered.Loops})
	}
	s.Packets = n.packets
	return s, n
}

// find counts suspects, and reports those that have not been.
func (r *Recorder) find(l *record, m *Memory, bank int, now time.Time) {
	var n counts
	var number uint32
	for cpu := range loader.CPUs() {
		b, _ := m.Bank(cpu, bank)
		n = n.plus(counts{b.Packets + uint64(b.Count), b.Skipped, b.Loops})
		number = b.Slice
	}
	more := n.loops > l.now.loops
	l.now = n
	if !more {
		return
	}
	for _, s := range m.Suspects(number) {
		t := engine.TupleOf(&loader.Packet{Family: s.Family, Src: s.Src, Dst: s.Dst, Proto: s.Proto})
		if !l.reported.Report(t.Src, t.Dst, now) {
			continue
		}
		r.hub.Report(events.Event{
			Time: time.Now(), Target: l.Target, Reason: verdict.Looped, OneIn: 1, FirstTTL: s.First, TTL: s.Ttl,
			Tuple: key.Tuple{Src: t.Src, Dst: t.Dst, Proto: t.Proto},
		})
		r.log.Warn("packets seem to run in a loop: check the route to their destination", "interface", l.Target.String(),
			"packet", fmt.Sprintf("%s %v > %v, TTL %d to %d", key.ProtoName(t.Proto), t.Src, t.Dst, s.First, s.Ttl))
	}
}

func (c counts) plus(d counts) counts {
	return counts{c.packets + d.packets, c.skipped + d.skipped, c.loops + d.loops}
}

func (l *record) total() counts { return l.past.plus(l.now) }

// empty reports whether an interface is gone, and no slice of it is left.
func (l *record) empty() bool { return l.stats == nil && len(l.slices) == 0 }

// Trace answers a question for packets by all that is recorded, up to now.
func (r *Recorder) Trace(ctx context.Context, q api.TraceQuestion) (*api.Traced, error) {
	r.mu.Lock()
	off := r.part == nil
	r.look()
	r.mu.Unlock()
	if off {
		return nil, api.ErrNoDigests
	}
	packets := make([]Packet, len(q.Packets))
	for i, p := range q.Packets {
		packets[i] = Packet{Data: p.Data, Window: Window{From: p.From, To: p.To}}
	}
	seen, err := r.Find(ctx, packets)
	switch {
	case errors.Is(err, invariant.ErrTruncated) || errors.Is(err, invariant.ErrMalformed) || errors.Is(err, ErrTooMuch):
		return nil, &api.BadRequest{Err: err}
	case err != nil:
		return nil, fmt.Errorf("trace: %w", err)
	}
	host, _ := os.Hostname() // "": it has none
	t := &api.Traced{Host: host, Version: digest.Version}
	for _, s := range seen {
		i := api.TracedInterface{Name: s.Iface, Netns: s.Netns, Packets: make([]api.TracedPacket, len(s.Found))}
		if !s.Since.IsZero() {
			i.Since = &s.Since
		}
		for k, found := range s.Found {
			i.Packets[k] = api.TracedPacket{Chance: found.Chance(), Slices: []api.TracedSlice{}}
			for _, m := range found.Matches {
				i.Packets[k].Slices = append(i.Packets[k].Slices, api.TracedSlice{
					Start: m.Start, Length: m.Length.Seconds(), Chance: m.Chance,
				})
			}
		}
		t.Interfaces = append(t.Interfaces, i)
	}
	return t, nil
}

// look copies the present slices, so that Find sees them.
func (r *Recorder) look() {
	for _, l := range r.recorded() {
		if l.begun.IsZero() {
			continue
		}
		r.part.Read(l.stats, func(m *Memory) { l.live, _ = r.read(l, m, m.Active(), time.Now()) })
	}
}

// keep stores a finished slice.
func (r *Recorder) keep(l *record, s *digest.Slice) {
	l.slices = append(l.slices, s)
	if r.part.archives() && r.archive != nil {
		r.archive.put(l.Target, s)
	}
}

// Window is a time range, both ends included.
type Window struct{ From, To time.Time }

// Seen is an interface's answer for some packets, in their order.
type Seen struct {
	netif.Target
	Since time.Time // begin of the records; zero: there are none
	Found []digest.Finding
}

// Packet is an IP packet, or the start of one with its invariant part, and the
// window in which to look for it.
type Packet struct {
	Data []byte
	Window
}

// Find returns, for each interface, the slices in which the packets may have
// passed, in order of time. It fails when ctx is done, if the archive cannot be
// read, with ErrTooMuch, or with the errors of package invariant.
func (r *Recorder) Find(ctx context.Context, packets []Packet) ([]Seen, error) {
	for i, p := range packets {
		if _, err := invariant.Append(nil, p.Data); err != nil {
			return nil, fmt.Errorf("packet %d: %w", i+1, err)
		}
	}
	q := search{packets: packets, sums: make(map[hash.Seed][]uint64)}
	inMemory := make(map[string]bool)
	kept, archive := r.kept()
	for _, k := range kept {
		q.interfaceOf(k.Target)
		for _, s := range k.slices {
			q.ask(k.Target, s)
			inMemory[nameOf(archived{k.Target, s})] = true
		}
	}
	if archive != nil {
		wanted := func(f file) bool {
			q.interfaceOf(f.Target).begin(f.from)
			return !inMemory[f.name] && q.wants(f.from, f.to)
		}
		for s, err := range archive.slices(ctx, wanted) {
			if err != nil {
				return nil, err
			}
			q.ask(s.Target, s.Slice)
		}
	}
	for i := range q.seen {
		for k := range q.seen[i].Found {
			ordered.By(q.seen[i].Found[k].Matches, func(a, b digest.Match) int { return a.Start.Compare(b.Start) })
		}
	}
	return q.seen, nil
}

// kept returns the slices in memory of each interface, and the archive.
func (r *Recorder) kept() (all []record, _ *Archive) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.logs {
		if l.empty() {
			continue
		}
		k := record{Target: l.Target, slices: slices.Clone(l.slices)}
		if l.live != nil {
			k.slices = append(k.slices, l.live)
		}
		all = append(all, k)
	}
	return all, r.archive
}

// search looks for packets in slices.
type search struct {
	packets []Packet
	sums    map[hash.Seed][]uint64 // the packets' digests, by seed
	seen    []Seen
}

func (q *search) interfaceOf(t netif.Target) *Seen {
	i := slices.IndexFunc(q.seen, func(s Seen) bool { return s.Target == t })
	if i < 0 {
		i, q.seen = len(q.seen), append(q.seen, Seen{Target: t, Found: make([]digest.Finding, len(q.packets))})
	}
	return &q.seen[i]
}

// wants reports whether any packet's window overlaps a time range.
func (q *search) wants(from, to time.Time) bool {
	return slices.ContainsFunc(q.packets, func(p Packet) bool { return to.After(p.From) && !from.After(p.To) })
}

func (q *search) ask(t netif.Target, s *digest.Slice) {
	seen := q.interfaceOf(t)
	seen.begin(s.From)
	sums, ok := q.sums[s.Seed]
	if !ok {
		secret := hash.NewSecret(s.Seed)
		for _, p := range q.packets {
			d, _ := digest.Sum(secret, p.Data) // cannot fail: see Find
			sums = append(sums, d)
		}
		q.sums[s.Seed] = sums
	}
	for i, p := range q.packets {
		if s.Overlaps(p.From, p.To) {
			seen.Found[i].Ask(s, sums[i])
		}
	}
}

// begin notes that there are records from a time on.
func (s *Seen) begin(at time.Time) {
	if s.Since.IsZero() || at.Before(s.Since) {
		s.Since = at
	}
}
