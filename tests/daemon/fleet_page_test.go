package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/wait"
)

// machine is a host with directories of its own where packages put their files, in which commands run as its operator
// types them.
type machine struct {
	t      *testing.T
	dir    string
	holder int // a process in its namespaces
}

// The commands that a machine has beside weir's. systemctl does what the units say.
var machineCommands = map[string]string{
	"sudo":     `exec "$@"`,
	"sudoedit": `sed -i 's|^servers:.*|servers: ["tls://10.0.1.1:4222"]|' "$1"`,
	"ssh":      `shift; exec nsenter -t "$(cat "$PEER/holder")" -m -n "$@"`,
	"systemctl": `unit=${@: -1}
line() { sed -n "s/^$1=//p" "$UNITS/$unit.service"; }
[ "$1" = reload ] && exec $(line ExecReload)
if [ -f /run/$unit.pid ]; then kill $(cat /run/$unit.pid); while grep -q '^State:.[^Z]' /proc/$(cat /run/$unit.pid)/status; do sleep 0.05; done; fi
setsid $(line ExecStart) >>/run/$unit.log 2>&1 </dev/null &
echo $! >/run/$unit.pid`,
}

// newMachine makes a machine in a network namespace. Its peer is where ssh leads.
func newMachine(t *testing.T, netns, dir, peer string) *machine {
	t.Helper()
	m := &machine{t: t, dir: dir}
	hub, err := hubBinary()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"bin", "units", "etc/weir", "etc/weir-hub/keys", "lib", "run/weir", "run/weir-hub"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range machineCommands {
		if err := os.WriteFile(filepath.Join(dir, "bin", name), []byte("#!/bin/bash\nUNITS="+dir+"/units PEER="+peer+"\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for to, from := range map[string]string{"bin/weir": releases[0].path, "bin/weir-hub": hub} {
		if err := os.Symlink(from, filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	for to, from := range map[string]string{
		"etc/weir/weir.yaml": "control/config/weir.yaml", "etc/weir-hub/hub.yaml": "control/config/hub.yaml",
		"units/weir.service": "cmd/weir/packaging/weir.service", "units/weir-hub.service": "cmd/weir-hub/packaging/weir-hub.service",
	} {
		text, err := os.ReadFile(filepath.Join(root, from))
		if err != nil {
			t.Fatal(err)
		}
		must.Write(t, filepath.Join(dir, to), text)
	}
	c := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "bash", "-ec", `
cp -a /etc/passwd /etc/group /etc/nsswitch.conf /etc/ld.so.* "$0/etc/"
grep -q ^weir: "$0/etc/group" || echo weir:x:990: >>"$0/etc/group"
mount --bind "$0/etc" /etc; mount --bind "$0/lib" /var/lib; mount -t bpf bpf /sys/fs/bpf; mount --bind "$0/run" /run
cut -d' ' -f4 /proc/self/stat >"$0/holder.new"; mount -t proc proc /proc; mv "$0/holder.new" "$0/holder"
exec sleep infinity`, dir)
	c.Stderr = os.Stderr
	if err := start(c, netns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	wait.For(t, "the machine is there", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "holder"))
		if err == nil {
			_, err = fmt.Sscan(string(text), &m.holder)
		}
		return err == nil
	})
	return m
}

// try runs a command as its operator types it.
func (m *machine) try(command string) (string, error) {
	c := exec.Command("nsenter", "-t", fmt.Sprint(m.holder), "-m", "-n", "-p", "bash", "-c", "set -o pipefail\n"+command)
	c.Env = append(os.Environ(), "PATH="+m.dir+"/bin:"+os.Getenv("PATH"), "XDG_CONFIG_HOME="+m.dir+"/config")
	out, err := c.CombinedOutput()
	return string(out), err
}

// run is try of a command that does what it says.
func (m *machine) run(command string) string {
	m.t.Helper()
	out, err := m.try(command)
	if err != nil {
		var logs string
		for _, unit := range []string{"weir", "weir-hub"} {
			text, _ := os.ReadFile(filepath.Join(m.dir, "run", unit+".log"))
			logs += string(text[max(0, len(text)-1500):])
		}
		m.t.Fatalf("%s: %v\n%s\nlogs:\n%s", command, err, out, logs)
	}
	return out
}

// Who follows docs/fleet.md word for word, with what the packages install, has a packet dropped at the end.
func TestFleetPage(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	lab.Root(t)
	text := must.Read(t, "../../docs/fleet.md")
	_, page, _ := strings.Cut(string(text), "\n## Two machines\n")
	page, _, ok := strings.Cut(page, "\n**Many hosts**")
	if !ok {
		t.Fatal("the page has no section with two machines")
	}
	hubHost, nodeHost := lab.NewHost(t, "hub"), lab.NewHost(t, "node")
	up, down := lab.Join(t, 1, 1500, hubHost, "node", nodeHost, "eth0")
	dir := t.TempDir()
	hub := newMachine(t, hubHost.Netns, filepath.Join(dir, "hub"), filepath.Join(dir, "node"))
	node := newMachine(t, nodeHost.Netns, filepath.Join(dir, "node"), "")
	probe := lab.NewProbe(t, &lab.Lab{A: up, B: down})
	passes := func(source string) bool {
		return probe.Pass(t, packet.Frame(from(netip.MustParseAddr(source))))[0] != nil
	}

	// The blocks of the page, which the test carries out in order.
	var blocks []string
	for line := range strings.Lines(page) {
		if line, is := strings.CutPrefix(strings.TrimRight(line, "\n"), "    "); is {
			if n := len(blocks); n > 0 && strings.HasSuffix(blocks[n-1], "|") {
				blocks[n-1] += "\n" + line
			} else {
				blocks = append(blocks, line)
			}
		}
	}
	next := func(begins string) string {
		t.Helper()
		if len(blocks) == 0 || !strings.HasPrefix(blocks[0], begins) {
			t.Fatalf("the page goes on with %q, and this test with %s", blocks, begins)
		}
		command := blocks[0]
		blocks = blocks[1:]
		return command
	}
	flowing := strings.Join(strings.Fields(page), " ")
	inText := func(command string) string { // between backquotes
		t.Helper()
		if !strings.Contains(flowing, "`"+command+"`") {
			t.Fatalf("the page does not have %s", command)
		}
		return command
	}
	hub.run(next("sudo weir hub init"))
	hub.run(next("sudoedit"))
	hub.run(next("sudo systemctl enable --now weir-hub"))
	made := strings.Fields(hub.run(next("sudo weir hub token create") + " 2>/dev/null"))
	if len(made) != 4 || !strings.HasPrefix(strings.Join(made, " "), "weir join https://10.0.1.1:4223 ") {
		t.Fatalf("made: %q", made)
	}
	node.run(inText("sudo systemctl enable --now weir"))
	wait.For(t, "weir runs on the node", func() bool { _, err := node.try("weir lists"); return err == nil })
	join := strings.NewReplacer("https://hub.example.net:4223", made[2], "TOKEN", made[3]).Replace(next("sudo weir join"))
	if out := node.run(join); !strings.Contains(out, "this host is node edge-1: it filters by fleet.") || !strings.Contains(out, "monitor mode") {
		t.Errorf("joined: %s", out)
	}
	if out := node.run(join); !strings.Contains(out, "already, nothing has changed") {
		t.Errorf("joined again: %s", out)
	}
	wait.For(t, "the status says that the node is in monitor mode", func() bool {
		out, _ := hub.try("weir fleet status")
		return strings.Contains(out, "monitor mode")
	})
	node.run("sed -i 's/^" + inText("monitor: true") + "/" + inText("monitor: false") + "/' /etc/weir/weir.yaml")
	node.run(inText("sudo systemctl reload weir"))
	wait.For(t, "the node enforces", func() bool {
		out, _ := hub.try("weir fleet status")
		return strings.Contains(out, "1 of 1 that report enforce")
	})
	if !passes("198.51.100.7") {
		t.Fatal("the packet does not pass before it is listed")
	}
	block := hub.run(next("sudo weir fleet block"))
	if said := inText("in effect on 1 of 1 nodes"); !strings.HasSuffix(block, said+"\n") {
		t.Errorf("the command has printed %q, and the page has %s", block, said)
	}
	if passes("198.51.100.7") || !passes("203.0.113.7") {
		t.Errorf("packets pass: listed %t, other %t", passes("198.51.100.7"), passes("203.0.113.7"))
	}
	if out, _ := hub.try(next("sudo weir fleet status")); !strings.Contains(out, "1 of 1 that report enforce") { // feeds fail here
		t.Errorf("%s", out)
	}
	if out := hub.run(next("sudo weir fleet explain 198.51.100.7")); !strings.Contains(out, "drop") || !strings.Contains(out, "edge-1") {
		t.Errorf("%s", out)
	}
	operator := strings.Fields(hub.run(strings.Replace(next("sudo weir hub operator create alice --role block"), "#", "2>/dev/null #", 1)))
	login := strings.NewReplacer("https://hub.example.net:4223", operator[3], "TOKEN", operator[4]).Replace(next("weir fleet login"))
	if out := node.run(login); !strings.Contains(out, "answers: weir fleet status --hub paris") {
		t.Errorf("logged in: %s", out)
	}
	if out := node.run(next("weir fleet block --hub paris")); !strings.HasSuffix(out, "in effect on 1 of 1 nodes\n") || passes("203.0.113.7") {
		t.Errorf("from another host: %s, passes: %t", out, passes("203.0.113.7"))
	}
	if out, err := node.try(inText("WEIR_HUB=paris") + " weir fleet reload"); err == nil || !strings.Contains(out, "operator alice has the role block: this takes publish") {
		t.Errorf("a request that the role does not permit: %s, %v", out, err)
	}
	if out := hub.run("weir fleet audit"); !strings.Contains(out, "operator alice") {
		t.Errorf("the audit: %s", out)
	}
	if out := hub.run("weir fleet entries"); !strings.Contains(out, "operator alice") {
		t.Errorf("the entries: %s", out)
	}
	hub.run(inText("weir hub operator revoke alice"))
	if out, err := node.try("weir fleet status --hub paris"); err == nil || !strings.Contains(out, "revoked") {
		t.Errorf("a token that is revoked: %s, %v", out, err)
	}
	if len(blocks) > 0 {
		t.Errorf("the page goes on with %q", blocks)
	}

	// A node that was revoked joins anew, with the same command but for the token, and filters meanwhile.
	hub.run("weir hub revoke edge-1")
	wait.For(t, "the node to know", func() bool {
		out, _ := node.try("weir status --json")
		return strings.Contains(out, `"denied": true`)
	})
	again := strings.Fields(hub.run("weir hub token create 2>/dev/null"))
	if out := node.run(strings.Replace(join, made[3], again[3], 1)); !strings.Contains(out, "this host is node edge-1: it filters by fleet.") {
		t.Errorf("joined anew: %s", out)
	}
	if out := hub.run("weir fleet block 198.51.100.9"); !strings.HasSuffix(out, "in effect on 1 of 1 nodes\n") || passes("198.51.100.9") || passes("198.51.100.7") {
		t.Errorf("joined anew: %s, passes: %t", out, passes("198.51.100.9"))
	}
}
