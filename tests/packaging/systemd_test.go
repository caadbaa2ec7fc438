package packaging

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/wait"
)

// testService runs a Debian that systemd has booted, and does there what an operator does, with
// packages from the repository and packets on the wire: none of the listed ones may pass where
// filtering goes on, and all must where it has ended.
func testService(t *testing.T, r *release) {
	m := boot(t, lab.New(t))
	m.r = r
	// Not in /etc/weir, where it would outlast the purge.
	m.write("/srv/drop.txt", "192.0.2.0/24\n")

	for _, step := range []struct {
		name string
		run  func(*testing.T, *machine)
	}{
		{"untrusted", testServiceUntrusted},
		{"install", testServiceInstall},
		{"start", testServiceStart},
		{"hardening", testServiceHardening},
		{"reload", testServiceReload},
		{"broken reload", testServiceBrokenReload},
		{"restart without a file", testServiceRestartWithoutFile},
		{"stop", testServiceStop},
		{"crash", testServiceCrash},
		{"beside another daemon", testServiceBeside},
		{"detach", testServiceDetach},
		{"upgrade", testServiceUpgrade},
		{"hub", testServiceHub},
		{"purge", testServicePurge},
	} {
		began := time.Now()
		if !t.Run(step.name, func(t *testing.T) { step.run(t, m.in(t)) }) {
			t.Fatalf("after %q, the journal:\n%s", step.name, m.journal())
		}
		t.Logf("%s: %v", step.name, time.Since(began).Round(time.Millisecond))
	}
}

// apt takes the repository by its key, and refuses it by another, and what was changed in it.
func testServiceUntrusted(t *testing.T, m *machine) {
	m.run("rm", "-rf", "/etc/apt/sources.list", "/etc/apt/sources.list.d") // there is no network
	m.run("mkdir", "-p", "/etc/apt/sources.list.d", "/srv/repo")
	output(t, exec.Command("cp", "-r", filepath.Join(m.r.repository, "apt"), filepath.Join(m.root, "srv/repo")))
	// As in docs/start.md.
	m.write("/etc/apt/sources.list.d/weir.sources",
		"Types: deb\nURIs: file:///srv/repo/apt\nSuites: stable\nComponents: main\nSigned-By: /etc/apt/keyrings/weir.asc\n")
	refused := func(what string) {
		t.Helper()
		// Without --error-on=any, apt goes on by what it has.
		if out, code := m.try("apt-get", "update", "--error-on=any"); code == 0 {
			t.Errorf("%s: apt has taken the repository\n%s", what, out)
		}
	}
	m.write("/etc/apt/keyrings/weir.asc", m.r.otherKey)
	refused("signed by another key")
	key, err := os.ReadFile(filepath.Join(m.r.repository, "weir.asc"))
	if err != nil {
		t.Fatal(err)
	}
	m.write("/etc/apt/keyrings/weir.asc", string(key))
	packages := filepath.Join("/srv/repo/apt/dists/stable/main/binary-"+runtime.GOARCH, "Packages")
	m.run("cp", packages, "/root/Packages")
	m.run("mv", packages+".gz", "/root")
	m.run("sed", "-i", "s/^Recommends: .*/Depends: evil/", packages)
	refused("a changed index")
	m.run("mv", "/root/Packages", packages)
	m.run("mv", "/root/Packages.gz", packages+".gz")
	m.run("apt-get", "update", "--error-on=any")

	deb := m.run("find", "/srv/repo/apt/pool", "-name", "weir_"+before+"_*.deb")
	deb = strings.TrimSpace(deb)
	m.run("cp", deb, "/root/weir.deb")
	m.run("bash", "-c", "echo >>"+deb)
	if out, code := m.try("apt-get", "install", "--yes", "--no-install-recommends", "weir="+before); code == 0 {
		t.Errorf("apt has installed a changed package:\n%s", out)
	}
	m.run("mv", "/root/weir.deb", deb)
}

// install installs a package from the repository: NAME, or NAME=VERSION.
func (m *machine) install(wanted string) {
	m.t.Helper()
	m.run("apt-get", "install", "--yes", "--no-install-recommends", wanted)
}

