package feed

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// The usage of decisions is reported as the local API of CrowdSec 1.6.3 and later takes
// it; an older one is recognised.
func TestReportUsage(t *testing.T) {
	var got struct {
		Components []struct {
			Type, Version string
			Started       int64 `json:"utc_startup_timestamp"`
			Metrics       []struct {
				Meta struct {
					Window int64 `json:"window_size_seconds"`
					Now    int64 `json:"utc_now_timestamp"`
				}
				Items []usageItem
			}
		} `json:"remediation_components"`
	}
	status := http.StatusCreated
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Api-Key") != "key" || r.Header.Get("User-Agent") != "crowdsec-weir-bouncer/v1":
			t.Errorf("%v", r.Header)
		case r.Method == http.MethodPost && r.URL.Path == "/v1/usage-metrics" && r.URL.RawQuery == "":
			if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
				t.Error(err)
			}
			w.WriteHeader(status)
		default:
			fmt.Fprint(w, decided("["+ban("192.0.2.1", "1h")+","+ban("2001:db8::1", "1h")+"]", "null"))
		}
	})
	src := from(s)
	src.URL, src.Headers = URL(s.URL+"?origins=cscli"), map[string]string{"X-Api-Key": "key"}
	c := named("crowdsec", Format{Kind: CrowdSec}, src)
	c.Version = "v1"
	f := mustOpen(t, c, "")
	fetch(t, f)
	now := time.Unix(1_800_000_000, 0)
	u := Usage{Began: now.Add(-time.Minute), Ended: now, Started: now.Add(-time.Hour), Processed: 1000, Dropped: 7, DroppedBytes: 420}
	if err := f.ReportUsage(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if text, want := fmt.Sprint(got), "{[{crowdsec-weir-bouncer v1 1799996400 [{{60 1800000000} [{processed packet 1000 map[]} "+
		"{dropped packet 7 map[origin:cscli]} {dropped byte 420 map[origin:cscli]} "+
		"{active_decisions ip 1 map[ip_type:ipv4 origin:cscli]} {active_decisions ip 1 map[ip_type:ipv6 origin:cscli]}]}]}]}"; text != want {
		t.Errorf("reported\n%s, want\n%s", text, want)
	}
	for status = range map[int]bool{http.StatusNotFound: true, http.StatusMethodNotAllowed: true} {
		if err := f.ReportUsage(t.Context(), u); !errors.Is(err, ErrNoUsage) {
			t.Errorf("%d: %v", status, err)
		}
	}
	status = http.StatusInternalServerError
	if err := f.ReportUsage(t.Context(), u); err == nil || errors.Is(err, ErrNoUsage) {
		t.Error(err)
	}
}
