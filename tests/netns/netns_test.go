// Package netns tests weir on the wire: real frames between two network
// namespaces, through a program that is attached as it is in use.
package netns

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/run"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/loader"
	"weir/tests/lab"
)

// pins is a directory of pins for one test, which must leave nothing in it.
func pins(t *testing.T) loader.Pins {
	t.Helper()
	lab.Root(t)
	dir, err := os.MkdirTemp("/sys/fs/bpf", "weir-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("pins are left: %v", err)
			os.RemoveAll(dir)
		}
	})
	return loader.Pins(dir)
}

func target(e lab.End) loader.Target { return loader.Target{Netns: e.Netns, Iface: e.Iface} }

// attachLoaded attaches the program that load returns.
func attachLoaded(d loader.Pins, to loader.Target, hook loader.Hook, metadata []byte, load func(*loader.Stats) (*loader.Program, error)) (*loader.Attachment, error) {
	p, err := d.Prepare(to, hook)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	program, err := load(p.Stats())
	if err != nil {
		return nil, err
	}
	return p.Attach(program, metadata)
}

// attach attaches a generation at the lab's end B until the test ends.
func attach(t *testing.T, l *lab.Lab, mode loader.Hook, g *engine.Generation) *loader.Attachment {
	t.Helper()
	a, err := attachLoaded(pins(t), target(l.B), mode, nil, g.Load)
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

// patience is how long to wait for a frame that must come.
const patience = 5 * time.Second

// frameOf is the frame of a packet.
func frameOf(t key.Tuple) []byte { return packet.Frame(t) }

// serve runs a filter until the test ends.
func serve(t *testing.T, o run.Options) *run.Filter {
	t.Helper()
	f, err := run.Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- f.Serve(ctx, nil, time.Minute, func(run.Rates) {}) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	})
	return f
}
