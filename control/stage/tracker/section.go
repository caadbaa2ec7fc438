package tracker

import (
	"fmt"
	"slices"

	"weir/control/quantity"
	"weir/loader"
)

// Sections are the keys of weir.yaml that trackers have.
type Sections struct {
	// Heavy hitters: what is counted, and the action on flows above a threshold.
	Trackers []Spec `yaml:"trackers,omitempty"`

	// Scans and floods: who reaches many ports or addresses, and what many reach.
	Scans []Scan `yaml:"scans,omitempty"`

	// Count dropped packets by source, for weir drops and weir top. Packets that pass
	// cost nothing for it.
	TrackDrops bool `yaml:"track_drops"`
}

// Check adds what is wrong with trackers and scan detectors.
func (s *Sections) Check(errs *quantity.FieldErrors) {
	if n := len(s.Trackers) + len(s.Scans); n > loader.MaxTrackers {
		if len(s.Scans) > 0 {
			errs.Failf("scans", "there are %d, and %d trackers: the maximum of both is %d", len(s.Scans), len(s.Trackers), loader.MaxTrackers)
		} else {
			errs.Failf("trackers", "there are %d: the maximum is %d", n, loader.MaxTrackers)
		}
	}
	quantity.Unique(errs, "trackers", len(s.Trackers), func(i int) any { return s.Trackers[i].Label() })
	for i, t := range s.Trackers {
		errs.Add(fmt.Sprintf("trackers[%d]", i), t.Validate())
	}
	quantity.Unique(errs, "scans", len(s.Scans), func(i int) any { return s.Scans[i].Spec().Label() })
	for i, g := range s.Scans {
		errs.Add(fmt.Sprintf("scans[%d]", i), g.Validate())
	}
}

// Advice returns what could lock somebody out.
func (s *Sections) Advice() (all []string) {
	advise := func(section string, i int, a Action) {
		if a == Block {
			all = append(all, fmt.Sprintf("%s[%d]: action block: who forges the address of another can have it blocked, unless that would cut off this host; "+
				"action limit leaves it some packets, and allow lists and failsafe spare it", section, i))
		}
	}
	for i, t := range s.Trackers {
		advise("trackers", i, t.Action)
	}
	for i, g := range s.Scans {
		advise("scans", i, g.Action)
	}
	return all
}

// In returns the trackers of incoming packets: those of the sections, the scan detectors, and that of
// dropped packets.
func (s *Sections) In() (all []Watched) {
	for _, t := range s.Trackers {
		all = append(all, Watched{Spec: t, Role: Hitters})
	}
	for _, g := range s.Scans {
		all = append(all, Watched{Spec: g.Spec(), Role: Hitters})
	}
	if s.TrackDrops {
		all = append(all, Watched{Spec: DefaultSpec("src"), Role: Drops})
	}
	return all
}

// Out returns the trackers of outgoing packets: that of dropped ones, by their destinations.
func (s *Sections) Out() []Watched {
	if !s.TrackDrops {
		return nil
	}
	return []Watched{{Spec: DefaultSpec("dst"), Role: Drops}}
}

// Part returns the share of programs.
func (s *Sections) Part() *Part {
	p := new(Part)
	for _, w := range s.In() {
		p.In = append(p.In, w.Counting())
	}
	for _, w := range s.Out() {
		p.Out = append(p.Out, w.Counting())
	}
	return p
}

// Clone returns a copy that shares nothing.
func (s Sections) Clone() Sections {
	s.Trackers, s.Scans = slices.Clone(s.Trackers), slices.Clone(s.Scans)
	return s
}

// Equal reports whether the same is watched.
func (s *Sections) Equal(other *Sections) bool {
	return slices.Equal(s.In(), other.In()) && slices.Equal(s.Out(), other.Out())
}
