// Package digests remembers which packets passed an interface and when, and
// finds where a packet has come from: the Source Path Isolation Engine of
// Snoeren et al. ("Hash-based IP traceback", SIGCOMM 2001) over the digests that
// the data plane records.
//
// A [Recorder] turns what is recorded into slices of time, which it keeps in
// memory and, if wanted, in an [Archive] on disk. [Path] finds, of several nodes
// that were asked for a packet, the way that it has taken.
package digests

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir/control/engine"
	"weir/control/observe/events"
	"weir/filter/digest"
	"weir/filter/key"
	"weir/loader"
)

// Config says what is recorded, and where it is archived.
type Config struct {
	digest.Config
	Archive ArchiveConfig // without a directory: none
}

// Tick is how often a Recorder wants to be called besides: a loop is found within
// this time.
const Tick = 100 * time.Millisecond

// Interface is one on which packets are recorded.
type Interface struct {
	loader.Target
	Stats *loader.Stats
}

// Loop is a packet that is suspected to run in a circle.
type Loop struct {
	loader.Target
	Src, Dst    netip.Addr
	Proto       uint8
	First, Last uint8 // TTL
}

// Counts are what was counted on an interface since it was first recorded here.
type Counts struct {
	loader.Target
	Packets uint64  // recorded
	Skipped uint64  // cut off or malformed
	Loops   uint64  // packets that are suspected to run in a circle
	Slices  int     // in memory
	Bytes   int     // of memory, that of the kernel and that of the slices
	Fill    float64 // of the last slice: the share of its bits that are set
	Chance  float64 // that it matches a packet that did not pass
}

// Recorder takes over, slice by slice, what the programs record. There must be
// just one for an interface. Its methods are for one goroutine, but for Find,
// Counts and Close.
type Recorder struct {
	Config
	geometry digest.Geometry
	ticked   time.Time // when Tick was last called; at first, when the recorder was made
	archive  *Archive  // nil: none

	mu   sync.Mutex // guards what follows
	logs []*record
}

// record is of an interface.
type record struct {
	loader.Target
	stats  *loader.Stats // nil while the interface is gone
	slices []*digest.Slice
	begun  time.Time // of the slice under way
	number uint32    // of that
	past   Counts    // of former slices
	now    Counts    // of that under way
	told   events.Loops
	live   *digest.Slice // what the slice under way has, as it was last asked for
}

// NewRecorder makes a recorder, which may be to succeed a former one, and then writes
// to the same archive, if that is where it was. It fails where the configuration does,
// or where the archive cannot be opened.
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

// Geometry is that of the filters, for a generation to have.
func (r *Recorder) Geometry() digest.Geometry { return r.geometry }

// Due is how long after a time a slice ends.
func (r *Recorder) Due(now time.Time) time.Duration {
	return r.Begin(r.Number(now) + 1).Sub(now)
}

// Tick does what is due: it ends slices whose time has come, and finds loops.
// What was recorded before an interface is first among these counts as recorded in
// a slice that began before the last call without it.
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
			continue // it records none of these
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
		loader.Grace() // what was still recording in the banks that are read now is through
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

// follow goes over to the interfaces that there are now.
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

// late is how long a program may record until Tick is told of its interface.
const late = time.Second

// adopt finds out in which slice a program has begun to record. One that has not
// been told of any has begun since Tick was last called.
func (r *Recorder) adopt(l *record, m *loader.DigestMemory, now time.Time) {
	b, _ := m.Bank(0, m.Active())
	current := r.Number(now)
	switch {
	case b.Slice != 0:
		l.number = b.Slice
		l.begun = r.Begin(current - int64(int32(uint32(current)-b.Slice))) // it may be yet to come: see span
	default:
		l.number = 0
		l.begun = r.Begin(r.Number(r.ticked.Add(-late)))
	}
}

// end makes a slice of the bank that has ended, at a time not before one and
// not after the other.
func (r *Recorder) end(l *record, m *loader.DigestMemory, before, after time.Time) {
	s, counts := r.read(l, m, 1-m.Active(), after)
	l.past, l.now, l.live = l.past.plus(counts), Counts{}, nil
	l.begun = before
	if s.Packets > 0 {
		r.keep(l, s)
	}
}

// span is the time that a slice tells of which took so long. Where the clock was set
// back meanwhile it is that by the old clock and by the new one, with what lies between:
// nobody knows by which of them a packet was captured. Set forward, it is the same without
// more ado. One that begins after it ends, since the clock was set back while no recorder
// was there, counts as one of the usual length.
func (c Config) span(begun, end time.Time, took time.Duration) (from, to time.Time) {
	if took < 0 {
		took = c.Slice
	}
	begun = begun.Round(0) // without the monotonic clock's reading, which knows nothing of this
	back := max(0, begun.Add(took).Sub(end.Round(0)))
	return begun.Add(-back), end.Add(back)
}

