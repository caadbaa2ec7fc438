package enrollment

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"
)

func example(t *testing.T) Node {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	certificate, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, b []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return Node{
		Version: Version, Name: "edge-17", Labels: []string{"canary", "paris"},
		Servers: []string{"tls://hub.example:4222", "tls://192.0.2.1:4222"},
		CA:      text("CERTIFICATE", certificate), Certificate: text("CERTIFICATE", certificate), Key: text("PRIVATE KEY", private),
		JWT: "a.b.c", Seed: string(seed), PublicKey: public,
	}
}

func TestFile(t *testing.T) {
	want := example(t)
	text, err := want.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "edge-17.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(path); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if got := want.Groups(); !slices.Equal(got, []string{"canary", "paris", "node:edge-17"}) || len(want.Labels) != 2 {
		t.Errorf("groups %q", got)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "chmod o= "+path) {
		t.Errorf("a file that all may read: %v", err)
	}
	for i := range len(text) - 2 {
		if _, err := Parse(text[:i]); err == nil {
			t.Fatalf("cut to %d bytes, it is taken for whole", i)
		}
	}
}

func TestIncomplete(t *testing.T) {
	for what, change := range map[string]func(*Node){
		"node":        func(n *Node) { n.Name = "a.b" },
		"label":       func(n *Node) { n.Labels = []string{"node:a"} },
		"no servers":  func(n *Node) { n.Servers = nil },
		"server":      func(n *Node) { n.Servers = []string{"nats://hub.example"} },
		"ca":          func(n *Node) { n.CA = "" },
		"certificate": func(n *Node) { n.Certificate = "" },
		"seed":        func(n *Node) { n.Seed = "SUA" },
		"jwt":         func(n *Node) { n.JWT = "" },
		"public_key":  func(n *Node) { n.PublicKey = n.PublicKey[1:] },
	} {
		n := example(t)
		change(&n)
		if _, err := n.Marshal(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, change := range map[string]func(*Site){
		"site":   func(s *Site) { s.Name = "a.b" },
		"no hub": func(s *Site) { s.Hub = nil },
		"server": func(s *Site) { s.Hub = []string{"nats://hub.example"} },
		"ca":     func(s *Site) { s.CA = "" },
		"stream": func(s *Site) { s.Stream = Credentials{} },
		"nodes":  func(s *Site) { s.Nodes.Seed = "SUA" },
		"own":    func(s *Site) { s.Own.JWT = "" },
		"fetch":  func(s *Site) { s.Fetch.JWT = "a.b" },
		"events": func(s *Site) { s.Events = Credentials{} },
		"":       func(*Site) {},
	} {
		n := example(t)
		c := Credentials{JWT: n.JWT, Seed: n.Seed}
		s := Site{Name: "paris", Hub: n.Servers, CA: n.CA, Certificate: n.Certificate, Key: n.Key,
			Stream: c, Nodes: c, Own: c, Fetch: c, Events: c, PublicKey: n.PublicKey}
		change(&s)
		if _, err := s.Marshal(); (err == nil) != (what == "") || err != nil && !strings.Contains(err.Error(), what) {
			t.Errorf("of a site: %s: %v", what, err)
		}
	}
	if _, err := Parse([]byte(`{"name": "x"}`)); err == nil || !strings.Contains(err.Error(), "no enrollment file") {
		t.Errorf("another file: %v", err)
	}
	if _, err := Parse([]byte(`{"weir_fleet": 2}`)); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("%v", err)
	}
}
