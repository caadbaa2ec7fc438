package kernels

import (
	"errors"
	"strings"
	"testing"

	"weir/control/engine"
	"weir/control/stage/multicast"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/loader/netif"
	"weir/tests/lab"
)

// Where the kernel can copy packets, both programs load; else multicast is refused
// with the version that it takes.
func TestMulticast(t *testing.T) {
	lab.Root(t)
	l := lab.New(t)
	m := &multicast.Part{MaxGroups: 100, Ports: []multicast.Port{{Target: netif.Target{Netns: l.A.Netns, Iface: l.A.Iface}}}}
	g, err := engine.Build(nil, engine.Config{Parts: []engine.Part{m}})
	attribute(t, err)
	if !lab.KernelAtLeast(t, 5, 14) {
		if !errors.Is(err, kernelerr.ErrUnsupported) || !strings.Contains(err.Error(), "5.14") {
			t.Errorf("error %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if there, err := m.Connect(g.Kernel()); err != nil || !there[0] {
		t.Fatalf("port: %v, %v", there, err)
	}
	if err := lifecycle(pins(t), netif.Target{Netns: l.B.Netns, Iface: l.B.Iface}, hooks.Native, g.Kernel()); err != nil {
		t.Fatal(err)
	}
}
