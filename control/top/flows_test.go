package top

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

// dropping returns data with what is dropped of each flow.
func dropping(monitor bool) *api.Top {
	half, all, none := 50e3, 25e3, 0.0
	t := sample()
	t.Monitor = monitor
	t.Problems = []string{"interface eth1 is gone", "list feed: source x FAILED (status)"}
	t.Flood = &api.Flood{Kind: api.FloodRuled, Destination: "203.0.113.10", Rules: []api.FloodRule{{Name: "NTP answers"}}}
	t.Trackers = t.Trackers[:1]
	t.Trackers[0].Flows = []api.Flow{
		{Key: "192.0.2.70", Packets: 100e3, Bytes: 60e6, Dropped: &half, Reasons: []string{"blocked"}, Lists: []string{"feed"}},
		{Key: "192.0.2.8", Packets: 25e3, Bytes: 10e6, Dropped: &all, Reasons: []string{"rate-limited"}, State: api.RateLimited},
		{Key: "192.0.2.9", Packets: 90e3, Bytes: 70e6, Estimate: true, LeastPackets: 80e3, Dropped: &none},
	}
	t.Sources = &[]api.DropRate{
		{Source: "192.0.2.70", Reason: "blocked", List: "feed", Packets: 50e3, Least: 50e3},
		{Source: "192.0.2.8", Reason: "rate-limited", Packets: 25e3, Least: 20e3},
	}
	return t
}

func expect(t *testing.T, page string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(strings.Join(strings.Fields(page), " "), want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

// Passed and dropped packets are apart, with reason and list; estimates are marked;
// monitor mode and failures are in sight.
func TestDroppedOfFlows(t *testing.T) {
	page, err := Page(dropping(false), "src", "", 120)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, page, "passed dropped", "50.0 kpps 50.0 kpps", "blocked, feed", "0 pps 25.0 kpps", "≤90.0 kpps -", "why dropped",
		"interface eth1 is gone", "list feed: source x FAILED")
	if page, err = Page(dropping(true), "src", "", 120); err != nil {
		t.Fatal(err)
	}
	expect(t, page, "packets would drop", "100 kpps 50.0 kpps", "would be dropped", "MONITOR MODE: nothing is dropped", "FLOOD of NTP answers to 203.0.113.10: weir flood")
	if strings.Contains(page, "why dropped") {
		t.Errorf("in monitor mode\n%s", page)
	}
	if page, err = Page(dropping(false), ByDropped, "", 80); err != nil {
		t.Fatal(err)
	}
	expect(t, page, "192.0.2.70 ━", "50.0 kpps", "blocked, feed", "≤25.0 kpps")
	none := dropping(false)
	none.Trackers = nil
	if page, err = Page(none, "", "", 80); err != nil {
		t.Fatal(err)
	}
	expect(t, page, "[dropped]", "192.0.2.70", "trackers: [{key: src}]")
}

func TestFilterAndOrder(t *testing.T) {
	top := dropping(false)
	v := view{cursor: -1, by: "src"}
	names := func() (names []string) {
		for _, f := range v.flows(&top.Trackers[0]) {
			names = append(names, strings.TrimPrefix(f.Key, "192.0.2."))
		}
		return names
	}
	for _, c := range []struct{ keys, want string }{
		{"", "70 9 8"}, {"o", "70 8 9"}, {"o", "8 9 70"}, {"o", "70 9 8"},
	} {
		if c.keys != "" {
			v.press(c.keys, top)
		}
		if got := strings.Join(names(), " "); got != c.want {
			t.Errorf("order %d: %s, want %s", v.order, got, c.want)
		}
	}
	v.press("/", top)
	for _, key := range []string{"F", "e", "e", "x", "backspace", "d", "enter"} {
		v.typed(key)
	}
	if got := strings.Join(names(), " "); v.filter != "Feed" || v.typing || got != "70" {
		t.Errorf("filter %q: %s", v.filter, got)
	}
	if v.press("esc", top); v.filter != "" {
		t.Errorf("Esc leaves filter %q", v.filter)
	}
}

// Keys explain, block and lift the row of the cursor; a change asks first, and shows
// its result or the refusal.
func TestRowKeys(t *testing.T) {
	rows := &fakeRows{}
	s := &session{
		now: dropping(false), ctx: t.Context(), view: view{cursor: -1, live: true, every: time.Second}, Options: Options{Rows: rows},
	}
	run := func(keys ...string) {
		for _, key := range keys {
			if cmd := s.press(key); cmd != nil {
				s.Update(cmd())
			}
		}
	}
	screen := func() string { return text(s.screen(s.now, 100, 30)) }
	run("down", "down", "enter")
	expect(t, screen(), "it is listed", "by feed", "any key returns")
	run("x")
	if s.read != nil || s.by == ByDropped {
		t.Error("a key that ends the page does more")
	}
	run("b")
	expect(t, screen(), "block 192.0.2.9 for an hour? y/n")
	run("n")
	expect(t, screen(), "nothing has changed")
	run("b", "y")
	expect(t, screen(), "done")
	run("up", "u", "y")
	expect(t, screen(), "refused: it is the gateway")
	if got, want := strings.Join(rows.asked, ", "), "explain 192.0.2.9, block 192.0.2.9, lift 192.0.2.70"; got != want {
		t.Errorf("asked for %s, want %s", got, want)
	}
	s.by = ByReason
	run("b")
	expect(t, screen(), "no row")
	s.trouble = "the daemon is not running"
	expect(t, screen(), "NO NEWS")
}

// fakeRows records what is asked for.
type fakeRows struct{ asked []string }

func (r *fakeRows) Explain(_ context.Context, entry string) (string, error) {
	r.asked = append(r.asked, "explain "+entry)
	return "it is listed\nby feed\n", nil
}

func (r *fakeRows) Block(_ context.Context, entry string) (string, error) {
	r.asked = append(r.asked, "block "+entry)
	return "done", nil
}

func (r *fakeRows) Lift(_ context.Context, entry string) (string, error) {
	r.asked = append(r.asked, "lift "+entry)
	return "", errors.New("refused: it is the gateway")
}
