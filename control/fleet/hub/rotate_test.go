package hub

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/fleet/authority"
	"weir/control/fleet/enrollment"
	"weir/tests/lab"
	"weir/tests/must"
	"weir/tests/wait"
)

// rotate begins to replace the authority's certificate, as the command does: beside the hub.
func (f *fleet) rotate() {
	f.t.Helper()
	a, err := authority.Open(filepath.Join(f.dir, "keys"))
	if err == nil {
		err = a.Rotate()
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// awaits waits until the hub is at a step, and says that it waits for some names; none: for no one.
func (f *fleet) awaits(step authority.Step, names string) {
	f.t.Helper()
	wait.Until(f.t, func() error {
		s, err := f.hub.Fleet(f.t.Context())
		if err != nil {
			return err
		}
		i := slices.IndexFunc(s.Problems, func(p string) bool { return strings.Contains(p, "is being replaced") })
		if is := f.authority.Rotation(); is != step || (names == "") != (i < 0) || i >= 0 && !strings.Contains(s.Problems[i], names) {
			return fmt.Errorf("step %q, problems %q, want %q to wait for %q", is, s.Problems, step, names)
		}
		return nil
	})
}

// The certificate of the authority is replaced under changes, with restarts of the hub. Nodes miss no change, and no
// file of theirs changes by hand. In the end all have the next one, and a certificate or token of the former one is
// refused: as a client, as a server, and by its token.
func TestRotate(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	_, token := f.token(t, authority.Token{Count: 3})
	hosts := []*host{f.host("edge-1"), f.host("edge-2"), f.host("edge-3")}
	away := hosts[2]
	before := hosts[0].enrollment
	all := func() {
		t.Helper()
		for _, h := range hosts {
			f.converged1(h)
		}
	}
	f.change(block("198.51.100.1/32"))
	all()
	away.stop()
	f.rotate()
	f.awaits(authority.StepTrust, "edge-3")
	f.change(block("198.51.100.2/32"))
	f.stop()
	f.authority = must.Have(authority.Open(filepath.Join(f.dir, "keys")))
	f.start("")
	join := f.joins(t, lab.FreeAddress(t))
	f.awaits(authority.StepTrust, "edge-3")
	hosts[2] = f.again(away)
	f.awaits(authority.StepNone, "")
	f.change(block("198.51.100.3/32"))
	all()

	for _, h := range hosts {
		if r := h.renewed(); r.Certificate == "" || strings.Count(r.CA, "BEGIN") == 0 || r.User() == h.enrollment.User() {
			t.Errorf("%s has not renewed: %+v", h.name, r)
		}
	}
	if _, err := f.tryConnect(before); err == nil {
		t.Error("a node with the former certificate connects")
	}
	// So is one that trusts the next one.
	old := must.Have(before.TLS())
	own := func() (tls.Certificate, error) { return old.Certificates[0], nil }
	trusts := must.Have(hosts[0].renewed().TLS()).RootCAs
	if _, err := f.tryConnect(before, nats.ClientTLSConfig(own, func() (*x509.CertPool, error) { return trusts, nil })); err == nil || !strings.Contains(err.Error(), "tls") {
		t.Errorf("the broker takes a certificate of the former authority: %v", err)
	}
	keys := must.Have(enrollment.NewKeys())
	if _, err := enrollment.Join(t.Context(), join, token, keys, "edge-9", func(error) {}); err == nil || !strings.Contains(err.Error(), "not the hub of this token") {
		t.Errorf("a token of the former certificate: %v", err)
	}
	_, fresh := f.token(t, authority.Token{Count: 1})
	if _, err := enrollment.Join(t.Context(), join, fresh, keys, "edge-9", func(error) {}); err != nil {
		t.Errorf("a token of the next certificate: %v", err)
	}
	for _, step := range []string{"step 2 of 2", "done"} {
		if !slices.ContainsFunc(f.hub.Audit(100), func(r api.AuditRecord) bool {
			return r.Change == audit.Rotate && strings.HasPrefix(r.First[0], step)
		}) {
			t.Errorf("the audit lacks %q", step)
		}
	}
	f.stop()
	f.authority = must.Have(authority.Open(filepath.Join(f.dir, "keys")))
	f.start("")
	f.change(block("198.51.100.4/32"))
	all()
}

// Where a process is killed between the writes of a step, the next command or the hub goes on from there.
func TestRotateKilled(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	must.Have(authority.Init(dir))
	read := func() [2]string {
		return [2]string{string(must.Read(t, filepath.Join(dir, "ca.pem"))), string(must.Read(t, filepath.Join(dir, "ca.key")))}
	}
	write := func(pem, key string) {
		t.Helper()
		must.Write(t, filepath.Join(dir, "ca.pem.new"), pem)
		must.Write(t, filepath.Join(dir, "ca.key"), key)
		if err := os.Rename(filepath.Join(dir, "ca.pem.new"), filepath.Join(dir, "ca.pem")); err != nil {
			t.Fatal(err)
		}
	}
	at := func(step authority.Step) *authority.Authority {
		t.Helper()
		a, err := authority.Open(dir)
		if err != nil || a.Rotation() != step {
			t.Fatalf("%v: step %q, want %q", err, a.Rotation(), step)
		}
		return a
	}
	states := [][2]string{read()}
	for _, step := range []func() error{at("").Rotate, nil, nil} {
		var err error
		if step != nil {
			err = step()
		} else {
			a := must.Have(authority.Open(dir))
			err = a.Proceed(a.Rotation())
		}
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, read())
	}
	write(states[0][0], states[1][1]) // killed before the certificate
	if err := at(authority.StepNone).Rotate(); err != nil {
		t.Fatal(err)
	}
	at(authority.StepTrust)
	write(states[3][0], states[2][1]) // killed before the former key is removed
	at(authority.StepNone)
	if err := at(authority.StepNone).Rotate(); err != nil {
		t.Fatal(err)
	}
	if err := at(authority.StepTrust).Rotate(); err == nil {
		t.Error("it is begun twice")
	}
}

// A node whose renewal fails tries again within seconds, so that one answer that is lost does not hold up the step.
func TestRotateRenewedAgain(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	h := f.host("edge-1")
	f.converged1(h)
	obstacle := filepath.Join(f.dir, "keys", "nodes", "edge-1.json.new") // the hub cannot record what it grants
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	f.rotate()
	f.awaits(authority.StepIssue, "edge-1")
	wait.For(t, "a renewal fails", func() bool { return h.Renewal() != nil })
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	f.awaits(authority.StepNone, "")
}

// What cannot be read replaces nothing: the hub goes on by what it has, says so, and issues.
func TestRotateUnread(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	h := f.host("edge-1")
	f.converged1(h)
	path := filepath.Join(f.dir, "keys", "ca.pem")
	whole := must.Read(t, path)
	said := func() bool {
		s, err := f.hub.Fleet(t.Context())
		return err == nil && slices.ContainsFunc(s.Problems, func(p string) bool { return strings.HasPrefix(p, "the authority's certificate: ") })
	}
	for what, text := range map[string]string{"half": string(whole[:len(whole)/2]), "no key": string(whole) + string(caOf(t)), "empty": ""} {
		must.Write(t, path, text)
		wait.For(t, what+": the hub says so", said)
		if f.authority.Rotation() != authority.StepNone {
			t.Errorf("%s: step %q", what, f.authority.Rotation())
		}
		must.Write(t, path, whole)
		wait.For(t, "the hub reads it again", func() bool { return !said() })
	}
	f.converged1(f.host("edge-2"))
}

// caOf returns the certificate of another fleet, which has replaced one.
func caOf(t *testing.T) []byte {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "keys")
	a := must.Have(authority.Init(dir))
	if err := errors.Join(a.Rotate(), a.Proceed(authority.StepTrust), a.Proceed(authority.StepIssue)); err != nil {
		t.Fatal(err)
	}
	return must.Read(t, filepath.Join(dir, "ca.pem"))
}

