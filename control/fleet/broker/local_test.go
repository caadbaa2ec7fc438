package broker

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"weir/tests/wait"
)

// A client that writes before it reads, as while it connects, does not wait for the server,
// which writes before it reads, too. Each side sees the end of the other.
func TestLocal(t *testing.T) {
	t.Parallel()
	s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.Shutdown()
	c, err := local{s}.InProcessConn()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(wait.Deadline()); err != nil {
		t.Fatal(err)
	}
	for range 1000 { // each is answered
		if _, err := c.Write([]byte("CONNECT {\"verbose\":true}\r\nPING\r\n")); err != nil {
			t.Fatal(err)
		}
	}
	r := bufio.NewReader(c)
	for pongs := 0; pongs < 1000; {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, "PONG") {
			pongs++
		}
	}
	c.Close()
	for range 500 {
		if s.NumClients() == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if n := s.NumClients(); n != 0 {
		t.Errorf("%d clients after the end of the connection", n)
	}
	if c, err = (local{s}).InProcessConn(); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r.Reset(c)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	s.Shutdown()
	_ = c.SetReadDeadline(wait.Deadline())
	for err = nil; err == nil; {
		_, err = r.ReadString('\n')
	}
	if strings.Contains(err.Error(), "timeout") {
		t.Error("the client does not see the end of the server")
	}
}
