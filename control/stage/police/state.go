package police

import (
	"fmt"
	"sync/atomic"

	"weir/bpf"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/filter/sfb"
	"weir/loader"
	"weir/loader/netif"
)

// Shared and CPU are a policer's memory: what all CPUs share, and what each has for itself.
type (
	Shared = bpf.WeirPolicerState
	CPU    = bpf.WeirPolicerCpu
)

func stateOf(k loader.Kept) *Shared { return &loader.Entries[Shared](k, bpf.WeirMapPolicerNow)[0] }
func cpusOf(k loader.Kept) []CPU    { return loader.Entries[CPU](k, bpf.WeirMapPolicerCpus) }

// Memory calls fn with the memory of an interface's policer, which the program writes at
// the same time. It is valid until fn returns.
func Memory(s *loader.Stats, fn func(*Shared, []CPU)) {
	s.Read(func(k loader.Kept) { fn(stateOf(k), cpusOf(k)) })
}

// Counters are packets and bytes by outcome.
type Counters [sfb.NumOutcomes]loader.Counter

// Policed has the counters and the state of a policer.
type Policed struct {
	Outcomes  Counters
	Fair      uint64 // units in a tick of 10 ms, times 2^8, that each flow may have
	Boxed     int    // bins that are in the penalty box, or would be if they were not suspended
	Suspended bool   // so many bins would be in the penalty box that none is
}

// Read returns what an interface's policer has done, and false where there has been none.
// It makes no system call.
func Read(s *loader.Stats) (p Policed, ok bool) {
	Memory(s, func(now *Shared, cpus []CPU) {
		if ok = now.Identity != 0; !ok {
			return
		}
		p.Fair = atomic.LoadUint64(&now.Fair)
		p.Suspended = atomic.LoadUint64(&now.Suspended) != 0
		for i := range now.Slices {
			p.Boxed += int(atomic.LoadUint64(&now.Slices[i].Boxed))
		}
		for cpu := range cpus {
			for i := range p.Outcomes {
				p.Outcomes[i].Packets += atomic.LoadUint64(&cpus[cpu].Outcomes[i].Packets)
				p.Outcomes[i].Bytes += atomic.LoadUint64(&cpus[cpu].Outcomes[i].Bytes)
			}
		}
	})
	return p, ok
}

// About describes the policing of an interface.
type About struct {
	Limit      string `json:"limit"`      // the rate and what makes a flow
	Controller string `json:"controller"` // how flows share it
	Packets    bool   `json:"packets"`    // the limit is of packets, not of bytes
}

// About returns what is said of an interface's program, nil where it has no limit.
func (p *Part) About(t netif.Target) *About {
	l := p.at(t)
	if l == nil {
		return nil
	}
	return &About{Limit: l.Name, Controller: l.Controller.String(), Packets: l.Packets}
}

// State has the counters and the state of the policing of an interface.
type State struct {
	Outcomes map[string]stage.Count `json:"outcomes"`
	// FairRate is the rate that each flow may have now, in bytes or packets a second.
	FairRate float64 `json:"fair_rate"`
	// BoxedShare is the share of counters whose flows do not respond, and have almost
	// nothing. Where penalties are suspended, they are so many that none is limited like that.
	BoxedShare float64 `json:"boxed_share"`
	Suspended  bool    `json:"suspended"`
}

// State returns what has been done, nil where there is no limit.
func (a *About) State(s *loader.Stats) *State {
	p, ok := Read(s)
	if a == nil || !ok {
		return nil
	}
	of := &State{
		Outcomes: make(map[string]stage.Count), FairRate: sfb.FairRate(p.Fair),
		BoxedShare: float64(p.Boxed) / (sfb.PolicerLevels * sfb.PolicerBins), Suspended: p.Suspended,
	}
	for i, c := range p.Outcomes {
		of.Outcomes[sfb.Outcome(i).String()] = stage.Count(c)
	}
	return of
}

// Rows describes what policing does.
func (a *About) Rows(s *State) (all []stage.Row) {
	if a == nil || s == nil {
		return nil
	}
	row := func(name, format string, args ...any) {
		all = append(all, stage.Row{Name: name, Text: fmt.Sprintf(format, args...)})
	}
	fair := quantity.SI(s.FairRate, 1, "pps")
	if !a.Packets {
		fair = quantity.SI(8*s.FairRate, 1, "bit/s")
	}
	if s.FairRate > 0 {
		fair = "; a flow may have " + fair
	} else {
		fair = "; what a flow may have is known when packets come"
	}
	row("limit", "%s, %s%s", a.Limit, a.Controller, fair)
	for _, o := range [...]struct{ outcome, name string }{
		{"marked", "marked"}, {"early", "dropped early"}, {"boxed", "held down"}, {"over", "above the limit"},
	} {
		if c := s.Outcomes[o.outcome]; c.Packets > 0 {
			row("  "+o.name, "%s", c)
		}
	}
	switch {
	case s.Suspended:
		row("  SUSPENDED", "%.0f%% of the counters have flows that do not respond: none is penalised", 100*s.BoxedShare)
	case s.BoxedShare > 0:
		row("  penalised", "%.1f%% of the counters, whose flows do not respond", 100*s.BoxedShare)
	}
	return all
}
