package measure

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Schema is the JSON schema of a report.
//
//go:embed report.schema.json
var Schema []byte

// Report is the results of a run, and the machine.
type Report struct {
	Machine Machine  `json:"machine"`
	Results []Result `json:"results"`
	Bars    []Bar    `json:"bars"`
}

// Machine describes the machine and the run.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Arch   string `json:"arch"`
	// CacheBytes is the size of the last-level cache as the kernel reports it. Other
	// tenants of the machine may use most of it.
	CacheBytes int `json:"cache_bytes"`
	// LatencyNS is the time of dependent loads from 1, 10 and 100 MiB: the cost of a
	// lookup outside the caches with nothing to overlap.
	LatencyNS [3]float64 `json:"latency_ns"`
	// Mitigations maps the CPU's weaknesses to the kernel's mitigations: guarded calls and returns
	// can take longer than all that a filter computes.
	Mitigations map[string]string `json:"mitigations,omitempty"`
	// Load is the load average of the minute before the start.
	Load float64 `json:"load"`
	// Stolen is the share of the CPUs' time that other virtual machines had.
	Stolen float64 `json:"stolen"`
	// Versions has the versions of weir, Go and the other tools measured.
	Versions map[string]string `json:"versions"`
	Command  []string          `json:"command"`
	Time     time.Time         `json:"time"` // of the start
}

// Result is one measurement. Fields that do not apply are 0, and absent in JSON.
type Result struct {
	Benchmark   string  `json:"benchmark"`        // one of Benchmarks
	Contender   string  `json:"contender"`        // weir-exact, kernel-hash …: see the schema
	Set         string  `json:"set"`              // of entries: random, prefixes, mixed, or a feed
	Entries     int     `json:"entries"`          // of the set
	ListedShare float64 `json:"listed_share"`     // of the keys or packets
	Cold        bool    `json:"cold,omitempty"`   // the filter is not in the caches when a burst begins
	Zipf        float64 `json:"zipf,omitempty"`   // exponent of the distribution of packets over addresses
	Rounds      int     `json:"rounds,omitempty"` // the figures are their medians
	Spread      float64 `json:"spread,omitempty"` // half the 95 % confidence interval of the ratio to the base, as a share

	NS          float64   `json:"ns,omitempty"`           // a lookup or packet
	NetNS       float64   `json:"net_ns,omitempty"`       // beyond the base: the loop with weir's hash, or the plain program
	NetWidth    float64   `json:"net_width,omitempty"`    // half the 95 % confidence interval of NetNS
	BeyondNS    float64   `json:"beyond_ns,omitempty"`    // a packet, beyond the program that only drops
	BeyondWidth float64   `json:"beyond_width,omitempty"` // half the 95 % confidence interval of BeyondNS
	Times       []float64 `json:"times,omitempty"`        // nanoseconds of a packet, round by round
	Mpps        float64   `json:"mpps,omitempty"`         // million packets a second
	Ratio       float64   `json:"ratio,omitempty"`        // of Mpps to that of xdp-drop; for hooks, of weir-generic-xdp
	Scaling     float64   `json:"scaling,omitempty"`      // of the Mpps of two CPUs at once to those of one
	Seconds     float64   `json:"seconds,omitempty"`      // from the text, or from the changes, to an active filter
	Changes     int       `json:"changes,omitempty"`

	BytesEntry  float64 `json:"bytes_per_entry,omitempty"`        // memory of the process
	Peak        int     `json:"peak_bytes,omitempty"`             // the most memory of the process meanwhile
	KernelEntry float64 `json:"kernel_bytes_per_entry,omitempty"` // memory of the filter's maps

	BitsPerKey    float64 `json:"bits_per_key,omitempty"`
	FalsePositive float64 `json:"false_positive_rate,omitempty"` // measured
	Predicted     float64 `json:"predicted_rate,omitempty"`      // by weir
	Optimum       float64 `json:"optimal_rate,omitempty"`        // of a standard filter of that size
	F1            float64 `json:"f1,omitempty"`                  // of the heavy hitters found

	Change float64 `json:"change,omitempty"` // relative to an earlier report: of Ratio, or else of the time
}

