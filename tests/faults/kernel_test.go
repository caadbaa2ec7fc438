package faults

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/tests/binary"
	"weir/tests/lab"
	"weir/tests/long"
)

// spoilt builds weir with an object that can be corrupted at run time, to which the kernel can
// refuse memory, and which can be stopped before it renames a pin: see testdata.
var spoilt = sync.OnceValues(func() (string, error) {
	const name = "spoilt"
	var replace struct{ Replace map[string]string }
	sources, err := filepath.Abs("testdata")
	if err != nil {
		return "", err
	}
	replace.Replace = make(map[string]string)
	for _, file := range []string{"spoil.go", "deny.go", "halt.go"} {
		replace.Replace[filepath.Join(sources, "../../../cmd/weir", file)] = filepath.Join(sources, file)
	}
	text, err := json.Marshal(replace)
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(binaries, "overlay.json")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return "", err
	}
	return name, binary.Build(binaries, name, "weir", "-overlay", overlay)
})

// program is the kernel's number of the program that filters.
func (g *ground) program() int {
	g.t.Helper()
	out, _ := g.weir(anyCode, "status", "--json", "--pins", g.pins)
	var s struct {
		Attachments []struct {
			Program int `json:"program_id"`
		}
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil || len(s.Attachments) != 1 {
		g.t.Fatalf("%v:\n%s", err, out)
	}
	return s.Attachments[0].Program
}

// A program that the verifier rejects leaves everything unchanged:
// configuration, lists, entries, and the program of the previous weir.
func TestVerifier(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	g := newGround(t)
	binary, err := spoilt()
	if err != nil {
		t.Fatal(err)
	}
	feed := g.file("feed", "10.0.0.1\n")
	lists := "lists:\n  feed: {sources: [{file: " + feed + "}]}\n"
	g.configure(lists)
	d := g.run(binary)
	d.start()
	d.filtering()
	g.answers()
	first := g.program()
	spoil := func() {
		t.Helper()
		d.signal(syscall.SIGUSR1)
		d.wait("the object is another one")
	}

	spoil()
	held, clean := []string{"10.0.0.1"}, []string{"10.0.0.2", "10.5.0.1", "10.6.0.1"}
	verifier := []string{"load the program", "invalid bpf_context access off=9999 size=8"}
	g.configure(lists + "  more: {}\n  still_more: {}\n")
	g.refuses(append(verifier, "the old configuration stays active"), "reload")
	g.untilMetric(0, "weir_config_last_reload_successful")
	g.ask(0, "block", "10.0.0.3") // in place, which takes no program
	g.untilMetric(1, "weir_list_entries", `list="manual"`)
	held = append(held, "10.0.0.3")
	g.filters("the configuration is refused", held, clean)
	g.refuses(append(verifier, "nothing was changed: "), "block", "10.5.0.0/16") // of another shape, which takes one
	g.file("feed", "10.0.0.1\n10.6.0.0/16\n")
	g.refuses([]string{"1 of 1"}, "refresh", "feed")
	d.wait(append(verifier, "it is not active", `"list":"feed"`)...)
	g.untilMetric(0, "weir_last_reload_successful")
	// What goes in place does not wait for what could not.
	g.ask(0, "block", "10.0.0.5")
	g.ask(0, "unblock", "10.0.0.3")
	held = []string{"10.0.0.1", "10.0.0.5"}
	g.filters("lists are refused", held, append(clean, "10.0.0.3"))
	if n := g.list("manual").Entries; n != 1 {
		t.Errorf("%d manual entries, want 1", n)
	}
	if p := g.program(); p != first {
		t.Errorf("program %d filters, want %d", p, first)
	}

	spoil()
	g.untilDropped("10.6.0.1") // since it is tried again
	g.untilMetric(1, "weir_last_reload_successful")
	g.ask(0, "reload")
	g.untilMetric(1, "weir_config_last_reload_successful")
	g.ask(0, "block", "10.5.0.0/16")
	held = append(held, "10.5.0.1", "10.6.0.1")
	g.filters("good again", held, clean[:1])

	d.kill()
	last := g.program()
	d = g.run(binary)
	d.Env = append(os.Environ(), "SPOILT=1")
	d.start()
	if code := d.end(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	g.says("weir run", strings.Join(d.log(), "\n"), append(verifier, g.B.Iface)...)
	if p := g.program(); p != last {
		t.Errorf("program %d filters, want %d", p, last)
	}
	g.filters("not started", held, clean[:1])
}

// A list that makes the verifier reject the program does not keep the others from
// being active after a reboot, and is tried again.
func TestVerifierAtStart(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	g := newGround(t)
	binary, err := spoilt()
	if err != nil {
		t.Fatal(err)
	}
	if !lab.KernelAtLeast(t, 6, 8) {
		t.Skip("the kernel's verifier looks at functions that no program calls: want Linux 6.8")
	}
	many := g.file("many", "10.0.0.1\n"+near(64))
	var large strings.Builder
	for i := range 200 {
		fmt.Fprintf(&large, "10.0.1.%d\n", 1+i)
	}
	lists := fmt.Sprintf("lists:\n  large: {sources: [{file: %s}]}\n  many: {%%ssources: [{file: %s}]}\n", g.file("large", large.String()), many)
	start := func(more string) *daemon {
		g.configure(fmt.Sprintf(lists, more))
		d := g.run(binary)
		d.Env = append(os.Environ(), "SPOILT=many shapes")
		d.start()
		return d
	}
	d := start("required: true, ")
	if code := d.end(); code != 1 {
		t.Errorf("with a required list: exit code %d", code)
	}
	d = start("")
	d.wait("contents that cannot be activated are left out", `"list":"many"`, "load the program")
	d.filtering()
	g.answers()
	drop := []string{"10.0.1.1", "10.0.1.200"}
	g.filters("without the list", drop, []string{"10.0.0.1"})
	g.ask(0, "block", "10.0.3.0/24") // which takes another program
	drop = append(drop, "10.0.3.1")
	g.filters("a command", drop, []string{"10.0.0.1"})
	d.signal(syscall.SIGUSR1)
	g.untilDropped("10.0.0.1")
	g.filters("with the list", drop, nil)
	d.stop()
}

// Maps for which there is no memory leave all as it was, until there is.
func TestMemory(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	binary, err := spoilt()
	if err != nil {
		t.Fatal(err)
	}
	g := newGround(t)
	feed := g.file("feed", "10.0.0.1\n")
	config := "mode: approx\nlists:\n  feed: {sources: [{file: " + feed + "}]}\n"
	g.configure(config)
	d := g.run(binary)
	d.Env = append(os.Environ(), "DENIED=block_lines")
	d.start()
	d.filtering()
	g.answers()
	g.ask(0, "block", "10.0.0.3")
	held, clean := []string{"10.0.0.1", "10.0.0.3"}, []string{"10.0.0.2", "10.5.0.1", "10.6.0.1"}

	change := func() {
		t.Helper()
		d.signal(syscall.SIGUSR2)
		d.wait("memory for maps has changed")
	}
	change()
	memory := []string{"map block_lines with ", " entries of 64 bytes", "cannot allocate memory"}
	g.configure(config + "  more: {}\n")
	g.refuses(append(memory, "the old configuration stays active"), "reload")
	g.untilMetric(0, "weir_config_last_reload_successful")
	g.ask(0, "block", "10.0.0.4") // in place
	held = append(held, "10.0.0.4")
	g.refuses(append(memory, "nothing was changed: "), "block", "10.5.0.0/16") // which no longer is
	g.filters("refused", held, clean)
	g.file("feed", "10.0.0.1\n10.6.0.0/16\n")
	g.refuses([]string{"1 of 1"}, "refresh", "feed")
	d.wait(append(memory, "it is not active", `"list":"feed"`)...)
	g.untilMetric(0, "weir_last_reload_successful")
	g.filters("a feed cannot be activated", held, clean)
	if n := g.list("manual").Entries; n != 2 {
		t.Errorf("%d manual entries, want 2", n)
	}

	change()
	g.ask(0, "block", "10.5.0.0/16") // which does not wait for the feed
	g.untilMetric(1, "weir_last_reload_successful")
	g.ask(0, "reload")
	g.untilMetric(1, "weir_config_last_reload_successful")
	g.filters("with memory again", append(held, "10.5.0.1", "10.6.0.1"), clean[:1])
	d.stop()
}

const unprivileged = 65534 // UID and GID

// withCapabilities has weir run as a user without privileges but some, in the
// namespace of the interface, since it could not enter that.
func (g *ground) withCapabilities(capabilities ...uintptr) *daemon {
	g.t.Helper()
	if err := os.MkdirAll(g.pins, 0o700); err != nil {
		g.t.Fatal(err)
	}
	for _, path := range []string{g.dir, g.config, g.pins} {
		if err := os.Chown(path, unprivileged, unprivileged); err != nil {
			g.t.Fatal(err)
		}
	}
	d := g.run("weir")
	d.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivileged, Gid: unprivileged}, AmbientCaps: capabilities}
	g.B.In(g.t, d.start)
	return d
}

