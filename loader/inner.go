package loader

import (
	"sync/atomic"

	"weir/bpf"
)

// Tunnels is the number of kinds of tunnels, with 0 for none.
const Tunnels = int(bpf.WeirTunnelTUNNEL_COUNT)

// InTunnel reports whether the addresses of a packet are those of a header in a tunnel.
func InTunnel(p *Packet) bool { return p.Encapsulated&2 != 0 } // IN_TUNNEL

// InnerCount is what was counted of the headers in a kind of tunnel.
type InnerCount struct {
	Headers uint64 // that were looked up
	Listed  uint64 // of these, those that a block list matches
}

// Inner returns what was counted of headers in tunnels, by kind. It makes no system call.
func (s *Stats) Inner() (all [Tunnels]InnerCount) {
	s.read(func(k pinnedMaps) {
		rows := entriesOf[bpf.WeirInnerRow](k[bpf.WeirMapInnerStats])
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
