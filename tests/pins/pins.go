// Package pins pins programs for tests.
package pins

import (
	"os"
	"testing"

	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/netif"
	"weir/tests/lab"
)

// New returns a directory of pins for one test, which must leave nothing in it.
func New(t testing.TB) loader.Pins {
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

// Attach attaches the program that load returns.
func Attach(d loader.Pins, to netif.Target, hook hooks.Hook, metadata []byte, load func(*loader.Stats) (*loader.Program, error)) (*loader.Attachment, error) {
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
