package loader

import (
	"sync/atomic"

	"weir/bpf"
)

// EtherTypes are the frames that were counted as not IP, by EtherType, 0 for
// 802.3 frames, which have a length instead.
type EtherTypes struct {
	ByType map[uint16]Counter
	Others Counter // of types that a CPU had no room for
}

// EtherTypes returns the frames that were not IP. It makes no system call.
func (s *Stats) EtherTypes() EtherTypes {
	e := EtherTypes{ByType: make(map[uint16]Counter)}
	s.read(func(k pinnedMaps) {
		rows := Entries[bpf.WeirEthertypeRow](k, bpf.WeirMapEthertypeStats)
		for i := range rows {
			for j := range rows[i].ByType {
				of := &rows[i].ByType[j]
				t := atomic.LoadUint64(&of.Type)
				if t == 0 {
					break
				}
				c := e.ByType[uint16(t)]
				c.Packets += atomic.LoadUint64(&of.Frames.Packets)
				c.Bytes += atomic.LoadUint64(&of.Frames.Bytes)
				e.ByType[uint16(t)] = c
			}
			e.Others.Packets += atomic.LoadUint64(&rows[i].Others.Packets)
			e.Others.Bytes += atomic.LoadUint64(&rows[i].Others.Bytes)
		}
	})
	return e
}
