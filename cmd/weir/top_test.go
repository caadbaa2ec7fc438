package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/api/server"
	"weir/control/observe/events"
)

// served is the answer of a daemon.
type served struct {
	*fakeDaemon // not asked
	top         *api.Top
	weights     *api.Weights
	traced      *api.Traced
	events      func(api.Events) <-chan events.Event
}

func (s served) Top() *api.Top         { return s.top }
func (s served) Weights() *api.Weights { return s.weights }

func (s served) Trace(context.Context, api.TraceQuestion) (*api.Traced, error) {
	if s.traced == nil {
		return nil, api.ErrNoDigests
	}
	return s.traced, nil
}

func (s served) Subscribe(asked api.Events) (server.Subscription, error) {
	return subscription(s.events(asked)), nil
}

// subscription has the events of a channel.
type subscription <-chan events.Event

func (s subscription) Next(ctx context.Context) (api.Event, bool) {
	select {
	case e, ok := <-s:
		return e.API(), ok
	case <-ctx.Done():
		return api.Event{}, false
	}
}

func (s subscription) Ready() bool { return len(s) > 0 }

func (subscription) Close() {}

// serving serves it until the test ends, and returns the socket's path.
func serving(t *testing.T, s served) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weir.sock")
	l, err := server.ListenGroup(path, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l, server.Handler(s), slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return path
}

func busy() *api.Top {
	return &api.Top{
		Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Version: "1.2", Interfaces: []string{"eth0"}, Uptime: 60, Interval: 1,
		Packets: 1.24e6, Bytes: 426e6, Dropped: 312e3,
		Reasons: []api.ReasonRate{{Reason: "blocked", Packets: 312e3, Bytes: 20e6, Total: 7e6, Drops: true}},
		Trackers: []api.Tracker{
			{Key: "src", Unit: "packets", Flows: []api.Flow{{Key: "192.0.2.1", Packets: 5e5, Share: 0.4, Heavy: true, Reasons: []string{}, Lists: []string{}}}},
			{Key: "dst", Unit: "packets", Flows: []api.Flow{{Key: "> 198.51.100.7", Packets: 1e6, Share: 0.8, Reasons: []string{}, Lists: []string{}}}},
		},
		Filter: api.Filter{Entries: 9, Mode: "exact", Lists: []api.ListRate{{Name: "feed", Packets: 312e3, Total: 7e6}}},
	}
}

func TestTop(t *testing.T) {
	socket := serving(t, served{top: busy()})
	for _, c := range []struct {
		args []string
		want []string
		not  string
	}{
		{nil, []string{"eth0  exact  9 entries", "1.24 Mpps", "blocked", "[src]", "• 192.0.2.1", "500 kpps", "feed"}, "198.51.100.7"},
		{[]string{"--once", "--by", "dst"}, []string{"[dst]", "198.51.100.7", "1.00 Mpps"}, "192.0.2.1"},
		{[]string{"--by", "reason"}, []string{"[reason]", "7.00M"}, "198.51.100.7"},
	} {
		code, out, log := weir(t, "", append([]string{"top", "--socket", socket}, c.args...)...)
		if code != exitOK || log != "" || strings.Contains(out, c.not) || strings.Contains(out, "\x1b") {
			t.Errorf("%v: exit code %d\n%s%s", c.args, code, out, log)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%v: no %q in\n%s", c.args, want, out)
			}
		}
		for line := range strings.Lines(out) {
			if len([]rune(line)) > pageWidth+1 {
				t.Errorf("%v: a line of %d characters: %s", c.args, len([]rune(line)), line)
			}
		}
	}
}

func TestTopJSON(t *testing.T) {
	socket := serving(t, served{top: busy()})
	code, out, log := weir(t, "", "top", "--json", "--socket", socket)
	var got api.Top
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || log != "" {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, out, log)
	}
	if got.Packets != 1.24e6 || len(got.Trackers) != 2 || !reflect.DeepEqual(got.Trackers[0].Flows, busy().Trackers[0].Flows) {
		t.Errorf("%s", out)
	}
	for _, name := range []string{"packets_per_second", "dropped_per_second", "reasons", "trackers", "predicted_false_positive_rate", "until"} {
		if strings.Contains(out, `"`+name+`"`) != (name != "until") {
			t.Errorf("%q in %s", name, out)
		}
	}
}

