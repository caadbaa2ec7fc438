package notify

import (
	"bufio"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/control/endpoint"
	"weir/tests/wait"
)

// What others have chosen, in texts and names, ends neither a field nor the message.
func TestSyslogMessages(t *testing.T) {
	e := Event{
		ID: "ID", Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), Host: "a b\n", Kind: Refused, Severity: Warning,
		Text:   "two\nlines|x",
		Change: &ChangeEvent{Change: "block", List: `l]"\`, Error: "a=b\n|c", User: "root"},
	}
	got := e.syslog(RFC5424, "1.0")
	head, rest, _ := strings.Cut(got, " weir ")
	if head != "<28>1 2026-01-02T03:04:05.000006Z ab" {
		t.Errorf("begins with %q", head)
	}
	_, rest, _ = strings.Cut(rest, " ") // PID
	if want := `refused [weir@32473 id="ID" kind="refused" change="block" list="l\]\"\\" error="a=b |c" user="root"] two lines|x`; rest != want {
		t.Errorf("%s\nwant %s", rest, want)
	}
	_, cef, _ := strings.Cut(e.syslog(CEF, "1|0"), " - ")
	if want := `CEF:0|weir|weir|1\|0|refused|two lines\|x|5|rt=1767323045000 dvchost=a b `; !strings.HasPrefix(cef, want) {
		t.Errorf("%s\nwant %s", cef, want)
	}
	if want := ` externalId=ID cs1=block cs1Label=change cs2=l]"\\ cs2Label=list cs3=a\=b |c cs3Label=error suser=root`; !strings.HasSuffix(cef, want) {
		t.Errorf("%s\nwant the end %s", cef, want)
	}
	if strings.ContainsAny(cef+got, "\n") {
		t.Errorf("more than a line: %q %q", got, cef)
	}
}

// A message over TCP is delivered when the server has closed the connection, and is
// repeated otherwise.
func TestSyslogStream(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n, _ := newNotifier(t, Target{Name: "a", Syslog: endpoint.URL("tcp://" + l.Addr().String()), Format: RFC5424})
	n.Send(Event{Kind: Surge, Severity: Info, Text: "text"})
	for round := range 2 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			c.(*net.TCPConn).SetLinger(0)
			c.Close() // it has read nothing
			continue
		}
		c.SetDeadline(wait.Deadline())
		r := bufio.NewReader(c)
		text, err := r.ReadString(' ')
		length, bad := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || bad != nil {
			t.Fatal(text, err, bad)
		}
		message, err := io.ReadAll(r)
		if err != nil || len(message) != length || !strings.HasSuffix(string(message), "] text") {
			t.Errorf("%d: %q, %v", length, message, err)
		}
		if c := n.Counts()[0]; c.Delivered != 0 {
			t.Errorf("delivered before the server has closed: %+v", c)
		}
		c.Close()
	}
	wait.For(t, "the delivery", func() bool { return n.Counts()[0].Delivered == 1 })
}
