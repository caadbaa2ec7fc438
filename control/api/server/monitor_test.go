package server

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"weir/control/api/internal/contract"
)

func TestSetMonitor(t *testing.T) {
	c := &control{}
	got, err := dialControl(t, c).SetMonitor(t.Context(), true, 90*time.Second)
	if err != nil || !got.Monitor || got.Override == nil || len(c.asked) != 1 || c.asked[0] != "monitor true 90" {
		t.Errorf("%+v, %v, asked %v", got, err, c.asked)
	}
	for body, want := range map[string]string{
		`{}`:                                 "on is missing",
		`{"on": false, "for_seconds": 1}`:    "to be switched on",
		`{"on": true, "for_seconds": -1}`:    "for_seconds -1",
		`{"on": true, "for_seconds": 1e-10}`: "for_seconds 1e-10",
		`{"on": true, "uid": 0}`:             `unknown field "uid"`,
	} {
		r := httptest.NewRecorder()
		Handler(daemon{source{}, c}).ServeHTTP(r, httptest.NewRequest("POST", contract.MonitorPath, strings.NewReader(body)))
		if r.Code != 400 || !strings.Contains(r.Body.String(), strings.ReplaceAll(want, `"`, `\"`)) {
			t.Errorf("%s: %d %s, want %q", body, r.Code, r.Body, want)
		}
	}
}
