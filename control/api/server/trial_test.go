package server

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

func TestEnforce(t *testing.T) {
	c := &control{}
	of := dialControl(t, c)
	asked := api.EnforceChange{Off: true, After: 90, Force: true, SSH: "192.0.2.9 50000 192.0.2.1 22"}
	got, err := of.Enforce(t.Context(), "a/b ü", asked)
	if err != nil {
		t.Fatal(err)
	}
	asked.UID = uint32(os.Getuid())
	if at := time.Unix(100, 0); got.List != "a/b ü" || !got.Changed || got.Trial == nil || got.Trial.Enforced || !got.Trial.Configured ||
		!got.Trial.EnforcedAt.Equal(at) || got.Trial.By != fmt.Sprint(asked) {
		t.Errorf("got %+v, %+v", got, got.Trial)
	}
	for _, wrong := range []api.EnforceChange{{After: -1}, {After: 1e-9}, {After: 1e12}, {SSH: strings.Repeat("x", 300)}} {
		var bad *api.BadRequest
		if _, err := of.Enforce(t.Context(), "a", wrong); !errors.As(err, &bad) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	for body, want := range map[string]string{
		"":                        "empty",
		`{"on": true}`:            `unknown field "on"`,
		`{"after_seconds": -1}`:   "after_seconds -1",
		`{"after_seconds": "1h"}`: "a number should be",
	} {
		r := httptest.NewRecorder()
		Handler(daemon{source{}, c}).ServeHTTP(r, httptest.NewRequest("POST", "/v1/lists/a/enforce", strings.NewReader(body)))
		if r.Code != 400 || !strings.Contains(r.Body.String(), strings.ReplaceAll(want, `"`, `\"`)) {
			t.Errorf("%s: %d %s, want %q", body, r.Code, r.Body, want)
		}
	}
}
