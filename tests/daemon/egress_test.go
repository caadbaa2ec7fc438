package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/attach"
	"weir/filter/key"
	"weir/tests/lab"
	"weir/tests/long"
)

// to is a packet to a destination.
func to(dst netip.Addr, srcPort uint16) key.Tuple {
	return key.Tuple{Src: netip.MustParseAddr("203.0.113.1"), Dst: dst, Proto: 17, HasPorts: true, SrcPort: srcPort, DstPort: 9}
}

// What is listed with direction out does not leave the host, through reloads, upgrades and
// kills; all else does, with what answers the failsafe ports. What comes in is matched
// against other lists.
func TestEgress(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h := newHost(t)
	c2 := netip.MustParseAddr("192.0.2.77")
	write := func(more int) {
		text := "192.0.2.77\n"
		for i := range more {
			text += fmt.Sprintf("10.%d.%d.0/24\n", i>>8, i&255)
		}
		h.write("c2.txt", []byte(text))
	}
	write(1)
	h.write("in.txt", []byte("198.51.100.9\n"))
	configure := func(egress, direction, extra string) {
		h.write("weir.yaml", fmt.Appendf(nil, `interfaces: [{name: %s, netns: %s%s}]
pins: %s
state_dir: %s
api: {socket: %s}
learning: {elements: 0}
failsafe: {ports: [udp/53], prefixes: [198.18.0.0/24]}
%s
lists:
  c2: {direction: %s, anti_lockout: false, sources: [{file: %s}]}
  in: {anti_lockout: false, sources: [{file: %s}]}
`, h.A.Iface, h.A.Netns, egress, h.pins, h.path("state"), h.path("weir.sock"), extra, direction, h.path("c2.txt"), h.path("in.txt")))
	}
	configure(", egress: true", "out", "")
	listed := []key.Tuple{to(c2, 4000)}
	clean := []key.Tuple{
		to(netip.MustParseAddr("198.51.100.1"), 4000),
		to(netip.MustParseAddr("198.51.100.9"), 4000), // listed as a source, and only there
		to(c2, 53), // an answer of a failsafe port
		{Src: c2, Dst: netip.MustParseAddr("203.0.113.2"), Proto: 17, HasPorts: true, SrcPort: 1, DstPort: 2},
	}
	traffic := startTrafficBy(h.A.LocalSender(t), t, h.Lab, listed, clean)
	d := h.start(releases[0])
	traffic.run()
	traffic.await(2000)

	// A change in place, the next generation, other settings, an upgrade, a death.
	h.mustChange("c2", false, "192.0.2.78")
	traffic.expect("added in place", false, to(netip.MustParseAddr("192.0.2.78"), 4000))
	h.mustChange("c2", true, "192.0.2.78")
	traffic.expect("removed in place", true, to(netip.MustParseAddr("192.0.2.78"), 4000))
	write(5000)
	h.refresh("c2", 5001)
	traffic.expect("of the next generation", false, to(netip.MustParseAddr("10.19.1.7"), 4000))
	configure(", egress: true", "out", "not_ip: drop")
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	traffic.await(2000)
	d.kill()
	traffic.await(2000)
	d = h.start(releases[1])
	traffic.await(2000)
	d = h.takeOver(d, releases[0])
	traffic.await(2000)
	traffic.finish()

	e, err := h.api.Explain(t.Context(), c2.String())
	if err != nil || !e.Drops() || len(e.Answers) != 3 || e.Answers[2].Direction != "out" || e.Answers[2].List != "c2" || e.Answers[2].Matches[0].Line != 1 {
		t.Errorf("explain: %+v, %v", e, err)
	}
	if e, err = h.api.Explain(t.Context(), "198.51.100.9"); err != nil || !e.Drops() || e.Answers[0].Direction != "in" {
		t.Errorf("explain: %+v, %v", e, err)
	}
	all, err := attach.ReadStatus(h.pins)
	if err != nil || len(all) != 2 {
		t.Fatalf("%d attachments, %v", len(all), err)
	}
	for _, a := range all {
		switch {
		case a.Direction == "in" && (a.Reasons["blocked"].Packets != 0 || len(a.ByList) == 0 || a.ByList[0].List == "c2"):
			t.Errorf("incoming: %+v", a)
		case a.Direction == "out" && (a.XDP != "tc" || a.Reasons["blocked"].Packets < 8000 || a.ByList[0].List != "c2" || a.ByList[0].Packets < 8000):
			t.Errorf("outgoing: %+v", a)
		}
	}
	if out, code := h.status(); code != 0 || !strings.Contains(out, " (out)") {
		t.Errorf("status, exit code %d:\n%s", code, out)
	}
	h.eventually("drops by destination", func() bool {
		found, err := h.api.Drops(t.Context(), api.DropsQuestion{By: api.BySource, Last: time.Minute, Limit: 10})
		return err == nil && len(found.Drops) > 0 && found.Drops[0].Key == c2.String() && found.Drops[0].Direction == "out"
	})
	h.eventually("rates of outgoing packets", func() bool {
		top, err := h.api.Top(t.Context())
		return err == nil && top.Out != nil && len(top.Out.Reasons) > 0
	})

	// Without egress, outgoing packets are left alone.
	configure("", "dst", "")
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all, err := attach.ReadStatus(h.pins); err != nil || len(all) != 1 || all[0].Direction != "in" {
		t.Errorf("%+v, %v", all, err)
	}
	d.stop()
}

