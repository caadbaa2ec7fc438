package loop

import (
	"sync/atomic"
	"unsafe"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/stage"
	"weir/filter/icarus"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// Part is the share of programs for incoming packets.
type Part struct {
	engine.BasePart
	*icarus.Node
	Edges []string // interfaces that are the domain's edges: names and globs
	Drop  bool     // packets in a loop; otherwise they are only reported
}

// Constants returns those of the node, and of the policy.
func (p *Part) Constants(t netif.Target, _ loader.Seed) map[string]any {
	all := make(map[string]any)
	if !t.Out {
		all[bpf.WeirVarLoopNode], all[bpf.WeirVarDropLooped] = p.constants(), loader.Flag(p.Drop)
	}
	return all
}

func (p *Part) constants() *bpf.WeirLoopConfig {
	mask := p.Mask.Wire()
	c := &bpf.WeirLoopConfig{Words: uint32(p.Size / 64), Domain: p.Domain, Confirm: uint8(p.Confirm)}
	if len(p.Edges) > 0 {
		c.Edges = 1
	}
	// Masks in the byte order of a packet, the key as numbers.
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&c.Mask)), unsafe.Sizeof(c.Mask)), mask[:p.Size/8])
	for i := range c.Key {
		for j := range 8 {
			c.Key[i] |= uint64(p.Key[8*i+j]) << (8 * j)
		}
	}
	return c
}

// Devices returns the edges, with the VLAN devices above them, for the programs of incoming packets.
// A program also knows whether it is at one.
func (p *Part) Devices(t netif.Target) map[string]loader.Devices {
	var edges loader.Devices
	if !t.Out {
		edges = loader.Devices{Names: p.Edges, VLANs: true, Own: bpf.WeirVarLoopEdge}
	}
	return map[string]loader.Devices{bpf.WeirMapLoopEdges: edges}
}

// General returns why no packet takes the lean path.
func (p *Part) General(t netif.Target) string {
	if t.Out {
		return ""
	}
	return "loops are detected"
}

// Twin makes the twin of programs for incoming packets look for loops.
func (p *Part) Twin(v *verdict.Program) {
	if !v.Out {
		v.Loop, v.DropLooped = p.Node, p.Drop
	}
}

// About describes the host's node in a domain that detects loops.
type About struct {
	Node    uint64   `json:"node"`
	Domain  uint8    `json:"domain"`
	Size    int      `json:"size"`            // of a packet's filter, in bits
	K       int      `json:"k"`               // bits that a node sets
	Confirm int      `json:"confirm"`         // nodes in a row that must find a filter unchanged
	Drop    bool     `json:"drop"`            // otherwise packets in a loop are only reported
	Edges   []string `json:"edges,omitempty"` // interfaces where packets enter and leave
}

// About returns the description of programs for incoming packets, nil where loops are not
// looked for. It takes milliseconds where the filter follows from path_length.
func (l *Spec) About() *About {
	if !l.On() {
		return nil
	}
	g, _ := l.Geometry() // Part has failed otherwise
	return &About{
		Node: uint64(l.Node), Domain: uint8(l.Domain), Size: g.Size, K: g.K, Confirm: g.Confirm, Drop: l.Action == Drop, Edges: l.Edges,
	}
}

// Decide adds to a policy what becomes of packets in a loop.
func (a *About) Decide(p *verdict.Policy) { p.DropLooped = a != nil && a.Drop }

const rowWords = int(unsafe.Sizeof(bpf.WeirLoopRow{})) / 8

// Read returns the packets by the outcome of their loop filter.
func Read(s *loader.Stats) (packets [icarus.NumOutcomes]uint64) {
	s.Read(func(k loader.Kept) {
		words := loader.Words(k, bpf.WeirMapLoopStats)
		for row := 0; row < len(words); row += rowWords {
			for i := range packets {
				packets[i] += atomic.LoadUint64(&words[row+i])
			}
		}
	})
	return packets
}

// State has the packets by the name of the outcome of their loop filter.
type State map[string]uint64

// State returns the counts of a program, nil where it does not look for loops.
func (a *About) State(s *loader.Stats) State {
	if a == nil {
		return nil
	}
	all := make(State)
	for n, packets := range Read(s) {
		if o := icarus.Outcome(n); o != icarus.Untouched {
			all[o.String()] = packets
		}
	}
	return all
}

var packets = &stage.Family{Name: "weir_loop_packets_total", Help: "Packets by the outcome of loop detection; those in a loop have the outcome looped.", Label: "outcome", Counter: true}

// Families are the metrics of loop detection.
var Families = []*stage.Family{packets}

// Counted returns the counters of an interface.
func (a *About) Counted(s *loader.Stats) (all []stage.Sample) {
	for outcome, n := range a.State(s) {
		all = append(all, stage.Sample{Family: packets, Of: outcome, Value: float64(n)})
	}
	return all
}