// ReadReport reads a report that --json wrote.
func ReadReport(file string) (*Report, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := new(Report)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// compared returns the figure to compare two runs by, or 0.
func (r Result) compared() float64 { return cmp.Or(r.Scaling, r.Ratio, r.NS, r.Seconds) }

// Compare sets Change in the results that an earlier report has too.
func (r *Report) Compare(earlier *Report) {
	for i := range r.Results {
		x := &r.Results[i]
		same := func(y Result) bool {
			return x.Benchmark == y.Benchmark && x.Contender == y.Contender && x.Set == y.Set && x.Entries == y.Entries &&
				x.ListedShare == y.ListedShare && x.Cold == y.Cold && x.Zipf == y.Zipf && x.compared() != 0 && y.compared() != 0
		}
		if at := slices.IndexFunc(earlier.Results, same); at >= 0 {
			x.Change = x.compared()/earlier.Results[at].compared() - 1
		}
	}
}

// thisMachine describes this machine.
func thisMachine(o Options) (Machine, error) {
	m := Machine{
		Cores: runtime.NumCPU(), Arch: runtime.GOARCH,
		Command: append([]string{filepath.Base(os.Args[0])}, os.Args[1:]...), Time: time.Now().UTC().Truncate(time.Second),
		Versions: map[string]string{"weir": o.Version, "go": runtime.Version()},
	}
	for i, mib := range []int{1, 10, 100} {
		m.LatencyNS[i] = latency(mib)
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, fmt.Errorf("ask for the kernel's version: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	m.CacheBytes = lastLevelCache()
	m.Mitigations = mitigations("/sys/devices/system/cpu/vulnerabilities")
	text, _ := os.ReadFile("/proc/loadavg")
	_, _ = fmt.Sscan(string(text), &m.Load) // 0 if it is not there
	if o.Peers {
		for _, tool := range [][]string{
			{"nft", "--version"}, {"ipset", "--version"}, {"iptables", "--version"}, {"xdp-filter", "load", "--version"},
		} {
			out, err := exec.Command(tool[0], tool[1:]...).Output()
			if errors.Is(err, exec.ErrNotFound) {
				m.Versions[tool[0]] = ""
				continue
			}
			// xdp-filter prints its version, then fails.
			first, _, _ := strings.Cut(string(out), "\n")
			m.Versions[tool[0]] = strings.TrimSpace(first)
		}
	}
	return m, nil
}

// cpuTime is the time of all CPUs since the machine's start, in ticks.
type cpuTime struct{ all, stolen uint64 }

// readCPUTime returns the time as the kernel reports it, or nothing.
func readCPUTime() (t cpuTime) {
	text, _ := os.ReadFile("/proc/stat")
	first, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(first) {
		const steal, guest = 8, 9 // guests' time is also that of users
		n, _ := strconv.ParseUint(field, 10, 64)
		if i < guest {
			t.all += n
		}
		if i == steal {
			t.stolen = n
		}
	}
	return t
}

// stolenSince returns the share of the time since then that other virtual machines had.
func (t cpuTime) stolenSince(then cpuTime) float64 {
	if t.all == then.all {
		return 0
	}
	return float64(t.stolen-then.stolen) / float64(t.all-then.all)
}

// mitigations reads what the kernel says of the CPU's weaknesses, without those that it has not.
func mitigations(dir string) map[string]string {
	all := make(map[string]string)
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		text, _ := os.ReadFile(filepath.Join(dir, f.Name()))
		says := strings.TrimSpace(string(text))
		if says != "" && says != "Not affected" {
			all[f.Name()] = strings.TrimPrefix(says, "Mitigation: ")
		}
	}
	return all
}

// lastLevelCache returns the size in bytes of the first CPU's largest cache, or 0
// if the kernel does not report it.
func lastLevelCache() int {
	largest := 0
	for i := range 8 {
		text, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu0/cache/index%d/size", i))
		if err != nil {
			break
		}
		kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(string(text)), "K"))
		if err == nil {
			largest = max(largest, kib<<10)
		}
	}
	return largest
}

// latency returns the time of dependent loads in a ring through mib MiB.
func latency(mib int) float64 {
	const line = 16 // uint32s in 64 bytes
	n := mib << 20 / 64
	ring := make([]uint32, n*line)
	order := rand.New(rand.NewPCG(7, 8)).Perm(n)
	for i, from := range order {
		ring[from*line] = uint32(order[(i+1)%n] * line)
	}
	const steps = 1 << 19
	best := math.Inf(1)
	at := uint32(0)
	for range 3 {
		began := time.Now()
		for range steps {
			at = ring[at]
		}
		best = min(best, float64(time.Since(began).Nanoseconds())/steps)
	}
	runtime.KeepAlive(at)
	return best
}
