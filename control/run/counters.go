package run

import (
	"weir/control/status"
	"weir/filter/verdict"
	"weir/loader"
)

// Counters are the packets and bytes of each reason.
type Counters [verdict.NumReasons]loader.Counter

// Packets is the number of all packets.
func (c *Counters) Packets() uint64 {
	var n uint64
	for _, r := range c {
		n += r.Packets
	}
	return n
}

// Dropped is the number of packets that were dropped because they are listed.
func (c *Counters) Dropped() uint64 { return c[verdict.Blocked].Packets }

// Allowed is the number of packets that passed because an allow list has them.
func (c *Counters) Allowed() uint64 { return c[verdict.Allowed].Packets }

// Counters are those of all interfaces together. It may be called
// while Reload goes on.
func (f *Filter) Counters() Counters {
	var sum Counters
	for _, h := range f.holds {
		if h.Attachment == nil {
			continue
		}
		for i, c := range h.Stats().Reasons(nil) {
			sum[i].Packets += c.Packets
			sum[i].Bytes += c.Bytes
		}
	}
	return sum
}

// Description describes the generation that is in force.
func (f *Filter) Description() status.Description { return f.description }
