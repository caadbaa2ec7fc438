package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/quantity"
	"weir/filter/membership"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/wait"
)

// What a refused reload has read of a list is not lost.
func TestReloadRefused(t *testing.T) {
	r := configure(t, lab.New(t).B)
	r.c.Lists[0].Interval = quantity.Duration(24 * time.Hour)
	d := begin(t, r)
	awaitSchedule(t, d.Daemon)
	write(t, string(r.c.Lists[0].Sources[0].File), secondSource+"\n")
	r.change(func(c *config.Config) { c.StateDir = "/tmp" })
	if _, err := d.Reload(t.Context()); err == nil {
		t.Fatal("another state_dir was taken")
	}
	if first, second := verdictOf(t, d.Daemon, firstSource), verdictOf(t, d.Daemon, secondSource); first != verdict.Pass || second != verdict.Drop {
		t.Errorf("%s: %v, %s: %v", firstSource, first, secondSource, second)
	}
}

// awaitSchedule waits until the one feed has been read by its schedule.
func awaitSchedule(t *testing.T, d *Daemon) {
	t.Helper()
	await(t, "feeds are read", 1, func() (read uint64) {
		for _, l := range d.readings.Lists().Lists {
			for _, f := range l.Feeds {
				if f.Next != nil {
					read++
				}
			}
		}
		return read
	})
}

// A list whose settings change keeps its contents while its file cannot be read.
func TestReloadUnreadable(t *testing.T) {
	r := configure(t, lab.New(t).B)
	d := begin(t, r)
	if err := os.Remove(string(r.c.Lists[0].Sources[0].File)); err != nil {
		t.Fatal(err)
	}
	second := feedFile(t, "second.txt", secondSource+"\n")
	r.change(func(c *config.Config) {
		c.Lists[0].Interval++
		if _, err := c.AddFile(second, config.Block); err != nil {
			t.Fatal(err)
		}
	})
	changes, err := d.Reload(t.Context())
	if err != nil || !strings.Contains(strings.Join(changes.Changes, "\n"), "no such file") {
		t.Errorf("%q, %v", changes.Changes, err)
	}
	for _, from := range []string{firstSource, secondSource} {
		if got := verdictOf(t, d.Daemon, from); got != verdict.Drop {
			t.Errorf("%s: %v", from, got)
		}
	}
}

// A list keeps its entries while its server is down, also where what its source must prove changes, or
// its format; the log says so.
func TestReloadOtherProof(t *testing.T) {
	var down atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, firstSource)
	}))
	t.Cleanup(s.Close)
	r := configure(t, lab.New(t).B)
	r.c.StateDir = config.Path(t.TempDir())
	r.c.Lists[0].Spec = feed.DefaultSpec(feed.Source{URL: feed.URL(s.URL + "/list")})
	r.c.Lists[0].Sources[0].SetDefaults()
	r.c.Lists[0].Required = true
	d := begin(t, r)
	down.Store(true)
	for _, change := range []func(l *config.List){
		func(l *config.List) { l.Sources[0].SHA256URL = l.Sources[0].URL + ".sha256" },
		func(l *config.List) { l.Format = feed.Format{Kind: "hosts"} },
	} {
		r.change(func(c *config.Config) {
			c.Lists = slices.Clone(c.Lists)
			c.Lists[0].Sources = slices.Clone(c.Lists[0].Sources)
			change(&c.Lists[0])
		})
		done, err := d.Reload(t.Context())
		if err != nil || !strings.Contains(strings.Join(done.Changes, "\n"), "was not read with its new settings yet: its 1 entries of before stay") {
			t.Errorf("%q, %v", done.Changes, err)
		}
		if got := verdictOf(t, d.Daemon, firstSource); got != verdict.Drop {
			t.Errorf("%v", got)
		}
		for _, l := range d.readings.Lists().Lists {
			if l.Name == "feed" && (l.Entries != 1 || l.Feeds[0].Entries != 1 || l.Feeds[0].Outcome != api.Failed || l.Feeds[0].Read != nil) {
				t.Errorf("%+v", l)
			}
		}
	}
}

// Learning follows the configuration, and ends with it.
func TestReloadLearning(t *testing.T) {
	t.Parallel() // it waits a lot
	r := configure(t, lab.New(t).B)
	r.c.Mode = membership.Approximate
	d := begin(t, r)
	halfLife := func() (seconds uint64) {
		if w := d.readings.Weights(); w != nil {
			seconds = uint64(w.HalfLife)
		}
		return seconds
	}
	await(t, "half-life", 600, halfLife)
	r.change(func(c *config.Config) { c.Learning.HalfLife = quantity.Duration(20 * time.Minute) })
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "half-life", 1200, halfLife)
	r.change(func(c *config.Config) { c.Mode = membership.Exact })
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "no weights where nothing is learned", func() bool { return d.readings.Weights() == nil })
}

