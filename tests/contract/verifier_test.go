package contract

import (
	"testing"

	"weir/bpf"
)

// The program that Go tests is the one that is attached: there is no other.
func TestOneProgram(t *testing.T) {
	spec, err := bpf.LoadWeir()
	if err != nil {
		t.Fatal(err)
	}
	if len(spec.Programs) != 1 || spec.Programs[bpf.WeirProgWeir] == nil {
		t.Errorf("the object has %d programs, want weir alone", len(spec.Programs))
	}
}
