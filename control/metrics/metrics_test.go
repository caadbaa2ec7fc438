package metrics

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"weir/control/api"
	"weir/control/feed"
	"weir/control/observe/traffic"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/control/stages"
	"weir/loader"
	"weir/loader/netif"
	"weir/tests/must"
)

// fake is a daemon with fixed answers.
type fake Snapshot

func (f *fake) Metrics() Snapshot { return Snapshot(*f) }

// ofAllStages returns a sample of each family of stages, of interfaces or of the host.
func ofAllStages(host bool) (all []stage.Sample) {
	for _, f := range stages.Families {
		if f.Host == host {
			all = append(all, stage.Sample{Family: f, Of: f.Label, Values: f.Labels, Value: 7})
		}
	}
	return all
}

// whole is a snapshot that has every metric.
func whole(t testing.TB) Snapshot {
	at := time.Unix(1_800_000_000, 250e6)
	s := Snapshot{
		Version: "1.2.3", Unsaved: true, Floods: api.Floods{Sampled: true, Now: &api.Flood{Kind: api.FloodRuled, Dropped: 0.25}}, Mode: "approx", Generation: 7, MapBytes: 4096, Hot: 5,
		Interfaces: []traffic.Interface{
			{Target: netif.Target{Iface: "eth0"}, XDP: "native", Unpinned: true, Penalties: new(3), Lost: 12, NotIP: loader.EtherTypes{ByType: map[uint16]loader.Counter{0x88e7: {Packets: 3}, 0: {Packets: 2}}, Others: loader.Counter{Packets: 1}}, Stages: ofAllStages(false), Counts: []traffic.Count{
				{Reason: "clean", Counter: loader.Counter{Packets: 10, Bytes: 600}},
				{Reason: "blocked", Drops: true, Counter: loader.Counter{Packets: 1 << 40, Bytes: 1 << 50}},
			}},
			{Target: netif.Target{Iface: "eth0", Netns: "lab"}},
		},
		Lists: []List{{Name: "drop", Entries: 12, BadLines: 1, Refused: true, Trial: true, Collateral: new(3)}, {Name: "ours", Allow: true, Entries: 2}},
		Hits:  map[string]loader.Counter{"drop": {Packets: 4, Bytes: 5}, "drop, by hand": {Packets: 2}, "": {Packets: 6, Bytes: 7}},
		Origins: map[string]Origin{
			"drop": {"drop", FromSources}, "drop, by hand": {"drop", Manual}, "ours": {"ours", Manual},
		},
		Policed:   []Policed{{Interface: "eth0", Rate: 3000, Until: at}, {Interface: "eth1", Netns: "blue", Rate: 125e3, Bytes: true}},
		Stages:    ofAllStages(true),
		Predicted: 1e-4, Weighted: new(2e-5), Counted: api.FalsePositives{Rate: new(3e-5), Low: new(2.5e-5), High: new(3.5e-5), Packets: 1e6},
		Reloads: Reloads{Done: 3, Refused: 1, Last: at, LastDone: at.Add(-time.Hour), Failed: true},
		Config:  &Reloads{Done: 3, Last: at, LastDone: at},
	}
	for _, d := range []time.Duration{time.Millisecond, 90 * time.Millisecond, time.Hour} {
		s.Loads.Observe(d)
	}
	s.Notifications = []Notifications{{Target: "pager", Delivered: 9, Failed: 1, Discarded: 2, Attempts: 5, Waiting: 3, Failing: true}}
	s.History = History{Errors: 3, Lost: 2, Damaged: 1}
	s.Exports = []Export{{Collector: "flows", Sent: 100, Lost: 7, Waiting: 2, Failing: true}}
	s.Feeds = []Feed{good(t), bad(t)}
	s.Fleet = &Fleet{Connected: true, Confirmed: at, Refused: 2}
	return s
}

// good is a feed that has been read, bad one that never was.
func good(t testing.TB) *feed.Feed {
	file := filepath.Join(t.TempDir(), "feed.txt")
	must.Write(t, file, "192.0.2.1\n192.0.2.2\n")
	c := feed.Config{Name: "good", Spec: feed.DefaultSpec(feed.Source{File: feed.Path(file)})}
	c.Interval = quantity.Duration(90 * time.Second)
	return fetched(t, c)
}

func bad(t testing.TB) *feed.Feed {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	one, other := feed.URL(server.URL+"/x?key=1"), feed.URL(server.URL+"/x?key=2")
	return fetched(t, feed.Config{Name: "bad", Spec: feed.DefaultSpec(feed.Source{URL: one}, feed.Source{URL: other})})
}

