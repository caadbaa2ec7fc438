package server

import (
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"weir/control/api"
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
		Handler(daemon{source{}, c}).ServeHTTP(r, httptest.NewRequest("POST", api.MonitorPath, strings.NewReader(body)))
		if r.Code != 400 || !strings.Contains(r.Body.String(), strings.ReplaceAll(want, `"`, `\"`)) {
			t.Errorf("%s: %d %s, want %q", body, r.Code, r.Body, want)
		}
	}
}

func TestSetPolice(t *testing.T) {
	c := &control{}
	asked := api.PoliceChange{Interface: "eth0", Netns: "blue", Rate: "3kpps", For: 90, Force: true, SSH: "192.0.2.9 50000 192.0.2.1 22"}
	got, err := dialControl(t, c).SetPolice(t.Context(), asked)
	if asked.UID = uint32(os.Getuid()); err != nil || !got.Changed || got.Override.By != fmt.Sprint(asked) || !got.Override.Until.Equal(time.Unix(100, 0)) {
		t.Errorf("%+v, %v", got, err)
	}
	for body, want := range map[string]string{
		`{"rate": "3kpps"}`:     "want an interface, a source or a pattern",
		`{"interface": "eth0"}`: "either a rate",
		`{"interface": "eth0", "rate": "3kpps", "off": true}`:        "either a rate",
		`{"interface": "eth0", "off": true, "for_seconds": 9}`:       "goes with a rate",
		`{"interface": "eth0", "rate": "1pps", "for_seconds": 1e-9}`: "for_seconds 1e-09",
		`{"interface": "eth0", "rate": "1pps", "uid": 0}`:            "unknown field",
	} {
		r := httptest.NewRecorder()
		Handler(daemon{source{}, c}).ServeHTTP(r, httptest.NewRequest("POST", api.PolicePath, strings.NewReader(body)))
		if r.Code != 400 || !strings.Contains(r.Body.String(), want) {
			t.Errorf("%s: %d %s, want %q", body, r.Code, r.Body, want)
		}
	}
}
