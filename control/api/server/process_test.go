package server

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/clock"
	"weir/tests/wait"
)

// connectVariable makes the test's binary a process that connects to a socket, writes a byte,
// and ends when it reads one.
const connectVariable = "WEIR_TEST_CONNECT"

func TestMain(m *testing.M) {
	if path := os.Getenv(connectVariable); path != "" {
		c, err := net.Dial("unix", path)
		if err == nil {
			_, err = c.Write([]byte{1})
		}
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		if err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// The process of a connection is the one that connected, as long as it lives. Once it has
// ended, its number may be another's, and is all that is known.
func TestPeerProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(own)
	child.Env = append(os.Environ(), connectVariable+"="+path)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	on := func(fn func(fd int)) { raw.Control(func(fd uintptr) { fn(int(fd)) }) }
	pid := child.Process.Pid
	on(func(fd int) {
		if p := peerProcess(fd, pid); p.PID != pid || p.Command != filepath.Base(own)[:min(15, len(filepath.Base(own)))] || p.Claimed {
			t.Errorf("%+v", p)
		}
		if !connected(fd) {
			t.Error("the connection counts as closed")
		}
	})
	if _, err := conn.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	// It is not waited for, so that its number still names something in /proc.
	ended := false
	for deadline := wait.Deadline(); !ended && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		on(func(fd int) { ended = !connected(fd) && !peerLives(fd) })
	}
	if _, err := api.ProcessOf(pid); err != nil || !ended {
		t.Fatalf("ended: %t, %v", ended, err)
	}
	on(func(fd int) {
		if p := peerProcess(fd, pid); p != (api.Process{PID: pid}) {
			t.Errorf("of a process that has ended: %+v", p)
		}
	})
}

// What a command of root's says of itself counts only where the kernel says nothing, and is
// marked.
func TestClaims(t *testing.T) {
	uid := uint32(1000)
	good, err := json.Marshal(api.Process{PID: 1, Command: "weir", Terminal: "pts/1", Login: &uid})
	if err != nil {
		t.Fatal(err)
	}
	q := httptest.NewRequest("POST", "/", nil)
	q.Header.Set(api.ProcessHeader, string(good))
	if p := claimed(q, api.Process{PID: 7}); p.PID != 7 || p.Command != "weir" || p.Terminal != "pts/1" || p.Login == nil || *p.Login != uid || !p.Claimed {
		t.Errorf("%+v", p)
	}
	if known := (api.Process{PID: 7, Command: "curl"}); claimed(q, known) != known {
		t.Error("a claim counts beside what is known")
	}
	for _, bad := range []string{"", "{", `{"command": "\u001b[2J"}`, `{"command": "` + strings.Repeat("x", api.MaxProcessHeader) + `"}`, `{"login_uid": -1}`} {
		q.Header.Set(api.ProcessHeader, bad)
		if p := claimed(q, api.Process{PID: 7}); p != (api.Process{PID: 7}) {
			t.Errorf("%q: %+v", bad, p)
		}
	}
}

// What a client on this host no longer waits for is not done.
func TestGivenUp(t *testing.T) {
	done := 0
	h := handler("daemon", []route{{http.MethodPost, "/v1/confirm", func(http.ResponseWriter, *http.Request) (any, error) {
		done++
		return api.Confirmed{Confirmed: true}, nil
	}}})
	for _, c := range []struct {
		until string
		code  int
	}{
		{"", http.StatusOK}, {"soon", http.StatusOK},
		{strconv.FormatInt(int64(clock.This().Ran()+time.Minute), 10), http.StatusOK},
		{strconv.FormatInt(int64(clock.This().Ran()-1), 10), http.StatusRequestTimeout},
	} {
		before := done
		q, w := httptest.NewRequest(http.MethodPost, "/v1/confirm", nil), httptest.NewRecorder()
		q.Header.Set(api.UntilHeader, c.until)
		h.ServeHTTP(w, q)
		if w.Code != c.code || (done > before) != (c.code == http.StatusOK) {
			t.Errorf("%q: code %d, done %d times: %s", c.until, w.Code, done-before, w.Body)
		}
	}
}
