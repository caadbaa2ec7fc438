package membership

import "testing"

func TestMarks4(t *testing.T) {
	r := newRandom(t)
	marks, want := NewMarks4(), make(map[uint32]bool)
	for range 300 {
		length := 12 + r.IntN(21)
		net := r.Uint32N(1 << 24)
		n := uint32(1)
		if length < 24 {
			n <<= 24 - length
			net &^= n - 1
		}
		marks.Mark(net, uint8(length))
		for i := range n {
			want[net+i] = true
		}
	}
	if marks.Count() != len(want) {
		t.Errorf("%d networks are marked, want %d", marks.Count(), len(want))
	}
	for net := range want {
		if !marks.Marked(net) {
			t.Fatalf("network %#x is not marked", net)
		}
	}
}

func TestMarks4All(t *testing.T) {
	marks := NewMarks4()
	marks.Mark(0, 0)
	if marks.Count() != 1<<24 {
		t.Errorf("/0 marks %d networks", marks.Count())
	}
}
