// Package plan is the arithmetic behind weir plan: what a filter of a given
// size will cost and promise, before it is built. Results are plain structs,
// which --json prints.
package plan

import (
	"fmt"
	"slices"
	"sort"

	"weir/filter/fpr"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/weighted"
)

// DefaultBitsPerEntry is the default size of the cascade in approximate mode.
const DefaultBitsPerEntry = 16

// mostBits is the largest k of a weighted query; it bounds the cost of a packet.
const mostBits = 24

// mostWeights bounds the table of hot flows, as the configuration does by default.
const mostWeights = 1 << 16

// mostHot bounds the flows that a plan computes with one by one, in 24 bytes each.
const mostHot = 1 << 24

// Request describes the wanted filter. At most one of BitsPerEntry, Rate and Memory
// is not 0.
type Request struct {
	Entries      int
	Mode         string  // "exact", "approx", or "" for exact where that fits the rest
	Lists        int     // that the entries are of; 0 counts as 1
	BitsPerEntry float64 // of the cascade, in approximate mode
	Rate         float64 // that the cascade must reach, in approximate mode
	Memory       int     // bytes of the kernel's that the set may take
	Zipf         float64 // exponent of the popularity of flows; needs Flows
	Flows        int     // flows that the traffic consists of; 0 leaves out the traffic
	Hot          int     // of them, the number of the most frequent that had packets before
}

// Sizing is a planned filter. A rate is the probability that an unlisted key
// passes.
type Sizing struct {
	Entries      int      `json:"entries"`
	Mode         string   `json:"mode"`           // "exact" or "approx"
	BitsPerEntry float64  `json:"bits_per_entry"` // that packets are looked up in
	Lines        int      `json:"lines"`          // of the quotient table, or of the cascade; 64 bytes each
	LaneBits     int      `json:"lane_bits"`      // of an entry in the quotient table
	Buckets      int      `json:"buckets"`        // of the quotient table's spill, 64 bytes each
	First        int      `json:"first"`          // bits of an entry in its first line of the cascade
	Rest         int      `json:"rest"`           // bits of an entry in further lines
	KernelBytes  int      `json:"kernel_bytes"`   // without markers
	DaemonBytes  int      `json:"daemon_bytes"`   // of counters, beside the lists; no program reads them
	ExactBytes   int      `json:"exact_bytes"`    // of the kernel's that exact mode takes for IPv4 addresses
	Cascade      float64  `json:"cascade"`        // rate of the cascade, fpr.CascadeLayout
	SecondLine   float64  `json:"second_line"`    // share of unlisted keys that read more than one line
	FalseDrop    float64  `json:"false_drop"`     // rate of the filter; 0 in exact mode
	Standard     Standard `json:"standard"`       // a filter of as many bits, for comparison
	Traffic      *Traffic `json:"traffic,omitempty"`
}

// Standard is a standard Bloom filter with the best number of hash functions.
type Standard struct {
	K       int     `json:"k"`
	Exact   float64 `json:"exact"`   // true rate
	Classic float64 `json:"classic"` // the textbook's rate
}

// Traffic is the rate for packets rather than keys, where flows are popular by
// Zipf's law and none of them is listed.
type Traffic struct {
	Zipf        float64 `json:"zipf"`
	Flows       int     `json:"flows"`
	Hot         int     `json:"hot"`
	HotShare    float64 `json:"hot_share"`   // of the packets
	MostBits    int     `json:"most_bits"`   // k_e of the hottest flow
	Plain       float64 `json:"plain"`       // rate without weights
	Weighted    float64 `json:"weighted"`    // rate with weights
	Improvement float64 `json:"improvement"` // Plain/Weighted
	SameMemory  float64 `json:"same_memory"` // rate without weights of a filter that has the memory of the hot flows, too
}

