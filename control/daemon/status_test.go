package daemon

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir/control/api"
	"weir/control/config"
	"weir/tests/lab"
	"weir/tests/wait"
)

// loopback's driver has no native XDP.
const loopback = "lo"

// stateOf returns the status of an interface.
func stateOf(t *testing.T, d *running, name string) api.InterfaceStatus {
	t.Helper()
	for _, i := range d.readings.Status().Interfaces {
		if i.Interface == name {
			return i
		}
	}
	t.Fatalf("no interface %s: %+v", name, d.readings.Status())
	return api.InterfaceStatus{}
}

// A reload reports interfaces that cannot be filtered; status and metrics show
// them, and the uptime goes on.
func TestStatus(t *testing.T) {
	t.Parallel() // it waits a lot
	l := lab.New(t)
	r := configure(t, l.B)
	d := begin(t, r)
	defer watched(t, d.Daemon)()
	s := d.readings.Status()
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
	if err != nil || len(reloaded.Unfiltered) != 2 || !strings.Contains(reloaded.Unfiltered[0], loopback) ||
		!strings.Contains(reloaded.Unfiltered[1], "absent0") {
		t.Errorf("reload: %+v, %v", reloaded, err)
	}
	if i := stateOf(t, d, loopback); i.State != api.Unfiltered || i.Problem == "" {
		t.Errorf("%+v", i)
	}
	if i := stateOf(t, d, "absent0"); i.State != api.Absent || i.Problem != "" {
		t.Errorf("%+v", i)
	}
	if i := stateOf(t, d, l.B.Iface); i.State != api.Filtered || i.Dropped != 5 {
		t.Errorf("%+v", i)
	}
	if s := d.readings.Status(); s.Complete() {
		t.Errorf("complete: %+v", s)
	}
	attached := map[string]bool{}
	for _, i := range d.readings.Metrics().Interfaces {
		attached[i.Iface] = i.XDP != ""
	}
	if plain, known := attached[loopback]; !known || plain || !attached[l.B.Iface] {
		t.Errorf("metrics: attached %v", attached)
	}
	for end := wait.Deadline(); ; time.Sleep(50 * time.Millisecond) {
		if top := d.readings.Top(); top != nil && top.Filter.Generation == 2 {
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

// While the daemon has no time to look, an interface is filtered in no status from when it
// is deleted until a program is on the one that replaces it.
func TestStatusOfInterfaceThatReturns(t *testing.T) {
	l := lab.New(t)
	d := begin(t, configure(t, l.B))
	awaitState(t, d, l.B.Iface, api.Filtered)
	goOn := make(chan struct{})
	looking := sync.OnceFunc(func() { close(goOn) })
	defer looking()
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- d.loop.Do(context.Background(), func() error { close(begun); <-goOn; return nil }) }()
	<-begun
	deleteWire(t, l)
	if s := d.readings.Status(); s.Complete() || s.Interfaces[0].State != api.Gone {
		t.Errorf("deleted: %+v", s)
	}
	another := netlink.NewLinkAttrs()
	another.Name = l.B.Iface
	l.B.In(t, func() { // whose driver has no native XDP
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: another}); err != nil {
			t.Error(err)
		}
	})
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if i := stateOf(t, d, l.B.Iface); i.State != api.Gone {
			t.Fatalf("another without a program: %+v", i)
		}
	}
	deleteWire(t, l)
	l.Wire(t)
	looking()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	awaitState(t, d, l.B.Iface, api.Filtered)
	l.B.In(t, func() {
		if i, err := netlink.LinkByName(l.B.Iface); err != nil || i.Attrs().Xdp == nil || !i.Attrs().Xdp.Attached {
			t.Errorf("filtered, but: %+v, %v", i, err)
		}
	})
}

// A second daemon names the first one, and how to take over.
func TestSecondDaemon(t *testing.T) {
	l := lab.New(t)
	first := configure(t, l.B)
	dir := t.TempDir()
	first.c.StateDir = config.Path(dir)
	begin(t, first)
	// Its interface is another one, so that they share the journal alone.
	second := configure(t, l.A)
	second.c.StateDir, second.c.Pins = config.Path(dir), first.c.Pins
	_, err := Start(t.Context(), Options{Config: second, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "--takeover") || !strings.Contains(err.Error(), "another daemon runs") {
		t.Errorf("%v", err)
	}
}
