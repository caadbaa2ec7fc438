package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/api/server"
	"weir/tests/long"
	"weir/tests/must"
	tests "weir/tests/wait"
)

// argumentsOf has the arguments of commands that ask a daemon or a hub, and need some.
var argumentsOf = map[string]string{
	"weir allow": "192.0.2.1", "weir block": "192.0.2.1", "weir unallow": "192.0.2.1", "weir unblock": "192.0.2.1", "weir explain": "192.0.2.1",
	"weir capture": "-w FILE", "weir collateral": "feed", "weir enforce": "feed", "weir events": "--follow", "weir export": "feed", "weir flush": "feed",
	"weir import": "feed TEXT", "weir monitor": "on", "weir police": "lo 3kpps", "weir refresh": "feed", "weir top": "--once", "weir trace": "FRAME",
	"weir fleet allow": "192.0.2.1", "weir fleet block": "192.0.2.1", "weir fleet unallow": "192.0.2.1", "weir fleet unblock": "192.0.2.1", "weir fleet explain": "192.0.2.1",
	"weir fleet rollback": "feed", "weir fleet enforce": "feed", "weir multicast add": "--iface lo 232.1.1.1", "weir multicast remove": "--iface lo 232.1.1.1",
	"weir fleet export": "feed", "weir fleet import": "feed TEXT", "weir fleet flush": "feed",
	"weir fleet trace": "FRAME", "weir doctor": "--iface lo",
}

// serves are commands that do not ask and end: they listen, follow the daemon through its restarts, or look at a
// file alone.
var serves = map[string]bool{"weir check": true, "weir run": true, "weir hub run": true, "weir announce": true, "weir receive": true}

// asking returns the commands that ask a daemon or a hub: those with --socket.
func asking(of *cobra.Command) (all []*cobra.Command) {
	for _, c := range of.Commands() {
		if c.Flags().Lookup("socket") != nil && c.Runnable() && !serves[c.CommandPath()] {
			all = append(all, c)
		}
		all = append(all, asking(c)...)
	}
	return all
}

type startingDaemon struct{}

func (startingDaemon) Starting() api.Starting {
	return api.Starting{PID: 7, Doing: "reading /srv/drop.txt"}
}

func (startingDaemon) Queue(context.Context, api.Change) (api.Changed, error) {
	return api.Changed{List: "manual", Queued: true}, nil
}

// Each command ends where the daemon or the hub is stopped, starts, or has been killed, and says at its end
// what to do.
func TestCommandsWithoutDaemon(t *testing.T) {
	if socket := os.Getenv("WEIR_DEAF"); socket != "" {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	silence, queue, file := client.Silence, queueAfter, configFile
	defer func() { client.Silence, queueAfter, configFile = silence, queue, file }()
	client.Silence = long.Or(7*time.Second, silence)
	queueAfter, configFile = client.Silence, filepath.Join(t.TempDir(), "none.yaml")
	for _, state := range []struct {
		name  string
		begin func(t *testing.T, socket string)
	}{
		{"killed", func(t *testing.T, socket string) {
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			l.Close()
		}},
		{"starting", func(t *testing.T, socket string) {
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			s := &http.Server{Handler: server.StartingHandler(startingDaemon{})}
			go s.Serve(l)
			t.Cleanup(func() { s.Close() })
		}},
		{"stopped", func(t *testing.T, socket string) {
			own, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			c := exec.Command(own, "-test.run=^TestCommandsWithoutDaemon$")
			c.Env = append(os.Environ(), "WEIR_DEAF="+socket)
			if _, err := c.StdinPipe(); err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
			tests.For(t, "the process to listen", func() bool { return client.Dial(socket).Process() != 0 })
			if err := c.Process.Signal(unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			tests.For(t, "the process to stop", func() bool { return client.IsStopped(c.Process.Pid) })
		}},
	} {
		t.Run(state.name, func(t *testing.T) {
			dir := t.TempDir()
			socket, text, frame := filepath.Join(dir, "weir.sock"), filepath.Join(dir, "list.txt"), filepath.Join(dir, "frame.pcap")
			state.begin(t, socket)
			must.Write(t, text, "192.0.2.1\n")
			var all sync.WaitGroup
			for _, c := range asking(newRoot()) {
				name := c.CommandPath()
				args := strings.Fields(strings.NewReplacer("TEXT", text, "FILE", filepath.Join(dir, "capture"), "FRAME", frame).Replace(argumentsOf[name]))
				args = append(append(strings.Fields(name)[1:], args...), "--socket", socket)
				all.Go(func() {
					var out, log bytes.Buffer
					ctx, cancel := context.WithTimeout(t.Context(), tests.Patience)
					defer cancel()
					began := time.Now()
					code := execute(ctx, args, strings.NewReader(""), &out, &log)
					took, said := time.Since(began), out.String()+log.String()
					row := fmt.Sprintf("%-22s exit %d after %4.1fs: %s", name, code, took.Seconds(), lastLines(said))
					t.Log(row)
					hub := c.Flags().Lookup("socket").DefValue != newStatus().Flags().Lookup("socket").DefValue
					way := strings.Contains(said, "weir detach --all") || strings.Contains(said, "queued for list") ||
						hub && (strings.Contains(said, "The nodes filter on.") || state.name == "starting")
					switch {
					case ctx.Err() != nil:
						t.Errorf("no end: %s", row)
					case code == exitUsage:
						t.Errorf("the table has not the right arguments: %s", row)
					case name == "weir doctor", name == "weir trace", name == "weir fleet trace", name == "weir status": // without a daemon they look at the host and at files
					case !way || code == exitOK && !strings.Contains(said, "queued for list"):
						t.Errorf("no way out: %s", row)
					}
				})
			}
			all.Wait()
		})
	}
}

// lastLines returns the last lines of a text in one.
func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-6):], " / ")
}
