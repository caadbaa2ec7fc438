package tracker

import (
	"fmt"
	"math"
	"sort"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"weir/control/plan"
	"weir/control/quantity"
	"weir/filter/blocked"
	"weir/filter/sketch"
	"weir/filter/verdict"
)

func scanCommand() plan.Command {
	return plan.Command{
		Use:   "scan --pairs N",
		Short: "Detector of scans: memory, and which scans it finds",
		Long: `Plans a scan detector, as under scans in weir.yaml: the memory with which no
window ends early, or what a scan detector with --memory finds.

--pairs are the distinct pairs of source and destination that arrive in a
window, those of a flood included; of port scans, pairs of source and
destination with port. A scan detector that knows them reports none twice. With
more pairs than it has memory for, windows end early, and slow scans are missed.`,
		Example: `  weir plan scan --pairs 1M
  weir plan scan --pairs 4M --memory 512KiB --scan 1000 --json`,
		Required: []string{"pairs"},
		Planner:  &scanPlanner{request: ScanRequest{Threshold: 64}},
	}
}

// scanPlanner plans the memory of a scan detector.
type scanPlanner struct {
	request     ScanRequest
	pairs, scan *int
	memory      quantity.Size
}

// Flags adds the flags.
func (p *scanPlanner) Flags(f *pflag.FlagSet) {
	p.pairs = plan.CountFlag(f, "pairs", "`number` of distinct pairs in a window")
	f.TextVar(&p.memory, "memory", p.memory, "`size` of a window's memory (default so much that no window ends early)")
	f.IntVar(&p.request.Threshold, "threshold", p.request.Threshold, "`number` of ports or addresses from which a source is reported")
	f.IntVar(&p.request.CPUs, "cpus", 1, "`number` of CPUs that an interface's packets arrive on")
	p.scan = plan.CountFlag(f, "scan", "`number` of ports or addresses that a scan reaches in a window, to compute its chance")
}

// Plan fails as ScanFor does.
func (p *scanPlanner) Plan() (plan.Result, error) {
	r := p.request
	r.Pairs, r.Memory, r.Destinations = *p.pairs, int(p.memory), *p.scan
	return ScanFor(r)
}

// Rows returns the plan for readers.
func (s PlannedScan) Rows() []plan.Row {
	rows := []plan.Row{
		plan.NewRow("memory", "%s a window, %s of the kernel in all", humanize.IBytes(uint64(s.Memory)), humanize.IBytes(uint64(s.KernelBytes))),
		plan.NewRow("pairs", "%s a window, of %s that it has room for", humanize.Comma(int64(s.Pairs)), humanize.Comma(int64(s.Capacity))),
	}
	if s.Windows > 1 {
		rows = append(rows, plan.NewRow("  windows", "%.1f in the time of one, as they end early", s.Windows))
	}
	rows = append(rows, plan.NewRow("  missed", "%.3g of new pairs", s.Missed),
		plan.NewRow("found", "95 %% of the scans that reach %s or more in a window", humanize.Comma(int64(s.FoundFrom))))
	if s.Found != nil {
		rows = append(rows, plan.NewRow("  chance", "%.3g of a scan that reaches %s", *s.Found, humanize.Comma(int64(s.destinations))))
	}
	return rows
}

// PlannedScan is a planned scan detector on one interface.
type PlannedScan struct {
	Memory      int      `json:"memory"`       // of a window
	KernelBytes int      `json:"kernel_bytes"` // of both windows, with the banks of all CPUs
	Pairs       int      `json:"pairs"`        // distinct ones in a configured window
	Capacity    int      `json:"capacity"`     // pairs with which a window ends early
	Windows     float64  `json:"windows"`      // in a configured one; 1: it does not end early
	Missed      float64  `json:"missed"`       // share of the new pairs that are taken for known ones
	Threshold   int      `json:"threshold"`
	FoundFrom   int      `json:"found_from"`      // destinations in a configured window from which 95 % of scans are reported
	Found       *float64 `json:"found,omitempty"` // probability of that for ScanRequest.Destinations

	destinations int
}

// ScanRequest says what a scan detector is to watch. Pairs and Threshold are required.
type ScanRequest struct {
	Pairs        int // distinct pairs of source and destination in a window
	Threshold    int
	Memory       int // of a window, in bytes; 0: so much that no window ends early
	CPUs         int // that packets arrive on; 0: one
	Destinations int // of a scan whose probability to be reported is wanted; 0: of none
}

// surelyFound is the share of scans that FoundFrom is for.
const surelyFound = 0.95

