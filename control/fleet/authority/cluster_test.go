package authority

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// TestCluster has nats-server read what is written for it.
func TestCluster(t *testing.T) {
	a, err := Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	hosts := []string{"a.example.net", "192.0.2.2", "2001:db8::3"}
	c := Cluster{Names: []string{"hub.example.net"}, Routes: 6222, Leaves: 7422, State: t.TempDir()}
	for _, host := range hosts {
		c.Servers = append(c.Servers, "tls://"+net.JoinHostPort(host, "4222"))
	}
	for _, host := range hosts {
		c.Files = filepath.Join(dir, host)
		if made, err := c.Write(a, dir); err != nil || len(made) != len(hosts) {
			t.Fatal(made, err)
		}
		check(t, a, c, host)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil || len(files) != 3*4 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", f, info.Mode(), err)
		}
	}
	c.Servers[1] = "tls://a.example.net:4223"
	if _, err := c.Write(a, dir); err == nil {
		t.Error("two servers on one host")
	}
}

func check(t *testing.T, a *Authority, c Cluster, host string) {
	t.Helper()
	o, err := server.ProcessConfigFile(filepath.Join(c.Files, clusterConfig))
	if err != nil {
		t.Fatalf("%s: %v", host, err)
	}
	if o.ServerName != host || len(o.Routes) != 2 || o.Port != 4222 || o.Cluster.Port != 6222 || o.LeafNode.Port != 7422 || o.TLSConfig.ClientAuth != tls.RequireAndVerifyClientCert ||
		o.Cluster.TLSConfig == nil || o.LeafNode.TLSConfig == nil || !o.JetStream || !o.SyncAlways || o.JetStreamDomain != "hub" || len(o.TrustedOperators) != 1 {
		t.Errorf("%s: name %s, routes %v, ports %d, %d, %d, JetStream %t in %q", host, o.ServerName, o.Routes, o.Port, o.Cluster.Port, o.LeafNode.Port, o.JetStream, o.JetStreamDomain)
	}
	for _, r := range o.Routes {
		if r.Hostname() == host || r.Port() != "6222" {
			t.Errorf("%s has the route %s: to itself, or to another port than that of routes", host, r)
		}
	}
	text, err := os.ReadFile(filepath.Join(c.Files, clusterConfig))
	if err != nil {
		t.Fatal(err)
	}
	account, _, err := a.Account()
	if err != nil || !strings.Contains(string(text), "  "+account.Subject+": ey") {
		t.Errorf("%s does not know the account: %v", host, err)
	}
	for _, name := range append([]string{host}, c.Names...) {
		if err := o.TLSConfig.Certificates[0].Leaf.VerifyHostname(name); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
}
