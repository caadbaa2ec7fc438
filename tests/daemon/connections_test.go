package daemon

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"

	"weir/tests/lab"
	"weir/tests/wait"
)

// Requests that are sent in part, at the API's socket and at the metrics' listener, take a
// bounded number of descriptors, and keep no other client out.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	metrics := lab.FreeAddress(t)
	h.configure(h.B.Iface, "metrics: {listen: %q}\nlists: {jail: {}}\n", metrics)
	d := h.start(releases[0])
	for i := range 1500 {
		for network, address := range map[string]string{"unix": h.path("weir.sock"), "tcp": metrics} {
			c, err := net.Dial(network, address)
			if err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
			defer c.Close()
			io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost:")
		}
		if i%100 == 0 {
			h.mustChange("jail", false, address(commandBlock, i).String())
		}
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if len(open) > 512+128+200 {
		t.Errorf("the daemon has %d descriptors", len(open))
	}
	t.Logf("%d descriptors", len(open))
	client := http.Client{Timeout: wait.Patience}
	answer, err := client.Get("http://" + metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK || len(text) == 0 {
		t.Errorf("metrics: %s, %d bytes, %v", answer.Status, len(text), err)
	}
	h.succeeds("", "lists")
}
