package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
)

// A restore from a pipe that goes on ends at a signal, and changes nothing.
func TestRestoreInterrupted(t *testing.T) {
	b := newBackedUp(t)
	in, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	defer in.Close()
	defer func(stdin *os.File) { os.Stdin = stdin }(os.Stdin)
	os.Stdin = in
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	if code := execute(ctx, []string{"restore", "-", "--config", b.config}, &out, &out); code != exitFailure || !strings.Contains(out.String(), "nothing has changed: interrupted") {
		t.Errorf("exit code %d: %s", code, &out)
	}
}
