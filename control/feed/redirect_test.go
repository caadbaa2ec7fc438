package feed

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// A server must not make weir ask one that others cannot reach, at whatever hop, unless it is
// as hard to reach itself.
func TestRedirectInside(t *testing.T) {
	at := map[string]reach{
		"127.0.0.1": everybody, "127.0.0.2": ownNetwork, "127.0.0.3": ownNetwork, "127.0.0.4": ownHost, "127.0.0.5": ownLink, "127.0.0.6": ownAccess,
	}
	asked := make(map[string]int)
	servers := make(map[string]*httptest.Server)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The path has the addresses of the servers to go on to.
		next, rest, more := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if more {
			http.Redirect(w, r, servers[next].URL+"/"+rest, http.StatusFound)
			return
		}
		host, _, _ := strings.Cut(r.Host, ":")
		asked[host]++
		_, _ = w.Write([]byte("192.0.2.1\n"))
	})
	for host := range at {
		l, err := net.Listen("tcp", host+":0")
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewUnstartedServer(handler)
		s.Listener.Close()
		s.Listener = l
		s.Start()
		t.Cleanup(s.Close)
		servers[host] = s
	}
	of := func(a netip.Addr) reach { return at[a.String()] }
	try := func(follow bool, hosts ...string) {
		t.Helper()
		path := servers[hosts[0]].URL + "/"
		for _, next := range hosts[1:] {
			path += next + "/"
		}
		f, err := Open(t.Context(), Config{Name: "x", Spec: DefaultSpec(Source{URL: URL(path)})}, "")
		if err != nil {
			t.Fatal(err)
		}
		s := f.sources[0]
		s.reachOf, s.client = of, newClient(s.Source, of)
		defer s.client.CloseIdleConnections()
		clear(asked)
		want, last := NoFailure, hosts[len(hosts)-1]
		if !follow {
			want = BadStatus
		}
		for range 2 { // the second time on connections that are open
			o, err := f.Fetch(t.Context())
			if err != nil || o[0].Failure != want {
				t.Errorf("%v: %+v, %v", hosts, o, err)
			}
		}
		if !follow && asked[last] > 0 {
			t.Errorf("%v: the last server was asked", hosts)
		}
	}
	for from, a := range at {
		try(true, from)
		for to, b := range at {
			follow := b == everybody || a == b
			try(follow, from, to)
			try(follow, from, "127.0.0.1", to)
		}
	}
}

// A server cannot have any address spared from lists by a redirect to it.
func TestServersOfRedirects(t *testing.T) {
	second, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := httptest.NewUnstartedServer(text("192.0.2.1\n"))
	elsewhere.Listener.Close()
	elsewhere.Listener = second
	elsewhere.Start()
	t.Cleanup(elsewhere.Close)
	first := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) })
	f := mustOpen(t, config(from(first)), "")
	servers := func() string { return fmt.Sprint(f.Status().Sources[0].Servers) }
	want(t, f, fetch(t, f), New, NoFailure, "192.0.2.1")
	if got := servers(); got != "[127.0.0.1]" {
		t.Errorf("servers %s", got)
	}
	elsewhere.Close() // it is connected to without success
	f.sources[0].client.CloseIdleConnections()
	want(t, f, fetch(t, f), Failed, Unreachable, "192.0.2.1")
	if got := servers(); got != "[127.0.0.1]" {
		t.Errorf("servers after a failure: %s", got)
	}

	// Nor by the addresses of its name, but for some.
	for i := range 2 * maxServers {
		f.sources[0].connects(fmt.Sprintf("192.0.2.%d:443", i))
	}
	if got := len(f.sources[0].asked); got != maxServers {
		t.Errorf("%d addresses of servers", got)
	}
}

func TestReachOf(t *testing.T) {
	for a, want := range map[string]reach{
		"127.0.0.1": ownHost, "::1": ownHost, "::ffff:127.0.0.1": ownHost, "0.0.0.0": ownHost, "::": ownHost, "::ffff:0.0.0.0": ownHost,
		"10.1.2.3": ownNetwork, "192.168.0.1": ownNetwork, "172.16.0.1": ownNetwork, "fd00::1": ownNetwork, "::ffff:10.0.0.1": ownNetwork,
		"169.254.169.254": ownLink, "fe80::1": ownLink, "100.64.0.1": ownAccess, "224.0.0.1": special, "255.255.255.255": special,
		"192.0.2.1": everybody, "8.8.8.8": everybody, "2001:db8::1": everybody, "172.32.0.1": everybody, "100.128.0.1": everybody,
	} {
		if got := reachOf(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %v", a, got)
		}
	}
}
