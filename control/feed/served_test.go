package feed_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"weir/control/feed"
	"weir/control/list"
	"weir/tests/long"
	"weir/tests/seed"
)

// opened opens a feed of a URL.
func opened(t *testing.T, url, format string, headers map[string]string) *feed.Feed {
	t.Helper()
	f, err := feed.ParseFormat(format)
	if err != nil {
		t.Fatal(err)
	}
	spec := feed.DefaultSpec(feed.Source{URL: feed.URL(url), Headers: headers})
	spec.Format = f
	fd, err := feed.Open(t.Context(), feed.Config{Name: "served", Spec: spec, Version: "dev"}, "")
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// contents returns the addresses of a set.
func contents(t *testing.T, s *list.Set) spans {
	t.Helper()
	var texts []string
	for k := range s.All() {
		texts = append(texts, k.String())
	}
	return parsed(texts...)
}

// TestDecisions follows a random stream of CrowdSec's local API, by its description: bans of
// addresses and ranges are entries until they are deleted, and no other decisions.
func TestDecisions(t *testing.T) {
	t.Parallel()
	type decision struct {
		ID        int    `json:"id"`
		Origin    string `json:"origin"`
		Type      string `json:"type"`
		Scope     string `json:"scope"`
		Value     string `json:"value"`
		Duration  string `json:"duration"`
		Scenario  string `json:"scenario"`
		Simulated bool   `json:"simulated,omitempty"`
	}
	p := &places{Rand: seed.New(t)}
	var answer []byte
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) }))
	defer s.Close()
	for range long.Or(3, 100) {
		f := opened(t, s.URL, "crowdsec", map[string]string{"X-Api-Key": "key"})
		active := make(map[string]decision)
		for step := range 6 {
			var added, deleted []decision
			for value, d := range active {
				if p.IntN(4) == 0 && len(active) > 2 {
					d.Duration = "-1s"
					deleted = append(deleted, d)
					delete(active, value)
				}
			}
			for range 1 + p.IntN(20) {
				d := decision{ID: p.n + 1, Origin: pick(p, "cscli", "crowdsec", "CAPI", "lists"), Type: "ban", Scope: pick(p, "Ip", "ip"), Value: p.address(), Duration: pick(p, "3h59m59.9s", "24h", "167h1m2.345s"), Scenario: pick(p, "crowdsecurity/ssh-bf", "manual 'ban' from \"x\"", "")}
				switch p.IntN(8) {
				case 0:
					d.Scope, d.Value = pick(p, "Range", "range"), p.v4()+"0/24"
				case 1:
					d.Scope, d.Value = "Range", p.v6()+":/64"
				case 2:
					d.Scope, d.Value = pick(p, "Country", "AS", "username"), pick(p, "FR", "64496", "192.0.2.99")
				case 3:
					d.Type = pick(p, "captcha", "throttle", "log")
				case 4:
					d.Simulated = true
				default:
				}
				added = append(added, d)
				if d.Type == "ban" && slices.Contains([]string{"ip", "range"}, strings.ToLower(d.Scope)) && !d.Simulated {
					active[d.Value] = d
				}
			}
			var err error
			if answer, err = json.Marshal(map[string][]decision{"new": added, "deleted": deleted}); err != nil {
				t.Fatal(err)
			}
			o, err := f.Fetch(t.Context())
			if err != nil || o[0].Result == feed.Failed {
				t.Fatalf("%v %+v\n%s", err, o, answer)
			}
			var texts []string
			for value := range active {
				texts = append(texts, value)
			}
			if got, want := contents(t, f.Contents()), parsed(texts...); !slices.Equal(got, want) {
				t.Fatalf("step %d: too much: %v, missing: %v\n%s", step, got.without(want), want.without(got), answer)
			}
		}
	}
}
