package interrupt

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// What is read is the same, until the context ends a read that waits.
func TestReader(t *testing.T) {
	if err := iotest.TestReader(NewReader(t.Context(), strings.NewReader("192.0.2.1\n")), []byte("192.0.2.1\n")); err != nil {
		t.Error(err)
	}
	broken := errors.New("broken")
	if _, err := io.ReadAll(NewReader(t.Context(), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("%v, want %v", err, broken)
	}
	held, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	r := NewReader(ctx, held)
	go func() {
		_, _ = io.WriteString(w, "begun")
		cancel()
	}()
	text, err := io.ReadAll(r)
	if len(text) > 0 && string(text) != "begun" || !errors.Is(err, Err) {
		t.Errorf("%q, %v, want %v", text, err, Err)
	}
}