func fetched(t testing.TB, c feed.Config) *feed.Feed {
	f, err := feed.Open(t.Context(), c, t.TempDir())
	if err == nil {
		_, err = f.Fetch(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// scrape asks over HTTP as Prometheus does, and fails where the log has anything
// to say.
func scrape(t testing.TB, s Source) string {
	t.Helper()
	return scrapeHandler(t, func(log *slog.Logger) http.Handler { return Handler(s, log) })
}

func scrapeHandler(t testing.TB, handler func(*slog.Logger) http.Handler) string {
	t.Helper()
	var log bytes.Buffer
	server := httptest.NewServer(handler(slog.New(slog.NewTextHandler(&log, nil))))
	defer server.Close()
	r, err := http.Get(server.URL + Path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK || log.Len() > 0 {
		t.Fatalf("%s, %v\n%s%s", r.Status, err, body, &log)
	}
	return string(body)
}

func scrapeWhole(t testing.TB) string {
	s := fake(whole(t))
	return scrape(t, &s)
}

func TestScrape(t *testing.T) {
	body := scrapeWhole(t)
	for line := range strings.Lines(`weir_bytes_total{direction="in",interface="eth0",netns="",reason="blocked",verdict="drop"} 1.125899906842624e+15
weir_packets_total{direction="in",interface="eth0",netns="",reason="clean",verdict="pass"} 10
weir_interface_attached{direction="in",interface="eth0",netns=""} 1
weir_interface_attached{direction="in",interface="eth0",netns="lab"} 0
weir_interface_unpinned{direction="in",interface="eth0",netns=""} 1
weir_interface_unpinned{direction="in",interface="eth0",netns="lab"} 0
weir_state_unsaved 1
weir_flood{kind="rules"} 1
weir_flood{kind="users"} 0
weir_flood_dropped_ratio 0.25
weir_interface_info{direction="in",interface="eth0",netns="",xdp="native"} 1
weir_penalties{interface="eth0",netns=""} 3
weir_penalties_refused_total 7
weir_penalties_replaced_total 7
weir_list_packets_total{list="drop",origin="sources"} 4
weir_list_packets_total{list="drop",origin="manual"} 2
weir_list_bytes_total{list="unattributed",origin=""} 7
weir_list_entries{action="block",list="drop",origin="sources"} 12
weir_list_entries{action="allow",list="ours",origin="manual"} 2
weir_list_bad_lines{action="block",list="drop"} 1
weir_list_collateral_addresses{action="block",list="drop"} 3
weir_list_trial{list="drop"} 1
weir_filter_info{mode="approx"} 1
weir_monitor 0
weir_generation 7
weir_map_bytes 4096
weir_hot_elements 5
weir_false_positive_predicted_ratio 0.0001
weir_false_positive_weighted_ratio 2e-05
weir_false_positive_ratio 3e-05
weir_false_positive_low_ratio 2.5e-05
weir_false_positive_high_ratio 3.5e-05
weir_false_positive_packets 1e+06
weir_load_duration_seconds_bucket{le="0.001"} 1
weir_load_duration_seconds_bucket{le="0.1"} 2
weir_load_duration_seconds_bucket{le="300"} 2
weir_load_duration_seconds_bucket{le="+Inf"} 3
weir_load_duration_seconds_sum 3600.091
weir_update_duration_seconds_count 0
weir_reloads_total{outcome="done"} 3
weir_reloads_total{outcome="refused"} 1
weir_last_reload_successful 0
weir_last_reload_timestamp_seconds 1.80000000025e+09
weir_last_reload_success_timestamp_seconds 1.79999640025e+09
weir_tracker_packets_total{action="action",key="key",tracker="tracker",unit="unit"} 7
weir_tracker_denied_packets_total{action="action",key="key",tracker="tracker",unit="unit"} 7
weir_tracker_flows{action="action",key="key",tracker="tracker",unit="unit"} 7
weir_tracker_heavy_hitters{action="action",key="key",tracker="tracker",unit="unit"} 7
weir_config_last_reload_successful 1
weir_config_last_reload_success_timestamp_seconds 1.80000000025e+09
weir_events_lost_total{direction="in",interface="eth0",netns=""} 12
weir_inner_headers_total{direction="in",interface="eth0",netns="",tunnel="tunnel"} 7
weir_inner_listed_total{direction="in",interface="eth0",netns="",tunnel="tunnel"} 7
weir_policed_bytes_total{interface="eth0",netns="",outcome="outcome"} 7
weir_first_seen_window_flows{interface="eth0",netns=""} 7
weir_not_ip_packets_total{direction="in",ethertype="0x88e7",interface="eth0",netns=""} 3
weir_not_ip_packets_total{direction="in",ethertype="802.3",interface="eth0",netns=""} 2
weir_not_ip_packets_total{direction="in",ethertype="other",interface="eth0",netns=""} 1
weir_list_refused{action="block",list="drop"} 1
weir_list_refused{action="allow",list="ours"} 0
promhttp_metric_handler_errors_total{cause="gathering"} 0
`) {
		if !strings.Contains(body, "\n"+line) {
			t.Errorf("there is no %s", line)
		}
	}
	for _, part := range []string{
		`weir_build_info{go_version="go1.`, "\ngo_goroutines ", "\nprocess_resident_memory_bytes ",
		`weir_feed_entries{list="good",source="/`, `/feed.txt"} 2` + "\n",
		`/feed.txt"} 90` + "\n",
		`weir_feed_last_success_timestamp_seconds{list="bad",source="http://127.0.0.1:`,
		`/x"} 0` + "\n", `/x#2"} 1` + "\n", // distinguished without their secrets
		`weir_feed_failing{failure="status",list="bad",source="http://`,
	} {
		if !strings.Contains(body, part) {
			t.Errorf("there is no %s", part)
		}
	}
	if strings.Contains(body, "key=1") || strings.Contains(body, `weir_feed_failing{failure="status",list="good"`) {
		t.Errorf("there should not be:\n%s", body)
	}
}

func TestLint(t *testing.T) {
	for _, body := range []string{scrapeWhole(t), scrapeHub(t)} {
		problems, err := promlint.New(strings.NewReader(body)).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			if strings.HasPrefix(p.Metric, "weir_") {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
	}
}

// A weir that has just begun has nothing that is wrong.
func TestEmpty(t *testing.T) {
	body := scrape(t, &fake{})
	for _, absent := range []string{"weir_config", "weir_false_positive_ratio", "weir_feed", "weir_tracker"} {
		if strings.Contains(body, absent) {
			t.Errorf("there is a metric %s…", absent)
		}
	}
}

// Names may be anything that a file system takes.
func TestNames(t *testing.T) {
	s := fake{Hits: map[string]loader.Counter{"bad\xff": {Packets: 1}, "good\n\"": {Packets: 2},
		"draws\x1b[2J\u202e": {Packets: 3}, `draws\x1b[2J\u202e`: {Packets: 4}}}
	body := scrape(t, &s)
	for _, line := range []string{`weir_list_packets_total{list="bad\\xff",origin="sources"} 1`, `weir_list_packets_total{list="good\n\"",origin="sources"} 2`,
		`weir_list_packets_total{list="draws\\x1b[2J\\u202e",origin="sources"} 3`, `weir_list_packets_total{list="draws\\\\x1b[2J\\\\u202e",origin="sources"} 4`} {
		if !strings.Contains(body, line) {
			t.Errorf("there is no %s", line)
		}
	}
}

func TestHandler(t *testing.T) {
	h := Handler(&fake{}, slog.New(slog.DiscardHandler))
	for request, want := range map[string]int{"GET /metrics": 200, "HEAD /metrics": 200, "POST /metrics": 405, "GET /": 404, "GET /debug/pprof/": 404} {
		method, path, _ := strings.Cut(request, " ")
		r := httptest.NewRecorder()
		if h.ServeHTTP(r, httptest.NewRequest(method, path, nil)); r.Code != want {
			t.Errorf("%s: status %d, want %d", request, r.Code, want)
		}
	}
}

// changing is a daemon whose metrics change while it is asked.
type changing struct {
	mu sync.Mutex
	n  uint64
	f  *feed.Feed
}

func (c *changing) Metrics() Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	s := Snapshot{Hits: map[string]loader.Counter{"drop": {Packets: c.n}}, Feeds: []Feed{c.f}}
	s.Updates.Observe(time.Duration(c.n) * time.Millisecond)
	return s
}

func TestConcurrent(t *testing.T) {
	s := &changing{f: good(t)}
	h := Handler(s, slog.New(slog.DiscardHandler))
	var all sync.WaitGroup
	for range maxScrapes {
		all.Go(func() {
			for range 20 {
				r := httptest.NewRecorder()
				h.ServeHTTP(r, httptest.NewRequest(http.MethodGet, Path, nil))
				if r.Code != http.StatusOK || !strings.Contains(r.Body.String(), "weir_list_packets_total") {
					t.Errorf("status %d: %s", r.Code, r.Body)
				}
				if _, err := s.f.Fetch(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// Every metric that is described is there, or other tests would miss it.
func TestWhole(t *testing.T) {
	s, hub := fake(whole(t)), fakeHub(wholeHub(t))
	for _, c := range []prometheus.Collector{collector{&s}, hubCollector{&hub}} {
		testWhole(t, c)
	}
}

func testWhole(t *testing.T, c prometheus.Collector) {
	metrics, described := make(chan prometheus.Metric, 1<<10), make(chan *prometheus.Desc, 1<<10)
	c.Collect(metrics)
	c.Describe(described)
	close(metrics)
	close(described)
	var seen []string
	for m := range metrics {
		seen = append(seen, m.Desc().String())
	}
	var errs []error
	for d := range described {
		if !slices.Contains(seen, d.String()) {
			errs = append(errs, errors.New(d.String()))
		}
	}
	if len(errs) > 0 {
		t.Errorf("a whole snapshot lacks:\n%v", errors.Join(errs...))
	}
}
