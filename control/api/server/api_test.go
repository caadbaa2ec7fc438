package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	forwarding "weir/control/stage/multicast"
	"weir/tests/must"
)

// source is a daemon with fixed answers.
type source struct {
	status  api.Status
	top     *api.Top
	weights *api.Weights
	traced  *api.Traced
}

func (s source) Status() api.Status { return s.status }

func (s source) Top() *api.Top { return s.top }

func (s source) Weights() *api.Weights { return s.weights }

func (s source) Floods() api.Floods { return api.Floods{} }

func (s source) Trace(context.Context, api.TraceQuestion) (*api.Traced, error) {
	if s.traced == nil {
		return nil, api.ErrNoDigests
	}
	return s.traced, nil
}

func (s source) Subscribe(api.Events) (Subscription, error) { return newTeller(), nil }

// serve serves a source on a socket until the test ends or stop is called.
func serve(t *testing.T, path string, s snapshots) (stop func()) {
	t.Helper()
	return serveHandler(t, path, Handler(daemon{s, nil}))
}

func serveHandler(t *testing.T, path string, h http.Handler) (stop func()) {
	t.Helper()
	l, err := ListenGroup(path, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil // for another call of stop
	}
	t.Cleanup(stop)
	return stop
}

func socket(t *testing.T) string { return filepath.Join(t.TempDir(), "weir", "weir.sock") }

