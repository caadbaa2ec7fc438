package stages

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// Inner says whether the headers in tunnels are matched with the lists.
type Inner bool

// On reports whether they are.
func (i *Inner) On() bool { return bool(*i) }

// Check finds nothing wrong.
func (*Inner) Check() quantity.FieldErrors { return nil }

// Outgoing reports that programs for outgoing packets are not needed.
func (*Inner) Outgoing() bool { return false }

// Shared returns no maps.
func (*Inner) Shared() map[string]int { return nil }

// Part returns the share of programs: their policy.
func (*Inner) Part() (engine.Part, error) { return innerPart{}, nil }

type innerPart struct{ engine.BasePart }

func (innerPart) Constants(netif.Target, loader.Seed) map[string]any { return make(map[string]any) }

// Twin makes programs and their twin match headers in tunnels.
func (innerPart) Twin(v *verdict.Program) { v.Inner = true }

// InnerAbout says whether programs match headers in tunnels.
type InnerAbout bool

// Tunneled is the number of headers in a kind of tunnel that were looked up, and of those that
// a block list matches.
type Tunneled struct {
	Headers uint64 `json:"headers"`
	Listed  uint64 `json:"listed"`
}

// ReadTunnels returns what was counted, by kind. It makes no system call.
func ReadTunnels(s *loader.Stats) (all [packet.NumTunnels]Tunneled) {
	s.Read(func(k loader.Kept) {
		rows := loader.Entries[bpf.WeirInnerRow](k, bpf.WeirMapInnerStats)
		for i := range rows {
			for t := range all {
				of := &rows[i].ByTunnel[t]
				all[t].Headers += atomic.LoadUint64(&of.Headers)
				all[t].Listed += atomic.LoadUint64(&of.Listed)
			}
		}
	})
	return all
}

// Tunnels has the counts by the name of a kind of tunnel.
type Tunnels map[string]Tunneled

// State returns the counts of a program, nil where it does not match headers in tunnels.
func (a InnerAbout) State(s *loader.Stats) Tunnels {
	if !a {
		return nil
	}
	all, counts := make(Tunnels), ReadTunnels(s)
	for t := packet.NoTunnel + 1; t < packet.NumTunnels; t++ {
		all[t.String()] = counts[t]
	}
	return all
}

// Rows describes how many headers were found in tunnels.
func (a InnerAbout) Rows(s Tunnels) (all []stage.Row) {
	if !a {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if n := s[name]; n.Headers > 0 {
			all = append(all, stage.Row{Name: "in " + name, Text: fmt.Sprintf("%s %s, %s listed",
				humanize.Comma(int64(n.Headers)), english.PluralWord(int(n.Headers), "header", "headers"), humanize.Comma(int64(n.Listed)))})
		}
	}
	if len(all) == 0 {
		all = append(all, stage.Row{Name: "in tunnels", Text: "no headers yet"})
	}
	return all
}

var (
	innerHeaders = &stage.Family{Name: "weir_inner_headers_total", Help: "Headers in tunnels that were looked up, by tunnel: ip, gre, vxlan or gtp-u.", Label: "tunnel", Counter: true, Directed: true}
	innerListed  = &stage.Family{Name: "weir_inner_listed_total", Help: "Of these, those that a block list matches: their packets have the reason blocked, unless they are allowed.", Label: "tunnel", Counter: true, Directed: true}
)

// innerFamilies are the metrics of headers in tunnels.
var innerFamilies = []*stage.Family{innerHeaders, innerListed}

// Counted returns the counters of an interface.
func (a InnerAbout) Counted(s *loader.Stats) (all []stage.Sample) {
	for name, n := range a.State(s) {
		all = append(all, stage.Sample{Family: innerHeaders, Of: name, Value: float64(n.Headers)}, stage.Sample{Family: innerListed, Of: name, Value: float64(n.Listed)})
	}
	return all
}
