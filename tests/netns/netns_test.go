// Package netns tests weir on the wire: real frames between two network
// namespaces, through a program that is attached as it is in use.
package netns

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/control/api/client"
	"weir/control/config"
	"weir/control/daemon"
	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/must"
	"weir/tests/pins"
	"weir/tests/wait"
)

func target(e lab.End) netif.Target { return netif.Target{Netns: e.Netns, Iface: e.Iface} }

// attachGeneration attaches a generation at the lab's end B until the test ends.
func attachGeneration(t *testing.T, l *lab.Lab, mode hooks.Hook, g *engine.Generation) *loader.Attachment {
	t.Helper()
	return untilEnd(t, target(l.B), mode, g.Load)
}

// untilEnd attaches the program that load returns until the test ends.
func untilEnd(t *testing.T, to netif.Target, hook hooks.Hook, load func(*loader.Stats) (*loader.Program, error)) *loader.Attachment {
	t.Helper()
	a, err := pins.Attach(pins.New(t), to, hook, nil, load)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(a.Detach(), a.Close()); err != nil {
			t.Error(err)
		}
	})
	return a
}

// lists returns a block list, which is list 1, and an allow list, list 2.
func lists(block, allow []key.Key) []engine.List {
	return []engine.List{{Name: "block", Contents: list.SetOf(block...)}, {Name: "allow", Allow: true, Contents: list.SetOf(allow...)}}
}

func build(t *testing.T, lists []engine.List, c engine.Config) *engine.Generation {
	t.Helper()
	g, err := engine.Build(lists, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

func TestMain(m *testing.M) {
	lab.Parallel()
	m.Run()
}

// frameOf is the frame of a packet.
func frameOf(t key.Tuple) []byte { return packet.Frame(t) }

// logBuffer keeps what is logged, with the time.
type logBuffer struct {
	mu    sync.Mutex
	lines []logLine
}

type logLine struct {
	at   time.Time
	text string
}

// Write implements io.Writer.
func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, logLine{time.Now(), string(b)})
	return len(b), nil
}

// String returns all of it.
func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, e := range l.lines {
		b.WriteString(e.text)
	}
	return b.String()
}

// await waits for a line with all of these words, from a time on.
func (l *logBuffer) await(t *testing.T, from time.Time, patience time.Duration, words ...string) time.Time {
	t.Helper()
	for deadline := from.Add(patience); ; time.Sleep(5 * time.Millisecond) {
		l.mu.Lock()
		for _, e := range l.lines {
			all := !e.at.Before(from)
			for _, w := range words {
				all = all && strings.Contains(e.text, w)
			}
			if all {
				l.mu.Unlock()
				return e.at
			}
		}
		l.mu.Unlock()
		if time.Now().After(deadline) {
			t.Fatalf("no line with %q within %v:\n%s", words, patience, l)
		}
	}
}

// filter is a daemon in this process.
type filter struct {
	*daemon.Daemon
	*daemon.API
	config  *config.Config // read again at each reload
	reading func()         // runs first when it is read; nil: nothing does
	log     *logBuffer
}

// Read implements [config.Reader].
func (f *filter) Read() (*config.Config, error) {
	if f.reading != nil {
		f.reading()
	}
	if err := f.config.Validate(); err != nil {
		return nil, err
	}
	c := *f.config // the daemon compares it with the last one
	c.Interfaces, c.Lists = slices.Clone(c.Interfaces), slices.Clone(c.Lists)
	return &c, nil
}

// start starts the daemon, which runs until stop is called, and waits until it answers.
func (f *filter) start(t *testing.T, source config.Reader) (stop func()) {
	t.Helper()
	var err error
	o := daemon.Options{Config: source, Version: "test", Log: slog.New(slog.NewTextHandler(f.log, nil))}
	if f.Daemon, err = daemon.Start(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	f.API = f.Daemon.API()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- f.Run(ctx, nil, time.Minute, nil) }()
	stop = func() {
		cancel()
		if err := errors.Join(<-ended, f.Stop()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(f.log)
		}
	}
	if f.config == nil { // its source knows the socket, and its test needs no answers
		return stop
	}
	client := client.Dial(string(f.config.API.Socket))
	for deadline := wait.Deadline(); ; time.Sleep(10 * time.Millisecond) {
		if _, err := client.Lists(t.Context()); err == nil {
			return stop
		} else if time.Now().After(deadline) {
			stop()
			t.Fatal(err)
		}
	}
}

// serve filters by a configuration until the test ends.
func serve(t *testing.T, c *config.Config) *filter {
	t.Helper()
	f := &filter{config: c, log: &logBuffer{}}
	t.Cleanup(f.start(t, f))
	return f
}

// configuration returns a configuration with an API, that filters on interfaces,
// which must be there, until it ends, and keeps nothing.
func configuration(t *testing.T, on ...netif.Target) *config.Config {
	t.Helper()
	c := config.Default()
	c.Pins, c.Keep, c.StateDir = pins.New(t), false, ""
	c.API.Socket = config.Path(filepath.Join(t.TempDir(), "weir.sock"))
	for _, at := range on {
		c.Interfaces = append(c.Interfaces, config.Interface{Name: at.Iface, Netns: at.Netns, Required: true})
	}
	return c
}

// addList adds a list to a configuration, which is called after its file.
func addList(t *testing.T, c *config.Config, action config.Action, file, text string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), file)
	must.Write(t, path, text)
	if _, err := c.AddFile(path, action); err != nil {
		t.Fatal(err)
	}
}
