// Package bench measures weir beside what it would replace: the kernel's hash,
// Bloom filter and LPM trie maps, in the same run, over the same keys.
//
// Absolute figures are the machine's; ratios can be compared. Contenders take
// turns, round by round, and the median of the rounds counts.
package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/generation"
	"weir/control/list"
	"weir/filter/membership"
)

// Options say how much to measure.
type Options struct {
	Entries []int     // set sizes
	Rounds  int       // turns of each contender; the median counts
	Feed    string    // a list of IPv4 prefixes for the prefix benchmark; "": generated
	Log     io.Writer // progress
}

func (o *Options) logf(format string, args ...any) {
	if o.Log != nil {
		fmt.Fprintf(o.Log, format+"\n", args...)
	}
}

// Benchmarks are the names that Run takes.
var Benchmarks = []string{"lookup", "prefixes", "wire", "heavy", "load"}

// Run measures the named benchmarks, or all of them. It ends early, with
// ctx's error, between two of them.
func Run(ctx context.Context, o Options, names []string) (*Report, error) {
	r := &Report{Machine: ThisMachine()}
	for _, name := range Benchmarks {
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		for _, n := range o.Entries {
			if err := ctx.Err(); err != nil {
				return r, err
			}
			if err := r.run(o, name, n); err != nil {
				return r, fmt.Errorf("%s with %d entries: %w", name, n, err)
			}
			if name == "prefixes" || name == "heavy" {
				break // the list has the size that it has
			}
		}
	}
	return r, nil
}

func (r *Report) run(o Options, name string, n int) error {
	switch name {
	case "lookup":
		return r.lookup(o, n)
	case "prefixes":
		return r.prefixes(o)
	case "wire":
		return r.wire(o, n)
	case "heavy":
		return r.heavy(o)
	}
	for _, mode := range []membership.Mode{membership.Exact, membership.Approximate} {
		if err := r.load(o, n, mode); err != nil {
			return err
		}
	}
	return nil
}

// Report is what was measured, and on what.
type Report struct {
	Machine Machine  `json:"machine"`
	Results []Result `json:"results"`
	Bars    []Bar    `json:"bars"`
}

// Machine is what the figures hold for.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Arch   string `json:"arch"`
	// LatencyNS is that of dependent loads from 1, 10 and 100 MiB: what a
	// lookup pays that no cache holds and nothing overlaps.
	LatencyNS [3]float64 `json:"latency_ns"`
}

// latency measures dependent loads in a ring through so many MiB.
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

// ThisMachine describes the machine that the process runs on.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), Arch: runtime.GOARCH}
	for i, mib := range []int{1, 10, 100} {
		m.LatencyNS[i] = latency(mib)
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	return m
}

// Result is one figure. Fields that do not apply are zero.
type Result struct {
	Benchmark   string  `json:"benchmark"` // lookup, prefixes, wire, heavy or load
	Contender   string  `json:"contender"` // weir-exact, weir-approx, kernel-hash, kernel-bloom, kernel-lpm, xdp-drop; of heavy: plain, hot, tracker
	Entries     int     `json:"entries"`
	ListedShare float64 `json:"listed_share"`      // of the keys or packets
	Traffic     string  `json:"traffic,omitempty"` // where the sources are drawn otherwise
	NS          float64 `json:"ns,omitempty"`      // a lookup or packet
	NetNS       float64 `json:"net_ns,omitempty"`  // the same, less the loop with its hash
	Mpps        float64 `json:"mpps,omitempty"`    // million packets a second
	Ratio       float64 `json:"ratio,omitempty"`   // of Mpps to xdp-drop's
	Seconds     float64 `json:"seconds,omitempty"` // from text to enforcing
	BytesEntry  float64 `json:"bytes_per_entry,omitempty"`
}

// Bar is a promise of the design and the figure that it is held against.
type Bar struct {
	Name    string  `json:"name"`
	Limit   float64 `json:"limit"`
	AtLeast bool    `json:"at_least"` // otherwise at most
	Value   float64 `json:"value"`
	Reached bool    `json:"reached"`
}

func (r *Report) atMost(name string, value, limit float64) {
	r.Bars = append(r.Bars, Bar{Name: name, Limit: limit, Value: value, Reached: value <= limit})
}

func (r *Report) atLeast(name string, value, limit float64) {
	r.Bars = append(r.Bars, Bar{Name: name, Limit: limit, AtLeast: true, Value: value, Reached: value >= limit})
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// rounds lets the contenders take turns and gives the median of each.
func rounds(n int, contenders []string, measure func(contender string) (float64, error)) (map[string]float64, error) {
	all, err := series(n, contenders, measure)
	medians := make(map[string]float64)
	for c, v := range all {
		medians[c] = median(v)
	}
	return medians, err
}

// series lets the contenders take turns and gives what was measured of each,
// round by round.
func series(n int, contenders []string, measure func(contender string) (float64, error)) (map[string][]float64, error) {
	all := make(map[string][]float64)
	for i := range n + 1 {
		for _, c := range contenders {
			v, err := measure(c)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c, err)
			}
			if i > 0 { // the first round warms up
				all[c] = append(all[c], v)
			}
		}
	}
	return all, nil
}

// address gives distinct pseudo-random IPv4 addresses, a bijection of i
// (MurmurHash3's finaliser): the first n are listed, the others are not.
func address(i uint32) uint32 {
	i = (i ^ i>>16) * 0x85ebca6b
	i = (i ^ i>>13) * 0xc2b2ae35
	return i ^ i>>16
}

func wireOrder(addr uint32) (b [4]byte) {
	binary.BigEndian.PutUint32(b[:], addr)
	return b
}

// randomStore lists n random addresses.
func randomStore(n int) (*generation.Store, error) {
	e := list.Entries{V4: make([]list.V4Prefix, n)}
	for i := range e.V4 {
		e.V4[i] = list.V4(address(uint32(i)), 32)
	}
	s := generation.NewStore()
	_, err := s.AddList(generation.List{Name: "random"}, e)
	return s, err
}

// mixed draws keys of which a share is among n random addresses.
func mixed(n int, listed float64) func() [4]byte {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	return func() [4]byte {
		i := uint32(r.IntN(n))
		if r.Float64() >= listed {
			i = uint32(n) + uint32(r.IntN(1<<32-n))
		}
		return wireOrder(address(i))
	}
}
