package hub

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/durable"
	"weir/control/fleet/authority"
	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
	"weir/tests/lab"
	"weir/tests/wait"
)

// life has certificates be valid for a time from now on, and nodes that cannot connect renew them at a URL.
func (f *fleet) life(of time.Duration, join string) {
	f.authority.SetTerms(authority.Terms{Life: of, Join: join})
}

// renewed returns what a host has renewed, the zero value before.
func (h *host) renewed() (n enrollment.Node) {
	var c struct{ Node enrollment.Node }
	if files, _ := filepath.Glob(filepath.Join(h.dir, "*", "credentials")); len(files) == 1 {
		if text, err := os.ReadFile(files[0]); err == nil {
			_ = json.Unmarshal(text, &c) // it may be replaced now
		}
	}
	return c.Node
}

// member returns what the authority knows of a node.
func (f *fleet) member(name string) authority.Member {
	f.t.Helper()
	all, err := f.authority.AllMembers()
	if err != nil {
		f.t.Fatal(err)
	}
	return all[name]
}

// audited waits until the audit has a renewal of a node, which an error refuses; "": which was made.
func (f *fleet) audited(name, problem string) {
	f.t.Helper()
	wait.For(f.t, "the audit has the renewal: "+problem, func() bool {
		return slices.ContainsFunc(f.hub.Audit(50), func(r api.AuditRecord) bool {
			return r.Change == audit.Renew && slices.Equal(r.First, []string{name}) && (r.Error == "") == (problem == "") && strings.Contains(r.Error, problem)
		})
	})
}

// A node renews its certificate again and again, with new keys, and filters by each change meanwhile. The former keys
// are refused. Its file stays as it was, and a start goes on with what is renewed.
func TestRenew(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	join, life, refused := f.joins(t, lab.FreeAddress(t)), 8*time.Second, false
	f.life(life, join)
	h := f.host("edge-1")
	defer func() { h.stop() }()
	last := h.enrollment
	seen := map[string]bool{last.Seed: true}
	for round := 0; round < 3 || !refused; round++ {
		before := last
		wait.For(t, "a renewal", func() bool { last = h.renewed(); return last.Seed != "" && !seen[last.Seed] })
		seen[last.Seed] = true
		f.change(block("198.51.100.7/32"))
		f.converged1(h)
		f.change(api.Change{Action: api.Block, Remove: true, Entries: []string{"198.51.100.7/32"}})
		f.converged1(h)
		_, end := before.Lives()
		wait.For(t, "the former keys to be refused, or to end", func() bool {
			_, err := f.tryConnect(before)
			ended := time.Now().After(end)
			refused = refused || !ended && errors.Is(err, nats.ErrAuthorization)
			return refused || ended
		})
		if round == 4 && !refused {
			t.Fatal("former keys were never refused before they ended")
		}
		if !refused { // on a slow machine: the next certificates last longer
			life *= 2
			f.life(life, join)
		}
		if round == 0 {
			h.stop()
			h = f.again(h)
		}
	}
	f.audited("edge-1", "")
	if m := f.member("edge-1"); m.User != last.User() || m.Renewed.IsZero() || len(m.Former) < 2 {
		t.Errorf("the hub knows %+v", m)
	}
	if r := h.Renewal(); r != nil {
		t.Error(r)
	}
}

// A node of a site renews its certificate through the site's server.
func TestRenewAtSite(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.sites = lab.FreeAddress(t)
	f.start("")
	f.life(20*time.Second, "") // on a slow machine, too, it renews before that ends: it knows of nowhere else
	listen := lab.FreeAddress(t)
	e, err := f.authority.EnrollSite("paris", []string{"tls://" + listen}, []string{"tls://" + f.sites})
	if err != nil {
		t.Fatal(err)
	}
	f.site(e, t.TempDir(), listen, testLog())
	h := &host{t: t, name: "edge-1", dir: t.TempDir()}
	if h.enrollment, err = f.authority.Enroll("edge-1", nil, []string{"tls://" + listen}); err != nil {
		t.Fatal(err)
	}
	h = f.again(h)
	seen := make(map[string]bool)
	for range 2 {
		wait.For(t, "a renewal", func() bool { u := h.renewed().User(); return u != "" && !seen[u] })
		seen[h.renewed().User()] = true
	}
	wait.For(t, "the node to connect by it", func() bool {
		return h.Age().Connected && f.member("edge-1").User == h.renewed().User()
	})
	f.change(block("198.51.100.7/32"))
	f.converged1(h)
	f.audited("edge-1", "")
}

