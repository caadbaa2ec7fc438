package feed

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// A public server must not make weir ask an internal one, at whatever hop; an internal
// one may redirect to others.
func TestRedirectInside(t *testing.T) {
	asked := 0
	var inside, outside *httptest.Server
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/in":
			http.Redirect(w, r, inside.URL+"/list", http.StatusFound)
		case "/twice":
			http.Redirect(w, r, outside.URL+"/in", http.StatusFound)
		case "/out":
			http.Redirect(w, r, outside.URL+"/list", http.StatusFound)
		default:
			if strings.HasPrefix(r.Host, "127.0.0.2:") {
				asked++
			}
			_, _ = w.Write([]byte("192.0.2.1\n"))
		}
	})
	serve := func(at string) *httptest.Server {
		l, err := net.Listen("tcp", at+":0")
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewUnstartedServer(handler)
		s.Listener.Close()
		s.Listener = l
		s.Start()
		t.Cleanup(s.Close)
		return s
	}
	outside, inside = serve("127.0.0.1"), serve("127.0.0.2")
	internal := func(a netip.Addr) bool { return a == netip.MustParseAddr("127.0.0.2") }
	for _, c := range []struct {
		url  string
		want Failure
	}{
		{outside.URL + "/list", NoFailure},
		{outside.URL + "/out", NoFailure},
		{outside.URL + "/in", BadStatus},
		{outside.URL + "/twice", BadStatus},
		{inside.URL + "/list", NoFailure},
		{inside.URL + "/out", NoFailure},
		{inside.URL + "/in", NoFailure},
		{inside.URL + "/twice", NoFailure},
	} {
		f, err := Open(Config{Name: "x", Spec: DefaultSpec(Source{URL: URL(c.url)})}, "")
		if err != nil {
			t.Fatal(err)
		}
		s := f.sources[0]
		s.internal, s.client = internal, newClient(s.Source, internal)
		asked = 0
		for range 2 { // the second time on connections that are open
			o, err := f.Fetch(t.Context())
			if err != nil || o[0].Failure != c.want {
				t.Errorf("%s: %+v, %v", c.url, o, err)
			}
		}
		if c.want != NoFailure && asked > 0 {
			t.Errorf("%s: the internal server was asked", c.url)
		}
		s.client.CloseIdleConnections()
	}
}

func TestIsInternal(t *testing.T) {
	for a, want := range map[string]bool{
		"127.0.0.1": true, "::1": true, "10.1.2.3": true, "192.168.0.1": true, "172.16.0.1": true, "169.254.169.254": true,
		"100.64.0.1": true, "0.0.0.0": true, "::": true, "fe80::1": true, "fd00::1": true, "::ffff:10.0.0.1": true, "224.0.0.1": true,
		"192.0.2.1": false, "8.8.8.8": false, "2001:db8::1": false, "172.32.0.1": false, "100.128.0.1": false,
	} {
		if got := isInternal(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %v", a, got)
		}
	}
}
