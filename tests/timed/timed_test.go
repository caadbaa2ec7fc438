package timed

import "testing"

// Only QEMU without KVM emulates.
func TestEmulated(t *testing.T) {
	for model, want := range map[string]bool{
		"QEMU TCG CPU version 2.5+":                 true,
		"QEMU Virtual CPU version 2.5+":             false, // of KVM, too
		"Intel(R) Xeon(R) Processor @ 2.10GHz":      false,
		"AMD EPYC-Milan Processor":                  false,
		"a processor that is like QEMU TCG CPU 2.5": false,
	} {
		processors := "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: " + model + "\nflags\t\t: fpu\n"
		if got := emulated(processors); got != want {
			t.Errorf("%s: emulated %t, want %t", model, got, want)
		}
	}
}
