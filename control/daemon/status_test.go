package daemon

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/tests/lab"
)

// loopback's driver has no native XDP.
const loopback = "lo"

// stateOf returns the status of an interface.
func stateOf(t *testing.T, d *running, name string) api.InterfaceStatus {
	t.Helper()
	for _, i := range d.Status().Interfaces {
		if i.Interface == name {
			return i
		}
	}
	t.Fatalf("no interface %s: %+v", name, d.Status())
	return api.InterfaceStatus{}
}

// A reload reports interfaces that cannot be filtered; status and metrics show
// them, and the uptime goes on.
func TestStatus(t *testing.T) {
	l := lab.New(t)
	r := configure(t, l.B)
	d := begin(t, r)
	defer watched(t, d.Daemon)()
	s := d.Status()
	if !s.Complete() || s.PID != os.Getpid() || s.Version != "test" || s.Pins != string(r.c.Pins) || len(s.Interfaces) != 1 {
		t.Fatalf("status: %+v", s)
	}
	send(t, l, 5, firstSource)
	awaitHits(t, d.Daemon, "feed", 5)
	if i := stateOf(t, d, l.B.Iface); i.State != api.Filtered || i.XDP != "native" || i.Packets < 5 || i.Dropped != 5 {
		t.Errorf("%+v", i)
	}

	plain := config.Interface{Name: loopback, Netns: l.B.Netns}
	r.change(func(c *config.Config) {
		c.Interfaces = append(c.Interfaces, plain, config.Interface{Name: "absent0", Netns: l.B.Netns})
	})
	time.Sleep(time.Second)
	reloaded, err := d.Reload(t.Context())
	if err != nil || len(reloaded.Unfiltered) != 1 || !strings.Contains(reloaded.Unfiltered[0], loopback) {
		t.Errorf("reload: %+v, %v", reloaded, err)
	}
	if i := stateOf(t, d, loopback); i.State != api.Unfiltered || i.Problem == "" {
		t.Errorf("%+v", i)
	}
	if i := stateOf(t, d, "absent0"); i.State != api.Gone || i.Problem != "" {
		t.Errorf("%+v", i)
	}
	if i := stateOf(t, d, l.B.Iface); i.State != api.Filtered || i.Dropped != 5 {
		t.Errorf("%+v", i)
	}
	if s := d.Status(); s.Complete() {
		t.Errorf("complete: %+v", s)
	}
	attached := map[string]bool{}
	for _, i := range d.Metrics().Interfaces {
		attached[i.Iface] = i.XDP != ""
	}
	if plain, known := attached[loopback]; !known || plain || !attached[l.B.Iface] {
		t.Errorf("metrics: attached %v", attached)
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if top := d.Top(); top != nil && top.Filter.Generation == 2 {
			if top.Uptime < 1 {
				t.Errorf("uptime %vs after a reload", top.Uptime)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatal("no rates after the reload")
		}
	}
}

// A second daemon names the first one, and how to take over.
func TestSecondDaemon(t *testing.T) {
	l := lab.New(t)
	first := configure(t, l.B)
	dir := t.TempDir()
	first.c.StateDir = config.Path(dir)
	begin(t, first)
	// Its interface is another one, so that the journal is what they share.
	second := configure(t, l.A)
	second.c.StateDir, second.c.Pins = config.Path(dir), first.c.Pins
	_, err := Start(t.Context(), Options{Config: second, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "--takeover") || !strings.Contains(err.Error(), "another daemon runs") {
		t.Errorf("%v", err)
	}
}
