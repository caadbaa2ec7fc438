package api

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

	"weir/control/engine"
	"weir/control/observe/events"
	"weir/tests/lab"
)

// source is a daemon with fixed answers.
type source struct {
	status  Status
	top     *Top
	weights *Weights
	traced  *Traced
}

func (s source) Status() Status    { return s.status }
func (s source) Top() *Top         { return s.top }
func (s source) Weights() *Weights { return s.weights }

func (s source) Trace(context.Context, TraceQuestion) (*Traced, error) {
	if s.traced == nil {
		return nil, ErrNoDigests
	}
	return s.traced, nil
}

func (s source) Events(events.Want) (<-chan events.Event, func()) { return nil, func() {} }

// serve serves a source on a socket until the test ends or stop is called.
func serve(t *testing.T, path string, s snapshots) (stop func()) {
	t.Helper()
	return serveHandler(t, path, Handler(daemon{s, nil}))
}

func serveHandler(t *testing.T, path string, h http.Handler) (stop func()) {
	t.Helper()
	l, err := Listen(path)
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
		status: Status{
			Version: "1", PID: 7, Started: until, Pins: "/sys/fs/bpf/weir", Entries: 9, Mode: "exact",
			Interfaces: []InterfaceStatus{{"eth0", "lab", "in", Unfiltered, "native", "no native XDP", 3, 1, new(7996), 8192}},
		},
		top: &Top{
			Time: until, Version: "1", Interfaces: []string{"eth0"}, Uptime: 60, Interval: 1,
			Packets: 3, Bytes: 300, Dropped: 1,
			Reasons: []ReasonRate{{"blocked", 1, 100, 7, true}},
			Out:     &Sent{5, 500, 2, []ReasonRate{{"blocked", 2, 200, 9, true}}},
			Trackers: []Tracker{{
				Key: "src", Unit: "packets", Interval: 1, Threshold: "1000/s", Action: "block 60s", Packets: 3, Bytes: 300, Denied: 2,
				Flows: []Flow{{"192.0.2.1", 1, 100, true, 0.9, 90, &rate, []string{"blocked"}, []string{"feed"}, 0.5, true, Blocked, &until}},
			}},
			Monitor: true, Problems: []string{"interface eth1 is gone"},
			Sources: &[]DropRate{{"192.0.2.1", "in", "blocked", "feed", 1, 0.9, 100}},
			Filter: Filter{
				Entries: 9, Mode: "exact", Generation: 2, KernelBytes: 4096, Hot: 3,
				FalsePositiveRate: 1e-4, WeightedPredicted: &rate, Measured: &rate,
				Lists: []ListRate{{"feed", 1, 7}},
			},
		},
		weights: &Weights{
			Base: 8, HalfLife: 30, Predicted: 1e-5, Uniform: 1e-4, Measured: &rate, MeasuredPackets: 1000,
			Elements: []Weight{{"192.0.2.1", 100, 0.5, 12, true, 0}},
		},
	}
	path := socket(t)
	serve(t, path, s)
	c := Dial(path)
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
	s := source{top: &Top{Trackers: []Tracker{{}}}, weights: &Weights{}}
	for _, path := range []string{topPath, weightsPath} {
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

func TestRefusals(t *testing.T) {
	nothing := source{}
	for _, c := range []struct {
		name, method, path string
		source             snapshots
		status             int
		want, allow        string
	}{
		{"no rates yet", "GET", topPath, nothing, 503, "try again", ""},
		{"nothing learned", "GET", weightsPath, nothing, 404, "learns no weights", ""},
		{"unknown path", "GET", "/v1/tops", nothing, 404, "this is a daemon, which has no /v1/tops: it has /v1/status, /v1/top, ", ""},
		{"unknown version", "GET", "/v2/top", nothing, 404, "/v1/top", ""},
		{"root", "GET", "/", nothing, 404, "/v1/top", ""},
		{"wrong method", "POST", topPath, nothing, 405, "use GET", "GET"},
		{"no number", "GET", topPath, source{top: &Top{Packets: math.NaN()}}, 500, "NaN", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRecorder()
			Handler(daemon{c.source, nil}).ServeHTTP(r, httptest.NewRequest(c.method, c.path, nil))
			var f failure
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
			if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not a socket"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "weir.sock")
			c.at(t, path)
			l, err := Listen(path)
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
	if _, err := Listen("/" + strings.Repeat("x", maxPath)); err == nil || !strings.Contains(err.Error(), "108 bytes") {
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
				l, _ := Listen(path)
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
	old, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	serve(t, path, source{top: &Top{}})
	if err := old.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Dial(path).Top(t.Context()); err != nil {
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
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
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
			_, err := Dial(path).Top(t.Context())
			if want := strings.ReplaceAll(c.want, "PATH", path); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
			// A stream fails likewise before it begins.
			_, failed := Dial(path).Events(t.Context(), Events{})
			if running := !errors.Is(err, ErrNotRunning); running == errors.Is(failed, ErrNotRunning) || !running && failed.Error() != err.Error() {
				t.Errorf("events: got %v, want %v", failed, err)
			}
		})
	}
}

func TestClientNamesTheGroup(t *testing.T) {
	denied := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EACCES)}
	path := filepath.Join(t.TempDir(), "weir.sock")
	err := Dial(path).unreachable(t.Context(), denied)
	if err == nil || !strings.HasSuffix(err.Error(), "you need to be root") {
		t.Errorf("hidden: %v", err)
	}
	lab.Root(t) // to give the socket to another group
	stale(t, path)
	err = Dial(path).unreachable(t.Context(), denied)
	if err == nil || !strings.HasSuffix(err.Error(), "you need to be root") {
		t.Errorf("root's: %v", err)
	}
	const unnamed = 4242424
	if err := os.Chown(path, 0, unnamed); err != nil {
		t.Fatal(err)
	}
	err = Dial(path).unreachable(t.Context(), denied)
	if err == nil || !strings.HasSuffix(err.Error(), "you need to be root or in group 4242424") {
		t.Errorf("with a group: %v", err)
	}
}

