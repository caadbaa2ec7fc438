package daemon

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/tests/data"
	"weir/tests/wait"
)

// Connections to the servers of a whole list of command-and-control hosts fail at once, and
// explain names the line that has them; others do not notice.
func TestC2List(t *testing.T) {
	t.Parallel()
	feed := filepath.Join(data.Dir(t), "feeds", "maltrail-cobaltstrike.txt.gz")
	at := serversIn(t, feed)
	h := newHost(t)
	h.addresses()
	echo(t, h.A, unlistedAddress, "7")
	h.write("weir.yaml", fmt.Appendf(nil, `interfaces: [{name: %s, netns: %s, egress: true, reject: true}]
pins: %s
state_dir: %s
api: {socket: %s}
lists:
  c2: {direction: out, lenient: true, max_bad: 100%%, ignore_ports: true, sources: [{file: %s}]}
`, h.B.Iface, h.B.Netns, h.pins, h.path("state"), h.path("weir.sock"), feed))
	d := h.start(releases[0])
	l := h.list("c2")
	if l.Entries < 5000 {
		t.Fatalf("%d entries of %s", l.Entries, feed)
	}
	if out, err := exec.Command("ip", "-n", h.B.Netns, "route", "add", "default", "via", unlistedAddress).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	tried := 0
	for server, line := range at {
		began := time.Now()
		if _, err := dial(t, h.B, "tcp", "", netip.AddrPortFrom(server, 443).String(), wait.Patience); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%v: %v after %v, want it to be refused", server, err, time.Since(began))
		}
		e, err := h.api.Explain(t.Context(), server.String())
		if err != nil || len(e.Answers) != 3 || e.Answers[2].List != "c2" || e.Answers[2].Matches[0].Source != feed || e.Answers[2].Matches[0].Line != line {
			t.Errorf("explain %v, which is in line %d: %+v, %v", server, line, e, err)
		}
		if tried++; tried == 5 {
			break
		}
	}
	if c, err := dial(t, h.B, "tcp", "", unlistedAddress+":7", wait.Patience); err != nil || !answers(c, wait.Patience) {
		t.Errorf("what is not listed: %v", err)
	}
	d.stop()
}

// serversIn returns addresses of a file, some of them, each with the first line that has it.
func serversIn(t *testing.T, path string) map[netip.Addr]int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	first := make(map[netip.Addr]int)
	lines := bufio.NewScanner(z)
	for n := 1; lines.Scan(); n++ {
		host, port, _ := strings.Cut(lines.Text(), ":")
		if a, err := netip.ParseAddr(host); err == nil && a.Is4() && first[a] == 0 && !strings.Contains(port, ":") { // two ports are bad
			first[a] = n
		}
	}
	if err := lines.Err(); err != nil || len(first) < 5000 {
		t.Fatalf("%d addresses in %s, %v", len(first), path, err)
	}
	return first
}
