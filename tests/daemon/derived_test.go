package daemon

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"weir/control/api"
	"weir/filter/key"
)

// explained returns what weir explain says of the packets of a source.
func (h *host) explained(source string) string {
	h.t.Helper()
	out, code := h.command("explain", "--socket", h.path("weir.sock"), source)
	if code != 0 {
		h.t.Fatalf("explain %s: %d: %s", source, code, out)
	}
	return out
}

// An IPv6 address blocks its /64, and as many addresses as aggregate says block the prefix around
// them, as long as they are there: added by commands, by files, by CrowdSec; through expiry,
// reload, restart and kill -9. What is allowed, failsafe or the host's own has no such prefix.
func TestDerivedPrefixes(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const none = `{"new":[],"deleted":[]}`
	decisions := `{"new":[{"duration":"1h","id":1,"origin":"cscli","scenario":"x","scope":"Ip","type":"ban","value":"2001:db8:c::1"}],"deleted":[]}`
	lapi := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("startup") == "true" {
			fmt.Fprint(w, decisions)
		} else {
			fmt.Fprint(w, none)
		}
	}))
	t.Cleanup(lapi.Close)
	feed := h.write("feed.txt", []byte("192.0.2.1\n192.0.2.2\n2001:db8:f::1\n"))
	at := 3
	configure := func() {
		h.configure(h.B.Iface, `failsafe: {prefixes: ['2001:db8:5::1']}
lists:
  bans: {prefix6: 64, aggregate: {ipv4: 24, ipv6: 48, at: %d}, sources: [{file: %s}], max_shrink: 100%%}
  crowd: {prefix6: 64, format: crowdsec, sources: [{url: %s, headers: {X-Api-Key: key}}]}
  friends: {action: allow}
`, at, feed, lapi.URL)
	}
	configure()
	a := func(s string) key.Tuple { return from(netip.MustParseAddr(s)) }
	load := startTraffic(h.t, h.Lab, nil, froms(netip.MustParseAddr("10.9.0.1")))
	d := h.start(releases[0])
	h.settled("bans")
	h.settled("crowd")
	says := func(source, want string) {
		t.Helper()
		if got := h.explained(source); !strings.Contains(got, want) {
			t.Errorf("explain %s: want %q in\n%s", source, want, got)
		}
	}

	h.mustChange("bans", false, "2001:db8:1::5")
	load.expect("the /64 of an address", false, a("2001:db8:1::5"), a("2001:db8:1::99"), a("2001:db8:1:0:ffff::1"))
	load.expect("the next /64", true, a("2001:db8:1:1::5"))
	says("2001:db8:1::99", "prefix6 of 2001:db8:1::5")
	load.expect("the /64 of a decision of CrowdSec", false, a("2001:db8:c::1"), a("2001:db8:c::2"))
	says("2001:db8:c::2", "prefix6 of 2001:db8:c::1")
	load.expect("beside what a file lists", true, a("2001:db8:f::2"))

	// What must pass has no such prefix, and gets rid of one that is there.
	own := h.B.IPv6.Next().Next().String()
	if _, err := h.api.Change(t.Context(), api.Change{Action: api.Allow, List: "friends", Entries: []string{"2001:db8:2::7"}}); err != nil {
		t.Fatal(err)
	}
	h.mustChange("bans", false, "2001:db8:2::8", "2001:db8:5::2", own)
	load.expect("the addresses alone", false, a("2001:db8:2::8"), a("2001:db8:5::2"))
	load.expect("their neighbours", true, a("2001:db8:2::7"), a("2001:db8:2::9"), a("2001:db8:5::1"), a("2001:db8:5::3"))
	says("2001:db8:2::8", "2001:db8:2::/64 is not listed: it covers 2001:db8:2::7, which list friends allows")
	says("2001:db8:5::2", "it covers the failsafe prefix 2001:db8:5::1/128")
	says(own, "it covers this host's address")
	if _, err := h.api.Change(t.Context(), api.Change{Action: api.Allow, List: "friends", Entries: []string{"2001:db8:1::77"}}); err != nil {
		t.Fatal(err)
	}
	load.expect("beside an address that is allowed now", true, a("2001:db8:1::99"), a("2001:db8:1::77"))
	if left := h.list("bans").LeftOut; len(left) != 4 {
		t.Errorf("left out: %+v", left)
	}
	if _, err := h.api.Change(t.Context(), api.Change{Remove: true, Action: api.Allow, List: "friends", Entries: []string{"2001:db8:1::77"}}); err != nil {
		t.Fatal(err)
	}
	load.expect("beside an address that was allowed", false, a("2001:db8:1::99"))
	h.mustChange("bans", true, "2001:db8:1::5")
	load.expect("after unblock of the address", true, a("2001:db8:1::5"), a("2001:db8:1::99"))

	// Aggregates, of files and commands together.
	load.expect("two of three", true, a("192.0.2.200"))
	h.mustChange("bans", false, "192.0.2.3")
	load.expect("three of three", false, a("192.0.2.200"), a("192.0.2.3"), a("192.0.2.1"))
	load.expect("the next /24", true, a("192.0.3.1"))
	says("192.0.2.200", "aggregate of 3 entries")
	h.mustChange("bans", false, "2001:db8:7:1::1", "2001:db8:7:1::2", "2001:db8:7:2::1")
	load.expect("two prefixes of prefix6", true, a("2001:db8:7:9::1"))
	h.mustChange("bans", false, "2001:db8:7:3::1")
	load.expect("three of them", false, a("2001:db8:7:9::1"))
	says("2001:db8:7:9::1", "aggregate of 3 entries")
	h.write("feed.txt", []byte("192.0.2.2\n"))
	h.refresh("bans", 1)
	load.expect("one has left the file", true, a("192.0.2.200"), a("192.0.2.1"))
	h.write("feed.txt", []byte("192.0.2.2\n192.0.2.4\n"))
	h.refresh("bans", 2)
	load.expect("another has come", false, a("192.0.2.200"))
	if _, err := h.api.Change(t.Context(), api.Change{Action: api.Block, List: "bans", TTL: 1, Entries: []string{"198.51.100.1", "198.51.100.2", "198.51.100.3"}}); err != nil {
		t.Fatal(err)
	}
	if e, err := h.api.Explain(t.Context(), "198.51.100.9"); err != nil || len(e.Answers[0].Matches) > 0 && e.Answers[0].Matches[0].Derived.Of != 3 {
		t.Errorf("%+v, %v", e, err)
	}
	h.eventually("expired with its members", func() bool {
		e, err := h.api.Explain(t.Context(), "198.51.100.9")
		return err == nil && !e.Drops()
	})
	load.expect("after they have expired", true, a("198.51.100.1"), a("198.51.100.9"))

	// Reload, restart, kill -9.
	both := func(what string, aggregated bool) {
		t.Helper()
		load.expect(what+": aggregate", !aggregated, a("192.0.2.200"), a("2001:db8:7:9::1"))
		load.expect(what+": prefix6", false, a("2001:db8:7:1::99"), a("2001:db8:c::2"))
		load.expect(what+": allowed", true, a("2001:db8:2::7"), a("2001:db8:2::9"))
	}
	both("before", true)
	at = 4
	configure()
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	both("after a reload, at: 4", false)
	at = 3
	configure()
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	both("after a reload", true)
	d.kill()
	both("without a daemon", true)
	d = h.start(releases[0])
	both("after kill -9", true)
	d.stop()
	h.start(releases[0])
	both("after a restart", true)

	if _, err := h.api.Flush(t.Context(), "bans", api.FlushChange{}); err != nil {
		t.Fatal(err)
	}
	h.write("feed.txt", []byte("# nothing\n"))
	if r, err := h.api.Accept(t.Context(), "bans"); err != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	load.expect("after all have left", true, a("192.0.2.200"), a("192.0.2.2"), a("2001:db8:7:9::1"), a("2001:db8:7:1::99"))
	if l := h.list("bans"); l.Derived+l.Entries != 0 {
		t.Errorf("an empty list: %+v", l)
	}
	var hits uint64
	h.eventually("counted for the list", func() bool {
		if n := h.list("bans").Packets; n != nil {
			hits = *n
		}
		return hits > 0
	})
}