// Three capabilities suffice, and the one that is missing is named.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	const (
		bpf     = unix.CAP_BPF
		admin   = unix.CAP_NET_ADMIN
		perfmon = unix.CAP_PERFMON
	)
	g := newGround(t)
	g.interfaces = "[" + g.B.Iface + "]"
	feed := g.file("feed", "10.0.0.1\n")
	os.Chmod(feed, 0o644)
	config := "lists:\n  feed: {sources: [{file: " + feed + "}]}\n"
	g.configure(config)
	for _, c := range []struct {
		has  []uintptr
		says string
	}{
		{nil, "missing privilege, namely CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON:"},
		{[]uintptr{bpf, perfmon}, "missing privilege, namely CAP_NET_ADMIN:"},
		{[]uintptr{bpf, admin}, "missing privilege, namely CAP_PERFMON:"},
		{[]uintptr{admin, perfmon}, "missing privilege, namely CAP_BPF:"},
	} {
		d := g.withCapabilities(c.has...)
		if code := d.end(); code != 1 {
			t.Errorf("%v: exit code %d", c.has, code)
		}
		g.says("weir run", strings.Join(d.log(), "\n"), c.says)
		g.filters("not started", nil, []string{"10.0.0.1"})
	}

	d := g.withCapabilities(bpf, admin, perfmon)
	d.filtering()
	g.answers()
	g.ask(0, "block", "10.0.0.3", "10.5.0.0/16")
	g.configure(config + "  more: {}\n")
	g.ask(0, "reload")
	held := []string{"10.0.0.1", "10.0.0.3", "10.5.0.1"}
	g.filters("with all capabilities", held, []string{"10.0.0.2"})
	d.kill()

	d = g.withCapabilities(bpf, perfmon) // when it is to adopt
	if code := d.end(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	g.says("weir run", strings.Join(d.log(), "\n"), "missing privilege, namely CAP_NET_ADMIN:")
	g.filters("not started again", held, []string{"10.0.0.2"})

	d = g.withCapabilities(bpf, admin, perfmon)
	d.filtering()
	g.answers()
	g.ask(0, "unblock", "10.0.0.3")
	g.filters("started again", []string{"10.0.0.1", "10.5.0.1"}, []string{"10.0.0.2", "10.0.0.3"})
	d.stop()
}