// Size plans a filter. It fails, naming the field: with an InvalidError where
// the request contradicts itself, otherwise where it asks for too much.
func Size(r Request) (Sizing, error) {
	if err := r.validate(); err != nil {
		return Sizing{}, err
	}
	layout, err := r.layout()
	if err != nil {
		return Sizing{}, err
	}
	s := Sizing{Entries: r.Entries, Mode: layout.Mode.String(), KernelBytes: layout.Bytes(), DaemonBytes: layout.CounterBytes()}
	if s.ExactBytes, err = r.exactBytes(); err != nil {
		return Sizing{}, err
	}
	const bucketBytes = 64
	bits := 8 * (layout.Bytes() - int(layout.HotBuckets)*bucketBytes)
	s.BitsPerEntry = float64(bits) / float64(r.Entries)
	s.Standard.K, s.Standard.Exact = fpr.BestK(bits, r.Entries)
	s.Standard.Classic = fpr.Classic(bits, r.Entries, s.Standard.K)
	c := fpr.CascadeLayout{Lines: layout.Lines, First: layout.First, Rest: layout.Rest}
	if layout.Mode == membership.Exact {
		s.Lines, s.LaneBits, s.Buckets = layout.Prefixes.Lines, layout.Prefixes.LaneBits, layout.Prefixes.Buckets
	} else {
		s.Lines, s.First, s.Rest = int(c.Lines), c.First, c.Rest
		s.Cascade = c.Rate(r.Entries)
		s.FalseDrop = s.Cascade
		if c.Rest > 0 {
			s.SecondLine = c.FirstLine(r.Entries)
		}
	}
	if r.Flows > 0 {
		s.Traffic = traffic(r, layout.Mode, c, layout.HotBuckets)
	}
	return s, nil
}

func (r Request) validate() error {
	given := 0
	for _, b := range []bool{r.BitsPerEntry != 0, r.Rate != 0, r.Memory != 0} {
		if b {
			given++
		}
	}
	switch {
	case r.Entries < 1:
		return Invalid("plan: entries: %d is below 1", r.Entries)
	case given > 1:
		return Invalid("plan: bits per entry, rate and memory: more than one is given")
	case r.BitsPerEntry != 0 && !(r.BitsPerEntry >= 1 && r.BitsPerEntry <= 256):
		return Invalid("plan: bits per entry: %v is not between 1 and 256", r.BitsPerEntry)
	case r.Rate != 0 && !(r.Rate > 0 && r.Rate < 1):
		return Invalid("plan: rate: %v is not between 0 and 1", r.Rate)
	case r.Memory < 0:
		return Invalid("plan: memory: %d bytes", r.Memory)
	case !slices.Contains([]string{"", "exact", "approx"}, r.Mode):
		return Invalid("plan: mode: %q is neither exact nor approx", r.Mode)
	case r.Mode == "exact" && (r.BitsPerEntry != 0 || r.Rate != 0):
		return Invalid("plan: mode: in exact mode there are no false positives, whatever the bits per entry")
	case r.Lists < 0 || r.Lists > membership.MaxList:
		return Invalid("plan: lists: %d is not between 1 and %d", r.Lists, membership.MaxList)
	case r.Flows < 0 || r.Hot < 0 || r.Hot > min(r.Flows, mostHot):
		return Invalid("plan: hot: %d of %d flows, want %d at most", r.Hot, r.Flows, min(max(r.Flows, 0), mostHot))
	case !(r.Zipf >= 0 && r.Zipf <= 10):
		return Invalid("plan: zipf: exponent %v is not between 0 and 10", r.Zipf)
	case r.Zipf != 0 && r.Flows == 0:
		return Invalid("plan: zipf: exponent %v of no flows", r.Zipf)
	}
	return nil
}

func (r Request) census() membership.Census {
	return membership.Census{Keys: map[key.Shape]int{{SrcBits: 32}: r.Entries}, Highest: uint16(r.Lists)}
}

// exactBytes returns the kernel memory of exact mode.
func (r Request) exactBytes() (int, error) {
	l, err := membership.PlanLayout(r.census(), membership.Exact, 0, nil)
	return l.Bytes(), err
}

