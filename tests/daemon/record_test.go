package daemon

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/control/api"
	"weir/tests/ipfix"
	"weir/tests/sflow"
	"weir/tests/wait"
)

// sink receives datagrams.
type sink struct {
	*net.UDPConn
	mu  sync.Mutex
	all [][]byte
}

func newSink(t *testing.T) *sink {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s := &sink{UDPConn: c}
	go func() {
		for b := make([]byte, 1<<16); ; {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.all = append(s.all, slices.Clone(b[:n]))
			s.mu.Unlock()
		}
	}()
	return s
}

func (s *sink) received() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// ipfixLists returns the packets of messages by their lists, and those whose record names a source.
func ipfixLists(t *testing.T, messages [][]byte) (lists map[string]uint64, sources map[netip.Addr]string) {
	t.Helper()
	lists, sources = make(map[string]uint64), make(map[netip.Addr]string)
	r := ipfix.NewReader()
	for _, m := range messages {
		if err := r.Read(m); err != nil {
			t.Fatal(err)
		}
	}
	for _, record := range r.Records {
		if record.Domain != 1 || len(record.Texts) != 2 { // reason and list
			continue
		}
		lists[record.Texts[1]] += record.Packets
		if record.Source.IsValid() && !record.Source.IsUnspecified() && record.Texts[0] != "not listed" {
			sources[record.Source] = record.Texts[1]
		}
	}
	return lists, sources
}

