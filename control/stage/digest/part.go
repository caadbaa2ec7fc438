package digest

import (
	"fmt"
	"hash/fnv"

	"weir/bpf"
	"weir/control/engine"
	"weir/filter/blocked"
	"weir/filter/digest"
	"weir/filter/hash"
	"weir/loader"
	"weir/loader/netif"
)

const (
	banks     = 2
	bank      = loader.MaxTrackers // DIGEST_BANK
	lineWords = 8
)

// Part is the share of programs for incoming packets: they record what passes.
type Part struct {
	engine.BasePart
	Config  digest.Config
	Filter  blocked.Geometry // of a slice
	Archive ArchiveConfig    // its directory is the recorder's; without a size: none
}

// archives reports whether slices are kept on disk.
func (p *Part) archives() bool { return p != nil && p.Archive.Size > 0 }

// Constants returns the geometry, and the secret of the digests.
func (p *Part) Constants(t netif.Target, seed loader.Seed) map[string]any {
	all := make(map[string]any)
	if !t.Out {
		all[bpf.WeirVarDigestConfig] = &bpf.WeirDigests{
			Secret: engine.Secret(hash.NewSecret(hash.Seed(seed))), Lines: p.Filter.Lines, Bits: uint32(p.Filter.Bits),
		}
	}
	return all
}

// Keeps returns the maps of an interface's memory.
func (p *Part) Keeps(t netif.Target) map[string]int {
	if t.Out {
		return nil
	}
	return map[string]int{
		bpf.WeirMapDigestNow:       1,
		bpf.WeirMapDigestBanks:     loader.CPUs() * banks,
		bpf.WeirMapDigestLines:     loader.CPUs() * banks * int(p.Filter.Lines),
		bpf.WeirMapDigestSightings: loader.CPUs() * digest.Sightings,
	}
}

// Head returns where the memory has its seed, and what identifies it.
func (*Part) Head(k loader.Kept) (*loader.Seed, *uint64) {
	now := stateOf(k)
	return &now.Seed, &now.Identity
}

// Identity identifies what may be recorded in the same memory.
func (p *Part) Identity(_ netif.Target, seed loader.Seed) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, "multilinear hash, one line, bits in consecutive words, sixteen gathered, without checksums",
		seed, p.Filter.Lines, uint32(p.Filter.Bits), p.Config.Slice)
	return h.Sum64() | 1 // 0 means none
}

// Begin leaves new memory as it is: nothing is recorded.
func (*Part) Begin(loader.Kept) {}

// goesOn reports whether what a part records goes on in the memory of the other one. Either may
// be nil.
func (p *Part) goesOn(next *Part) bool {
	return p != nil && next != nil && p.Identity(netif.Target{}, loader.Seed{}) == next.Identity(netif.Target{}, loader.Seed{})
}

// Memory has the digests of an interface, which the program reads and writes at the same time.
type Memory struct {
	kept  loader.Kept
	words int // of a bank
}

func stateOf(k loader.Kept) *bpf.WeirDigestState {
	return &loader.Entries[bpf.WeirDigestState](k, bpf.WeirMapDigestNow)[0]
}

// Read calls fn with the memory of the programs that were loaded with the stats, unless these
// record other digests, or none. It is valid until fn returns, or, for tests, until the stats
// are closed or take over other maps.
func (p *Part) Read(s *loader.Stats, fn func(*Memory)) {
	s.Read(func(k loader.Kept) {
		if now := stateOf(k); now.Identity == p.Identity(netif.Target{}, now.Seed) {
			fn(&Memory{k, int(p.Filter.Lines) * lineWords})
		}
	})
}

// Seed returns what the secret of the digests derives from.
func (m *Memory) Seed() hash.Seed { return hash.Seed(stateOf(m.kept).Seed) }

// Active returns the bank, 0 or 1, in which packets are recorded.
func (m *Memory) Active() int { return loader.Bank(m.kept, bank) }

// Exchange makes the programs record in the other bank. Those under way may still write to the
// former: see [loader.Grace]. It must not run concurrently with [loader.Trackers.Exchange].
func (m *Memory) Exchange() { loader.ExchangeBank(m.kept, bank) }

// Bank returns a bank of a CPU, and the words of its filter. While packets are recorded there,
// read the gathered ones first: those no longer gathered are in the filter.
func (m *Memory) Bank(cpu, bank int) (*bpf.WeirDigestBank, []uint64) {
	i := cpu*banks + bank
	return &loader.Entries[bpf.WeirDigestBank](m.kept, bpf.WeirMapDigestBanks)[i],
		loader.Words(m.kept, bpf.WeirMapDigestLines)[i*m.words : (i+1)*m.words]
}

// Begin empties a bank in which no packets are recorded, for the slice of this number.
func (m *Memory) Begin(bank int, slice uint32) {
	for cpu := range loader.CPUs() {
		b, words := m.Bank(cpu, bank)
		*b = bpf.WeirDigestBank{Slice: slice}
		clear(words)
	}
}

// Suspects returns the packets that are suspected of a loop in a slice and still watched. One
// that a program changes meanwhile may be inconsistent.
func (m *Memory) Suspects(slice uint32) (found []bpf.WeirSighting) {
	sightings := loader.Entries[bpf.WeirSighting](m.kept, bpf.WeirMapDigestSightings)
	for i := range sightings {
		if s := &sightings[i]; s.Falls >= digest.LoopFalls && s.Slice == slice {
			found = append(found, *s)
		}
	}
	return found
}