func testServiceInstall(t *testing.T, m *machine) {
	m.install("weir=" + before)
	if out, code := m.try("systemctl", "is-active", "weir"); code == 0 {
		t.Errorf("the service was started: %s", out)
	}
	if out, code := m.try("systemctl", "is-enabled", "weir"); code == 0 {
		t.Errorf("the service was enabled: %s", out)
	}
	if out, code := m.try("weir", "status"); code != 4 {
		t.Errorf("status: exit code %d, %s", code, out)
	}
	m.passes(true)
}

func testServiceStart(t *testing.T, m *machine) {
	m.configure("")
	m.run("systemctl", "start", "weir")
	m.withoutGap("running", func() { time.Sleep(time.Second) })
	m.run("weir", "status")

	// A member of the group may ask for the state, another user may not.
	m.run("useradd", "--groups", "weir", "member")
	m.run("useradd", "other")
	m.run("setpriv", "--reuid=member", "--regid=member", "--init-groups", "weir", "status")
	if out, code := m.try("setpriv", "--reuid=other", "--regid=other", "--init-groups", "weir", "status"); code == 0 {
		t.Errorf("status for everybody: %s", out)
	}

	log := m.run("journalctl", "--unit=weir", "--output=cat", "_SYSTEMD_UNIT=weir.service")
	if !strings.Contains(log, "msg=filtering ") || strings.Contains(log, "\ntime=") || strings.Contains(log, "<6>") {
		t.Errorf("in the journal:\n%s", log)
	}
	for line := range strings.Lines(m.run("journalctl", "--unit=weir", "--output=cat", "--priority=warning", "--quiet")) {
		if !strings.Contains(line, "nothing is failsafe") { // which this configuration leaves out
			t.Errorf("a warning: %s", line)
		}
	}
}

// A list that cannot be read keeps weir from no start: nothing would be filtered after a reboot.
func testServiceRestartWithoutFile(_ *testing.T, m *machine) {
	m.configure("  gone: {sources: [{file: /srv/gone.txt}]}\n")
	if out, code := m.try("weir", "check", "/etc/weir/weir.yaml"); code != 1 {
		m.t.Errorf("check of a file that is gone: %d\n%s", code, out)
	}
	m.withoutGap("restart", func() { m.run("systemctl", "restart", "weir") })
	m.run("systemctl", "is-active", "weir")
	m.configure("")
	m.withoutGap("reload", func() { m.run("systemctl", "reload", "weir") })
}

func testServiceHardening(t *testing.T, m *machine) {
	m.run("systemd-analyze", "security", "--no-pager", "--threshold=20", "weir.service")
	pid := m.run("systemctl", "show", "--value", "--property=MainPID", "weir")
	status := m.run("cat", "/proc/"+strings.TrimSpace(pid)+"/status")
	for _, want := range []string{"NoNewPrivs:\t1", "Seccomp:\t2", fmt.Sprintf("CapBnd:\t%016x", 1<<unix.CAP_BPF|1<<unix.CAP_NET_ADMIN|1<<unix.CAP_PERFMON)} {
		if !strings.Contains(status, want) {
			t.Errorf("no %q in\n%s", want, status)
		}
	}
	// What it reads below /proc is there.
	metrics := m.run("bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/9477; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3`)
	for _, want := range []string{"process_start_time_seconds ", "process_open_fds ", "weir_"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %q in the metrics", want)
		}
	}
}

func testServiceReload(t *testing.T, m *machine) {
	m.write("/srv/more.txt", "203.0.113.0/24\n")
	m.configure("  more: {sources: [{file: /srv/more.txt}]}\n")
	m.withoutGap("reload", func() { m.run("systemctl", "reload", "weir") })
	if through := m.through("203.0.113.1"); through {
		t.Error("a list that was added does not block")
	}
	m.configure("")
	m.withoutGap("reload", func() { m.run("systemctl", "reload", "weir") })
	if through := m.through("203.0.113.1"); !through {
		t.Error("a list that was removed still blocks")
	}
}

func testServiceBrokenReload(t *testing.T, m *machine) {
	m.configure("  worse: {sorces: []}\n")
	m.withoutGap("a broken reload", func() {
		if out, code := m.try("systemctl", "reload", "weir"); code == 0 {
			t.Errorf("a broken configuration was taken: %s", out)
		}
	})
	m.run("systemctl", "is-active", "weir")
	m.wait("the journal has the error", func() bool {
		log, _ := m.try("journalctl", "--unit=weir", "--output=cat", "--priority=err")
		return strings.Contains(log, "sorces")
	})
	m.configure("")
}

