package daemon

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/attach"
	"weir/control/config"
	"weir/control/ruleset"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/must"
	"weir/tests/wait"
)

// machine starts daemons, one after the other, in a directory.
type machine struct {
	*testing.T
	l   *lab.Lab
	dir string
}

func newMachine(t *testing.T) *machine {
	m := &machine{t, lab.New(t), t.TempDir()}
	t.Cleanup(func() {
		pins := "/sys/fs/bpf/" + m.l.B.Netns
		if _, err := attach.DetachAll(loader.Pins(pins)); err != nil {
			t.Error(err)
		}
		os.Remove(pins)
	})
	return m
}

func (m *machine) options(text string) Options {
	file := filepath.Join(m.dir, "weir.yaml")
	write(m.T, file, fmt.Sprintf("interfaces: [{name: %s, netns: %s}]\npins: /sys/fs/bpf/%s\nkeep: false\napi: {socket: %s}\n%s\n",
		m.l.B.Iface, m.l.B.Netns, m.l.B.Netns, filepath.Join(m.dir, "sock"), text))
	return Options{Config: config.File(file), Version: "test", Log: slog.New(slog.DiscardHandler)}
}

// start starts a daemon, which is stopped by the function that start returns.
func (m *machine) start(text string) (d *Daemon, stop func()) {
	m.Helper()
	d, err := Start(m.Context(), m.options(text))
	if err != nil {
		m.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- d.Run(ctx, nil, time.Hour, nil) }()
	return d, func() {
		cancel()
		if err := <-done; err != nil {
			m.Error(err)
		}
		if err := d.Stop(); err != nil {
			m.Error(err)
		}
	}
}

func (m *machine) until(what string, is func() bool) {
	m.Helper()
	wait.For(m, what, is)
}

// A start with saved contents waits for no server, and says what is missing until it
// has it. An empty list that was saved is known.
func TestStartWaitsForNone(t *testing.T) {
	release := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			select {
			case <-release:
			case <-r.Context().Done():
				return
			}
		}
		fmt.Fprintln(w, secondSource)
	}))
	defer s.Close()
	m := newMachine(t)
	good, empty := filepath.Join(m.dir, "good"), filepath.Join(m.dir, "empty")
	write(t, good, firstSource+"\n")
	write(t, empty, "")
	lists := fmt.Sprintf("state_dir: %s\nlists:\n  good: {sources: [{file: %s}]}\n  empty: {action: allow, sources: [{file: %s}]}\n", m.dir, good, empty)
	d, stop := m.start(lists)
	if s := d.readings.Status(); len(s.NotReady) > 0 || !s.Complete() {
		t.Errorf("%+v", s)
	}
	stop()

	began := time.Now()
	d, stop = m.start(lists + fmt.Sprintf("  slow: {exclude_private: false, sources: [{url: %q}]}\n", s.URL+"/slow"))
	defer stop()
	if took := time.Since(began); took > ruleset.FirstFetch*3/4 {
		t.Errorf("the start took %v", took)
	}
	if got := verdictOf(t, d, firstSource); got != verdict.Drop {
		t.Errorf("the saved list: %v", got)
	}
	status := d.readings.Status()
	if len(status.NotReady) != 1 || status.NotReady[0].List != "slow" || status.NotReady[0].Problem != "not read yet" || status.Complete() {
		t.Errorf("%+v", status.NotReady)
	}
	if text := d.active.prepared.Summary(); !strings.Contains(text, "sources that are not ready: 1") {
		t.Error(text)
	}
	close(release)
	m.until("the list is ready", func() bool { s := d.readings.Status(); return s.Complete() })
	if got := verdictOf(t, d, secondSource); got != verdict.Drop {
		t.Errorf("the slow list: %v", got)
	}
}

