package daemon

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/wait"
)

// weir top has the sources of a flood without any tracker, within the bounds that it shows: while
// programs go on to record, after a reload that replaces them, and after kill -9.
func TestSampledTop(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {jail: {}}\n")
	d := h.start(releases[0])
	f := h.A.StartFlood(t, 1, func(src netip.Addr) []byte {
		return packet.Frame(key.Tuple{Src: src, Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, SrcPort: 5, DstPort: 9})
	})
	all := 0.0
	for _, rate := range f.Rates {
		all += rate
	}
	check := func(when string) {
		t.Helper()
		var sources *api.Tracker
		since := time.Now()
		wait.For(t, "four seconds of samples "+when, func() bool {
			top, err := h.api.Top(t.Context())
			if err != nil || len(top.Sampled) != 3 {
				return false
			}
			sources = &top.Sampled[0]
			return sources.Key == "src" && sources.Interval >= 4 && top.Time.Add(-time.Duration(sources.Interval*float64(time.Second))).After(since) && sources.Sample.Packets > 5000 && len(sources.Flows) >= len(f.Sources)
		})
		within, known := 0, 0
		for _, flow := range sources.Flows {
			if flow.Key == "::" || strings.HasPrefix(flow.Key, "fe80:") {
				continue // of the kernel: neighbour discovery, and reports of groups before it has an address
			}
			known++
			share := f.Rates[f.Index(t, flow.Key)] / all
			if share*sources.Packets >= flow.LeastPackets && share*sources.Packets <= flow.MostPackets {
				within++
			}
			if flow.LeastPackets >= flow.Packets || flow.MostPackets <= flow.Packets || flow.Within() > 0.5 {
				t.Errorf("%s: bounds of %+v", when, flow)
			}
		}
		t.Logf("%s: %d records, one in %.1f, of %.0f packets a second; %d of %d sources are within their bounds of 95 %%",
			when, sources.Sample.Packets, sources.Sample.OneIn, sources.Packets, within, known)
		if known != len(f.Sources) || within < known*8/10 {
			t.Errorf("%s: %d of %d sources are within their bounds, of %d", when, within, known, len(f.Sources))
		}
	}
	check("at first")
	h.configure(h.B.Iface, "lists: {jail: {}}\nmalformed: drop\n")
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("after a reload")
	d.kill()
	d = h.start(releases[0])
	check("after kill -9")
	h.configure(h.B.Iface, "lists: {jail: {}}\nsamples: false\n")
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "no samples", func() bool {
		top, err := h.api.Top(t.Context())
		return err == nil && len(top.Sampled) == 0
	})
	d.stop()
}
