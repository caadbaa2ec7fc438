// Package digest records which packets passed an interface and when, and finds
// where a packet came from: the Source Path Isolation Engine of Snoeren et al.
// ("Hash-based IP traceback", SIGCOMM 2001) over the digests that the data
// plane records.
//
// A [Recorder] divides the recorded digests into time slices, which it keeps in
// memory and, optionally, in an [Archive] on disk. [Question] queries several
// nodes for packets and reconstructs the path that they took.
package digest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/observe/events"
	"weir/filter/digest"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/loader"
)

// Config says what is recorded, and where it is archived.
type Config struct {
	digest.Config
	Archive ArchiveConfig // no archive without a directory
}

// Tick is the interval at which Recorder.Tick should be called: a loop is found
// within this time.
const Tick = 100 * time.Millisecond

// Interface is an interface on which packets are recorded.
type Interface struct {
	loader.Target
	Stats *loader.Stats
}

// Loop is a packet that is suspected of being in a routing loop.
type Loop struct {
	loader.Target
	Src, Dst    netip.Addr
	Proto       uint8
	First, Last uint8 // TTL
}

// Counts are an interface's counters since it was first recorded here.
type Counts struct {
	loader.Target
	Packets uint64  // recorded
	Skipped uint64  // truncated or malformed
	Loops   uint64  // packets suspected of being in a loop
	Slices  int     // in memory
	Bytes   int     // of memory, kernel and slices together
	Fill    float64 // of the last slice: the fraction of set bits
	Chance  float64 // its false-positive rate
}

// Recorder collects, slice by slice, the digests that the programs record.
// There must be exactly one per interface. Its methods are not safe for
// concurrent use, except Find, Counts and Close.
type Recorder struct {
	Config
	geometry digest.Geometry
	ticked   time.Time // last call of Tick; initially, of NewRecorder
	archive  *Archive  // nil: none

	mu   sync.Mutex // guards the fields below
	logs []*record
}

// record is the state of an interface.
type record struct {
	loader.Target
	stats    *loader.Stats // nil while the interface is gone
	slices   []*digest.Slice
	begun    time.Time // begin of the present slice
	number   uint32    // its number
	past     Counts    // of finished slices
	now      Counts    // its number under way
	reported events.Loops
	live     *digest.Slice // the present slice as of the last Look
}

