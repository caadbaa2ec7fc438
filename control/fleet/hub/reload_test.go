package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/fleet/wire"
	"weir/tests/wait"
)

// refusing is a process that cannot have what it is asked for.
type refusing struct{ err error }

func (r *refusing) Check(*config.Hub) error { return r.err }
func (*refusing) Configure(*config.Hub)     {}

// What hub.yaml has newly is published, while nodes stay connected: lists that are added,
// changed and removed, rates, times, waves.
func TestReload(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	files := make(map[string]string)
	for name, text := range map[string]string{"one": "192.0.2.1\n", "two": "192.0.2.2\n"} {
		files[name] = filepath.Join(f.dir, name)
		if err := os.WriteFile(files[name], []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	source := func(list, file string) string {
		return fmt.Sprintf("  %s: {sources: [{file: %s}], interval: 1s}\n", list, files[file])
	}
	f.start("lists:\n" + source("drop", "one"))
	head, _, _ := strings.Cut(f.text, "lists:\n")
	n, err := f.authority.Enroll("edge-1", []string{"edge"}, []string{f.broker.URL()})
	if err != nil {
		t.Fatal(err)
	}
	var lost int
	c, err := f.connect(n, nats.DisconnectErrHandler(func(*nats.Conn, error) { lost++ }))
	if err != nil {
		t.Fatal(err)
	}
	w := f.follower(n, c)
	has := func(name string, entries ...string) {
		t.Helper()
		wait.Until(t, func() error {
			s, _, _, err := w.read(name)
			if err != nil {
				return err
			}
			return wantEntries(s, entries...)
		})
	}
	has("drop", "192.0.2.1")
	if _, err := f.hub.Change(t.Context(), block("198.51.100.1")); err != nil {
		t.Fatal(err)
	}
	reload := func(text string, changes ...string) {
		t.Helper()
		f.text = text
		r, err := f.hub.Reload(t.Context())
		if err != nil || !r.Published {
			t.Fatalf("%+v, %v", r, err)
		}
		for _, want := range changes {
			if !slices.Contains(r.Changes, want) {
				t.Errorf("changed %q, want %q", r.Changes, want)
			}
		}
	}
	catalog := func() wire.Catalog {
		t.Helper()
		m, err := w.stream.last(wire.CatalogSubject())
		if err != nil {
			t.Fatal(err)
		}
		c, err := wire.OpenCatalog(n.PublicKey, m.Data)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}

	// Another list, and settings.
	head = strings.Replace(head, "heartbeat: 1s", "heartbeat: 2s", 1) + "max_age: 50s\nlinks: [{labels: [edge], max_rate: 8Mbit/s}]\n"
	reload(head+"lists:\n"+source("drop", "one")+source("more", "two"), "lists.more: added", "heartbeat: 1s → 2s", "max_age: 1m → 50s")
	has("more", "192.0.2.2")
	has("drop", "192.0.2.1")
	if c := catalog(); c.MaxAge != 50 || len(c.Links) != 1 || c.Links[0].MaxRate != 1_000_000 {
		t.Errorf("%+v", c)
	}
	// Other sources, and another direction.
	reload(head + "lists:\n" + source("drop", "two") + strings.Replace(source("more", "two"), "interval", "direction: both, interval", 1))
	has("drop", "192.0.2.2")
	if c := catalog(); !slices.ContainsFunc(c.Lists, func(l wire.ListState) bool { return l.Name == "more" && l.Direction == "both" }) {
		t.Errorf("%+v", c.Lists)
	}
	// The former source is read no more.
	if err := os.WriteFile(files["one"], []byte("192.0.2.9\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	// Without a list; its name comes again.
	reload(head+"lists:\n"+source("drop", "two"), "lists.more: removed")
	if c := catalog(); slices.ContainsFunc(c.Lists, func(l wire.ListState) bool { return l.Name == "more" }) {
		t.Errorf("%+v", c.Lists)
	}
	reload(head + "lists:\n" + source("drop", "two") + source("more", "one"))
	has("more", "192.0.2.9")
	has("drop", "192.0.2.2")
	// Waves, for what changes from then on.
	reload(head + "rollout: {waves: [{labels: [canary], for: 1m}]}\nlists:\n" + source("drop", "two"))
	if err := os.WriteFile(files["two"], []byte("192.0.2.2\n192.0.2.3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, func() error {
		s, err := f.hub.Fleet(t.Context())
		if err == nil && (s.Lists[0].Rollout == nil || s.Lists[0].Rollout.State != api.RolloutRunning) {
			err = fmt.Errorf("%+v", s.Lists[0])
		}
		return err
	})
	has("drop", "192.0.2.2")
	has(config.FleetBlock, "198.51.100.1")
	if lost > 0 {
		t.Errorf("the node was disconnected %d times", lost)
	}
	if s, err := f.hub.Fleet(t.Context()); err != nil || s.Reload == nil || s.Reload.Error != "" {
		t.Errorf("%+v, %v", s.Reload, err)
	}
	// A restart has the same result.
	f.stop()
	_, lists, _ := strings.Cut(f.text, "heartbeat: 2s\n")
	f.start(lists)
	if l := f.hub.lists.all[0]; l.released == nil || l.released.Rollout.State != api.RolloutRunning {
		t.Errorf("%+v", l.released)
	}
}

// A configuration that cannot be had changes nothing, and the status, the audit and the
// caller say why.
func TestReloadRefused(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	process := &refusing{}
	f.beside = process
	f.start("")
	before := f.text
	f.change(block("192.0.2.1"))
	const added = "lists: {more: {sources: [{file: /does/not/exist}]}}\n"
	for name, x := range map[string]struct{ text, want string }{
		"listen":    {strings.Replace(before, "listen: \""+f.listen, "listen: \"127.0.0.1:1", 1) + added, "restart it: broker.listen: " + f.listen + " → 127.0.0.1:1"},
		"keys":      {strings.Replace(before, "/keys\n", "/others\n", 1) + added, "restart it: keys: "},
		"state_dir": {strings.Replace(before, "/hub\n", "/others\n", 1) + added, "restart it: state_dir: "},
		"socket":    {before + added + "api: {socket: /run/other.sock}\n", "restart it: api.socket: "},
		"console":   {before + added + "console: {listen: 127.0.0.1:1}\n", "restart it: console: "},
		"syntax":    {before + added + "max_age: 1\n", "hub.yaml:"},
		"process":   {before + added, "the address is in use"},
	} {
		if process.err = nil; name == "process" {
			process.err = errors.New(x.want)
		}
		f.text = x.text
		_, err := f.hub.Reload(t.Context())
		if err == nil || !strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), "the old configuration stays") {
			t.Errorf("%s: %v", name, err)
		}
		s, err := f.hub.Fleet(t.Context())
		if err != nil || s.Reload == nil || !strings.Contains(s.Reload.Error, x.want) || len(s.Lists) != 2 ||
			!slices.ContainsFunc(s.Problems, func(p string) bool { return strings.Contains(p, x.want) }) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
		if last := f.lastRecord(); last.Change != audit.Reload || !strings.Contains(last.Error, x.want) || last.Source != "signal" {
			t.Errorf("%s: %+v", name, last)
		}
	}
	// The store cannot be written.
	store := filepath.Join(f.dir, "hub", storeDir)
	if err := os.Rename(filepath.Join(store, "state.json"), filepath.Join(store, "moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(store, "state.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	process.err, f.text = nil, before+"rollout: {waves: [{labels: [canary], for: 1m}]}\n"+added
	if _, err := f.hub.Reload(t.Context()); err == nil {
		t.Error("no error without a store")
	}
	if err := f.hub.Do(t.Context(), func() error {
		if len(f.hub.lists.all) != 2 || f.hub.lists.history("more") != nil || len(f.hub.conf().Lists) != 0 {
			t.Errorf("%d lists, %+v", len(f.hub.lists.all), f.hub.conf().Lists)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(store, "state.json")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(store, "moved"), filepath.Join(store, "state.json")); err != nil {
		t.Fatal(err)
	}
	f.change(block("192.0.2.2"))
	if _, err := f.hub.Reload(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	if s, err := f.hub.Fleet(t.Context()); err != nil || len(s.Lists) != 3 || s.Reload.Error != "" {
		t.Errorf("%+v, %v", s, err)
	}
}

// An entry that was added to block is not allowed when its list becomes one that allows.
func TestReloadAction(t *testing.T) {
	f := newFleet(t)
	f.start("lists: {other: {}}")
	c := block("192.0.2.7")
	c.List = "other"
	f.change(c)
	f.text = strings.Replace(f.text, "other: {}", "other: {action: allow}", 1)
	if _, err := f.hub.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.hub.Do(t.Context(), func() error {
		if l := f.hub.lists.get("other"); l.Action != config.Allow || l.history.Contents().Len() != 0 {
			t.Errorf("list with action %s, %d entries", l.Action, l.history.Contents().Len())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// What a list had before its format changed stays until its source is read, also where the hub starts
// again before that: no empty version goes out, although its saved contents have no entries now.
func TestReloadFormatAndRestart(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	var down atomic.Bool
	asked := make(chan struct{}, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			asked <- struct{}{}
			<-r.Context().Done()
			return
		}
		fmt.Fprintln(w, "192.0.2.1,scanner") // a title, as it seems, where the second column is read
	}))
	t.Cleanup(s.Close)
	lists := func(column string) string {
		return fmt.Sprintf("lists: {drop: {sources: [{url: %s}], format: {kind: csv, column: %s}}}\n", s.URL, column)
	}
	f.start(lists("1"))
	entries := func() (n int) {
		t.Helper()
		if err := f.hub.Do(t.Context(), func() error { n = f.hub.lists.get("drop").history.Contents().Len(); return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	wait.For(t, "it is read", func() bool { return entries() == 1 })
	down.Store(true)
	f.text = strings.Replace(f.text, "column: 1", "column: 2", 1)
	if _, err := f.hub.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := entries(); n != 1 {
		t.Errorf("%d entries after the reload", n)
	}
	<-asked
	f.stop()
	f.start(lists("2"))
	<-asked
	if n := entries(); n != 1 {
		t.Errorf("%d entries after the restart", n)
	}
}

// A plan has the changes of a reload, and the nodes whose lists and waves they concern. It changes nothing.
func TestPlan(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	source := fmt.Sprintf("{sources: [{file: %s}]", f.feed("192.0.2.1"))
	f.start("lists:\n  drop: " + source + "}\n  web: {labels: [web]}\n")
	head, _, _ := strings.Cut(f.text, "lists:\n")
	for name, labels := range map[string][]string{"a": {"web"}, "b": {"web", "canary"}, "c": nil, "gone": {"web"}} {
		if _, err := f.authority.Enroll(name, labels, []string{f.broker.URL()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.authority.Revoke("gone"); err != nil {
		t.Fatal(err)
	}
	before := f.hub.conf()
	wave := func(label string, nodes int) []api.PlannedWave {
		return []api.PlannedWave{{Labels: []string{label}, Mode: "enforce", Nodes: nodes}}
	}
	next := head + "rollout: {waves: [{labels: [canary], for: 1h}]}\nlists:\n  drop: " + source + ", labels: [web, absent]}\n  new: " + source + "}\n"
	want := api.FleetPlan{Lists: []api.PlannedList{
		{Name: "drop", Before: &api.PlannedNodes{Nodes: 3}, After: &api.PlannedNodes{Nodes: 2, Waves: wave("canary", 1)}, Entries: 1, Lose: []string{"c"}},
		{Name: "new", After: &api.PlannedNodes{Nodes: 3, Waves: wave("canary", 1)}, Gain: []string{"a", "b", "c"}},
		{Name: "web", Before: &api.PlannedNodes{Nodes: 2}, Lose: []string{"a", "b"}},
	}}
	given, err := f.hub.Plan(t.Context(), api.FleetPlanQuestion{File: "hub.yaml", Text: next})
	if err != nil {
		t.Fatal(err)
	}
	f.text = next
	there, err := f.hub.Plan(t.Context(), api.FleetPlanQuestion{})
	if err != nil || !reflect.DeepEqual(there, given) {
		t.Errorf("of the hub's file: %+v, %v, want\n%+v", there, err, given)
	}
	if f.hub.conf() != before || f.hub.lists.get("new") != nil {
		t.Error("a plan has changed the hub")
	}
	r, err := f.hub.Reload(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want.Changes = r.Changes
	for i := range given.Lists {
		l := &given.Lists[i]
		for _, names := range []*[]string{&l.Gain, &l.Lose} {
			if len(*names) == 0 {
				*names = nil
			}
		}
	}
	if !reflect.DeepEqual(given, want) {
		t.Errorf("%+v, want\n%+v", given, want)
	}

	f.text = head + "rollout: {waves: [{labels: [absent], for: 1h}]}\nlists:\n  drop: " + source + "}\n"
	if p, err := f.hub.Plan(t.Context(), api.FleetPlanQuestion{}); err != nil || len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], "label absent") {
		t.Errorf("%+v, %v, want a warning of the wave", p, err)
	}
	f.text = strings.Replace(next, "servers:", "sites: [\"tls://127.0.0.1:7422\"]\nservers:", 1)
	f.text = strings.Replace(f.text, "broker: {", "broker: {listen_sites: \"127.0.0.1:7422\", ", 1)
	if p, err := f.hub.Plan(t.Context(), api.FleetPlanQuestion{}); err != nil || len(p.Restart) != 2 {
		t.Errorf("%+v, %v, want a restart for sites", p, err)
	}
	for text, says := range map[string]string{"lists: 7": "other.yaml:1", strings.Repeat("#", api.MaxPlan+1): "want at most"} {
		_, err := f.hub.Plan(t.Context(), api.FleetPlanQuestion{File: "other.yaml", Text: text})
		if bad, ok := errors.AsType[*api.BadRequest](err); !ok || !strings.Contains(bad.Error(), says) {
			t.Errorf("%.20q: %v, want %q", text, err, says)
		}
	}
}
