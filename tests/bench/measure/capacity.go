package measure

import "fmt"

// DriverNS is the time that a driver takes for a packet that a program drops: 24 million
// a second on one core, by Høiland-Jørgensen and others, "The eXpress Data Path",
// CoNEXT 2018, with a network card of 100 Gbit/s. Veth, by which the benchmarks measure,
// takes longer, and its time is no part of the capacity.
const DriverNS = 42

// On the wire, preamble and gap between frames take as long as so many bytes.
const gapBytes = 8 + 12

// mix is packet sizes with their shares, frames with checksum.
type mix []struct{ bytes, of int }

var (
	minimal = mix{{64, 1}}
	// imix is the simple Internet mix: IP packets of 40, 576 and 1500 bytes, 7 : 4 : 1.
	imix = mix{{64, 7}, {594, 4}, {1518, 1}}
)

// rate returns the packets of a mix in a second that fill a line.
func (m mix) rate(gigabits float64) float64 {
	bytes, packets := 0, 0
	for _, p := range m {
		bytes += p.of * (p.bytes + gapBytes)
		packets += p.of
	}
	return gigabits * 1e9 / 8 * float64(packets) / float64(bytes)
}

// lineRates are the rates in Gbit/s for which to plan.
var lineRates = []float64{10, 25, 40, 100}

// CapacityTable returns how many cores it takes to filter at line rate, as lines of
// cells, the first a heading.
func (r *Report) CapacityTable() [][]string {
	heading := []string{"contender", "entries", "traffic", "weir, ns", "Mpps a core"}
	for _, m := range []string{"64 B", "IMIX"} {
		for _, rate := range lineRates {
			heading = append(heading, fmt.Sprintf("%g Gbit/s, %s", rate, m))
		}
	}
	table := [][]string{heading}
	for _, benchmark := range []string{"options", "wire", "ipv6"} {
		for _, x := range r.Results {
			ns, ok := r.beyondBare(x)
			if !ok || x.Benchmark != benchmark || !planned(x) {
				continue
			}
			entries, traffic := count(x.Entries), "clean"
			if benchmark == "ipv6" {
				entries += " of IPv6"
			}
			if x.ListedShare == 1 {
				traffic = "listed"
			}
			each := DriverNS + ns
			cells := []string{x.Contender, entries, traffic, fmt.Sprintf("%.0f", ns), fmt.Sprintf("%.1f", 1000/each)}
			for _, m := range []mix{minimal, imix} {
				for _, rate := range lineRates {
					cells = append(cells, fmt.Sprintf("%.1f", m.rate(rate)*each/1e9))
				}
			}
			table = append(table, cells)
		}
	}
	return table
}

// planned reports whether to plan for a result: weir's, in its exact and its usual configuration.
func planned(x Result) bool {
	return x.Set == setRandom && (x.ListedShare == 0 || x.ListedShare == 1) &&
		(x.Benchmark != "wire" || x.Entries >= million) && (x.Contender == weirExact || x.Contender == weirUsual)
}

// beyondBare returns how much longer than a program that only drops a contender takes
// for a packet, in nanoseconds. Where none was measured, the base leads to the one of
// the options.
func (r *Report) beyondBare(x Result) (ns float64, ok bool) {
	beside := func(contender string) (Result, bool) {
		return r.find(x.Benchmark, x.Set, x.Entries, x.ListedShare, contender)
	}
	if least, ok := beside(bare); ok {
		return x.NS - least.NS, true
	}
	base, ok := beside(xdpDrop)
	if !ok {
		return 0, false
	}
	for _, least := range r.Results {
		if least.Benchmark == "options" && least.Contender == bare && least.ListedShare == x.ListedShare {
			drop, found := r.find("options", least.Set, least.Entries, least.ListedShare, xdpDrop)
			return x.NS - base.NS + drop.NS - least.NS, found
		}
	}
	return 0, false
}
