package serve

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"testing"

	"weir/tests/wait"
)

// What cannot be listened on is a problem until it can, or until nothing is served.
func TestProblems(t *testing.T) {
	busy, err := net.Listen("tcp", "127.99.97.4:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	address := busy.Addr().String()
	want := []string{"metrics listener: listen tcp " + address + ": bind: address already in use"}
	var problems Problems
	c := Config{Metrics: address, Problems: &problems}
	start := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := c.RunHub(ctx, fakeHub{}, slog.New(slog.DiscardHandler))
		if got := problems.All(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		return func() { cancel(); ended() }
	}
	start()()
	if got := problems.All(); len(got) > 0 {
		t.Errorf("nothing is served, but %q", got)
	}
	stop := start()
	defer stop()
	busy.Close()
	wait.For(t, "it listens", func() bool { return len(problems.All()) == 0 })
}
