package authority

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/fleet/enrollment"
)

// renewed has a node renew what it has, and connect by that.
func renewed(t *testing.T, a *Authority, n enrollment.Node) enrollment.Node {
	t.Helper()
	keys, err := enrollment.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	r, err := n.Renewal(keys)
	if err != nil {
		t.Fatal(err)
	}
	next, err := a.Renew(r, n.Servers)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.TakeRenewed(keys, r, &next); err != nil {
		t.Fatal(err)
	}
	if err := a.Proved(n.Name, next.User()); err != nil {
		t.Fatal(err)
	}
	return next
}

// Servers need not know what is revoked and has ended, and the hub forgets it when it cannot be renewed any more: not
// before, and never what an earlier version has granted without an end.
func TestTidy(t *testing.T) {
	a, err := Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	enroll := func(name string) enrollment.Node {
		t.Helper()
		n, err := a.Enroll(name, nil, []string{"tls://hub.example.net:4222"})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	gone, lives, old := enroll("gone"), enroll("lives"), enroll("old")
	next := renewed(t, a, lives)
	m, err := read(a, nodes, "old") // as of an earlier version
	if err != nil {
		t.Fatal(err)
	}
	m.Ends = nil
	if err := record(a, nodes, m); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gone", "old"} {
		if err := a.Revoke(name); err != nil {
			t.Fatal(err)
		}
	}
	const day = 24 * time.Hour
	for _, c := range []struct {
		after   time.Duration
		revoked []enrollment.Node
		former  int
		nodes   string
	}{
		{0, []enrollment.Node{gone, lives, old}, 1, "gone lives old"},
		{(90 + 89) * day, []enrollment.Node{gone, lives, old}, 1, "gone lives old"},
		{(90 + 91) * day, []enrollment.Node{old}, 1, "gone lives old"},
		{(90 + 454) * day, []enrollment.Node{old}, 1, "gone lives old"},
		{(90 + 456) * day, []enrollment.Node{old}, 0, "lives old"},
		{100 * 365 * day, []enrollment.Node{old}, 0, "lives old"},
	} {
		if err := a.Tidy(time.Now().Add(c.after)); err != nil {
			t.Fatal(err)
		}
		account, _, err := a.Account()
		if err != nil {
			t.Fatal(err)
		}
		if len(account.Revocations) != len(c.revoked) {
			t.Errorf("after %v, %d are revoked, want %d", c.after, len(account.Revocations), len(c.revoked))
		}
		for _, n := range c.revoked {
			if _, ok := account.Revocations[n.User()]; !ok {
				t.Errorf("after %v, %s is good", c.after, n.Name)
			}
		}
		all, err := a.AllMembers()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for name := range all {
			names = append(names, name)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != c.nodes || len(all["lives"].Former) != c.former || all["lives"].User != next.User() {
			t.Errorf("after %v, the hub knows %s, of which lives had %d other users", c.after, got, len(all["lives"].Former))
		}
	}
}

// A hub that goes on from an older copy of its keys knows a node by what it has, and takes no older keys for the
// node's.
func TestRenewOlderCopy(t *testing.T) {
	a, err := Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	first, err := a.Enroll("edge-1", []string{"paris"}, []string{"tls://hub.example.net:4222"})
	if err != nil {
		t.Fatal(err)
	}
	before, err := read(a, nodes, "edge-1")
	if err != nil {
		t.Fatal(err)
	}
	before.Enrolled = before.Enrolled.Add(-time.Minute) // tokens have seconds
	second := renewed(t, a, first)
	if err := record(a, nodes, before); err != nil {
		t.Fatal(err)
	}
	third := renewed(t, a, second)
	m, err := read(a, nodes, "edge-1")
	if err != nil || m.User != third.User() || !slices.Equal(third.Labels, []string{"paris"}) {
		t.Errorf("%+v, %v", m, err)
	}
	for what, n := range map[string]enrollment.Node{"the first": first, "the second": second} {
		keys, err := enrollment.NewKeys()
		if err != nil {
			t.Fatal(err)
		}
		r, err := n.Renewal(keys)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Renew(r, n.Servers); err == nil {
			t.Errorf("%s keys are renewed", what)
		}
		if account, _, err := a.Account(); err != nil || account.Revocations[n.User()] == 0 {
			t.Errorf("%s keys are good, %v", what, err)
		}
	}
}
