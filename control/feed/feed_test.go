package feed

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/list"
	"weir/control/quantity"
	"weir/tests/must"
	"weir/tests/wait"
)

// good is a list, and less a smaller one.
const (
	good     = "192.0.2.1\n192.0.2.2\n198.51.100.0/24\n2001:db8::/32\n"
	goodText = "192.0.2.1 192.0.2.2 198.51.100.0/24 2001:db8::/32"
	less     = "192.0.2.1\n192.0.2.2\n"
	lessText = "192.0.2.1 192.0.2.2"
)

// server serves a configurable answer.
type server struct {
	*httptest.Server
	handler atomic.Pointer[http.HandlerFunc]
}

func serve(t *testing.T, h http.HandlerFunc) *server {
	t.Helper()
	s := &server{}
	s.handler.Store(&h)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*s.handler.Load())(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) now(h http.HandlerFunc) { s.handler.Store(&h) }

// text answers with a text and an entity tag.
func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		tag := fmt.Sprintf(`"%x"`, sha256.Sum256([]byte(body)))
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		fmt.Fprint(w, body)
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// from returns a source at a server.
func from(s *server) Source { return Source{URL: URL(s.URL + "/list.txt"), MaxBytes: 64 << 10} }

// impatient returns a source at a server, with time limits short enough for a
// test.
func impatient(s *server) Source {
	src := from(s)
	src.StallTimeout, src.Timeout = 800*time.Millisecond, quantity.Duration(2500*time.Millisecond)
	return src
}

func config(sources ...Source) Config { return named("bad-guys", Format{}, sources...) }

func named(name string, f Format, sources ...Source) Config {
	c := Config{Name: name, Spec: DefaultSpec(sources...)}
	c.Format = f
	return c
}

func mustOpen(t *testing.T, c Config, directory string) *Feed {
	t.Helper()
	f, err := Open(t.Context(), c, directory)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// fetch tries a feed with one source.
func fetch(t *testing.T, f *Feed) Outcome {
	t.Helper()
	o, err := f.Fetch(t.Context())
	if err != nil || len(o) != 1 {
		t.Fatalf("%d outcomes, error %v", len(o), err)
	}
	return o[0]
}

// want checks an outcome and the active entries.
func want(t *testing.T, f *Feed, o Outcome, result Result, failure Failure, entries string) {
	t.Helper()
	if o.Result != result || o.Failure != failure || (o.Err == nil) != (failure == NoFailure) {
		t.Errorf("%v (%v): %v, want %v (%v)", o.Result, o.Failure, o.Err, result, failure)
	}
	if o.Changed != (result == New || result == Loaded) {
		t.Errorf("%v: changed %v", o.Result, o.Changed)
	}
	if got := strings.Join(textsOf(f.Contents()), " "); got != entries || o.Entries != f.Contents().Len() {
		t.Errorf("%d entries, active: %s, want %s", o.Entries, got, entries)
	}
	if o.Result != None && (o.Began.IsZero() || o.Ended.Before(o.Began)) {
		t.Errorf("from %v to %v", o.Began, o.Ended)
	}
}

// TestLastKnownGood makes a feed with good contents fail in every way, and
// checks that they stay, in memory and on disk, and that it recovers.
func TestLastKnownGood(t *testing.T) {
	bomb := zip(t, []byte(strings.Repeat("192.0.2.1\n", 1<<20)))
	hijacked := func(w http.ResponseWriter, head string, reset bool) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		fmt.Fprint(conn, head)
		if reset {
			time.Sleep(50 * time.Millisecond) // otherwise the reset overtakes the header
			_ = conn.(*net.TCPConn).SetLinger(0)
		}
		conn.Close()
	}
	stall := func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		want    Failure
		reason  string
	}{
		{"404", status(404), BadStatus, `"404 Not Found"`},
		{"500", status(500), BadStatus, "500"},
		{"204", status(204), BadStatus, "204"},
		{"unconditional 304", status(304), NoFailure, ""}, // asked: good has a tag
		{"error page", text("<html>\n<body>504 Gateway Time-out</body>\n</html>\n"), Garbage, "a page of HTML"},
		{"empty", text(""), Empty, "no entries"},
		{"only comments", text("# 192.0.2.1\n\n"), Empty, "no entries"},
		{"shrunk", text("192.0.2.1\n"), Shrunk, "1 entries, down from 4"},
		{"cut, with length", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(good)))
			fmt.Fprint(w, less)
		}, Truncated, "broke off after 20 bytes"},
		{"cut, in chunks", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, less)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, Truncated, "broke off after 20 bytes"},
		{"cut, compressed", text(string(zip(t, []byte(good))[:40])), Truncated, "unexpected EOF"},
		{"cut, compressed in transit", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(zip(t, []byte(good))[:40])
		}, Truncated, "broke off"},
		{"corrupt, compressed in transit", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			fmt.Fprint(w, "not gzip at all, but long enough")
		}, Garbage, "content encoding"},
		{"reset", func(w http.ResponseWriter, _ *http.Request) {
			hijacked(w, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"+less, true)
		}, Truncated, "reset"},
		{"no HTTP", func(w http.ResponseWriter, _ *http.Request) { hijacked(w, "SSH-2.0-x\r\n", false) }, Unreachable, "no answer"},
		{"closed", func(w http.ResponseWriter, _ *http.Request) { hijacked(w, "", false) }, Unreachable, "no answer"},
		{"stalls in the body", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, less); stall(w, r) }, Stalled, "no data for 800ms after 20 bytes"},
		{"stalls before the header", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, Stalled, "after 0 bytes"},
		{"drips", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				fmt.Fprint(w, "192.0.2.1\n")
				w.(http.Flusher).Flush()
				time.Sleep(50 * time.Millisecond)
			}
		}, TimedOut, "not done within 2.5s"},
		{"too large", text(strings.Repeat("192.0.2.1\n", 10_000)), TooLarge, "more bytes than max_bytes"},
		{"bomb", text(string(bomb)), TooLarge, "decompressed"},
		{"bomb in a bomb", text(string(zip(t, bomb))), Garbage, "compressed twice"},
		{"bomb in transit", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb)
		}, TooLarge, "more bytes"},
		{"redirect loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/list.txt", http.StatusFound) }, BadStatus, "more than 10 redirects"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, dir := serve(t, text(good)), t.TempDir()
			source := from(s)
			if c.want == Stalled || c.want == TimedOut {
				source = impatient(s)
			}
			f := mustOpen(t, config(source), dir)
			want(t, f, fetch(t, f), New, NoFailure, goodText)

			s.now(c.handler)
			o := fetch(t, f)
			if c.want == NoFailure {
				want(t, f, o, Unchanged, NoFailure, goodText)
				return
			}
			want(t, f, o, Failed, c.want, goodText)
			if o.Err == nil || !strings.Contains(o.Err.Error(), c.reason) {
				t.Errorf("error %v, want %s", o.Err, c.reason)
			}
			if st := f.Status().Sources[0]; st.Failures != 1 || st.Last.Failure != c.want || st.Entries != 4 || st.Unsaved {
				t.Errorf("status %+v", st)
			}

			left, err := filepath.Glob(filepath.Join(dir, "*", "*.tmp"))
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}

			again := mustOpen(t, config(source), dir)
			want(t, again, again.Status().Sources[0].Last, Loaded, NoFailure, goodText)
			if o := fetch(t, again); o.Failure != c.want {
				t.Errorf("after a restart: %v", o.Err)
			}

			s.now(text(good))
			want(t, f, fetch(t, f), Unchanged, NoFailure, goodText)
			s.now(text(less))
			want(t, f, fetch(t, f), New, NoFailure, lessText)
			if st := f.Status().Sources[0]; st.Failures != 0 {
				t.Errorf("status %+v", st)
			}
		})
	}
}

