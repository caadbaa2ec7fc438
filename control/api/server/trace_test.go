package server

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
)

// What is no question is refused, and says why.
func TestTraceRefuses(t *testing.T) {
	const about = `{"data":"RQA=","from":"2026-01-01T00:00:00Z","to":"2026-01-01T00:00:01Z"}`
	for body, want := range map[string]string{
		``:                         "empty",
		`{}`:                       "0 packets",
		`{"packets":[]}`:           "0 packets",
		`{"packets":[{}]}`:         "packet 1: it is looked for",
		`{"packets":[{"data":1}]}`: "packets",
		`{"packets":[` + about + `,{"data":"","from":"2026-01-01T00:00:00Z","to":"2025-01-01T00:00:00Z"}]}`: "packet 2",
		`{"packets":[` + strings.Repeat(about+",", api.MaxTraced) + about + `]}`:                            "257 packets",
		`{"pockets":[]}`: "unknown field",
	} {
		w := httptest.NewRecorder()
		Handler(daemon{source{traced: &api.Traced{}}, nil}).ServeHTTP(w, httptest.NewRequest("POST", api.TracePath, strings.NewReader(body)))
		if w.Code != 400 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%.40s: %d %s, want %q", body, w.Code, w.Body, want)
		}
	}
	w := httptest.NewRecorder()
	long := `{"packets":[{"data":"` + strings.Repeat("A", maxTracing) + `"}]}`
	Handler(daemon{source{traced: &api.Traced{}}, nil}).ServeHTTP(w, httptest.NewRequest("POST", api.TracePath, strings.NewReader(long)))
	if w.Code != 413 || !strings.Contains(w.Body.String(), "more than 4 MiB: send less") {
		t.Errorf("%d bytes: %d %s", len(long), w.Code, w.Body)
	}
}

func TestTrace(t *testing.T) {
	path := socket(t)
	now := time.Now().Round(0)
	serve(t, path, source{traced: &api.Traced{Host: "edge", Interfaces: []api.TracedInterface{{
		Name: "eth0", Packets: []api.TracedPacket{{Slices: []api.TracedSlice{{Start: now, Length: 1, Chance: 0.01}}, Chance: 0.1}},
	}}}})
	asked := api.TraceQuestion{Packets: []api.TraceAbout{{Data: []byte{0x45}, From: now, To: now}}}
	got, err := client.Dial(path).Trace(t.Context(), asked)
	if err != nil || got.Host != "edge" || !got.Interfaces[0].Packets[0].Slices[0].Start.Equal(now) {
		t.Errorf("%+v, %v", got, err)
	}
	var bad *api.BadRequest
	if _, err := client.Dial(path).Trace(t.Context(), api.TraceQuestion{}); !errors.As(err, &bad) {
		t.Errorf("no packets: %v", err)
	}
}
