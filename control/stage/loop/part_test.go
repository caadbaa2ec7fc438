package loop

import (
	"testing"

	"weir/filter/icarus"
)

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
	c := (&Part{Node: n, Edges: true}).constants()
	if c.Key != [2]uint64{0x0706050403020100, 0x0f0e0d0c0b0a0908} || c.Words != 1 || c.Edges != 1 || c.Domain != 3 || c.Mask[0] == 0 {
		t.Errorf("%+v", c)
	}
}
