package contract

import (
	"testing"

	"weir/bpf"
)

// The program that Go tests is the one that is attached: there is no other but
// that for copies of multicast.
func TestOneProgram(t *testing.T) {
	spec, err := bpf.LoadWeir()
	if err != nil {
		t.Fatal(err)
	}
	if len(spec.Programs) != 2 || spec.Programs[bpf.WeirProgWeir] == nil || spec.Programs[bpf.WeirProgWeirEgress] == nil {
		t.Errorf("the object has %d programs, want weir and weir_egress alone", len(spec.Programs))
	}
}
