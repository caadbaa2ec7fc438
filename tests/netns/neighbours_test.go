package netns

import (
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"weir/filter/key"
	"weir/filter/verdict"
	"weir/tests/lab"
)

// attachBeside attaches a program to the lab's end A that ends with a verdict of TC.
func attachBeside(t *testing.T, e lab.End, name string, verdict int32, at link.Anchor) link.Link {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, verdict), asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var l link.Link
	e.In(t, func() {
		i, err := net.InterfaceByName(e.Iface)
		if err != nil {
			t.Fatal(err)
		}
		if l, err = link.AttachTCX(link.TCXOptions{Interface: i.Index, Program: p, Attach: ebpf.AttachTCXEgress, Anchor: at}); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { l.Close() })
	return l
}

// weir goes before the programs that are at TC already, as those of Cilium, which end with
// a verdict that no other program comes behind. What attaches itself before weir later
// shows in its order, and decides first.
func TestBesideTCPrograms(t *testing.T) {
	l := lab.New(t)
	const next, pass = -1, 0 // TC_ACT_UNSPEC, TC_ACT_OK
	attachBeside(t, l.A, "cil_to_netdev", pass, link.Head())
	a := attachOut(t, l, key.Destination(netip.MustParsePrefix("192.0.2.77/32")))
	attachBeside(t, l.A, "behind", next, link.Tail())
	for _, args := range [][]string{
		{"addr", "add", "192.0.2.1/24", "dev", l.A.Iface},
		{"neigh", "add", "192.0.2.77", "lladdr", "02:00:00:00:00:77", "dev", l.A.Iface},
	} {
		if out, err := exec.Command("ip", append([]string{"-n", l.A.Netns}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	send := func() {
		t.Helper()
		l.A.In(t, func() {
			c, err := net.Dial("udp4", "192.0.2.77:9")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write([]byte("listed")); err != nil {
				t.Fatal(err)
			}
		})
	}
	blocked := func() uint64 { return a.Stats().Reasons(nil)[verdict.Blocked].Packets }
	order := func() (names []string) {
		t.Helper()
		all, err := a.Order()
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range all {
			if n.Weir {
				n.Name = "weir"
			}
			names = append(names, n.Name)
		}
		return names
	}
	if got, want := order(), []string{"weir", "cil_to_netdev", "behind"}; !slices.Equal(got, want) {
		t.Errorf("the order is %q, want %q", got, want)
	}
	if send(); blocked() != 1 {
		t.Error("weir does not see what a program behind it would have pass")
	}
	polite := attachBeside(t, l.A, "before", next, link.Head())
	if got, want := order(), []string{"before", "weir", "cil_to_netdev", "behind"}; !slices.Equal(got, want) {
		t.Errorf("the order is %q, want %q", got, want)
	}
	if send(); blocked() != 2 {
		t.Error("weir does not see what a program before it hands on")
	}
	if err := polite.Close(); err != nil {
		t.Fatal(err)
	}
	attachBeside(t, l.A, "takes_all", pass, link.Head())
	if send(); blocked() != 2 {
		t.Error("weir sees what a program before it has had pass for good, which the documentation denies")
	}
	if got := order(); got[0] != "takes_all" {
		t.Errorf("the order is %q", got)
	}
}
