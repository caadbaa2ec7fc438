package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/audit"
	"weir/control/queue"
	"weir/tests/must"
)

// Where no daemon has listened yet, as after a boot, a change waits where the service's
// configuration says, if that has the same socket; otherwise it fails.
func TestChangesWaitAfterABoot(t *testing.T) {
	dir := t.TempDir()
	state, socket := filepath.Join(dir, "state"), filepath.Join(dir, "weir.sock")
	before := configFile
	configFile = filepath.Join(dir, "weir.yaml")
	defer func() { configFile = before }()
	run := func(args ...string) (string, int) {
		var out bytes.Buffer
		code := execute(t.Context(), append(args, "--socket", socket), strings.NewReader(""), &out, &out)
		return out.String(), code
	}
	for _, text := range []string{
		"", "interfaces: [lo", fmt.Sprintf("interfaces: [lo]\nstate_dir: %s\n", state),
		fmt.Sprintf("interfaces: [lo]\nstate_dir: ''\napi: {socket: %s}\n", socket),
	} {
		must.Write(t, configFile, text)
		if out, code := run("block", "192.0.2.1"); code != exitFailure || !strings.Contains(out, "start `weir run`; nothing was changed: no state_dir is known for the socket "+socket) {
			t.Errorf("with %q: exit code %d, %s", text, code, out)
		}
	}
	must.Write(t, configFile, fmt.Appendf(nil, "interfaces: [lo]\nstate_dir: %s\napi: {socket: %s}\n", state, socket))
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{{[]string{"block", "--ttl", "1h", "192.0.2.1"}, "; not blocked yet: "}, {[]string{"unallow", "192.0.2.1"}, "; not removed yet: "}} {
		if out, code := run(c.args...); code != exitOK || !strings.HasPrefix(out, "queued for list manual") || !strings.Contains(out, c.want) {
			t.Errorf("%q: exit code %d, %s", c.args, code, out)
		}
	}
	if names, err := queue.In(state).Waiting(); err != nil || len(names) != 2 {
		t.Errorf("%q wait, %v; want 2", names, err)
	}
	if out, code := run("status"); code != exitUnfiltered || !strings.Contains(out, "QUEUED: 2 changes wait for the daemon") {
		t.Errorf("status: exit code %d, %s", code, out)
	}
}

// A change waits where the daemon takes too long, such as one that is stopped by a signal, and
// commands say what they wait for.
func TestUnansweredCommands(t *testing.T) {
	slow, give := slowAfter, queueAfter
	slowAfter, queueAfter = 20*time.Millisecond, time.Second
	defer func() { slowAfter, queueAfter = slow, give }()
	dir := t.TempDir()
	state, socket := filepath.Join(dir, "state"), filepath.Join(dir, "weir.sock")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	before := configFile
	configFile = filepath.Join(dir, "weir.yaml")
	defer func() { configFile = before }()
	must.Write(t, configFile, fmt.Appendf(nil, "interfaces: [lo]\nstate_dir: %s\napi: {socket: %s}\n", state, socket))
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const since = "2026-11-20T12:00:00Z"
	var until atomic.Int64 // of the change
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"busy": {"what": "entries are saved", "list": "drop", "since": %q}}`, since)
	})
	mux.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(500 * time.Millisecond)
		fmt.Fprint(w, "{}")
	})
	mux.HandleFunc("/", func(_ http.ResponseWriter, q *http.Request) {
		n, _ := strconv.ParseInt(q.Header.Get("Weir-Until"), 10, 64)
		until.Store(n)
		_, _ = io.Copy(io.Discard, q.Body) // so that the end of the client is noticed
		<-q.Context().Done()
	})
	s := &http.Server{Handler: mux}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	run := func(args ...string) (string, string, int) {
		var out, errs bytes.Buffer
		code := execute(t.Context(), append(args, "--socket", socket), strings.NewReader(""), &out, &errs)
		return out.String(), errs.String(), code
	}
	at, err := time.Parse(time.RFC3339, since)
	if err != nil {
		t.Fatal(err)
	}
	want := "weir: still waiting: the daemon is busy since " + at.Format(time.TimeOnly) + ": entries are saved (list drop)\n"
	if out, errs, code := run("reload"); code != exitOK || out != "nothing has changed since the files were read last\n" || errs != want {
		t.Errorf("reload: exit code %d, %q, %q; want %q", code, out, errs, want)
	}
	if out, errs, code := run("block", "192.0.2.1"); code != exitOK || !strings.HasPrefix(out, "queued for list manual") || errs != want {
		t.Errorf("block: exit code %d, %q, %q; want %q", code, out, errs, want)
	}
	if names, err := queue.In(state).Waiting(); err != nil || len(names) != 1 {
		t.Errorf("%q wait, %v; want 1", names, err)
	}
	if until.Load() == 0 {
		t.Error("the request does not say how long the command waits")
	}
	s.Close()
	// Connections are not accepted.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	deaf, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	queueAfter = 100 * time.Millisecond
	if out, _, code := run("unblock", "192.0.2.1"); code != exitOK || !strings.HasPrefix(out, "queued for list manual") {
		t.Errorf("unblock: exit code %d, %q", code, out)
	}
	must.Write(t, filepath.Join(state, audit.File), `{"change": "reload", "user": "ada"}`+"\n")
	if out, errs, code := run("audit"); code != exitOK || !strings.Contains(out, "ada") || !strings.Contains(errs, "the daemon does not answer: from "+state) {
		t.Errorf("audit: exit code %d, %q, %q", code, out, errs)
	}
}