// read makes a slice of what is in a bank, up to a time.
func (r *Recorder) read(l *record, m *loader.DigestMemory, bank int, end time.Time) (*digest.Slice, Counts) {
	s := &digest.Slice{Seed: m.Seed, Filter: digest.NewFilter(r.geometry)}
	s.From, s.To = r.span(l.begun, end, end.Sub(l.begun))
	var counts Counts
	for cpu := range m.CPUs {
		b, words := m.Bank(cpu, bank)
		gathered := *b // before the filter, where the packets are from then on
		for _, g := range gathered.Gathered[:min(gathered.Count, loader.Gathered)] {
			s.Filter.Record(g.Digest)
		}
		if err := s.Filter.Union(words); err != nil {
			panic(err) // the generation is of this geometry
		}
		counts = counts.plus(Counts{Packets: gathered.Packets + uint64(gathered.Count), Skipped: gathered.Skipped, Loops: gathered.Loops})
	}
	s.Packets = counts.Packets
	return s, counts
}

// find finds suspects that are not told of, and counts.
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
		if l.told.Tell(t.Src, t.Dst, now) {
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

// Look takes in what the slices under way have, for Find to know of it.
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

// Finish makes slices of what is recorded so far, for what goes on to be recorded is
// lost, or another's.
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

// keep takes a slice up that does not change any more.
func (r *Recorder) keep(l *record, s *digest.Slice) {
	l.slices = append(l.slices, s)
	if r.archive != nil {
		r.archive.put(l.Target, s)
	}
}

// Counts gives what was counted on each interface.
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

// Archived is what the archive has come to, false if there is none.
func (r *Recorder) Archived() (ArchiveCounts, bool) {
	if r.archive == nil {
		return ArchiveCounts{}, false
	}
	return r.archive.Counts(), true
}

// Window is when a packet is looked for, both ends included.
type Window struct{ From, To time.Time }

// Seen is what an interface has seen of packets, in their order.
type Seen struct {
	loader.Target
	Since time.Time // when what is remembered begins; zero: nothing is
	Found []digest.Finding
}

// Packet is an IP packet, or the beginning of one that has its invariant part, and
// when it is looked for.
type Packet struct {
	Data []byte
	Window
}

// Find tells of each interface in which slices the packets may have passed, those in
// order of time. It fails when ctx is done, where the archive cannot be read, with
// ErrTooMuch, or with digest's errors.
func (r *Recorder) Find(ctx context.Context, packets []Packet) ([]Seen, error) {
	for i, p := range packets {
		if _, err := digest.Sum(0, p.Data); err != nil {
			return nil, fmt.Errorf("packet %d: %w", i+1, err)
		}
	}
	q := search{packets: packets, sums: make(map[uint64][]uint64)}
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
			slices.SortFunc(q.seen[i].Found[k].Matches, func(a, b digest.Match) int { return a.Start.Compare(b.Start) })
		}
	}
	return q.seen, nil
}

// kept are the slices in memory of each interface.
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

// search goes through slices for packets.
type search struct {
	packets []Packet
	sums    map[uint64][]uint64 // the packets' digests, by seed
	seen    []Seen
}

func (q *search) interfaceOf(t loader.Target) *Seen {
	i := slices.IndexFunc(q.seen, func(s Seen) bool { return s.Target == t })
	if i < 0 {
		i, q.seen = len(q.seen), append(q.seen, Seen{Target: t, Found: make([]digest.Finding, len(q.packets))})
	}
	return &q.seen[i]
}

// wants reports whether any packet is looked for in a time.
func (q *search) wants(from, to time.Time) bool {
	return slices.ContainsFunc(q.packets, func(p Packet) bool { return to.After(p.From) && !from.After(p.To) })
}

func (q *search) ask(t loader.Target, s *digest.Slice) {
	seen := q.interfaceOf(t)
	seen.begin(s.From)
	sums, ok := q.sums[s.Seed]
	if !ok {
		for _, p := range q.packets {
			d, _ := digest.Sum(s.Seed, p.Data) // each has one: see Find
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

// begin notes that something is remembered from a time on.
func (s *Seen) begin(at time.Time) {
	if s.Since.IsZero() || at.Before(s.Since) {
		s.Since = at
	}
}

// Succeed goes on with what a former recorder has, which is finished.
func (r *Recorder) Succeed(former *Recorder) {
	if r.archive != nil && r.archive == former.archive {
		r.archive.limit(r.Archive)
	}
	former.mu.Lock()
	defer former.mu.Unlock()
	for _, l := range former.logs {
		r.logs = append(r.logs, &record{Target: l.Target, slices: slices.Clone(l.slices), past: l.total(), told: l.told})
	}
}

// CloseUnless waits until the archive has what it was given, unless it is that of
// the recorder that goes on. A nil recorder has nothing to wait for.
func (r *Recorder) CloseUnless(going *Recorder) error {
	if r == nil || r.archive == nil || going != nil && r.archive == going.archive {
		return nil
	}
	return r.archive.Close()
}

// String names the addresses of a loop.
func (l Loop) String() string {
	return fmt.Sprintf("%s %v > %v, TTL %d to %d", key.ProtoName(l.Proto), l.Src, l.Dst, l.First, l.Last)
}