// A node that was away for almost a year after its certificate had ended comes back by itself. One that was away for
// longer is refused, and says so.
func TestRenewExpired(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	f.start("")
	at := lab.FreeAddress(t)
	const day = 24 * time.Hour
	f.life(-364*day, f.joins(t, at))
	h := f.host("edge-1")
	f.life(-366*day, "https://"+at)
	late := f.host("edge-2")
	f.life(0, "https://"+at)
	f.change(block("198.51.100.7/32"))
	f.converged1(h)
	f.audited("edge-1", "")
	f.audited("edge-2", "more than a year ago")
	wait.For(t, "the node to say so", func() bool {
		r, age := late.Renewal(), late.Age()
		return r != nil && strings.Contains(r.Why, "more than a year ago") && !age.Connected && strings.Contains(age.Why, "expired")
	})
	if from, until := h.renewed().Lives(); until.Sub(from).Round(day) != 90*day {
		t.Errorf("renewed from %v until %v", from, until)
	}
}

// Renewals that are forged, replayed or too late are refused, over a connection and without, and are in the audit by
// the node's name.
func TestRenewRefused(t *testing.T) {
	f := newFleet(t)
	f.start("")
	url := f.joins(t, lab.FreeAddress(t))
	own, conn := f.enroll("edge-1")
	other, _ := f.enroll("edge-2")
	gone, _ := f.enroll("edge-3")
	renewal := func(n enrollment.Node) (enrollment.Keys, enrollment.Request) {
		t.Helper()
		k := newKeys(t)
		r, err := n.Renewal(k)
		if err != nil {
			t.Fatal(err)
		}
		return k, r
	}
	refused := func(what string, n enrollment.Node, k enrollment.Keys, r enrollment.Request, want string) {
		t.Helper()
		wait.For(t, "the hub to listen", func() bool {
			_, err := n.Renew(t.Context(), url, k, r)
			why, is := errors.AsType[enrollment.Refused](err)
			if is && !strings.Contains(why.Why, want) {
				t.Errorf("%s: refused since %s, want %q", what, why.Why, want)
			}
			if err == nil {
				t.Fatalf("%s: renewed", what)
			}
			return is
		})
		f.audited(n.Name, want)
	}
	// Forged: signed by another key than that of the node, and granted by another hub.
	k, r := renewal(own)
	_, theirs := renewal(other)
	r.Former = theirs.Former
	refused("another signature", own, k, r, "former key")
	foreign, err := authority.Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := foreign.Enroll("edge-1", nil, own.Servers)
	if err != nil {
		t.Fatal(err)
	}
	k, r = renewal(stranger)
	refused("of another hub", own, k, r, "another fleet")
	signature := strings.LastIndexByte(own.JWT, '.')
	stranger.JWT = own.JWT[:signature] + stranger.JWT[strings.LastIndexByte(stranger.JWT, '.'):]
	k, r = renewal(stranger)
	refused("a forged grant", own, k, r, "granted before")
	// In another node's name.
	as := other
	as.Name = "edge-1"
	k, r = renewal(as)
	refused("as another node", own, k, r, "another node")
	// Revoked.
	if err := f.authority.Revoke("edge-3"); err != nil {
		t.Fatal(err)
	}
	k, r = renewal(gone)
	refused("revoked", gone, k, r, "revoked")

	// Over a connection: for another node, which a server of a site may do.
	_, r = renewal(other)
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	m, err := conn.Request(wire.RenewSubject("edge-1"), text, wait.Patience)
	if err != nil || !strings.Contains(string(m.Data), "asks for another node") {
		t.Errorf("for another node: %s, %v", m.Data, err)
	}

	// Replayed: once the node has connected with what it got.
	k, r = renewal(own)
	next, err := own.Renew(t.Context(), url, k, r)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := own.Renew(t.Context(), url, k, r); err != nil || again.User() != next.User() {
		t.Errorf("a lost answer: %v", err)
	}
	k2, r2 := renewal(own)
	refused("twice, with other keys", own, k2, r2, "renewed before")
	if _, err := f.tryConnect(own); err != nil {
		t.Errorf("before the new certificate was proved: %v", err)
	}
	if _, err := f.connect(next); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the hub to know", func() bool { return f.member("edge-1").Before == "" })
	refused("replayed", own, k, r, "renewed before")
	wait.For(t, "the former keys to be refused", func() bool {
		_, err := f.tryConnect(own)
		return errors.Is(err, nats.ErrAuthorization)
	})
	if m := f.member("edge-1"); m.User != next.User() {
		t.Errorf("the hub knows %s, want %s", m.User, next.User())
	}
}

