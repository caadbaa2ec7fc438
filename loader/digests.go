package loader

import (
	"errors"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"unsafe"

	"weir/bpf"
)

// Digests is the geometry of the digests of packets that pass, constants of the
// program. Without lines, nothing is recorded.
type Digests = bpf.WeirDigests

// Sighting is a packet that was seen, or seen again.
type Sighting = bpf.WeirSighting

// DigestBank has the counters of a bank, and the packets that are gathered and not
// yet in its filter.
type DigestBank = bpf.WeirDigestBank

// As in the object, where they are macros.
const (
	digestBank = MaxTrackers // DIGEST_BANK

	// Sightings is their number on each CPU, SIGHTINGS.
	Sightings = 1024
	// Gathered is the number of packets that a bank gathers, GATHERED.
	Gathered = 16
	// LoopFalls is the number of times that the TTL of a packet must fall for a
	// loop to be suspected, LOOP_FALLS.
	LoopFalls = 2
)

func (c *Config) validateDigests() error {
	d := &c.Digests
	if d.Lines > maxEntries || d.Lines > 0 && (d.Bits < 1 || d.Bits > maxBits) {
		return fmt.Errorf("digests: %d lines and %d bits in one: not in 0 … %d and 1 … %d", d.Lines, d.Bits, maxEntries, maxBits)
	}
	return nil
}

// digestLayout is the version of how digests are recorded.
const digestLayout = "multilinear hash, one line, bits in consecutive words, sixteen gathered, without checksums"

// digestIdentity identifies what may be recorded in the same memory.
func (c *Config) digestIdentity() uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, digestLayout, c.DigestSeed, c.Digests.Lines, c.Digests.Bits, c.DigestSlice)
	return h.Sum64() | 1 // 0 means none
}

// recorded returns the identity of the digests in the memory, 0 for none.
func (k pinnedMaps) recorded() uint64 { return k.digests().Identity }

// digests returns the record of what uses the memory of digests.
func (k pinnedMaps) digests() *bpf.WeirDigestState {
	return &entriesOf[bpf.WeirDigestState](k[bpf.WeirMapDigestNow])[0]
}

// digestEntries returns the maps of the configuration's digests, with their numbers of
// entries.
func (c *Config) digestEntries(cpus int) map[string]int {
	return map[string]int{
		bpf.WeirMapDigestNow:       1,
		bpf.WeirMapDigestBanks:     cpus * banks,
		bpf.WeirMapDigestLines:     cpus * banks * int(c.Digests.Lines),
		bpf.WeirMapDigestSightings: cpus * Sightings,
	}
}

// newDigests returns empty memory for the configuration's digests.
func newDigests(cfg *Config, cpus int) (pinnedMaps, error) {
	k, err := newPinnedMaps(cfg.digestEntries(cpus))
	if err != nil {
		return nil, fmt.Errorf("digests: %w", err)
	}
	now := k.digests()
	now.Seed, now.Identity = cfg.DigestSeed, cfg.digestIdentity()
	return k, nil
}

// DigestSeed returns the seed of the digests in these stats, zero if there are none.
// A generation with this seed and the same geometry continues them.
func (s *Stats) DigestSeed() (seed Seed) {
	s.read(func(k pinnedMaps) { seed = k.digests().Seed })
	return seed
}

// DigestMemory is the memory of an interface's digests, which the program reads
// and writes at the same time.
type DigestMemory struct {
	CPUs int
	Seed Seed // of the digests

	rows, lines []uint64
	bankWords   int
	banks       []DigestBank
	sightings   []Sighting
	shared      pinnedMaps
}

// OpenDigests opens the memory of the digests of programs that were loaded with
// the stats. It fails with [ErrNotRecorded] where these record none, or digests
// of another generation. The memory remains valid until Close.
func (g *Generation) OpenDigests(s *Stats) (*DigestMemory, error) {
	if g.config.Digests.Lines == 0 {
		return nil, ErrNotRecorded
	}
	shared := s.share(bpf.WeirMapReasonStats,
		bpf.WeirMapDigestNow, bpf.WeirMapDigestLines, bpf.WeirMapDigestBanks, bpf.WeirMapDigestSightings)
	if shared == nil || shared.recorded() != g.config.digestIdentity() {
		return nil, errors.Join(ErrNotRecorded, shared.Close())
	}
	return &DigestMemory{
		CPUs:      s.cpus,
		Seed:      g.config.DigestSeed,
		rows:      shared[bpf.WeirMapReasonStats].words,
		lines:     shared[bpf.WeirMapDigestLines].words,
		bankWords: int(g.config.Digests.Lines) * lineWords,
		banks:     entriesOf[DigestBank](shared[bpf.WeirMapDigestBanks]),
		sightings: entriesOf[Sighting](shared[bpf.WeirMapDigestSightings]),
		shared:    shared,
	}, nil
}

// Close releases the memory.
func (m *DigestMemory) Close() error { return m.shared.Close() }

// entriesOf returns a map's memory as a slice of its entries.
func entriesOf[T any](a *array) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(&a.words[0])), a.entries())
}

// Active returns the bank, 0 or 1, in which packets are recorded.
func (m *DigestMemory) Active() int {
	return int(atomic.LoadUint64(&m.rows[banksWord]) >> digestBank & 1)
}

// Exchange makes the programs record in the other bank. Those under way may still
// write to the former: see [Grace]. It must not run concurrently with
// [Trackers.Exchange].
func (m *DigestMemory) Exchange() { (&Trackers{rows: m.rows}).exchange(digestBank) }

// Bank returns a bank of a CPU, and the words of its filter. While packets are
// recorded there, read the gathered ones first: those no longer gathered are in
// the filter.
func (m *DigestMemory) Bank(cpu, bank int) (*DigestBank, []uint64) {
	i := cpu*banks + bank
	return &m.banks[i], m.lines[i*m.bankWords : (i+1)*m.bankWords]
}

// Begin empties a bank in which no packets are recorded, for the slice of this
// number.
func (m *DigestMemory) Begin(bank int, slice uint32) {
	for cpu := range m.CPUs {
		b, words := m.Bank(cpu, bank)
		*b = DigestBank{Slice: slice}
		clear(words)
	}
}

// Suspects returns the packets that are suspected of a loop in a slice and still
// watched. One that a program changes meanwhile may be inconsistent.
func (m *DigestMemory) Suspects(slice uint32) (found []Sighting) {
	for i := range m.sightings {
		if s := &m.sightings[i]; s.Falls >= LoopFalls && s.Slice == slice {
			found = append(found, *s)
		}
	}
	return found
}
