package daemon

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/attach"
	"weir/filter/key"
)

// to is a packet to a destination.
func to(dst netip.Addr, srcPort uint16) key.Tuple {
	return key.Tuple{Src: netip.MustParseAddr("203.0.113.1"), Dst: dst, Proto: 17, HasPorts: true, SrcPort: srcPort, DstPort: 9}
}

// What is listed with direction out does not leave the host, through reloads, upgrades and
// kills; all else does, with what answers the failsafe ports. What comes in is matched
// against other lists.
func TestEgress(t *testing.T) {
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
  c2: {direction: %s, guard: false, sources: [{file: %s}]}
  in: {guard: false, sources: [{file: %s}]}
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
	next := h.begin(releases[0], "--takeover")
	next.ready()
	d.end()
	d = next
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
	if top, err := h.api.Top(t.Context()); err != nil || top.Out == nil || len(top.Out.Reasons) == 0 {
		t.Errorf("top: %+v, %v", top, err)
	}

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
