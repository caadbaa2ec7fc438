// Package daemon tests `weir run --config` under traffic: no listed packet
// passes and no unlisted one is lost, whatever happens to feeds, configuration,
// interfaces and the daemon itself. Numbered packets are sent continuously;
// each that should arrive is accounted for.
//
// Tests that measure times run one by one, the others beside each other.
//
// With WEIR_LONG=1 the tests run for minutes, with sets of 10 million entries.
package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/attach"
	"weir/loader"
	"weir/tests/binary"
	"weir/tests/lab"
	"weir/tests/must"
	"weir/tests/wait"
)

// releases are weir, in two versions.
var releases = []release{
	{name: "weir", version: "dev"}, // as in other packages
	{name: "weir-two", version: "two", flags: []string{"-ldflags=-w -X main.version=two"}},
}

type release struct {
	name, version string
	flags         []string // of go build
	path          string
}

// releaseBefore returns an earlier release, which hosts upgrade from. Its path is empty where the history
// of the repository is not there.
func releaseBefore(t testing.TB) release {
	t.Helper()
	path, err := binary.Former("weir", binary.ReleaseBefore)
	if err != nil && !errors.Is(err, binary.ErrNoHistory) {
		t.Fatal(err)
	}
	return release{name: "weir-former", version: "dev", path: path}
}

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "weir-daemon-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	for i := range releases {
		r := &releases[i]
		r.path = filepath.Join(dir, r.name)
		if err := binary.Build(dir, r.name, "weir", r.flags...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	lab.Parallel()
	return m.Run()
}

// host is the environment of a daemon: a wire, at whose end B it filters, and a
// directory for all its files.
type host struct {
	*lab.Lab
	t    testing.TB
	dir  string
	pins loader.Pins
	api  *client.Client

	inside bool // daemons run in the namespace of B
}

// newHost makes a host, of which nothing is left when the test ends.
func newHost(t testing.TB) *host {
	t.Helper()
	return hostAt(t, lab.New(t))
}

// hostAt makes a host of a wire.
func hostAt(t testing.TB, l *lab.Lab) *host {
	t.Helper()
	h := &host{Lab: l, t: t, dir: t.TempDir(), pins: loader.Pins("/sys/fs/bpf/" + l.B.Netns)}
	h.api = client.Dial(h.path("weir.sock"))
	t.Cleanup(func() {
		h.detach()
		if err := os.Remove(string(h.pins)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("pins are left: %v", err)
			os.RemoveAll(string(h.pins))
		}
	})
	return h
}

// detach takes weir off.
func (h *host) detach() {
	h.t.Helper()
	out, err := exec.Command(releases[0].path, "detach", "--all", "--pins", string(h.pins)).CombinedOutput()
	if err != nil {
		h.t.Errorf("detach: %v\n%s", err, out)
	}
}

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

// write replaces a file atomically and returns its path.
func (h *host) write(name string, text []byte) string {
	h.t.Helper()
	path := h.path(name)
	must.Write(h.t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// configure writes the configuration: the interface and further settings.
func (h *host) configure(iface string, format string, args ...any) {
	h.t.Helper()
	h.write("weir.yaml", fmt.Appendf(nil, "interfaces: [{name: %q, netns: %s}]\npins: %s\nstate_dir: %s\napi: {socket: %s}\nlearning: {elements: 0}\n"+format,
		append([]any{iface, h.B.Netns, h.pins, h.path("state"), h.path("weir.sock")}, args...)...))
}

// attachment returns the status of the end B.
func (h *host) attachment() attach.Status {
	h.t.Helper()
	all, err := attach.ReadStatus(h.pins)
	if err != nil || len(all) != 1 {
		h.t.Fatalf("%d attachments, want 1: %v", len(all), err)
	}
	return all[0]
}

// starter starts processes, on a thread that never ends.
var starter = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for call := range calls {
			call()
		}
	}()
	return calls
})

// start starts a process that is killed when the test binary ends: the kernel does that
// when the thread ends that has started it, and a thread of one test may end with another
// test's goroutine. netns is the process's network namespace, if it is not this one.
func start(c *exec.Cmd, netns string) error {
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	done := make(chan error)
	starter() <- func() {
		if netns == "" {
			done <- c.Start()
		} else {
			done <- lab.End{Netns: netns}.Do(c.Start)
		}
	}
	return <-done
}

