package kernels

import (
	"errors"
	"strings"
	"testing"

	"weir/loader"
	"weir/tests/lab"
)

// Where the kernel can copy packets, both programs load; else multicast is refused
// with the version that it takes.
func TestMulticast(t *testing.T) {
	lab.Root(t)
	l := lab.New(t)
	g, err := loader.NewGeneration(loader.Config{Multicast: loader.Multicast{Ports: 1, Lines: 8, First: 5, Rest: 6}})
	attribute(t, err)
	if !lab.KernelAtLeast(t, 5, 14) {
		if !errors.Is(err, loader.ErrUnsupported) || !strings.Contains(err.Error(), "5.14") {
			t.Errorf("error %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if there, err := g.SetPort(1, loader.Target{Netns: l.A.Netns, Iface: l.A.Iface}, false); err != nil || !there {
		t.Fatalf("port: %t, %v", there, err)
	}
	if err := lifecycle(pins(t), loader.Target{Netns: l.B.Netns, Iface: l.B.Iface}, loader.Native, g); err != nil {
		t.Fatal(err)
	}
}
