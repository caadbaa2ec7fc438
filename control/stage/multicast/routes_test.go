package multicast

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/journal"
	"weir/filter/hash"
	"weir/filter/multicast"
	"weir/loader/netif"
)

// host is a daemon that filters by a generation.
type host struct {
	g        *engine.Generation
	attempts []api.AuditRecord
}

func (h *host) Do(_ context.Context, fn func(*engine.Generation) error) error      { return fn(h.g) }
func (h *host) DoAlone(_ context.Context, fn func(*engine.Generation) error) error { return fn(h.g) }
func (h *host) Attempt(_ context.Context, r api.AuditRecord, err error) {
	if err != nil {
		r.Error = err.Error()
	}
	h.attempts = append(h.attempts, r)
}

// Changes are checked, made for the user who asks, and recorded, also where they are refused.
func TestRoutes(t *testing.T) {
	j, err := journal.Open("", nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	layout := multicast.Plan(1, 2)
	table, err := multicast.NewTable(layout, hash.NewSecret(hash.Seed{1}), make([]uint64, layout.Words()))
	if err != nil {
		t.Fatal(err)
	}
	part := &Part{Ports: []Port{{Target: netif.Target{Iface: "eth1"}}}, Table: table}
	h := &host{g: &engine.Generation{Parts: []engine.Part{part}}}
	groups := NewGroups(slog.New(slog.DiscardHandler))
	groups.Journal = j
	routes := groups.Routes(h)
	ask := func(method, body string) (any, error) {
		t.Helper()
		q := httptest.NewRequest(method, api.MulticastPath, strings.NewReader(body))
		q = q.WithContext(api.As(t.Context(), api.Caller{UID: 7}))
		for _, r := range routes {
			if r.Method == method && r.Path == api.MulticastPath {
				return r.Answer(httptest.NewRecorder(), q)
			}
		}
		t.Fatalf("no route for %s", method)
		return nil, nil
	}
	for _, c := range []struct{ body, want string }{
		{`{`, "unexpected EOF"},
		{`{"groups": ["239.1.2.3"]}`, "no interface"},
		{`{"interface": "eth1"}`, "no groups"},
		{`{"interface": "eth1", "groups": ["239.1.2.3", "192.0.2.1"]}`, `"192.0.2.1"`},
		{`{"interface": "eth1", "uid": 0, "groups": ["239.1.2.3"]}`, "unknown field"},
	} {
		if _, err := ask(http.MethodPost, c.body); !errors.As(err, new(*api.BadRequest)) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.body, err, c.want)
		}
	}
	if len(h.attempts) > 0 {
		t.Errorf("recorded: %+v", h.attempts)
	}
	for _, c := range []struct {
		method, body, want string // "": it is refused
		record             api.AuditRecord
	}{
		{http.MethodPost, `{"interface": "eth1", "groups": ["239.1.2.3", "ff0e::1"]}`, `{"interface":"eth1","added":2,"removed":0,"unchanged":0}`,
			api.AuditRecord{Change: "multicast add", Entries: 2, Changed: 2}},
		{http.MethodPost, `{"interface": "eth1", "groups": ["239.1.2.4"]}`, "", api.AuditRecord{Change: "multicast add", Entries: 1}},
		{http.MethodDelete, `{"interface": "eth1", "groups": ["ff0e::1", "ff0e::2"]}`, `{"interface":"eth1","added":0,"removed":1,"unchanged":1}`,
			api.AuditRecord{Change: "multicast remove", Entries: 2, Changed: 1}},
	} {
		answer, err := ask(c.method, c.body)
		text, _ := json.Marshal(answer)
		if (err != nil) != (c.want == "") || err == nil && string(text) != c.want {
			t.Errorf("%s %s: %s, %v", c.method, c.body, text, err)
		}
		last := h.attempts[len(h.attempts)-1]
		if last.Change != c.record.Change || last.Interface != "eth1" || last.Entries != c.record.Entries || last.Changed != c.record.Changed || (last.Error == "") != (err == nil) {
			t.Errorf("recorded %+v, want %+v", last, c.record)
		}
	}
	entries := slices.Collect(j.Entries())
	if len(entries) != 1 || entries[0].UID != 7 || table.Len() != 1 {
		t.Errorf("the journal has %+v, the filters %d groups", entries, table.Len())
	}

	// Groups of an interface that is no longer configured can be shown and forgotten, and then
	// nothing is forwarded.
	h.g = &engine.Generation{}
	answer, err := ask(http.MethodGet, "")
	if m, ok := answer.(api.Multicast); err != nil || !ok || len(m.Interfaces) != 1 || m.Interfaces[0].Configured || *m.Interfaces[0].Groups[0].UID != 7 {
		t.Errorf("%+v, %v", answer, err)
	}
	if _, err := ask(http.MethodDelete, `{"interface": "eth1", "groups": ["239.1.2.3"]}`); err != nil {
		t.Error(err)
	}
	if _, err := ask(http.MethodGet, ""); !errors.Is(err, errOff) {
		t.Errorf("nothing is forwarded: %v", err)
	}
}
