package api

import (
	"encoding/json"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
	for deadline := time.Now().Add(30 * time.Second); !ended && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		on(func(fd int) { ended = !connected(fd) && !peerLives(fd) })
	}
	if _, err := readProcess(pid); err != nil || !ended {
		t.Fatalf("ended: %t, %v", ended, err)
	}
	on(func(fd int) {
		if p := peerProcess(fd, pid); p != (Process{PID: pid}) {
			t.Errorf("of a process that has ended: %+v", p)
		}
	})
}

func TestParseStat(t *testing.T) {
	for _, c := range []struct{ stat, command, terminal string }{
		{"12 (weir) S 1 12 12 34817 12 4194560", "weir", "pts/1"},
		{"12 (a) b (c) S 1 12 12 0 -1 4194560", "a) b (c", ""},
		{"12 (weir) S 1 12 12 1025 12", "weir", "tty1"},
		{"12 (weir) S 1 12 12 1088 12", "weir", "ttyS0"},
		{"12 (weir) S 1 12 12 35072 12", "weir", "pts/256"},
		{"12 (weir) S 1 12 12 1281 12", "weir", "5:1"},
		{"12 (w\xffr) S 1 12 12 x 12", "w?r", ""},
		{"12 (weir) S 1", "weir", ""},
		{"12 )weir(", "", ""},
		{"", "", ""},
	} {
		if command, terminal := parseStat([]byte(c.stat)); command != c.command || terminal != c.terminal {
			t.Errorf("%q: %q, %q", c.stat, command, terminal)
		}
	}
}

// What a command of root's says of itself counts only where the kernel says nothing, and is
// marked.
func TestClaims(t *testing.T) {
	uid := uint32(1000)
	good, err := json.Marshal(Process{PID: 1, Command: "weir", Terminal: "pts/1", Login: &uid})
	if err != nil {
		t.Fatal(err)
	}
	q := httptest.NewRequest("POST", "/", nil)
	q.Header.Set(processHeader, string(good))
	if p := claimed(q, Process{PID: 7}); p.PID != 7 || p.Command != "weir" || p.Terminal != "pts/1" || p.Login == nil || *p.Login != uid || !p.Claimed {
		t.Errorf("%+v", p)
	}
	if known := (Process{PID: 7, Command: "curl"}); claimed(q, known) != known {
		t.Error("a claim counts beside what is known")
	}
	for _, bad := range []string{"", "{", `{"command": "\u001b[2J"}`, `{"command": "` + strings.Repeat("x", maxProcessHeader) + `"}`, `{"login_uid": -1}`} {
		q.Header.Set(processHeader, bad)
		if p := claimed(q, Process{PID: 7}); p != (Process{PID: 7}) {
			t.Errorf("%q: %+v", bad, p)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (weir) S 1 12 12 34817 12 4194560"))
	f.Fuzz(func(_ *testing.T, stat []byte) { parseStat(stat) })
}
