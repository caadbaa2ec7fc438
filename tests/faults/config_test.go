package faults

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/control/feed"
	"weir/tests/must"
)

// A configuration that is wrong in any way, or in part, changes nothing.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	feed := g.file("feed", "10.0.0.1\n")
	lists := "lists:\n  feed: {sources: [{file: " + feed + "}]}\n"
	g.configure(lists)
	good := g.yaml(lists)
	d := g.begin()
	change := func(old, new string) string {
		t.Helper()
		if !strings.Contains(good, old) {
			t.Fatalf("nothing to change: %s", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	const restart = "change with a restart only"
	second := g.file("second", "10.0.0.2\n")
	more := lists + "  second: {sources: [{file: " + second + "}]}\n"
	wrong := lists + "  second: {sources: [{file: " + second + "}], metod: block}\n"
	for _, c := range []struct {
		name, text string
		says       []string
	}{
		{"an unknown key", g.yaml(wrong), []string{g.config + ":7:", "unknown key", "metod"}},
		{"no YAML", "interfaces: [", []string{g.config + ":"}},
		{"no interfaces", change("interfaces: "+g.interfaces, "interfaces: []"), []string{g.config + ":", "no interface to filter on"}},
		{"empty", "", []string{g.config, "interfaces"}},
		{"another mode", change("netns: "+g.B.Netns, "netns: "+g.B.Netns+", xdp: generic") + strings.TrimPrefix(more, lists),
			[]string{g.B.Iface, "changing from native to generic would leave it unfiltered for a moment: detach it first"}},
		{"another state_dir", change("state_dir: "+g.state, "state_dir: "+g.state+"2"), []string{"state_dir", restart}},
		{"other pins", change("pins: "+g.pins, "pins: "+g.pins+"2"), []string{"pins", restart}},
		{"another socket", change("socket: "+g.socket, "socket: "+g.socket+"2"), []string{"api", restart}},
	} {
		must.Write(t, g.config, c.text)
		g.refuses(append(c.says, "the old configuration stays active"), "reload")
		g.untilMetric(0, "weir_config_last_reload_successful")
		d.signal(syscall.SIGHUP)
		d.wait(`"level":"ERROR"`, "the old configuration stays active")
		g.filters(c.name, []string{"10.0.0.1"}, []string{"10.0.0.2"})
	}
	if err := os.Remove(g.config); err != nil {
		t.Fatal(err)
	}
	g.refuses([]string{g.config, "no such file", "the old configuration stays active"}, "reload")
	g.filters("no configuration", []string{"10.0.0.1"}, []string{"10.0.0.2"})

	g.configure(more)
	d.signal(syscall.SIGHUP)
	g.untilDropped("10.0.0.2")
	g.untilMetric(1, "weir_config_last_reload_successful")
	d.stop()
	g.filters("stopped", []string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.3"})

	// To start by, it is refused as well.
	must.Write(t, g.config, "interfaces: [eth0]\nlist: {}\n")
	_, says := g.weir(1, "run", "--config", g.config)
	g.says("weir run", says, g.config+":2:", "list", "lists")
	g.filters("not started", []string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.3"})
}

// slow is a feed that is not served until the test wants it to be.
type slow struct {
	asked, serve chan struct{}
	url          string
}

func newSlow(t *testing.T, body string) *slow {
	s := &slow{asked: make(chan struct{}, 100), serve: make(chan struct{})}
	s.url = serve(t, func(string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			s.asked <- struct{}{}
			select {
			case <-s.serve:
				text(body)(w, r)
			case <-r.Context().Done():
			}
		}
	}).URL
	return s
}

// waitedFor is a time within which who does not wait for a feed ends, on a slow machine, too: half of the time
// that a feed may be silent.
const waitedFor = feed.DefaultStallTimeout / 2

// Signals during loading of lists, at the start or with a new configuration:
// SIGTERM ends it soon and changes nothing, SIGHUP waits.
func TestSignals(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	lists := "lists:\n  feed: {sources: [{file: " + g.file("feed", "10.0.0.1\n") + "}]}\n"
	g.configure(lists)
	g.begin().stop()
	first := g.program()

	s := newSlow(t, "10.0.0.2\n")
	withSlow := lists + "  slow: {required: true, exclude_private: false, sources: [{url: \"" + s.url + "\"}]}\n"
	g.configure(withSlow)
	d := g.run("weir")
	d.start()
	<-s.asked
	began := time.Now()
	d.signal(syscall.SIGTERM)
	if code := d.end(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(began); took > waitedFor {
		t.Errorf("stopped after %v", took)
	}
	g.says("weir run", strings.Join(d.log(), "\n"), "nothing has changed")
	if p := g.program(); p != first {
		t.Errorf("program %d filters, want %d", p, first)
	}
	g.filters("stopped while loading", []string{"10.0.0.1"}, []string{"10.0.0.2"})

	d = g.run("weir")
	d.start()
	<-s.asked
	d.signal(syscall.SIGHUP)
	d.signal(syscall.SIGHUP)
	g.filters("loading", []string{"10.0.0.1"}, []string{"10.0.0.2"})
	close(s.serve)
	d.filtering()
	d.wait(`"msg":"reloading"`)
	d.wait(`"msg":"reloaded"`)
	g.filters("loaded, and reloaded", []string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.3"})

	s = newSlow(t, "10.0.0.3\n")
	g.configure(withSlow + "  slower: {exclude_private: false, sources: [{url: \"" + s.url + "\"}]}\n")
	d.signal(syscall.SIGHUP)
	<-s.asked
	d.signal(syscall.SIGHUP) // to be done afterwards
	g.answers()
	began = time.Now()
	g.ask(0, "block", "10.0.0.4")
	if took := time.Since(began); took > waitedFor {
		t.Errorf("a command waited %v for a feed", took)
	}
	held := []string{"10.0.0.1", "10.0.0.2", "10.0.0.4"}
	g.filters("reloading", held, []string{"10.0.0.3"})
	began = time.Now()
	d.stop()
	if took := time.Since(began); took > waitedFor {
		t.Errorf("stopped after %v", took)
	}
	g.filters("stopped while reloading", held, []string{"10.0.0.3"})
}
