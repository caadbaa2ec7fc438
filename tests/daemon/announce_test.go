package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// A router behind ExaBGP has exactly the routes and rules of the heavy hitters that may be
// announced. They stay while the daemon restarts, and go when they expire, and when weir
// announce ends.
func TestAnnounce(t *testing.T) {
	long.Only(t, "takes half a minute")
	exabgp, bird, birdc := lab.Tool(t, "exabgp"), lab.Tool(t, "bird"), lab.Tool(t, "birdc")
	h := newHost(t)
	speaker, router := lab.NewHost(t, "speaker"), lab.NewHost(t, "router")
	lab.Join(t, 5, 1500, speaker, "s", router, "r") // 10.0.5.1 and .2

	const hold = 4 * time.Second
	run := func(name string, flags ...string) string {
		pid := h.path(name + ".pid")
		script := fmt.Sprintf("#!/bin/sh\necho $$ > %s\nexec %s announce --socket %s --own 203.0.113.0/24,2001:db8:1::/48 --hold %v --interval 200ms %s\n",
			pid, releases[0].path, h.path("weir.sock"), hold, strings.Join(flags, " "))
		path := h.write(name, []byte(script))
		if err := os.Chmod(path, 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	h.write("exabgp.conf", fmt.Appendf(nil, `
process routes { run %s; encoder text; respawn false; }
process rules { run %s; encoder text; respawn false; }
neighbor 10.0.5.2 {
  router-id 10.0.5.1; local-address 10.0.5.1; local-as 64500; peer-as 64501;
  family { ipv4 unicast; ipv6 unicast; ipv4 flow; ipv6 flow; }
  api { processes [ routes, rules ]; }
}
`, run("routes", "--next-hop", "fd00:5::1"), run("rules", "--tracker", "src", "--kind", "flowspec")))
	h.write("bird.conf", []byte(`
router id 10.0.5.2;
protocol device {}
flow4 table flow4tab;
flow6 table flow6tab;
protocol bgp {
  local 10.0.5.2 as 64501;
  neighbor 10.0.5.1 as 64500;
  ipv4 { import all; export none; };
  ipv6 { import all; export none; };
  flow4 { table flow4tab; import all; export none; validate off; };
  flow6 { table flow6tab; import all; export none; validate off; };
}
`))
	control := h.path("bird.ctl")
	table := func(name string) []string {
		out, err := exec.Command(birdc, "-s", control, "show route table "+name+" all").CombinedOutput()
		if err != nil {
			return []string{err.Error() + string(out)}
		}
		var all []string
		for line := range strings.Lines(string(out)) {
			if m := regexp.MustCompile(`^(flow[46] \{.*?\}|[0-9a-f.:]+/\d+) `).FindStringSubmatch(line); m != nil {
				all = append(all, m[1])
			} else if community, ok := strings.CutPrefix(strings.TrimSpace(line), "BGP.community: "); ok {
				all[len(all)-1] += " " + community
			}
		}
		slices.Sort(all)
		return all
	}
	want := map[string][]string{
		"master4":  {"203.0.113.7/32 (65535,666)"},
		"master6":  {"2001:db8:1::7/128 (65535,666)"},
		"flow4tab": {"flow4 { src 198.51.100.7/32; }"},
		"flow6tab": {"flow6 { src 2001:db8:9::7/128; }"},
	}
	has := func(full bool) error {
		for name, routes := range want {
			if !full {
				routes = nil
			}
			if got := table(name); !slices.Equal(got, routes) {
				return fmt.Errorf("table %s has %q, want %q", name, got, routes)
			}
		}
		return nil
	}
	until := func(full bool) time.Duration {
		t.Helper()
		began := time.Now()
		for deadline := began.Add(wait.Patience); ; time.Sleep(100 * time.Millisecond) {
			err := has(full)
			if err == nil {
				return time.Since(began)
			} else if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}

	h.write("friends.txt", []byte("203.0.113.8\n"))
	h.configure(h.B.Iface, `
lists: {friends: {action: allow, sources: [{file: %s}]}}
trackers: [{key: dst, threshold: 100pps}, {key: src, threshold: 100pps}]
`, h.path("friends.txt"))
	d := h.start(releases[0])
	flood := func() (end func()) {
		var frames [][]byte
		for _, pair := range [][2]string{
			{"198.51.100.7", "203.0.113.7"}, {"2001:db8:9::7", "2001:db8:1::7"},
			{"203.0.113.9", "203.0.113.8"}, // from the own network, to whom an allow list spares
			{"10.9.9.9", "192.0.2.7"},      // from a private network, to another's
		} {
			tuple := from(netip.MustParseAddr(pair[0]))
			tuple.Dst = netip.MustParseAddr(pair[1])
			frames = append(frames, frameOf(h.Lab, listedKind, tuple))
		}
		tx := h.A.Sender(t)
		over, ended := make(chan struct{}), make(chan error)
		go func() {
			tick := time.NewTicker(2 * time.Millisecond) // 500 packets per second each
			defer tick.Stop()
			for {
				for _, f := range frames {
					if err := tx.Send(f); err != nil {
						ended <- err
						return
					}
				}
				select {
				case <-over:
					ended <- nil
					return
				case <-tick.C:
				}
			}
		}()
		return func() {
			close(over)
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	serve(t, "/usr/bin/env", "ip", "netns", "exec", router.Netns, bird, "-f", "-c", h.path("bird.conf"), "-s", control, "-P", h.path("bird.pid"))
	serve(t, "/usr/bin/env", "exabgp.daemon.user=root", "exabgp.api.cli=false", "ip", "netns", "exec", speaker.Netns, exabgp, h.path("exabgp.conf"))

	end := flood()
	until(true)
	d.stop()
	d = h.start(releases[0])
	if err := has(true); err != nil {
		t.Errorf("the daemon has restarted: %v", err)
	}
	time.Sleep(hold)
	if err := has(true); err != nil {
		t.Errorf("the flood goes on: %v", err)
	}
	end()
	if took := until(false); took < hold/2 {
		t.Errorf("withdrawn %v after the flood, want some %v", took, hold)
	}

	end = flood()
	until(true)
	end()
	pids, err := filepath.Glob(h.path("*.pid"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range pids {
		if text, err := os.ReadFile(file); err != nil {
			t.Error(err)
		} else if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			t.Error(err)
		} else if name := filepath.Base(file); name != "bird.pid" {
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	if took := until(false); took > hold-time.Second {
		t.Errorf("withdrawn %v after weir announce has ended", took)
	}
	d.stop()
}
