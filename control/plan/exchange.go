package plan

import (
	"math"

	"weir/filter/bloom"
	"weir/filter/compress"
	"weir/filter/fpr"
	"weir/filter/invertible"
)

// Invertible is a planned invertible Bloom lookup table.
type Invertible struct {
	Elements   int     `json:"elements"` // that can be listed
	Cells      int     `json:"cells"`
	Bytes      int     `json:"bytes"`
	PerElement float64 `json:"bytes_per_element"`
	Fails      float64 `json:"fails"` // probability that not all are listed
}

// InvertibleFor plans the table of which a number of elements can be listed: those of a set,
// or the difference of two sets, whatever their sizes. It fails with an InvalidError for none.
func InvertibleFor(elements int) (Invertible, error) {
	if elements < 1 || elements > 1<<28 {
		return Invertible{}, Invalid("plan invertible: elements: %d, want 1 to %d", elements, 1<<28)
	}
	bytes := 8 * invertible.Words(elements)
	return Invertible{
		Elements: elements, Cells: invertible.Cells(elements),
		Bytes: bytes, PerElement: float64(bytes) / float64(elements), Fails: invertible.Failure(elements),
	}, nil
}

// Summary is a planned summary cache: filters of the contents of the peers' caches.
type Summary struct {
	M            int     `json:"m"`
	K            int     `json:"k"`
	OwnerBytes   int     `json:"owner_bytes"`    // of 4-bit counters, and what was sent
	ReplicaBytes int     `json:"replica_bytes"`  // at a peer, of one owner's filter
	Rate         float64 `json:"rate"`           // exact false-positive rate of a replica
	Wasted       float64 `json:"wasted"`         // probability that a request is sent in vain
	FullBytes    int     `json:"snapshot_bytes"` // expected, compressed
	DeltaBytes   int     `json:"delta_bytes"`    // likewise, of the changes
	Stale        float64 `json:"stale"`          // share of the entries that peers do not know before it
}

// SummaryRequest asks for a summary cache.
type SummaryRequest struct {
	Entries int     // of a cache
	Bits    float64 // of the filter, an entry
	K       int     // 0: the best
	Changes int     // entries that were replaced since the last update
	Peers   int     // whose filters are asked
}

// SummaryFor plans a summary cache. It fails with an InvalidError for a request that makes no
// sense.
func SummaryFor(r SummaryRequest) (Summary, error) {
	m := math.Round(r.Bits * float64(r.Entries))
	switch {
	case r.Entries < 1 || !(m >= 1 && m <= math.MaxUint32):
		return Summary{}, Invalid("plan summary: no filter has n=%d and %v bits an entry", r.Entries, r.Bits)
	case r.Changes < 0 || r.Changes > r.Entries:
		return Summary{}, Invalid("plan summary: changes: %d, want up to %d", r.Changes, r.Entries)
	case r.Peers < 1 || r.Peers > 1<<20:
		return Summary{}, Invalid("plan summary: peers: %d, want 1 to %d", r.Peers, 1<<20)
	}
	if r.K == 0 {
		r.K, _ = fpr.BestK(int(m), r.Entries)
	}
	g, err := bloom.Standard(uint32(m), r.K)
	if err != nil {
		return Summary{}, Invalid("plan summary: %w", err)
	}
	rate := fpr.Exact(int(m), r.Entries, r.K)
	// A bit changes if no entry that stays has it, and one that goes or one that comes does,
	// but not both.
	without := g.ZeroFraction(uint64(r.Changes))
	changed := g.ZeroFraction(uint64(r.Entries-r.Changes)) * 2 * without * (1 - without)
	full := compress.SentBits(g, uint64(r.Entries))
	return Summary{
		M: int(m), K: r.K, OwnerBytes: int(m+1)/2 + int(m+7)/8, ReplicaBytes: int(m+7) / 8,
		Rate: rate, Wasted: -math.Expm1(float64(r.Peers) * math.Log1p(-rate)),
		FullBytes: bytesOf(full), DeltaBytes: bytesOf(min(full, m*compress.Entropy(changed))),
		Stale: float64(r.Changes) / float64(r.Entries),
	}, nil
}

func bytesOf(bits float64) int { return int(math.Ceil(bits / 8)) }