// A client goes on where weir was started anew.
func TestClientOutlivesARestart(t *testing.T) {
	path := socket(t)
	stop := serve(t, path, source{top: &Top{Version: "1"}})
	c := Dial(path)
	if _, err := c.Top(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := c.Top(t.Context()); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("meanwhile: %v", err)
	}
	serve(t, path, source{top: &Top{Version: "2"}})
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
	if _, err := Dial(path).Top(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// snapshots and controls are the two halves of a Daemon.
type (
	snapshots interface {
		Status() Status
		Top() *Top
		Weights() *Weights
		Events(events.Want) (<-chan events.Event, func())
		Trace(context.Context, TraceQuestion) (*Traced, error)
	}
	controls interface {
		Explain(context.Context, []engine.Question) ([]engine.Answer, error)
		Lists() []List
		Drops(context.Context, DropsQuestion) (Drops, error)
		History(context.Context, HistoryQuestion) (History, error)
		Change(context.Context, Change) (Changed, error)
		Entries(context.Context, EntriesQuestion) (Entries, error)
		Flush(ctx context.Context, list string) (Changed, error)
		Export(ctx context.Context, list, format string) (Export, error)
		Refresh(ctx context.Context, list string, accept bool) ([]FetchOutcome, error)
		Reload(context.Context) (Reloaded, error)
		ReloadUnconfirmed(context.Context, time.Duration) (Reloaded, error)
		Confirm(context.Context) error
		SetMonitor(context.Context, MonitorChange) (Monitored, error)
		TestNotify(context.Context, string) ([]NotifyTested, error)
		Multicast() (Multicast, error)
		ChangeMulticast(context.Context, MulticastChange) (MulticastChanged, error)
		Audit(limit int) []AuditRecord
		OpenConsole(context.Context, ConsoleRequest) (ConsoleOpened, error)
		EndConsole(context.Context) (ConsoleEnded, error)
	}
)

// daemon is a Daemon of two halves, of which the test needs one.
type daemon struct {
	snapshots
	controls
}
