package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestHubCommand runs what stands beside weir, or in the PATH.
func TestHubCommand(t *testing.T) {
	if out := os.Getenv("WEIR_TEST_HUB"); out != "" {
		os.Exit(execute(t.Context(), []string{"hub", "enroll", "edge-1", "--label", "a"}, os.Stdin, os.Stdout, os.Stderr))
	}
	bin := t.TempDir()
	script := []byte("#!/bin/sh\necho ran \"$@\"\nexit 7\n")
	if err := os.WriteFile(filepath.Join(bin, hubCommand), script, 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(path string) (string, int) {
		c := exec.Command(os.Args[0], "-test.run=^TestHubCommand$")
		c.Env = append(os.Environ(), "WEIR_TEST_HUB=1", "PATH="+path)
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, &out
		_ = c.Run() // its code is looked at below
		return out.String(), c.ProcessState.ExitCode()
	}
	if out, code := run(bin); code != 7 || out != "ran enroll edge-1 --label a\n" {
		t.Errorf("%d: %s", code, out)
	}
	if out, code := run(t.TempDir()); code != exitFailure || !strings.Contains(out, "install the package weir-hub") {
		t.Errorf("%d: %s", code, out)
	}
}
