package kernels

import (
	"errors"
	"testing"

	"weir/loader"
)

// The benchmark's programs want more of the kernel than weir's own, and say so.
func TestBench(t *testing.T) {
	g := generation(t)
	b, err := g.NewBench(0, 0, 0)
	told(t, err)
	if want := atLeast(t, 5, 17); want && err != nil || !want && !errors.Is(err, loader.ErrUnsupported) {
		t.Error(err)
	}
	if err == nil {
		b.Close()
	}
}