// A site is enrolled anew in each step. Its nodes filter by each change meanwhile.
func TestRotateAtSite(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.sites = lab.FreeAddress(t)
	f.start("")
	listen, dir := lab.FreeAddress(t), t.TempDir()
	enroll := func() (stop func()) {
		t.Helper()
		e, err := f.authority.EnrollSite("paris", []string{"tls://" + listen}, []string{"tls://" + f.sites})
		if err != nil {
			t.Fatal(err)
		}
		_, stop = f.site(e, dir, listen, testLog())
		return stop
	}
	stop := enroll()
	h := &host{t: t, name: "edge-1", dir: t.TempDir()}
	h.enrollment = must.Have(f.authority.Enroll("edge-1", nil, []string{"tls://" + listen}))
	h = f.again(h)
	f.change(block("198.51.100.1/32"))
	f.converged1(h)
	f.rotate()
	for i, step := range []authority.Step{authority.StepTrust, authority.StepIssue} {
		f.awaits(step, "site paris")
		f.change(block([]string{"198.51.100.2/32", "198.51.100.3/32"}[i]))
		stop()
		stop = enroll()
		f.converged1(h)
	}
	f.awaits(authority.StepNone, "")
	f.change(block("198.51.100.4/32"))
	f.converged1(h)
}
