package metrics

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"
)

// fakeHub is a hub with fixed answers.
type fakeHub HubSnapshot

func (f *fakeHub) Metrics() HubSnapshot { return HubSnapshot(*f) }

// wholeHub is a snapshot that has every metric.
func wholeHub(t testing.TB) HubSnapshot {
	return HubSnapshot{
		Version: "1.2.3", Connected: true, Failing: true, Contested: true, Catalog: time.Unix(1_800_000_000, 250e6),
		Published: HubPublished{Catalogs: 9, Deltas: 5, Snapshots: 2}, Failures: 3, Connections: new(4), Misuse: &HubMisuse{Violations: 3, Twice: 1, Slow: 2},
		Expiring: 2, StoreBytes: 1 << 20, StreamBytes: 1 << 21, DiskBytes: 1 << 40, DiskFree: 1 << 39,
		Nodes: map[string]int{"current": 7, "behind": 1}, NotEnforcing: 4, Passed: 1e6, Dropped: 20, IgnoredReports: 6,
		Asking: 1, Answered: 11, Unanswered: 12, RefusedQuestions: 13,
		Lists: []HubList{
			{Name: "drop", Action: "block", Entries: 100, Manual: 1, Epoch: 7, Version: 5, Published: 4, Lag: 3, Unrecorded: true, Refused: true, Trial: true, Overdue: true, Conversed: new(12), Conversing: 3, Rollout: &HubRollout{Waiting: 60,
				State: "halted", Wave: 1, Waves: 2, Nodes: 8, Confirmed: 6, Looked: 1000, WouldDrop: 0.25, Conversed: new(7),
			}},
			{Name: "allow", Action: "allow", Epoch: 7, Version: 1, Published: 1},
		},
		Feeds: []Feed{good(t), bad(t)},
	}
}

func scrapeHub(t testing.TB) string {
	s := fakeHub(wholeHub(t))
	return scrapeHandler(t, func(log *slog.Logger) http.Handler { return HubHandler(&s, log) })
}

func TestScrapeHub(t *testing.T) {
	body := scrapeHub(t)
	for line := range strings.Lines(`weir_hub_connected 1
weir_hub_publishing_failing 1
weir_hub_contested 1
weir_hub_last_catalog_timestamp_seconds 1.80000000025e+09
weir_hub_published_messages_total{kind="delta"} 5
weir_hub_broker_connections 4
weir_hub_certificates_expiring 2
weir_hub_disk_free_bytes 5.49755813888e+11
weir_hub_nodes{state="behind"} 1
weir_hub_nodes_not_enforcing 4
weir_hub_node_packets_total{verdict="drop"} 20
weir_hub_questions_total{outcome="failed"} 12
weir_hub_list_entries{action="block",list="drop"} 100
weir_hub_list_version{list="drop"} 5
weir_hub_list_published_version{list="drop"} 4
weir_hub_list_lag_versions{list="drop"} 3
weir_hub_list_lag_versions{list="allow"} 0
weir_hub_list_unrecorded{list="drop"} 1
weir_hub_list_refused{list="drop"} 1
weir_hub_list_trial{list="drop"} 1
weir_hub_list_trial_overdue{list="drop"} 1
weir_hub_list_collateral_addresses{list="drop"} 12
weir_hub_list_collateral_nodes{list="drop"} 3
weir_hub_rollout_collateral_addresses{list="drop"} 7
weir_hub_rollout_info{list="drop",state="halted"} 1
weir_hub_rollout_would_drop_ratio{list="drop"} 0.25
`) {
		if !strings.Contains(body, "\n"+line) {
			t.Errorf("there is no %s", line)
		}
	}
	for _, part := range []string{`weir_build_info{go_version="go1.`, `weir_feed_entries{list="good",source="/`, `weir_feed_failing{failure="status",list="bad",source="http://`, "\ngo_goroutines "} {
		if !strings.Contains(body, part) {
			t.Errorf("there is no %s", part)
		}
	}
	for _, absent := range []string{"key=1", `weir_hub_rollout_info{list="allow"`, `weir_hub_list_trial{list="allow"`, `weir_hub_list_collateral_addresses{list="allow"`, "weir_generation"} {
		if strings.Contains(body, absent) {
			t.Errorf("there should not be: %s", absent)
		}
	}
}
