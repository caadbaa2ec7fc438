package hosts

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/control/doctor"
	"weir/tests/lab"
	"weir/tests/long"
)

// examine returns the findings of a command line of weir doctor.
func (h *host) examine(t *testing.T, line string) []doctor.Finding {
	t.Helper()
	out, code := h.run(t, line)
	for range 3 { // a busy machine
		if !strings.Contains(out, "looking at it took longer") {
			break
		}
		out, code = h.run(t, line)
	}
	var got struct{ Findings []doctor.Finding }
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%s: exit code %d, %v\n%s", line, code, err, out)
	}
	problem := false
	for _, f := range got.Findings {
		problem = problem || f.Level == doctor.Problem
	}
	if want := map[bool]int{false: 0, true: 4}[problem]; code != want {
		t.Errorf("%s: exit code %d, want %d", line, code, want)
	}
	return got.Findings
}

// broken is a set-up that doctor is to see through.
type broken struct {
	name  string
	setup string // a script
	do    func(t *testing.T, h *host)
	as    string // a command that runs doctor, as with less privilege
	args  string // of weir doctor; "": --iface v0 --hook tc, where all is well
	check string // that finds it
	level doctor.Level
	mend  string // the line; "…": any rest
	apply bool   // the line can be run here, and the finding is gone then
}

var setups = []broken{
	{
		name: "no BPF file system", setup: "while mountpoint -q /sys/fs/bpf; do umount -l /sys/fs/bpf; done",
		check: "bpffs", level: doctor.Problem, mend: "mount -t bpf bpf /sys/fs/bpf", apply: true,
	},
	{
		name: "a read-only BPF file system", setup: "mount -t bpf bpf /sys/fs/bpf; mount -o remount,ro /sys/fs/bpf",
		check: "bpffs", level: doctor.Problem, mend: "mount -o remount,rw /sys/fs/bpf", apply: true,
	},
	{
		name: "pins in no BPF file system", args: "--iface v0 --hook tc --pins DIR/pins",
		check: "bpffs", level: doctor.Problem, mend: "mkdir -p DIR/pins && mount -t bpf bpf DIR/pins", apply: true,
	},
	{
		name: "no types of the kernel", setup: "mount -t tmpfs none /sys/kernel/btf",
		check: "btf", level: doctor.Note, mend: "umount /sys/kernel/btf || …", apply: true,
	},
	{
		name: "no JIT", setup: "echo 0 >DIR/jit; mount --bind DIR/jit /proc/sys/net/core/bpf_jit_enable",
		check: "jit", level: doctor.Problem, mend: "sysctl -w net.core.bpf_jit_enable=1", apply: true,
	},
	{
		name: "PREEMPT_RT", setup: "mount -t tmpfs none /sys/kernel; echo 1 >/sys/kernel/realtime",
		check: "realtime", level: doctor.Problem, mend: "grep PREEMPT_RT_NEEDS_BH_LOCK=y …",
	},
	{
		name: "an old kernel", as: "setarch --uname-2.6",
		check: "kernel", level: doctor.Problem,
	},
	{
		name: "locked memory", as: "setpriv --bounding-set=-sys_resource prlimit --memlock=65536:65536 setarch --uname-2.6",
		check: "memlock", level: doctor.Problem, mend: "prlimit --pid $$ --memlock=unlimited",
	},
	{
		name: "open files", as: "prlimit --nofile=200:200",
		check: "files", level: doctor.Problem, mend: "prlimit --pid $$ --nofile=65536", apply: true,
	},
	{
		name: "a missing capability", as: "setpriv --bounding-set=-perfmon,-sys_admin",
		check: "capabilities", level: doctor.Problem, mend: "podman run --cap-add=PERFMON …",
	},
	{
		name: "a read-only state directory", setup: "mkdir DIR/state; mount -t tmpfs -o ro none DIR/state", args: "-c DIR/weir.yaml",
		check: "state", level: doctor.Problem, mend: "mount -o remount,rw DIR/state", apply: true,
	},
	{
		name: "a full disk", setup: "mkdir DIR/state; mount -t tmpfs -o size=1m none DIR/state; head -c 1m /dev/zero >DIR/state/x", args: "-c DIR/weir.yaml",
		check: "disk", level: doctor.Problem, mend: "mount -o remount,size=257m,nr_inodes=0 DIR/state", apply: true,
	},
	fromTheFuture(),
	{
		name: "a mistake in weir.yaml", setup: "echo 'interfaces: [v0]\nmod: x' >DIR/bad.yaml", args: "-c DIR/bad.yaml --iface v0",
		check: "config", level: doctor.Problem, mend: "weir check DIR/bad.yaml",
	},
	{
		name: "no such group", args: "-c DIR/weir.yaml", setup: "echo 'api: {group: weir-nosuch}' >>DIR/weir.yaml",
		check: "config", level: doctor.Problem, mend: "groupadd --system weir-nosuch",
	},
	{
		name: "an interface that is down", setup: "ip -n NS link set v0 down",
		check: "up", level: doctor.Problem, mend: "ip netns exec NS ip link set v0 up", apply: true,
	},
	{
		name: "an interface that is missing", args: "--iface v00",
		check: "interface", level: doctor.Problem, mend: "interfaces: [{name: v0, netns: NS}]", apply: true,
	},
	{
		name: "a bridge", setup: "ip -n NS link add br0 type bridge; ip -n NS link set br0 up", args: "--iface br0",
		check: "driver", level: doctor.Problem, mend: "interfaces: [{name: br0, netns: NS, xdp: generic}]", apply: true,
	},
	{
		name: "a bridge with a port", setup: "ip -n NS link add br0 type bridge; ip -n NS link set br0 up; ip -n NS link set v0 master br0", args: "--iface br0",
		check: "driver", level: doctor.Problem, mend: "interfaces: [{name: v0, netns: NS}]", apply: true,
	},
	{
		name: "a tunnel", setup: "ip -n NS tuntap add tun0 mode tun; ip -n NS link set tun0 up", args: "--iface tun0",
		check: "driver", level: doctor.Problem, mend: "interfaces: [{name: tun0, netns: NS, hook: tc}]", apply: true,
	},
	{
		name: "queues", args: "--iface q0",
		setup: "ip -n NS link add q0 numrxqueues 1 numtxqueues 1 type veth peer name q1 numrxqueues 4 numtxqueues 4; ip -n NS link set q0 up",
		check: "queues", level: doctor.Problem, mend: "ip netns exec NS ethtool -L q1 tx 1", apply: true,
	},
	{
		name: "queues that it has", args: "--iface q0",
		setup: "ip -n NS link add q0 numrxqueues 4 numtxqueues 4 type veth peer name q1 numrxqueues 4 numtxqueues 4; ip netns exec NS ethtool -L q0 rx 1; ip -n NS link set q0 up",
		check: "queues", level: doctor.Problem, mend: "ip netns exec NS ethtool -L q0 rx 4", apply: true,
	},
	{
		name: "VLAN tags out of sight", args: "--iface v0",
		check: "vlan", level: doctor.Note, mend: "ip netns exec NS ethtool -K v1 txvlan off", apply: true,
	},
	{
		name: "a veth at XDP", args: "--iface v0",
		check: "tcp", level: doctor.Note, mend: "interfaces: [{name: v0, netns: NS, hook: tc}]", apply: true,
	},
	{
		name: "another program at XDP", args: "--iface v0", do: attachForeign,
		check: "xdp", level: doctor.Problem, mend: "ip -n NS link set dev v0 xdpgeneric off", apply: true,
	},
}

