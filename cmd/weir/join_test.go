package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/config"
	"weir/control/fleet/authority"
	"weir/control/fleet/enrollment"
	"weir/tests/must"
	tests "weir/tests/wait"
)

// A configuration gets fleet at its end, and nothing else changes; also behind a link, and with its mode. One that
// cannot have it there stays, and the command says which line is missing.
func TestJoinConfigures(t *testing.T) {
	shipped, err := os.ReadFile("../../control/config/weir.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		text string
		ok   bool
	}{
		"as installed":                 {string(shipped), true},
		"without a last line's end":    {"interfaces: [eth0]", true},
		"after a comment":              {"interfaces: [eth0]\n# fleet:\n", true},
		"in braces":                    {"{interfaces: [eth0]}\n", false},
		"with the end of the document": {"interfaces: [eth0]\n...\n", false},
	} {
		dir := t.TempDir()
		file, link := filepath.Join(dir, "real.yaml"), filepath.Join(dir, "weir.yaml")
		if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("real.yaml", link); err != nil {
			t.Fatal(err)
		}
		before, err := config.Load(link)
		if err != nil {
			t.Fatal(err)
		}
		j := joining{file: link, conf: before, enroll: filepath.Join(dir, "fleet.json")}
		err = j.configure(link)
		after, wrong := config.Load(link)
		if wrong != nil {
			t.Fatalf("%s: %v", what, wrong)
		}
		if c.ok != (err == nil) || c.ok != after.Fleet.On() || c.ok && string(after.Fleet.Enroll) != j.enroll {
			t.Errorf("%s: %v, fleet %+v", what, err, after.Fleet)
		}
		if !c.ok && (err == nil || !strings.Contains(err.Error(), "\nfleet: {enroll: "+j.enroll+"}")) {
			t.Errorf("%s: %v", what, err)
		}
		if info, err := os.Lstat(file); err != nil || info.Mode() != 0o644 {
			t.Errorf("%s: %v, %v", what, info.Mode(), err)
		}
		if _, err := os.Readlink(link); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A host that has a file of the fleet asks no hub, and one of another fleet stays there.
func TestJoinAlready(t *testing.T) {
	dir := t.TempDir()
	file, enroll := filepath.Join(dir, "weir.yaml"), filepath.Join(dir, "fleet.json")
	if err := os.WriteFile(file, []byte("interfaces: [eth0]\nfleet: {enroll: "+enroll+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tokenOf := func(name string) (*authority.Authority, enrollment.Token) {
		t.Helper()
		a, err := authority.Init(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		_, text, err := a.NewToken(authority.Token{Count: 1, Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		token, err := enrollment.ParseToken(text)
		if err != nil {
			t.Fatal(err)
		}
		return a, token
	}
	ours, token := tokenOf("ours")
	_, other := tokenOf("theirs")
	n, err := ours.Enroll("edge-1", nil, []string{"tls://hub.example.net:4222"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := n.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(enroll, text, 0o600); err != nil {
		t.Fatal(err)
	}
	try := func(by enrollment.Token, name string) (bool, error) {
		j := joining{hub: "https://192.0.2.1:4223", token: by, name: name, file: file, says: io.Discard, denied: func(context.Context) bool { return false }}
		n, already, err := j.join(t.Context())
		if err == nil && n.Name != "edge-1" {
			t.Errorf("it is node %s", n.Name)
		}
		return already, err
	}
	for _, name := range []string{"", "edge-1"} {
		if already, err := try(token, name); !already || err != nil {
			t.Errorf("name %q: already: %t, %v", name, already, err)
		}
	}
	if _, err := try(token, "edge-2"); err == nil || !strings.Contains(err.Error(), "node edge-1 already") {
		t.Errorf("another name: %v", err)
	}
	if _, err := try(other, ""); err == nil || !strings.Contains(err.Error(), "of another fleet") {
		t.Errorf("another fleet: %v", err)
	}
	if after, err := os.ReadFile(enroll); err != nil || string(after) != string(text) {
		t.Errorf("the file has changed: %v", err)
	}
}

// A node that turns out to be let in no more while the command waits joins anew.
func TestJoinDeniedLater(t *testing.T) {
	dir := t.TempDir()
	file, enroll := filepath.Join(dir, "weir.yaml"), filepath.Join(dir, "fleet.json")
	a := must.Have(authority.Init(filepath.Join(dir, "keys")))
	_, token, err := a.NewToken(authority.Token{Count: 1, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	must.Write(t, enroll, string(must.Have(must.Have(a.Enroll("edge-1", nil, []string{"tls://127.0.0.1:4222"})).Marshal())))
	must.Write(t, file, "interfaces: [eth0]\nfleet: {enroll: "+enroll+"}\n")
	socket := serveDaemon(t, &fakeDaemon{status: api.Status{Fleet: &api.Fleet{Node: "edge-1", Denied: true}}})
	asked, errAsked := 0, errors.New("asked again")
	timed, end := context.WithTimeout(t.Context(), 20*time.Second)
	defer end()
	ctx, cancel := context.WithCancelCause(timed)
	j := joining{hub: "https://127.0.0.1:1", token: must.Have(enrollment.ParseToken(token)), file: file, says: io.Discard, denied: func(context.Context) bool {
		if asked++; asked > 1 {
			cancel(errAsked)
		}
		return asked > 1
	}}
	if _, err := j.become(ctx, func() *client.Client { return client.Dial(socket) }); asked != 2 || !errors.Is(context.Cause(ctx), errAsked) {
		t.Errorf("asked %d times: %v", asked, err)
	}
}

// A host keeps its keys until it has an answer, and counts once; where they are revoked, it makes others. Only its
// owner, and the group of the directory, may read the file.
func TestJoinAsks(t *testing.T) {
	for _, revoked := range []bool{false, true} {
		t.Run(fmt.Sprintf("revoked %t", revoked), func(t *testing.T) { testJoinAsks(t, revoked) })
	}
}

func testJoinAsks(t *testing.T, revoked bool) {
	t.Helper()
	dir := t.TempDir()
	a, err := authority.Init(filepath.Join(dir, "keys"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, err := a.NewToken(authority.Token{Count: 2, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	token, err := enrollment.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	secure, err := a.JoinTLS([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", secure)
	if err != nil {
		t.Fatal(err)
	}
	var lost atomic.Bool // answers are
	hub := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var r enrollment.Request
		if err := json.NewDecoder(q.Body).Decode(&r); err != nil {
			t.Error(err)
		}
		n, err := a.Join(r, netip.MustParseAddr("127.0.0.1"), []string{"tls://127.0.0.1:4222"}, false)
		if lost.Load() {
			panic(http.ErrAbortHandler)
		}
		if why, ok := errors.AsType[authority.Refused](err); ok {
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(enrollment.Refused{Why: why.Error(), Keys: why.Keys})
			return
		}
		_ = json.NewEncoder(w).Encode(n)
	}), ErrorLog: log.New(io.Discard, "", 0)}
	go hub.Serve(l)
	defer hub.Close()
	host := filepath.Join(dir, "host")
	file, enroll := filepath.Join(host, "weir.yaml"), filepath.Join(host, "fleet.json")
	if err := os.Mkdir(host, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("interfaces: [eth0]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	try := func(within time.Duration) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		var said bytes.Buffer
		j := joining{hub: "https://" + l.Addr().String(), token: token, name: "edge-1", file: file, says: &said}
		_, _, err := j.join(ctx)
		return said.String(), err
	}
	lost.Store(true)
	for range 2 {
		if said, err := try(300 * time.Millisecond); err == nil || strings.Count(said, "weir: trying again: ") != 1 {
			t.Errorf("without an answer: %v, said %q", err, said)
		}
	}
	lost.Store(false)
	joined := func() int {
		t.Helper()
		all, err := a.Tokens()
		if err != nil {
			t.Fatal(err)
		}
		return len(all[0].Joined)
	}
	if n := joined(); n != 1 {
		t.Errorf("counted: %d, want one host", n)
	}
	hosts := 1
	if revoked { // by an operator who makes way for it
		hosts++
		if err := a.Revoke("edge-1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := try(tests.Patience); err != nil {
		t.Fatal(err)
	}
	n, err := enrollment.Read(enroll)
	if err != nil || n.Name != "edge-1" || joined() != hosts {
		t.Errorf("node %q, counted: %d, %v", n.Name, joined(), err)
	}
	if info, err := os.Stat(enroll); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	left, err := os.ReadDir(host)
	if err != nil || len(left) != 2 {
		t.Errorf("the directory has %v, %v", left, err)
	}
	if c, err := config.Load(file); err != nil || string(c.Fleet.Enroll) != enroll {
		t.Errorf("%v", err)
	}
}

// The command line says what is wrong with it.
func TestJoinUsage(t *testing.T) {
	token := "1f0c22aa." + strings.Repeat("A", 22) + "." + strings.Repeat("B", 43)
	for _, args := range [][]string{
		{}, {"hub.example.net"}, {"http://hub.example.net", token}, {"hub.example.net/x", token}, {"hub.example.net", token[:20]},
		{"hub.example.net", token, "--name", "A.B"}, {"hub.example.net", token, "more"},
	} {
		if code, _, log := weir(t, "", append([]string{"join"}, args...)...); code != exitUsage {
			t.Errorf("%q: exit code %d: %s", args, code, log)
		}
	}
	for text, want := range map[string]string{
		"hub.example.net": "https://hub.example.net:4223", "https://hub.example.net/": "https://hub.example.net:4223",
		"hub.example.net:8443": "https://hub.example.net:8443", "https://[2001:db8::1]": "https://[2001:db8::1]:4223",
	} {
		if url, err := enrollment.JoinURL(text); err != nil || url != want {
			t.Errorf("%s: %s, %v", text, url, err)
		}
	}
}
