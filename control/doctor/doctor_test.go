package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/config"
	"weir/loader/hooks"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/must"
)

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	conf, err := config.Parse("weir.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return conf
}

// What a configuration names and the host does not have is a problem.
func TestConfigured(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"interfaces: ['nosuch*']\nstate_dir: /tmp/weir-of-the-test", ""},
		{"interfaces: [nosuch0]", "interface nosuch0: it is not on this host; the daemon waits for it"},
		{"interfaces: [{name: nosuch0, required: true}]", "interface nosuch0: it is not on this host; it is required, and the daemon does not start without it"},
		{"interfaces: [{name: eth0, netns: nosuchns}]", "interface eth0 in namespace nosuchns: no such network namespace"},
		{"interfaces: ['nosuch*']\napi: {group: nosuchgroup}", "api.group: no group nosuchgroup on this host"},
		{"interfaces: ['nosuch*']\nstate_dir: /proc/foo/bar", "state_dir: /proc/foo/bar: /proc takes no files"},
		{"interfaces: ['nosuch*']\nlists: {cs: {format: crowdsec, sources: [{url: 'http://127.0.0.1:8080'}]}}", `list cs: CrowdSec wants a key`},
		{"interfaces: ['nosuch*']\nlists: {cs: {format: crowdsec, sources: [{url: 'http://127.0.0.1:8080', headers: {X-Api-Key: x}}]}}", ""},
		{"interfaces: [lo]", "interface lo: driver unknown has no native XDP"},
	} {
		s := Configured(parse(t, c.text))
		s.Pins = "" // whatever this host has of it
		var got []string
		for _, f := range Of(Problem, Examine(t.Context(), s)) {
			if f.Check != "bpffs" && f.Check != "up" && f.Check != "jit" && f.Check != "realtime" {
				got = append(got, f.String())
			}
		}
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s\n got %q\nwant %q", c.text, got, c.want)
		}
	}
}