// NewRecorder returns a recorder. If it succeeds a former one with the same
// archive directory, it continues that archive. It fails if the configuration
// is invalid or the archive cannot be opened.
func NewRecorder(c Config, former *Recorder, log *slog.Logger) (*Recorder, error) {
	g, err := c.Geometry()
	if err != nil {
		return nil, err
	}
	r := &Recorder{Config: c, geometry: g, ticked: time.Now()}
	switch {
	case c.Archive.Dir == "":
	case former != nil && former.Archive.Dir == c.Archive.Dir:
		r.archive = former.archive
	default:
		if r.archive, err = OpenArchive(c.Archive, log); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Geometry returns the geometry of the filters, for building a generation.
func (r *Recorder) Geometry() digest.Geometry { return r.geometry }

// Due returns the time until the present slice ends.
func (r *Recorder) Due(now time.Time) time.Duration {
	return r.Begin(r.Number(now) + 1).Sub(now)
}

// Tick ends the slices that are due, and finds loops. Packets recorded before
// an interface is first passed to Tick count as part of a slice that began
// before the last call without it.
func (r *Recorder) Tick(g *engine.Generation, interfaces []Interface) []Loop {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.follow(interfaces)
	now := time.Now()
	number := uint32(r.Number(now))
	var ended []*record
	for _, l := range r.logs {
		if l.stats == nil {
			continue
		}
		m, err := g.OpenDigests(l.stats)
		if err != nil {
			continue // records no such digests
		}
		if l.begun.IsZero() {
			r.adopt(l, m, now)
		}
		if l.number != number {
			m.Begin(1-m.Active(), number)
			m.Exchange()
			ended = append(ended, l)
		}
		m.Close() // if it fails, the memory leaks
	}
	if len(ended) > 0 {
		loader.Grace() // no program is writing to the banks that are read now
	}
	after := time.Now()
	var loops []Loop
	for _, l := range r.logs {
		if l.stats == nil || l.begun.IsZero() {
			continue
		}
		m, err := g.OpenDigests(l.stats)
		if err != nil {
			continue
		}
		if slices.Contains(ended, l) {
			loops = append(loops, l.find(m, 1-m.Active(), now)...)
			r.end(l, m, now, after)
			l.number = number
		}
		loops = append(loops, l.find(m, m.Active(), now)...)
		m.Close()
	}
	for _, l := range r.logs {
		l.slices = slices.DeleteFunc(l.slices, func(s *digest.Slice) bool { return s.To.Before(now.Add(-r.Keep)) })
	}
	r.logs = slices.DeleteFunc(r.logs, func(l *record) bool { return l.stats == nil && len(l.slices) == 0 })
	r.ticked = now
	return loops
}

// follow updates the set of interfaces.
func (r *Recorder) follow(interfaces []Interface) {
	for _, l := range r.logs {
		if !slices.ContainsFunc(interfaces, func(i Interface) bool { return i.Target == l.Target && i.Stats == l.stats }) {
			l.past, l.now = l.total(), Counts{}
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

// late bounds the time for which a program records before its interface is
// passed to Tick.
const late = time.Second

// adopt determines in which slice a program began to record. One without a
// slice number began after the last call of Tick.
func (r *Recorder) adopt(l *record, m *loader.DigestMemory, now time.Time) {
	b, _ := m.Bank(0, m.Active())
	current := r.Number(now)
	switch {
	case b.Slice != 0:
		l.number = b.Slice
		l.begun = r.Begin(current - int64(int32(uint32(current)-b.Slice))) // may be in the future: see span
	default:
		l.number = 0
		l.begun = r.Begin(r.Number(r.ticked.Add(-late)))
	}
}

// end makes a slice of the finished bank, whose end is between two times.
func (r *Recorder) end(l *record, m *loader.DigestMemory, before, after time.Time) {
	s, counts := r.read(l, m, 1-m.Active(), after)
	l.past, l.now, l.live = l.past.plus(counts), Counts{}, nil
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
// assumed to have the usual length.
func (c Config) span(begun, end time.Time, took time.Duration) (from, to time.Time) {
	if took < 0 {
		took = c.Slice
	}
	begun = begun.Round(0) // without the monotonic reading, which clock changes do not affect
	back := max(0, begun.Add(took).Sub(end.Round(0)))
	return begun.Add(-back), end.Add(back)
}

// read makes a slice of the contents of a bank, up to a time.
func (r *Recorder) read(l *record, m *loader.DigestMemory, bank int, end time.Time) (*digest.Slice, Counts) {
	s := &digest.Slice{Seed: m.Seed, Filter: digest.NewFilter(r.geometry)}
	s.From, s.To = r.span(l.begun, end, end.Sub(l.begun))
	var counts Counts
	for cpu := range m.CPUs {
		b, words := m.Bank(cpu, bank)
		gathered := *b // before the filter, which contains at least these packets
		for _, g := range gathered.Gathered[:min(gathered.Count, loader.Gathered)] {
			s.Filter.Record(g.Digest)
		}
		if err := s.Filter.Union(words); err != nil {
			panic(err) // cannot happen: the generation has this geometry
		}
		counts = counts.plus(Counts{Packets: gathered.Packets + uint64(gathered.Count), Skipped: gathered.Skipped, Loops: gathered.Loops})
	}
	s.Packets = counts.Packets
	return s, counts
}

// find returns suspects that have not been reported, and counts them.
func (l *record) find(m *loader.DigestMemory, bank int, now time.Time) (loops []Loop) {
	var counts Counts
	var number uint32
	for cpu := range m.CPUs {
		b, _ := m.Bank(cpu, bank)
		counts = counts.plus(Counts{Packets: b.Packets + uint64(b.Count), Skipped: b.Skipped, Loops: b.Loops})
		number = b.Slice
	}
	more := counts.Loops > l.now.Loops
	l.now = counts
	if !more {
		return nil
	}
	for _, s := range m.Suspects(number) {
		t := engine.TupleOf(&loader.Packet{Family: s.Family, Src: s.Src, Dst: s.Dst, Proto: s.Proto})
		if l.reported.Report(t.Src, t.Dst, now) {
			loops = append(loops, Loop{Target: l.Target, Src: t.Src, Dst: t.Dst, Proto: t.Proto, First: s.First, Last: s.Ttl})
		}
	}
	return loops
}

func (c Counts) plus(d Counts) Counts {
	c.Packets += d.Packets
	c.Skipped += d.Skipped
	c.Loops += d.Loops
	return c
}

func (l *record) total() Counts { return l.past.plus(l.now) }

// Answer answers a question by Find.
func (r *Recorder) Answer(ctx context.Context, q api.TraceQuestion) (*api.Traced, error) {
	packets := make([]Packet, len(q.Packets))
	for i, p := range q.Packets {
		packets[i] = Packet{Data: p.Data, Window: Window{From: p.From, To: p.To}}
	}
	seen, err := r.Find(ctx, packets)
	switch {
	case errors.Is(err, digest.ErrTruncated) || errors.Is(err, digest.ErrMalformed) || errors.Is(err, ErrTooMuch):
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

// Look copies the present slices, so that Find sees them.
func (r *Recorder) Look(g *engine.Generation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.logs {
		if l.stats == nil || l.begun.IsZero() {
			continue
		}
		if m, err := g.OpenDigests(l.stats); err == nil {
			l.live, _ = r.read(l, m, m.Active(), time.Now())
			m.Close()
		}
	}
}

// Finish ends all slices. Packets recorded after it are lost, or belong to the
// next recorder.
func (r *Recorder) Finish(g *engine.Generation) {
	r.Look(g)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.logs {
		if l.live != nil && l.live.Packets > 0 {
			r.keep(l, l.live)
		}
		l.live = nil
	}
}

// keep stores a finished slice.
func (r *Recorder) keep(l *record, s *digest.Slice) {
	l.slices = append(l.slices, s)
	if r.archive != nil {
		r.archive.put(l.Target, s)
	}
}

// Counts returns the counters of each interface.
func (r *Recorder) Counts() (all []Counts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.logs {
		c := l.total()
		c.Target, c.Slices = l.Target, len(l.slices)
		c.Bytes = len(l.slices) * r.geometry.Bytes()
		if l.stats != nil {
			c.Bytes += 2 * loader.CPUs() * r.geometry.Bytes()
		}
		if n := len(l.slices); n > 0 {
			c.Fill, c.Chance = l.slices[n-1].Filter.Fill(), l.slices[n-1].Chance()
		}
		all = append(all, c)
	}
	return all
}

// Archived returns the archive's counters, and false if there is none.
func (r *Recorder) Archived() (ArchiveCounts, bool) {
	if r.archive == nil {
		return ArchiveCounts{}, false
	}
	return r.archive.Counts(), true
}

// Window is a time range, both ends included.
type Window struct{ From, To time.Time }

// Seen is an interface's answer for some packets, in their order.
type Seen struct {
	loader.Target
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
// read, with ErrTooMuch, or with the errors of package digest.
func (r *Recorder) Find(ctx context.Context, packets []Packet) ([]Seen, error) {
	for i, p := range packets {
		if _, err := digest.AppendInvariant(nil, p.Data); err != nil {
			return nil, fmt.Errorf("packet %d: %w", i+1, err)
		}
	}
	q := search{packets: packets, sums: make(map[hash.Seed][]uint64)}
	inMemory := make(map[string]bool)
	for _, k := range r.kept() {
		q.interfaceOf(k.Target)
		for _, s := range k.slices {
			q.ask(k.Target, s)
			inMemory[nameOf(archived{k.Target, s})] = true
		}
	}
	if r.archive != nil {
		wanted := func(f file) bool {
			q.interfaceOf(f.Target).begin(f.from)
			return !inMemory[f.name] && q.wants(f.from, f.to)
		}
		for s, err := range r.archive.slices(ctx, wanted) {
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

// kept returns the slices in memory of each interface.
func (r *Recorder) kept() (all []record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.logs {
		k := record{Target: l.Target, slices: slices.Clone(l.slices)}
		if l.live != nil {
			k.slices = append(k.slices, l.live)
		}
		all = append(all, k)
	}
	return all
}

// search looks for packets in slices.
type search struct {
	packets []Packet
	sums    map[hash.Seed][]uint64 // the packets' digests, by seed
	seen    []Seen
}

func (q *search) interfaceOf(t loader.Target) *Seen {
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

func (q *search) ask(t loader.Target, s *digest.Slice) {
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

// Succeed takes over the records of a former recorder, which must be finished.
func (r *Recorder) Succeed(former *Recorder) {
	if r.archive != nil && r.archive == former.archive {
		r.archive.limit(r.Archive)
	}
	former.mu.Lock()
	defer former.mu.Unlock()
	for _, l := range former.logs {
		r.logs = append(r.logs, &record{Target: l.Target, slices: slices.Clone(l.slices), past: l.total(), reported: l.reported})
	}
}

// CloseUnless closes the archive and waits for its writes, unless the
// continuing recorder uses the same one. It does nothing for a nil recorder.
func (r *Recorder) CloseUnless(going *Recorder) error {
	if r == nil || r.archive == nil || going != nil && r.archive == going.archive {
		return nil
	}
	return r.archive.Close()
}

// String returns the addresses and TTLs of a loop.
func (l Loop) String() string {
	return fmt.Sprintf("%s %v > %v, TTL %d to %d", key.ProtoName(l.Proto), l.Src, l.Dst, l.First, l.Last)
}