// attachForeign attaches a program to v0 over netlink, as ip and xdp-loader do.
func attachForeign(t *testing.T, h *host) {
	h.In(t, func() {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "foreign", Type: ebpf.XDP, License: "Dual BSD/GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */), asm.Return()},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		v0, err := netlink.LinkByName("v0")
		if err == nil {
			err = netlink.LinkSetXdpFdWithFlags(v0, p.FD(), unix.XDP_FLAGS_SKB_MODE)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}

// Each broken set-up is found, and nothing is found before; the line that mends it is run as it
// stands, and the finding is gone.
func TestBroken(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	mended := 0
	for _, b := range setups {
		if b.mend != "" {
			mended++
		}
	}
	t.Logf("set-ups: %d, with a line that mends: %d", len(setups), mended)
	for _, b := range setups {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.run(t, "ip -n NS link add v0 type veth peer name v1; ip -n NS link set v0 up; ip -n NS link set v1 up")
			h.run(t, "echo 'interfaces: [{name: v0, netns: NS, hook: tc}]\nstate_dir: DIR/state' | tee DIR/weir.yaml >DIR/bad.yaml")
			args := b.args
			if args == "" {
				args = "--iface v0 --hook tc"
			}
			if !strings.Contains(args, "-c ") {
				args += " --netns NS"
			}
			command := "exec $WEIR doctor --json --socket DIR/socket " + args
			run := "$WEIR run --block DIR/list --socket DIR/socket " + args
			line := b.as + " bash -c '" + command + "'"

			if b.setup != "" || b.do != nil {
				if all := h.examine(t, command); b.setup != "" && !strings.Contains(b.setup, "link add") && !strings.Contains(b.setup, "tuntap") {
					expectNone(t, all, b)
				}
			}
			if b.setup != "" {
				if out, code := h.run(t, "set -e\n"+b.setup); code != 0 {
					t.Fatalf("%s: exit code %d\n%s", b.setup, code, out)
				}
			}
			if b.do != nil {
				b.do(t, h)
			}
			f := one(t, h.examine(t, line), b)
			if want, open := strings.CutSuffix(h.name(b.mend), "…"); f.Run+f.Set != want && !(open && strings.HasPrefix(f.Run+f.Set, want)) {
				t.Errorf("mended by %q, want %q", f.Run+f.Set, want)
			}
			kernelAgrees := b.check == "driver" || b.check == "queues" || b.check == "xdp"
			if kernelAgrees {
				h.run(t, "mount -t bpf bpf /sys/fs/bpf; echo 192.0.2.1 >DIR/list")
				if out, code := h.run(t, "timeout -s INT 10 "+run); code != 1 {
					t.Errorf("weir run, unmended: exit code %d\n%s", code, out)
				}
			}
			switch {
			case !b.apply:
				return
			case f.Set != "":
				h.run(t, "cat >DIR/mended.yaml <<'END'\n"+f.Set+"\nstate_dir: ''\nkeep: false\napi: {socket: DIR/socket}\nEND")
				run = "$WEIR run -c DIR/mended.yaml"
				line = "$WEIR doctor --json --socket DIR/socket -c DIR/mended.yaml"
			case strings.Contains(f.Run, "$$"):
				if _, code := h.run(t, b.as+" bash -c 'prlimit --pid $$ --nofile=201'"); code != 0 {
					t.Log("not mended: raising a limit takes CAP_SYS_RESOURCE")
					return
				}
				line = b.as + " bash -c '" + f.Run + "; " + command + "'"
			default:
				if out, code := h.run(t, f.Run); code != 0 {
					t.Fatalf("%s: exit code %d\n%s", f.Run, code, out)
				}
			}
			expectNone(t, h.examine(t, line), b)
			if kernelAgrees {
				if out, code := h.run(t, run+` >DIR/log 2>&1 &
					for i in {1..100}; do $WEIR status --socket DIR/socket >/dev/null && break; sleep 0.1; done
					kill -INT $!; wait $!; [ $i -lt 100 ] || cat DIR/log`); code != 0 || out != "" {
					t.Errorf("weir run, mended: exit code %d\n%s", code, out)
				}
			}
		})
	}
}

// fromTheFuture has a file that was written later than now: a clock that is synchronised was ahead
// then, and any other is behind.
func fromTheFuture() broken {
	b := broken{
		name: "a file from the future", setup: "mkdir DIR/state; touch -d 'now + 2 years' DIR/state/journal", args: "-c DIR/weir.yaml",
		check: "clock", level: doctor.Problem, mend: "timedatectl set-ntp true",
	}
	var x unix.Timex
	if _, err := unix.Adjtimex(&x); err == nil && x.Status&unix.STA_UNSYNC == 0 {
		b.level, b.mend = doctor.Note, ""
	}
	return b
}

// one returns the finding of the check that a set-up is for.
func one(t *testing.T, all []doctor.Finding, b broken) doctor.Finding {
	t.Helper()
	for _, f := range all {
		if f.Check == b.check && f.Level == b.level {
			return f
		}
	}
	t.Fatalf("nothing found: %+v", all)
	return doctor.Finding{}
}

func expectNone(t *testing.T, all []doctor.Finding, b broken) {
	t.Helper()
	for _, f := range all {
		if f.Check == b.check && f.Level == b.level && !(b.check == "clock" && f.Level == doctor.Note) {
			t.Errorf("found where nothing is broken: %+v", f)
		}
	}
}

// The report has what helps, and neither addresses nor secrets.
func TestReport(t *testing.T) {
	lab.Root(t)
	h := newHost(t)
	h.run(t, "ip -n NS link add v0 type veth peer name v1; ip -n NS link set v0 up")
	h.run(t, `cat >DIR/weir.yaml <<'END'
interfaces: [{name: v0, netns: NS, hook: tc}]
failsafe: {ports: [tcp/22], prefixes: [198.51.100.0/24, "2001:db8::/32"]}
state_dir: DIR/state
api: {socket: DIR/socket}
notify: {targets: {chat: {url: "https://hooks.example/services/T0/SECRETPATH"}}}
lists:
  drop: {sources: [{url: "https://me:SECRETPASSWORD@feeds.example/SECRETKEY/list?token=SECRETTOKEN", headers: {X-Key: SECRETHEADER}}]}
END`)
	if _, code := h.run(t, "$WEIR doctor -c DIR/weir.yaml --report DIR/report >/dev/null"); code != 0 && code != 4 {
		t.Fatalf("exit code %d", code)
	}
	text, err := os.ReadFile(filepath.Join(h.dir, "report"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Findings\n", "Status\n", "Configuration", "lists: drop (sources: 1)", "v0 in namespace", "feeds.example", "Linux "} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, secret := range []string{"SECRET", "198.51.100", "2001:db8"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("%q in\n%s", secret, text)
		}
	}
	if out, code := h.run(t, "$WEIR doctor --report DIR/nosuch/report"); code != 1 {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