// layout is the geometry of weir's own sets for IPv4 addresses, without markers,
// which depend on the entries themselves: in approximate mode up to 2 MiB for each
// side of packets.
func (r Request) layout() (membership.Layout, error) {
	census := r.census()
	share := r.hotShare()
	build := func(mode membership.Mode, bitsPerEntry float64) (membership.Layout, error) {
		l, err := membership.PlanLayout(census, mode, bitsPerEntry, nil)
		if mode == membership.Approximate && r.Hot > 0 {
			passing := float64(r.Hot) * l.FalsePositiveRate(r.Entries)
			l.PlanWeights(mostWeights, membership.Demand{Elements: int(passing), Known: share, Others: 1 - share})
		}
		return l, err
	}
	if r.Mode == "exact" || r.Mode == "" && r.BitsPerEntry == 0 && r.Rate == 0 {
		l, err := build(membership.Exact, 0)
		if err != nil || r.Memory == 0 || l.Bytes() <= r.Memory {
			return l, err
		}
		if r.Mode == "exact" {
			return l, fmt.Errorf("plan: memory: exact mode takes %d bytes, %d are given", l.Bytes(), r.Memory)
		}
	}
	if r.Rate == 0 && r.Memory == 0 {
		bits := r.BitsPerEntry
		if bits == 0 {
			bits = DefaultBitsPerEntry
		}
		return build(membership.Approximate, bits)
	}

	// Sizes in hundredths of a bit an entry. Both conditions are monotone, that of the rate
	// down to fpr.LowEnough.
	const unit, least, most = 100, 100, 25600
	var failed error
	at := func(i int) membership.Layout {
		l, err := build(membership.Approximate, float64(least+i)/unit)
		if err != nil {
			failed = err
		}
		return l
	}
	if r.Rate > 0 {
		i := sort.Search(most-least+1, func(i int) bool {
			l := at(i)
			return l.FalsePositiveRate(r.Entries) <= r.Rate
		})
		if i > most-least {
			return membership.Layout{}, fmt.Errorf("plan: rate: %g takes more than %d bits an entry", r.Rate, most/unit)
		}
		return at(i), failed
	}
	i := sort.Search(most-least+1, func(i int) bool {
		l := at(i)
		return l.Bytes() > r.Memory
	})
	if i == 0 {
		return membership.Layout{}, fmt.Errorf("plan: memory: %d bytes are less than a bit for each of %d entries", r.Memory, r.Entries)
	}
	return at(i - 1), failed
}

// hotShare returns the share of the hottest flows in all packets.
func (r Request) hotShare() (share float64) {
	if r.Hot > 0 {
		for _, q := range weighted.Zipf(r.Flows, r.Hot, 0, r.Zipf).Queries()[:r.Hot] {
			share += q
		}
	}
	return share
}

// traffic plans as many bits as there may be for those of the hot flows that the cascade
// passes, and whose bucket has room. None of them is listed, so that x_e = 0 and their bits cost
// the filter nothing (Bruck, Gao and Jiang, equation 4). In exact mode there are no false
// positives to weigh.
func traffic(r Request, mode membership.Mode, c fpr.CascadeLayout, hotBuckets uint32) *Traffic {
	t := &Traffic{Zipf: r.Zipf, Flows: r.Flows, Hot: r.Hot, HotShare: r.hotShare(), Improvement: 1}
	if mode == membership.Exact {
		return t
	}
	t.MostBits, t.Plain = c.K(), c.Rate(r.Entries)
	t.Weighted, t.SameMemory = t.Plain, t.Plain
	if r.Hot > 0 {
		t.SameMemory = fpr.BestCascade(r.Entries, c.Lines+hotBuckets, fpr.MaxFurther).Rate(r.Entries)
		t.MostBits = max(c.K(), mostBits)
		hot := c
		hot.Rest = t.MostBits - c.First
		spared := t.HotShare * membership.HotRoom(float64(r.Hot)*t.Plain, int(hotBuckets))
		t.Weighted = (1-spared)*t.Plain + spared*hot.RateAmong(fpr.Members{Keys: r.Entries, Rest: c.Rest})
		t.Improvement = t.Plain / t.Weighted
	}
	return t
}
