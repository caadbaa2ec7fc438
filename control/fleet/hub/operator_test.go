package hub

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/audit"
	"weir/control/fleet/authority"
	"weir/control/fleet/enrollment"
	"weir/tests/lab"
	"weir/tests/wait"
)

// operator makes an operator, and returns its token.
func (f *fleet) operator(name, role string, ttl time.Duration) string {
	f.t.Helper()
	_, text, err := f.authority.NewOperator(authority.Operator{Name: name, Role: role, Expires: time.Now().Add(ttl)})
	if err != nil {
		f.t.Fatal(err)
	}
	return text
}

// by returns a client of the hub for the operator with a token.
func by(t *testing.T, at, text string) *client.Client {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	token, err := enrollment.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return client.DialOperator(at, text, token.TLS(u.Hostname()))
}

// Each role may do what it is for, and no more. The audit names who did what, and who was refused.
func TestRoles(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	at := f.joins(t, lab.FreeAddress(t))
	ctx := t.Context()
	for i, c := range []struct {
		needs string
		do    func(*client.Client) error
	}{
		{api.RoleRead, func(of *client.Client) error { _, err := of.Fleet(ctx); return err }},
		{api.RoleRead, func(of *client.Client) error { _, err := of.Audit(ctx, 10); return err }},
		{api.RoleBlock, func(of *client.Client) error {
			_, err := of.ChangeFleet(ctx, api.Change{Action: api.Block, Entries: []string{"192.0.2.1"}})
			return err
		}},
		{api.RoleBlock, func(of *client.Client) error { _, err := of.FlushFleet(ctx, "block"); return err }},
		{api.RolePublish, func(of *client.Client) error { _, err := of.ReloadFleet(ctx); return err }},
		{api.RolePublish, func(of *client.Client) error {
			_, err := of.TakeOver(ctx)
			if err != nil && strings.Contains(err.Error(), "there is nothing to take over") {
				return nil
			}
			return err
		}},
	} {
		for _, role := range api.Roles {
			name := role + "-" + string(rune('a'+i))
			err := c.do(by(t, at, f.operator(name, role, time.Hour)))
			may := slices.Index(api.Roles, role) >= slices.Index(api.Roles, c.needs)
			if may && err != nil || !may && (err == nil || !strings.Contains(err.Error(), "has the role "+role+": this takes "+c.needs)) {
				t.Errorf("request %d as %s: %v", i, role, err)
			}
			refused := slices.ContainsFunc(f.hub.Audit(100), func(r api.AuditRecord) bool {
				return r.Change == audit.Request && r.Source == "operator "+name && r.Error != ""
			})
			if refused == may {
				t.Errorf("request %d as %s: in the audit as refused: %t", i, role, refused)
			}
		}
	}
	for change, who := range map[string]string{api.Block: "operator block-c", audit.Unblock: "operator block-d", audit.Reload: "operator publish-e"} {
		if !slices.ContainsFunc(f.hub.Audit(100), func(r api.AuditRecord) bool { return r.Change == change && r.Source == who && r.Error == "" }) {
			t.Errorf("the audit does not have %s by %s: %+v", change, who, f.hub.Audit(100))
		}
	}
	wait.For(t, "the audit has who may what", func() bool {
		return slices.ContainsFunc(f.hub.Audit(100), func(r api.AuditRecord) bool {
			return r.Change == audit.Operator && slices.Equal(r.First, []string{"publish-a"}) && strings.HasPrefix(r.Reason, "role publish, token ")
		})
	})
}

// Nothing lets in but a token that is valid, and an operator trusts no hub but that of its token.
func TestOperatorRefused(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	at := f.joins(t, lab.FreeAddress(t))
	good := f.operator("alice", api.RolePublish, time.Hour)
	if _, err := by(t, at, good).Fleet(t.Context()); err != nil {
		t.Fatal(err)
	}
	part := strings.Split(good, ".")
	other := f.operator("bob", api.RoleRead, time.Hour)
	_, joins, err := f.authority.NewToken(authority.Token{Count: 5, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	revoked := f.operator("carol", api.RolePublish, time.Hour)
	if n, err := f.authority.RevokeOperator("carol"); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	for what, token := range map[string]string{
		"another secret": part[0] + "." + strings.Split(other, ".")[1] + "." + part[2],
		"another token":  "00000000." + part[1] + "." + part[2],
		"of weir join":   joins,
		"revoked":        revoked,
		"expired":        f.operator("dave", api.RolePublish, -time.Second),
	} {
		if _, err := by(t, at, token).Fleet(t.Context()); err == nil {
			t.Errorf("%s: the hub answers", what)
		}
		if _, err := by(t, at, token).ChangeFleet(t.Context(), block("192.0.2.9")); err == nil {
			t.Errorf("%s: the hub makes a change", what)
		}
	}
	if got := f.truth()["block"]; got != nil && got.Len() > 0 {
		t.Errorf("entries: %d", got.Len())
	}
	wait.For(t, "who guesses to wait", func() bool {
		_, err := by(t, at, revoked).Fleet(t.Context())
		return err != nil && strings.Contains(err.Error(), "wait a minute")
	})
	if _, err := by(t, at, good).Fleet(t.Context()); err != nil {
		t.Errorf("an operator at the address of who guesses: %v", err)
	}
	foreign, err := authority.Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	_, theirs, err := foreign.NewOperator(authority.Operator{Name: "eve", Role: api.RolePublish, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := by(t, at, theirs).Fleet(t.Context()); err == nil || !strings.Contains(err.Error(), "not the hub of this token") {
		t.Errorf("a token of another hub: %v", err)
	}
	// Without a token, there is nothing but the way in for hosts.
	u, _ := url.Parse(at)
	token, _ := enrollment.ParseToken(good)
	bare := http.Client{Transport: &http.Transport{TLSClientConfig: token.TLS(u.Hostname())}}
	r, err := bare.Get(at + api.FleetPath)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusNotFound {
		var body map[string]any
		_ = json.NewDecoder(r.Body).Decode(&body)
		t.Errorf("without a token: %s, %v", r.Status, body)
	}
}

// A standby does not take a copy for whole that the hub could not end, and is not let in while another one copies.
func TestCopyBroken(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	begun, end := make(chan struct{}), make(chan struct{})
	f.hub.o.Backup = brokenBackup{begun, end}
	at, ctx := f.joins(t, lab.FreeAddress(t)), t.Context()
	spare := by(t, at, f.operator("spare", api.RoleStandby, time.Hour))
	first := make(chan error)
	go func() { first <- spare.Backup(ctx, io.Discard) }()
	<-begun
	if err := spare.Backup(ctx, io.Discard); err == nil || !strings.Contains(err.Error(), "another copy is under way") {
		t.Errorf("beside another copy: %v", err)
	}
	close(end)
	if err := <-first; err == nil {
		t.Error("half of a copy is taken for whole")
	}
}

// brokenBackup writes a part of a backup, and fails at the end.
type brokenBackup struct{ begun, end chan struct{} }

// Backup implements [Backup].
func (b brokenBackup) Backup(to io.Writer) error {
	_, _ = io.WriteString(to, "the first half")
	close(b.begun)
	<-b.end
	return errors.New("its disk is broken")
}
