package daemon

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"weir/control/attach"
	"weir/filter/key"
	"weir/tests/long"
)

// With hook: tc, and with egress at the other end, no listed packet comes in or leaves,
// through changes, reloads, upgrades and kills: at tcx, and by the filters that earlier
// kernels have instead.
func TestHookTC(t *testing.T) {
	long.Seconds(t)
	for _, clsact := range []bool{false, true} {
		name := "tcx"
		if clsact {
			name = "clsact"
		}
		t.Run(name, func(t *testing.T) {
			if clsact {
				t.Setenv("WEIR_TEST_CLSACT", "1")
			} else {
				long.Only(t, "TestEgress has the same at tcx")
			}
			testHookTC(t, clsact)
		})
	}
}

func testHookTC(t *testing.T, clsact bool) {
	h := newHost(t)
	behind := *h.Lab
	behind.B = h.B.BehindTC(t)
	c2, source := netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("198.51.100.9")
	write := func(more int) {
		text := source.String() + "\n"
		for i := range more {
			text += fmt.Sprintf("10.%d.%d.0/24\n", i>>8, i&255)
		}
		h.write("in.txt", []byte(text))
	}
	write(1)
	h.write("c2.txt", []byte(c2.String()+"\n"))
	configure := func(extra string) {
		h.write("weir.yaml", fmt.Appendf(nil, `interfaces:
  - {name: %s, netns: %s, hook: tc}
  - {name: %s, netns: %s, egress: true}
pins: %s
state_dir: %s
api: {socket: %s}
learning: {elements: 0}
%s
lists:
  c2: {direction: out, anti_lockout: false, sources: [{file: %s}]}
  in: {anti_lockout: false, sources: [{file: %s}]}
`, h.B.Iface, h.B.Netns, h.A.Iface, h.A.Netns, h.pins, h.path("state"), h.path("weir.sock"), extra, h.path("c2.txt"), h.path("in.txt")))
	}
	configure("")
	listed := []key.Tuple{to(c2, 4000), from(source)}
	clean := []key.Tuple{to(netip.MustParseAddr("198.51.100.1"), 4000), from(c2), from(netip.MustParseAddr("192.0.2.1"))}
	traffic := startTrafficBy(h.A.LocalSender(t), t, &behind, listed, clean)
	d := h.start(releases[0])
	traffic.run()
	traffic.await(2000)

	added := netip.MustParseAddr("198.51.100.10")
	h.mustChange("in", false, added.String())
	traffic.expect("added in place", false, from(added))
	h.mustChange("in", true, added.String())
	traffic.expect("removed in place", true, from(added))
	write(3000)
	h.refresh("in", 3001)
	traffic.expect("of the next generation", false, from(netip.MustParseAddr("10.9.1.7")))
	configure("not_ip: drop\nscans: [{key: src, distinct: ports}]\ntrackers: [{key: src}]")
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

	all, err := attach.ReadStatus(h.pins)
	if err != nil || len(all) != 3 {
		t.Fatalf("%d attachments, %v", len(all), err)
	}
	for _, a := range all {
		if a.XDP != "tc" {
			continue
		}
		if a.Severed || a.Reasons["blocked"].Packets < 4000 || a.ByList[0].Packets < 4000 {
			t.Errorf("%s (%s): %+v", a.Name, a.Direction, a)
		}
		netns, hook := h.B.Netns, "ingress"
		if a.Direction == "out" {
			netns, hook = h.A.Netns, "egress"
		}
		filters, err := exec.Command("tc", "-n", netns, "filter", "show", "dev", a.Name, hook).CombinedOutput()
		if err != nil {
			t.Fatalf("tc: %v: %s", err, filters)
		}
		if is := strings.Count(string(filters), "direct-action"); is != map[bool]int{true: 1}[clsact] {
			t.Errorf("%s: %d filters, clsact %t:\n%s", a.Name, is, clsact, filters)
		}
	}
	if out, code := h.status(); code != 0 || strings.Count(out, "TC") < 2 {
		t.Errorf("status, exit code %d:\n%s", code, out)
	}
	d.stop()
	h.detach()
	if left, err := exec.Command("tc", "-n", h.B.Netns, "qdisc", "show", "dev", h.B.Iface).CombinedOutput(); err != nil || strings.Contains(string(left), "clsact") {
		t.Errorf("left: %s, %v", left, err)
	}
}