// What is the same of several interfaces prints once, where the first stands.
func TestGroup(t *testing.T) {
	of := func(iface, text string) Finding {
		f := Finding{Check: "up", Interface: iface, Level: Note, Text: text}
		if iface != "" {
			f.Run = "ip link set " + iface + " up"
		}
		return f
	}
	groups := Group([]Finding{
		of("", "it is slow"), of("a0", "it is down"), of("", "it is slow"), of("b0", "it is slow"), of("a1", "it is down"),
		of("b1", "it is slow"), of("b2", "it is slow"), of("b3", "it is slow"), of("b4", "it is slow"),
	})
	var got []string
	for _, f := range groups {
		got = append(got, f.String())
	}
	if want := []string{
		"it is slow", "interfaces a0 and a1: it is down: `ip link set a0 up` for a0", "it is slow",
		"interfaces b0, b1, b2, and 2 more: it is slow: `ip link set b0 up` for b0",
	}; !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	var b strings.Builder
	if err := Print(&b, groups[1:2]); err != nil || b.String() != "note     a0 and a1, up: it is down\n         run: ip link set a0 up    # for a0\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// A veth that could as well be filtered at TC is pointed out.
func TestSlowVeth(t *testing.T) {
	l := lab.New(t)
	for _, c := range []struct {
		text string
		want bool
	}{
		{"interfaces: [{name: IFACE, netns: NETNS}]", true},
		{"interfaces: [{name: 'veth*', netns: NETNS}]", true},
		{"interfaces: [{name: IFACE, netns: NETNS, hook: tc}]", false},
		{"interfaces: [{name: IFACE, netns: NETNS, xdp: generic}]", false},
		{"interfaces: [{name: IFACE, netns: NETNS, police: {rate: 1Mbit/s}}]", false},
		{"interfaces: [{name: IFACE, netns: NETNS}]\ndigest: {rate: 1kpps}", false},
		{"interfaces: [{name: 'v*', netns: NETNS, hook: tc}, {name: IFACE, netns: NETNS}]", false},
	} {
		text := strings.NewReplacer("IFACE", l.B.Iface, "NETNS", l.B.Netns).Replace(c.text)
		got := ""
		for _, f := range Examine(t.Context(), Configured(parse(t, text))) {
			if f.Check == "tcp" {
				got = f.Set
			}
		}
		if got != "" != c.want || c.want && got != "interfaces: [{name: "+l.B.Iface+", netns: "+l.B.Netns+", hook: tc}]" {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// A kernel on which packets may interrupt each other is pointed out.
func TestRealtime(t *testing.T) {
	defer func(before string) { sysfs = before }(sysfs)
	sysfs = t.TempDir()
	for text, want := range map[string]bool{"": false, "0\n": false, "1\n": true} {
		file := filepath.Join(sysfs, "kernel/realtime")
		if text != "" {
			write(t, file, text)
		}
		if got := checkRealtime(nil)[0]; (got.Level == Problem) != want || strings.Contains(got.Run, "PREEMPT_RT_NEEDS_BH_LOCK") != want {
			t.Errorf("%q: %+v", text, got)
		}
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
	}
}

// A size of the caches that nothing has said is called a guess.
func TestCache(t *testing.T) {
	defer func(before func() (int, bool)) { nearCache = before }(nearCache)
	for known, want := range map[bool]Level{true: OK, false: Note} {
		nearCache = func() (int, bool) { return 96 << 10, known }
		got := checkCache(nil)[0]
		if got.Level != want || !strings.Contains(got.Text, " 96 KiB") || strings.Contains(got.Text, "guess") == known {
			t.Errorf("known: %t: %+v", known, got)
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	must.Write(t, file, text)
}

// A state directory that is yet to be made is not said to have anything.
func TestState(t *testing.T) {
	dir := t.TempDir()
	for in, want := range map[string]string{
		"":            "no state directory is configured: nothing outlives the daemon",
		dir + "/":     "the state is saved in " + dir + "/",
		dir + "/none": "the state would be saved in " + dir + "/none, which does not exist yet",
	} {
		if got := checkState(&Subject{StateDir: in})[0]; got.Level != OK || got.Text != want {
			t.Errorf("%q: %+v, want %q", in, got, want)
		}
	}
}

// A clock that nothing synchronises is behind where a file is from the future; one that is
// synchronised was ahead when the file was written.
func TestClock(t *testing.T) {
	defer func() { now, adjtimex = time.Now, unix.Adjtimex }()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "journal"), "")
	for _, c := range []struct {
		at     time.Time
		status int32
		err    error // instead of the status
		level  Level
		text   string
	}{
		{time.Unix(0, 0), unix.STA_UNSYNC, nil, Problem, "1970-01-01, which is in the past"},
		{time.Now().Add(-time.Hour), unix.STA_UNSYNC, nil, Problem, "journal was written at"},
		{time.Now().Add(-time.Hour), 0, unix.EPERM, Problem, "journal was written at"},
		{time.Now().Add(-time.Hour), 0, nil, Note, "which is in the future: the clock was ahead then"},
		{time.Now(), unix.STA_UNSYNC, nil, Note, "nothing synchronises the clock"},
		{time.Now(), 0, nil, OK, "the clock is synchronised"},
	} {
		now = func() time.Time { return c.at }
		adjtimex = func(x *unix.Timex) (int, error) { x.Status = c.status; return 0, c.err }
		got := checkClock(&Subject{StateDir: dir})[0]
		if got.Level != c.level || !strings.Contains(got.Text, c.text) || got.Level == Problem && got.Run == "" {
			t.Errorf("%v, status %d, %v: %+v", c.at, c.status, c.err, got)
		}
	}
}

// What drivers refuse was read in their sources, and not all of them can be had here.
func TestDrivers(t *testing.T) {
	nic := func(driver string, change func(*device)) *device {
		d := &device{
			Interface: Interface{Target: netif.Target{Iface: "eth0"}},
			Device:    hooks.Device{Target: netif.Target{Iface: "eth0"}, Driver: driver, Up: true, Ethernet: true, MTU: 1500, Native: hooks.Yes},
			release:   release{6, 12}, frags: true, cpus: 8,
		}
		if change != nil {
			change(d)
		}
		return d
	}
	on, fixed := hooks.Offload{On: true}, hooks.Offload{On: true, Fixed: true}
	for _, c := range []struct {
		name        string
		d           *device
		check, mend string // "": nothing is wrong
	}{
		{"fine", nic("ice", nil), "", ""},
		{"LRO", nic("mlx5_core", func(d *device) { d.LRO = on }), "aggregation", "ethtool -K eth0 lro off rx-gro-hw off"},
		{"LRO, namespace", nic("mlx5_core", func(d *device) {
			d.HardwareGRO, d.Interface.Netns, d.Device.Target.Netns = on, "lab", "lab"
		}), "aggregation", "ip netns exec lab ethtool -K eth0 lro off rx-gro-hw off"},
		{"LRO, generic", nic("mlx5_core", func(d *device) { d.LRO, d.Hook, d.Native = on, hooks.Generic, hooks.No }), "", ""},
		{"GRO of virtio", nic("virtio_net", func(d *device) { d.HardwareGRO = on }), "", ""},
		{"GRO of virtio, fixed", nic("virtio_net", func(d *device) { d.HardwareGRO = fixed }), "aggregation", "interfaces: [{name: eth0, xdp: generic}]"},
		{"generic, although native would do", nic("ice", func(d *device) { d.Hook = hooks.Generic }), "driver", "interfaces: [eth0]"},
		{"queues of ena", nic("ena", func(d *device) { d.Channels = hooks.Channels{Combined: 8, MaxCombined: 8} }), "queues", "ethtool -L eth0 combined 4"},
		{"queues of ena, half", nic("ena", func(d *device) { d.Channels = hooks.Channels{Combined: 4, MaxCombined: 8} }), "", ""},
		{"channels of bnxt", nic("bnxt_en", func(d *device) { d.Channels = hooks.Channels{RX: 4, TX: 4, MaxCombined: 8} }), "queues", "ethtool -L eth0 rx 0 tx 0 combined 4"},
		{"SR-IOV", nic("ixgbe", func(d *device) { d.VFs = 2 }), "queues", "echo 0 > /sys/class/net/eth0/device/sriov_numvfs"},
		{"one queue", nic("ice", func(d *device) { d.Channels = hooks.Channels{Combined: 1, MaxCombined: 16} }), "queues", "ethtool -L eth0 combined 8"},
		{"MTU", nic("ixgbe", func(d *device) { d.MTU, d.Buffers = 9000, hooks.No }), "mtu", "ip link set dev eth0 mtu 3506"},
		{"MTU, buffers", nic("ice", func(d *device) { d.MTU, d.Buffers = 9000, hooks.Yes }), "", ""},
		{"MTU, virtio", nic("virtio_net", func(d *device) { d.MTU, d.release, d.Native = 9000, release{6, 1}, hooks.Unknown }), "mtu", "ip link set dev eth0 mtu 4064"},
		{"MTU, generic", nic("e1000", func(d *device) { d.MTU, d.Hook, d.Native = 9000, hooks.Generic, hooks.No }), "", ""},
		{"MTU of a veth's peer", nic("veth", func(d *device) {
			d.Kind, d.frags, d.NeedsXDP, d.Peer = "veth", false, "police", &hooks.Peer{Name: "eth1", MTU: 9000}
		}), "mtu", "ip link set dev eth1 mtu 3506"},
		{"no driver", nic("e1000", func(d *device) { d.Native = hooks.No }), "driver", "interfaces: [{name: eth0, xdp: generic}]"},
		{"an old kernel, a known driver", nic("ice", func(d *device) { d.Native, d.release = hooks.Unknown, release{5, 10} }), "", ""},
		{"an old kernel, another driver", nic("e1000", func(d *device) { d.Native, d.release = hooks.Unknown, release{5, 10} }), "driver", "interfaces: [{name: eth0, xdp: generic}]"},
		{"VLAN tags", nic("ice", func(d *device) { d.StripsVLAN, d.tags = on, true }), "vlan", "ethtool -K eth0 rxvlan off"},
		{"libxdp", nic("ice", func(d *device) { d.Program = &hooks.Occupant{Text: "id 7", Behind: true} }), "xdp", "interfaces: [{name: eth0, attach: dispatcher}]"},
		{"libxdp, shared", nic("ice", func(d *device) { d.Program, d.Hook = &hooks.Occupant{Text: "id 7", Behind: true}, hooks.Dispatcher }), "", ""},
		{"a program", nic("ice", func(d *device) { d.Program = &hooks.Occupant{Text: "id 7", Remove: "ip link set dev eth0 xdp off"} }), "xdp", "ip link set dev eth0 xdp off"},
		{"a program, which may be weir's", nic("ice", func(d *device) {
			d.Program, d.blind = &hooks.Occupant{Text: "id 7", Remove: "ip link set dev eth0 xdp off"}, true
		}), "xdp", "sudo weir doctor"},
	} {
		var bad []Finding
		for _, f := range c.d.find() {
			if f.Level != OK {
				bad = append(bad, f)
			}
		}
		switch {
		case c.check == "" && len(bad) > 0:
			t.Errorf("%s: %v", c.name, bad)
		case c.check != "" && (len(bad) != 1 || bad[0].Check != c.check || bad[0].Run+bad[0].Set != c.mend):
			t.Errorf("%s: %+v, want %s: %s", c.name, bad, c.check, c.mend)
		}
	}
}

// The queues that the other end of a veth uses are not known where it is in another namespace and
// the kernel does not say that native XDP is refused: most have more than they use.
func TestVethQueues(t *testing.T) {
	for _, c := range []struct {
		here   bool
		native hooks.Support
		level  Level
		mend   string
	}{
		{true, hooks.Unknown, Problem, "ethtool -L eth0 rx 4"},
		{true, hooks.No, Problem, "ethtool -L eth0 rx 4"},
		{false, hooks.No, Problem, "ethtool -L eth0 rx 4"},
		{false, hooks.Unknown, Note, "ethtool -L eth0 rx 4"},
		{false, hooks.Yes, OK, ""},
	} {
		d := &device{Interface: Interface{Target: netif.Target{Iface: "eth0"}}, Device: hooks.Device{
			Target: netif.Target{Iface: "eth0"}, Kind: "veth", Driver: "veth", Native: c.native,
			Channels: hooks.Channels{RX: 1, MaxRX: 4}, Peer: &hooks.Peer{Name: "eth1", Here: c.here, TxQueues: 4},
		}}
		if got := checkQueues(d)[0]; got.Level != c.level || got.Run != c.mend || strings.Contains(got.Text, "1 receive queues") {
			t.Errorf("here %t, native %v: %+v", c.here, c.native, got)
		}
	}
}

// Tags that the other end of a veth hands over beside the frame are put back there, where it is within reach.
func TestVethTags(t *testing.T) {
	d := &device{Interface: Interface{Target: netif.Target{Iface: "eth0"}}, tags: true, Device: hooks.Device{
		Target: netif.Target{Iface: "eth0"}, Kind: "veth", Driver: "veth", StripsVLAN: hooks.Offload{On: true},
		Peer: &hooks.Peer{Name: "eth1", Here: true, InsertsVLAN: true},
	}}
	if got := checkVLAN(d); len(got) != 1 || got[0].Level != Note || got[0].Run != "ethtool -K eth1 txvlan off" || !strings.Contains(got[0].Text, "eth1, its other end") {
		t.Errorf("%+v", got)
	}
	for name, change := range map[string]func(*device){
		"the peer puts tags into the frame": func(d *device) { d.Peer = &hooks.Peer{Name: "eth1", Here: true} },
		"the peer is elsewhere":             func(d *device) { d.Peer = &hooks.Peer{Name: "eth1", InsertsVLAN: true} },
		"no stage needs tags":               func(d *device) { d.tags = false },
		"TC sees them":                      func(d *device) { d.Hook = hooks.TC },
	} {
		other := *d
		if change(&other); len(checkVLAN(&other)) != 0 {
			t.Errorf("%s: %+v", name, checkVLAN(&other))
		}
	}
}

// A check that hangs, as on a file system of the network, delays the others for two seconds at most.
func TestHanging(t *testing.T) {
	if testing.Short() {
		t.Skip("takes two seconds")
	}
	before := ofHost
	defer func() { ofHost = before }()
	hang := make(chan struct{})
	defer close(hang)
	ofHost = append(ofHost[:1:1], before[0])
	ofHost[0].name, ofHost[0].find = "hangs", func(*Subject) []Finding { <-hang; return nil }
	begun := time.Now()
	all := Examine(context.Background(), Subject{})
	if took := time.Since(begun); took > 2*patience || len(all) < 2 || all[0].Check != "hangs" || all[0].Level != Problem || all[1].Check != "kernel" {
		t.Errorf("%v: %+v", took, all)
	}
}

func TestScrub(t *testing.T) {
	for text, want := range map[string]string{
		"list drop: https://user:pw@feeds.example/v1/SECRET/list.txt?key=1, 3 entries": "list drop: https://feeds.example/… 3 entries",
		"failsafe  tcp/22, 10.0.0.0/8, 2001:db8::/32":                                  "failsafe  tcp/22, IPv4/8, IPv6/32",
		"nats://hub.example:4222":                                                      "nats://hub.example:4222",
		"the gateway 192.0.2.1: spared.":                                               "the gateway IPv4: spared.",
		"at fe80::1%eth0.":                                                             "at IPv6.",
		"192.0.2.1:443 > [2001:db8::1]:*":                                              "IPv4:443 > [IPv6]:*",
		"Linux 6.18.44-fc, 2026-11-23T07:52:40Z, 10.5 packets, 07:52:40":               "Linux 6.18.44-fc, 2026-11-23T07:52:40Z, 10.5 packets, 07:52:40",
		"link/ether 02:fc:00:00:00:01":                                                 "link/ether MAC",
	} {
		if got := Scrub(text); got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
}

// In a container with a /sys of its own, no command mounts a BPF file system where its directory is not there.
func TestBPFFSInContainer(t *testing.T) {
	lab.Root(t)
	found := make(chan []Finding)
	go func() {
		defer close(found)
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS), unix.Mount("", "/", "none", unix.MS_PRIVATE|unix.MS_REC, ""),
			unix.Mount("none", "/sys", "tmpfs", 0, "")); err != nil {
			t.Error(err)
			return
		}
		found <- checkBPFFS(&Subject{Pins: "/sys/fs/bpf/weir"})
	}()
	all := <-found
	if len(all) != 1 || all[0].Level != Problem || !strings.Contains(all[0].Text, "container") || strings.Contains(all[0].Run, "/sys") {
		t.Errorf("%+v", all)
	}
}
