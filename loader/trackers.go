package loader

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir/bpf"
)

// Tracker is the unit, the keys and the size of a tracker, constants of the
// program. The loader sets its place in a bank (First, FirstBucket).
type Tracker = bpf.WeirTracker

// MaxTrackers is the maximum number of trackers in a program, MAX_TRACKERS, besides
// one of dropped packets.
const MaxTrackers = 4

// Of the tracker of dropped packets, DROP_TRACKER and DROP_BANK.
const (
	dropTracker = MaxTrackers
	dropBank    = MaxTrackers + 1
)

// PenaltyBuckets is the number of buckets of eight penalties.
const PenaltyBuckets = 1024

// WindowBuckets is the number of buckets of eight flows' windows.
const WindowBuckets = 1024

const (
	lineWords   = int(unsafe.Sizeof(bpf.WeirLine{})) / 8
	bucketWords = int(unsafe.Sizeof(bpf.WeirFlowBucket{})) / 8
	banks       = 2
	banksWord   = int(unsafe.Offsetof(bpf.WeirCpuRow{}.Banks)) / 8
	beganWord   = int(unsafe.Offsetof(bpf.WeirTrackerHead{}.Began)) / 8
	penaltyWord = int(unsafe.Offsetof(bpf.WeirCpuRow{}.Penalties)) / 8
)

func (c *Config) validateTrackers() error {
	all := c.counting()
	if len(all) > MaxTrackers {
		return fmt.Errorf("%d trackers: more than %d", len(all), MaxTrackers)
	}
	for i, t := range c.Trackers {
		if t.Dropped != 0 && i != len(all) {
			return fmt.Errorf("tracker %d: only the last may be of dropped packets", i+1)
		}
		if t.Lines == 0 || t.Buckets == 0 || max(t.Lines, t.Buckets) > maxEntries {
			return fmt.Errorf("tracker %d: %d lines and %d buckets: not in 1 … %d", i+1, t.Lines, t.Buckets, maxEntries)
		}
		if t.Pairs > maxEntries {
			return fmt.Errorf("tracker %d: %d lines of pairs: not in 0 … %d", i+1, t.Pairs, maxEntries)
		}
		if t.Pairs != 0 && (t.Unexempt == 0 || t.Dropped != 0) {
			return fmt.Errorf("tracker %d: a scan detector counts neither what is exempt nor dropped packets alone", i+1)
		}
		if t.ColdShift != 0 && (t.ColdShift < 64-16 || t.ColdShift > 64-6 || t.Dropped != 0) {
			return fmt.Errorf("tracker %d: a cold filter of 2^%d counters: not of 2^6 to 2^16, or of dropped packets", i+1, 64-int(t.ColdShift))
		}
		if t.Lines%2 != 0 {
			return fmt.Errorf("tracker %d: %d lines: not an even number", i+1, t.Lines)
		}
	}
	return nil
}

// counting returns the trackers that count every packet.
func (c *Config) counting() []Tracker {
	return slices.DeleteFunc(slices.Clone(c.Trackers), func(t Tracker) bool { return t.Dropped != 0 })
}

// place returns the index of the i-th tracker in the program, and the index of its bit
// in the banks of a row.
func (c *Config) place(i int) (tracker, bank int) {
	if c.Trackers[i].Dropped != 0 {
		return dropTracker, dropBank
	}
	return i, i
}

// layout is where the trackers are in a bank, and the bank's size.
type layout struct {
	trackers              [MaxTrackers + 1]Tracker
	lines, buckets, pairs uint32
}

// layTrackers lays out the trackers one after the other.
func (c *Config) layTrackers() (l layout) {
	for i, t := range c.Trackers {
		t.First, t.FirstBucket, t.FirstPair = l.lines, l.buckets, l.pairs
		l.lines += 1 + t.Lines + coldLines(&t) // its head precedes them
		l.buckets += t.Buckets
		l.pairs += t.Pairs
		at, _ := c.place(i)
		l.trackers[at] = t
	}
	return l
}

// coldLines returns the lines of a tracker's cold filter.
func coldLines(t *Tracker) uint32 {
	if t.ColdShift == 0 {
		return 0
	}
	return 1 << (64 - t.ColdShift) / uint32(8*lineWords)
}

// trackerLayout is the version of how trackers count in their memory: a program
// that counts differently must not continue there.
const trackerLayout = "tags of 16 bits, two counters, one multilinear hash, steps, a cold filter"

// trackerIdentity identifies what may count in the same memory, 0 for no trackers.
func (c *Config) trackerIdentity() uint64 {
	if len(c.Trackers) == 0 {
		return 0
	}
	h := fnv.New64a()
	fmt.Fprint(h, trackerLayout)
	for _, t := range c.Trackers {
		fmt.Fprintf(h, "%+v", t)
	}
	return h.Sum64() | 1
}