// occupy attaches a foreign program until the returned function is called.
func occupy(t *testing.T, e lab.End, iface string) (leave func()) {
	t.Helper()
	foreign, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: ebpf.XDP, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
	})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	var held link.Link
	e.In(t, func() {
		var i *net.Interface
		if i, err = net.InterfaceByName(iface); err == nil {
			held, err = link.AttachXDP(link.XDPOptions{Program: foreign, Interface: i.Index, Flags: link.XDPDriverMode})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() { held.Close() }
}

// An interface that a foreign program occupies is not filtered, and the program
// is left alone: at the start that is an error if the interface is required,
// later it is waited for.
func TestOccupied(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	const early, late = "veth-early", "veth-late"
	g.B.In(t, func() {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: early}, PeerName: "veth-peer"}); err != nil {
			t.Fatal(err)
		}
	})
	leave := occupy(t, g.B, early)
	lists := "lists: {feed: {sources: [{file: " + g.file("feed", "10.0.0.1\n") + "}]}}"
	filter := func(other string, required bool) {
		g.interfaces = fmt.Sprintf("[{name: %s, netns: %s}, {name: %s, netns: %s, required: %v}]", g.B.Iface, g.B.Netns, other, g.B.Netns, required)
		g.configure(lists)
	}
	filter(early, true)
	d := g.run("weir")
	d.start()
	if code := d.end(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	g.says("weir run", strings.Join(d.log(), "\n"), early, "a foreign program is attached", ", foreign, ", "bpftool link")
	g.filters("not started", nil, []string{"10.0.0.1"})

	filter(late, false)
	d = g.begin()
	d.read = 0
	d.wait("the interface does not exist, waiting for it", late)
	g.B.In(t, func() {
		l, err := netlink.LinkByName(early)
		if err == nil {
			err = netlink.LinkSetName(l, late)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	d.wait(`"level":"ERROR"`, "a foreign program is attached", late)
	g.untilMetric(0, "weir_interface_attached", late)
	g.filters("another interface is occupied", []string{"10.0.0.1"}, []string{"10.0.0.2"})
	time.Sleep(time.Second) // in which it is tried again
	if n := d.count("a foreign program is attached"); n != 1 {
		t.Errorf("the log says %d times that the interface is occupied", n)
	}
	g.configure(lists + "\nmonitor: false") // the same
	_, out := g.ask(4, "reload")            // active, but not everywhere
	g.says("weir reload", out, late, "is not filtered: ", "a foreign program is attached")
	leave()
	d.wait("the interface is there, filtering", late)
	g.untilMetric(1, "weir_interface_attached", late)
	d.stop()
}