func testServiceStop(t *testing.T, m *machine) {
	m.withoutGap("stop", func() {
		m.run("systemctl", "stop", "weir")
		time.Sleep(500 * time.Millisecond)
	})
	m.withoutGap("start", func() { m.run("systemctl", "start", "weir") })
	m.withoutGap("restart", func() { m.run("systemctl", "restart", "weir") })
}

func testServiceCrash(t *testing.T, m *machine) {
	before := m.show("MainPID")
	m.withoutGap("crash", func() {
		m.run("systemctl", "kill", "--signal=KILL", "weir")
		m.wait("started again", func() bool { return m.show("NRestarts") == "1" && m.show("ActiveState") == "active" })
	})
	if after := m.show("MainPID"); after == before || after == "0" {
		t.Errorf("process %s, and before the crash %s", after, before)
	}
	m.run("weir", "status")
}

// Two daemons never filter on one interface, whichever comes first, although the
// service does not see the processes of other users.
func testServiceBeside(t *testing.T, m *machine) {
	byHand := []string{"weir", "run", "--iface", m.lab.B.Iface, "--block", "/srv/drop.txt", "--socket", ""}
	if out, code := m.try(byHand...); code != 1 || !strings.Contains(out, "another daemon") {
		t.Errorf("beside the service: exit code %d, %s", code, out)
	}
	m.run("systemctl", "stop", "weir")
	m.withoutGap("the other daemon", func() {
		m.run(append([]string{"systemd-run", "--unit=by-hand", "--collect"}, byHand...)...)
		m.wait("it filters", func() bool {
			out, _ := m.try("journalctl", "--unit=by-hand", "--output=cat", "--quiet")
			return strings.Contains(out, "msg=filtering")
		})
		m.run("systemctl", "start", "--no-block", "weir")
		m.wait("the service is refused", func() bool { return m.show("NRestarts") != "0" })
	})
	m.run("systemctl", "is-active", "by-hand")
	m.wait("the journal has the error", func() bool {
		log, _ := m.try("journalctl", "--unit=weir", "--output=cat", "--priority=err")
		return strings.Contains(log, "another daemon")
	})
	m.run("systemctl", "kill", "--signal=KILL", "by-hand") // stopped, it would detach
	m.wait("the service filters", func() bool { return m.show("ActiveState") == "active" })
	m.withoutGap("the service", func() {})
	m.run("weir", "status")
}

func testServiceDetach(t *testing.T, m *machine) {
	out := m.run("weir", "detach", "--all")
	if !strings.Contains(out, "detached from "+m.lab.B.Iface) || !strings.Contains(out, "weir.service") {
		t.Errorf("detach says %q", out)
	}
	m.wait("the daemon has ended", func() bool { return m.show("ActiveState") == "inactive" })
	time.Sleep(3 * time.Second) // more than RestartSec
	for property, want := range map[string]string{"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"} {
		if got := m.show(property); got != want {
			t.Errorf("%s=%s, want %s", property, got, want)
		}
	}
	m.passes(true)
	if log := m.journal(); strings.Contains(log, "is gone") {
		t.Errorf("the journal calls the interface gone:\n%s", log)
	}
	if out, code := m.try("weir", "status"); code != 4 {
		t.Errorf("status: exit code %d, %s", code, out)
	}
	m.run("systemctl", "start", "weir")
	m.passes(false)

	m.run("systemctl", "kill", "--signal=KILL", "weir")
	m.wait("it has ended", func() bool { return m.show("ActiveState") == "activating" })
	if out := m.run("weir", "detach", "--all"); !strings.Contains(out, "starts weir.service again") {
		t.Errorf("detach says %q", out)
	}
	m.wait("the service filters again", func() bool { return m.show("ActiveState") == "active" })
	m.passes(false)
}

func testServiceUpgrade(t *testing.T, m *machine) {
	m.run("weir", "block", "198.51.100.1")
	before := m.show("MainPID")
	m.withoutGap("upgrade", func() { m.run("apt-get", "upgrade", "--yes") })
	m.run("systemctl", "is-active", "weir")
	if after := m.show("MainPID"); after == before {
		t.Errorf("process %s still runs", before)
	}
	if out := m.run("weir", "status"); !strings.Contains(out, "weir v"+m.r.version) {
		t.Errorf("status:\n%s", out)
	}
	if m.through("198.51.100.1") {
		t.Error("a manual entry was lost")
	}
}

