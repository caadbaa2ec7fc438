package node

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/fleet/authority"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
)

// A node obeys the latest assignment that its hub has signed for it, and finds it again.
func TestAssignment(t *testing.T) {
	a, err := authority.Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := authority.Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	servers := []string{"tls://127.0.0.1:1"}
	e, err := a.Enroll("edge-1", []string{"web"}, servers)
	if err != nil {
		t.Fatal(err)
	}
	config := Config{Enrollment: e, Directory: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	open := func() *Node {
		t.Helper()
		n, err := Open(config)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	n := open()
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	of := func(node string, after time.Duration, labels ...string) wire.Assignment {
		return wire.Assignment{Node: node, Issued: now.Add(after), Labeled: now.Add(after), Labels: labels, Servers: servers, CA: e.CA}
	}
	take := func(by *authority.Authority, of wire.Assignment) (wire.Assigned, error) {
		t.Helper()
		message, err := by.SealAssignment(of)
		if err != nil {
			t.Fatal(err)
		}
		question, err := json.Marshal(wire.AssignQuestion{Message: message})
		if err != nil {
			t.Fatal(err)
		}
		return n.takeAssignment(context.Background(), question)
	}
	has := func(when string, labels ...string) {
		t.Helper()
		if got := n.current().Labels; !slices.Equal(got, labels) {
			t.Errorf("%s: labels %q, want %q", when, got, labels)
		}
	}
	refused := func(what string, by *authority.Authority, of wire.Assignment, why string) {
		t.Helper()
		if got, err := take(by, of); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %+v, %v, want an error with %q", what, got, err, why)
		}
		has(what, n.current().Labels...)
	}

	refused("of another hub", other, of("edge-1", time.Minute, "canary"), "signature")
	refused("of another node", a, of("edge-2", time.Minute, "canary"), "signature")
	refused("a label that is none", a, of("edge-1", time.Minute, "Canary!"), "label")
	without := of("edge-1", time.Minute)
	without.Servers = nil
	refused("no servers", a, without, "servers")
	without = of("edge-1", time.Minute)
	without.CA = "none"
	refused("no CA", a, without, "ca")
	moved := of("edge-1", time.Minute)
	moved.Servers = []string{"tls://127.0.0.1:2"}
	refused("servers that do not let it in", a, moved, "stays where it is")
	if got := n.servers.addresses(); len(got) != 1 {
		t.Errorf("protected: %v", got)
	}
	has("at first", "web")

	if got, err := take(a, of("edge-1", 2*time.Minute, "canary", "paris")); err != nil || got.Later != nil {
		t.Fatalf("%+v, %v", got, err)
	}
	has("the first", "canary", "paris")
	got, err := take(a, of("edge-1", time.Minute, "web"))
	if err != nil {
		t.Fatal(err)
	}
	if later, err := wire.OpenAssignment(a.PublicKey(), "edge-1", got.Later); err != nil || !slices.Equal(later.Labels, []string{"canary", "paris"}) {
		t.Errorf("an older one: %+v, %v", later, err)
	}
	has("an older one", "canary", "paris")
	stale := of("edge-1", 3*time.Minute, "web")
	stale.Labeled = now
	if got, err := take(a, stale); err != nil || got.Later == nil {
		t.Errorf("older labels, issued later: %+v, %v", got, err)
	}
	has("older labels", "canary", "paris")
	stale = of("edge-1", time.Minute, "web")
	stale.Labeled = now.Add(2 * time.Minute)
	if got, err := take(a, stale); err != nil || got.Later == nil {
		t.Errorf("issued before: %+v, %v", got, err)
	}
	has("issued before", "canary", "paris")

	// The disk fails: what a start would not find is not obeyed.
	if err := os.Rename(n.dir, n.dir+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("on a disk that fails", a, of("edge-1", 4*time.Minute, "web"), "")
	has("on a disk that fails", "canary", "paris")
	if err := os.Remove(n.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(n.dir+".away", n.dir); err != nil {
		t.Fatal(err)
	}

	n = open()
	has("after a start", "canary", "paris")
	if err := os.WriteFile(n.assignmentPath(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n = open()
	has("with a file that is damaged", "web")
	if _, err := take(a, of("edge-1", 5*time.Minute, "oslo")); err != nil {
		t.Fatal(err)
	}
	n = open()
	has("once it is replaced", "oslo")

	// A host that has joined anew has what its new file says.
	if config.Enrollment, err = a.Enroll("edge-1", []string{"anew"}, servers); err != nil {
		t.Fatal(err)
	}
	n = open()
	has("by another file", "anew")
	config.Enrollment = e
	n = open()
	has("by the former file", "oslo")
	var next enrollment.Node
	if next, err = a.Enroll("edge-1", []string{"taken"}, servers); err != nil {
		t.Fatal(err)
	}
	if other, err := n.Take(next); err != nil || !other {
		t.Errorf("%t, %v", other, err)
	}
	has("by a file that is taken", "taken")
}
