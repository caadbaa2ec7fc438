package hub

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"weir/control/api"
)

// The console of a hub is there where it is configured, and ends with the hub.
func TestConsole(t *testing.T) {
	f := newFleet(t)
	f.start("")
	if _, err := f.hub.OpenConsole(t.Context(), api.ConsoleRequest{}); !errors.Is(err, api.ErrNoConsole) || f.hub.Console() != nil {
		t.Errorf("without a console: %v", err)
	}
	f.stop()
	f.start("console: {listen: 127.0.0.1:9481}\nlists: {drop: {}}")
	f.enroll("edge-1")
	f.change(api.Change{Action: api.Block, List: "drop", Entries: []string{"192.0.2.1"}})
	opened, err := f.hub.OpenConsole(t.Context(), api.ConsoleRequest{ReadOnly: true})
	if err != nil || !strings.HasPrefix(opened.URL, "http://127.0.0.1:9481/open/") {
		t.Fatalf("%s: %v", opened.URL, err)
	}
	w := httptest.NewRecorder()
	f.hub.Console().ServeHTTP(w, httptest.NewRequest(http.MethodGet, opened.URL, nil))
	path := regexp.MustCompile(`content="0;url=([^"]+)"`).FindStringSubmatch(w.Body.String())
	if w.Code != http.StatusOK || path == nil {
		t.Fatalf("status %d\n%s", w.Code, w.Body)
	}
	q := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:9481"+path[1], nil)
	q.AddCookie(w.Result().Cookies()[0])
	w = httptest.NewRecorder()
	f.hub.Console().ServeHTTP(w, q)
	page := w.Body.String()
	for _, want := range []string{">edge-1<", ">unseen<", ">drop<", ">block<", "No list has sources"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if ended, err := f.hub.EndConsole(t.Context()); err != nil || ended.Sessions != 1 {
		t.Errorf("%+v, %v", ended, err)
	}
}