// testServiceHub makes the host the hub of a fleet, and a node of it, with the service
// of each.
func testServiceHub(t *testing.T, m *machine) {
	m.install("weir-hub")
	if out, code := m.try("systemctl", "is-active", "weir-hub"); code == 0 {
		t.Errorf("the service was started: %s", out)
	}
	m.run("weir", "hub", "init", "/etc/weir-hub/keys")
	m.run("sed", "-i", "-e", "s/hub.example.net/127.0.0.1/", "-e", "/^lists:/,$d", "/etc/weir-hub/hub.yaml")
	if out, code := m.try("systemctl", "start", "weir-hub"); code != 0 {
		t.Fatalf("%s\n%s", out, m.run("journalctl", "--unit=weir-hub", "--output=cat"))
	}
	m.run("bash", "-c", "umask 027; weir hub enroll edge-1 >/etc/weir/fleet.json; chgrp weir /etc/weir/fleet.json")
	m.configure("")
	m.run("bash", "-c", "echo 'fleet: {enroll: /etc/weir/fleet.json}' >>/etc/weir/weir.yaml")
	m.run("systemctl", "restart", "weir")
	m.wait("the node enforces an entry", func() bool { _, code := m.try("weir", "fleet", "block", "203.0.113.77"); return code == 0 })
	m.wait("the entry is enforced", func() bool { return !m.through("203.0.113.77") })
	m.wait("the node is current", func() bool {
		out, code := m.try("weir", "fleet", "status")
		return code == 0 && strings.Contains(out, "current 1")
	})

	m.run("systemctl", "kill", "--signal=KILL", "weir-hub")
	m.wait("started again", func() bool { _, code := m.try("weir", "fleet", "block", "203.0.113.78"); return code == 0 })
	m.wait("the second entry is enforced", func() bool { return !m.through("203.0.113.78") })
	m.run("systemd-analyze", "security", "--no-pager", "--threshold=15", "weir-hub.service")
	if log := m.run("journalctl", "--unit=weir-hub", "--output=cat", "_SYSTEMD_UNIT=weir-hub.service"); !strings.Contains(log, "msg=publishing ") || strings.Contains(log, "time=20") || strings.Contains(log, "<6>") {
		t.Errorf("in the journal:\n%s", log)
	}
	if log := m.run("journalctl", "--unit=weir-hub", "--output=cat", "--priority=err", "--quiet", "_SYSTEMD_UNIT=weir-hub.service"); log != "" {
		t.Errorf("errors:\n%s", log)
	}
	if owner := m.run("stat", "--format=%U %a", "/etc/weir-hub/keys/fleet.key", "/etc/weir-hub/keys/nodes/edge-1.json"); owner != "weir-hub 600\nweir-hub 600\n" {
		t.Errorf("the keys: %s", owner)
	}
	m.configure("")
	m.run("systemctl", "restart", "weir")
	m.wait("without the fleet's lists", func() bool { return m.through("203.0.113.77") })
	m.run("apt-get", "purge", "--yes", "weir-hub")
	m.run("rm", "-r", "/etc/weir-hub", "/etc/weir/fleet.json")
}

func testServicePurge(t *testing.T, m *machine) {
	m.run("apt-get", "purge", "--yes", "weir")
	m.passes(true)
	m.run("rm", "/etc/apt/sources.list.d/weir.sources", "/etc/apt/keyrings/weir.asc")
	left, _ := m.try("find", "/etc", "/usr", "/var", "/run", "/sys/fs/bpf", "-name", "*weir*",
		"-not", "-path", "/var/log/*", "-not", "-path", "/var/lib/systemd/*", "-not", "-path", "/var/cache/*")
	if left != "" {
		t.Errorf("left:\n%s", left)
	}
	if out, code := m.try("systemctl", "cat", "weir"); code == 0 {
		t.Errorf("the unit is still there: %s", out)
	}
	if pid, _ := m.try("pgrep", "weir"); pid != "" {
		t.Errorf("process %s", pid)
	}
}

