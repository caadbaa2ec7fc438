package loader

import (
	"slices"
	"strings"
	"testing"

	"weir/bpf"
	"weir/tests/lab"
)

// Edges follow what they are set to, and what is over their number is refused.
func TestSetEdges(t *testing.T) {
	lab.Root(t)
	s, err := NewStats(0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, want := range [][]uint32{{1, 2, 3}, {3, 4}, nil} {
		if err := s.SetEdges(false, want); err != nil {
			t.Fatal(err)
		}
		var got []uint32
		var key, value uint32
		for all := s.maps[bpf.WeirMapLoopEdges].m.Iterate(); all.Next(&key, &value); {
			got = append(got, key)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("edges %v, want %v", got, want)
		}
	}
	var many []uint32
	for i := range uint32(5000) {
		many = append(many, i+1)
	}
	if err := s.SetEdges(false, many); err == nil || !strings.Contains(err.Error(), "5000 interfaces, where there is room for 4096") {
		t.Errorf("5000 edges: %v", err)
	}
}