func TestTopHeavy(t *testing.T) {
	traffic := busy()
	traffic.Trackers[0].Flows = append(traffic.Trackers[0].Flows, api.Flow{Key: "192.0.2.2"}, api.Flow{Key: "192.0.2.3", Heavy: true})
	traffic.Trackers[1].Flows[0].Heavy = true
	traffic.Trackers = append(traffic.Trackers,
		api.Tracker{Key: "src", Unit: "ports", Flows: []api.Flow{{Key: "192.0.2.3", Heavy: true}, {Key: "192.0.2.4", Heavy: true}}},
		api.Tracker{Key: "src/24", Unit: "packets", Flows: []api.Flow{{Key: "192.0.3.0/24", Heavy: true}}},
	)
	d := &fakeDaemon{}
	socket := serving(t, served{fakeDaemon: d, top: traffic})
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--heavy"}, exitOK, "192.0.2.1\n192.0.2.3\n192.0.2.4\n192.0.3.0/24\n"},
		{[]string{"--heavy", "--by", "src/24"}, exitOK, "192.0.3.0/24\n"},
		{[]string{"--heavy", "--by", "dst"}, exitOK, "> 198.51.100.7\n"},
		{[]string{"--heavy", "--by", "flow"}, exitFailure, ""},
		{[]string{"--heavy", "--by", "reason"}, exitUsage, ""},
		{[]string{"--heavy", "--json"}, exitUsage, ""},
		{[]string{"--json", "--by", "flow"}, exitFailure, ""},
	} {
		code, out, log := weir(t, "", append([]string{"top", "--socket", socket}, c.args...)...)
		if code != c.code || out != c.want {
			t.Errorf("%v: exit code %d\n%s%s", c.args, code, out, log)
		}
		if code != exitOK {
			continue
		}
		if code, _, log := weir(t, out, "block", "-", "--ttl", "1h", "--socket", socket); code != exitOK {
			t.Errorf("%v: exit code %d\n%s", c.args, code, log)
		}
	}
	// In a flood of forged sources the largest are the clients.
	for i, tracker := range traffic.Trackers {
		if tracker.Key == "src" {
			traffic.Trackers[i].Spread, traffic.Trackers[i].Heavy = 11234, 2
		}
	}
	code, out, log := weir(t, "", "top", "--heavy", "--by", "src", "--socket", socket)
	if code != exitFailure || out != "192.0.3.0/24\n" || !strings.Contains(log, "no source stands out among about 11000, the largest has ") || !strings.Contains(log, "--force") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if code, out, log := weir(t, "", "top", "--heavy", "--force", "--socket", socket); code != exitOK || out != "192.0.2.1\n192.0.2.3\n192.0.2.4\n192.0.3.0/24\n" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	if _, out, _ := weir(t, "", "top", "--once", "--socket", socket); !strings.Contains(out, "no source stands out among about 11000") {
		t.Errorf("the page does not say that none stands out:\n%s", out)
	}
	var got api.Top
	_, out, _ = weir(t, "", "top", "--json", "--by", "dst", "--socket", socket)
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Trackers) != 1 || got.Trackers[0].Key != "dst" {
		t.Errorf("%v\n%s", err, out)
	}
}

func learned() *api.Weights {
	without := 1.3e-3
	found := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &api.Weights{
		Base: 8, HalfLife: 30, Predicted: 1e-4, Uniform: 1.2e-3, Without: &without,
		FalsePositives: api.FalsePositives{Rate: new(9.1e-5), Low: new(7.6e-5), High: new(1.1e-4), Packets: 1234567},
		Spared:         1493, Dropped: 112, Refused: 2,
		Elements: []api.Weight{
			{Element: "192.0.2.2", Dropped: 1, K: 24, Found: found},
			{Element: "192.0.2.1", Dropped: 37, K: 24, Found: found},
			{Element: "2001:db8::/32", Dropped: 2, K: 24, Found: found},
		},
	}
}

