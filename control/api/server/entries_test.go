package server

import (
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"weir/control/api"
)

func TestEntriesQuestion(t *testing.T) {
	now, uid := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), uint32(1000)
	c := &control{entries: api.Entries{
		Entries: []api.Entry{{List: "manual", Action: api.Block, Entry: "192.0.2.1", Manual: true, Added: now, Expires: &now, Reason: "scans", UID: &uid, User: "me"}},
		Next:    "next",
	}}
	client := dialControl(t, c)
	for _, asked := range []api.EntriesQuestion{
		{Limit: api.DefaultPage},
		{List: "a/b ü", Expiring: 90 * time.Second, Manual: true, After: "next", Limit: api.MaxPage},
	} {
		got, err := client.Entries(t.Context(), asked)
		if err != nil || !reflect.DeepEqual(*got, c.entries) {
			t.Errorf("%+v: got %+v, %v", asked, got, err)
		}
		if last := c.asked[len(c.asked)-1]; last != asked {
			t.Errorf("asked for %+v, want %+v", last, asked)
		}
	}
	c.entries = api.Entries{}
	w := httptest.NewRecorder()
	Handler(daemon{source{}, c}).ServeHTTP(w, httptest.NewRequest("GET", api.EntriesPath, nil))
	if want := `{"entries":[]}` + "\n"; w.Code != 200 || w.Body.String() != want {
		t.Errorf("got %d %s, want %s", w.Code, w.Body, want)
	}
}

func TestEntriesRefused(t *testing.T) {
	c := &control{}
	for _, query := range []string{
		"limit=0", "limit=10001", "limit=x", "limit=-1", "expiring=0", "expiring=-1", "expiring=NaN", "expiring=1e99", "expiring=x",
		"manual=2", "lists=x",
	} {
		w := httptest.NewRecorder()
		Handler(daemon{source{}, c}).ServeHTTP(w, httptest.NewRequest("GET", api.EntriesPath+"?"+query, nil))
		if w.Code != 400 || w.Body.Len() > 300 || len(c.asked) > 0 {
			t.Errorf("%.40s: got %d %s", query, w.Code, w.Body)
		}
	}
}

// Flush sends the caller's identity, as Reload does.
func TestFlush(t *testing.T) {
	c := &control{}
	asked := api.FlushChange{Force: true, SSH: "192.0.2.9 50000 192.0.2.1 22"}
	of := dialControl(t, c)
	got, err := of.Flush(t.Context(), "a/b ü", asked)
	if want := (&api.Changed{List: "a/b ü", Removed: 3}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if want := []any{"flush", "a/b ü", asked, api.Caller{UID: uint32(os.Getuid()), Process: api.OwnProcess()}}; !reflect.DeepEqual(c.asked[0], want) {
		t.Errorf("asked for %v, want %v", c.asked[0], want)
	}
	var bad *api.BadRequest
	if _, err := of.Flush(t.Context(), "a", api.FlushChange{SSH: strings.Repeat("x", 300)}); !errors.As(err, &bad) {
		t.Errorf("%v", err)
	}
	for body, want := range map[string]string{
		"":                             "",
		"{}":                           "",
		`{"force": true}`:              "",
		`{"forced": true}`:             `unknown field "forced"`,
		`{"ssh_connection": "\u0007"}`: "want two addresses with ports",
	} {
		w := httptest.NewRecorder()
		Handler(daemon{source{}, c}).ServeHTTP(w, httptest.NewRequest("POST", "/v1/lists/x/flush", strings.NewReader(body)))
		if (w.Code == 400) != (want != "") || !strings.Contains(w.Body.String(), strings.ReplaceAll(want, `"`, `\"`)) {
			t.Errorf("%s: got %d %s, want %q", body, w.Code, w.Body, want)
		}
	}
	c.err = fmt.Errorf("%w: x", api.ErrNoList)
	w := httptest.NewRecorder()
	Handler(daemon{source{}, c}).ServeHTTP(w, httptest.NewRequest("POST", "/v1/lists/x/flush", nil))
	if w.Code != 404 {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

// text is written in pieces, and fails after them.
type text struct {
	pieces int
	err    error
}

func (x text) WriteTo(w io.Writer) (n int64, err error) {
	for range x.pieces {
		m, err := io.WriteString(w, strings.Repeat("192.0.2.1\n", 10_000))
		n += int64(m)
		if err != nil {
			return n, err
		}
	}
	return n, x.err
}

func TestExport(t *testing.T) {
	c := &control{export: api.Export{Text: text{10, nil}, LeftOut: 7}}
	client := dialControl(t, c)
	var out strings.Builder
	leftOut, err := client.Export(t.Context(), "a/b ü", api.FormatNFT, &out)
	if err != nil || leftOut != 7 || out.Len() != 1_000_000 {
		t.Errorf("%d left out, %d bytes, %v", leftOut, out.Len(), err)
	}
	if want := []string{"export", "a/b ü", api.FormatNFT}; !reflect.DeepEqual(c.asked[0], want) {
		t.Errorf("asked for %v, want %v", c.asked[0], want)
	}
	// A part is never taken for the whole.
	c.export = api.Export{Text: text{10, errors.New("broken")}}
	if _, err := client.Export(t.Context(), "drop", api.FormatPlain, io.Discard); err == nil || !strings.Contains(err.Error(), "incomplete") {
		t.Errorf("got %v", err)
	}
	if _, err := client.Export(t.Context(), "drop", "xml", io.Discard); err == nil || !strings.Contains(err.Error(), "want plain, ipset or nft") {
		t.Errorf("got %v", err)
	}
	c.err = api.ErrNoList
	if _, err := client.Export(t.Context(), "drop", api.FormatPlain, io.Discard); err == nil || err.Error() != api.ErrNoList.Error() {
		t.Errorf("got %v", err)
	}
}
