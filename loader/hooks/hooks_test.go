package hooks

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"weir/bpf"
	"weir/loader/netif"
	"weir/tests/lab"
)

// Asking the driver for its reasons attaches nothing, even where there are none.
func TestDriverMessageUndone(t *testing.T) {
	l := lab.New(t)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "MIT", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, xdpPass), asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	l.B.In(t, func() {
		for _, mode := range []Hook{Native, Generic} {
			iface, err := netif.ByName(0, l.B.Iface)
			if err != nil {
				t.Fatal(err)
			}
			if message := driverMessage(iface, p, mode); message != "" {
				t.Errorf("%v: %s", mode, message)
			}
			if iface, err = netif.ByName(0, l.B.Iface); err != nil || iface.Xdp.Attached {
				t.Errorf("%v: attached, %v", mode, err)
			}
		}
	})
}

// Programs are known as weir's by the map that they have.
func TestOwnMap(t *testing.T) {
	if ownMap != bpf.WeirMapReasonStats {
		t.Errorf("programs of weir are looked for by a map %s, not %s", ownMap, bpf.WeirMapReasonStats)
	}
}
