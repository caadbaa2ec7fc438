package daemon

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/wait"
)

// tasks is a fleet of machines, whose operator types commands.
type tasks struct {
	t      *testing.T
	hub    *machine
	nodes  []*machine
	probes []*lab.Probe
}

// name returns the name of a node.
func name(i int) string { return fmt.Sprintf("edge-%d", i+1) }

// newTasks makes a hub, and hosts that reach it at two addresses.
func newTasks(t *testing.T, nodes int) *tasks {
	t.Helper()
	lab.Root(t)
	dir, hub := t.TempDir(), lab.NewHost(t, "hub")
	f := &tasks{t: t}
	for i := range nodes {
		host := lab.NewHost(t, name(i))
		up, down := lab.Join(t, byte(i+1), 1500, hub, name(i), host, "eth0")
		if i == 0 {
			f.hub = newMachine(t, hub.Netns, filepath.Join(dir, "hub"), filepath.Join(dir, name(0)))
		}
		for _, address := range []string{"10.0.1.1/32", "10.0.2.1/32"} {
			if address != up.IPv4.String()+"/32" {
				down.Route(t, address, up.IPv4)
			}
		}
		f.nodes = append(f.nodes, newMachine(t, host.Netns, filepath.Join(dir, name(i)), ""))
		f.probes = append(f.probes, lab.NewProbe(t, &lab.Lab{A: up, B: down}))
	}
	return f
}

// configure writes hub.yaml.
func (f *tasks) configure(servers, more string) {
	f.t.Helper()
	must.Write(f.t, filepath.Join(f.hub.dir, "etc/weir-hub/hub.yaml"), "servers: "+servers+"\nbroker: {listen: 0.0.0.0:4222}\njoin: {listen: 0.0.0.0:4223}\nheartbeat: 1s\nmax_age: 5s\n"+more)
}

// drop returns the nodes that drop packets of a source.
func (f *tasks) drop(source string) (by []string) {
	f.t.Helper()
	for i, p := range f.probes {
		if p.Pass(f.t, packet.Frame(from(netip.MustParseAddr(source))))[0] == nil {
			by = append(by, name(i))
		}
	}
	return by
}

// dropped checks which nodes drop packets of a source.
func (f *tasks) dropped(source string, by ...string) {
	f.t.Helper()
	if got := f.drop(source); !slices.Equal(got, by) {
		f.t.Errorf("packets of %s are dropped by %q, want %q", source, got, by)
	}
}

// says waits until a command at the hub prints all of some texts.
func (f *tasks) says(command string, texts ...string) {
	f.t.Helper()
	wait.Until(f.t, func() error {
		out, _ := f.hub.try(command)
		for _, text := range texts {
			if !strings.Contains(out, text) {
				return fmt.Errorf("%s has printed\n%s, want %q", command, out, text)
			}
		}
		return nil
	})
}

// starts starts weir on a node, as installed, and has it join the fleet and enforce.
func (f *tasks) starts(i int, join string) {
	f.t.Helper()
	n := f.nodes[i]
	n.run("sudo systemctl enable --now weir")
	wait.For(f.t, "weir runs", func() bool { _, err := n.try("weir lists"); return err == nil })
	if out := n.run(join + " --name " + name(i)); !strings.Contains(out, "it filters by fleet.") {
		f.t.Errorf("%s has joined: %s", name(i), out)
	}
	n.run("sed -i 's/^monitor: true/monitor: false/' /etc/weir/weir.yaml && sudo systemctl reload weir")
}

