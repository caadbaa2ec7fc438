package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/audit"
	"weir/control/fleet/authority"
	"weir/control/fleet/enrollment"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/wait"
)

// standby makes an operator of a role, and returns the URL of the hub and the operator's token.
func (b *backedUp) standby(name, role string) (at, token string) {
	b.t.Helper()
	code, out, log := command(b.t, "operator", "create", name, "--role", role, "--json", "--config", b.config)
	var made operatorMade
	if err := json.Unmarshal([]byte(out), &made); err != nil || code != exitOK {
		b.t.Fatalf("%v: %s%s", err, out, log)
	}
	return made.URL, made.Text
}

// A standby has a copy of the hub, and can be the hub by it. No one else gets one.
func TestFollow(t *testing.T) {
	long.Seconds(t)
	b := newBackedUp(t)
	must.Write(t, b.config, string(must.Read(t, b.config))+"join: {listen: \""+lab.FreeAddress(t)+"\"}\n")
	if code, _, log := command(t, "init", b.file("keys")); code != exitOK {
		t.Fatal(log)
	}
	c := b.run()
	if _, err := c.ChangeFleet(t.Context(), api.Change{Action: api.Block, Entries: []string{"192.0.2.1", "192.0.2.2"}}); err != nil {
		t.Fatal(err)
	}
	at, token := b.standby("spare", api.RoleStandby)
	spare := newBackedUp(t)
	file := spare.file("hub.tar.gz")
	for range 2 {
		code, out, log := command(t, "follow", at, token, file, "--once", "--json")
		var made copied
		if err := json.Unmarshal([]byte(out), &made); code != exitOK || err != nil || time.Since(made.Time) > time.Minute {
			t.Fatalf("exit code %d, %v: %s%s", code, err, out, log)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || info.Size() != made.Bytes {
			t.Errorf("%v, %v: want %d bytes for the owner alone", info, err, made.Bytes)
		}
	}
	whole := must.Read(t, file)

	_, publisher := b.standby("alice", api.RolePublish)
	if code, _, log := command(t, "follow", at, publisher, file, "--once"); code != exitFailure || !strings.Contains(log, "this takes standby") {
		t.Errorf("exit code %d: %s", code, log)
	}
	var socket bytes.Buffer
	if err := c.Backup(t.Context(), &socket); err == nil || socket.Len() > 0 {
		t.Errorf("the socket has %d bytes of the keys: %v", socket.Len(), err)
	}
	if records := copies(t, c); len(records) != 1 || records[0].Source != "operator spare" || records[0].Reason != "from 127.0.0.1" {
		t.Errorf("the audit has %+v, want one copy by the standby", records)
	}
	b.stop()
	if code, _, log := command(t, "follow", at, token, file, "--once"); code != exitFailure || !strings.Contains(log, "connection refused") {
		t.Errorf("exit code %d: %s", code, log)
	}
	if !bytes.Equal(must.Read(t, file), whole) {
		t.Error("the copy is another one without a hub")
	}

	if code, out, log := command(t, "restore", file, "--config", spare.config); code != exitOK {
		t.Fatal(out, log)
	}
	if n := spare.entries(spare.run()); n != 2 {
		t.Errorf("the standby has %d entries, want 2", n)
	}
}

// copies returns the records of copies in the audit of a hub.
func copies(t *testing.T, c *client.Client) (all []api.AuditRecord) {
	t.Helper()
	a, err := c.Audit(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range a.Changes {
		if r.Change == audit.Copy {
			all = append(all, r)
		}
	}
	return all
}

// What is not whole replaces no copy, and is said; what is whole again does.
func TestFollowHalf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	a, err := authority.Init(keys)
	if err != nil {
		t.Fatal(err)
	}
	_, token, err := a.NewOperator(authority.Operator{Name: "spare", Role: api.RoleStandby, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	b := newBackedUp(t)
	if code, _, log := command(t, "init", b.file("keys")); code != exitOK {
		t.Fatal(log)
	}
	b.run()
	if code, _, log := command(t, "backup", b.file("whole"), "--config", b.config); code != exitOK {
		t.Fatal(log)
	}
	b.stop()
	whole := must.Read(t, b.file("whole"))
	answers := map[string]http.HandlerFunc{
		"whole":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(whole) },
		"half":   func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(whole[:len(whole)/2]) },
		"broken": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(whole[:9]); panic(http.ErrAbortHandler) },
		"other":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("none")) },
	}
	var mu sync.Mutex
	answer := "whole"
	set := func(to string) { mu.Lock(); answer = to; mu.Unlock() }
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	secure, err := a.JoinTLS([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{TLSConfig: secure, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		by := answers[answer]
		mu.Unlock()
		by(w, q)
	})}
	go func() { _ = s.ServeTLS(l, "", "") }()
	t.Cleanup(func() { _ = s.Close() })
	parsed, err := enrollment.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	u := url.URL{Scheme: "https", Host: l.Addr().String()}
	of, file := client.DialOperator(u.String(), token, parsed.TLS("127.0.0.1")), filepath.Join(dir, "copy")
	var out lockedBuffer
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { keepCopy(ctx, of, file, time.Millisecond, slog.New(slog.NewTextHandler(&out, nil))) })
	defer running.Wait()
	defer cancel()
	says := func(what, text string) {
		t.Helper()
		before := strings.Count(out.String(), text)
		set(what)
		wait.For(t, text, func() bool { return strings.Count(out.String(), text) > before })
	}
	wait.For(t, "a copy", func() bool { _, err := os.Stat(file); return err == nil })
	for _, bad := range []string{"half", "broken", "other"} {
		says(bad, "no new copy of the hub")
		if !bytes.Equal(must.Read(t, file), whole) {
			t.Errorf("%s: it has replaced the copy", bad)
		}
		says("whole", "copied the hub")
	}
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements [io.Writer].
func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