// daemon is a process of weir.
type daemon struct {
	h       *host
	process *os.Process
	began   time.Time
	ended   chan struct{} // closed at the end of the process
	exit    int           // the exit code; set before ended is closed

	mu  sync.Mutex
	log []event
}

// event is a line of the log.
type event struct {
	at         time.Time // when it came here
	Time       time.Time // when it was logged
	Level, Msg string
	text       string
}

// begin starts a daemon, and kills it when the test ends.
func (h *host) begin(r release, flags ...string) *daemon {
	h.t.Helper()
	c := exec.Command(r.path, append([]string{"run", "--config", h.path("weir.yaml"), "--json", "--interval", "1h"}, flags...)...)
	d := &daemon{h: h, ended: make(chan struct{}), began: time.Now()}
	c.Stderr = d
	netns := ""
	if h.inside {
		netns = h.B.Netns
	}
	if err := start(c, netns); err != nil {
		h.t.Fatal(err)
	}
	d.process = c.Process
	go func() {
		c.Wait()
		d.exit = c.ProcessState.ExitCode()
		close(d.ended)
	}()
	h.t.Cleanup(func() {
		d.kill()
		if h.t.Failed() {
			h.t.Logf("log of process %d:\n%s", d.process.Pid, d.tail(40))
		}
	})
	return d
}

// start starts a daemon and waits until it filters and takes commands.
func (h *host) start(r release, flags ...string) *daemon {
	h.t.Helper()
	d := h.begin(r, flags...)
	d.ready()
	return d
}

func (d *daemon) ready() {
	d.h.t.Helper()
	d.await(0, "filtering")
	for deadline := wait.Deadline(); ; time.Sleep(time.Millisecond) {
		if _, err := d.h.api.Lists(d.h.t.Context()); err == nil {
			return
		} else if time.Now().After(deadline) {
			d.h.t.Fatal(err)
		}
	}
}

// Write takes in the log, as a command's standard error.
func (d *daemon) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for line := range bytes.Lines(b) { // slog writes whole ones
		e := event{at: time.Now(), text: strings.TrimSpace(string(line))}
		if json.Unmarshal(line, &e) != nil {
			e.Level, e.Msg = "TEXT", e.text
		}
		d.log = append(d.log, e)
	}
	return len(b), nil
}

// logged is how many lines the log has.
func (d *daemon) logged() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.log)
}

// after returns the line of the log after the first event, from a line on,
// whose message begins with a text; 0: there is none.
func (d *daemon) after(line int, prefix string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	for ; line < len(d.log); line++ {
		if strings.HasPrefix(d.log[line].Msg, prefix) {
			return line + 1
		}
	}
	return 0
}

// await waits for such an event, and returns the line after it.
func (d *daemon) await(line int, prefix string) int {
	d.h.t.Helper()
	for deadline := wait.Deadline(); ; time.Sleep(time.Millisecond) {
		gone := d.gone()
		if next := d.after(line, prefix); next > 0 {
			return next
		}
		if gone || time.Now().After(deadline) {
			d.h.t.Fatalf("no event %q (the process has ended: %t):\n%s", prefix, gone, d.tail(40))
		}
	}
}

// complain fails the test for warnings and errors in the log that do not begin with one of these
// texts, and say neither that the machine is busy, nor that nothing is failsafe, as in most tests.
func (d *daemon) complain(except ...string) {
	d.h.t.Helper()
	except = append(except, "the daemon was held up for too long", "packets are dropped, and nothing is failsafe")
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.log {
		if e.Level != "INFO" && e.Level != "DEBUG" &&
			!slices.ContainsFunc(except, func(x string) bool { return strings.HasPrefix(e.Msg, x) }) {
			d.h.t.Errorf("the log has %s", e.text)
		}
	}
}