// machine is a Debian system in a container of systemd's, with the lab's B as its
// network.
type machine struct {
	t    testing.TB
	lab  *lab.Lab
	r    *release
	root string // its root directory
	init int    // its first process
	p    *lab.Probe
}

// in returns the machine for a subtest.
func (m *machine) in(t testing.TB) *machine {
	c := *m
	c.t = t
	return &c
}

// boot makes a machine and boots it. It is gone when the test ends.
func boot(t *testing.T, l *lab.Lab) *machine {
	t.Helper()
	for _, program := range []string{"mmdebstrap", "systemd-nspawn", "nsenter", "dpkg-deb"} {
		lab.Tool(t, program)
	}
	dir := t.TempDir()
	m := &machine{t: t, lab: l, root: filepath.Join(dir, "root")}

	codename, mirror := mirror(t)
	output(t, exec.Command("mmdebstrap", "--quiet", "--variant=minbase",
		"--include=systemd,systemd-sysv,dbus,iproute2,iputils-ping,procps", codename, m.root, mirror))

	// Its own BPF file system: the host's may have weir's pins.
	bpffs := filepath.Join(dir, "bpf")
	if err := os.Mkdir(bpffs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", bpffs, "bpf", 0, ""); err != nil {
		t.Fatalf("mount a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(bpffs, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})

	id := make([]byte, 4)
	_, _ = rand.Read(id) // never fails
	console, err := os.Create(filepath.Join(dir, "console"))
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	nspawn := exec.Command("systemd-nspawn", "--quiet", "--boot", "--directory="+m.root, "--machine=weir-"+hex.EncodeToString(id),
		"--register=no", "--keep-unit", "--console=pipe", "--capability=all",
		"--network-namespace-path=/run/netns/"+l.B.Netns, "--bind="+bpffs+":/sys/fs/bpf",
		"--system-call-filter=bpf perf_event_open @privileged @resources")
	nspawn.Stdout, nspawn.Stderr = console, console
	nspawn.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the test, which cleans up
	if err := nspawn.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- nspawn.Wait() }()
	t.Cleanup(func() {
		_ = nspawn.Process.Signal(syscall.SIGTERM) // powers off
		select {
		case <-ended:
		case <-time.After(wait.Patience):
			t.Error("the machine does not power off")
			_ = nspawn.Process.Kill() // and its first process with it
			<-ended
		}
	})
	m.wait("booted", func() bool {
		select {
		case err := <-ended:
			ended <- err
			text, _ := os.ReadFile(console.Name())
			t.Fatalf("systemd-nspawn: %v\n%s", err, text)
		default:
		}
		if m.init == 0 {
			m.init = child(nspawn.Process.Pid)
		}
		if m.init == 0 {
			return false
		}
		out, _ := m.try("systemctl", "is-system-running")
		return strings.HasPrefix(out, "running") || strings.HasPrefix(out, "degraded")
	})
	m.p = lab.NewProbe(t, l)
	return m
}

// mirror returns Debian's release here, and the mirror that apt gets it from.
func mirror(t *testing.T) (codename, uri string) {
	t.Helper()
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`(?m)^VERSION_CODENAME=(\w+)$`).FindSubmatch(release)
	if named == nil || !regexp.MustCompile(`(?m)^ID=debian$`).Match(release) {
		t.Skip("needs Debian, whose packages the machine is made of")
	}
	codename = string(named[1])
	out := output(t, exec.Command("apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages", "Component: main"))
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == codename {
			return codename, fields[1]
		}
	}
	t.Fatalf("apt has no mirror of %s:\n%s", codename, out)
	return "", ""
}

// child returns the only child of a process, 0 if it has none or several.
func child(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child)); strings.TrimSpace(string(name)) != "systemd" {
		return 0
	}
	return child
}

// try runs a command in the machine.
func (m *machine) try(args ...string) (out string, code int) {
	m.t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(m.init), "--all", "--"}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root"}
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		m.t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// run runs a command in the machine that must succeed.
func (m *machine) run(args ...string) string {
	m.t.Helper()
	out, code := m.try(args...)
	if code != 0 {
		m.t.Fatalf("%q: exit code %d\n%s", args, code, out)
	}
	return out
}