// Wherever a list is named for packets that were dropped, it is the same one for as many packets: by
// weir lists, the metrics, the history, who was dropped, what lists are worth, IPFIX, sFlow and explain;
// with a policer, a list on trial, manual entries, and an allow list beside it.
func TestEveryPlaceNamesTheList(t *testing.T) {
	t.Parallel()
	flows, samples := newSink(t), newSink(t)
	h := newHost(t)
	h.write("one.txt", []byte("198.51.100.0/24\n2001:db8:1::/48\n"))
	h.write("two.txt", []byte("203.0.113.0/28\n2001:db8:2::/48\n"))
	h.write("trial.txt", []byte("192.0.2.0/28\n"))
	h.write("spared.txt", []byte("198.51.100.64/26\n"))
	h.write("weir.yaml", fmt.Appendf(nil, `
interfaces: [{name: %q, netns: %s, police: 100Gbit/s}]
pins: %s
state_dir: %s
api: {socket: %s}
lists:
  one: {sources: [{file: %s}], interval: 24h, exclude_private: false}
  two: {sources: [{file: %s}], interval: 24h, exclude_private: false}
  tried: {sources: [{file: %s}], interval: 24h, exclude_private: false, enforce: false}
  spared: {action: allow, sources: [{file: %s}], interval: 24h}
export:
  interval: 1s
  collectors:
    flows: {ipfix: "udp://%s", templates: 1s}
    samples: {sflow: "udp://%s", sampling: 1}
`, h.B.Iface, h.B.Netns, h.pins, h.path("state"), h.path("weir.sock"), h.path("one.txt"), h.path("two.txt"), h.path("trial.txt"), h.path("spared.txt"),
		flows.LocalAddr(), samples.LocalAddr()))
	d := h.start(releases[0])
	h.mustChange("", false, "192.0.2.128/30")

	// From which sources, and the list that drops, or would drop, their packets.
	sources := make(map[netip.Addr]string)
	for n := range byte(6) {
		sources[netip.AddrFrom4([4]byte{198, 51, 100, n})] = "one"
		sources[netip.AddrFrom4([4]byte{198, 51, 100, 64 + n})] = ""
		sources[netip.AddrFrom4([4]byte{203, 0, 113, n})] = "two"
		sources[netip.AddrFrom4([4]byte{192, 0, 2, n})] = "tried"
		sources[netip.AddrFrom4([4]byte{192, 0, 2, 128 + n})] = map[bool]string{true: "manual"}[n < 4]
		sources[netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%x", n+1))] = "one"
		sources[netip.MustParseAddr(fmt.Sprintf("2001:db8:2::%x", n+1))] = "two"
		sources[netip.MustParseAddr(fmt.Sprintf("2001:db8:3::%x", n+1))] = ""
	}
	want, dropped := make(map[string]uint64), uint64(0)
	tx := h.A.Sender(t)
	const each = 40
	for src, name := range sources {
		frame := frameOf(h.Lab, probeKind, from(src))
		for range each {
			if err := tx.SendAll(frame); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(20 * time.Millisecond) // more than 10,000 in a second are not all in samples
		if name != "" {
			want[name] += each
			if name != "tried" {
				dropped += each
			}
		}
	}
	h.untilDropped(t, dropped)

	same := func(where string, of func() map[string]uint64, lists map[string]uint64) {
		t.Helper()
		for deadline := wait.Deadline(); ; time.Sleep(50 * time.Millisecond) {
			got := of()
			delete(got, "")
			maps.DeleteFunc(got, func(_ string, n uint64) bool { return n == 0 })
			if maps.Equal(got, lists) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v, want %v", where, got, lists)
			}
		}
	}
	enforced := maps.Clone(want)
	delete(enforced, "tried")
	same("weir lists", func() map[string]uint64 {
		got := make(map[string]uint64)
		for name := range want {
			got[name] = *h.list(name).Packets
		}
		return got
	}, want)
	same("the metrics", func() map[string]uint64 {
		got := make(map[string]uint64)
		for name, n := range h.metrics(t) {
			if of, is := strings.CutPrefix(name, `weir_list_packets_total{list="`); is {
				list, _, _ := strings.Cut(of, `"`)
				got[list] += uint64(n)
			}
		}
		delete(got, "spared")
		return got
	}, want)
	same("the history", func() map[string]uint64 {
		got := make(map[string]uint64)
		for _, l := range h.history().Total.Lists {
			got[l.List] = l.Packets
		}
		return got
	}, want)
	same("who was dropped", func() map[string]uint64 {
		got := make(map[string]uint64)
		a, err := h.api.Drops(t.Context(), api.DropsQuestion{By: "list", Last: time.Hour, Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range a.Drops {
			got[row.Key] += row.Packets
		}
		return got
	}, want)
	same("what lists are worth", func() map[string]uint64 {
		got := make(map[string]uint64)
		a, err := h.api.Worth(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range a.Lists {
			if got[l.Name] = l.AddressPackets; l.Packets != nil && *l.Packets != want[l.Name] && l.Name != "spared" {
				t.Errorf("%s has matched %d packets by what it is worth, want %d", l.Name, *l.Packets, want[l.Name])
			}
		}
		// Of a source that is met at the end of an interval, these few packets are said to be of others.
		by, err := h.api.Drops(t.Context(), api.DropsQuestion{By: api.BySource, Last: time.Hour, Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		for name, n := range want {
			if few := n - min(n, got[name]); few <= by.Other {
				got[name] += few
				by.Other -= few
			}
		}
		return got
	}, want)
	named := make(map[netip.Addr]string)
	same("IPFIX", func() (got map[string]uint64) {
		got, named = ipfixLists(t, flows.received())
		return got
	}, want)
	for src, name := range named {
		if name != sources[src] {
			t.Errorf("IPFIX: packets of %v by list %q, want %q", src, name, sources[src])
		}
	}
	same("sFlow", func() map[string]uint64 { return sflow.Lists(samples.received()...) }, enforced)
	for src, name := range sources {
		a, err := h.api.Explain(t.Context(), src.String())
		if err != nil {
			t.Fatal(err)
		}
		if list := a.Answers[0].List; list != name && !(name == "" && list == "spared") {
			t.Errorf("explain: %v by list %q, want %q", src, list, name)
		}
	}
	d.stop()
}
