package police

import (
	"weir/control/stage"
	"weir/filter/sfb"
	"weir/loader"
)

var (
	packets   = &stage.Family{Name: "weir_policed_packets_total", Help: "Packets by the outcome of policing: passed, marked (passed with a mark of congestion), early (dropped as more than the fair rate), boxed (of a flow that does not respond) or over (the token bucket was empty).", Label: "outcome", Counter: true}
	octets    = &stage.Family{Name: "weir_policed_bytes_total", Help: "Bytes by the outcome of policing.", Label: "outcome", Counter: true}
	fairRate  = &stage.Family{Name: "weir_policer_fair_rate", Help: "What each flow may have now, in bytes or packets a second.", Label: "unit"}
	boxed     = &stage.Family{Name: "weir_policer_boxed_ratio", Help: "Share of the counters whose flows do not respond."}
	suspended = &stage.Family{Name: "weir_policer_suspended", Help: "Whether so many flows seem not to respond that none is limited for it, as with forged sources."}
)

// Families are the metrics of policing.
var Families = []*stage.Family{packets, octets, fairRate, boxed, suspended}

// Counted returns the counters of an interface's policing.
func (a *About) Counted(s *loader.Stats) (all []stage.Sample) {
	if a == nil {
		return nil
	}
	p, _ := Read(s)
	for i, n := range p.Outcomes {
		outcome := sfb.Outcome(i).String()
		all = append(all, stage.Sample{Family: packets, Of: outcome, Value: float64(n.Packets)}, stage.Sample{Family: octets, Of: outcome, Value: float64(n.Bytes)})
	}
	return all
}

// Gauges returns the state of an interface's policing.
func (a *About) Gauges(s *loader.Stats) []stage.Sample {
	if a == nil {
		return nil
	}
	unit, p := "bytes", new(State)
	if a.Packets {
		unit = "packets"
	}
	if of := a.State(s); of != nil {
		p = of
	}
	var off float64
	if p.Suspended {
		off = 1
	}
	return []stage.Sample{
		{Family: fairRate, Of: unit, Value: p.FairRate}, {Family: boxed, Value: p.BoxedShare}, {Family: suspended, Value: off},
	}
}
