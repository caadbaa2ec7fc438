package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/control/queue"
)

// Where no daemon has listened yet, as after a boot, a change waits where the service's
// configuration says, if that has the same socket; otherwise it fails.
func TestChangesWaitAfterABoot(t *testing.T) {
	dir := t.TempDir()
	state, socket := filepath.Join(dir, "state"), filepath.Join(dir, "weir.sock")
	before := configFile
	configFile = filepath.Join(dir, "weir.yaml")
	defer func() { configFile = before }()
	run := func(args ...string) (string, int) {
		var out bytes.Buffer
		code := execute(t.Context(), append(args, "--socket", socket), strings.NewReader(""), &out, &out)
		return out.String(), code
	}
	for _, text := range []string{
		"", "interfaces: [lo", fmt.Sprintf("interfaces: [lo]\nstate_dir: %s\n", state),
		fmt.Sprintf("interfaces: [lo]\nstate_dir: ''\napi: {socket: %s}\n", socket),
	} {
		if err := os.WriteFile(configFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := run("block", "192.0.2.1"); code != exitFailure || !strings.Contains(out, "start `weir run`; and the change cannot wait for it: no daemon with a state_dir has listened at "+socket) {
			t.Errorf("with %q: exit code %d, %s", text, code, out)
		}
	}
	if err := os.WriteFile(configFile, fmt.Appendf(nil, "interfaces: [lo]\nstate_dir: %s\napi: {socket: %s}\n", state, socket), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{{"block", "--ttl", "1h", "192.0.2.1"}, {"unallow", "192.0.2.1"}} {
		if out, code := run(c...); code != exitOK || !strings.HasPrefix(out, "queued for list manual") {
			t.Errorf("%q: exit code %d, %s", c, code, out)
		}
	}
	if names, err := queue.In(state).Waiting(); err != nil || len(names) != 2 {
		t.Errorf("%q wait, %v; want 2", names, err)
	}
	if out, code := run("status"); code != exitUnfiltered || !strings.Contains(out, "QUEUED: 2 changes wait for the daemon") {
		t.Errorf("status: exit code %d, %s", code, out)
	}
}