// ScanFor plans a scan detector. It fails with an InvalidError for a request outside the limits
// of weir.yaml, and otherwise if no memory suffices.
func ScanFor(r ScanRequest) (PlannedScan, error) {
	r.CPUs = max(1, r.CPUs)
	switch {
	case r.Pairs < 1 || r.Pairs > math.MaxInt32:
		return PlannedScan{}, plan.Invalid("plan scan: pairs: %d, want 1 to 2G", r.Pairs)
	case r.Threshold < verdict.MinScanThreshold || r.Threshold > verdict.MaxScanThreshold:
		return PlannedScan{}, plan.Invalid("plan scan: threshold: %d, want %d to %d", r.Threshold, verdict.MinScanThreshold, verdict.MaxScanThreshold)
	case r.Memory != 0 && (r.Memory < verdict.MinScanMemory || r.Memory > verdict.MaxScanMemory):
		return PlannedScan{}, plan.Invalid("plan scan: memory: %d bytes, want 16KiB to 1GiB", r.Memory)
	case r.CPUs > 1<<16 || r.Destinations < 0 || r.Destinations > math.MaxInt32:
		return PlannedScan{}, plan.Invalid("plan scan: %d CPUs, a scan of %d", r.CPUs, r.Destinations)
	}
	if r.Memory == 0 {
		const step = 1 << 10
		r.Memory = step * (verdict.MinScanMemory/step + sort.Search((verdict.MaxScanMemory-verdict.MinScanMemory)/step+1, func(i int) bool {
			return scanMemoryOf(verdict.MinScanMemory+i*step).capacity >= r.Pairs
		}))
		if r.Memory > verdict.MaxScanMemory {
			return PlannedScan{}, fmt.Errorf("plan scan: %d pairs in a window take more than 1 GiB: choose a shorter window", r.Pairs)
		}
	}
	g := scanMemoryOf(r.Memory)
	windows := max(1, float64(r.Pairs)/float64(g.capacity))
	missed := g.missed(min(r.Pairs, g.capacity))
	found := func(destinations int) float64 {
		share := (1 - missed) / windows
		// The first window in which a source is seen, it is counted exactly only once
		// the banks admit it.
		floor, _ := sketch.Threshold{Units: uint64(r.Threshold)}.Admission(0, r.CPUs)
		first := 1 - atLeast(r.Threshold+r.CPUs*(max(1, int(floor))-1), destinations, share)
		others := 1 - atLeast(r.Threshold, destinations, share)
		return 1 - first*math.Pow(others, windows-1)
	}
	s := PlannedScan{
		Memory: r.Memory, KernelBytes: 2 * (int(g.pairs.Lines)*lineBytes + r.CPUs*g.bank), Pairs: r.Pairs,
		Capacity: g.capacity, Windows: windows, Missed: missed, Threshold: r.Threshold,
		FoundFrom: sort.Search(math.MaxInt32, func(n int) bool { return found(n) >= surelyFound }),
	}
	if r.Destinations > 0 {
		chance := found(r.Destinations)
		s.Found, s.destinations = &chance, r.Destinations
	}
	return s, nil
}

const lineBytes = 64

// scanMemory is the memory of a scan detector's window.
type scanMemory struct {
	pairs    blocked.Geometry
	bank     int
	capacity int
}

func scanMemoryOf(memory int) scanMemory {
	lines, bank := verdict.DivideScanMemory(memory)
	g := scanMemory{pairs: blocked.Geometry{Lines: lines, Bits: verdict.PairBits}, bank: bank}
	// A window ends with so many pairs that are counted; those that are missed come on top.
	counted := int(verdict.ScanPairs(lines))
	g.capacity = counted + sort.Search(counted, func(missed int) bool {
		n := counted + missed
		return float64(n)*(1-g.missed(n)) >= float64(counted)
	})
	return g
}

// missed returns the share of n new pairs, one after the other, that the filter takes for
// known ones: the mean of its false-positive rate meanwhile, by Simpson's rule.
func (g scanMemory) missed(n int) float64 {
	const steps = 16
	sum := 0.0
	for i := range steps + 1 {
		weight := 2.0 + 2*float64(i%2)
		if i == 0 || i == steps {
			weight = 1
		}
		sum += weight * g.pairs.FalsePositiveRate(n*i/steps)
	}
	return sum / (3 * steps)
}

// atLeast returns the probability of k or more successes in n trials: the sum of the
// shorter tail, from k on outwards.
func atLeast(k, n int, p float64) float64 {
	p = min(p, 1-1e-12)
	gamma := func(x int) float64 { v, _ := math.Lgamma(float64(x + 1)); return v }
	step, i := 1, k
	if float64(k) <= float64(n)*p {
		step, i = -1, k-1
	}
	sum := 0.0
	for ; i >= 0 && i <= n; i += step {
		term := math.Exp(gamma(n) - gamma(i) - gamma(n-i) + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
		sum += term
		if term <= 1e-17*sum {
			break
		}
	}
	if step < 0 {
		return 1 - min(sum, 1)
	}
	return min(sum, 1)
}
