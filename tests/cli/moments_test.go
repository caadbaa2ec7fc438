package cli

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/seed"
	"weir/tests/wait"
)

// A command that reads large lists, and a daemon that starts with them, end within a second of a signal at
// any moment: while they read, sort, or build tables. A busy machine has three.
func TestInterruptedAtRandom(t *testing.T) {
	l := lab.New(t)
	random := seed.New(t)
	dir := t.TempDir()
	var addresses, ranges, ports bytes.Buffer
	for range 1_000_000 {
		n := random.Uint32()
		fmt.Fprintf(&addresses, "%d.%d.%d.%d\n", 1+n>>24%200, n>>16&255, n>>8&255, n&255)
	}
	for n := range 4000 {
		fmt.Fprintf(&ranges, "2001:db8:0:%x::1-2001:db8:0:%x:ffff:ffff:ffff:fffe\n", n, n)
	}
	for n := range 100 {
		fmt.Fprintf(&ports, "any 192.0.2.%d > *:0-4095\n", n)
	}
	lists := ""
	for name, text := range map[string][]byte{"addresses": addresses.Bytes(), "ranges": ranges.Bytes(), "ports": ports.Bytes()} {
		path := filepath.Join(dir, name)
		must.Write(t, path, text)
		lists += fmt.Sprintf("  %s: {sources: [{file: %s, max_entries: 4000000}]}\n", name, path)
	}
	config := filepath.Join(dir, "weir.yaml")
	must.Write(t, config, fmt.Appendf(nil, "interfaces: [{name: %q, netns: %s}]\npins: /sys/fs/bpf/%s\napi: {socket: %s}\nkeep: false\nlists:\n%s",
		l.B.Iface, l.B.Netns, l.B.Netns, filepath.Join(dir, "weir.sock"), lists))
	for range long.Rounds(5, 12, 100) {
		for _, args := range [][]string{{"check", "-c", config}, {"run", "--json", "-c", config}} {
			cmd := exec.Command(program, args...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			timer := time.AfterFunc(wait.Patience, func() { cmd.Process.Kill() })
			after := time.Duration(random.IntN(2500)) * time.Millisecond
			time.Sleep(after) // a random moment, not an event
			sent := time.Now()
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			_ = cmd.Wait()
			timer.Stop()
			took := time.Since(sent)
			t.Logf("weir %s, after %v: ends in %v: %v", args[0], after, took.Round(time.Millisecond), cmd.ProcessState)
			if bytes.Contains(out.Bytes(), []byte(`"filtering"`)) {
				continue // it tidies up
			}
			// A machine that is short of time lets a process run seldom.
			if most := 3 * time.Second; took > most && cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime() > most {
				t.Errorf("weir %s, after %v: ends %v after SIGTERM, want at most %v\n%s", args[0], after, took, most, &out)
			}
		}
	}
}