// TestRetryAfterHeader checks that Retry-After affects the schedule.
func TestRetryAfterHeader(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7200")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	f := mustOpen(t, config(from(s)), t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	f.Run(ctx, func(Outcome) {
		if wait := time.Until(f.Status().Sources[0].Next); wait < 119*time.Minute {
			t.Errorf("next attempt in %v", wait)
		}
		cancel()
	})
}

// TestCompressedInTransit checks the checksum of a file that the server claims
// to have compressed.
func TestCompressedInTransit(t *testing.T) {
	packed := zip(t, []byte(good))
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(packed)
	})
	for _, sum := range []string{"", fmt.Sprintf("%x", sha256.Sum256(packed))} {
		src := from(s)
		src.SHA256 = SHA256(sum)
		f := mustOpen(t, config(src), t.TempDir())
		want(t, f, fetch(t, f), New, NoFailure, goodText)
	}
}

// TestFirstFetch checks that a feed without contents accepts no bad ones.
func TestFirstFetch(t *testing.T) {
	for failure, h := range map[Failure]http.HandlerFunc{
		BadStatus: status(304), // to an unconditional request
		Empty:     text(""),
		Garbage:   text("<html>\n"),
	} {
		s := serve(t, h)
		f := mustOpen(t, config(from(s)), t.TempDir())
		want(t, f, f.Status().Sources[0].Last, None, NoFailure, "")
		want(t, f, fetch(t, f), Failed, failure, "")
	}
}

func TestUnreachable(t *testing.T) {
	secure := httptest.NewUnstartedServer(text(good))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // silences its complaints about the client
	secure.StartTLS()
	defer secure.Close()
	gone := serve(t, text(good))
	gone.Close()
	for name, src := range map[string]Source{
		"refused":     from(gone),
		"certificate": {URL: URL(secure.URL)},
		"no file":     {File: Path(filepath.Join(t.TempDir(), "absent"))},
		"no regular":  {File: os.DevNull},
		"no such dir": {Directory: Path(filepath.Join(t.TempDir(), "absent"))},
	} {
		f := mustOpen(t, config(src), t.TempDir())
		o := fetch(t, f)
		want(t, f, o, Failed, Unreachable, "")
		if strings.Contains(o.Err.Error(), "Get ") {
			t.Errorf("%s: %v", name, o.Err)
		}
	}
}

// TestConditional checks that validators are sent back to the server, also
// after a restart.
func TestConditional(t *testing.T) {
	const date = "Wed, 21 Oct 2015 07:28:00 GMT"
	var asked []string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("If-None-Match")+" "+r.Header.Get("If-Modified-Since"))
		if r.Header.Get("If-Modified-Since") == date {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("ETag", `W/"1"`)
		w.Header().Set("Last-Modified", date)
		fmt.Fprint(w, good)
	})
	dir := t.TempDir()
	f := mustOpen(t, config(from(s)), dir)
	want(t, f, fetch(t, f), New, NoFailure, goodText)
	before := f.Status().Sources[0].Read
	want(t, f, fetch(t, f), Unchanged, NoFailure, goodText)
	if now := f.Status().Sources[0].Read; !now.After(before) {
		t.Errorf("read at %v, then at %v", before, now)
	}
	f = mustOpen(t, config(from(s)), dir)
	if now := f.Status().Sources[0].Read; !now.Equal(before) {
		t.Errorf("read at %v, after a restart %v", before, now)
	}
	want(t, f, fetch(t, f), Unchanged, NoFailure, goodText)
	if got, want := fmt.Sprintf("%q", asked), fmt.Sprintf("%q", []string{" ", `W/"1" ` + date, `W/"1" ` + date}); got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
}

// TestHeader checks that credentials are sent to their own host only, and
// appear nowhere.
func TestHeader(t *testing.T) {
	var leaked atomic.Bool
	other := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Api-Key") != "" {
			leaked.Store(true)
		}
		text(good)(w, r)
	})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Api-Key") != "secret" || r.URL.Query().Get("token") != "secret" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		http.Redirect(w, r, other.URL, http.StatusFound)
	})
	src := from(s)
	src.URL += "?token=secret"
	src.Headers = map[string]string{"X-Api-Key": "secret"}
	src.SHA256URL = URL(other.URL + "/SHA256SUMS") // contains no checksum
	dir := t.TempDir()
	f := mustOpen(t, config(src), dir)
	o := fetch(t, f)
	want(t, f, o, Failed, BadChecksum, "")
	if leaked.Load() {
		t.Error("the header went to another host")
	}
	s.Close()
	o = fetch(t, f)
	want(t, f, o, Failed, Unreachable, "")
	if said := fmt.Sprintf("%v %+v", o, f.Status()); strings.Contains(said, "secret") {
		t.Errorf("secrets disclosed: %s", said)
	}
}

func TestDowngrade(t *testing.T) {
	plain := serve(t, text(good))
	secure := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	defer secure.Close()
	f := mustOpen(t, config(Source{URL: URL(secure.URL)}), t.TempDir())
	f.sources[0].client.Transport = secure.Client().Transport
	o := fetch(t, f)
	want(t, f, o, Failed, BadStatus, "")
	if !strings.Contains(o.Err.Error(), "from https to http") {
		t.Error(o.Err)
	}
}