// A start waits for no source where something is saved: of another source of the list,
// or of the fleet.
func TestStartWithPart(t *testing.T) {
	before := ruleset.FirstFetch
	defer func() { ruleset.FirstFetch = before }()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
			return
		}
		fmt.Fprintln(w, firstSource)
	}))
	defer s.Close()
	for name, saved := range map[string]func(m *machine) (text string){
		"source": func(m *machine) string { return fmt.Sprintf("{url: %q}, ", s.URL) },
		"fleet": func(m *machine) string {
			h := newFleetHub(m.T)
			h.start("")
			h.block(firstSource)
			return fmt.Sprintf("{url: %q}]}}\nfleet: {enroll: %s}\n# ", s.URL+"/slow", h.enroll("edge-1"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			lists := fmt.Sprintf("state_dir: %s\nlists: {l: {exclude_private: false, sources: [%s{url: %q}]}}\n", m.dir, saved(m), s.URL+"/slow")
			ruleset.FirstFetch = time.Second
			d, stop := m.start(lists)
			becomes(t, d, firstSource, verdict.Drop)
			stop()
			ruleset.FirstFetch = 20 * time.Second
			began := time.Now()
			d, stop = m.start(lists)
			defer stop()
			if took := time.Since(began); took > ruleset.FirstFetch*3/4 {
				t.Errorf("the start took %v", took)
			}
			if got := verdictOf(t, d, firstSource); got != verdict.Drop {
				t.Errorf("%v", got)
			}
		})
	}
}

// A reload does not wait for a source that the daemon is already fetching.
func TestReloadWaitsForNone(t *testing.T) {
	release, asked := make(chan struct{}), make(chan struct{}, 10)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	defer close(release)
	m := newMachine(t)
	good := filepath.Join(m.dir, "good")
	write(t, good, firstSource+"\n")
	lists := fmt.Sprintf("state_dir: %s\nlists:\n  good: {sources: [{file: %s}]}\n", m.dir, good)
	_, stop := m.start(lists)
	stop()
	d, stop := m.start(lists + fmt.Sprintf("  slow: {exclude_private: false, sources: [{url: %q}]}\n", s.URL))
	defer stop()
	<-asked
	began := time.Now()
	if _, err := d.Reload(t.Context()); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > ruleset.FirstFetch*3/4 {
		t.Errorf("the reload took %v", took)
	}
	if got := verdictOf(t, d, firstSource); got != verdict.Drop {
		t.Errorf("%v", got)
	}
}

// A check reads files however long that takes; a start that does not have one yet says
// so, and reads it in the background.
func TestSlowFile(t *testing.T) {
	m := newMachine(t)
	path := filepath.Join(m.dir, "list")
	var text bytes.Buffer
	for i := range 200_000 {
		fmt.Fprintf(&text, "20.%d.%d.%d\n", i>>16, i>>8&0xff, i&0xff)
	}
	write(t, path, text.String()+firstSource+"\n")
	before, beforeMoment := ruleset.FirstFetch, ruleset.Moment
	defer func() { ruleset.FirstFetch, ruleset.Moment = before, beforeMoment }()
	ruleset.FirstFetch, ruleset.Moment = time.Microsecond, time.Microsecond
	o := m.options(fmt.Sprintf("state_dir: \"\"\nlists: {long: {sources: [{file: %s}]}}", path))
	c, err := o.Config.Read()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Prepare(t.Context(), c, o.Log, nil)
	if err != nil || p.Entries() != 200_001 || len(p.Unread()) > 0 || len(p.Problems()) > 0 {
		t.Errorf("%v, %d entries, %v, %v", err, p.Entries(), p.Unread(), p.Problems())
	}
	d, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if s := d.readings.Status(); s.Complete() || len(s.NotReady) != 1 {
		t.Errorf("%+v", s.NotReady)
	}
	if err := d.Stop(); err != nil {
		t.Error(err)
	}
	d, stop := m.start(fmt.Sprintf("state_dir: \"\"\nlists: {long: {sources: [{file: %s}]}}", path))
	defer stop()
	m.until("the list is ready", func() bool { s := d.readings.Status(); return s.Complete() })
	if got := verdictOf(t, d, firstSource); got != verdict.Drop {
		t.Errorf("%v", got)
	}
}

// While a program filters by a list's file, the next daemon waits for the file.
func TestSlowFileKept(t *testing.T) {
	m := newMachine(t)
	path := filepath.Join(m.dir, "list")
	write(t, path, firstSource+"\n")
	text := fmt.Sprintf("keep: true\nstate_dir: \"\"\nlists: {long: {sources: [{file: %s}]}}", path)
	keep := m.options("state_dir: \"\"")
	file := string(keep.Config.(config.File))
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, strings.Replace(strings.Replace(string(raw), "keep: false\n", "", 1), "state_dir: \"\"", text, 1))
	for range 2 {
		d, err := Start(t.Context(), keep)
		if err != nil {
			t.Fatal(err)
		}
		if s := d.readings.Status(); !s.Complete() || s.Entries != 1 {
			t.Errorf("%+v", s)
		}
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
		before := ruleset.FirstFetch
		defer func() { ruleset.FirstFetch = before }()
		ruleset.FirstFetch = time.Nanosecond
	}
}