func TestWhatIsAskedForArrives(t *testing.T) {
	until := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	rate := 1e-5
	s := source{
		status: api.Status{
			Version: "1", PID: 7, Started: until, Pins: "/sys/fs/bpf/weir", Entries: 9, Mode: "exact",
			Interfaces: []api.InterfaceStatus{{Interface: "eth0", Netns: "lab", Direction: "in", State: api.Unfiltered, XDP: "native", Problem: "no native XDP", Packets: 3, Dropped: 1, Penalties: new(7996), MaxPenalties: 8192}},
		},
		top: &api.Top{
			Time: until, Version: "1", Interfaces: []string{"eth0"}, Uptime: 60, Interval: 1,
			Packets: 3, Bytes: 300, Dropped: 1,
			Reasons: []api.ReasonRate{{Reason: "blocked", Packets: 1, Bytes: 100, Total: 7, Drops: true}},
			Out:     &api.Sent{Packets: 5, Bytes: 500, Dropped: 2, Reasons: []api.ReasonRate{{Reason: "blocked", Packets: 2, Bytes: 200, Total: 9, Drops: true}}},
			Trackers: []api.Tracker{{
				Key: "src", Unit: "packets", Interval: 1, Threshold: "1000/s", Action: "block 60s", Packets: 3, Bytes: 300, Denied: 2,
				Flows: []api.Flow{{Key: "192.0.2.1", Packets: 1, Bytes: 100, Estimate: true, LeastPackets: 0.9, LeastBytes: 90, Dropped: &rate, Reasons: []string{"blocked"}, Lists: []string{"feed"}, Share: 0.5, Heavy: true, State: api.Blocked, Until: &until}},
			}},
			Sampled: []api.Tracker{{
				Key: "dst", Unit: "packets", Interval: 10, Packets: 3, Bytes: 300, Sample: &api.Sample{Packets: 15, OneIn: 2},
				Flows: []api.Flow{{Key: "> 192.0.2.1", Packets: 3, Bytes: 300, LeastPackets: 2.4, MostPackets: 3, Reasons: []string{"blocked"}, Lists: []string{}, Share: 1}},
			}},
			Monitor: true, Problems: []string{"interface eth1 is gone"},
			Sources: &[]api.DropRate{{Source: "192.0.2.1", Direction: "in", Reason: "blocked", List: "feed", Packets: 1, Least: 0.9, Bytes: 100}},
			Filter: api.Filter{
				Entries: 9, Mode: "exact", Generation: 2, KernelBytes: 4096, Hot: 3,
				Predicted: 1e-4, WeightedPredicted: &rate, FalsePositives: api.FalsePositives{Rate: &rate, Low: &rate, High: &rate, Packets: 1000},
				Lists: []api.ListRate{{Name: "feed", Packets: 1, Total: 7}},
			},
		},
		weights: &api.Weights{
			Base: 8, HalfLife: 30, Predicted: 1e-5, Uniform: 1e-4, Without: &rate, FalsePositives: api.FalsePositives{Rate: &rate, Low: &rate, High: &rate, Packets: 1000}, Spared: 3, Dropped: 2, Refused: 1,
			Elements: []api.Weight{{Element: "192.0.2.1", K: 24, Found: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Dropped: 1.5}},
		},
	}
	path := socket(t)
	serve(t, path, s)
	c := client.Dial(path)
	if status, err := c.Status(t.Context()); err != nil || !reflect.DeepEqual(*status, s.status) || status.Complete() {
		t.Errorf("got %+v, %v, want %+v", status, err, s.status)
	}
	top, err := c.Top(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(top, s.top) {
		t.Errorf("got %+v, want %+v", top, s.top)
	}
	weights, err := c.Weights(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(weights, s.weights) {
		t.Errorf("got %+v, want %+v", weights, s.weights)
	}
}

// A script must be able to go through any list without a look whether it is there.
func TestListsAreNeverNull(t *testing.T) {
	s := source{top: &api.Top{Trackers: []api.Tracker{{}}}, weights: &api.Weights{}}
	for _, path := range []string{api.TopPath, api.WeightsPath} {
		r := httptest.NewRecorder()
		Handler(daemon{s, nil}).ServeHTTP(r, httptest.NewRequest(http.MethodGet, path, nil))
		if body := r.Body.String(); r.Code != http.StatusOK || strings.Contains(body, "null") {
			t.Errorf("%s: %d %s", path, r.Code, body)
		}
	}
	if s.top.Trackers[0].Flows != nil {
		t.Error("the source's own value was changed")
	}
}

// A limit bounds the flows of each tracker and the dropped sources, and leaves the daemon's own
// as they are.
func TestLimitOfTop(t *testing.T) {
	flows := make([]api.Flow, api.MaxTop)
	sources := make([]api.DropRate, api.MaxTop)
	s := source{top: &api.Top{Trackers: []api.Tracker{{Flows: flows, More: 5}, {Flows: flows[:1]}}, Sources: &sources}}
	for query, want := range map[string]int{"": api.MaxTop, "?limit=1": 1, "?limit=7": 7, "?limit=100": api.MaxTop} {
		r := httptest.NewRecorder()
		Handler(daemon{s, nil}).ServeHTTP(r, httptest.NewRequest(http.MethodGet, api.TopPath+query, nil))
		var got api.Top
		if err := json.Unmarshal(r.Body.Bytes(), &got); err != nil {
			t.Fatalf("%q: %s", query, r.Body)
		}
		if a, b, c := len(got.Trackers[0].Flows), len(got.Trackers[1].Flows), len(*got.Sources); a != want || b != 1 || c != want {
			t.Errorf("%q: %d and %d flows, %d sources, want %d", query, a, b, c, want)
		}
		if a, b := got.Trackers[0].More, got.Trackers[1].More; a != 5+api.MaxTop-want || b != 0 {
			t.Errorf("%q: %d and %d more, of %d", query, a, b, 5+api.MaxTop)
		}
	}
	if s.top.Trackers[0].Flows[0].Reasons != nil || len(s.top.Trackers[0].Flows) != api.MaxTop || len(*s.top.Sources) != api.MaxTop {
		t.Error("the daemon's own value was changed")
	}
}

func TestRefusals(t *testing.T) {
	nothing := source{}
	for _, c := range []struct {
		name, method, path string
		source             snapshots
		status             int
		want, allow        string
	}{
		{"no rates yet", "GET", api.TopPath, nothing, 503, "try again", ""},
		{"a limit of nothing", "GET", api.TopPath + "?limit=0", nothing, 400, `limit="0": want 1 to 100`, ""},
		{"a limit that is too large", "GET", api.TopPath + "?limit=101", nothing, 400, `limit="101": want 1 to 100`, ""},
		{"a limit that is no number", "GET", api.TopPath + "?limit=1e9", nothing, 400, `limit="1e9": want 1 to 100`, ""},
		{"an unknown parameter", "GET", api.TopPath + "?last=5", nothing, 400, `unknown parameter "last": want limit`, ""},
		{"nothing learned", "GET", api.WeightsPath, nothing, 404, "learns no weights", ""},
		{"unknown path", "GET", "/v1/tops", nothing, 404, "this is a daemon, which has no /v1/tops: it has /v1/status, /v1/top, ", ""},
		{"unknown version", "GET", "/v2/top", nothing, 404, "/v1/top", ""},
		{"root", "GET", "/", nothing, 404, "/v1/top", ""},
		{"wrong method", "POST", api.TopPath, nothing, 405, "use GET", "GET"},
		{"no number", "GET", api.TopPath, source{top: &api.Top{Packets: math.NaN()}}, 500, "NaN", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRecorder()
			Handler(daemon{c.source, nil}).ServeHTTP(r, httptest.NewRequest(c.method, c.path, nil))
			var f api.Failure
			if err := json.Unmarshal(r.Body.Bytes(), &f); err != nil {
				t.Fatalf("%q: %v", r.Body, err)
			}
			if r.Code != c.status || !strings.Contains(f.Error, c.want) || r.Header().Get("Allow") != c.allow ||
				r.Header().Get("Content-Type") != "application/json" {
				t.Errorf("got %d %v %q, want %d %q", r.Code, r.Header(), f.Error, c.status, c.want)
			}
		})
	}
}

func TestSocketIsForRootAndItsGroup(t *testing.T) {
	before := syscall.Umask(0o077)
	defer syscall.Umask(before)
	path := socket(t)
	serve(t, path, source{})
	for name, want := range map[string]os.FileMode{filepath.Dir(path): 0o755, path: 0o660} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s: mode %o, want %o", name, got, want)
		}
	}
}

