package feed

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"weir/tests/certificate"
)

func certify(t *testing.T, name string) (cert, key Path) {
	t.Helper()
	c, k := certificate.SelfSigned(t, name)
	return Path(c), Path(k)
}

// A source has its own authorities, and a certificate for its server; both may be
// renewed between two requests. The certificate is shown to no other server.
func TestTLS(t *testing.T) {
	serverCert, serverKey := certify(t, "server")
	own, err := tls.LoadX509KeyPair(string(serverCert), string(serverKey))
	if err != nil {
		t.Fatal(err)
	}
	var shown string
	text := "192.0.2.1\n"
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		shown = q.TLS.PeerCertificates[0].Subject.CommonName
		if q.URL.Path == "/away" {
			http.Redirect(w, q, strings.Replace("https://"+q.Host, "127.0.0.1", "localhost", 1), http.StatusFound)
			return
		}
		fmt.Fprint(w, text)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAnyClientCert}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()

	first, firstKey := certify(t, "first")
	second, secondKey := certify(t, "second")
	at := func(u string, files TLS) *Feed {
		return mustOpen(t, named("test", Format{}, Source{URL: URL(u), TLS: files}), "")
	}
	for _, files := range []TLS{{}, {Cert: first, Key: firstKey}, {CA: serverCert}, {CA: first, Cert: first, Key: firstKey}, {CA: "/nonexistent"}} {
		if o := fetch(t, at(s.URL, files)); o.Failure != Unreachable {
			t.Errorf("%+v: %+v", files, o)
		}
	}
	f := at(s.URL, TLS{CA: serverCert, Cert: first, Key: firstKey})
	if want(t, f, fetch(t, f), New, NoFailure, "192.0.2.1"); shown != "first" {
		t.Errorf("shown %q", shown)
	}
	for from, to := range map[Path]Path{second: first, secondKey: firstKey} {
		if err := os.Rename(string(from), string(to)); err != nil {
			t.Fatal(err)
		}
	}
	text = "192.0.2.2\n"
	if want(t, f, fetch(t, f), New, NoFailure, "192.0.2.2"); shown != "second" {
		t.Errorf("after the renewal, shown %q", shown)
	}
	if o := fetch(t, at(s.URL+"/away", TLS{CA: serverCert, Cert: first, Key: firstKey})); o.Failure != BadStatus || !strings.Contains(o.Err.Error(), "certificate") {
		t.Errorf("redirected: %+v", o)
	}

	for says, source := range map[string]Source{
		"want cert and key": {URL: URL(s.URL), TLS: TLS{Cert: first}},
		"key, or neither":   {URL: URL(s.URL), TLS: TLS{Key: firstKey}},
		"begins with https": {URL: "http://192.0.2.1", TLS: TLS{CA: first}},
		"require":           {File: "/a", TLS: TLS{CA: first}},
	} {
		c := named("test", Format{}, source)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", source.TLS, err, says)
		}
	}
	for _, files := range []TLS{{CA: "/nonexistent"}, {CA: firstKey}, {Cert: first, Key: serverKey}} {
		if err := (Source{TLS: files}).ValidateFiles(); err == nil {
			t.Errorf("%+v is taken", files)
		}
	}
}
