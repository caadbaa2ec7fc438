package kernels

import (
	"errors"
	"testing"

	"weir/loader"
)

// The benchmark's programs want more of the kernel than weir's own, and say so.
func TestBench(t *testing.T) {
	g := generation(t)
	keys, err := loader.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	b, err := g.NewBench(keys)
	told(t, err)
	if want := atLeast(t, 5, 17); want && err != nil || !want && !errors.Is(err, loader.ErrUnsupported) {
		t.Error(err)
	}
	if err == nil {
		b.Close()
	}
}
