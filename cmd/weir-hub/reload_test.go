package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/config"
	"weir/control/metrics"
	"weir/tests/wait"
)

// freePort returns a port of an address that no other test takes meanwhile.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.99.96.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// SIGHUP has the hub read its file again, and ends nothing; metrics move.
func TestHangUp(t *testing.T) {
	safe := make(chan os.Signal, 1) // or a signal that comes early ends the test
	signal.Notify(safe, syscall.SIGHUP)
	defer signal.Stop(safe)
	dir := t.TempDir()
	if code, _, log := command(t, "init", filepath.Join(dir, "keys")); code != exitOK {
		t.Fatal(log)
	}
	file, socket := filepath.Join(dir, "hub.yaml"), filepath.Join(dir, "hub.sock")
	listen, before, after := freePort(t), freePort(t), freePort(t)
	write := func(more string) {
		t.Helper()
		text := fmt.Sprintf("servers: [\"tls://%s\"]\nbroker: {listen: %q}\nkeys: %s/keys\nstate_dir: %s/state\napi: {socket: %s}\n%s", listen, listen, dir, dir, socket, more)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("metrics: {listen: " + before + "}\n")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() { ended <- execute(ctx, []string{"run", "--config", file}, io.Discard, io.Discard) }()
	defer func() {
		stop()
		if code := <-ended; code != exitOK {
			t.Errorf("exit code %d", code)
		}
	}()
	client := client.DialHub(socket)
	status := func(met func(*api.HubStatus) bool) {
		t.Helper()
		var s *api.HubStatus
		var err error
		for end := wait.Deadline(); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if s, err = client.Fleet(t.Context()); err == nil && met(s) {
				return
			}
		}
		t.Fatalf("%+v, %v", s, err)
	}
	scraped := func(address string) bool {
		answer, err := (&http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + address + metrics.Path)
		if err == nil {
			answer.Body.Close()
		}
		return err == nil && answer.StatusCode == http.StatusOK
	}
	status(func(s *api.HubStatus) bool { return s.Connected && s.Reload == nil && scraped(before) })
	hangUp := func() {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	write("metrics: {listen: " + after + "}\nlists: {more: {}}\n")
	hangUp()
	status(func(s *api.HubStatus) bool { return s.Reload != nil && s.Reload.Error == "" && len(s.Lists) == 3 })
	for end := wait.Deadline(); !scraped(after) || scraped(before); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("metrics did not move")
		}
	}
	taken, err := net.Listen("tcp", before)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	write("metrics: {listen: " + before + "}\n")
	hangUp()
	status(func(s *api.HubStatus) bool {
		return strings.Contains(s.Reload.Error, "metrics.listen: ") && len(s.Lists) == 3
	})
	if !scraped(after) {
		t.Error("metrics are gone")
	}
}

// The listener of the metrics, which a reload replaces, does not stand in the way of an address that
// has its port.
func TestSamePort(t *testing.T) {
	l, err := net.Listen("tcp", freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other, err := net.Listen("tcp", freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	address := func(text string) (a config.Address) {
		t.Helper()
		if err := a.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		return a
	}
	port := func(l net.Listener) string { _, p, _ := net.SplitHostPort(l.Addr().String()); return p }
	p := &process{metrics: config.Metrics{Listen: address(l.Addr().String())}}
	for to, want := range map[string]string{
		"0.0.0.0:" + port(l): "",
		":" + port(l):        "",
		// What is wrong with another address, or port, is said.
		"192.0.2.1:" + port(l):   "metrics.listen: ",
		other.Addr().String():    "metrics.listen: ",
		"0.0.0.0:" + port(other): "metrics.listen: ",
	} {
		err := p.Check(&config.Hub{Metrics: config.Metrics{Listen: address(to)}})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("from %s to %s: %v, want %q", l.Addr(), to, err, want)
		}
	}
	// None is served.
	p.metrics = config.Metrics{}
	if err := p.Check(&config.Hub{Metrics: config.Metrics{Listen: address("0.0.0.0:" + port(l))}}); err == nil {
		t.Error("a port that another has is taken for free")
	}
}

// check says what is wrong with a configuration, and where.
func TestCheck(t *testing.T) {
	good, bad := filepath.Join(t.TempDir(), "good.yaml"), filepath.Join(t.TempDir(), "bad.yaml")
	const least = "servers: [\"tls://h:1\"]\nbroker: {listen: \"127.0.0.1:4222\"}\n"
	for file, text := range map[string]string{
		good: least + "lists: {a: {sources: [{file: /a}, {file: /b}]}}\nrollout: {waves: [{}]}\n",
		bad:  least + "max_age: 1s\nlists: {block: {action: allow}}\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if code, out, log := command(t, "check", good); code != exitOK || out != good+": no errors; lists: 3, sources: 2, lists that go out in waves: 1\n" || log != "" {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	open := filepath.Join(t.TempDir(), "open.yaml")
	if err := os.WriteFile(open, []byte(least+"metrics: {listen: \"0.0.0.0:9480\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, log := command(t, "check", open); code != exitOK || !strings.HasPrefix(log, "warning: metrics.listen: 0.0.0.0:9480 is no address of a loopback interface") || !strings.Contains(out, "no errors") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	code, out, log := command(t, "check", bad)
	if code != exitFailure || out != "" || !strings.Contains(log, bad+":3:10: max_age: 1s is less than") || !strings.Contains(log, bad+": errors: 2\n") {
		t.Errorf("exit code %d\n%s%s", code, out, log)
	}
	code, out, _ = command(t, "check", "--json", bad)
	var got struct {
		Errors []configError `json:"errors"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitFailure || len(got.Errors) != 2 || got.Errors[0].Line != 3 {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
	for _, args := range [][]string{{"check", good, bad}, {"check", "/does/not/exist"}} {
		if code, out, log := command(t, args...); code == exitOK || out != "" || log == "" {
			t.Errorf("%q: exit code %d\n%s%s", args, code, out, log)
		}
	}
}