// stale leaves a socket as a process does that was killed.
func stale(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

func TestListen(t *testing.T) {
	for _, c := range []struct {
		name string
		at   func(t *testing.T, path string) // makes what is there before
		want string                          // in the error; "" is none
	}{
		{"nothing there", func(*testing.T, string) {}, ""},
		{"left by a dead process", stale, ""},
		{"a living process", func(t *testing.T, path string) { serve(t, path, source{}) }, "another process listens there"},
		{"a process that creates it, and is stopped", func(t *testing.T, path string) {
			stale(t, path)
			unlock, err := lock(path + ".lock")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unlock() })
		}, "another process is creating this socket"},
		{"a file", func(t *testing.T, path string) {
			must.Write(t, path, "precious")
		}, "not a socket"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "weir.sock")
			c.at(t, path)
			l, err := ListenGroup(path, "")
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
				if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the socket is left behind: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if _, err := os.Lstat(path); err != nil {
				t.Errorf("what was there is gone: %v", err)
			}
		})
	}
	if _, err := ListenGroup("/"+strings.Repeat("x", maxPath), ""); err == nil || !strings.Contains(err.Error(), "108 bytes") {
		t.Errorf("a path that is too long: %v", err)
	}
}

// Of many that start at once where a dead one has left its socket, one gets it.
func TestOneListensOfMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.sock")
	const rounds, many = 100, 8
	for range rounds {
		stale(t, path)
		got := make(chan net.Listener, many)
		for range many {
			go func() {
				l, _ := ListenGroup(path, "")
				got <- l
			}()
		}
		var listening []net.Listener
		for range many {
			if l := <-got; l != nil {
				listening = append(listening, l)
			}
		}
		for _, l := range listening {
			l.Close()
		}
		if len(listening) != 1 {
			t.Fatalf("%d listen", len(listening))
		}
	}
}

// A socket that has been made anew at the same path is not this listener's.
func TestCloseLeavesAnothersSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.sock")
	old, err := ListenGroup(path, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	serve(t, path, source{top: &api.Top{}})
	if err := old.Close(); err != nil {
		t.Error(err)
	}
	if _, err := client.Dial(path).Top(t.Context()); err != nil {
		t.Error(err)
	}
}

// answering listens on a socket and sends every client the same.
func answering(t *testing.T, path, answer string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				c.Read(make([]byte, 4096))
				io.WriteString(c, answer)
			}()
		}
	}()
}