func (d *daemon) tail(n int) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	first := min(10, max(0, len(d.log)-n)) // how it has started
	for _, e := range slices.Concat(d.log[:first], d.log[max(0, len(d.log)-n):]) {
		fmt.Fprintf(&b, "%8.3fs %s\n", e.at.Sub(d.began).Seconds(), e.text)
	}
	return b.String()
}

func (d *daemon) gone() bool {
	select {
	case <-d.ended:
		return true
	default:
		return false
	}
}

// kill is kill -9.
func (d *daemon) kill() {
	d.process.Kill() // which fails where it has ended
	<-d.ended
}

// stop stops the daemon as an init system does.
func (d *daemon) stop() {
	d.h.t.Helper()
	if err := d.process.Signal(syscall.SIGTERM); err != nil {
		d.h.t.Fatal(err)
	}
	d.end()
}

// end waits for the end of the process.
func (d *daemon) end() {
	d.h.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(wait.Patience):
		d.h.t.Fatalf("the process does not end:\n%s", d.tail(40))
	}
}

// change adds entries to a list that blocks, or removes them.
func (h *host) change(list string, remove bool, entries ...string) (*api.Changed, error) {
	return h.api.Change(h.t.Context(), api.Change{Remove: remove, Action: api.Block, List: list, Entries: entries})
}

func (h *host) mustChange(list string, remove bool, entries ...string) {
	h.t.Helper()
	c, err := h.change(list, remove, entries...)
	if err != nil {
		h.t.Fatal(err)
	}
	if c.Added+c.Removed != len(entries) || remove == (c.Added > 0) {
		h.t.Errorf("%d entries changed (removed: %t) as %+v", len(entries), remove, c)
	}
}

// list returns a list as it is now.
func (h *host) list(name string) api.List {
	h.t.Helper()
	var all *api.Lists
	asked := time.Now()
	h.eventually("the daemon describes its lists", func() (described bool) {
		var err error
		if all, err = h.api.Lists(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
		return !all.At.Before(asked)
	})
	i := slices.IndexFunc(all.Lists, func(l api.List) bool { return l.Name == name })
	if i < 0 {
		h.t.Fatalf("no list %s: %+v", name, all.Lists)
	}
	return all.Lists[i]
}

// settled waits until a list's feed was read for the first time by its schedule:
// from then on only a refresh reads it.
func (h *host) settled(name string) {
	h.t.Helper()
	for deadline := wait.Deadline(); ; time.Sleep(5 * time.Millisecond) {
		l := h.list(name)
		if !slices.ContainsFunc(l.Feeds, func(f api.FeedSource) bool { return f.Next == nil }) {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("the feed is not read: %+v", l)
		}
	}
}

// refresh reads a list's feed, which must have as many entries then.
func (h *host) refresh(name string, entries int) {
	h.t.Helper()
	r, err := h.api.Refresh(h.t.Context(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	// The daemon follows the file, and may have read it before.
	if len(r.Sources) != 1 || r.Sources[0].Outcome != "new" && r.Sources[0].Outcome != "unchanged" || r.Sources[0].Entries != entries {
		h.t.Fatalf("refreshed %+v, want %d entries", r.Sources, entries)
	}
}

// takeOver starts a daemon that takes over from another, and returns it.
func (h *host) takeOver(from *daemon, r release) *daemon {
	h.t.Helper()
	next := h.begin(r, "--takeover")
	next.ready()
	from.end()
	return next
}

// stopped stops a daemon's process for as long as a function takes.
func (h *host) stopped(d *daemon, meanwhile func()) {
	h.t.Helper()
	if err := d.process.Signal(syscall.SIGSTOP); err != nil {
		h.t.Fatal(err)
	}
	meanwhile()
	if err := d.process.Signal(syscall.SIGCONT); err != nil {
		h.t.Fatal(err)
	}
}

// explain checks the verdict on a source's packets.
func (h *host) explain(source string, drops bool) {
	h.t.Helper()
	e, err := h.api.Explain(h.t.Context(), source)
	if err != nil {
		h.t.Fatal(err)
	}
	if e.Drops() != drops || (len(e.Answers[0].Matches) > 0) != drops {
		h.t.Errorf("explain %s: %+v, want drop: %t", source, e, drops)
	}
}