// TestSlowReader checks that a slow reader does not count as a stall.
func TestSlowReader(t *testing.T) {
	s := serve(t, text(strings.Repeat(good, 1000))) // more than is buffered
	src := from(s)
	src.StallTimeout = 500 * time.Millisecond
	f := mustOpen(t, config(src), t.TempDir())
	a, err := f.sources[0].get(t.Context(), string(src.URL), validator{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(src.StallTimeout + 100*time.Millisecond)
	if rest, err := io.ReadAll(a); err != nil {
		t.Fatalf("%d bytes, then %v", len(rest), err)
	}
}

func TestChecksum(t *testing.T) {
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(good)))
	other := fmt.Sprintf("%x", sha256.Sum256([]byte(less)))
	for _, c := range []struct {
		name, literal, doc string
		want               Failure
	}{
		{"literal", strings.ToUpper(sum), "", NoFailure},
		{"literal of another", other, "", BadChecksum},
		{"bare", "", sum + "\n", NoFailure},
		{"bare of another", "", other, BadChecksum},
		{"one of several", "", other + "  less.txt\n" + sum + " *./list.txt\n", NoFailure},
		{"tagged", "", "SHA256 (less.txt) = " + other + "\nSHA256 (list.txt) = " + sum + "\n", NoFailure},
		{"none of several", "", sum + "  a\n" + other + "  b\n", BadChecksum},
		{"another name", "", sum + "  list-2026.txt\n", NoFailure},
		{"none at all", "", "<html>", BadChecksum},
		{"too long", "", strings.Repeat("x", 100_000), TooLarge},
		{"missing", "", "404", BadStatus},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path != "/SHA256SUMS":
					text(good)(w, r)
				case c.doc == "404":
					w.WriteHeader(404)
				default:
					fmt.Fprint(w, c.doc)
				}
			})
			src := from(s)
			src.SHA256 = SHA256(c.literal)
			if c.literal == "" {
				src.SHA256URL = URL(s.URL + "/SHA256SUMS")
			}
			f := mustOpen(t, config(src), t.TempDir())
			if c.want == NoFailure {
				want(t, f, fetch(t, f), New, NoFailure, goodText)
			} else {
				want(t, f, fetch(t, f), Failed, c.want, "")
			}
		})
	}
}

// TestNewChecksum checks that a new checksum makes an unconditional request,
// though the server would answer that nothing has changed.
func TestNewChecksum(t *testing.T) {
	s, dir := serve(t, text(good)), t.TempDir()
	f := mustOpen(t, config(from(s)), dir)
	want(t, f, fetch(t, f), New, NoFailure, goodText)
	src := from(s)
	src.SHA256 = SHA256(fmt.Sprintf("%x", sha256.Sum256([]byte(less))))
	f = mustOpen(t, config(src), dir)
	want(t, f, f.Status().Sources[0].Last, Loaded, NoFailure, goodText)
	want(t, f, fetch(t, f), Failed, BadChecksum, goodText)
	s.now(text(less))
	want(t, f, fetch(t, f), New, NoFailure, lessText)
}

func TestSignature(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.StdEncoding.EncodeToString
	const number, another = "12345678", "87654321"
	pub, numbered := b64(public), b64([]byte("Ed"+number+string(public)))
	sig := string(ed25519.Sign(private, []byte(good)))
	file := func(alg, number, sig string) string {
		return "untrusted comment: signature\n" + b64([]byte(alg+number+sig)) + "\ntrusted comment: x\n" +
			b64(ed25519.Sign(private, []byte(sig+"x"))) + "\n"
	}
	for _, c := range []struct {
		name, key, sig string
		reason         string
	}{
		{"bare", pub, sig, ""},
		{"base64", pub, b64([]byte(sig)) + "\n", ""},
		{"minisign", numbered, file("Ed", number, sig), ""},
		{"minisign, bare key", pub, file("Ed", number, sig), ""},
		{"minisign, other key", numbered, file("Ed", another, sig), "by another key"},
		{"minisign, prehashed", numbered, file("ED", number, sig), "minisign -S -l"},
		{"minisign, other comment", numbered, strings.Replace(file("Ed", number, sig), ": x", ": y", 1), "trusted comment does not match"},
		{"signify", numbered, strings.Join(strings.SplitAfter(file("Ed", number, sig), "\n")[:2], ""), ""},
		{"other algorithm", numbered, file("RS", number, sig), `algorithm "RS"`},
		{"forged", pub, sig[:63] + string(sig[63]^1), "does not match the contents"},
		{"of other contents", pub, string(ed25519.Sign(private, []byte(less))), "does not match the contents"},
		{"none", pub, "<html>", "neither 64 bytes"},
		{"short", pub, b64([]byte(sig[1:])), "63 bytes"},
		{"empty", pub, "", "0 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, ".sig") {
					fmt.Fprint(w, c.sig)
				} else {
					text(good)(w, r)
				}
			})
			src := from(s)
			src.SignatureURL, src.PublicKey = src.URL+".sig", c.key
			f := mustOpen(t, config(src), t.TempDir())
			o := fetch(t, f)
			if c.reason == "" {
				want(t, f, o, New, NoFailure, goodText)
				return
			}
			want(t, f, o, Failed, BadSignature, "")
			if !strings.Contains(o.Err.Error(), c.reason) {
				t.Errorf("error %v, want %s", o.Err, c.reason)
			}
		})
	}
}

// An older version of a signed source is refused, also after a restart, and where it
// says no time, unless an operator accepts it.
func TestOlderSignature(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.StdEncoding.EncodeToString
	sign := func(body, comment string) string {
		sig := ed25519.Sign(private, []byte(body))
		return "untrusted comment: a signature\n" + b64(append([]byte("Ed12345678"), sig...)) + "\ntrusted comment: " + comment + "\n" +
			b64(ed25519.Sign(private, append(sig, comment...))) + "\n"
	}
	var body, signature atomic.Value
	publish := func(text, comment string) {
		body.Store(text)
		signature.Store(sign(text, comment))
	}
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".minisig") {
			fmt.Fprint(w, signature.Load())
		} else {
			fmt.Fprint(w, body.Load())
		}
	})
	src, dir := from(s), t.TempDir()
	src.SignatureURL, src.PublicKey = src.URL+".minisig", b64(public)
	conf := config(src)
	conf.MaxShrink = 1
	publish(good, "timestamp:1700000000\tfile:x\thashed")
	f := mustOpen(t, conf, dir)
	want(t, f, fetch(t, f), New, NoFailure, goodText)
	publish(less, "timestamp:1699999999\tfile:x")
	o := fetch(t, f)
	want(t, f, o, Failed, BadSignature, goodText)
	if !strings.Contains(o.Err.Error(), "an older version, signed at 2023-11-14T22:13:19Z") {
		t.Error(o.Err)
	}
	f = mustOpen(t, conf, dir)
	want(t, f, fetch(t, f), Failed, BadSignature, goodText)
	publish(less, "no time")
	want(t, f, fetch(t, f), Failed, BadSignature, goodText)
	publish(good, "timestamp:1700000002")
	want(t, f, fetch(t, f), Unchanged, NoFailure, goodText)
	publish(less, "timestamp:1700000001")
	want(t, f, fetch(t, f), Failed, BadSignature, goodText)
	publish(less, "timestamp:1700000002")
	want(t, f, fetch(t, f), New, NoFailure, lessText)
	publish(good, "timestamp:1")
	want(t, f, fetch(t, f), Failed, BadSignature, lessText)
	all, err := f.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want(t, f, all[0], New, NoFailure, goodText)
}

