package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/api/client"
	"weir/tests/wait"
)

// A request whose body does not come is answered, and harms no other: GET at once, since none
// reads its body, and without a place among those that are busy.
func TestMissingBodies(t *testing.T) {
	const most = 4
	made, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() {
		if err := Serve(ctx, LimitListener(made, most), http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			io.WriteString(w, strings.Repeat("metric 1\n", 1000)) // more than net/http holds back
		}), slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	})
	defer served.Wait()
	defer stop()
	for range 2 * most {
		c, err := net.Dial("tcp", made.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: weir\r\nContent-Length: 1\r\n\r\n")
		if err := c.SetReadDeadline(time.Now().Add(api.BodyTimeout / 4)); err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(io.LimitReader(c, 9000)); err != nil || len(text) < 9000 {
			t.Fatalf("%d bytes, %v", len(text), err)
		}
	}
}

// However many clients hang, with a request that is sent in part, or with none, a new one is
// answered, no more connections are open than there may be, and what is in progress ends.
func TestLimit(t *testing.T) {
	const most = 8
	path := filepath.Join(t.TempDir(), "socket")
	made, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l := LimitListener(made, most).(*limited)
	ctx, stop := context.WithCancel(t.Context())
	ready, end := make(chan struct{}), make(chan struct{}) // of the slow request
	var served sync.WaitGroup
	served.Go(func() {
		if err := Serve(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/slow" {
				close(ready)
				<-end
			}
			if c, ok := api.CallerOf(withCaller(q).Context()); !ok || c.UID != uint32(os.Getuid()) {
				t.Errorf("the caller is %+v", c)
			}
			io.WriteString(w, "done")
		}), slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	})
	defer served.Wait()
	defer stop()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	get := func(path string) error {
		r, err := client.Get("http://weir" + path)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if text, err := io.ReadAll(r.Body); err != nil || string(text) != "done" {
			return errors.Join(errors.New("no answer"), err)
		}
		return nil
	}
	inProgress := make(chan error, 1)
	go func() { inProgress <- get("/slow") }()
	<-ready
	for i := range 10 * most {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			io.WriteString(c, "GET / HTTP/1.1\r\nHost:")
		}
		if i%most == 0 {
			if err := get("/"); err != nil {
				t.Fatalf("with %d clients that hang: %v", i, err)
			}
		}
		l.mu.Lock()
		if n := len(l.all); n > most {
			t.Errorf("%d connections are open", n)
		}
		l.mu.Unlock()
	}
	close(end)
	if err := <-inProgress; err != nil {
		t.Errorf("what was in progress: %v", err)
	}
}

// A daemon that ends, or has no room, before it has answered differs from one that
// refuses: what was asked for may have been done.
func TestUnanswered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var closing sync.WaitGroup
	closing.Go(func() {
		for unread := false; ; unread = !unread {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if !unread {
				c.Read(make([]byte, 1<<16))
			}
			c.Close()
		}
	})
	defer closing.Wait()
	defer l.Close()
	for range 20 {
		_, err := client.Dial(path).Change(t.Context(), api.Change{Action: api.Block, Entries: []string{"192.0.2.1"}})
		if !errors.Is(err, client.ErrUnanswered) || errors.Is(err, client.ErrNotRunning) {
			t.Errorf("got %v", err)
		}
		_, err = client.DialHub(path).ChangeFleet(t.Context(), api.Change{Action: api.Block, Entries: []string{"192.0.2.1"}})
		if err == nil || !strings.Contains(err.Error(), "may or may not have been done, and to ask again is safe") || errors.Is(err, client.ErrHubNotRunning) {
			t.Errorf("got %v", err)
		}
	}
}

// A peer that hangs with many connections loses its own first, and streams are not counted.
func TestLimitByPeer(t *testing.T) {
	const most = 8
	made, err := net.Listen("tcp", "127.99.96.2:0")
	if err != nil {
		t.Fatal(err)
	}
	l := LimitListener(made, most).(*limited)
	ctx, stop := context.WithCancel(t.Context())
	end := make(chan struct{})
	streams := make(chan struct{}, 4*most)
	var served sync.WaitGroup
	served.Go(func() {
		if err := Serve(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if q.URL.Path == "/stream" {
				Stream(q.Context())
				streams <- struct{}{}
				<-end
			}
			io.WriteString(w, "done")
		}), slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	})
	defer served.Wait()
	defer stop()
	dial := func(from string) net.Conn {
		t.Helper()
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", made.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for range 3 * most {
		io.WriteString(dial("127.99.96.3"), "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
		select {
		case <-streams:
		case <-time.After(wait.Patience):
			t.Fatal("no room for another stream")
		}
	}
	quiet := dial("127.99.96.4")
	for range 3 * most {
		io.WriteString(dial("127.99.96.5"), "GET / HTTP/1.1\r\nHost:")
	}
	// It was there before all of those, and is answered.
	io.WriteString(quiet, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	if text, err := io.ReadAll(quiet); err != nil || !strings.HasSuffix(string(text), "done") {
		t.Errorf("%q, %v", text, err)
	}
	close(end)
}

// Where half of the connections that there may be are there, another one that sends its header
// slowly is closed soon.
func TestHurry(t *testing.T) {
	const most = 8
	made, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() {
		if err := Serve(ctx, LimitListener(made, most), http.NotFoundHandler(), slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	})
	defer served.Wait()
	defer stop()
	closed := func(c net.Conn, within time.Duration) bool {
		t.Helper()
		if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
			t.Fatal(err)
		}
		_, err := io.ReadAll(c)
		return !errors.Is(err, os.ErrDeadlineExceeded)
	}
	var all []net.Conn
	for i := range most/2 + 2 {
		c, err := net.Dial("unix", made.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "GET / HTTP/1.1\r\nHost:")
		if all = append(all, c); i == 0 {
			time.Sleep(500 * time.Millisecond) // until the server reads of it
		}
	}
	if !closed(all[len(all)-1], headerTimeout-time.Second) {
		t.Error("the last one stays for as long as if it were alone")
	}
	if closed(all[0], time.Millisecond) {
		t.Error("the first one is closed, when there was room enough")
	}
}
