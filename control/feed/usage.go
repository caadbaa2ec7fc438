package feed

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// UsageInterval is how often the usage of decisions is reported to CrowdSec: as often
// as its own bouncers do.
const UsageInterval = 30 * time.Minute

// ErrNoUsage says that a local API of CrowdSec takes no reports of usage: those before
// 1.6.3 do not.
var ErrNoUsage = errors.New("CrowdSec's local API takes no reports of usage: it is older than 1.6.3")

// Usage counts the packets that a list of CrowdSec's decisions met in a time.
type Usage struct {
	Began, Ended time.Time
	Started      time.Time // when the daemon did
	Processed    uint64    // packets
	Dropped      uint64    // packets of listed sources; 0 where that is unknown
	DroppedBytes uint64
}

// usageItem is a number in a report.
type usageItem struct {
	Name   string            `json:"name"`
	Unit   string            `json:"unit"`
	Value  uint64            `json:"value"`
	Labels map[string]string `json:"labels,omitempty"`
}

// items returns the numbers of a report. Packets are counted by list, not by decision:
// they have an origin only if all decisions have the same.
func (u Usage) items(d decisions) []usageItem {
	type label struct{ origin, family string }
	active := make(map[label]uint64)
	origins := make(map[string]bool)
	for value, one := range d {
		family := "ipv4"
		if p := prefix(value); p.IsValid() && p.Addr().Is6() {
			family = "ipv6"
		}
		active[label{one.Origin, family}]++
		origins[one.Origin] = true
	}
	items := []usageItem{{Name: "processed", Unit: "packet", Value: u.Processed}}
	var by map[string]string
	if len(origins) == 1 {
		for origin := range origins {
			by = map[string]string{"origin": origin}
		}
	}
	items = append(items, usageItem{"dropped", "packet", u.Dropped, by}, usageItem{"dropped", "byte", u.DroppedBytes, by})
	for _, l := range slices.SortedFunc(maps.Keys(active), func(a, b label) int {
		return cmp.Or(cmp.Compare(a.origin, b.origin), cmp.Compare(a.family, b.family))
	}) {
		items = append(items, usageItem{"active_decisions", "ip", active[l], map[string]string{"origin": l.origin, "ip_type": l.family}})
	}
	return items
}

// ReportUsage reports the usage of CrowdSec's decisions to the local APIs that they
// come from. It fails with ErrNoUsage where these are too old.
func (f *Feed) ReportUsage(ctx context.Context, u Usage) error {
	var errs []error
	for s, c := range f.loaded() {
		errs = append(errs, s.report(ctx, f.Config.Version, u, u.items(c.decisions)))
	}
	return errors.Join(errs...)
}

func (s *source) report(ctx context.Context, version string, u Usage, items []usageItem) error {
	type object map[string]any
	name, _, _ := strings.Cut(s.agent, "/")
	body, err := json.Marshal(object{"log_processors": []object{}, "remediation_components": []object{{
		"type": name, "version": cmp.Or(version, "unknown"), "os": object{"name": "linux", "version": ""}, "feature_flags": []string{},
		"utc_startup_timestamp": u.Started.Unix(),
		"metrics": []object{{
			"meta":  object{"window_size_seconds": int64(u.Ended.Sub(u.Began).Seconds()), "utc_now_timestamp": u.Ended.Unix()},
			"items": items,
		}},
	}}})
	if err != nil {
		return err
	}
	at, err := url.Parse(string(s.URL))
	if err != nil {
		return errors.New("malformed URL") // not err, which contains it
	}
	at = at.JoinPath("v1", "usage-metrics")
	at.RawQuery = ""
	ctx, cancel := context.WithTimeout(ctx, DefaultStallTimeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), bytes.NewReader(body))
	if err != nil {
		return errors.New("malformed URL")
	}
	q.Header.Set("User-Agent", s.agent)
	for name, value := range s.Headers {
		q.Header.Set(name, value)
	}
	q.Header.Set("Content-Type", "application/json")
	if err := s.lockAttempt(ctx); err != nil {
		return fmt.Errorf("%s: report usage: %w", s.name, err)
	}
	current, err := s.connection()
	s.unlockAttempt()
	if err != nil {
		return err
	}
	client := *current
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	a, err := client.Do(q)
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if err != nil {
		return fmt.Errorf("%s: report usage: %w", s.name, err)
	}
	defer a.Body.Close()
	switch _, _ = io.CopyN(io.Discard, a.Body, 4<<10); { // so that the connection is used again
	case a.StatusCode/100 == 2:
		return nil
	case a.StatusCode == http.StatusNotFound, a.StatusCode == http.StatusMethodNotAllowed:
		return fmt.Errorf("%s: %w", s.name, ErrNoUsage)
	}
	return fmt.Errorf("%s: report usage: the server answered %q", s.name, a.Status)
}