// TestForgedGarbage checks that contents which neither match their signature
// nor parse are reported for the former.
func TestForgedGarbage(t *testing.T) {
	s := serve(t, text("<html>\n"))
	src := from(s)
	src.SHA256 = SHA256(fmt.Sprintf("%x", sha256.Sum256([]byte(good))))
	f := mustOpen(t, config(src), t.TempDir())
	want(t, f, fetch(t, f), Failed, BadChecksum, "")
}

func TestMaxShrink(t *testing.T) {
	for _, c := range []struct {
		share quantity.Share
		body  string
		ok    bool
	}{
		{DefaultMaxShrink, less, true},
		{DefaultMaxShrink, "192.0.2.1\n", false},
		{0.75, "192.0.2.1\n", true},
		{1, "192.0.2.1\n", true},
		{1, "", false},
		{0, "192.0.2.1\n192.0.2.2\n192.0.2.3\n192.0.2.4\n", true},
		{0, "192.0.2.1\n192.0.2.2\n192.0.2.3\n", false},
	} {
		s := serve(t, text(good))
		conf := config(from(s))
		conf.MaxShrink = c.share
		f := mustOpen(t, conf, t.TempDir())
		fetch(t, f)
		s.now(text(c.body))
		if o := fetch(t, f); (o.Result == New) != c.ok {
			t.Errorf("max shrink %v, %q: %v, %v", c.share, c.body, o.Result, o.Err)
		}
	}
}

// addresses returns a text of n addresses.
func addresses(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "20.%d.%d.%d\n", i>>16, i>>8&0xff, i&0xff)
	}
	return b.String()
}

func TestMaxGrowth(t *testing.T) {
	for _, c := range []struct {
		most          float64
		before, after int
		ok            bool
	}{
		{DefaultMaxGrowth, 5000, 60_000, true},
		{DefaultMaxGrowth, 5000, 60_001, false},
		{DefaultMaxGrowth, 1, 10_010, true},
		{DefaultMaxGrowth, 1, 10_011, false},
		{1, 20_000, 30_001, false},
		{20, 5000, 60_001, true},
		{0, 1, 60_001, true},
	} {
		s := serve(t, text(addresses(c.before)))
		conf := config(from(s))
		conf.Sources[0].MaxBytes, conf.MaxGrowth = 16<<20, c.most
		f := mustOpen(t, conf, "")
		fetch(t, f)
		s.now(text(addresses(c.after)))
		if o := fetch(t, f); (o.Result == New) != c.ok || !c.ok && o.Failure != Grown {
			t.Errorf("%+v: %v, %v", c, o.Result, o.Err)
		}
		if _, err := f.Accept(t.Context()); err != nil || f.Contents().Len() != c.after {
			t.Errorf("%+v: accepted: %d entries, %v", c, f.Contents().Len(), err)
		}
	}
}

// A source may return to what it had not long ago.
func TestVolatile(t *testing.T) {
	s := serve(t, text(addresses(20_000)))
	conf := config(from(s))
	conf.Sources[0].MaxBytes, conf.MaxShrink = 16<<20, 1
	f := mustOpen(t, conf, "")
	for _, n := range []int{20_000, 5, 20_000, 7, 20_000} {
		s.now(text(addresses(n)))
		if o := fetch(t, f); o.Result != New {
			t.Fatalf("%d entries: %v", n, o.Err)
		}
	}
	s.now(text(addresses(250_000)))
	if o := fetch(t, f); o.Failure != Grown {
		t.Errorf("%v, %v", o.Result, o.Err)
	}
}

// A source that has grown by mistake may return to its size for a week, after a restart,
// too.
func TestBackFromGrowth(t *testing.T) {
	s := serve(t, text(addresses(1000)))
	conf := config(from(s))
	conf.Sources[0].MaxBytes = 16 << 20
	dir := t.TempDir()
	f := mustOpen(t, conf, dir)
	fetch(t, f)
	for _, n := range []int{9000, 9100} {
		s.now(text(addresses(n)))
		if o := fetch(t, f); o.Result != New {
			t.Fatal(o.Err)
		}
	}
	f = mustOpen(t, conf, dir)
	s.now(text(addresses(400)))
	if o := fetch(t, f); o.Failure != Shrunk {
		t.Errorf("less than half of the former entries: %v, %v", o.Result, o.Err)
	}
	s.now(text(addresses(600)))
	if o := fetch(t, f); o.Result != New {
		t.Errorf("back: %v, %v", o.Result, o.Err)
	}
	s.now(text(addresses(9000)))
	fetch(t, f)
	f.sources[0].current.Jumped = time.Now().Add(-jumpMemory)
	s.now(text(addresses(600)))
	if o := fetch(t, f); o.Failure != Shrunk {
		t.Errorf("back after a week: %v, %v", o.Result, o.Err)
	}
}

// Once a source is back from a jump, its next versions are compared with what it was
// before, soon and when the jump is forgotten.
func TestAfterBackFromGrowth(t *testing.T) {
	for _, back := range []int{1001, 1000, 999} {
		s := serve(t, text(addresses(1000)))
		conf := config(from(s))
		conf.Sources[0].MaxBytes = 16 << 20
		f := mustOpen(t, conf, "")
		fetch(t, f)
		for _, n := range []int{9000, back, 998, 997} {
			s.now(text(addresses(n)))
			if o := fetch(t, f); o.Result != New {
				t.Errorf("back at %d, then %d: %v", back, n, o.Err)
			}
			if c := f.sources[0].current; n < 9000 && !c.Jumped.IsZero() {
				c.Jumped = time.Now().Add(-jumpMemory)
			}
		}
		s.now(text(addresses(400)))
		if o := fetch(t, f); o.Failure != Shrunk {
			t.Errorf("back at %d, then 400: %v, %v", back, o.Result, o.Err)
		}
	}
}