// failing is a disk on which nothing can be written any more of some files, after a number of times.
type failing struct {
	durable.SystemDisk

	mu    sync.Mutex
	dir   string // of these files; "": none fails
	left  int
	after bool // the last time it is written
	ended bool
}

var errEnded = errors.New("killed")

// fail has files of a directory fail from now on.
func (d *failing) fail(dir string, left int, after bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dir, d.left, d.after, d.ended = dir, left, after, false
}

// hasEnded reports whether they fail by now.
func (d *failing) hasEnded() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ended
}

// step reports whether the process is killed before, or after, what it does next to a file.
func (d *failing) step(path string) (before, after bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dir == "" || !strings.HasPrefix(path, d.dir) || !strings.Contains(filepath.Base(path), "credentials") {
		return false, false
	}
	if d.ended {
		return true, true
	}
	if d.left--; d.left < 0 {
		d.ended = true
		return !d.after, true
	}
	return false, false
}

func (d *failing) do(path string, fn func() error) error {
	before, after := d.step(path)
	if before {
		return errEnded
	}
	if err := fn(); err != nil || !after {
		return err
	}
	return errEnded
}

func (d *failing) Rename(from, to string) error {
	return d.do(to, func() error { return d.SystemDisk.Rename(from, to) })
}

func (d *failing) Remove(path string) error {
	return d.do(path, func() error { return d.SystemDisk.Remove(path) })
}

// A node that is killed between two steps of a renewal comes back by itself, and ends the renewal.
func TestRenewKilled(t *testing.T) {
	d := &failing{}
	before := durable.UseDisk(d) // until the hub, which uses it, too, has stopped
	t.Cleanup(func() { durable.UseDisk(before) })
	f := newFleet(t)
	f.start("")
	f.joinsAt = lab.FreeAddress(t)
	url := f.joins(t, f.joinsAt)
	for step := 0; ; step++ {
		f.life(-time.Hour, url) // as if it had ended, so that it is renewed at once
		if step%2 == 1 {
			f.life(time.Second, url)
		}
		name := "edge-" + string(rune('a'+step))
		h := &host{t: t, name: name, dir: t.TempDir()}
		var err error
		if h.enrollment, err = f.authority.Enroll(name, nil, []string{f.broker.URL()}); err != nil {
			t.Fatal(err)
		}
		f.life(time.Hour, url)
		d.fail(h.dir, step/2, step%2 == 1)
		h = f.again(h)
		wait.For(t, "a renewal, or its end", func() bool {
			return d.hasEnded() || h.renewed().Seed != "" && f.member(name).Before == ""
		})
		ended := d.hasEnded()
		if ended {
			<-time.After(100 * time.Millisecond) // what it would do nevertheless
		}
		h.stop()
		d.fail("", 0, false)
		at, _ := filepath.Glob(filepath.Join(h.dir, "*", "credentials*"))
		t.Logf("step %d, ended %t: %q", step, ended, at)
		next := f.again(h)
		wait.For(t, "the node to come back", func() bool {
			m := f.member(name)
			return next.Age().Connected && m.User == next.renewed().User() && m.User != h.enrollment.User() && m.Before == ""
		})
		wait.For(t, "the former keys to be refused", func() bool { _, err := f.tryConnect(h.enrollment); return err != nil })
		next.stop()
		if !ended {
			if step < 6 {
				t.Fatalf("a renewal has %d steps", step/2)
			}
			return
		}
	}
}
