package attach

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"weir/loader/hooks"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/wait"
)

// loopback's driver has no native XDP.
const loopback = "lo"

// conditions returns the conditions of all interfaces by name.
func (m *Manager) conditions() map[string]Condition {
	all := make(map[string]Condition)
	for _, i := range m.Interfaces() {
		all[i.Iface] = i.Condition
	}
	return all
}

// An interface that cannot be filtered does not keep the others from being so,
// unless it is required. It is retried, and can be mended by another hook.
func TestStartWithoutOne(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	c, targets := options(t, &log, l.B)
	on := func(name string) Target { return Target{Target: netif.Target{Netns: l.B.Netns, Iface: name}} }
	targets = append([]Target{on(loopback), on("absent0")}, targets...)

	required := append([]Target{}, targets...)
	required[0].Required = true
	if _, err := startManager(t, c, required); err == nil || len(states(t, c.Pins)) != 0 {
		t.Fatalf("started without a required interface: %v, %v", err, states(t, c.Pins))
	}
	if _, err := startManager(t, c, targets[:2]); err == nil || !strings.Contains(err.Error(), loopback) {
		t.Fatalf("started without any interface: %v", err)
	}

	log.Reset()
	m := begin(t, c, targets)
	defer m.Stop(false)
	check := func(want map[string]Condition) {
		t.Helper()
		got := m.conditions()
		for name, condition := range want {
			if got[name] != condition {
				t.Errorf("%s is %q, want %q", name, got[name], condition)
			}
		}
		if len(got) != len(want) {
			t.Errorf("interfaces: %v, want %v", got, want)
		}
	}
	check(map[string]Condition{loopback: Unfiltered, "absent0": Absent, l.B.Iface: Filtered})
	if text := log.String(); strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, on(loopback).String()) {
		t.Errorf("log:\n%s", text)
	}
	if p := m.Problems(); len(p) != 2 || !strings.HasPrefix(p[0], on(loopback).String()+" is not filtered: ") ||
		p[1] != on("absent0").String()+" is not filtered: it is not there yet, weir waits for it" {
		t.Errorf("problems: %q", p)
	}
	for range 3 { // which must not run the verifier each time
		if err := m.Follow(); err != nil {
			t.Fatal(err)
		}
	}
	check(map[string]Condition{loopback: Unfiltered, "absent0": Absent, l.B.Iface: Filtered})

	targets[0].XDP = hooks.Generic
	if err := m.reconfigure(t, targets); err != nil {
		t.Fatal(err)
	}
	if err := m.Follow(); err != nil {
		t.Fatal(err)
	}
	check(map[string]Condition{loopback: Filtered, "absent0": Absent, l.B.Iface: Filtered})

	if err := Detach(c.Pins, on(loopback).Target); err != nil {
		t.Fatal(err)
	}
	if err := m.Follow(); err != nil {
		t.Fatal(err)
	}
	check(map[string]Condition{loopback: Detached, "absent0": Absent, l.B.Iface: Filtered})
}

// An interface is filtered without a reload once another's program is gone.
func TestRetried(t *testing.T) {
	l := lab.New(t)
	at(t, l.B, addVeth("wan0"))
	foreign, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
	})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	var theirs link.Link
	at(t, l.B, with("wan0", func(i netlink.Link) (err error) {
		theirs, err = link.AttachXDP(link.XDPOptions{Program: foreign, Interface: i.Attrs().Index})
		return err
	}))
	var log bytes.Buffer
	c, targets := options(t, &log, l.B)
	m := begin(t, c, append(targets, Target{Target: netif.Target{Netns: l.B.Netns, Iface: "wan0"}}))
	defer m.Stop(false)
	if err := m.Follow(); err != nil || m.conditions()["wan0"] != Unfiltered {
		t.Fatalf("%v, %v", m.conditions(), err)
	}
	if err := theirs.Close(); err != nil {
		t.Fatal(err)
	}
	for end := wait.Deadline(); m.conditions()["wan0"] != Filtered; time.Sleep(10 * time.Millisecond) {
		if err := m.Follow(); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatalf("%v:\n%s", m.conditions(), &log)
		}
	}
}