// backdate makes files old enough to be recognised as unchanged by their times.
func backdate(t *testing.T, paths ...string) {
	t.Helper()
	defer func() {
		for _, path := range paths {
			for mayHide(path) { // the time of the last change cannot be set back
				_ = unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil) // the kernel's time, also where a test has another
			}
		}
	}()
	for i, path := range paths {
		when := time.Now().Add(-time.Hour + time.Duration(i)*time.Second)
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFile(t *testing.T) {
	var f *Feed
	var path, dir string
	wait.For(t, "a fetch soon after a file was written", func() bool {
		path, dir = filepath.Join(t.TempDir(), "list"), t.TempDir()
		must.Write(t, path, good)
		f = mustOpen(t, config(Source{File: Path(path)}), dir)
		want(t, f, fetch(t, f), New, NoFailure, goodText)
		soon := mayHide(path)
		if soon && f.sources[0].current.ETag != "" {
			t.Error("a file that was just written counts as unchanged")
		}
		return soon
	})
	want(t, f, fetch(t, f), Unchanged, NoFailure, goodText)

	backdate(t, path)
	want(t, f, fetch(t, f), Unchanged, NoFailure, goodText)
	if f.sources[0].current.ETag == "" {
		t.Error("an old file does not count as unchanged")
	}
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	want(t, f, fetch(t, f), Unchanged, NoFailure, goodText) // without opening it

	must.Write(t, path+".new", less)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	want(t, f, fetch(t, f), New, NoFailure, lessText)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want(t, f, fetch(t, f), Failed, Unreachable, lessText)
	f = mustOpen(t, config(Source{File: Path(path)}), dir)
	want(t, f, f.Status().Sources[0].Last, Loaded, NoFailure, lessText)
}

// TestFileWritten checks that a file that is being written is rejected.
func TestFileWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	must.Write(t, path, less)
	b, err := Source{File: Path(path)}.files(t.Context(), validator{}, false)
	if err != nil {
		t.Fatal(err)
	}
	must.Write(t, path, good)
	if err := b.whole(); err == nil || !strings.Contains(err.Error(), "changed while being read") {
		t.Error(err)
	}
}

func TestDirectory(t *testing.T) {
	lists, dir := t.TempDir(), t.TempDir()
	in := func(name string) string { return filepath.Join(lists, name) }
	must.Write(t, in("b.txt"), "192.0.2.1\n192.0.2.2\n")
	must.Write(t, in("c.netset.gz"), string(zip(t, []byte("2001:db8::/32\n"))))
	must.Write(t, in("a.txt"), "198.51.100.0/24\nx y\n") // too many bad lines
	must.Write(t, in(".hidden.txt"), "192.0.2.9\n")
	must.Write(t, in("notes"), "192.0.2.9\n")
	if err := os.Mkdir(in("sub.txt"), 0o700); err != nil {
		t.Fatal(err)
	}
	conf := config(Source{Directory: Path(lists), Suffixes: []string{".txt", ".netset.gz"}})
	f := mustOpen(t, conf, dir)
	o := fetch(t, f)
	want(t, f, o, Failed, Garbage, "")
	if !strings.Contains(o.Err.Error(), in("a.txt")+":2:") {
		t.Errorf("error %v", o.Err)
	}

	conf.MaxBad = 0.5
	f = mustOpen(t, conf, dir)
	const all = "192.0.2.1 192.0.2.2 198.51.100.0/24 2001:db8::/32"
	want(t, f, fetch(t, f), New, NoFailure, all)
	if r := f.Status().Sources[0].Reports; len(r) != 3 || r[0].File != in("a.txt") || r[0].Bad != 1 || r[2].Good != 1 {
		t.Errorf("reports %+v", r)
	}
	f = mustOpen(t, conf, dir)
	want(t, f, f.Status().Sources[0].Last, Loaded, NoFailure, all)
	if r := f.Status().Sources[0].Reports; len(r) != 3 || r[0].File != in("a.txt") || r[0].Errors[0].Line != 2 {
		t.Errorf("reports %+v", r)
	}

	backdate(t, in("a.txt"), in("b.txt"), in("c.netset.gz"))
	want(t, f, fetch(t, f), Unchanged, NoFailure, all)
	if err := os.Remove(in("a.txt")); err != nil {
		t.Fatal(err)
	}
	want(t, f, fetch(t, f), New, NoFailure, "192.0.2.1 192.0.2.2 2001:db8::/32")
	must.Write(t, in("d.txt"), "192.0.2.3\n")
	want(t, f, fetch(t, f), New, NoFailure, "192.0.2.1 192.0.2.2 192.0.2.3 2001:db8::/32")
	for _, name := range []string{"b.txt", "c.netset.gz", "d.txt"} {
		if err := os.Remove(in(name)); err != nil {
			t.Fatal(err)
		}
	}
	want(t, f, fetch(t, f), Failed, Empty, "192.0.2.1 192.0.2.2 192.0.2.3 2001:db8::/32")
}

// TestMaxBytesOfDirectory checks that the limit applies to all files together.
func TestMaxBytesOfDirectory(t *testing.T) {
	lists := t.TempDir()
	for i := range 10 {
		must.Write(t, filepath.Join(lists, strconv.Itoa(i)), string(zip(t, []byte(strings.Repeat("192.0.2.1\n", 1000)))))
	}
	for most, failure := range map[int64]Failure{200_000: NoFailure, 99_999: TooLarge, 300: TooLarge} {
		f := mustOpen(t, config(Source{Directory: Path(lists), MaxBytes: quantity.Size(most)}), t.TempDir())
		if o := fetch(t, f); o.Failure != failure {
			t.Errorf("%d bytes: %v", most, o.Err)
		}
	}
}

// TestSources checks that sources are independent of each other.
func TestSources(t *testing.T) {
	a, b := serve(t, text(less)), serve(t, status(500))
	path, dir := filepath.Join(t.TempDir(), "list"), t.TempDir()
	must.Write(t, path, "2001:db8::1\n192.0.2.7\n")
	conf := config(from(a), from(b), Source{File: Path(path)})
	f := mustOpen(t, conf, dir)
	o, err := f.Fetch(t.Context())
	if err != nil || len(o) != 3 || o[0].Result != New || o[1].Failure != BadStatus || o[2].Result != New {
		t.Fatalf("%+v, %v", o, err)
	}
	entries := func() string { return strings.Join(textsOf(f.Contents()), " ") }
	if got := entries(); got != lessText+" 192.0.2.7 2001:db8::1" {
		t.Error(got)
	}
	b.now(text("198.51.100.0/24\n"))
	a.now(status(500))
	if o, err := f.Fetch(t.Context()); err != nil || o[0].Failure != BadStatus || o[1].Result != New {
		t.Fatalf("%+v, %v", o, err)
	}
	const all = lessText + " 192.0.2.7 198.51.100.0/24 2001:db8::1"
	if got := entries(); got != all {
		t.Error(got)
	}
	f = mustOpen(t, conf, dir)
	if got := entries(); got != all || f.Status().Entries != 5 {
		t.Errorf("after a restart: %s, %+v", got, f.Status())
	}
	// Saved contents are not identified by the order of the sources.
	conf.Sources[0], conf.Sources[2] = conf.Sources[2], conf.Sources[0]
	f = mustOpen(t, conf, dir)
	if got := entries(); got != all {
		t.Errorf("in another order: %s", got)
	}
}