// The ten tasks of who looks after many hosts, each by the commands of docs/fleet.md. What they print is compared with
// the packets that pass.
func TestFleetTasks(t *testing.T) {
	long.Only(t, "many machines")
	t.Parallel()
	const nodes = 8
	f := newTasks(t, nodes)
	var all []string
	for i := range nodes {
		all = append(all, name(i))
	}
	const first = `["tls://10.0.1.1:4222"]`
	f.configure(first, "")
	f.hub.run("sudo weir hub init /etc/weir-hub/keys && sudo systemctl enable --now weir-hub")

	// Many hosts join by one token, which is used up then.
	began := time.Now()
	join := strings.TrimSpace(f.hub.run("sudo weir hub token create --count 8 --ttl 1d --label web 2>/dev/null"))
	for i := range nodes {
		f.starts(i, join)
	}
	f.says("weir fleet status", "8 of 8 that report enforce")
	t.Logf("8 hosts have joined in %v", time.Since(began).Round(time.Millisecond))
	if out := f.hub.run("weir hub token list"); !strings.Contains(out, "used up") || !strings.Contains(out, "joined 8 of 8") {
		t.Errorf("the token: %s", out)
	}

	// What is wrong now?
	if out := f.hub.run("weir fleet status"); strings.Count(out, "\n") > 10 {
		t.Errorf("the status has more than ten lines:\n%s", out)
	}
	f.nodes[2].run("kill -9 $(cat /run/weir.pid)")
	f.says("weir fleet status", "edge-3")

	// Block now, everywhere, from elsewhere: the command says where it is not in effect.
	login := strings.Fields(f.hub.run("sudo weir hub operator create alice --role block 2>/dev/null"))
	f.nodes[0].run(strings.Join(login, " ") + " --name paris")
	if out, err := f.nodes[0].try("weir fleet block --hub paris --ttl 1h --reason scans 198.51.100.0/24; [ $? = 5 ]"); err != nil || !strings.Contains(out, "in effect on 7 of 8 nodes") {
		t.Errorf("beside a node that is dead: %v\n%s", err, out)
	}
	f.dropped("198.51.100.7", slices.DeleteFunc(slices.Clone(all), func(n string) bool { return n == "edge-3" })...)
	f.nodes[2].run("sudo systemctl restart weir")
	f.says("weir fleet status", "8 of 8 that report enforce")
	f.says("weir fleet block --ttl 1h 203.0.113.9", "in effect on 8 of 8 nodes")
	f.dropped("203.0.113.9", all...)
	f.dropped("198.51.100.7", all...)

	// A customer complains: who drops it, and why; it is to pass on hosts of one label.
	f.says("weir fleet explain 198.51.100.7", "drop", "edge-1", "scans")
	f.hub.run("sudo weir hub label edge-1 edge-2 --add customer")
	f.configure(first, "lists: {ours: {action: allow, labels: [customer]}}\n")
	f.says("weir fleet plan", "list ours: new, on 2 nodes")
	f.hub.run("sudo weir fleet reload")
	f.says("weir fleet allow --list ours --ttl 7d 198.51.100.7", "in effect on 2 of 2 nodes")
	f.dropped("198.51.100.7", all[2:]...)

	// What did we block by hand, and until when?
	f.says("weir fleet entries", "198.51.100.0/24", "scans", "203.0.113.9", "in 59m")
	f.says("weir fleet entries", "operator alice")
	if out := f.hub.run("weir fleet export block"); !strings.Contains(out, "198.51.100.0/24\n") {
		t.Errorf("exported: %s", out)
	}
	f.says("weir fleet flush block", "in effect on 8 of 8 nodes")
	f.dropped("203.0.113.9")

	// A host was installed anew, and another one is gone.
	last := nodes - 1
	f.nodes[last].run("kill -9 $(cat /run/weir.pid); rm -rf /var/lib/weir/* /etc/weir/fleet* /run/weir.pid")
	must.Write(t, filepath.Join(f.nodes[last].dir, "etc/weir/weir.yaml"), must.Read(t, "../../control/config/weir.yaml"))
	again := strings.TrimSpace(f.hub.run("sudo weir hub revoke edge-8 >/dev/null && sudo weir hub token create --label web 2>/dev/null"))
	f.starts(last, again)
	f.says("weir fleet status", "8 of 8 that report enforce")
	f.says("weir fleet block 203.0.113.9", "in effect on 8 of 8 nodes")
	f.dropped("203.0.113.9", all...)
	f.nodes[last-1].run("kill -9 $(cat /run/weir.pid); rm /run/weir.pid; weir detach --all")
	f.hub.run("sudo weir hub revoke edge-7 && sudo weir hub forget edge-7")
	f.says("weir fleet status", "7 of 7 that report enforce")
	left := slices.Concat(all[:6], all[7:])

	// Another canary, and a new feed that goes to canaries first, and is taken back.
	f.hub.run("sudo weir hub label edge-4 --add canary")
	must.Write(t, filepath.Join(f.hub.dir, "etc/weir-hub/feed.txt"), "203.0.113.200\n")
	feed := "lists: {feed: {sources: [{file: /etc/weir-hub/feed.txt}]}, ours: {action: allow, labels: [customer]}}\nrollout: {waves: [{labels: [canary], for: 1h}]}\n"
	f.configure(first, feed)
	f.says("weir fleet plan", "list feed: new, on 7 nodes; wave 1: enforce on 1 node with canary; then all")
	f.hub.run("sudo weir fleet reload")
	wait.For(t, "the canary drops by the feed", func() bool { return slices.Equal(f.drop("203.0.113.200"), []string{"edge-4"}) })
	f.says("weir fleet status --list feed", "in wave 1 of 1")
	f.hub.run("weir fleet rollback feed")
	wait.For(t, "no node drops by the feed", func() bool { return len(f.drop("203.0.113.200")) == 0 })

	// Versions.
	f.says("weir fleet status --versions", "7")

	// The hub moves to another address, and its authority has another certificate.
	f.configure(`["tls://10.0.2.1:4222", "tls://10.0.1.1:4222"]`, feed)
	f.hub.run("sudo systemctl restart weir-hub")
	f.settings("tls://10.0.2.1:4222 tls://10.0.1.1:4222", 7)
	f.configure(`["tls://10.0.2.1:4222"]`, feed)
	f.hub.run("sudo systemctl restart weir-hub")
	f.settings("tls://10.0.2.1:4222", 7)
	f.hub.run("sudo weir hub rotate")
	f.says("sudo weir hub rotate --show", "it is not being replaced")
	f.says("weir fleet block 203.0.113.10", "in effect on 7 of 7 nodes")
	f.dropped("203.0.113.10", left...)

	// The hub is gone for good: a standby takes over.
	follow := strings.TrimSpace(f.hub.run("sudo weir hub operator create spare --role standby 2>/dev/null"))
	f.hub.run(strings.Replace(follow, "/root/hub.tar.gz", "/etc/copy.tar.gz --once", 1))
	f.says("weir fleet block 203.0.113.11", "in effect on 7 of 7 nodes")
	f.hub.run("kill -9 $(cat /run/weir-hub.pid); rm -rf /run/weir-hub.pid /etc/weir-hub/keys /var/lib/weir-hub/*")
	began = time.Now()
	f.hub.run("weir hub restore /etc/copy.tar.gz && sudo systemctl restart weir-hub")
	f.says("weir fleet block 203.0.113.12", "in effect on 7 of 7 nodes")
	t.Logf("a restored hub is obeyed after %v", time.Since(began).Round(time.Millisecond))
	for _, source := range []string{"203.0.113.9", "203.0.113.10", "203.0.113.11", "203.0.113.12"} {
		f.dropped(source, left...)
	}
}

// settings waits until nodes report some servers.
func (f *tasks) settings(servers string, nodes int) {
	f.t.Helper()
	wait.Until(f.t, func() error {
		out, err := f.hub.try("weir fleet status --json")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		var s api.HubStatus
		if err := json.Unmarshal([]byte(out), &s); err != nil {
			return err
		}
		n := 0
		for _, one := range s.Nodes {
			if one.Report != nil && one.Report.Settings != nil && strings.Join(one.Report.Settings.Servers, " ") == servers {
				n++
			}
		}
		if n != nodes {
			return fmt.Errorf("%d nodes report %s, want %d", n, servers, nodes)
		}
		return nil
	})
}