// A reload shows bad lines once.
func TestReloadRepeatsNoBadLines(t *testing.T) {
	m := newMachine(t)
	path := filepath.Join(m.dir, "list")
	write(t, path, "bad\n"+strings.Repeat("198.51.100.1\n", 30))
	d, stop := m.start(fmt.Sprintf("state_dir: \"\"\nlists: {l: {sources: [{file: %s}]}}", path))
	defer stop()
	if r, err := d.Reload(t.Context()); err != nil || len(r.Changes) > 0 {
		t.Errorf("%q, %v", r.Changes, err)
	}
	// Who watches the file may have read it before the reload does.
	for i := range 100 {
		worse := fmt.Sprintf("worse%d", i)
		write(t, path, worse+"\n"+strings.Repeat("198.51.100.1\n", 30))
		r, err := d.Reload(t.Context())
		if err != nil || len(r.Changes) > 1 || len(r.Changes) == 1 && !strings.Contains(r.Changes[0], `"`+worse+`"`) {
			t.Fatalf("%q, %v", r.Changes, err)
		}
		if len(r.Changes) == 1 {
			return
		}
	}
	t.Error("no reload shows the bad line")
}

// A start fails where what is saved of a required list is refused, and the program that filters
// already goes on; unless the list's file has other contents by now.
func TestRequiredIsRefused(t *testing.T) {
	m := newMachine(t)
	path := filepath.Join(m.dir, "list")
	write(t, path, "64.0.0.0/2\n128.0.0.0/2\n")
	configure := func(most string, required bool) Options {
		o := m.options("")
		file := string(o.Config.(config.File))
		raw := must.Read(t, file)
		text := strings.Replace(string(raw), "keep: false", "keep: true", 1)
		write(t, file, text+fmt.Sprintf("state_dir: %s/state\nmax_coverage: %s\nlists: {wide: {required: %t, sources: [{file: %s}]}}\n", m.dir, most, required, path))
		return o
	}
	start := func(o Options) error {
		d, err := Start(t.Context(), o)
		if err == nil {
			err = d.Stop()
		}
		return err
	}
	pinned := func() (links int) {
		err := filepath.WalkDir("/sys/fs/bpf/"+m.l.B.Netns, func(_ string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				links++
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return links
	}
	if err := start(configure("100%", true)); err != nil {
		t.Fatal(err)
	}
	before := pinned()
	o := configure("25%", true)
	if err := start(o); err == nil || !strings.Contains(err.Error(), "max_coverage") {
		t.Errorf("with a required list that is refused: %v", err)
	}
	if now := pinned(); now != before || now == 0 {
		t.Errorf("%d pins, and %d before", now, before)
	}
	c, err := o.Config.Read()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Prepare(t.Context(), c, slog.New(slog.DiscardHandler), nil); err == nil || !strings.Contains(err.Error(), "max_coverage") {
		t.Errorf("weir check: %v", err)
	}
	if err := start(configure("25%", false)); err != nil {
		t.Errorf("with one that is not required: %v", err)
	}
	write(t, path, firstSource+"\n")
	if err := start(configure("25%", true)); err != nil {
		t.Errorf("with other contents of the file: %v", err)
	}
}

// A start that returns to the configuration before an unconfirmed one does not fail over what that
// has saved of a required list.
func TestRequiredIsRefusedAfterRollback(t *testing.T) {
	r := configure(t, lab.New(t).B)
	r.c.StateDir, r.c.Lists[0].Required = config.Path(t.TempDir()), true
	d := begin(t, r)
	r.change(func(c *config.Config) { c.MaxCoverage = 1 })
	write(t, string(r.c.Lists[0].Sources[0].File), wide)
	if _, err := d.ReloadUnconfirmed(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	d.stop()
	d = begin(t, r)
	if s := d.readings.Status(); !s.RolledBack {
		t.Errorf("%+v", s)
	}
	if got := verdictOf(t, d.Daemon, wideSource); got != verdict.Pass {
		t.Errorf("what is refused is active: %v", got)
	}
}