func (m *machine) show(property string) string {
	m.t.Helper()
	return strings.TrimSpace(m.run("systemctl", "show", "--value", "--property="+property, "weir"))
}

func (m *machine) journal() string {
	out, _ := m.try("journalctl", "--no-pager", "--lines=60", "--unit=weir", "--unit=weir-hub")
	return out
}

func (m *machine) write(path, content string) {
	m.t.Helper()
	write(m.t, filepath.Join(m.root, path), content, 0o644)
}

// configure writes the configuration, with further lists.
func (m *machine) configure(lists string) {
	m.t.Helper()
	m.write("/etc/weir/weir.yaml", fmt.Sprintf(
		"interfaces: [%s]\nmetrics: {listen: \"127.0.0.1:9477\"}\nlists:\n  drop: {sources: [{file: /srv/drop.txt}]}\n%s", m.lab.B.Iface, lists))
}

// wait waits for a state.
func (m *machine) wait(what string, reached func() bool) {
	m.t.Helper()
	for deadline := wait.Deadline(); !reached(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("waited for: %s", what)
		}
	}
}

const (
	listedSource = "192.0.2.1"
	cleanSource  = "198.51.100.200"
)

func frameFrom(source string) []byte {
	return packet.Frame(key.Tuple{
		Src: netip.MustParseAddr(source), Dst: netip.MustParseAddr("198.51.100.250"), Proto: unix.IPPROTO_UDP, HasPorts: true, SrcPort: 1000, DstPort: 2000,
	})
}

// through reports whether a packet from an address passes.
func (m *machine) through(source string) bool {
	m.t.Helper()
	return m.p.Pass(m.t, frameFrom(source))[0] != nil
}

// passes checks that listed packets pass, or not, and others do.
func (m *machine) passes(listed bool) {
	m.t.Helper()
	if got := m.through(listedSource); got != listed {
		m.t.Errorf("a listed packet passes: %v, want %v", got, listed)
	}
	if !m.through(cleanSource) {
		m.t.Error("an unlisted packet does not pass")
	}
}

// withoutGap sends numbered packets while something happens, none of which may pass
// if it is listed, or be lost if it is not.
func (m *machine) withoutGap(what string, happens func()) {
	m.t.Helper()
	m.passes(false)
	const clean = 1 << 63  // in the numbers of unlisted packets
	const mostOnWire = 100 // of each kind; the wire's queue has room for 256
	sender, receiver := m.lab.A.Sender(m.t), m.lab.B.Receiver(m.t)
	listed, unlisted := m.lab.Numbered(frameFrom(listedSource), 0), m.lab.Numbered(frameFrom(cleanSource), 0)
	var sent, leaked, arrived atomic.Uint64
	var stopped atomic.Bool
	var group sync.WaitGroup
	group.Go(func() {
		for !stopped.Load() {
			time.Sleep(500 * time.Microsecond)
			n := sent.Load() + 1
			if n-arrived.Load() > mostOnWire {
				continue
			}
			lab.Renumber(listed, n)
			lab.Renumber(unlisted, n|clean)
			if err := errors.Join(sender.Send(listed), sender.Send(unlisted)); err != nil {
				m.t.Errorf("%s: send packet %d: %v", what, n, err)
				return
			}
			sent.Store(n)
		}
	})
	receive := func() {
		frame, err := receiver.Receive(100 * time.Millisecond)
		switch n, ok := lab.NumberOf(frame); {
		case err != nil || !ok || len(frame) != len(listed):
		case n&clean != 0:
			arrived.Add(1)
		default:
			leaked.Add(1)
		}
	}
	group.Go(func() {
		for !stopped.Load() {
			receive()
		}
	})
	happens()
	time.Sleep(100 * time.Millisecond)
	stopped.Store(true)
	group.Wait()
	for deadline := time.Now().Add(10 * time.Second); arrived.Load() < sent.Load() && time.Now().Before(deadline); {
		receive()
	}
	m.t.Logf("%s: %d listed packets, %d passed; %d of as many others", what, sent.Load(), leaked.Load(), arrived.Load())
	if leaked.Load() > 0 || arrived.Load() != sent.Load() {
		m.t.Errorf("%s: %d of %d listed packets passed, and %d of as many others", what, leaked.Load(), sent.Load(), arrived.Load())
	}
	m.passes(false)
}
