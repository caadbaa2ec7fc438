package serve

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/control/api/server"
	"weir/control/metrics"
	"weir/tests/lab"
)

type fakeHub struct{ server.Hub }

func (fakeHub) Metrics() metrics.HubSnapshot { return metrics.HubSnapshot{Connected: true} }

// The metrics of a hub are served at their own address, and on the API's socket.
func TestRunHub(t *testing.T) {
	// A loopback address where no other test takes the port meanwhile.
	free, err := net.Listen("tcp", "127.99.97.2:0")
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Metrics: free.Addr().String(), Socket: filepath.Join(t.TempDir(), "hub.sock")}
	free.Close()
	ctx, cancel := context.WithCancel(t.Context())
	wait := c.RunHub(ctx, fakeHub{}, slog.New(slog.DiscardHandler))
	defer wait()
	defer cancel()
	for network, address := range map[string]string{"tcp": c.Metrics, "unix": c.Socket} {
		client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}}}
		answer, err := client.Get("http://weir" + metrics.Path)
		if err != nil {
			t.Errorf("%s: %v", network, err)
			continue
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(body), "\nweir_hub_connected 1\n") {
			t.Errorf("%s: %s, %v\n%s", network, answer.Status, err, body)
		}
	}
}

// The socket is of the group that is configured.
func TestSocketGroup(t *testing.T) {
	lab.Root(t)
	group, err := user.LookupGroup("nogroup")
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Socket: filepath.Join(t.TempDir(), "hub.sock"), Group: group.Name}
	ctx, cancel := context.WithCancel(t.Context())
	wait := c.RunHub(ctx, fakeHub{}, slog.New(slog.DiscardHandler))
	defer wait()
	defer cancel()
	s, err := os.Stat(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	if gid := s.Sys().(*syscall.Stat_t).Gid; fmt.Sprint(gid) != group.Gid {
		t.Errorf("the socket is of group %d, want %s", gid, group.Gid)
	}
}

// However many requests are written in part, the console answers.
func TestConsoleAnswers(t *testing.T) {
	free, err := net.Listen("tcp", "127.99.97.3:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "page") })
	ctx, cancel := context.WithCancel(t.Context())
	wait := Config{Console: TLS{Address: address}, ConsoleHandler: page}.RunHub(ctx, fakeHub{}, slog.New(slog.DiscardHandler))
	defer wait()
	defer cancel()
	for range 3 * maxConsoleConnections {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "GET / HTTP/1.1\r\nHost:")
	}
	began := time.Now()
	answer, err := (&http.Client{Timeout: 30 * time.Second}).Get("http://" + address + "/")
	if err != nil {
		t.Fatalf("after %v: %v", time.Since(began), err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || string(text) != "page" {
		t.Errorf("%q, %v", text, err)
	}
}