// Sources whose URLs differ in their queries only have names of their own, without secrets.
func TestSourcesOfAServer(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "list=b" {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, less)
	})
	a, b := from(s), from(s)
	a.URL += "?list=a"
	b.URL += "?list=b"
	f := mustOpen(t, config(a, b), t.TempDir())
	o, err := f.Fetch(t.Context())
	if err != nil || len(o) != 2 {
		t.Fatalf("%+v, %v", o, err)
	}
	for i, failure := range []Failure{NoFailure, BadStatus} {
		st := f.Status().Sources[i]
		if want := s.URL + "/list.txt" + []string{"", "#2"}[i]; o[i].Source != want || st.Source != want {
			t.Errorf("outcome of %s, status of %s, want %s", o[i].Source, st.Source, want)
		}
		if o[i].Failure != failure || st.Last.Failure != failure {
			t.Errorf("%s: outcome %v, status %v, want %v", st.Source, o[i].Failure, st.Last.Failure, failure)
		}
	}
}

// TestContentsStay checks that contents do not change when their sources do.
func TestContentsStay(t *testing.T) {
	five := "192.0.2.1\n192.0.2.2\n192.0.2.3\n192.0.2.4\n192.0.2.5\n"
	a, b := serve(t, text(five)), serve(t, text("198.51.100.1\n"))
	f := mustOpen(t, config(from(a), from(b)), t.TempDir())
	var given [][]string
	var entries []*list.Set
	for _, body := range []string{"198.51.100.1\n", "198.51.100.2\n"} {
		b.now(text(body))
		if _, err := f.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, f.Contents())
		given = append(given, textsOf(f.Contents()))
	}
	for i, e := range entries {
		if got := textsOf(e); !slices.Equal(got, given[i]) {
			t.Errorf("%v became %v", given[i], got)
		}
	}
}

// TestCutGarbage checks that an answer that breaks off is reported as
// truncated, even if the parser failed before.
func TestCutGarbage(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, "[}        ")
		w.(http.Flusher).Flush()
		time.Sleep(50 * time.Millisecond) // so that the reader sees this first
	})
	c := config(from(s))
	c.Format = jsonAt(".[]")
	f := mustOpen(t, c, t.TempDir())
	want(t, f, fetch(t, f), Failed, Truncated, "")
}

// A fetch that waits for another attempt ends with its context.
func TestWaitCancelled(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	s := serve(t, func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-release
	})
	f := mustOpen(t, config(from(s)), "")
	var other sync.WaitGroup
	other.Go(func() { _, _ = f.Fetch(t.Context()) })
	defer other.Wait()
	defer close(release)
	<-asked
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := f.Fetch(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > DefaultStallTimeout/2 {
		t.Errorf("error %v after %v", err, time.Since(began))
	}
}

func TestCancelled(t *testing.T) {
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	f := mustOpen(t, config(from(s)), t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	o, err := f.Fetch(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || len(o) != 0 || f.Status().Sources[0].Failures != 0 {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestConfigMistakes(t *testing.T) {
	url := Source{URL: "http://192.0.2.1/list"}
	with := func(change func(*Source), more ...func(*Config)) Config {
		s := url
		change(&s)
		c := config(s)
		for _, change := range more {
			change(&c)
		}
		return c
	}
	key := base64.StdEncoding.EncodeToString(make([]byte, 32))
	sum := hex.EncodeToString(make([]byte, 32))
	for _, c := range []struct {
		reason string
		config Config
	}{
		{"no sources", config()},
		{`name "../x"`, named("../x", Format{}, url)},
		{`name ".x"`, named(".x", Format{}, url)},
		{`name ""`, named("", Format{}, url)},
		{"one of file, directory and URL", config(Source{})},
		{"one of file, directory and URL", with(func(s *Source) { s.File = "/x" })},
		{"begins with http", config(Source{URL: "ftp://192.0.2.1/"})},
		{"without a host", config(Source{URL: "http:///x"})},
		{"malformed URL", config(Source{URL: "http://\x00:secret@x/"})},
		{"the same as sources[0]", config(url, url)},
		{"require a directory", with(func(s *Source) { s.Suffixes = []string{".txt"} })},
		{"require a URL", config(Source{File: "/x", SignatureURL: url.URL, PublicKey: key})},
		{"directories and CrowdSec cannot", config(Source{Directory: "/x", SHA256: SHA256(sum)})},
		{"64 hexadecimal", with(func(s *Source) { s.SHA256 = SHA256(sum[1:]) })},
		{"either a SHA-256", with(func(s *Source) { s.SHA256, s.SHA256URL = SHA256(sum), url.URL })},
		{"go together", with(func(s *Source) { s.SignatureURL = url.URL })},
		{"go together", with(func(s *Source) { s.PublicKey = key })},
		{"public key", with(func(s *Source) { s.SignatureURL, s.PublicKey = url.URL, key[4:] })},
		{"negative limit", with(func(s *Source) { s.MaxBytes = -1 })},
		{"negative limit", with(func(s *Source) { s.StallTimeout = -1 })},
		{"interval: -1ns is not between 1s and 30d", with(func(*Source) {}, func(c *Config) { c.Interval = -1 })},
		{"jitter", with(func(*Source) {}, func(c *Config) { c.Jitter = -1 })},
		{"max_shrink: 150% is not between 0% and 100%", with(func(*Source) {}, func(c *Config) { c.MaxShrink = 1.5 })},
		{"max_bytes or timeout is 0", with(func(*Source) {}, func(c *Config) { c.Sources[0].MaxBytes = 0 })},
		{"require a URL", named("x", Format{Kind: CrowdSec}, Source{File: "/x"})},
		{"needs column", named("x", Format{Kind: CSV}, url)},
	} {
		if _, err := Open(t.Context(), c.config, t.TempDir()); err == nil || !strings.Contains(err.Error(), c.reason) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: error %v, want %s", c.config, err, c.reason)
		}
	}
}

// TestNames checks that each kind has a name of its own.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for r := None; r <= Failed; r++ {
		seen[r.String()] = true
	}
	for f := NoFailure + 1; f <= Damaged; f++ {
		seen["failure "+f.String()] = true
	}
	if len(seen) != int(Failed)+1+int(Damaged) {
		t.Errorf("%v", seen)
	}
}

// TestPipe checks that a pipe is read once, and that one without a writer does
// not wait forever.
func TestPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	c := config(Source{File: Path(path), Timeout: quantity.Duration(5 * time.Second)})
	f := mustOpen(t, c, "")
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(path, []byte(good), 0) }()
	w, err := os.OpenFile(path, os.O_RDWR, 0) // a writer, before the feed opens it
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w.Close() // the data stays while there is a reader
	want(t, f, fetch(t, f), New, NoFailure, goodText)
	want(t, f, fetch(t, f), Unchanged, NoFailure, goodText)
	if f.Status().Sources[0].Unsaved {
		t.Error("contents that need not be saved count as unsaved")
	}

	f = mustOpen(t, c, "")
	want(t, f, fetch(t, f), Failed, Empty, "")
}