// identity returns the identity of the trackers in the memory, 0 for none.
func (k pinnedMaps) identity() uint64 { return k.trackers().Identity }

// trackers returns the record of the trackers that use the memory.
func (k pinnedMaps) trackers() *bpf.WeirTrackerState {
	return &Entries[bpf.WeirTrackerState](k, bpf.WeirMapTrackerNow)[0]
}

// counted returns the maps that trackers with this layout count in, with their numbers of
// entries. There is a line more than the banks have: earlier versions, which read the maps of
// each interface alone, do not continue in them.
func (l *layout) counted(cpus int) map[string]int {
	return map[string]int{
		bpf.WeirMapTrackerLines: cpus*banks*int(l.lines) + 1,
		bpf.WeirMapTrackerFlows: max(1, cpus*banks*int(l.buckets)),
		bpf.WeirMapTrackerPairs: max(1, banks*int(l.pairs)),
	}
}

// punished returns the maps of penalties, with their numbers of entries.
func punished() map[string]int {
	return map[string]int{
		bpf.WeirMapPenalties:  PenaltyBuckets,
		bpf.WeirMapThresholds: MaxTrackers,
		bpf.WeirMapWindows:    WindowBuckets,
	}
}

// newHead returns an interface's record of the configuration's trackers.
func newHead(cfg *Config) (pinnedMaps, error) {
	k, err := newPinnedMaps(map[string]int{bpf.WeirMapTrackerNow: 1})
	if err != nil {
		return nil, err
	}
	now := k.trackers()
	now.Seed, now.Identity = cfg.TrackerSeed, cfg.trackerIdentity()
	return k, nil
}

// TrackerSeed returns the seed from which the secrets of the trackers in these stats
// derive, zero if there are none. A generation with this seed and the same trackers
// continues them.
func (s *Stats) TrackerSeed() (seed Seed) {
	s.read(func(k pinnedMaps) { seed = k.trackers().Seed })
	return seed
}

// Trackers is the memory of trackers, which programs read and write at the same time. All
// interfaces with programs of the generation share it, but each has words of its own that say in
// which bank it counts, how many penalties there are, and whether it wakes the control plane.
type Trackers struct {
	CPUs      int
	Penalties []uint64 // a bucket of eight hashes and eight times four words, PenaltyBuckets times
	Windows   []uint64 // a bucket of eight hashes and eight times two words, WindowBuckets times

	thresholds                []Threshold
	rows, lines, flows, pairs []uint64
	layout                    layout
	config                    *Config
	shared                    pinnedMaps
	memory                    *trackerMemory
}

// ErrNotRecorded reports that there is nothing to read: the generation has no
// trackers, or those in the stats have another geometry or seed.
var ErrNotRecorded = errors.New("not recorded for this generation")

// OpenTrackers opens the memory of the generation's trackers for the programs that
// were loaded with the stats. It fails with [ErrNotRecorded] where these have
// none, or other ones. The memory remains valid until Close, even if programs go
// over to new memory.
func (g *Generation) OpenTrackers(s *Stats) (*Trackers, error) {
	if len(g.config.Trackers) == 0 {
		return nil, ErrNotRecorded
	}
	shared := s.share(bpf.WeirMapReasonStats, bpf.WeirMapPenalties, bpf.WeirMapThresholds, bpf.WeirMapWindows,
		bpf.WeirMapTrackerNow, bpf.WeirMapTrackerLines, bpf.WeirMapTrackerFlows, bpf.WeirMapTrackerPairs)
	memory := g.counting.present()
	if shared == nil || shared.identity() != g.trackers || !memory.isOf(shared) {
		return nil, errors.Join(ErrNotRecorded, shared.Close())
	}
	return &Trackers{
		CPUs:      s.cpus,
		Penalties: shared[bpf.WeirMapPenalties].words,
		Windows:   shared[bpf.WeirMapWindows].words,

		thresholds: Entries[Threshold](shared, bpf.WeirMapThresholds),

		rows:   shared[bpf.WeirMapReasonStats].words,
		lines:  shared[bpf.WeirMapTrackerLines].words,
		flows:  shared[bpf.WeirMapTrackerFlows].words,
		pairs:  shared[bpf.WeirMapTrackerPairs].words,
		layout: g.layout, config: &g.config,
		shared: shared, memory: memory,
	}, nil
}

// Close releases the memory.
func (t *Trackers) Close() error { return t.shared.Close() }

