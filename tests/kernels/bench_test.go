package kernels

import (
	"errors"
	"testing"

	"weir/loader/kernelerr"
	"weir/tests/bench/probe"
	"weir/tests/lab"
)

// Benchmarks need a later kernel than weir does, and say so.
func TestBench(t *testing.T) {
	g := generation(t)
	keys, err := probe.NewKeys()
	attribute(t, err)
	if want := lab.KernelAtLeast(t, 5, 17); want != (err == nil) || !want && !errors.Is(err, kernelerr.ErrUnsupported) {
		t.Error(err)
	}
	if err != nil {
		return
	}
	defer keys.Close()
	b, err := probe.Load(g, keys)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.Loop("weir", 1); err != nil {
		t.Error(err)
	}
	if _, err := b.Wire(); err != nil {
		t.Error(err)
	}
}
