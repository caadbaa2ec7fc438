package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// router is a BGP speaker of another project at 10.0.5.1, which connects to weir receive at 10.0.5.2.
type router struct {
	*service
	announce, withdraw func() // its blackholes and rules
}

const receiveHold = 12 * time.Second // half of it is how long a busy machine may pause

// Packets to what ExaBGP, BIRD and FRR announce are dropped, until they withdraw it. What a session that
// ends has left stays for the hold time, as does what weir receive leaves when it is killed.
func TestReceive(t *testing.T) {
	long.Only(t, "takes two minutes")
	for _, of := range []struct {
		name  string
		flow  bool // it announces FlowSpec
		start func(*testing.T, *host, lab.Host) router
	}{{"ExaBGP", true, startExaBGP}, {"BIRD", true, startBIRD}, {"FRR", false, startFRR}} {
		t.Run(of.name, func(t *testing.T) {
			want := []string{"> 203.0.113.7", "> 2001:db8:1::7"}
			var patterns []string
			if of.flow {
				want = append(want, "udp 0.0.0.0/0:53 > 203.0.113.8:*")
				patterns = []string{"udp length 460-480 sport 123 dst 203.0.113.8/32 0pps", "src 198.51.100.7/32 dst 203.0.113.11/32 9.6kB/s"}
			}
			testReceive(t, of.start, want, patterns)
		})
	}
}

func testReceive(t *testing.T, start func(*testing.T, *host, lab.Host) router, want, patterns []string) {
	h := newHost(t)
	far, near := lab.NewHost(t, "router"), lab.NewHost(t, "receiver")
	lab.Join(t, 5, 1500, far, "r", near, "s") // 10.0.5.1 and .2
	h.configure(h.B.Iface, "lists: {bgp: {action: block}}\n")
	d := h.start(releases[0])
	defer d.stop()
	receive := func() *service {
		return serve(t, "/usr/bin/env", "ip", "netns", "exec", near.Netns, releases[0].path, "receive", "--socket", h.path("weir.sock"),
			"--listen", "10.0.5.2:179", "--as", "64501", "--neighbor", "10.0.5.1=64500", "--passwords", h.write("passwords", []byte("10.0.5.1 secret\n")),
			"--list", "bgp", "--own", "203.0.113.0/24,2001:db8:1::/48", "--hold", receiveHold.String(), "--state", h.path("receive.json"))
	}
	// has returns what is not as it should be.
	has := func(full bool) string {
		entries, err := h.api.Entries(t.Context(), api.EntriesQuestion{List: "bgp"})
		if err != nil {
			return err.Error()
		}
		s, err := h.api.Status(t.Context())
		if err != nil {
			return err.Error()
		}
		var got, all []string
		for _, e := range entries.Entries {
			if got = append(got, e.Entry); e.Expires == nil || !strings.HasPrefix(e.Reason, "BGP 10.0.5.1: ") {
				return fmt.Sprintf("entry %+v has no end, or another reason", e)
			}
		}
		for _, p := range s.Policed {
			got = append(got, p.Pattern+" "+p.Rate)
		}
		if full {
			all = slices.Concat(want, patterns)
		}
		slices.Sort(got)
		slices.Sort(all)
		if !slices.Equal(got, all) {
			return fmt.Sprintf("the daemon has %q, want %q", got, all)
		}
		return ""
	}
	until := func(what string, full bool) time.Duration {
		t.Helper()
		began := time.Now()
		for deadline := wait.Deadline(); has(full) != ""; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %s", what, has(full))
			}
		}
		return time.Since(began)
	}
	passes := func(what string, want bool) {
		t.Helper()
		tuple := from(netip.MustParseAddr("198.51.100.9"))
		tuple.Dst = netip.MustParseAddr("203.0.113.7")
		end := from(netip.MustParseAddr("198.51.100.9"))
		rx, tx := h.B.Receiver(t), h.A.Sender(t)
		for _, f := range [][]byte{frameOf(h.Lab, listedKind, tuple), frameOf(h.Lab, endKind, end)} {
			if err := tx.Send(f); err != nil {
				t.Fatal(err)
			}
		}
		came := false
		for {
			got, err := rx.Receive(wait.Patience)
			if err != nil {
				t.Fatal(err)
			}
			if kind, _ := numberOf(got); kind == endKind {
				break
			} else if kind == listedKind {
				came = true
			}
		}
		if came != want {
			t.Errorf("%s: a packet to a blackhole passes: %v", what, came)
		}
	}

	receiver := receive()
	r := start(t, h, far)
	r.announce()
	until("announced", true)
	passes("announced", false)
	time.Sleep(receiveHold)
	if got := has(true); got != "" {
		t.Errorf("the session lives: %s", got)
	}
	r.withdraw()
	took := until("withdrawn", false)
	t.Logf("withdrawn after %v", took)
	passes("withdrawn", true)
	r.announce()
	until("announced again", true)

	r.end()
	ended := time.Now()
	for time.Since(ended) < receiveHold/2 {
		if got := has(true); got != "" {
			t.Fatalf("%v after its session has ended: %s", time.Since(ended), got)
		}
		time.Sleep(100 * time.Millisecond)
	}
	until("the hold time is over", false)
	if took := time.Since(ended); took > 3*receiveHold {
		t.Errorf("entries were left for %v", took)
	}

	r = start(t, h, far)
	r.announce()
	until("another session", true)
	receiver.kill()
	ended = time.Now()
	until("weir receive was killed", false)
	t.Logf("gone %v after weir receive was killed", time.Since(ended))
	receive()
	until("weir receive has begun again", true)
	wait.For(t, "the state file", func() bool { // which follows the daemon
		text, _ := os.ReadFile(h.path("receive.json"))
		return strings.Contains(string(text), `"session":true`) && strings.Contains(string(text), want[0])
	})
}

