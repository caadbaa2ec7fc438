package loop

import (
	"testing"

	"weir/bpf"
	"weir/filter/icarus"
	"weir/loader/netif"
)

// Programs for incoming packets know the edges, VLAN devices above them, and whether they are at one;
// others know none any more.
func TestDevices(t *testing.T) {
	p := &Part{Edges: []string{"eth*"}}
	in, out := p.Devices(netif.Target{})[bpf.WeirMapLoopEdges], p.Devices(netif.Target{Out: true})
	if len(in.Names) != 1 || in.Names[0] != "eth*" || !in.VLANs || in.Own != bpf.WeirVarLoopEdge {
		t.Errorf("incoming packets: %+v", in)
	}
	if edges, cleared := out[bpf.WeirMapLoopEdges]; !cleared || len(edges.Names) != 0 {
		t.Errorf("outgoing packets: %+v", out)
	}
}

// The key is two numbers in the program, the mask the bytes that stand in packets.
func TestConstants(t *testing.T) {
	var key icarus.Key
	for i := range key {
		key[i] = byte(i)
	}
	n, err := icarus.NewNode(1, 3, key, icarus.Geometry{Size: 64, K: 5, Confirm: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := (&Part{Node: n, Edges: []string{"eth0"}}).constants()
	if c.Key != [2]uint64{0x0706050403020100, 0x0f0e0d0c0b0a0908} || c.Words != 1 || c.Edges != 1 || c.Domain != 3 || c.Mask[0] == 0 {
		t.Errorf("%+v", c)
	}
}
