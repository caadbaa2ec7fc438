// Package inner matches the headers in tunnels with the lists.
package inner

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

// Spec says whether headers in tunnels are matched.
type Spec bool

// On reports whether they are.
func (s *Spec) On() bool { return bool(*s) }

// Check finds nothing wrong.
func (*Spec) Check() quantity.FieldErrors { return nil }

// Outgoing reports that programs for outgoing packets are not needed.
func (*Spec) Outgoing() bool { return false }

// Shared returns no maps.
func (*Spec) Shared() map[string]int { return nil }

// Part returns the share of programs: their policy.
func (*Spec) Part() (engine.Part, error) { return part{}, nil }

type part struct{ engine.BasePart }

func (part) Constants(netif.Target, loader.Seed) map[string]any { return make(map[string]any) }

// Twin makes programs and their twin match headers in tunnels.
func (part) Twin(v *verdict.Program) { v.Inner = true }

// About says whether programs match headers in tunnels.
type About bool

// Count is the number of headers in a kind of tunnel that were looked up, and of those that
// a block list matches.
type Count struct {
	Headers uint64 `json:"headers"`
	Listed  uint64 `json:"listed"`
}

// Read returns what was counted, by kind. It makes no system call.
func Read(s *loader.Stats) (all [packet.NumTunnels]Count) {
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

// State has the counts by the name of a kind of tunnel.
type State map[string]Count

// State returns the counts of a program, nil where it does not match headers in tunnels.
func (a About) State(s *loader.Stats) State {
	if !a {
		return nil
	}
	all, counts := make(State), Read(s)
	for t := packet.NoTunnel + 1; t < packet.NumTunnels; t++ {
		all[t.String()] = counts[t]
	}
	return all
}

// Rows describes how many headers were found in tunnels.
func (a About) Rows(s State) (all []stage.Row) {
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
	headers = &stage.Family{Name: "weir_inner_headers_total", Help: "Headers in tunnels that were looked up, by tunnel: ip, gre, vxlan or gtp-u.", Label: "tunnel", Counter: true, Directed: true}
	listed  = &stage.Family{Name: "weir_inner_listed_total", Help: "Of these, those that a block list matches: their packets have the reason blocked, unless they are allowed.", Label: "tunnel", Counter: true, Directed: true}
)

// Families are the metrics of headers in tunnels.
var Families = []*stage.Family{headers, listed}

// Counted returns the counters of an interface.
func (a About) Counted(s *loader.Stats) (all []stage.Sample) {
	for name, n := range a.State(s) {
		all = append(all, stage.Sample{Family: headers, Of: name, Value: float64(n.Headers)}, stage.Sample{Family: listed, Of: name, Value: float64(n.Listed)})
	}
	return all
}