// A reload does not begin anew.
func TestReloadUptime(t *testing.T) {
	t.Parallel() // it waits a lot
	r := configure(t, lab.New(t).B)
	d := begin(t, r)
	await(t, "snapshots", 1, func() uint64 {
		if d.readings.Top() == nil {
			return 0
		}
		return 1
	})
	before := d.readings.Top().Uptime
	r.change(func(c *config.Config) { c.Monitor = true })
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "generation", 2, func() uint64 { return uint64(d.readings.Top().Filter.Generation) })
	if now := d.readings.Top().Uptime; now < before {
		t.Errorf("up for %v seconds, after %v", now, before)
	}
}

// The service manager does not wait for a reload whose client has gone.
func TestReloadAbandoned(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	r := configure(t, lab.New(t).B)
	d := begin(t, r)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(pipe, os.O_RDWR, 0) // it writes nothing
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := d.loop.Do(t.Context(), func() error { return nil }); err != nil { // it runs
		t.Fatal(err)
	}
	r.lists(t, pipe)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reloaded := make(chan error, 1)
	go func() { _, err := d.Reload(ctx); reloaded <- err }()
	var got []string
	buffer := make([]byte, 4096)
	for _, want := range []string{"READY=1", "RELOADING=1", "READY=1"} {
		if err := manager.SetReadDeadline(wait.Deadline()); err != nil {
			t.Fatal(err)
		}
		n, err := manager.Read(buffer)
		if got = append(got, string(buffer[:n])); err != nil || !strings.HasPrefix(string(buffer[:n]), want) {
			t.Fatalf("%q, %v, want %s", got, err, want)
		}
		if want == "RELOADING=1" {
			cancel()
		}
	}
	if err := <-reloaded; !errors.Is(err, context.Canceled) {
		t.Errorf("reloaded: %v", err)
	}
	if s := d.readings.Metrics(); !s.Config.Failed || s.Config.Refused != 1 {
		t.Errorf("%+v", s.Config)
	}
}

// heldReader reads a configuration, and returns it when it may.
type heldReader struct {
	config.Reader
	ctx   context.Context    // of the test
	reads chan chan struct{} // each is closed to let a read return
}

func (r *heldReader) Read() (*config.Config, error) {
	c, err := r.Reader.Read()
	goOn := make(chan struct{})
	select {
	case r.reads <- goOn:
		<-goOn
	case <-r.ctx.Done():
	}
	return c, err
}

// Those who ask for a reload while another one goes on share the next one, which reads
// what was written meanwhile.
func TestReloadShared(t *testing.T) {
	r := configure(t, lab.New(t).B)
	d := begin(t, r)
	held := &heldReader{r, t.Context(), make(chan chan struct{})}
	if err := d.loop.doAlone(t.Context(), func() error { d.o.Config = held; return nil }); err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 100)
	reload := func(ctx context.Context) {
		_, err := d.Reload(ctx)
		results <- err
	}
	go reload(t.Context())
	first := <-held.reads
	r.change(func(c *config.Config) { c.Monitor = true })
	goOn := sync.OnceFunc(func() { close(first) })
	defer goOn() // where the test fails
	const callers = 20
	gone, leave := context.WithCancel(t.Context())
	go reload(gone)
	for range callers {
		go reload(t.Context())
	}
	waiting := func() uint64 {
		d.reloads.mu.Lock()
		defer d.reloads.mu.Unlock()
		if d.reloads.next == nil {
			return 0
		}
		return uint64(d.reloads.next.waiting)
	}
	await(t, "callers", callers+1, waiting)
	leave()
	if err := <-results; !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone: %v", err)
	}
	goOn()
	close(<-held.reads)
	for range callers + 1 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if s := d.readings.Metrics(); s.Config.Done != 3 { // the start is one
		t.Errorf("%d configurations were activated", s.Config.Done)
	}
	if !d.readings.Status().Monitor {
		t.Error("the last configuration is not active")
	}

	// Where all have gone, there is no reload.
	go reload(t.Context())
	second := <-held.reads
	goOn = sync.OnceFunc(func() { close(second) })
	defer func() { goOn() }()
	gone, leave = context.WithCancel(t.Context())
	go reload(gone)
	await(t, "callers", 1, waiting)
	leave()
	if err := <-results; !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone: %v", err)
	}
	goOn()
	if err := <-results; err != nil {
		t.Error(err)
	}
	d.reloads.reading.Lock() // all have ended
	defer d.reloads.reading.Unlock()
	if s := d.readings.Metrics(); s.Config.Done != 4 {
		t.Errorf("%d configurations were activated", s.Config.Done)
	}
}