// TestPipeStops checks that no one waits for a pipe's writer when the context has
// ended.
func TestPipeStops(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(path, os.O_RDWR, 0) // it writes nothing
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	const timeout = 2 * time.Minute
	f := mustOpen(t, config(Source{File: Path(path), Timeout: quantity.Duration(timeout)}), "")
	if _, err := f.Fetch(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > timeout/2 {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// TestInherit checks that contents of the same source outlast another feed of the
// list, until it is read again.
func TestInherit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	must.Write(t, path, good)
	c := config(Source{File: Path(path)})
	former := mustOpen(t, c, "")
	want(t, former, fetch(t, former), New, NoFailure, goodText)
	c.Interval++
	f := mustOpen(t, c, "")
	f.Inherit(former, true)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want(t, f, fetch(t, f), Failed, Unreachable, goodText)
	must.Write(t, path, good)
	want(t, f, fetch(t, f), Unchanged, NoFailure, goodText)

}

// What stays until a source is read with other settings outlasts restarts, also with further reloads
// between, but for a list of another purpose. It goes once the source was read.
func TestInheritAndRestart(t *testing.T) {
	down := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	for name, change := range map[string]func(c *Config){
		"format": func(c *Config) { c.Format = jsonAt(".[]") },
		"column": func(c *Config) { c.Format = Format{Kind: CSV, Column: "5"} },
		"place":  func(c *Config) { c.Sources[0].URL += "?v=2" },
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := serve(t, text(good)), t.TempDir()
			c := config(from(s))
			c.Hold, c.Purpose = true, "block src"
			last := mustOpen(t, c, dir)
			want(t, last, fetch(t, last), New, NoFailure, goodText)
			if err := last.Keep(last.Version()); err != nil {
				t.Fatal(err)
			}
			s.now(down)
			c.Sources = slices.Clone(c.Sources)
			change(&c)
			for _, reload := range []bool{true, false, true, true, false, false} {
				f := mustOpen(t, c, dir)
				if reload {
					f.ForgetFormer()
					f.Inherit(last, true)
				}
				if got := f.Contents(); got.Len() == 0 || got.Diff(last.Contents()).Len() > 0 || !f.Status().Sources[0].Former {
					t.Errorf("reload %v: %d entries, %+v", reload, got.Len(), f.Status().Sources[0])
				}
				if err := f.Keep(f.Version()); err != nil {
					t.Fatal(err)
				}
				last = f
			}
			other := c
			other.Purpose = "allow src"
			if got := mustOpen(t, other, dir).Contents(); got.Len() > 0 {
				t.Errorf("a list of another purpose has %d entries", got.Len())
			}
			s.now(text(map[string]string{
				"format": `["198.51.100.1", "198.51.100.2", "198.51.100.3"]`,
				"column": "a,b,c,d,198.51.100.1\na,b,c,d,198.51.100.2\na,b,c,d,198.51.100.3\n",
				"place":  "198.51.100.1\n198.51.100.2\n198.51.100.3\n",
			}[name]))
			if o := fetch(t, last); o.Result != New {
				t.Fatalf("%+v", o)
			}
			if err := last.Keep(last.Version()); err != nil {
				t.Fatal(err)
			}
			f := mustOpen(t, c, dir)
			if got := f.Contents(); got.Diff(last.Contents()).Len() > 0 || f.Status().Sources[0].Former {
				t.Errorf("once it was read: %d entries, %+v", got.Len(), f.Status().Sources[0])
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*", "*.former")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// What a list has stays until it is read with other settings, or from another place: the server
// may be down. Further reloads meanwhile change nothing.
func TestInheritOtherSettings(t *testing.T) {
	down := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	for name, change := range map[string]func(c *Config){
		"format":   func(c *Config) { c.Format = jsonAt(".[]") },
		"checksum": func(c *Config) { c.Sources[0].SHA256URL = c.Sources[0].URL + ".sha256" },
		"place":    func(c *Config) { c.Sources[0].URL += "?v=2" },
		"file":     func(c *Config) { c.Sources = DefaultSpec(Source{File: "/nonexistent"}).Sources },
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := serve(t, text(good)), t.TempDir()
			c := config(from(s))
			former := mustOpen(t, c, dir)
			want(t, former, fetch(t, former), New, NoFailure, goodText)
			s.now(down)
			c.Sources = slices.Clone(c.Sources)
			change(&c)
			for range 2 {
				f := mustOpen(t, c, dir)
				f.Inherit(former, true)
				o := fetch(t, f)
				want(t, f, o, Failed, o.Failure, goodText)
				if st := f.Status().Sources[0]; !st.Former || !st.Read.IsZero() || st.Entries != f.Contents().Len() || f.Known() {
					t.Errorf("%+v, known %v", st, f.Known())
				}
				former = f
			}
			if name == "file" {
				return
			}
			if s.now(text(less)); name == "format" {
				s.now(text(`["192.0.2.7"]`))
			}
			if name == "checksum" {
				s.now(func(w http.ResponseWriter, r *http.Request) {
					if strings.HasSuffix(r.URL.Path, ".sha256") {
						fmt.Fprintf(w, "%x\n", sha256.Sum256([]byte(less)))
						return
					}
					fmt.Fprint(w, less)
				})
			}
			o := fetch(t, former)
			got := lessText
			if name == "format" {
				got = "192.0.2.7"
			}
			want(t, former, o, New, NoFailure, got)
			if former.Status().Sources[0].Former {
				t.Error("it is read")
			}
		})
	}
}

// Of several sources, each keeps what it had, and what a source had that is gone stays until the one
// in its place is read. Entries of the configuration go at once.
func TestInheritOtherSources(t *testing.T) {
	dir := t.TempDir()
	var sources []Source
	for i := range 3 {
		path := filepath.Join(dir, strconv.Itoa(i))
		must.Write(t, path, fmt.Sprintf("192.0.2.%d\n", i))
		sources = append(sources, Source{File: Path(path)})
	}
	c := config(sources...)
	c.Entries = []string{"198.51.100.1"}
	former := mustOpen(t, c, "")
	if _, err := former.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	absent := filepath.Join(dir, "absent")
	for _, next := range []struct {
		sources []Source
		keep    bool
		want    string
	}{
		{sources[:1], true, "192.0.2.0"},
		{[]Source{sources[0], {File: Path(absent)}}, true, "192.0.2.0 192.0.2.1 192.0.2.2"},
		{[]Source{{File: Path(absent)}}, true, "192.0.2.0 192.0.2.1 192.0.2.2"},
		{[]Source{{File: Path(absent)}}, false, ""}, // of a list that allows what it blocked
	} {
		f := mustOpen(t, config(next.sources...), "")
		f.Inherit(former, next.keep)
		if _, err := f.Fetch(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(textsOf(f.Contents()), " "); got != next.want {
			t.Errorf("%v: %s, want %s", next.sources, got, next.want)
		}
	}
}

// What is saved in the former format may have no entries in the new one.
func TestInheritEmptyFormat(t *testing.T) {
	s, dir := serve(t, text(`{"a":["192.0.2.1"],"b":[]}`)), t.TempDir()
	c := named("bad-guys", jsonAt(".a[]"), from(s))
	former := mustOpen(t, c, dir)
	want(t, former, fetch(t, former), New, NoFailure, "192.0.2.1")
	c.Format = jsonAt(".b[]")
	f := mustOpen(t, c, dir)
	f.Inherit(former, true)
	want(t, f, fetch(t, f), Failed, Empty, "192.0.2.1")
}

// What could not be saved is newer than what is saved.
func TestInheritUnsaved(t *testing.T) {
	path, dir := filepath.Join(t.TempDir(), "list"), t.TempDir()
	must.Write(t, path, "192.0.2.1\n")
	c := config(Source{File: Path(path)})
	former := mustOpen(t, c, dir)
	want(t, former, fetch(t, former), New, NoFailure, "192.0.2.1")
	if err := os.Mkdir(next(former.sources[0].saved), 0o700); err != nil {
		t.Fatal(err)
	}
	must.Write(t, path, "192.0.2.1\n192.0.2.2\n")
	if o := fetch(t, former); o.Unsaved == nil {
		t.Fatalf("it is saved: %+v", o)
	}
	c.Interval++
	f := mustOpen(t, c, dir)
	f.Inherit(former, true)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want(t, f, fetch(t, f), Failed, Unreachable, "192.0.2.1 192.0.2.2")
	if err := os.Remove(next(former.sources[0].saved)); err != nil {
		t.Fatal(err)
	}
	must.Write(t, path, "192.0.2.1\n192.0.2.2\n")
	if o := fetch(t, f); o.Unsaved != nil {
		t.Error(o.Unsaved)
	}
	f = mustOpen(t, c, dir)
	want(t, f, f.sources[0].last, Loaded, NoFailure, "192.0.2.1 192.0.2.2")
}

// After a reload, the attempt of the former feed may still go on: the files of both are the same.
func TestTwoFeedsOfAList(t *testing.T) {
	const full = "192.0.2.1\n192.0.2.2\n"
	asked, answer, dir := make(chan struct{}), make(chan struct{}), t.TempDir()
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "192.0.2.1\n")
		_ = http.NewResponseController(w).Flush()
		close(asked)
		<-answer
	})
	c := config(from(s))
	former := mustOpen(t, c, dir)
	outcomes := make(chan Outcome, 2)
	attempt := func(f *Feed) {
		all, err := f.Fetch(t.Context())
		if err != nil || len(all) != 1 {
			t.Errorf("%+v, %v", all, err)
			all = make([]Outcome, 1)
		}
		outcomes <- all[0]
	}
	go attempt(former)
	<-asked
	s.now(text(full))
	c.Interval++
	f := mustOpen(t, c, dir)
	go attempt(f)
	time.Sleep(100 * time.Millisecond) // in which it would end
	close(answer)
	for range 2 {
		if o := <-outcomes; o.Result != New || o.Unsaved != nil {
			t.Errorf("%+v", o)
		}
	}
	f = mustOpen(t, c, dir)
	want(t, f, f.sources[0].last, Loaded, NoFailure, "192.0.2.1 192.0.2.2")
}

// TestInMemory checks that a feed without a directory writes nothing.
func TestInMemory(t *testing.T) {
	t.Chdir(t.TempDir())
	path := filepath.Join(t.TempDir(), "list")
	must.Write(t, path, good)
	f := mustOpen(t, config(Source{File: Path(path)}), "")
	want(t, f, fetch(t, f), New, NoFailure, goodText)
	if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// A file that is overwritten in place, with as many bytes, and with its time of modification set
// back, is read.
func TestOverwrittenInPlace(t *testing.T) {
	path, dir := filepath.Join(t.TempDir(), "list"), t.TempDir()
	must.Write(t, path, "192.0.2.1\n")
	backdate(t, path)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f := mustOpen(t, config(Source{File: Path(path)}), dir)
	want(t, f, fetch(t, f), New, NoFailure, "192.0.2.1")
	if f.sources[0].current.ETag == "" {
		t.Error("an old file does not count as unchanged")
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("192.0.2.2\n"); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	now, err := os.Stat(path)
	if err != nil || now.Size() != st.Size() || !now.ModTime().Equal(st.ModTime()) || !os.SameFile(st, now) {
		t.Fatalf("%v, %v: the file looks different", now, err)
	}
	want(t, f, fetch(t, f), New, NoFailure, "192.0.2.2")
}

// Contents that are not kept or reverted yet are not read again; once they are reverted, the
// source has failed.
func TestUndecidedIsNotReadAgain(t *testing.T) {
	path, dir := filepath.Join(t.TempDir(), "list"), t.TempDir()
	must.Write(t, path, good)
	backdate(t, path)
	c := config(Source{File: Path(path)})
	c.Hold, c.Progress = true, new(Progress)
	f := mustOpen(t, c, dir)
	want(t, f, fetch(t, f), New, NoFailure, goodText)
	must.Write(t, path, less)
	backdate(t, path)
	want(t, f, fetch(t, f), New, NoFailure, lessText)
	c.Progress.begin("", 0)
	want(t, f, fetch(t, f), Unchanged, NoFailure, lessText)
	if _, done, _ := c.Progress.Get(); done > 0 {
		t.Errorf("%d bytes of it were read again", done)
	}
	f.Revert(f.Version(), errors.New("no"))
	if o := fetch(t, f); o.Result == Unchanged {
		t.Errorf("the refused contents are %v", o.Result)
	}
}