func TestClientSaysWhatToDo(t *testing.T) {
	for _, c := range []struct {
		name string
		at   func(t *testing.T, path string)
		want string
	}{
		{"no socket", func(*testing.T, string) {}, "the daemon is not running: PATH does not exist; start `weir run`"},
		{"left by a dead process", stale, "the daemon is not running: nothing listens at PATH any more; start `weir run`"},
		{"a file", func(t *testing.T, path string) {
			must.Write(t, path, "")
		}, "PATH is not a socket"},
		{"without an answer", func(t *testing.T, path string) { serve(t, path, source{}) }, "the daemon has just started"},
		{"another server", func(t *testing.T, path string) {
			answering(t, path, "HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nwhat?")
		}, "the server at PATH is not weir: it answers 404 Not Found to /v1/top"},
		{"no JSON", func(t *testing.T, path string) {
			answering(t, path, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhat?")
		}, "answer of the daemon at PATH to /v1/top: invalid character"},
		{"no HTTP", func(t *testing.T, path string) { answering(t, path, "220 smtp\r\n") }, "ask the daemon at PATH: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "weir.sock")
			c.at(t, path)
			_, err := client.Dial(path).Top(t.Context())
			if want := strings.ReplaceAll(c.want, "PATH", path); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
			// A stream fails likewise before it begins.
			_, failed := client.Dial(path).Events(t.Context(), api.Events{})
			if running := !errors.Is(err, client.ErrNotRunning); running == errors.Is(failed, client.ErrNotRunning) || !running && failed.Error() != err.Error() {
				t.Errorf("events: got %v, want %v", failed, err)
			}
		})
	}
}

// A client goes on where weir was started anew.
func TestClientOutlivesARestart(t *testing.T) {
	path := socket(t)
	stop := serve(t, path, source{top: &api.Top{Version: "1"}})
	c := client.Dial(path)
	if _, err := c.Top(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := c.Top(t.Context()); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("meanwhile: %v", err)
	}
	serve(t, path, source{top: &api.Top{Version: "2"}})
	top, err := c.Top(t.Context())
	if err != nil || top.Version != "2" {
		t.Errorf("got %+v, %v", top, err)
	}
}

func TestClientStopsWhenToldTo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.sock")
	l, err := net.Listen("unix", path) // and nothing answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.Dial(path).Top(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// snapshots and controls are the two halves of a Daemon.
type (
	snapshots interface {
		Status() api.Status
		Top() *api.Top
		Weights() *api.Weights
		Floods() api.Floods
		Subscribe(api.Events) (Subscription, error)
		Trace(context.Context, api.TraceQuestion) (*api.Traced, error)
	}
	controls interface {
		Explain(context.Context, string, bool) (api.Explanation, error)
		ExplainFrames(context.Context, [][]byte) ([]api.Explanation, error)
		Lists() api.Lists
		Drops(context.Context, api.DropsQuestion) (api.Drops, error)
		History(context.Context, api.HistoryQuestion) (api.History, error)
		Change(context.Context, api.Change) (api.Changed, error)
		Entries(context.Context, api.EntriesQuestion) (api.Entries, error)
		Flush(ctx context.Context, list string, c api.FlushChange) (api.Changed, error)
		Export(ctx context.Context, list, format string) (api.Export, error)
		Refresh(ctx context.Context, list string, accept bool) ([]api.FetchOutcome, error)
		Versions(ctx context.Context, list string, diff ...string) (api.ListVersions, error)
		Worth(context.Context) (api.ListsWorth, error)
		Collateral(context.Context, string) (api.Collateral, error)
		Rollback(ctx context.Context, list string) (api.FetchOutcome, error)
		Reload(context.Context) (api.Reloaded, error)
		ReloadUnconfirmed(context.Context, time.Duration) (api.Reloaded, error)
		Confirm(context.Context) error
		Enforce(ctx context.Context, list string, c api.EnforceChange) (api.Enforced, error)
		SetMonitor(context.Context, api.MonitorChange) (api.Monitored, error)
		SetPolice(context.Context, api.PoliceChange) (api.Policed, error)
		TestNotify(context.Context, string) ([]api.NotifyTested, error)
		forwarding.Forwarder
		Audit(limit int) []api.AuditRecord
		OpenConsole(context.Context, api.ConsoleRequest) (api.ConsoleOpened, error)
		EndConsole(context.Context) (api.ConsoleEnded, error)
	}
)

// daemon is a Daemon of two halves, of which the test needs one.
type daemon struct {
	snapshots
	controls
}

// Routes returns the routes of stages.
func (d daemon) Routes() []api.Route { return forwarding.Routes(d.controls) }