// Place is where the banks are in memory: the same for all interfaces that count in them.
func (t *Trackers) Place() *uint64 { return &t.lines[0] }

// Active returns the bank, 0 or 1, in which a tracker's packets are counted.
func (t *Trackers) Active(tracker int) int {
	_, bank := t.config.place(tracker)
	return int(atomic.LoadUint64(&t.rows[banksWord]) >> bank & 1)
}

// SetActive makes the programs of all interfaces count a tracker's packets in bank 0 or 1. Those
// under way may still write to the other: see [Grace].
func (t *Trackers) SetActive(tracker, bank int) {
	_, place := t.config.place(tracker)
	if !t.memory.setActive(place, bank, t.rows) && t.Active(tracker) != bank { // its stats are closed
		t.exchange(place)
	}
}

// Exchange makes them count in the other bank.
func (t *Trackers) Exchange(tracker int) { t.SetActive(tracker, 1-t.Active(tracker)) }

// exchange changes a bit of the banks in all rows.
func (t *Trackers) exchange(bank int) {
	t.eachRow(banksWord, atomic.LoadUint64(&t.rows[banksWord])^1<<bank)
}

// SetPenalized sets the number of penalties: while it is 0, the interface's programs do not look
// for any.
func (t *Trackers) SetPenalized(n int) { t.eachRow(penaltyWord, uint64(n)) }

// Penalized returns what SetPenalized has set, plus one for each penalty that programs have
// imposed or renewed since.
func (t *Trackers) Penalized() int { return int(atomic.LoadUint64(&t.rows[penaltyWord])) }

// Threshold is a threshold of a tracker, and the penalty of flows that exceed it: see
// bpf/threshold.h.
type Threshold = bpf.WeirThreshold

// Threshold returns the threshold that programs enforce.
func (t *Trackers) Threshold(tracker int) Threshold { return t.thresholds[tracker] }

// SetThreshold makes programs enforce a threshold, and none by one of 0 units.
func (t *Trackers) SetThreshold(tracker int, to Threshold) {
	at := &t.thresholds[tracker]
	atomic.StoreUint64(&at.Units, 0)
	atomic.StoreUint64(&at.Window, to.Window)
	atomic.StoreUint64(&at.Lasts, to.Lasts)
	atomic.StoreUint64(&at.Cost, to.Cost)
	atomic.StoreUint64(&at.Burst, to.Burst)
	atomic.StoreUint64(&at.Units, to.Units)
}

// eachRow sets a word in the row of each CPU.
func (t *Trackers) eachRow(word int, value uint64) {
	for i := word; i < len(t.rows); i += rowWords {
		atomic.StoreUint64(&t.rows[i], value)
	}
}

// Bank returns the memory of a tracker's bank 0 or 1 on a CPU: its lines, head
// first, and its flow buckets.
func (t *Trackers) Bank(tracker, cpu, bank int) (lines, flows []uint64) {
	place, _ := t.config.place(tracker)
	l, at := &t.layout.trackers[place], cpu*banks+bank
	line, bucket := at*int(t.layout.lines)+int(l.First), at*int(t.layout.buckets)+int(l.FirstBucket)
	return t.lines[line*lineWords : (line+1+int(l.Lines)+int(coldLines(l)))*lineWords],
		t.flows[bucket*bucketWords : (bucket+int(l.Buckets))*bucketWords]
}

// Began returns when a tracker's bank 0 or 1 began to count, by [Monotonic]; 0 if that is
// unknown. The banks of all CPUs have the same time once they count.
func (t *Trackers) Began(tracker, bank int) time.Duration {
	lines, _ := t.Bank(tracker, 0, bank)
	return time.Duration(atomic.LoadUint64(&lines[beganWord]))
}

// PairWords returns the memory of a scan detector's pairs in bank 0 or 1.
func (t *Trackers) PairWords(tracker, bank int) []uint64 {
	place, _ := t.config.place(tracker)
	l := &t.layout.trackers[place]
	first := bank*int(t.layout.pairs) + int(l.FirstPair)
	return t.pairs[first*lineWords : (first+int(l.Pairs))*lineWords]
}

// Grace waits until every run of a program that began before has ended. Memory
// that such a run may have read can be changed afterwards.
func Grace() {
	// The kernel waits for softirqs as for other readers of RCU. Where it does not
	// offer this (nohz_full), a pause a thousand times as long as a program's run
	// must suffice.
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
	if errno != 0 {
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // there is nothing to wait for
	}
}

const membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL: synchronize_rcu()

// Monotonic returns the time of the programs' clock, CLOCK_MONOTONIC.
func Monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every kernel has it
	}
	return time.Duration(t.Nano())
}