func TestWeights(t *testing.T) {
	socket := serving(t, served{weights: learned()})
	code, out, log := weir(t, "", "weights", "--limit", "2", "--socket", socket)
	const want = `counted       9.1e-05 of 1,234,567 unlisted packets were dropped by mistake, 7.6e-05 to 0.00011
  without     0.0013, had there been no weights
predicted     0.0001 of unlisted packets
uniform       0.0012 with 8 bits for all, 12.0 times as many
saved         1,493 unlisted packets from being dropped
dropped       112 unlisted packets
  no room     2 of them, of elements for which the table of weights was full
half-life     30s
hot elements  3

element         dropped  k_e  since
192.0.2.1            37   24  2026-01-02 03:04:05
2001:db8::/32         2   24  2026-01-02 03:04:05
and 1 more: --limit 0 shows all
`
	if code != exitOK || log != "" || out != want {
		t.Errorf("exit code %d\n%s%s\nwant\n%s", code, out, log, want)
	}
	for _, c := range []struct {
		args []string
		want int
	}{
		{nil, 3}, {[]string{"--limit", "0"}, 3}, {[]string{"--limit", "1"}, 1}, {[]string{"--limit", "9"}, 3},
	} {
		code, out, log := weir(t, "", append([]string{"weights", "--json", "--socket", socket}, c.args...)...)
		var got api.Weights
		if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitOK || log != "" {
			t.Fatalf("%v: exit code %d, %v\n%s%s", c.args, code, err, out, log)
		}
		if len(got.Elements) != c.want || got.Elements[0].Element != "192.0.2.1" {
			t.Errorf("%v: %+v", c.args, got.Elements)
		}
	}
}

func TestNothingLearnedYet(t *testing.T) {
	socket := serving(t, served{weights: &api.Weights{Base: 8, Uniform: 1.2e-3}})
	code, out, _ := weir(t, "", "weights", "--socket", socket)
	if code != exitOK || !strings.Contains(out, "nothing yet") || strings.Contains(out, "element  ") || strings.Contains(out, "Inf") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

func TestTopAndWeightsFailures(t *testing.T) {
	nothing := serving(t, served{})
	some := serving(t, served{top: busy()})
	missing := filepath.Join(t.TempDir(), "none.sock")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"top", "--socket", missing}, exitFailure, "the daemon is not running: " + missing + " does not exist; start `weir run`"},
		{[]string{"weights", "--socket", missing}, exitFailure, "the daemon is not running"},
		{[]string{"top", "--socket", nothing}, exitFailure, "the daemon has just started"},
		{[]string{"weights", "--socket", nothing}, exitFailure, "learns no weights"},
		{[]string{"top", "--by", "flow", "--socket", some}, exitFailure, "no tracker by flow, only src, dst, reason"},
		{[]string{"top", "--by", "colour"}, exitUsage, "colour"},
		{[]string{"top", "--interval", "1ms"}, exitUsage, "100ms"},
		{[]string{"top", "stray"}, exitUsage, "stray"},
		{[]string{"weights", "--limit", "-1"}, exitUsage, "--limit"},
		{[]string{"weights", "stray"}, exitUsage, "stray"},
	} {
		code, out, log := weir(t, "", c.args...)
		if code != c.code || out != "" || !strings.HasPrefix(log, "weir: ") || !strings.Contains(log, c.want) {
			t.Errorf("weir %s: exit code %d\n%s%s", strings.Join(c.args, " "), code, out, log)
		}
	}
}

// The keys b and u send the SSH session with the change, and show its outcome.
func TestTopBlocksAndLifts(t *testing.T) {
	const connection = "203.0.113.9 50000 192.0.2.1 22"
	t.Setenv("SSH_CONNECTION", connection)
	d := &fakeDaemon{}
	r := rows{client.Dial(serveDaemon(t, d))}
	for _, c := range []struct {
		queues, monitor bool
		block, lift     string
	}{
		{false, false, "192.0.2.2 is blocked for an hour, in list manual", "192.0.2.2 has no block in list manual: Enter shows what lists it"},
		{false, true, "monitor mode is on: nothing is dropped; 192.0.2.2 is blocked for an hour, in list manual", "192.0.2.2 has no block in list manual: Enter shows what lists it"},
		{true, true, "192.0.2.2: queued for list manual, to be blocked for an hour", "192.0.2.2: queued for list manual, to lift its block"},
	} {
		d.queues, d.status.Monitor = c.queues, c.monitor
		block, err := r.Block(t.Context(), "192.0.2.2")
		if err != nil || block != c.block {
			t.Errorf("%+v: %q, %v", c, block, err)
		}
		if d.changed.SSH != connection || d.changed.TTL != 3600 {
			t.Errorf("block: %+v", d.changed)
		}
		lift, err := r.Lift(t.Context(), "192.0.2.2")
		if err != nil || lift != c.lift {
			t.Errorf("%+v: %q, %v", c, lift, err)
		}
		if d.changed.SSH != connection || !d.changed.Remove {
			t.Errorf("lift: %+v", d.changed)
		}
	}
}
