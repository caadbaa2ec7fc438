package multicast

import (
	"weir/control/engine"
	"weir/control/stage"
	"weir/loader/netif"
)

var (
	groupsWanted  = &stage.Family{Name: "weir_multicast_groups", Help: "Groups that at least one interface wants.", Host: true}
	groupsMax     = &stage.Family{Name: "weir_multicast_max_groups", Help: "Groups that the filters have room for.", Host: true}
	copiedPackets = &stage.Family{Name: "weir_multicast_copied_packets_total", Help: "Packets to groups that some interface wants: copied to all interfaces, whose filters drop groups that they do not contain.", Counter: true, Host: true}
	copiedBytes   = &stage.Family{Name: "weir_multicast_copied_bytes_total", Help: "Bytes of the packets that were copied.", Counter: true, Host: true}
	leftPackets   = &stage.Family{Name: "weir_multicast_left_packets_total", Help: "Packets to groups that no interface wants, left to the network stack.", Counter: true, Host: true}
	leftBytes     = &stage.Family{Name: "weir_multicast_left_bytes_total", Help: "Bytes of the packets to groups that no interface wants.", Counter: true, Host: true}
	portThere     = &stage.Family{Name: "weir_multicast_interface_present", Help: "Whether the interface exists and multicast can be forwarded to it."}
	portGroups    = &stage.Family{Name: "weir_multicast_interface_groups", Help: "Groups that the interface wants."}
	portRate      = &stage.Family{Name: "weir_multicast_false_positive_ratio", Help: "Share of the unwanted groups that the interface's filter matches by mistake, computed from the bits that are set."}
	portPlanned   = &stage.Family{Name: "weir_multicast_false_positive_planned_ratio", Help: "The same share, planned for a filter with the maximum number of groups.", Host: true}
	portPackets   = &stage.Family{Name: "weir_multicast_packets_total", Help: "Copies for the interface, by its filter's verdict: pass or drop.", Label: "verdict", Counter: true}
	portBytes     = &stage.Family{Name: "weir_multicast_bytes_total", Help: "Bytes of the copies for the interface.", Label: "verdict", Counter: true}
)

// Families are the metrics of forwarding.
var Families = []*stage.Family{groupsWanted, groupsMax, copiedPackets, copiedBytes, leftPackets, leftBytes, portThere, portGroups, portRate, portPlanned, portPackets, portBytes}

// Samples returns what is forwarded by a generation, and was by those before it.
func (s *Groups) Samples(g *engine.Generation) (all []stage.Sample) {
	p := Of(g)
	if p == nil {
		return nil
	}
	s.count(p, g)
	n := s.copies[netif.Target{}]
	all = []stage.Sample{
		{Family: groupsWanted, Value: float64(p.Table.Len())}, {Family: groupsMax, Value: float64(p.Table.MaxGroups)},
		{Family: copiedPackets, Value: float64(n.Listed.Packets)}, {Family: copiedBytes, Value: float64(n.Listed.Bytes)},
		{Family: leftPackets, Value: float64(n.Unlisted.Packets)}, {Family: leftBytes, Value: float64(n.Unlisted.Bytes)},
		{Family: portPlanned, Value: p.Table.Rate()},
	}
	for i, to := range p.Ports {
		n, there := s.copies[to.Target], 0.
		if s.present[to.Target] {
			there = 1
		}
		all = append(all,
			stage.Sample{Family: portThere, At: to.Target, Value: there},
			stage.Sample{Family: portGroups, At: to.Target, Value: float64(p.Table.Count(i + 1))},
			stage.Sample{Family: portRate, At: to.Target, Value: p.Table.FalsePositiveRate(i + 1)},
			stage.Sample{Family: portPackets, At: to.Target, Of: "pass", Value: float64(n.Listed.Packets)},
			stage.Sample{Family: portBytes, At: to.Target, Of: "pass", Value: float64(n.Listed.Bytes)},
			stage.Sample{Family: portPackets, At: to.Target, Of: "drop", Value: float64(n.Unlisted.Packets)},
			stage.Sample{Family: portBytes, At: to.Target, Of: "drop", Value: float64(n.Unlisted.Bytes)})
	}
	return all
}
