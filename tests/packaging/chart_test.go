package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"weir/control/config"
	"weir/tests/long"
)

// Runs the tests of the Helm chart, which are a module of their own, and reads the configurations
// that it renders.
func TestChart(t *testing.T) {
	long.Only(t, "fetches and builds Helm's engine")
	dir := t.TempDir()
	test := exec.Command("go", "test", "-count=1", "./...")
	test.Dir = root + "/tests/chart"
	test.Env = append(os.Environ(), "CGO_ENABLED=0", "WEIR_RENDERED="+dir)
	output(t, test)
	rendered, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(rendered) < 3 {
		t.Fatalf("rendered %q, %v", rendered, err)
	}
	for _, path := range rendered {
		if _, err := config.Load(path); err != nil {
			t.Error(err)
		}
	}
}
