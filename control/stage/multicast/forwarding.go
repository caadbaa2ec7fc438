package multicast

import (
	"weir/control/engine"
	"weir/control/stage"
	"weir/loader"
)

// copies are the packets for a port.
type copies struct{ sent, dropped stage.Count }

// Connect connects the interfaces that exist now to a generation's ports.
func (s *Groups) Connect(g *engine.Generation) {
	var ports []Port
	var there []bool
	var err error
	if p := Of(g); p != nil {
		ports = p.Ports
		there, err = p.Connect(g.Kernel())
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != s.problem {
		s.log.Error(text)
	}
	s.problem = text
	before := s.present
	s.present = make(map[loader.Target]bool)
	for i, p := range ports {
		s.present[p.Target] = there[i]
		if was, known := before[p.Target]; known && was == there[i] {
			continue
		}
		log := s.log.With("interface", p.String())
		if there[i] {
			log.Info("multicast is forwarded to the interface")
		} else {
			log.Warn("multicast cannot be forwarded to the interface, which does not exist or does not fit: waiting")
		}
	}
}

// count adds what a generation has forwarded since it was last read.
func (s *Groups) count(p *Part, g *engine.Generation) {
	now := g.Kernel().Copies()
	s.seen = append(s.seen, make([]loader.Copies, len(now)-len(s.seen))...)
	since(&s.copied, now[0].Listed, &s.seen[0].Listed)
	since(&s.left, now[0].Unlisted, &s.seen[0].Unlisted)
	for i, to := range p.Ports {
		c := s.ports[to.Target]
		since(&c.sent, now[i+1].Listed, &s.seen[i+1].Listed)
		since(&c.dropped, now[i+1].Unlisted, &s.seen[i+1].Unlisted)
		s.ports[to.Target] = c
	}
}

// since adds what a counter has counted since it was last read.
func since(to *stage.Count, now loader.Counter, seen *loader.Counter) {
	to.Add(loader.Counter{Packets: now.Packets - seen.Packets, Bytes: now.Bytes - seen.Bytes})
	*seen = now
}

// Retire adds what a generation that was replaced has forwarded.
func (s *Groups) Retire(g *engine.Generation) {
	if p := Of(g); p != nil {
		loader.Grace() // its programs may still be counting
		s.count(p, g)
	}
	s.seen = nil
}
