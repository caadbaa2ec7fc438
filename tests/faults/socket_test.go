package faults

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/wait"
)

// A stale socket, left by a crash, is recreated; until then commands report
// that no daemon is listening, or wait for it, while the kernel keeps filtering.
func TestStaleSocket(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	g.configure("lists: {feed: {sources: [{file: " + g.file("feed", "10.0.0.1\n") + "}]}}")
	g.refuses([]string{"the daemon is not running: " + g.socket + " does not exist; start `weir run`"}, "lists")
	d := g.begin()
	d.kill()
	if _, err := os.Lstat(g.socket); err != nil {
		t.Fatalf("no socket is left: %v", err)
	}
	for _, command := range [][]string{{"lists"}, {"reload"}, {"refresh"}} {
		g.refuses([]string{"the daemon is not running: nothing listens at " + g.socket + " any more; start `weir run`"}, command...)
	}
	if out, _ := g.ask(0, "block", "10.0.0.2"); !strings.HasPrefix(out, "queued for list manual: 1; ") {
		t.Errorf("block: %s", out)
	}
	g.filters("nothing listens", []string{"10.0.0.1"}, []string{"10.0.0.2"})
	d = g.begin()
	g.untilDropped("10.0.0.2")
	g.filters("somebody listens", []string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.3"})
	d.stop()
}

// If its socket is unavailable, weir filters, reports it, and opens the socket
// as soon as it can.
func TestSocket(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	private(t) // for the read-only directory
	for _, c := range []struct {
		name, says, asked string
		fault             func(g *ground) (end func())
	}{
		{"another listens", "another process listens there: stop it, or choose another socket", "is not weir", func(g *ground) func() {
			l, err := net.Listen("unix", g.socket)
			if err != nil {
				t.Fatal(err)
			}
			return func() { l.Close() }
		}},
		{"a file is there", "exists and is not a socket: weir does not remove it", "is not a socket: name the one that weir listens on", func(g *ground) func() {
			must.Write(t, g.socket, "")
			return func() { os.Remove(g.socket) }
		}},
		{"a read-only directory", "read-only file system", "the daemon is not running", func(g *ground) func() {
			dir := filepath.Dir(g.socket)
			mount(t, dir, unix.MS_RDONLY)
			return func() { mount(t, dir, unix.MS_REMOUNT) }
		}},
	} {
		t.Log(c.name)
		g := newGround(t)
		g.socket = filepath.Join(g.dir, "run", "weir.sock")
		if err := os.Mkdir(filepath.Dir(g.socket), 0o755); err != nil {
			t.Fatal(err)
		}
		end := c.fault(g)
		g.configure("lists: {feed: {sources: [{file: " + g.file("feed", "10.0.0.1\n") + "}]}}")
		d := g.run("weir")
		d.start()
		d.filtering()
		d.read = 0 // it listens before it says that it filters
		d.wait("API socket unavailable, retrying", g.socket, c.says)
		g.filters(c.name, []string{"10.0.0.1"}, []string{"10.0.0.2"})
		if c.name != "another listens" { // that answers nothing at all
			g.refuses([]string{c.asked}, "lists")
		}
		end()
		g.answers()
		g.ask(0, "block", "10.0.0.2")
		g.filters("the socket can be had", []string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.3"})
		d.stop()
	}
}

// A metrics address that is assigned later, as at boot, is listened on then.
func TestLateAddress(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	const address = "198.18.1.1"
	g.configure("metrics: {listen: \"" + address + ":9477\"}\nlists: {feed: {sources: [{file: " + g.file("feed", "10.0.0.1\n") + "}]}}")
	d := g.run("weir")
	g.B.In(t, d.start)
	d.filtering()
	d.read = 0 // it listens before it says that it filters
	d.wait("metrics listener unavailable, retrying", address, "cannot assign requested address")
	const unavailable = "UNAVAILABLE: metrics listener: listen tcp " + address
	if out, _ := g.ask(0, "status"); !strings.HasPrefix(out, unavailable) {
		t.Errorf("no %q in\n%s", unavailable, out)
	}
	g.filters("no address", []string{"10.0.0.1"}, []string{"10.0.0.2"})
	g.B.In(t, func() {
		l, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err == nil {
			err = netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(32, 32)}})
		}
		if err != nil {
			t.Error(err)
		}
	})
	d.wait("listening", address)
	if out, _ := g.ask(0, "status"); strings.Contains(out, "UNAVAILABLE") {
		t.Errorf("it listens, but:\n%s", out)
	}
	g.B.In(t, func() {
		c, err := net.DialTimeout("tcp", address+":9477", wait.Patience)
		if err != nil {
			t.Error(err)
			return
		}
		c.Close()
	})
	d.stop()
}

// A second daemon whose socket, or address of metrics, another one has is refused before it changes
// anything: no command would reach it.
func TestSecondDaemon(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	lists := "lists: {feed: {sources: [{file: " + g.file("feed", "10.0.0.1\n") + "}]}}\n"
	const metrics = "metrics: {listen: \"127.0.0.1:9477\"}\n"
	g.B.In(t, func() {
		l, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			t.Error(err)
		}
	})
	g.configure(metrics + lists)
	first := g.run("weir")
	g.B.In(t, first.start)
	first.filtering()
	g.answers()
	file, socket, state := g.config, g.socket, g.state
	for _, c := range []struct{ name, socket, more, says string }{
		{"the socket", socket, "", fmt.Sprintf("another daemon runs, process %d, and listens at %s: stop it first, choose another socket, or take over with --takeover", first.Process.Pid, socket)},
		{"the metrics", socket + "2", metrics, "another daemon serves metrics at 127.0.0.1:9477: stop it first"},
	} {
		g.config, g.socket, g.state = filepath.Join(g.dir, "second.yaml"), c.socket, filepath.Join(g.dir, "second")
		g.configure(c.more + lists)
		var log bytes.Buffer
		second := exec.Command(filepath.Join(binaries, "weir"), "run", "--config", g.config)
		second.Stdout, second.Stderr = &log, &log
		g.B.In(t, func() {
			if err := second.Start(); err != nil {
				t.Error(err)
			}
		})
		ended := time.AfterFunc(wait.Patience, func() { second.Process.Kill() })
		err := second.Wait()
		ended.Stop()
		if code := second.ProcessState.ExitCode(); code != 1 || !strings.Contains(log.String(), c.says) {
			t.Errorf("%s: %v\n%s, want\n%s", c.name, err, &log, c.says)
		}
		if _, err := os.Stat(g.state); err == nil {
			t.Errorf("%s: there is a state directory", c.name)
		}
	}
	g.config, g.socket, g.state = file, socket, state
	g.filters("the first daemon", []string{"10.0.0.1"}, []string{"10.0.0.2"})
	first.stop()
}