// Numbered packets in both directions, 300,000 of them or as many as WEIR_PACKETS says,
// while lists change, the daemon reloads, is killed, and gives way to another version: none
// that is listed leaves or comes in, and none that is not is lost. Replies pass, but nothing
// here opens a connection.
func TestBothDirections(t *testing.T) {
	t.Parallel()
	packets := uint64(300_000)
	if text := os.Getenv("WEIR_PACKETS"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		packets = n
	} else if !long.Enabled {
		t.Skip("needs WEIR_LONG=1, or a number of packets in WEIR_PACKETS: minutes")
	}
	h := newHost(t)
	c2, bad := netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("198.51.100.9")
	write := func(more int) {
		for _, of := range []struct{ file, first, network string }{{"c2.txt", c2.String(), "10"}, {"bad.txt", bad.String(), "11"}} {
			text := of.first + "\n"
			for i := range more {
				text += fmt.Sprintf("%s.%d.%d.0/24\n", of.network, i>>8, i&255)
			}
			h.write(of.file, []byte(text))
		}
	}
	write(1)
	configure := func(extra string) {
		h.write("weir.yaml", fmt.Appendf(nil, `interfaces: [{name: %s, netns: %s, egress: true}]
pins: %s
state_dir: %s
api: {socket: %s}
learning: {elements: 0}
replies: pass
%s
lists:
  c2: {direction: out, anti_lockout: false, sources: [{file: %s}]}
  bad: {anti_lockout: false, sources: [{file: %s}]}
`, h.A.Iface, h.A.Netns, h.pins, h.path("state"), h.path("weir.sock"), extra, h.path("c2.txt"), h.path("bad.txt")))
	}
	configure("")
	out := startTrafficBy(h.A.LocalSender(t), t, h.Lab, []key.Tuple{to(c2, 4000), to(c2, 50000)}, []key.Tuple{
		to(netip.MustParseAddr("198.51.100.1"), 4000), to(bad, 4000),
	})
	in := startTraffic(t, &lab.Lab{A: h.B, B: h.A}, []key.Tuple{from(bad), {
		Src: bad, Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, SrcPort: 9, DstPort: 4000, // as if it answered
	}}, froms(c2, netip.MustParseAddr("198.51.100.1")))
	d := h.start(releases[0])
	out.run()
	in.run()
	sent := func() uint64 {
		return out.sentListed.Load() + out.sentClean.Load() + in.sentListed.Load() + in.sentClean.Load()
	}
	round := 0
	for ; sent() < packets || round < 5; round++ {
		out.await(1000)
		in.await(1000)
		switch round % 5 {
		case 0: // a change in place
			h.mustChange("c2", round%2 == 1, "192.0.2.78")
			h.mustChange("bad", round%2 == 1, "198.51.100.10")
		case 1: // the next generation
			n := 5000 * (1 + round%3)
			write(n)
			for _, list := range []string{"c2", "bad"} {
				if _, err := h.api.Refresh(t.Context(), list); err != nil {
					t.Fatal(err)
				}
				h.eventually("the contents of "+list, func() bool { return h.list(list).Entries >= n && h.list(list).Entries <= n+2 })
			}
		case 2: // other settings
			configure([]string{"", "not_ip: drop"}[round/5%2])
			if _, err := h.api.Reload(t.Context()); err != nil {
				t.Fatal(err)
			}
		case 3: // a death, and some time without a daemon
			d.kill()
			out.await(1000)
			in.await(1000)
			d = h.start(releases[round%2])
		case 4: // an upgrade
			d = h.takeOver(d, releases[(round+1)%2])
		}
	}
	out.finish()
	in.finish()
	t.Logf("%d packets, %d changes", sent(), round)
	d.stop()
}