func startExaBGP(t *testing.T, h *host, at lab.Host) router {
	exabgp := lab.Tool(t, "exabgp")
	fifo := h.path("lines")
	if _, err := os.Stat(fifo); err != nil {
		if out, err := exec.Command("mkfifo", fifo).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	lines, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lines.Close() })
	run := h.write("run", []byte("#!/bin/sh\nexec cat "+fifo+"\n"))
	if err := os.Chmod(run, 0o700); err != nil {
		t.Fatal(err)
	}
	h.write("exabgp.conf", fmt.Appendf(nil, `
process lines { run %s; encoder text; respawn false; }
neighbor 10.0.5.2 {
  router-id 10.0.5.1; local-address 10.0.5.1; local-as 64500; peer-as 64501; md5-password 'secret';
  family { ipv4 unicast; ipv6 unicast; ipv4 flow; ipv6 flow; }
  api { processes [ lines ]; }
}
`, run))
	say := func(word string) func() {
		return func() {
			for _, route := range []string{
				"route 203.0.113.7/32 next-hop 10.0.5.1 community [65535:666]",
				"route 2001:db8:1::7/128 next-hop fd00:5::1 community [65535:666]",
				"route 203.0.113.9/32 next-hop 10.0.5.1",
				"route 192.0.2.0/24 next-hop 10.0.5.1 community [65535:666]",
				"flow route { match { destination 203.0.113.8/32; protocol =udp; source-port =53; } then { discard; } }",
				"flow route { match { destination 203.0.113.8/32; protocol =udp; source-port =123; packet-length >=460&<=480; } then { discard; } }",
				"flow route { match { destination 203.0.113.11/32; source 198.51.100.7/32; } then { rate-limit 9600; } }",
			} {
				if _, err := fmt.Fprintln(lines, word, route); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	s := serve(t, "/usr/bin/env", "exabgp.daemon.user=root", "exabgp.api.cli=false", "ip", "netns", "exec", at.Netns, exabgp, h.path("exabgp.conf"))
	return router{s, say("announce"), say("withdraw")}
}

func startBIRD(t *testing.T, h *host, at lab.Host) router {
	bird, birdc := lab.Tool(t, "bird"), lab.Tool(t, "birdc")
	control := h.path("bird.ctl")
	configure := func(routes bool) {
		var v4, v6, flow string
		if routes {
			v4 = "route 203.0.113.7/32 blackhole { bgp_community.add((65535,666)); };\nroute 203.0.113.9/32 blackhole;"
			v6 = "route 2001:db8:1::7/128 blackhole { bgp_community.add((65535,666)); };"
			flow = `route flow4 { dst 203.0.113.8/32; proto = 17; sport = 53; } { bgp_ext_community.add((generic, 0x80060000, 0)); };
route flow4 { dst 203.0.113.8/32; proto = 17; sport = 123; length 460..480; } { bgp_ext_community.add((generic, 0x80060000, 0)); };
route flow4 { dst 203.0.113.11/32; src 198.51.100.7/32; } { bgp_ext_community.add((generic, 0x80060000, 0x46160000)); };` // 9600.0
		}
		h.write("bird.conf", fmt.Appendf(nil, `
router id 10.0.5.1;
protocol device {}
flow4 table flow4tab;
flow6 table flow6tab;
protocol static { ipv4; %s }
protocol static { ipv6; %s }
protocol static { flow4 { table flow4tab; }; %s }
protocol bgp {
  local 10.0.5.1 as 64500; neighbor 10.0.5.2 as 64501; password "secret"; connect retry time 1; error wait time 1, 1; connect delay time 1;
  ipv4 { import none; export all; };
  ipv6 { import none; export all; next hop address fd00:5::1; };
  flow4 { table flow4tab; import none; export all; };
  flow6 { table flow6tab; import none; export all; };
}
`, v4, v6, flow))
	}
	reload := func(routes bool) func() {
		return func() {
			configure(routes)
			if out, err := exec.Command(birdc, "-s", control, "configure").CombinedOutput(); err != nil || !strings.Contains(string(out), "Reconfigured") && !strings.Contains(string(out), "in progress") {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	configure(false)
	s := serve(t, "/usr/bin/env", "ip", "netns", "exec", at.Netns, bird, "-f", "-c", h.path("bird.conf"), "-s", control, "-P", h.path("bird.pid"))
	wait.For(t, "BIRD answers", func() bool { return exec.Command(birdc, "-s", control, "show", "status").Run() == nil })
	return router{s, reload(true), reload(false)}
}

func startFRR(t *testing.T, h *host, at lab.Host) router {
	vtysh := lab.Tool(t, "vtysh")
	dir := h.path("frr")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h.write("bgpd.conf", []byte(`
router bgp 64500
 bgp router-id 10.0.5.1
 no bgp ebgp-requires-policy
 no bgp network import-check
 neighbor 10.0.5.2 remote-as 64501
 neighbor 10.0.5.2 password secret
 neighbor 10.0.5.2 timers connect 1
 address-family ipv6 unicast
  neighbor 10.0.5.2 activate
 exit-address-family
route-map blackhole permit 10
 set community blackhole
route-map blackhole6 permit 10
 set community blackhole
 set ipv6 next-hop global fd00:5::1
`))
	say := func(no string) func() {
		return func() {
			args := []string{"--vty_socket", dir}
			for _, line := range []string{"configure terminal", "router bgp 64500",
				"address-family ipv4 unicast", no + "network 203.0.113.7/32 route-map blackhole", no + "network 203.0.113.9/32", "exit-address-family",
				"address-family ipv6 unicast", no + "network 2001:db8:1::7/128 route-map blackhole6", "exit-address-family"} {
				args = append(args, "-c", line)
			}
			if out, err := exec.Command(vtysh, args...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	s := serve(t, "/usr/bin/env", "ip", "netns", "exec", at.Netns, "/usr/lib/frr/bgpd", "-f", h.path("bgpd.conf"), "-i", h.path("bgpd.pid"),
		"--vty_socket", dir, "-Z", "-P", "0", "-S", "-u", "root", "-g", "root", "--log", "stdout")
	wait.For(t, "FRR answers", func() bool {
		return exec.Command(vtysh, "--vty_socket", dir, "-c", "show bgp summary").Run() == nil
	})
	return router{s, say(""), say("no ")}
}
