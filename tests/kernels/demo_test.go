package kernels

import (
	"os"
	"os/exec"
	"testing"

	"weir/tests/lab"
)

// The demo, in guests, from the binary that is built for them: packets of a list are dropped,
// and others are not, while the list is exchanged. tests/cli has the same for this machine.
func TestDemo(t *testing.T) {
	lab.Root(t)
	weir := os.Getenv("WEIR_BINARY")
	if weir == "" {
		return
	}
	out, err := exec.Command(weir, "demo", "--seconds", "3", "--entries", "20000").CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}
